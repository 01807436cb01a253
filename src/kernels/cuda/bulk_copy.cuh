// Copies of contiguous bytes from device memory to shared memory that run while the block does other things. On compute
// capability 9.0 and later one thread hands them to the copy engine; before, all threads copy 16 bytes at a time.
//
// A block declares Arrival objects in shared memory, one for each set of bytes it waits for; thread 0 calls open(),
// then all synchronize; expect() says once how many bytes the next set has; copy() starts one piece (addresses and
// sizes multiples of 16); await() returns in every thread when all of the set is there. All threads call all of them
// alike. copy_pieces() lays neighbouring pieces of memory apart, all threads sharing the work; Departure objects say
// when every warp is done with what was copied.
#pragma once

#include <cuda_pipeline.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

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
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(address()) : "memory");
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
    const auto shared = static_cast<unsigned>(__cvta_generic_to_shared(to));
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared),
        "l"(from), "r"(bytes), "r"(address())
        : "memory");
#else
    for (int i = 16 * static_cast<int>(threadIdx.x); i < bytes; i += 16 * static_cast<int>(blockDim.x)) {
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared + i), "l"(from + i) : "memory");
    }
#endif
  }
  /// `count` neighbouring pieces of kBytes from `from` on, to places `pitch` bytes apart. Called by all threads, of the
  /// block's kWarps warps; before or after the set's expect().
  template <int kBytes, int kWarps>
  __device__ void copy_pieces(std::byte* to, int pitch, const std::byte* from, int count) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    if (threadIdx.x % 32 != 0) return;
#pragma unroll 4
    for (int i = static_cast<int>(threadIdx.x) / 32; i < count; i += kWarps) {
      copy(to + i * pitch, from + i * kBytes, kBytes);
    }
#else
    constexpr int kUnits = kBytes / 16;
    const auto shared = static_cast<unsigned>(__cvta_generic_to_shared(to));
    for (int i = static_cast<int>(threadIdx.x); i < count * kUnits; i += 32 * kWarps) {
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared + i / kUnits * pitch + i % kUnits * 16),
                   "l"(from + i * 16)
                   : "memory");
    }
#endif
  }
  /// `turn` counts the sets from 0.
  __device__ void await(int turn) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile(
        "{\n"
        ".reg .pred there;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 there, [%0], %1;\n"
        "@!there bra again;\n"
        "}\n" ::"r"(address()),
        "r"(turn & 1)
        : "memory");
#else
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncthreads();
#endif
  }

 private:
  __device__ unsigned address() const { return static_cast<unsigned>(__cvta_generic_to_shared(&barrier_)); }
  unsigned long long barrier_;
};

/// Says when all warps of a block are done with a place in shared memory, so that the copy engine may write there
/// again. Thread 0 calls open(), then all synchronize; every warp calls leave() once a turn, and whoever copies next
/// waits for the turn's end. All threads call leave() and await() alike.
class Departure {
 public:
  __device__ void open(int warps) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address()), "r"(warps) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
  }
  __device__ void leave() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
      asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address()) : "memory");
    }
#endif
  }
  /// `turn` counts from 0.
  __device__ void await(int turn) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile(
        "{\n"
        ".reg .pred there;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 there, [%0], %1;\n"
        "@!there bra again;\n"
        "}\n" ::"r"(address()),
        "r"(turn & 1)
        : "memory");
#else
    __syncthreads();
#endif
  }

 private:
  __device__ unsigned address() const { return static_cast<unsigned>(__cvta_generic_to_shared(&barrier_)); }
  unsigned long long barrier_;
};

/// After a thread's own stores to shared memory where the copy engine will write once the block has synchronized.
__device__ __forceinline__ void fence_copies() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

/// Asks for bytes to come to the L2 cache; for one thread. Where there is no engine for it, does nothing.
__device__ __forceinline__ void prefetch_bytes(const std::byte* from, int bytes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
#endif
}

}  // namespace millrace::kernels::cuda
