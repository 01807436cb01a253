// Keys and values on their way into a cache of few bits: rotated, and quantized by the bits of encode_row
// (tensor/codec.h) and encode_kv_q4 (tensor/kv_codec.h). A warp has a head, four neighbouring channels a lane.
#pragma once

#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/warp.cuh"
#include "tensor/encode_blocks.h"

namespace millrace::kernels::cuda {

/// The elements of a cache in q4_0: channels c (low) and c + 16 (high) of a scale's 32, in two's complement.
struct Nibbles {
  std::uint8_t two;
};

/// Four channels of 32 with a scale. quants: a byte each, the first lowest.
struct KvFour {
  unsigned quants;
  __half scale;
};

__device__ __forceinline__ float encodable(float x) {
  return x == x ? fminf(fmaxf(x, -kLargestEncodable), kLargestEncodable) : 0.0f;
}

// Of both encoders: eight neighbouring lanes of a warp, aligned, hold the 32 channels; all lanes call together.

__device__ __forceinline__ KvFour encode_q8_four(const float4& four) {
  const float x[4] = {encodable(four.x), encodable(four.y), encodable(four.z), encodable(four.w)};
  float amax = fmaxf(fmaxf(fabsf(x[0]), fabsf(x[1])), fmaxf(fabsf(x[2]), fabsf(x[3])));
#pragma unroll
  for (int step = 1; step < 8; step *= 2) amax = fmaxf(amax, __shfl_xor_sync(kAllLanes, amax, step));
  KvFour result;
  result.scale = __float2half_rn(fminf(amax / 127.0f, 65504.0f));
  const float stored = __half2float(result.scale), inverse = stored != 0 ? 1.0f / stored : 0.0f;
  result.quants = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int q = __float2int_rn(fminf(fmaxf(x[i] * inverse, -127.0f), 127.0f));
    result.quants |= (static_cast<unsigned>(q) & 255u) << (8 * i);
  }
  return result;
}

/// Each byte of quants is a nibble.
__device__ __forceinline__ KvFour encode_q4_four(const float4& four) {
  const float x[4] = {encodable(four.x), encodable(four.y), encodable(four.z), encodable(four.w)};
  float most = fmaxf(fmaxf(x[0], x[1]), fmaxf(x[2], x[3])), least = fminf(fminf(x[0], x[1]), fminf(x[2], x[3]));
#pragma unroll
  for (int step = 1; step < 8; step *= 2) {
    most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, step));
    least = fminf(least, __shfl_xor_sync(kAllLanes, least, step));
  }
  const float extreme = (-least >= most ? least : most) + 0.0f;  // a zero of one sign
  constexpr float kDivisors[] = {-8.0f, -7.5f, -8.5f, -9.0f};
  KvFour result = {};
  float best = 0;
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    const __half scale = __float2half_rn(fminf(fmaxf(extreme / kDivisors[c], -65504.0f), 65504.0f));
    const float stored = __half2float(scale), inverse = stored != 0 ? 1.0f / stored : 0.0f;
    float squares[4];
    unsigned quants = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float level = rintf(fminf(fmaxf(x[i] * inverse, -8.0f), 7.0f)), missed = x[i] - stored * level;
      squares[i] = missed * missed;
      quants |= (static_cast<unsigned>(static_cast<int>(level)) & 15u) << (8 * i);
    }
    float error = (squares[0] + squares[1]) + (squares[2] + squares[3]);
#pragma unroll
    for (int step = 1; step < 8; step *= 2) error += __shfl_xor_sync(kAllLanes, error, step);
    if (c > 0 && !(error < best)) continue;
    best = error;
    result = {quants, scale};
  }
  return result;
}

/// A head's channels, 4 lane + 128 i to + 3 in v[i], zero beyond the head, become rotated ones: NUMERICS of
/// kernels/rotation.h. span: at least 32. For the whole warp.
template <int kVectors>
__device__ __forceinline__ void rotate_head(float4 (&v)[kVectors], int span, float factor) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto join = [](float& a, float& b) {
    const float sum = a + b;
    b = a - b;
    a = sum;
  };
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    join(v[i].x, v[i].y);
    join(v[i].z, v[i].w);
    join(v[i].x, v[i].z);
    join(v[i].y, v[i].w);
  }
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    if (4 * step >= span) break;
    const bool upper = (lane & step) != 0;
    const auto cross = [&](float& mine) {
      const float other = __shfl_xor_sync(kAllLanes, mine, step);
      mine = upper ? other - mine : mine + other;
    };
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      cross(v[i].x);
      cross(v[i].y);
      cross(v[i].z);
      cross(v[i].w);
    }
  }
#pragma unroll
  for (int step = 1; step < kVectors; step *= 2) {
    if (128 * step >= span) break;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if ((i & step) != 0) continue;
      join(v[i].x, v[i + step].x);
      join(v[i].y, v[i + step].y);
      join(v[i].z, v[i + step].z);
      join(v[i].w, v[i + step].w);
    }
  }
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    v[i] = make_float4(v[i].x * factor, v[i].y * factor, v[i].z * factor, v[i].w * factor);
  }
}

}  // namespace millrace::kernels::cuda
