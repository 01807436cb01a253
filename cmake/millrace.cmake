# The one place that says how every target is compiled.

add_library(millrace_flags INTERFACE)
# The numerics contract: a*b+c is fused only where the source says fma, on the CPU and on the GPU.
target_compile_options(millrace_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -ffp-contract=off -fno-math-errno $<$<BOOL:${MILLRACE_SHARED}>:-fno-semantic-interposition> $<$<BOOL:${MILLRACE_WERROR}>:-Werror>>
  # Who holds which lock: src/base/thread_annotations.h.
  $<$<COMPILE_LANG_AND_ID:CXX,Clang>:-Wthread-safety -Werror=thread-safety>
  $<$<COMPILE_LANGUAGE:CUDA>:--fmad=false -DFMT_USE_CONSTEXPR=1 -Xcompiler=-Wall $<$<BOOL:${MILLRACE_WERROR}>:-Werror=all-warnings>>
  # Kernels of one template and many dtypes repeat one another: packed as small as it goes they take a third of the room.
  $<$<COMPILE_LANG_AND_ID:CUDA,NVIDIA>:$<$<VERSION_GREATER_EQUAL:$<CUDA_COMPILER_VERSION>,12.8>:--compress-mode=size>>)
target_compile_options(millrace_flags INTERFACE $<$<AND:$<CONFIG:Release>,$<COMPILE_LANGUAGE:CXX>>:$<IF:$<BOOL:$<TARGET_PROPERTY:MILLRACE_SMALL>>,-Os,-O3>>)
target_include_directories(millrace_flags INTERFACE ${CMAKE_SOURCE_DIR}/src)
if(MILLRACE_SANITIZE)
  target_compile_options(millrace_flags INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${MILLRACE_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all>
    # With these, g++ 12 takes a union inside std::regex for uninitialized.
    $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-maybe-uninitialized>)
  target_link_options(millrace_flags INTERFACE -fsanitize=${MILLRACE_SANITIZE})
endif()
if(MILLRACE_FUZZ)
  target_compile_options(millrace_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=fuzzer-no-link>)
endif()

# With MILLRACE_QUICK the headers that most rooms include are read once for all of them. A file that is compiled otherwise
# (for an instruction set, or small) cannot use what was read and goes without.
function(millrace_read_headers_once target)
  if(NOT MILLRACE_QUICK)
    return()
  endif()
  if(NOT TARGET millrace_headers)
    file(WRITE ${CMAKE_BINARY_DIR}/headers.cpp "")
    add_library(millrace_headers OBJECT ${CMAKE_BINARY_DIR}/headers.cpp)
    target_link_libraries(millrace_headers PRIVATE millrace_flags fmt::fmt Threads::Threads)
    target_precompile_headers(millrace_headers PRIVATE <fmt/format.h> <algorithm> <array> <atomic> <chrono> <cmath> <cstring>
      <filesystem> <functional> <map> <memory> <mutex> <optional> <span> <string> <string_view> <thread> <unordered_map>
      <utility> <variant> <vector>)
  endif()
  target_precompile_headers(${target} REUSE_FROM millrace_headers)
endfunction()

# millrace_room(NAME PUBLIC deps... PRIVATE deps...): the library millrace_NAME from src/NAME/**.cpp.
# A file named cuda_*.cpp is left out where there is no CUDA.
# A file named *_avx2.cpp, *_avx512.cpp or *_vnni.cpp is compiled for that instruction set; nothing else is.
function(millrace_room name)
  cmake_parse_arguments(ARG "" "" "PUBLIC;PRIVATE" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/${name}/*.cpp)
  if(NOT MILLRACE_HAS_CUDA)
    list(FILTER sources EXCLUDE REGEX "/cuda_[^/]*\\.cpp$")
  endif()
  if(NOT sources)
    add_library(millrace_${name} INTERFACE)
    target_link_libraries(millrace_${name} INTERFACE millrace_flags ${ARG_PUBLIC})
    return()
  endif()
  add_library(millrace_${name} STATIC ${sources})
  target_link_libraries(millrace_${name} PUBLIC millrace_flags ${ARG_PUBLIC} PRIVATE ${ARG_PRIVATE})
  if(MILLRACE_HAS_CUDA)
    target_compile_definitions(millrace_${name} PUBLIC MILLRACE_HAS_CUDA)
    target_link_libraries(millrace_${name} PUBLIC CUDA::cudart_static)
  endif()
  # Templates are rendered once a request: small code, which a budget of a few megabytes feels, before fast code.
  set(small ${sources})
  list(FILTER small INCLUDE REGEX "/text/jinja/")
  set_source_files_properties(${small} PROPERTIES COMPILE_OPTIONS "-Os" SKIP_PRECOMPILE_HEADERS ON)
  millrace_read_headers_once(millrace_${name})
  foreach(source ${sources})
    if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")  # elsewhere those files hold nothing
      if(source MATCHES "_avx2\\.cpp$")
        set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "-mavx2;-mfma;-mf16c" SKIP_PRECOMPILE_HEADERS ON)
      elseif(source MATCHES "_avx512\\.cpp$")
        set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS
          "-mavx2;-mfma;-mf16c;-mavx512f;-mavx512bw;-mavx512vl;-mavx512dq;-mavx512vnni;-mavx512vbmi;-mprefer-vector-width=512"
          SKIP_PRECOMPILE_HEADERS ON)
      endif()
    endif()
    # What is encoded is the same file on every machine: no instruction may round once where another rounds twice.
    if(source MATCHES "/encode_[^/]*\\.cpp$")
      set_property(SOURCE ${source} APPEND PROPERTY COMPILE_OPTIONS -ffp-contract=off)
      set_source_files_properties(${source} PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
    endif()
  endforeach()
endfunction()

# millrace_app(TARGET headers...): with MILLRACE_QUICK, what waits for clients and never computes is built small, and the
# libraries' large headers are read once for all of its files: half of the time that building takes.
function(millrace_app target)
  if(MILLRACE_QUICK)
    set_target_properties(${target} PROPERTIES MILLRACE_SMALL ON)
    target_precompile_headers(${target} PRIVATE ${ARGN} <fmt/format.h> <functional> <map> <memory> <mutex> <string> <vector>)
  endif()
endfunction()

# millrace_cuda: src/kernels/cuda/*.cu, the GPU's half of the kernels' room.
function(millrace_cuda_kernels)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/kernels/cuda/*.cu)
  if(NOT sources)
    add_library(millrace_cuda INTERFACE)
    target_link_libraries(millrace_cuda INTERFACE millrace_flags millrace_kernels)
    return()
  endif()
  add_library(millrace_cuda STATIC ${sources})
  target_link_libraries(millrace_cuda PUBLIC millrace_flags millrace_kernels)
endfunction()
