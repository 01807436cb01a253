# MILLRACE_PORTABLE: a program that starts on Debian 12, Ubuntu 22.04 and 24.04 as they are installed. What their base
# systems lack is linked in, from build/static (packaging/static_libs.sh), and the C library is asked for nothing newer
# than 2.35 (packaging/check_portable.sh reads what came out).
set(static ${CMAKE_SOURCE_DIR}/build/static)
if(NOT EXISTS ${static}/done)
  message(FATAL_ERROR "build/static is not there; run packaging/static_libs.sh first")
endif()
list(PREPEND CMAKE_PREFIX_PATH ${static})
list(PREPEND CMAKE_LIBRARY_PATH ${static}/lib)  # before the system's: it holds archives alone
set(ENV{PKG_CONFIG_PATH} ${static}/lib/pkgconfig)
set(PKG_CONFIG_ARGN --static)
set(OPENSSL_USE_STATIC_LIBS ON)
# What `make` compiles is linked here once more, so no file may be compiled otherwise: Debian's headers are the same as those
# of the archives, and the same definitions.
macro(millrace_compile_as_shared)
  set_target_properties(fmt::fmt PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "" INTERFACE_COMPILE_DEFINITIONS FMT_SHARED)
  set_target_properties(spdlog::spdlog PROPERTIES INTERFACE_INCLUDE_DIRECTORIES ""
    INTERFACE_COMPILE_DEFINITIONS "SPDLOG_SHARED_LIB;SPDLOG_COMPILED_LIB;SPDLOG_FMT_EXTERNAL")
endmacro()
add_link_options(-Wl,--undefined=arc4random ${static}/lib/libarc4random.a -static-libgcc -static-libstdc++)
