#include <algorithm>
#include <atomic>
#include <cstdint>

#include "device/gpu.h"
#include "kernels/cuda/capability.h"

namespace millrace::kernels::cuda {
namespace {

/// Built as all other kernels are.
__global__ void any_kernel() {}

/// Of a device; 0 where it does not say.
int attribute_of(int device, cudaDeviceAttr attribute) {
  int value = 0;
  return cudaDeviceGetAttribute(&value, attribute, device) == cudaSuccess ? value : 0;
}

}  // namespace

int compiled_capability() {
  static std::atomic<int> known[kMostDevices];
  return known_of_device(known, [](int) {
    cudaFuncAttributes attributes = {};
    if (cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(any_kernel)) == cudaSuccess)
      return attributes.ptxVersion;
    (void)cudaGetLastError();
    return 0;
  });
}

int multiprocessor_count() {
  static std::atomic<int> known[kMostDevices];
  const auto ask = [](int device) { return attribute_of(device, cudaDevAttrMultiProcessorCount); };
  return std::max(known_of_device(known, ask), 1);
}

std::size_t block_shared_bytes() {
  static std::atomic<int> known[kMostDevices];
  const auto ask = [](int device) { return attribute_of(device, cudaDevAttrMaxSharedMemoryPerBlockOptin); };
  return device::at_most_block_shared(static_cast<std::uint64_t>(known_of_device(known, ask)));
}

bool pretends_less_shared() {
  static const bool pretends = device::at_most_block_shared(UINT64_MAX) < UINT64_MAX;
  return pretends;
}

bool fits_block_shared(const void* kernel, std::size_t dynamic_bytes) {
  cudaFuncAttributes attributes = {};
  return cudaFuncGetAttributes(&attributes, kernel) == cudaSuccess &&
         attributes.sharedSizeBytes + dynamic_bytes <= block_shared_bytes();
}

}  // namespace millrace::kernels::cuda
