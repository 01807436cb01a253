// Asynchronous copies from device to shared memory that complete on an mbarrier: the bulk copy engine from compute 9.0
// on, 16-byte cp.async before.
#pragma once

#include <cstddef>
#include <cstdint>

namespace millrace::kernels::cuda {

__device__ __forceinline__ std::uint32_t shared_address(const void* p) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(p));
}

/// Arrivals that a phase of a barrier takes: of every lane, or of the one that gives the copy engine its order.
template <bool kOneCopy>
__device__ __forceinline__ void barrier_init(std::uint64_t* barrier) {
#if __CUDA_ARCH__ >= 900
  constexpr int kArrivals = kOneCopy ? 1 : 32;
#else
  constexpr int kArrivals = 32;
#endif
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(kArrivals) : "memory");
}

/// Makes barriers known to the copy engine.
__device__ __forceinline__ void barrier_init_done() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

/// Waits for the phase of the given parity.
__device__ __forceinline__ void barrier_wait(std::uint64_t* barrier, std::uint32_t parity) {
  std::uint32_t done;
  do {
#if __CUDA_ARCH__ >= 900
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                 : "=r"(done)
                 : "r"(shared_address(barrier)), "r"(parity)
                 : "memory");
#else
    asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                 : "=r"(done)
                 : "r"(shared_address(barrier)), "r"(parity)
                 : "memory");
#endif
  } while (done == 0);
}

/// Called by the whole warp: bytes (a multiple of 16) from source to target, both 16-byte aligned, for the barrier's
/// next phase.
__device__ __forceinline__ void warp_copy(std::byte* target, const std::byte* source, std::uint32_t bytes,
                                          std::uint64_t* barrier, int lane) {
#if __CUDA_ARCH__ >= 900
  if (lane == 0) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
                 : "memory");
    if (bytes != 0) {
      asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                       shared_address(target)),
                   "l"(source), "r"(bytes), "r"(shared_address(barrier))
                   : "memory");
    }
  }
#else
  for (std::uint32_t i = 16 * lane; i < bytes; i += 16 * 32) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(target + i)), "l"(source + i)
                 : "memory");
  }
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(barrier)) : "memory");
#endif
}

/// The same for a copy of each lane's own; bytes may be 0.
__device__ __forceinline__ void lane_copy(std::byte* target, const std::byte* source, std::uint32_t bytes,
                                          std::uint64_t* barrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
               : "memory");
  if (bytes != 0) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     shared_address(target)),
                 "l"(source), "r"(bytes), "r"(shared_address(barrier))
                 : "memory");
  }
#else
  for (std::uint32_t i = 0; i < bytes; i += 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(target + i)), "l"(source + i)
                 : "memory");
  }
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(barrier)) : "memory");
#endif
}

__device__ __forceinline__ void copy_16(std::byte* target, const void* source) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(target)), "l"(source) : "memory");
}
__device__ __forceinline__ void copies_done() { asm volatile("cp.async.wait_all;" ::: "memory"); }

}  // namespace millrace::kernels::cuda
