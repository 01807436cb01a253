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
target_compile_options(millrace_flags INTERFACE $<$<AND:$<CONFIG:Release>,$<COMPILE_LANGUAGE:CXX>>:-O$<IF:$<BOOL:$<TARGET_PROPERTY:MILLRACE_OPTIMIZE>>,$<TARGET_PROPERTY:MILLRACE_OPTIMIZE>,${MILLRACE_LEVEL}>>)
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

# millrace_read_headers_once(TARGET headers...): with MILLRACE_UNITY the headers that most rooms include, and those named, are
# read once for all targets that name the same and are optimized alike (MILLRACE_OPTIMIZE is set before). A file that is
# compiled otherwise (for an instruction set) cannot use what was read and goes without.
function(millrace_read_headers_once target)
  if(NOT MILLRACE_UNITY)
    return()
  endif()
  set(headers <fmt/format.h> <algorithm> <array> <atomic> <chrono> <cmath> <cstring> <filesystem> <functional> <map> <memory>
    <mutex> <optional> <span> <string> <string_view> <thread> <unordered_map> <utility> <variant> <vector> ${ARGN})
  if("<httplib.h>" IN_LIST ARGN)  # what it declares depends on definitions that one target has
    target_precompile_headers(${target} PRIVATE ${headers})
    return()
  endif()
  # For each optimization anew: with headers that were read at -O1, g++ 12 crashes at -O3.
  get_target_property(optimize ${target} MILLRACE_OPTIMIZE)
  set(reader millrace_headers)
  if(optimize)
    string(APPEND reader _O${optimize})
  endif()
  get_target_property(type ${target} TYPE)
  if(type STREQUAL "EXECUTABLE")
    string(APPEND reader _program)
  endif()
  foreach(header ${ARGN})
    string(MAKE_C_IDENTIFIER ${header} name)
    string(APPEND reader ${name})
  endforeach()
  if(NOT TARGET ${reader})
    file(WRITE ${CMAKE_BINARY_DIR}/headers.cpp "")
    add_library(${reader} OBJECT ${CMAKE_BINARY_DIR}/headers.cpp)
    target_link_libraries(${reader} PRIVATE millrace_flags fmt::fmt Threads::Threads)
    if(optimize)
      set_target_properties(${reader} PROPERTIES MILLRACE_OPTIMIZE ${optimize})
    endif()
    if("<gtest/gtest.h>" IN_LIST ARGN)
      target_link_libraries(${reader} PRIVATE GTest::gtest)
    endif()
    if(type STREQUAL "EXECUTABLE" AND CMAKE_POSITION_INDEPENDENT_CODE AND NOT WIN32)  # a program's code, not a library's
      set_target_properties(${reader} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
      target_compile_options(${reader} PRIVATE -fPIE)
    endif()
    target_precompile_headers(${reader} PRIVATE ${headers})
  endif()
  target_precompile_headers(${target} REUSE_FROM ${reader})
endfunction()

# millrace_units(TARGET): with MILLRACE_UNITY, its files are compiled a dozen at a time, which takes half as long. A file that
# is compiled otherwise than the rest stays alone.
function(millrace_units target)
  if(NOT MILLRACE_UNITY OR NOT Python3_FOUND)
    return()
  endif()
  get_target_property(sources ${target} SOURCES)
  list(FILTER sources INCLUDE REGEX "^/.*\\.cpp$")
  list(FILTER sources EXCLUDE REGEX "/win32/")  # <windows.h> gives many names a meaning
  if(NOT sources)
    return()
  endif()
  execute_process(COMMAND ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/scripts/units.py 12 ${sources}
    OUTPUT_VARIABLE numbers OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  string(REPLACE "\n" ";" numbers "${numbers}")
  foreach(source number IN ZIP_LISTS sources numbers)
    set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${number})
  endforeach()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  # A type that only one file knows may hold what only that file knows; g++ takes what is included for known elsewhere.
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-subobject-linkage>)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${sources})
endfunction()

# millrace_only_this_system(LIST FOLDER): drops the files of FOLDER that lie in a folder posix/ or win32/ of the other system.
function(millrace_only_this_system list folder)
  set(files ${${list}})
  if(WIN32)
    set(other posix)
  else()
    set(other win32)
  endif()
  list(FILTER files EXCLUDE REGEX "/${folder}/(.*/)?${other}/[^/]*$")
  set(${list} ${files} PARENT_SCOPE)
