// Activations of prompts in int8: see prompt_int8.h.
#include <cuda_bf16.h>

#include "kernels/cuda/launchers.h"
#include "kernels/cuda/pdl.cuh"
#include "kernels/cuda/tensor_core.cuh"
#include "kernels/cuda/warp.cuh"

namespace millrace::kernels::cuda {
namespace {

constexpr int kWarps = 8, kRowsOfBlock = 32, kLaneElements = kSegment / 32;

__device__ inline void load_eight(float (&v)[8], const __nv_bfloat16* from) {
  const uint4 bits = *reinterpret_cast<const uint4*>(from);
  const std::uint32_t words[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    v[2 * i] = __uint_as_float(words[i] << 16);
    v[2 * i + 1] = __uint_as_float(words[i] & 0xFFFF0000u);
  }
}
__device__ inline void load_eight(float (&v)[8], const float* from) {
  const float4 low = reinterpret_cast<const float4*>(from)[0], high = reinterpret_cast<const float4*>(from)[1];
  v[0] = low.x, v[1] = low.y, v[2] = low.z, v[3] = low.w;
  v[4] = high.x, v[5] = high.y, v[6] = high.z, v[7] = high.w;
#pragma unroll
  for (int i = 0; i < 8; ++i) v[i] = __bfloat162float(__float2bfloat16_rn(v[i]));
}

/// A segment of 32 rows, a warp four of them, a lane eight elements of each.
template <typename X>
__global__ void round_kernel(const X* x, int rows, int cols, int padded_rows, PromptInt8 out) {
  __shared__ float scales[kSegmentScales][kRowsOfBlock];
  wait_for_predecessor();
  allow_successor();
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int segment = static_cast<int>(blockIdx.x), first = static_cast<int>(blockIdx.y) * kRowsOfBlock;
  const int col = segment * kSegment + lane * kLaneElements, padded_cols = static_cast<int>(gridDim.x) * kSegment;
#pragma unroll
  for (int i = 0; i < kRowsOfBlock / kWarps; ++i) {
    const int in = warp + i * kWarps, row = first + in;
    float v[8] = {};
    if (row < rows && col < cols) load_eight(v, x + std::int64_t{row} * cols + col);
    std::uint32_t amax_bits = 0;  // magnitudes compare as integers do, and so NaN is the largest of all
#pragma unroll
    for (int k = 0; k < 8; ++k) amax_bits = max(amax_bits, __float_as_uint(v[k]) & 0x7fffffffu);
    amax_bits = max_over_warp(amax_bits);
    const float amax = __uint_as_float(amax_bits);
    const bool finite = amax_bits < 0x7f800000u;
    const float inverse = finite && amax >= 0x1p-120f ? __fdiv_rn(127.0f, amax) : 0.0f;
    std::uint32_t packed[2] = {};
    int sum = 0;
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const float shifted = (inverse == 0 ? 0.0f : v[k] * inverse) + 12582912.0f;  // rounds to nearest even
      const int q = __float_as_int(shifted) - 0x4B400000;
      packed[k / 4] |= (static_cast<std::uint32_t>(q) & 255) << (8 * (k % 4));
      sum += q;
    }
    const float d = !finite ? __uint_as_float(0x7fc00000u) : inverse == 0 ? 0.0f : __fdiv_rn(amax, 127.0f);
    const int sum16 = sum + __shfl_xor_sync(~0u, sum, 1), sum32 = sum16 + __shfl_xor_sync(~0u, sum16, 2);
    if (row < rows) *reinterpret_cast<uint2*>(out.q + std::int64_t{row} * padded_cols + col) = {packed[0], packed[1]};
    if (lane == 0) scales[0][in] = d;
    if (lane % 4 == 0) scales[1 + lane / 4][in] = to_tf32(d * static_cast<float>(sum32));
    if (lane % 2 == 0) scales[9 + lane / 2][in] = to_tf32(d * static_cast<float>(sum16));
  }
  __syncthreads();
  for (int i = warp; i < kSegmentScales; i += kWarps)
    out.scales[(std::int64_t{segment} * kSegmentScales + i) * padded_rows + first + lane] = scales[i][lane];
}

template <typename X>
cudaError_t launch_round(const X* x, std::int32_t rows, std::int32_t cols, PromptInt8 out, cudaStream_t stream) {
  if (rows <= 0) return cudaSuccess;
  const auto padded = static_cast<int>(PromptInt8::padded_rows(rows));
  const dim3 grid(static_cast<unsigned>(PromptInt8::segments(cols)),
                  static_cast<unsigned>((rows + kRowsOfBlock - 1) / kRowsOfBlock));
  return launch(round_kernel<X>, grid, dim3(32 * kWarps), 0, stream, x, rows, cols, padded, out);
}

}  // namespace

cudaError_t round_prompt(const Bf16* x, std::int32_t rows, std::int32_t cols, PromptInt8 out, cudaStream_t stream) {
  return launch_round(reinterpret_cast<const __nv_bfloat16*>(x), rows, cols, out, stream);
}
cudaError_t round_prompt(const float* x, std::int32_t rows, std::int32_t cols, PromptInt8 out, cudaStream_t stream) {
  return launch_round(x, rows, cols, out, stream);
}

}  // namespace millrace::kernels::cuda
