// A warp's lanes, and their sum.
#pragma once

#include <cuda_runtime.h>

namespace millrace::kernels::cuda {

constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xffffffffu;

/// The sum of all lanes' values by a tree (16, 8, 4, 2, 1), in every lane.
__device__ __forceinline__ float sum_over_warp(float v) {
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) v += __shfl_xor_sync(kAllLanes, v, step);
  return v;
}

}  // namespace millrace::kernels::cuda