endfunction()

# millrace_room(NAME PUBLIC deps... PRIVATE deps... HEADERS <headers>...): the library millrace_NAME from src/NAME/**.cpp.
# Files of src/NAME/gpu and those named cuda_*.cpp are left out where there is no GPU part (millrace_gpu_sources).
# A file named *_avx2.cpp, *_avx_vnni.cpp or *_avx512.cpp is compiled for that instruction set; nothing else is.
function(millrace_room name)
  cmake_parse_arguments(ARG "" "" "PUBLIC;PRIVATE;HEADERS" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/${name}/*.cpp)
  list(FILTER sources EXCLUDE REGEX "/src/kernels/cuda/")  # millrace_cuda_kernels
  millrace_only_this_system(sources src)
  list(FILTER sources EXCLUDE REGEX "/win32/start/")       # windows_port.cmake
  millrace_leave_out(sources)
  if(NOT sources)
    add_library(millrace_${name} INTERFACE)
    target_link_libraries(millrace_${name} INTERFACE millrace_flags ${ARG_PUBLIC})
    return()
  endif()
  # Templates are rendered once a request: small code, which a budget of a few megabytes feels, before fast code.
  set(small ${sources})
  list(FILTER small INCLUDE REGEX "/text/jinja/")
  list(FILTER sources EXCLUDE REGEX "/text/jinja/")
  add_library(millrace_${name} STATIC ${sources})
  target_link_libraries(millrace_${name} PUBLIC millrace_flags ${ARG_PUBLIC} PRIVATE ${ARG_PRIVATE})
  if(small)
    add_library(millrace_${name}_small OBJECT ${small})
    set_target_properties(millrace_${name}_small PROPERTIES MILLRACE_OPTIMIZE s)
    target_link_libraries(millrace_${name}_small PRIVATE millrace_flags ${ARG_PUBLIC} ${ARG_PRIVATE})
    target_sources(millrace_${name} PRIVATE $<TARGET_OBJECTS:millrace_${name}_small>)
    millrace_read_headers_once(millrace_${name}_small <base/json.h>)
    millrace_units(millrace_${name}_small)
  endif()
  millrace_gpu_sources(millrace_${name})
  if(MILLRACE_HAS_VULKAN AND name MATCHES "^(device|kernels)$")
    millrace_vulkan_modules(${name})
  endif()
  if(TARGET millrace_${name}_gpu)
    millrace_read_headers_once(millrace_${name}_gpu ${ARG_HEADERS})
    millrace_units(millrace_${name}_gpu)
  endif()
  millrace_read_headers_once(millrace_${name} ${ARG_HEADERS})
  foreach(source ${sources})
    if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")  # elsewhere those files hold nothing
      if(source MATCHES "_avx2\\.cpp$")
        set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "-mavx2;-mfma;-mf16c" SKIP_PRECOMPILE_HEADERS ON)
      elseif(source MATCHES "_avx_vnni\\.cpp$")
        set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "-mavx2;-mfma;-mf16c;-mavxvnni" SKIP_PRECOMPILE_HEADERS ON)
      elseif(source MATCHES "_avx512\\.cpp$")
        set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS
          "-mavx2;-mfma;-mf16c;-mavx512f;-mavx512bw;-mavx512vl;-mavx512dq;-mavx512vnni;-mavx512vbmi;-mprefer-vector-width=512"
          SKIP_PRECOMPILE_HEADERS ON)
      endif()
    endif()
    # Parsers do not compute, and what the sanitizers make of these files takes clang minutes.
    if(MILLRACE_FUZZ AND source MATCHES "_avx(2|_vnni|512)\\.cpp$")
      set_property(SOURCE ${source} APPEND PROPERTY COMPILE_OPTIONS -O0 -fno-sanitize=all)
    endif()
    # What is encoded is the same file on every machine: no instruction may round once where another rounds twice.
    if(source MATCHES "/encode_[^/]*\\.cpp$")
      set_property(SOURCE ${source} APPEND PROPERTY COMPILE_OPTIONS -ffp-contract=off)
      set_source_files_properties(${source} PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
    endif()
  endforeach()
  millrace_units(millrace_${name})
  if(MILLRACE_COVERAGE AND name MATCHES "^(exec|residency)$")
    millrace_count_lines(millrace_${name})
  endif()
endfunction()

# millrace_count_lines(TARGET): what links it leaves the number of times that each line of its sources ran (gcov).
function(millrace_count_lines target)
  set_target_properties(${target} PROPERTIES DISABLE_PRECOMPILE_HEADERS ON)
  target_compile_options(${target} PRIVATE --coverage -fprofile-update=atomic)
  target_link_options(${target} PUBLIC --coverage)
endfunction()

# millrace_app(TARGET headers...): with MILLRACE_UNITY, what waits for clients and never computes is built small, and the
# libraries' large headers are read once for all of its files.
function(millrace_app target)
  if(MILLRACE_UNITY)
    set_target_properties(${target} PROPERTIES MILLRACE_OPTIMIZE s)
    millrace_read_headers_once(${target} ${ARGN})
    millrace_units(${target})
  endif()
endfunction()

# millrace_host_kernels(LIST): in place of .cu files, assembly that mingw-w64 made of their launchers, with the kernels that
# nvcc compiled for Linux (scripts/host_kernels.py).
function(millrace_host_kernels list)
  set(folder ${CMAKE_BINARY_DIR}/host_kernels)
  set(script ${CMAKE_SOURCE_DIR}/scripts/host_kernels.py)
  find_package(Python3 REQUIRED COMPONENTS Interpreter)
  file(GLOB headers CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/kernels/cuda/*.cuh)
  set(launchers)
  foreach(source IN LISTS ${list})
    get_filename_component(name ${source} NAME)
    list(APPEND launchers ${folder}/kernels/cuda/${name}.cpp)
  endforeach()
  foreach(header IN LISTS headers)
    get_filename_component(name ${header} NAME)
    list(APPEND launchers ${folder}/kernels/cuda/${name})
  endforeach()
  add_custom_command(OUTPUT ${launchers} DEPENDS ${${list}} ${headers} ${script}
    COMMAND ${Python3_EXECUTABLE} ${script} launchers ${folder} ${${list}} ${headers} COMMENT "Leaving GPU functions out of launchers")
  separate_arguments(flags UNIX_COMMAND "${CMAKE_CXX_FLAGS}")
  list(APPEND flags -std=c++20 -O1 -DNDEBUG -ffp-contract=off -DMILLRACE_HAS_GPU -DNOMINMAX -DWIN32_LEAN_AND_MEAN
    "-D__launch_bounds__(...)=" -D__noinline__= -I${folder} -I${CMAKE_SOURCE_DIR}/src -isystem ${MILLRACE_WINDOWS_LIBS}/include
    -isystem ${cuda_include})
  set(made)
  foreach(source IN LISTS ${list})
    get_filename_component(name ${source} NAME_WE)
    set(object ${MILLRACE_CUDA_OBJECTS}/${name}.cu.o)
    add_custom_command(OUTPUT ${folder}/${name}.s BYPRODUCTS ${folder}/${name}.host.s ${folder}/${name}.fatbin
      DEPENDS ${folder}/kernels/cuda/${name}.cu.cpp ${object} ${script} DEPFILE ${folder}/${name}.d
      COMMAND ${CMAKE_CXX_COMPILER} ${flags} -MD -MT host_kernels/${name}.s -MF ${folder}/${name}.d -S ${folder}/kernels/cuda/${name}.cu.cpp
              -o ${folder}/${name}.host.s
      COMMAND ${Python3_EXECUTABLE} ${script} assembly ${folder}/${name}.host.s ${object} ${folder}/${name}.s
      COMMENT "Launchers of ${name}.cu" VERBATIM)
    list(APPEND made ${folder}/${name}.s)
  endforeach()
  set_source_files_properties(${made} PROPERTIES LANGUAGE ASM)
  set(${list} ${made} PARENT_SCOPE)
endfunction()

# millrace_cuda: src/kernels/cuda, the GPU's half of the kernels' room.
function(millrace_cuda_kernels)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/kernels/cuda/*.cu)
  if(NOT sources)
    add_library(millrace_cuda INTERFACE)
    target_link_libraries(millrace_cuda INTERFACE millrace_flags millrace_kernels)
    return()
  endif()
  if(WIN32)
    millrace_host_kernels(sources)
  endif()
  add_library(millrace_cuda STATIC ${sources} ${CMAKE_SOURCE_DIR}/src/kernels/cuda/ops.cpp)
  millrace_uses_gpu(millrace_cuda)
  target_link_libraries(millrace_cuda PUBLIC millrace_flags millrace_kernels)
endfunction()
