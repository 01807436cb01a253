// Copies from device memory to shared memory that a thread starts and waits for later (cp.async), and barriers in
// shared memory that count arrivals, copies' too (mbarrier). Compute capability 7.5 has neither: a copy is there when
// the call returns, and a barrier is a counter.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/capability.h"

namespace millrace::kernels::cuda {

__device__ __forceinline__ std::uint32_t shared_address(const void* p) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(p));
}

/// Copies 16 bytes to an address in shared memory.
__device__ __forceinline__ void copy_unit(std::uint32_t to, const void* from) {
#if MILLRACE_SMALL_BLOCKS
  const uint4 unit = *static_cast<const uint4*>(from);
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(unit.x), "r"(unit.y), "r"(unit.z), "r"(unit.w)
               : "memory");
#else
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
#endif
}

/// Copies 16 (4) bytes to shared memory, or zeros there if not `valid`.
__device__ inline void copy_16(void* to, const void* from, bool valid = true) {
#if MILLRACE_SMALL_BLOCKS
  *static_cast<uint4*>(to) = valid ? *static_cast<const uint4*>(from) : make_uint4(0, 0, 0, 0);
#else
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(valid ? 16 : 0)
               : "memory");
#endif
}
__device__ inline void copy_4(void* to, const void* from, bool valid = true) {
#if MILLRACE_SMALL_BLOCKS
  *static_cast<std::uint32_t*>(to) = valid ? *static_cast<const std::uint32_t*>(from) : 0;
#else
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(to)), "l"(from), "r"(valid ? 4 : 0)
               : "memory");
#endif
}
__device__ inline void copies_commit() {
#if !MILLRACE_SMALL_BLOCKS
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
/// Until all but the latest kLeft groups have come.
template <int kLeft>
__device__ inline void copies_wait() {
#if !MILLRACE_SMALL_BLOCKS
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
#endif
}
/// Until all have come.
__device__ __forceinline__ void copies_done() {
#if !MILLRACE_SMALL_BLOCKS
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

/// A barrier's 8 bytes in shared memory, at `barrier`; one thread opens it, then all synchronize. A phase ends with the
/// last of its `arrivals`; the first has parity 0.
__device__ __forceinline__ void barrier_open(std::uint32_t barrier, int arrivals) {
#if MILLRACE_SMALL_BLOCKS
  asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(barrier), "r"(0), "r"(arrivals) : "memory");
#else
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
#endif
}

/// What the thread wrote before is seen by those that the phase lets go on.
__device__ __forceinline__ void barrier_arrive(std::uint32_t barrier) {
#if MILLRACE_SMALL_BLOCKS
  __threadfence_block();
  asm volatile("red.shared.add.u32 [%0], 1;" ::"r"(barrier) : "memory");
#else
  asm volatile("{ .reg .b64 state; mbarrier.arrive.shared.b64 state, [%0]; }" ::"r"(barrier) : "memory");
#endif
}

/// Arrives when all copies have come that the thread started before.
__device__ __forceinline__ void barrier_arrive_with_copies(std::uint32_t barrier) {
#if MILLRACE_SMALL_BLOCKS
  barrier_arrive(barrier);
#else
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
#endif
}

/// Whether the phase of the given parity has ended. Nobody may be a whole phase behind.
__device__ __forceinline__ bool barrier_ended(std::uint32_t barrier, std::uint32_t parity) {
#if MILLRACE_SMALL_BLOCKS
  std::uint32_t arrived, arrivals;
  asm volatile("ld.volatile.shared.v2.u32 {%0, %1}, [%2];" : "=r"(arrived), "=r"(arrivals) : "r"(barrier) : "memory");
  if (arrived / arrivals % 2 == parity) return false;
  __threadfence_block();
  return true;
#else
  std::uint32_t there;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
               : "=r"(there)
               : "r"(barrier), "r"(parity)
               : "memory");
#else
  asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
               : "=r"(there)
               : "r"(barrier), "r"(parity)
               : "memory");
#endif
  return there != 0;
#endif
}

/// Until it has. (matvec's loops ask barrier_ended(), of which the compiler makes other code, as it was measured.)
__device__ __forceinline__ void barrier_await(std::uint32_t barrier, std::uint32_t parity) {
#if MILLRACE_SMALL_BLOCKS
  while (!barrier_ended(barrier, parity)) continue;
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n"
      ".reg .pred there;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 there, [%0], %1;\n"
      "@!there bra again;\n"
      "}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
#else
  asm volatile(
      "{\n"
      ".reg .pred there;\n"
      "again:\n"
      "mbarrier.test_wait.parity.shared.b64 there, [%0], %1;\n"
      "@!there bra again;\n"
      "}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
#endif
}

}  // namespace millrace::kernels::cuda
