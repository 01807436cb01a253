# The GPU part: built where nvcc is found, left out in one piece where it is not (or with -DMILLRACE_CUDA=OFF).
# CUDA's runtime is linked in statically, so that the same program starts where there is no driver.
set(MILLRACE_CUDA AUTO CACHE STRING "Build for NVIDIA GPUs: AUTO (where nvcc is found), ON, OFF")
# Code of 8.0 runs on 8.6 and 8.9 as it is, and no kernel differs for these. PTX of 8.0 and 12.0 is for devices that have no
# code of their own (10.0, later ones); that of 9.0a suits no other.
set(every_architecture "80;90a-real;120")
set(MILLRACE_CUDA_ARCHITECTURES "${every_architecture}" CACHE STRING
  "Compute capabilities to build for; one for development; NATIVE: this machine's GPUs, where it has some")

# millrace_native_architectures(OUT): what this machine's GPUs run, all where there are none.
function(millrace_native_architectures out)
  execute_process(COMMAND nvidia-smi --query-gpu=compute_cap --format=csv,noheader
    OUTPUT_VARIABLE found OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
  string(REGEX MATCHALL "[0-9]+\\.[0-9]+" capabilities "${found}")
  set(native)
  foreach(capability IN LISTS capabilities)
    if(capability MATCHES "^8\\.")
      list(APPEND native 80-real)
    elseif(capability STREQUAL "9.0")
      list(APPEND native 90a-real)
    elseif(capability MATCHES "^12\\.")
      list(APPEND native 120-real)
    else()  # whatever has no code of its own compiles that PTX when it starts
      list(APPEND native 80-virtual)
    endif()
  endforeach()
  list(REMOVE_DUPLICATES native)
  if(failed OR NOT native)
    set(native ${every_architecture})
  endif()
  set(${out} ${native} PARENT_SCOPE)
endfunction()

set(MILLRACE_HAS_CUDA FALSE)
if(NOT MILLRACE_CUDA STREQUAL "OFF")
  find_program(MILLRACE_NVCC nvcc HINTS ENV CUDA_PATH ENV CUDA_HOME PATHS /usr/local/cuda/bin)
  if(MILLRACE_NVCC)
    set(CMAKE_CUDA_COMPILER ${MILLRACE_NVCC})
    if(MILLRACE_CUDA_ARCHITECTURES STREQUAL "NATIVE")
      millrace_native_architectures(CMAKE_CUDA_ARCHITECTURES)
    else()
      set(CMAKE_CUDA_ARCHITECTURES ${MILLRACE_CUDA_ARCHITECTURES})
    endif()
    enable_language(CUDA)
    # CMake 3.25 does not know the flag for this compiler version.
    if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
      set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
      set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
    endif()
    find_package(CUDAToolkit REQUIRED)
    set(MILLRACE_HAS_CUDA TRUE)
  elseif(MILLRACE_CUDA STREQUAL "ON")
    message(FATAL_ERROR "MILLRACE_CUDA is ON but nvcc was not found; put it on the PATH or set CUDA_PATH")
  endif()
endif()
message(STATUS "GPU support: ${MILLRACE_HAS_CUDA} ${MILLRACE_NVCC} ${CMAKE_CUDA_ARCHITECTURES}")
