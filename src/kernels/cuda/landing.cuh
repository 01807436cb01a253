// Copies of 16 bytes at a time from device memory to shared memory, by all threads of a block, that run while the block
// does other things: where what is read lies apart in shared memory, and bulk_copy.cuh's pieces would be too small.
//
// A block declares Landing objects in shared memory, one for each set of bytes it waits for, and Departure objects for
// places that are read by warps and then overwritten; thread 0 calls open(), then all synchronize. All threads call all
// of the others alike. `turn` counts from 0, and nobody may be a whole turn behind when the next one ends.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

namespace millrace::kernels::cuda {

/// 16 bytes, to an address in shared memory.
__device__ __forceinline__ void copy_unit(unsigned to, const std::byte* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

/// A barrier in shared memory that counts arrivals.
class CountedBarrier {
 public:
  __device__ void open(int arrivals) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(address()), "r"(arrivals) : "memory");
  }
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
    asm volatile(
        "{\n"
        ".reg .pred there;\n"
        "again:\n"
        "mbarrier.test_wait.parity.shared.b64 there, [%0], %1;\n"
        "@!there bra again;\n"
        "}\n" ::"r"(address()),
        "r"(turn & 1)
        : "memory");
#endif
  }

 protected:
  __device__ unsigned address() const { return static_cast<unsigned>(__cvta_generic_to_shared(&barrier_)); }

 private:
  unsigned long long barrier_;
};

/// open(threads); after a turn's last copy_unit every thread calls started(), and await() returns when all that was
/// copied before is there.
class Landing : public CountedBarrier {
 public:
  __device__ void started() {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(address()) : "memory");
  }
};

/// open(threads); every thread calls leave() once a turn, and whoever overwrites what was read awaits the turn first.
/// (One arrival a warp would do, but racecheck does not follow a warp's other lanes through it.)
class Departure : public CountedBarrier {
 public:
  __device__ void leave() {
    asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared.b64 state, [%0];\n}\n" ::"r"(address()) : "memory");
  }
};

/// `kCount` neighbouring pieces of kBytes from `from` on, to places kPitch bytes apart in shared memory. For all
/// kThreads threads of a block.
template <int kBytes, int kPitch, int kCount, int kThreads>
__device__ __forceinline__ void copy_pieces(std::byte* to, const std::byte* from) {
  constexpr int kUnits = kBytes / 16, kTurns = kCount * kUnits / kThreads, kUnroll = kTurns < 8 ? kTurns : 8;
  static_assert(kBytes % 16 == 0 && kPitch % 16 == 0 && kCount * kUnits % kThreads == 0);
  const int thread = static_cast<int>(threadIdx.x);
  const auto shared = static_cast<unsigned>(__cvta_generic_to_shared(to));
  from += thread * 16;
  if constexpr (kThreads % kUnits == 0) {  // every turn as many pieces on
    const unsigned place = shared + static_cast<unsigned>(thread / kUnits * kPitch + thread % kUnits * 16);
#pragma unroll kUnroll
    for (int i = 0; i < kTurns; ++i) copy_unit(place + i * (kThreads / kUnits * kPitch), from + i * (kThreads * 16));
  } else {
#pragma unroll kUnroll
    for (int i = 0; i < kTurns; ++i) {
      const int unit = thread + i * kThreads;
      copy_unit(shared + static_cast<unsigned>(unit / kUnits * kPitch + unit % kUnits * 16),
                from + i * (kThreads * 16));
    }
  }
}

}  // namespace millrace::kernels::cuda
