// Keys and values on their way into a cache of few bits: rotated, and quantized by the bits of encode_row
// (tensor/codec.h), encode_kv_q4 and encode_kv_few (tensor/kv_codec.h). A warp has a head, four neighbouring channels a
// lane.
#pragma once

#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/warp.cuh"
#include "tensor/encode_blocks.h"
#include "tensor/kv_codec.h"

namespace millrace::kernels::cuda {

/// The elements of a cache in q4_0: channels c (low) and c + 16 (high) of a scale's 32, in two's complement.
struct Nibbles {
  std::uint8_t two;
};

/// Those of a cache in three bits, which have signs, or in two: fields, signs and scales lie as kv/layout.h says.
template <bool kSigns>
struct FewBits {
  std::uint8_t byte;
};
template <typename T>
constexpr bool kIsFewBits = false;
template <bool kSigns>
constexpr bool kIsFewBits<FewBits<kSigns>> = true;
template <typename T>
constexpr bool kHasSigns = false;
template <>
inline constexpr bool kHasSigns<FewBits<true>> = true;

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

// Few bits. A warp's lanes hold a head as rotate_head takes it, and all call together. Lane + 32 i is the number of
// the four neighbours that a lane has in vector i; a scale is of `group` channels, a power of two from 32 on, and so of
// group / 4 such fours.

/// In place of each sum, those of all fours of its scale, added as a tree of neighbours.
template <int kVectors>
__device__ __forceinline__ void sum_over_groups(float (&sums)[kVectors], int group) {
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    if (4 * step >= group) break;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) sums[i] += __shfl_xor_sync(kAllLanes, sums[i], step);
  }
#pragma unroll
  for (int step = 1; step < kVectors; step *= 2) {
    if (128 * step >= group) break;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if ((i & step) == 0) sums[i] = sums[i + step] = sums[i] + sums[i + step];
    }
  }
}

/// The bits of encode_kv_few: codes have a byte for each of four channels, the first lowest.
template <bool kSigns, int kVectors>
__device__ __forceinline__ void encode_few(const float4 (&v)[kVectors], int group, unsigned (&codes)[kVectors],
                                           __half (&scales)[kVectors]) {
  constexpr DType kDtype = kSigns ? DType::q3_k : DType::q2_0;
  const auto index_of = [](float magnitude, float d) {
    constexpr KvMagnitudes kLevels = kv_magnitudes(kDtype);
    int index = 0;
#pragma unroll
    for (int l = 0; l + 1 < kLevels.count; ++l) index += magnitude > kLevels.bound(l) * d ? 1 : 0;
    return index;
  };
  const auto level_of = [](int index) {
    constexpr KvMagnitudes kLevels = kv_magnitudes(kDtype);
    if constexpr (!kSigns) return index != 0 ? kLevels.of(1) : kLevels.of(0);
    return static_cast<float>(kKvLevels3 >> (8 * index) & 255u);
  };
  float x[kVectors][4], sums[kVectors], scale[kVectors];
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    x[i][0] = encodable(v[i].x);
    x[i][1] = encodable(v[i].y);
    x[i][2] = encodable(v[i].z);
    x[i][3] = encodable(v[i].w);
    sums[i] = (x[i][0] * x[i][0] + x[i][1] * x[i][1]) + (x[i][2] * x[i][2] + x[i][3] * x[i][3]);
  }
  sum_over_groups(sums, group);
#pragma unroll
  for (int i = 0; i < kVectors; ++i)
    scale[i] = sqrtf(sums[i] / static_cast<float>(group)) / (kSigns ? kKvRoot3 : kKvRoot2);
#pragma unroll
  for (int again = 0; again < 2; ++again) {
    float products[kVectors], squares[kVectors];
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      float product[4], square[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float magnitude = fabsf(x[i][j]), level = level_of(index_of(magnitude, scale[i]));
        product[j] = level * magnitude;
        square[j] = level * level;
      }
      products[i] = (product[0] + product[1]) + (product[2] + product[3]);
      squares[i] = (square[0] + square[1]) + (square[2] + square[3]);
    }
    sum_over_groups(products, group);
    sum_over_groups(squares, group);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if (scale[i] > 0) scale[i] = products[i] / squares[i];
    }
  }
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    scales[i] = __float2half_rn(fminf(scale[i], 65504.0f));
    const float stored = __half2float(scales[i]);
    codes[i] = 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int index = index_of(fabsf(x[i][j]), stored), negative = x[i][j] < 0 ? 1 : 0;
      const int code = kSigns ? index | negative << 2 : negative != 0 ? 1 - index : 2 + index;
      codes[i] |= static_cast<unsigned>(code) << (8 * j);
    }
  }
}

/// Ors each word with those of the fours that lie multiples of `first` from it, of those of its scale: `fours`.
template <int kVectors>
__device__ __forceinline__ void join_parts(unsigned (&words)[kVectors], int first, int fours) {
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    if (step < first || step >= fours) continue;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) words[i] |= __shfl_xor_sync(kAllLanes, words[i], step);
  }
#pragma unroll
  for (int step = 1; step < kVectors; step *= 2) {
    if (32 * step < first || 32 * step >= fours) continue;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if ((i & step) == 0) words[i] = words[i + step] = words[i] | words[i + step];
    }
  }
}

/// Gives the bytes that a token keeps of a head of few bits, by fours of channels: put(at, word), of its head_dim / 4
/// bytes of fields and, with signs, of head_dim / 8 behind them, and scale(g, its scale).
template <bool kSigns, int kVectors, typename Put, typename PutScale>
__device__ __forceinline__ void give_few_bits(const float4 (&v)[kVectors], int head_dim, const Put& put,
                                              const PutScale& put_scale) {
  const int group = static_cast<int>(kv_few_group(head_dim)), fours = group / 4,
            lane = static_cast<int>(threadIdx.x) % 32;
  unsigned codes[kVectors], fields[kVectors], signs[kVectors];
  __half scales[kVectors];
  encode_few<kSigns>(v, group, codes, scales);
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int four = (lane + 32 * i) & (fours - 1);
    fields[i] = (codes[i] & 0x03030303u) << (2 * (four / (fours / 4)));
    signs[i] = (codes[i] >> 2 & 0x01010101u) << (four / (fours / 8));
  }
  join_parts(fields, fours / 4, fours);
  if constexpr (kSigns) join_parts(signs, fours / 8, fours);
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int number = lane + 32 * i, four = number & (fours - 1), g = number / fours;
    if (4 * number >= head_dim) continue;
    if (four < fours / 4) put(g * fours + 4 * four, fields[i]);
    if (kSigns && four < fours / 8) put(head_dim / 4 + g * (fours / 2) + 4 * four, signs[i]);
    if (four == 0) put_scale(g, scales[i]);
  }
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
