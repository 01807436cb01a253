# The link between processes: a plugin, built where mpi.h is found, left out where it is not (or with
# -DMILLRACE_MPI=OFF). The program loads it when an MPI launcher starts it, and needs no MPI otherwise.
set(MILLRACE_MPI AUTO CACHE STRING "Build the MPI plugin: AUTO (where mpi.h is found), ON, OFF")

function(millrace_mpi_plugin)
  include(GNUInstallDirs)
  set_source_files_properties(${CMAKE_SOURCE_DIR}/src/link/mpi_link.cpp PROPERTIES
    COMPILE_DEFINITIONS MILLRACE_LIBRARY_FOLDER="${CMAKE_INSTALL_LIBDIR}" SKIP_PRECOMPILE_HEADERS ON)
  if(MILLRACE_MPI STREQUAL "OFF")
    return()
  endif()
  find_package(MPI COMPONENTS C QUIET)
  if(NOT MPI_C_FOUND)
    if(MILLRACE_MPI STREQUAL "ON")
      message(FATAL_ERROR "MILLRACE_MPI is ON but mpi.h was not found; install libopenmpi-dev or the like")
    endif()
    message(STATUS "MPI plugin: left out, there is no mpi.h")
    return()
  endif()
  add_library(millrace_mpi MODULE ${CMAKE_SOURCE_DIR}/src/link/mpi_plugin.c)
  target_include_directories(millrace_mpi PRIVATE ${CMAKE_SOURCE_DIR}/src)
  target_compile_options(millrace_mpi PRIVATE -Wall -Wextra $<$<BOOL:${MILLRACE_WERROR}>:-Werror>)
  target_link_libraries(millrace_mpi PRIVATE MPI::MPI_C)
  set_target_properties(millrace_mpi PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR} POSITION_INDEPENDENT_CODE ON
    C_STANDARD 11 C_STANDARD_REQUIRED ON)
  if(NOT MILLRACE_PORTABLE)  # packages suit no one MPI
    install(TARGETS millrace_mpi LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
  endif()
endfunction()
