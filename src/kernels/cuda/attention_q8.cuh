// Attention over keys and values kept as q8_0 or q4_0, by a warp on the int8 tensor cores: the products of a chunk for
// up to eight pairs of a row and a head. Contract and order of sums: AttentionCall in ops.h.
//
// The other factor of both products, queries and weights, is rounded to 16 bits beside its largest element: an integer
// of two digits, 256 high + low, both int8. A tensor core's tile has sixteen rows: the high digits of the eight pairs,
// and the low ones; their sums with the cache's int8 are exact integers, in whatever order they are added. So nothing
// of a cache's element is computed but where its four bytes stand.
//
// A lane's place in all of this: pair = lane / 4 and quarter = lane % 4. Of 32 keys or channels that a product is
// computed for a lane has eight neighbours, 8 quarter .. + 7. Of those that it sums over, every lane multiplies eight:
// of keys the same neighbours, so that weights stay where scores became them; of channels every fourth, so that the
// quarters read other banks.
//
// A nibble becomes an int8 where it is read: sixteen times its integer, as the high half of a byte, so that a shift and
// a mask make four of them. What the sums then count is a sixteenth. In a byte of K the low nibble is of a channel that
// the near four of a lane's rows have, and the high one of the far four's, so that a word is read once for both.
#pragma once

#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/kv_bits.cuh"
#include "kernels/cuda/tensor_core.cuh"

namespace millrace::kernels::cuda {

constexpr unsigned kWholeWarp = 0xffffffffu;
constexpr float kDigits = 32512;            // 127 * 256: the largest integer of two digits that is made
constexpr float kLeastRounded = 0x1p-100f;  // factors with no element that large are taken for zero

/// Eight floats as two-digit integers. {high 0-3, low 0-3, high 4-7, low 4-7}, a tile's row fragment.
__device__ __forceinline__ void to_digits(const float (&x)[8], float inverse, unsigned (&digits)[4]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    unsigned low[4], high[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      // Adding 1.5 * 2^23 rounds to nearest even and leaves the integer in the low bits.
      low[i] = __float_as_uint(__fmaf_rn(x[4 * half + i], inverse, 12582912.0f));
      high[i] = low[i] + 128;  // its second byte: the low digit is signed
    }
    digits[2 * half] =
        __byte_perm(__byte_perm(high[0], high[1], 0x0051), __byte_perm(high[2], high[3], 0x0051), 0x5410);
    digits[2 * half + 1] =
        __byte_perm(__byte_perm(low[0], low[1], 0x0040), __byte_perm(low[2], low[3], 0x0040), 0x5410);
  }
}

/// Four words of four bytes, transposed.
__device__ __forceinline__ void transpose_bytes(unsigned (&w)[4]) {
  const unsigned a = __byte_perm(w[0], w[1], 0x5140), b = __byte_perm(w[2], w[3], 0x5140);
  const unsigned c = __byte_perm(w[0], w[1], 0x7362), d = __byte_perm(w[2], w[3], 0x7362);
  w[0] = __byte_perm(a, b, 0x5410);
  w[1] = __byte_perm(a, b, 0x7632);
  w[2] = __byte_perm(c, d, 0x5410);
  w[3] = __byte_perm(c, d, 0x7632);
}

/// sums += digits * bytes for 32 columns. from: the lane's word in the first of its eight rows of bytes: four
/// columns, 4 (lane / 4) .. + 3. sums[j]: of columns 4 n + j, n = 2 quarter and 2 quarter + 1, by high and low digits.
__device__ __forceinline__ void multiply_bytes(const unsigned (&digits)[4], const std::int8_t* from, int stride,
                                               int (&sums)[4][4]) {
  unsigned near[4], far[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    near[i] = *reinterpret_cast<const unsigned*>(from + i * stride);
    far[i] = *reinterpret_cast<const unsigned*>(from + (4 + i) * stride);
  }
  transpose_bytes(near);
  transpose_bytes(far);
#pragma unroll
  for (int j = 0; j < 4; ++j) multiply_32_bytes(sums[j], digits, near[j], far[j], sums[j]);
}

/// sums += digits * keys for 32 keys, over 32 channels whose nibbles are sixteen rows of bytes. from: the lane's word
/// in the first of its four rows.
__device__ __forceinline__ void multiply_nibble_keys(const unsigned (&digits)[4], const std::byte* from, int stride,
                                                     int (&sums)[4][4]) {
  unsigned near[4], far[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const unsigned two = *reinterpret_cast<const unsigned*>(from + i * stride);
    near[i] = (two << 4) & 0xf0f0f0f0u;
    far[i] = two & 0xf0f0f0f0u;
  }
  transpose_bytes(near);
  transpose_bytes(far);
#pragma unroll
  for (int j = 0; j < 4; ++j) multiply_32_bytes(sums[j], digits, near[j], far[j], sums[j]);
}

/// sums += digits * values for 32 channels that share scales, over 32 keys. from: the 16 bytes of the first of the
/// lane's eight keys.
__device__ __forceinline__ void multiply_nibble_values(const unsigned (&digits)[4], const std::byte* from, int stride,
                                                       int (&sums)[4][4]) {
  const int columns = static_cast<int>(threadIdx.x) % 32 / 4, shift = columns < 4 ? 4 : 0;
  from += columns % 4 * 4;
  unsigned near[4], far[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    near[i] = (*reinterpret_cast<const unsigned*>(from + i * stride) << shift) & 0xf0f0f0f0u;
    far[i] = (*reinterpret_cast<const unsigned*>(from + (4 + i) * stride) << shift) & 0xf0f0f0f0u;
  }
  transpose_bytes(near);
  transpose_bytes(far);
#pragma unroll
  for (int j = 0; j < 4; ++j) multiply_32_bytes(sums[j], digits, near[j], far[j], sums[j]);
}

