// Copies of contiguous bytes from device memory to shared memory that run while the block does other things. On compute
// capability 9.0 and later one thread hands them to the copy engine; before, all threads copy 16 bytes at a time.
//
// A block declares Arrival objects in shared memory, one for each set of bytes it waits for; thread 0 calls open(),
// then all synchronize; expect() says once how many bytes the next set has; copy() starts one piece (addresses and
// sizes multiples of 16); await() returns in every thread when all of the set is there. All threads call all of them
// alike.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/async_copy.cuh"

namespace millrace::kernels::cuda {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
constexpr bool kCopyEngine = true;
#else
constexpr bool kCopyEngine = false;
#endif

class Arrival {
 public:
  __device__ void open() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    barrier_open(address(), 1);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
  }
  static __device__ bool copies() { return !kCopyEngine || threadIdx.x == 0; }
  __device__ void expect(int bytes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address()), "r"(bytes) : "memory");
#endif
  }
  __device__ void copy(void* to, const std::byte* from, int bytes) {
    const unsigned shared = shared_address(to);
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared),
        "l"(from), "r"(bytes), "r"(address())
        : "memory");
#else
    for (int i = 16 * static_cast<int>(threadIdx.x); i < bytes; i += 16 * static_cast<int>(blockDim.x)) {
      copy_unit(shared + static_cast<unsigned>(i), from + i);
    }
#endif
  }
  /// `turn` counts the sets from 0.
  __device__ void await(int turn) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    barrier_await(address(), static_cast<std::uint32_t>(turn & 1));
#else
    copies_done();
    __syncthreads();
#endif
  }

 private:
  __device__ unsigned address() const { return shared_address(&barrier_); }
  unsigned long long barrier_;
};

/// Asks for bytes to come to the L2 cache; for one thread. Where there is no engine for it, does nothing.
__device__ __forceinline__ void prefetch_bytes(const std::byte* from, int bytes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
#endif
}

}  // namespace millrace::kernels::cuda
