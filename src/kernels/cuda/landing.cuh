// Copies of 16 bytes at a time from device memory to shared memory, by all threads of a block, that run while the block
// does other things: where what is read lies apart in shared memory, and bulk_copy.cuh's pieces would be too small.
//
// A block declares Landing objects in shared memory, one for each set of bytes it waits for, and Departure objects for
// places that are read by warps and then overwritten; thread 0 calls open(), then all synchronize. All threads call all
// of the others alike. `turn` counts from 0, and nobody may be a whole turn behind when the next one ends.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/async_copy.cuh"

namespace millrace::kernels::cuda {

/// A barrier in shared memory that counts arrivals.
class CountedBarrier {
 public:
  __device__ void open(int arrivals) { barrier_open(address(), arrivals); }
  __device__ void await(int turn) { barrier_await(address(), static_cast<std::uint32_t>(turn & 1)); }

 protected:
  __device__ std::uint32_t address() const { return shared_address(&barrier_); }

 private:
  unsigned long long barrier_;
};

/// open(threads); after a turn's last copy_unit every thread calls started(), and await() returns when all that was
/// copied before is there.
class Landing : public CountedBarrier {
 public:
  __device__ void started() { barrier_arrive_with_copies(address()); }
};

/// open(threads); every thread calls leave() once a turn, and whoever overwrites what was read awaits the turn first.
/// (One arrival a warp would do, but racecheck does not follow a warp's other lanes through it.)
class Departure : public CountedBarrier {
 public:
  __device__ void leave() { barrier_arrive(address()); }
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
