// What the current device is: for which compute capability the code that it runs was written, how many multiprocessors
// it has, how much shared memory a block may have. Thread-safe.
#pragma once

#include <cuda_runtime.h>

#include <atomic>
#include <cstddef>

#include "kernels/gpu/gates.h"

/// Whether device code is compiled for 7.5: kernels that has_small_blocks() alone asks for are empty in other code.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#define MILLRACE_SMALL_BLOCKS 1
#else
#define MILLRACE_SMALL_BLOCKS 0
#endif

namespace millrace::kernels::cuda {

constexpr int kMostDevices = 64;

/// ask(device) of the current device, asked once each; 0, which is asked again: it does not say, or there is none.
template <typename Ask>
int known_of_device(std::atomic<int> (&known)[kMostDevices], const Ask& ask) {
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess || device < 0 || device >= kMostDevices) return 0;
  int answer = known[device].load(std::memory_order_relaxed);
  if (answer == 0) {
    answer = ask(device);
    known[device].store(answer, std::memory_order_relaxed);
  }
  return answer;
}

/// 10 major + minor. Below the device's own where its code was made from an older capability's PTX: what that lacks
/// (clusters, dependent launches, the copy engine) the kernels then do not use, and nobody may ask it of them. 0: there
/// is no device, or no code for it. Asked of the driver once a device.
int compiled_capability();

/// 1 where the device does not say. Asked of the driver once a device.
int multiprocessor_count();

using gpu::kLeastBlockShared;
using gpu::kSmallBlockShared;
/// Bytes of shared memory that a block may have when it asks for them: 227 KiB of 9.0, 163 of 8.0, 99 of 8.6, 8.9 and
/// 12.0, 64 of 7.5; 0: there is no device. MILLRACE_BLOCK_SHARED of the environment, in KiB, makes it less, so that a
/// larger card runs what a smaller one would. Asked of the driver once a device.
std::size_t block_shared_bytes();
/// Whether the code that the current device runs is for 7.5, whose blocks have kSmallBlockShared.
inline bool has_small_blocks() { return compiled_capability() < 80; }
/// Whether the environment makes it less; a launch then has to ask whether its blocks would have their memory there.
bool pretends_less_shared();
/// Whether blocks of the kernel, with so many bytes that the launch gives, have no more than that.
bool fits_block_shared(const void* kernel, std::size_t dynamic_bytes);

}  // namespace millrace::kernels::cuda
