// The sum of squares of an RMS norm, and what it scales by: for kernels that must have the bits of rms_norm().
#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/warp.cuh"

namespace millrace::kernels::cuda {

/// The sum over a block of kThreads, the same bits in every thread. Whole warps of zeros behind the others change none.
template <int kThreads>
__device__ __forceinline__ float sum_over_block(float v) {
  __shared__ alignas(16) float warps[kThreads / kWarp];
  v = sum_over_warp(v);
  if (threadIdx.x % kWarp == 0) warps[threadIdx.x / kWarp] = v;
  __syncthreads();
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kThreads / kWarp; i += 4) {
    const float4 w = *reinterpret_cast<const float4*>(warps + i);
    sum += (w.x + w.y) + (w.z + w.w);
  }
  return sum;
}

__device__ __forceinline__ float add_squares(const float4& v, float sum) {
  sum = __fmaf_rn(v.x, v.x, sum);
  sum = __fmaf_rn(v.y, v.y, sum);
  sum = __fmaf_rn(v.z, v.z, sum);
  return __fmaf_rn(v.w, v.w, sum);
}
__device__ __forceinline__ float norm_scale(float squares, int cols, float eps) {
  return 1.0f / sqrtf(squares / static_cast<float>(cols) + eps);
}

}  // namespace millrace::kernels::cuda