/// The i-th of the lane's eight neighbouring columns, as a float.
__device__ __forceinline__ float q8_sum(const int (&sums)[4][4], int i) {
  const int(&s)[4] = sums[i % 4];
  return static_cast<float>(s[i / 4] * 256 + s[2 + i / 4]);
}

/// Queries of a warp's pairs as digits: 32 channels a group, with what their integers count.
template <int kHeadDim, bool kNibbles = false>
struct Q8Queries {
  static constexpr int kGroups = kHeadDim / 32, kRows = kNibbles ? kHeadDim / 2 : kHeadDim;  // of bytes, of a block
  unsigned digits[kGroups][4];
  float unit[kGroups];

  /// from: the lane's pair's [head_dim], or null: there is no such pair. For the whole warp.
  __device__ __forceinline__ void load(const float* from) {
    const int quarter = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      float x[8] = {};
      if (from) {
#pragma unroll
        for (int i = 0; i < 8; ++i) x[i] = from[32 * g + 4 * i + quarter];
      }
      // Magnitudes compare as integers do, and so NaN is the largest of all.
      unsigned bits = 0;
#pragma unroll
      for (int i = 0; i < 8; ++i) bits = max(bits, __float_as_uint(x[i]) & 0x7fffffffu);
      bits = max(bits, __shfl_xor_sync(kWholeWarp, bits, 1));
      bits = max(bits, __shfl_xor_sync(kWholeWarp, bits, 2));
      const float most = __uint_as_float(bits);
      const bool finite = bits < 0x7f800000u, some = finite && most >= kLeastRounded;
      const float inverse = some ? kDigits / most : 0.0f;
#pragma unroll
      for (int i = 0; i < 8; ++i) x[i] = some ? x[i] : 0.0f;
      to_digits(x, inverse, digits[g]);
      unit[g] = some ? most / kDigits : finite ? 0.0f : __uint_as_float(0x7fc00000);
      if (kNibbles) unit[g] *= 0.0625f;
    }
  }

  /// The sums over channels for 32 keys, the lane's eight in s; not yet times the attention's scale. block: a head's
  /// keys, their integers and their scales; first: of the keys, 0 or 32.
  __device__ __forceinline__ void score(const std::byte* block, int first, float (&s)[8]) const {
    const int lane = static_cast<int>(threadIdx.x) % 32, quarter = lane % 4;
#pragma unroll
    for (int i = 0; i < 8; ++i) s[i] = 0;
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      int sums[4][4] = {};
      const std::byte* from = block + (kRows / kGroups * g + quarter) * kKvBlock + first + lane / 4 * 4;
      if constexpr (kNibbles) {
        multiply_nibble_keys(digits[g], from, 4 * kKvBlock, sums);
      } else {
        multiply_bytes(digits[g], reinterpret_cast<const std::int8_t*>(from), 4 * kKvBlock, sums);
      }
      alignas(16) __half scales[8];
      *reinterpret_cast<uint4*>(scales) = *reinterpret_cast<const uint4*>(
          reinterpret_cast<const __half*>(block + kRows * kKvBlock) + g * kKvBlock + first + 8 * quarter);
#pragma unroll
      for (int i = 0; i < 8; ++i) s[i] = __fmaf_rn(q8_sum(sums, i), unit[g] * __half2float(scales[i]), s[i]);
    }
  }
};

/// Weighted values of a chunk, of the eight neighbouring channels 32 g + 8 quarter of the lane's pair. weights: of keys
/// 32 t + 8 quarter + i in weights[t][i], 0 where the pair does not see the key. values: of 128 keys, scales:
/// [128, head_dim / 32]. For the whole warp.
template <int kHeadDim, bool kNibbles = false>
__device__ __forceinline__ void add_q8_values(const float (&weights)[4][8], const std::byte* values,
                                              const __half* scales, int g, float (&acc)[8]) {
  constexpr int kGroups = kHeadDim / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32, quarter = lane % 4;
  float p[4][8], most = 0;
#pragma unroll
  for (int t = 0; t < 4; ++t) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      // The scale of a key that nobody sees may be anything; the maximum takes 0 rather than a NaN. Of nibbles scales
      // have a sign.
      p[t][i] = weights[t][i] * __half2float(scales[(32 * t + 8 * quarter + i) * kGroups + g]);
      p[t][i] = !kNibbles ? fmaxf(p[t][i], 0.0f) : weights[t][i] == 0 ? 0.0f : p[t][i];
      most = fmaxf(most, fabsf(p[t][i]));
    }
  }
  most = fmaxf(most, __shfl_xor_sync(kWholeWarp, most, 1));
  most = fmaxf(most, __shfl_xor_sync(kWholeWarp, most, 2));
  const float inverse = most >= kLeastRounded ? kDigits / most : 0.0f;
  const float unit = most >= kLeastRounded ? most / kDigits * (kNibbles ? 0.0625f : 1.0f) : 0.0f;
  int sums[4][4] = {};
#pragma unroll
  for (int t = 0; t < 4; ++t) {
    unsigned digits[4];
    to_digits(p[t], inverse, digits);
    constexpr int kRow = kNibbles ? kHeadDim / 2 : kHeadDim;
    const std::byte* from = values + (32 * t + 8 * quarter) * kRow + kRow / kGroups * g;
    if constexpr (kNibbles) {
      multiply_nibble_values(digits, from, kRow, sums);
    } else {
      multiply_bytes(digits, reinterpret_cast<const std::int8_t*>(from) + lane / 4 * 4, kRow, sums);
    }
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) acc[i] = q8_sum(sums, i) * unit;
}

}  // namespace millrace::kernels::cuda
