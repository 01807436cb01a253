# The toolchain of the Windows build: mingw-w64 on Debian 12. The preset `windows` and packaging/windows_libs.sh use it.
set(CMAKE_SYSTEM_NAME Windows)
set(CMAKE_SYSTEM_PROCESSOR x86_64)
set(CMAKE_C_COMPILER x86_64-w64-mingw32-gcc-posix)
set(CMAKE_CXX_COMPILER x86_64-w64-mingw32-g++-posix)
set(CMAKE_RC_COMPILER x86_64-w64-mingw32-windres)
set(CMAKE_AR x86_64-w64-mingw32-gcc-ar-posix)
set(CMAKE_RANLIB x86_64-w64-mingw32-gcc-ranlib-posix)

# Libraries and headers come from what packaging/windows_libs.sh built and from Debian's mingw packages, never from this
# system; programs are this system's.
set(MILLRACE_WINDOWS_LIBS ${CMAKE_CURRENT_LIST_DIR}/../build/windows-libs)
get_filename_component(MILLRACE_WINDOWS_LIBS ${MILLRACE_WINDOWS_LIBS} ABSOLUTE)
set(CMAKE_FIND_ROOT_PATH ${MILLRACE_WINDOWS_LIBS} /usr/x86_64-w64-mingw32)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(ENV{PKG_CONFIG_LIBDIR} ${MILLRACE_WINDOWS_LIBS}/lib/pkgconfig)
set(ENV{PKG_CONFIG_PATH} "")

# Windows 10 is the oldest system that runs the result. off_t has 32 bits unless asked, and printf is the compiler's own:
# msvcrt's knows neither %zu nor all of C99. The assembler replaces aligned vector moves by unaligned ones: gcc does not
# align the stack to 32 bytes on Windows (its bug 54412), and the instructions cost the same. windows_port.cmake checks it.
set(flags "-D_WIN32_WINNT=0x0A00 -D_FILE_OFFSET_BITS=64 -D__USE_MINGW_ANSI_STDIO=1 -Wa,-muse-unaligned-vector-move")
set(CMAKE_C_FLAGS_INIT "${flags}")
set(CMAKE_CXX_FLAGS_INIT "${flags}")
# The program needs no DLL but the system's.
set(CMAKE_EXE_LINKER_FLAGS_INIT "-static")
set(CMAKE_SHARED_LINKER_FLAGS_INIT "-static")
