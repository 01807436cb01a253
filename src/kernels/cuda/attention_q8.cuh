// Keys and values of the cache as q8_0: int8 with a float16 scale for 32 channels of a token. An element is its int8
// times its scale, which float32 holds exactly, so sums over them are those of the contract at AttentionCall with such
// elements. Here are the steps of a chunk for few rows; a thread has neighbouring keys (then channels) of all heads, so
// that an element is widened once.
#pragma once

#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/attention.cuh"

namespace millrace::kernels::cuda {

/// A scale as elements of its group are widened by: an int8 q becomes the float 32896 + q by moving bits alone, and
/// fma(32896 + q, scale, minus) is q * scale. Nothing rounds: `minus`, -32896 * scale, has 20 bits.
struct Q8Widener {
  float scale, minus;
  __device__ __forceinline__ explicit Q8Widener(__half bits) : scale(__half2float(bits)), minus(scale * -32896.0f) {}
  __device__ __forceinline__ float of(float biased) const { return __fmaf_rn(biased, scale, minus); }
};

/// 32896 + q. An int8 plus 128 is the second byte of the mantissa of 32768.
__device__ __forceinline__ float q8_biased(std::int8_t q) {
  return __int_as_float(0x47008000 + static_cast<int>(q) * 256);
}
/// The same of byte i of a word whose int8 had 128 added: flipped = word ^ 0x80808080.
template <int i>
__device__ __forceinline__ float q8_biased_byte(unsigned flipped) {
  static_assert(i >= 0 && i < 4);
  return __uint_as_float(__byte_perm(flipped, 0x4700u, 0x5404u | static_cast<unsigned>(i) << 4));
}

/// kPair neighbouring elements as they lie, and as 32896 + q.
template <int kPair>
struct Q8Raw;
template <>
struct Q8Raw<1> {
  std::int8_t q;
  __device__ __forceinline__ void load(const std::int8_t* from) { q = *from; }
  __device__ __forceinline__ void biased(float (&out)[1]) const { out[0] = q8_biased(q); }
};
template <>
struct Q8Raw<2> {
  std::uint16_t both;
  __device__ __forceinline__ void load(const std::int8_t* from) {
    both = *reinterpret_cast<const std::uint16_t*>(from);
  }
  __device__ __forceinline__ void biased(float (&out)[2]) const {
    const unsigned flipped = both ^ 0x8080u;
    out[0] = q8_biased_byte<0>(flipped);
    out[1] = q8_biased_byte<1>(flipped);
  }
};

__device__ __forceinline__ float q8_lane(const float4& four, int i) {
  return i == 0 ? four.x : i == 1 ? four.y : i == 2 ? four.z : four.w;
}

/// Scores of kPair keys for kEach heads. q: [.., head_dim] from the first of the heads; k: channel 0 of the first key
/// in [head_dim, 64]; scales: its first in [head_dim / 32, 64]; scores: [.., 128] from the first head and key.
template <int kPair, int kEach>
__device__ __forceinline__ void score_q8_keys(const float* q, const std::int8_t* k, const __half* scales, int head_dim,
                                              float scale, float* scores) {
  constexpr int kStep = kEach > 4 ? 4 : 8;  // channels whose queries are in registers
  float s[kEach][kPair] = {};
#pragma unroll 1
  for (int d = 0; d < head_dim; d += 32) {
    Q8Raw<kPair> keys[32];
#pragma unroll
    for (int i = 0; i < 32; ++i) keys[i].load(k + (d + i) * kKvBlock);
    const Q8Widener first(scales[d / 32 * kKvBlock]), last(scales[d / 32 * kKvBlock + kPair - 1]);
#pragma unroll
    for (int i0 = 0; i0 < 32; i0 += kStep) {
      float4 q4[kEach][kStep / 4];
#pragma unroll
      for (int h = 0; h < kEach; ++h) {
#pragma unroll
        for (int i = 0; i < kStep / 4; ++i) q4[h][i] = reinterpret_cast<const float4*>(q + h * head_dim + d + i0)[i];
      }
#pragma unroll
      for (int i = 0; i < kStep; ++i) {
        float key[kPair];
        keys[i0 + i].biased(key);
#pragma unroll
        for (int p = 0; p < kPair; ++p) {
          key[p] = p == 0 ? first.of(key[p]) : last.of(key[p]);
#pragma unroll
          for (int h = 0; h < kEach; ++h) s[h][p] = __fmaf_rn(q8_lane(q4[h][i / 4], i % 4), key[p], s[h][p]);
        }
      }
    }
  }
#pragma unroll
  for (int h = 0; h < kEach; ++h) {
#pragma unroll
    for (int p = 0; p < kPair; ++p) scores[h * kAttentionChunk + p] = s[h][p] * scale;
  }
}

/// The weighted sums of kPair channels over keys [begin, end) for kEach heads. weights: [.., 128] from the first of the
/// heads; v: the first of the channels of key 0 in [128, head_dim]; scales: theirs in [128, head_dim / 32].
template <int kPair, int kEach>
__device__ __forceinline__ void add_q8_values(const float* weights, const std::int8_t* v, const __half* scales,
                                              int head_dim, int begin, int end, float (&acc)[kEach][kPair]) {
  constexpr int kMany = 8;
  const int groups = head_dim / 32;
  // kKeys keys, of which the first is a multiple of 4.
  const auto add = [&]<int kKeys>(std::integral_constant<int, kKeys>, int key) {
    float4 w[kEach][kKeys / 4];
    Q8Raw<kPair> raw[kKeys];
    __half bits[kKeys];
#pragma unroll
    for (int i = 0; i < kKeys; ++i) {
      raw[i].load(v + (key + i) * head_dim);
      bits[i] = scales[(key + i) * groups];
    }
#pragma unroll
    for (int h = 0; h < kEach; ++h) {
#pragma unroll
      for (int i = 0; i < kKeys / 4; ++i) {
        w[h][i] = reinterpret_cast<const float4*>(weights + h * kAttentionChunk + key)[i];
      }
    }
#pragma unroll
    for (int i = 0; i < kKeys; ++i) {
      const Q8Widener widener(bits[i]);
      float value[kPair];
      raw[i].biased(value);
#pragma unroll
      for (int p = 0; p < kPair; ++p) {
        value[p] = widener.of(value[p]);
#pragma unroll
        for (int h = 0; h < kEach; ++h) acc[h][p] = __fmaf_rn(q8_lane(w[h][i / 4], i % 4), value[p], acc[h][p]);
      }
    }
  };
  const auto add_one = [&](int key) {
    const Q8Widener widener(scales[key * groups]);
    Q8Raw<kPair> raw;
    raw.load(v + key * head_dim);
    float value[kPair];
    raw.biased(value);
#pragma unroll
    for (int p = 0; p < kPair; ++p) {
      value[p] = widener.of(value[p]);
#pragma unroll
      for (int h = 0; h < kEach; ++h) acc[h][p] = __fmaf_rn(weights[h * kAttentionChunk + key], value[p], acc[h][p]);
    }
  };
  int key = begin;
  for (; key < end && key % 4 != 0; ++key) add_one(key);
#pragma unroll 2
  for (; key + kMany <= end; key += kMany) add(std::integral_constant<int, kMany>(), key);
#pragma unroll 1
  for (; key + 4 <= end; key += 4) add(std::integral_constant<int, 4>(), key);
#pragma unroll 1
  for (; key < end; ++key) add_one(key);
}

}  // namespace millrace::kernels::cuda
