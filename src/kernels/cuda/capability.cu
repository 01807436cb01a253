#include <atomic>
#include <cstdint>

#include "device/gpu.h"
#include "kernels/cuda/capability.h"

namespace millrace::kernels::cuda {
namespace {

/// Built as all other kernels are.
__global__ void any_kernel() {}

constexpr int kDevices = 64;

/// What `ask` says of the current device, asked once; 0 where it does not say.
template <typename Ask>
int known_of_device(std::atomic<int> (&known)[kDevices], const Ask& ask) {
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess || device < 0 || device >= kDevices) return 0;
  int answer = known[device].load(std::memory_order_relaxed);
  if (answer == 0) {
    answer = ask(device);
    known[device].store(answer, std::memory_order_relaxed);
  }
  return answer;
}

}  // namespace

int compiled_capability() {
  static std::atomic<int> known[kDevices];  // 0: not asked
  return known_of_device(known, [](int) {
    cudaFuncAttributes attributes = {};
    if (cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(any_kernel)) == cudaSuccess)
      return attributes.ptxVersion;
    (void)cudaGetLastError();
    return 0;
  });
}

int block_shared_bytes() {
  static std::atomic<int> known[kDevices];
  return known_of_device(known, [](int device) {
    int bytes = 0;
    if (cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) != cudaSuccess) return 0;
    return static_cast<int>(device::at_most_block_shared(static_cast<std::uint64_t>(bytes)));
  });
}

bool pretends_less_shared() {
  static const bool pretends = device::at_most_block_shared(UINT64_MAX) < UINT64_MAX;
  return pretends;
}

bool fits_block_shared(const void* kernel, std::size_t dynamic_bytes) {
  cudaFuncAttributes attributes = {};
  return cudaFuncGetAttributes(&attributes, kernel) == cudaSuccess &&
         attributes.sharedSizeBytes + dynamic_bytes <= static_cast<std::size_t>(block_shared_bytes());
}

}  // namespace millrace::kernels::cuda
