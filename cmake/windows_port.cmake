# What the Windows build does otherwise than the Linux build. The toolchain is windows.cmake.

# What it leaves out, "file or folder|reason". This list only shrinks.
set(millrace_left_out
  "bench|most programs need Google's benchmark library, which packaging/windows_libs.sh does not build; kv_formats, which does not, was not tried"
  "tests/cuda_engine/cufile_test.cpp|cuFile is Linux's"
)
if(NOT MILLRACE_HAS_CUDA)
  list(APPEND millrace_left_out "tests/cuda_engine|simulated devices map memory by mmap")
endif()

# millrace_leave_out(LIST): removes from the list of sources what the Windows build leaves out.
function(millrace_leave_out list)
  if(NOT WIN32)
    return()
  endif()
  set(kept ${${list}})
  foreach(entry IN LISTS millrace_left_out)
    string(REGEX REPLACE "\\|.*" "" path "${entry}")
    string(REPLACE "." "\\." path "${path}")
    list(FILTER kept EXCLUDE REGEX "^${CMAKE_SOURCE_DIR}/${path}(/|$)")
  endforeach()
  set(${list} ${kept} PARENT_SCOPE)
endfunction()

# millrace_folder(FOLDER): add_subdirectory, unless it is left out.
macro(millrace_folder folder)
  set(folders ${CMAKE_SOURCE_DIR}/${folder}/CMakeLists.txt)
  millrace_leave_out(folders)
  if(folders AND EXISTS ${folders})
    add_subdirectory(${folder})
  endif()
endmacro()

if(NOT WIN32)
  return()
endif()

# The programs need no DLL but the system's: of a library that Debian has both ways, the archive.
set(CMAKE_FIND_LIBRARY_SUFFIXES .a)

# gcc's bug 54412: the stack is aligned to 16 bytes, and a vector of 32 that is passed by value lies there. An aligned move of
# it is a crash. The assembler's flag of windows.cmake turns each into an unaligned one; an assembler that does not is refused.
file(WRITE ${CMAKE_BINARY_DIR}/vectors.cpp
  "#include <immintrin.h>\n__m256 twice(__m256 a) { return a + a; }\nvoid use(__m256);\n"
  "void call(const __m256* a) { use(twice(a[0])); __m256 b = a[1]; use(b); }\n")
separate_arguments(vector_flags UNIX_COMMAND "${CMAKE_CXX_FLAGS}")
execute_process(COMMAND ${CMAKE_CXX_COMPILER} ${vector_flags} -O2 -mavx2 -c ${CMAKE_BINARY_DIR}/vectors.cpp -o ${CMAKE_BINARY_DIR}/vectors.o
  COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${CMAKE_OBJDUMP} -d --no-show-raw-insn ${CMAKE_BINARY_DIR}/vectors.o OUTPUT_VARIABLE code COMMAND_ERROR_IS_FATAL ANY)
if(code MATCHES "vmov(ap|dqa)[a-z0-9]*[^\n]*(%ymm|YMMWORD)")
  message(FATAL_ERROR "The compiler moves vectors as if Windows aligned the stack to 32 bytes, and the assembler lets it "
                      "(-muse-unaligned-vector-move has no effect): the programs would crash. Use Debian 12's mingw-w64.")
endif()

# Every program has the manifest and prepares the standard streams before main().
enable_language(RC)
file(GLOB start CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/base/os/win32/start/*.cpp)
add_library(millrace_windows_start OBJECT ${start} ${CMAKE_SOURCE_DIR}/cmake/windows.rc)
set_target_properties(millrace_windows_start PROPERTIES INCLUDE_DIRECTORIES ${CMAKE_SOURCE_DIR}/cmake)
target_sources(millrace_flags INTERFACE $<$<STREQUAL:$<TARGET_PROPERTY:TYPE>,EXECUTABLE>:$<TARGET_OBJECTS:millrace_windows_start>>)
target_compile_definitions(millrace_flags INTERFACE NOMINMAX WIN32_LEAN_AND_MEAN UNICODE _UNICODE)
# Sockets, and waiting on a word of memory; what CMake names by itself has files, consoles and permissions.
set(millrace_system_libraries ws2_32 synchronization)
if(MILLRACE_PROGRAM)  # an archive does not name the system's libraries that it needs
  find_package(OpenSSL REQUIRED COMPONENTS Crypto)
  target_link_libraries(OpenSSL::Crypto INTERFACE ws2_32 crypt32)
endif()
