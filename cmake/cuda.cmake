# The GPU part: built where nvcc is found, left out in one piece where it is not (or with -DMILLRACE_CUDA=OFF).
# CUDA's runtime is linked in statically, so that the same program starts where there is no driver.
set(MILLRACE_CUDA AUTO CACHE STRING "Build for NVIDIA GPUs: AUTO (where nvcc is found), ON, OFF")
# Code of 8.0 runs on 8.6 and 8.9 as it is, and no kernel differs for these. PTX of 8.0 and 12.0 is for devices that have no
# code of their own (10.0, later ones); that of 9.0a suits no other.
set(MILLRACE_CUDA_ARCHITECTURES "80;90a-real;120" CACHE STRING "Compute capabilities to build for; one for development")

set(MILLRACE_HAS_CUDA FALSE)
if(NOT MILLRACE_CUDA STREQUAL "OFF")
  find_program(MILLRACE_NVCC nvcc HINTS ENV CUDA_PATH ENV CUDA_HOME PATHS /usr/local/cuda/bin)
  if(MILLRACE_NVCC)
    set(CMAKE_CUDA_COMPILER ${MILLRACE_NVCC})
    set(CMAKE_CUDA_ARCHITECTURES ${MILLRACE_CUDA_ARCHITECTURES})
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
message(STATUS "GPU support: ${MILLRACE_HAS_CUDA} ${MILLRACE_NVCC}")
