// A warp's lanes, their sum, the largest and the smallest of them.
#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/capability.h"

namespace millrace::kernels::cuda {

constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xffffffffu;

/// The sum of all lanes' values by a tree (16, 8, 4, 2, 1), in every lane.
__device__ __forceinline__ float sum_over_warp(float v) {
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) v += __shfl_xor_sync(kAllLanes, v, step);
  return v;
}

/// combine(a, b) over all lanes' values, in every lane: of integers, in any order.
template <typename T, typename Combine>
__device__ __forceinline__ T combine_over_warp(T v, const Combine& combine) {
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) v = combine(v, __shfl_xor_sync(kAllLanes, v, step));
  return v;
}

/// Of int or unsigned; an instruction from compute capability 8.0 on.
#if MILLRACE_SMALL_BLOCKS
template <typename T>
__device__ __forceinline__ T max_over_warp(T v) {
  return combine_over_warp(v, [](T a, T b) { return a > b ? a : b; });
}
template <typename T>
__device__ __forceinline__ T min_over_warp(T v) {
  return combine_over_warp(v, [](T a, T b) { return a < b ? a : b; });
}
template <typename T>
__device__ __forceinline__ T count_over_warp(T v) {
  return combine_over_warp(v, [](T a, T b) { return a + b; });
}
#else
template <typename T>
__device__ __forceinline__ T max_over_warp(T v) {
  return __reduce_max_sync(kAllLanes, v);
}
template <typename T>
__device__ __forceinline__ T min_over_warp(T v) {
  return __reduce_min_sync(kAllLanes, v);
}
template <typename T>
__device__ __forceinline__ T count_over_warp(T v) {
  return __reduce_add_sync(kAllLanes, v);
}
#endif

}  // namespace millrace::kernels::cuda
