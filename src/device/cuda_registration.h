// How a file that is not compiled by nvcc registers its kernels with our CUDA runtime, before main()
// (scripts/host_kernels.py).
#pragma once

namespace millrace::device {

/// A function that stands for a kernel, and the kernel's name in the image of its file.
struct HostKernel {
  const void* function;
  const char* name;
};

/// An object of static storage registers, and never takes it back.
class KernelRegistration {
 public:
  /// kernels: up to one without a function. Image and names stay where they are.
  KernelRegistration(const void* image, const HostKernel* kernels);
};

}  // namespace millrace::device
