// Asynchronous copies from device to shared memory that complete on an mbarrier: the bulk copy engine from compute 9.0
// on, 16-byte cp.async before.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/async_copy.cuh"

namespace millrace::kernels::cuda {

/// Arrivals that a phase of a barrier takes: of every lane, or of the one that gives the copy engine its order.
template <bool kOneCopy>
__device__ __forceinline__ void barrier_init(std::uint64_t* barrier) {
#if __CUDA_ARCH__ >= 900
  constexpr int kArrivals = kOneCopy ? 1 : 32;
#else
  constexpr int kArrivals = 32;
#endif
  barrier_open(shared_address(barrier), kArrivals);
}

/// Makes barriers known to the copy engine.
__device__ __forceinline__ void barrier_init_done() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

/// Waits for the phase of the given parity.
__device__ __forceinline__ void barrier_wait(std::uint64_t* barrier, std::uint32_t parity) {
  while (!barrier_ended(shared_address(barrier), parity)) continue;
}

/// How long the L2 cache should keep what is copied.
enum class Keep { little, normal };

__device__ __forceinline__ std::uint64_t cache_policy(Keep keep) {
  std::uint64_t policy = 0;
#if __CUDA_ARCH__ >= 900
  if (keep == Keep::little) {
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  } else {
    asm volatile("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
  }
#endif
  return policy;
}

/// Bytes (a multiple of 16, or 0) from source to target, both 16-byte aligned.
struct Copy {
  std::byte* target;
  const std::byte* source;
  std::uint32_t bytes;
};

#if __CUDA_ARCH__ >= 900
__device__ __forceinline__ void bulk_copies(const Copy& a, const Copy& b, std::uint64_t* barrier,
                                            std::uint64_t policy) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(a.bytes + b.bytes)
               : "memory");
  for (const Copy* copy : {&a, &b}) {
    if (copy->bytes == 0) continue;
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::
            "r"(shared_address(copy->target)),
        "l"(copy->source), "r"(copy->bytes), "r"(shared_address(barrier)), "l"(policy)
        : "memory");
  }
}
#endif

/// Called by the whole warp with the same copies, for the barrier's next phase.
__device__ __forceinline__ void warp_copies(const Copy& a, const Copy& b, std::uint64_t* barrier, int lane,
                                            std::uint64_t policy) {
#if __CUDA_ARCH__ >= 900
  if (lane == 0) bulk_copies(a, b, barrier, policy);
#else
  for (const Copy* copy : {&a, &b}) {
    for (std::uint32_t i = 16 * lane; i < copy->bytes; i += 16 * 32)
      copy_unit(shared_address(copy->target + i), copy->source + i);
  }
  barrier_arrive_with_copies(shared_address(barrier));
#endif
}

/// The same for copies of each lane's own.
__device__ __forceinline__ void lane_copies(const Copy& a, const Copy& b, std::uint64_t* barrier,
                                            std::uint64_t policy) {
#if __CUDA_ARCH__ >= 900
  bulk_copies(a, b, barrier, policy);
#else
  for (const Copy* copy : {&a, &b}) {
    for (std::uint32_t i = 0; i < copy->bytes; i += 16) copy_unit(shared_address(copy->target + i), copy->source + i);
  }
  barrier_arrive_with_copies(shared_address(barrier));
#endif
}

}  // namespace millrace::kernels::cuda
