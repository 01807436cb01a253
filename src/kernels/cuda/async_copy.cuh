// Copies from device memory to shared memory that a thread starts and waits for later (cp.async).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace millrace::kernels::cuda {

__device__ inline std::uint32_t shared_address(const void* p) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(p));
}

/// Copies 16 (4) bytes to shared memory, or zeros there if not `valid`.
__device__ inline void copy_16(void* to, const void* from, bool valid = true) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(valid ? 16 : 0)
               : "memory");
}
__device__ inline void copy_4(void* to, const void* from, bool valid = true) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(to)), "l"(from), "r"(valid ? 4 : 0)
               : "memory");
}
__device__ inline void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// Until all but the latest kLeft groups have come.
template <int kLeft>
__device__ inline void copies_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
}

}  // namespace millrace::kernels::cuda
