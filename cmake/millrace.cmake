# The one place that says how every target is compiled.

add_library(millrace_flags INTERFACE)
target_compile_options(millrace_flags INTERFACE
  -Wall -Wextra
  # The numerics contract: a*b+c is fused only where the source says fma.
  -ffp-contract=off
  -fno-math-errno
  $<$<BOOL:${MILLRACE_WERROR}>:-Werror>)
target_compile_options(millrace_flags INTERFACE $<$<CONFIG:Release>:-O3>)
target_include_directories(millrace_flags INTERFACE ${CMAKE_SOURCE_DIR}/src)
if(MILLRACE_SANITIZE)
  target_compile_options(millrace_flags INTERFACE -fsanitize=${MILLRACE_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(millrace_flags INTERFACE -fsanitize=${MILLRACE_SANITIZE})
endif()
if(MILLRACE_FUZZ)
  target_compile_options(millrace_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()

# millrace_room(NAME PUBLIC deps... PRIVATE deps...): the library millrace_NAME from src/NAME/**.cpp.
# A file named *_avx2.cpp, *_avx512.cpp or *_vnni.cpp is compiled for that instruction set; nothing else is.
function(millrace_room name)
  cmake_parse_arguments(ARG "" "" "PUBLIC;PRIVATE" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/${name}/*.cpp)
  if(NOT sources)
    add_library(millrace_${name} INTERFACE)
    target_link_libraries(millrace_${name} INTERFACE millrace_flags ${ARG_PUBLIC})
    return()
  endif()
  add_library(millrace_${name} STATIC ${sources})
  target_link_libraries(millrace_${name} PUBLIC millrace_flags ${ARG_PUBLIC} PRIVATE ${ARG_PRIVATE})
  if(NOT CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    return()  # those files hold nothing elsewhere
  endif()
  foreach(source ${sources})
    if(source MATCHES "_avx2\\.cpp$")
      set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "-mavx2;-mfma;-mf16c")
    elseif(source MATCHES "_avx512\\.cpp$")
      set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS
        "-mavx2;-mfma;-mf16c;-mavx512f;-mavx512bw;-mavx512vl;-mavx512dq;-mavx512vnni;-mavx512vbmi;-mprefer-vector-width=512")
    endif()
  endforeach()
endfunction()
