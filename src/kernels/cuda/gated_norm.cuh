// What gated_norm() does with a head (heads.h), for kernels that have it at hand.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/exp.cuh"
#include "kernels/cuda/launchers.h"
#include "kernels/cuda/norm_sum.cuh"
#include "kernels/cuda/quantize.cuh"

namespace millrace::kernels::cuda {

/// Four neighbouring channels as bfloat16, at the `fours`-th four of `to`.
__device__ __forceinline__ void store_bf16(Bf16* to, std::int64_t fours, const float (&y)[4]) {
  alignas(8) const __nv_bfloat162 two[2] = {__floats2bfloat162_rn(y[0], y[1]), __floats2bfloat162_rn(y[2], y[3])};
  reinterpret_cast<uint2*>(to)[fours] = *reinterpret_cast<const uint2*>(two);
}

/// By a warp, of head number `head` of all rows' heads: four neighbouring channels a lane, kVectors times, of what was
/// summed (v), the gate (g) and the weight (w), zero where there are none. The sum of squares is that of rms_norm(),
/// whose warp i has the i-th of a lane's vectors here.
template <int kVectors>
__device__ __forceinline__ void gate_normal_head(const GatedNormCall& call, std::int64_t head,
                                                 const float4 (&v)[kVectors], const float4 (&g)[kVectors],
                                                 const float4 (&w)[kVectors]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, count = call.head_dim / 4;
  float warps[4] = {};
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    warps[i] = sum_over_warp(add_squares(v[i], 0));
  }
  const float sum = (warps[0] + warps[1]) + (warps[2] + warps[3]);
  const float scale = norm_scale(sum, call.head_dim, call.eps);
  const Gate gate{call.activation};
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int at = lane + kWarp * i;
    if (at >= count) continue;  // of a block of 32 all go on, or none
    const float y[4] = {gated(gate, g[i].x, v[i].x * scale * w[i].x), gated(gate, g[i].y, v[i].y * scale * w[i].y),
                        gated(gate, g[i].z, v[i].z * scale * w[i].z), gated(gate, g[i].w, v[i].w * scale * w[i].w)};
    const std::int64_t first = head * count + at;  // in fours
    if (call.out != nullptr) reinterpret_cast<float4*>(call.out)[first] = make_float4(y[0], y[1], y[2], y[3]);
    if (call.out_bf16 != nullptr) store_bf16(call.out_bf16, first, y);
    if (call.out_q8.q != nullptr) {
      const std::int64_t block = first / 8;
      quantize_block(y, call.out_q8.q + 32 * block, call.out_q8.scale + block);
    }
  }
}

}  // namespace millrace::kernels::cuda
