// Single elements of rows of any dtype, decoded as decode_row of tensor/codec.h decodes them: each product is rounded.
// For what reads few weights, or each but once; products have decoders of their own (quads.cuh, matvec_decode.cuh).
#pragma once

#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/grid_words.cuh"
#include "kernels/cuda/ue4m3.cuh"
#include "tensor/blocks.h"
#include "tensor/dtype.h"

namespace millrace::kernels::cuda {
namespace {

__device__ __forceinline__ float half_bits(std::uint16_t bits) { return __half2float(__ushort_as_half(bits)); }

// Eight entries of a codebook as one number, so that a thread looks them up by a shift.
constexpr unsigned long long packed(const std::int8_t* codebook) {
  unsigned long long all = 0;
  for (int i = 0; i < 8; ++i) all |= static_cast<unsigned long long>(static_cast<std::uint8_t>(codebook[i])) << (8 * i);
  return all;
}
constexpr unsigned long long kIq4Low = packed(kIq4Codebook), kIq4High = packed(kIq4Codebook + 8);
constexpr unsigned long long kMxfp4Low = packed(kMxfp4Codebook), kMxfp4High = packed(kMxfp4Codebook + 8);

__device__ float codebook(unsigned long long low, unsigned long long high, int q) {
  return static_cast<float>(static_cast<signed char>((q < 8 ? low : high) >> (8 * (q & 7))));
}

// Byte j % 16 of a simple block of 4-bit values, and which nibble of it is element j.
__device__ int nibble(const std::uint8_t* qs, int j) { return (qs[j % 16] >> (4 * (j / 16))) & 15; }

template <typename Block>
__device__ int five_bits(const Block& block, int j) {
  return nibble(block.qs, j) | static_cast<int>((block.qh >> j) & 1) << 4;
}

__device__ float element(const BlockQ4_0& block, int j) {
  return half_bits(block.d) * static_cast<float>(nibble(block.qs, j) - 8);
}
__device__ float element(const BlockQ4_1& block, int j) {
  return half_bits(block.d) * static_cast<float>(nibble(block.qs, j)) + half_bits(block.m);
}
__device__ float element(const BlockQ5_0& block, int j) {
  return half_bits(block.d) * static_cast<float>(five_bits(block, j) - 16);
}
__device__ float element(const BlockQ5_1& block, int j) {
  return half_bits(block.d) * static_cast<float>(five_bits(block, j)) + half_bits(block.m);
}
__device__ float element(const BlockQ8_0& block, int j) { return half_bits(block.d) * static_cast<float>(block.qs[j]); }
__device__ float element(const BlockIQ4_NL& block, int j) {
  return half_bits(block.d) * codebook(kIq4Low, kIq4High, nibble(block.qs, j));
}
__device__ float element(const BlockQ1_0& block, int j) {
  return half_bits(block.d) * static_cast<float>(2 * (block.qs[j / 8] >> j % 8 & 1) - 1);
}
__device__ float element(const BlockQ2_0& block, int j) {
  return half_bits(block.d) * static_cast<float>((block.qs[j / 4] >> 2 * (j % 4) & 3) - 1);
}
__device__ float element(const BlockMXFP4& block, int j) {
  const unsigned e = block.e;
  const float d = __uint_as_float(e < 2 ? 0x00200000u << e : (e - 1) << 23);
  return d * codebook(kMxfp4Low, kMxfp4High, nibble(block.qs, j));
}

__device__ float element(const BlockNVFP4& block, int j) {
  const int q = block.qs[8 * (j / 16) + j % 8] >> (j % 16 / 8 * 4) & 15;
  return ue4m3_scale(block.d[j / 16]) * codebook(kMxfp4Low, kMxfp4High, q);
}

__device__ int two_bits(const std::uint8_t* qs, int j) {
  return (qs[32 * (j / 128) + j % 32] >> (2 * (j / 32 % 4))) & 3;
}

__device__ float element(const BlockQ2_K& block, int j) {
  const int s = block.scales[j / 16];
  const float scale = half_bits(block.d) * static_cast<float>(s & 15);
  const float min = half_bits(block.dmin) * static_cast<float>(s >> 4);
  return scale * static_cast<float>(two_bits(block.qs, j)) - min;
}
__device__ float element(const BlockQ3_K& block, int j) {
  const int s = j / 16;
  const int low = s < 8 ? block.scales[s] & 15 : block.scales[s - 8] >> 4;
  const int high = (block.scales[8 + s % 4] >> (2 * (s / 4))) & 3;
  const float scale = half_bits(block.d) * static_cast<float>((low | high << 4) - 32);
  const int third = (block.hmask[j % 32] >> (j / 32)) & 1;
  return scale * static_cast<float>((two_bits(block.qs, j) | third << 2) - 4);
}

// Scale and min of sub-block s of a Q4_K or Q5_K block.
__device__ int2 scale_and_min(const std::uint8_t* packed_scales, int s) {
  const std::uint8_t* p = packed_scales + s % 4;
  if (s < 4) return make_int2(p[0] & 63, p[4] & 63);
  return make_int2((p[8] & 15) | (p[0] >> 6) << 4, (p[8] >> 4) | (p[4] >> 6) << 4);
}
template <typename Block>
__device__ float k_element(const Block& block, int s, int q) {
  const int2 sm = scale_and_min(block.scales, s);
  const float scale = half_bits(block.d) * static_cast<float>(sm.x);
  const float min = half_bits(block.dmin) * static_cast<float>(sm.y);
  return scale * static_cast<float>(q) - min;
}
__device__ float element(const BlockQ4_K& block, int j) {
  const int s = j / 32;
  return k_element(block, s, (block.qs[32 * (s / 2) + j % 32] >> (4 * (s % 2))) & 15);
}
__device__ float element(const BlockQ5_K& block, int j) {
  const int s = j / 32;
  const int low = (block.qs[32 * (s / 2) + j % 32] >> (4 * (s % 2))) & 15;
  return k_element(block, s, low | ((block.qh[j % 32] >> s) & 1) << 4);
}
__device__ float element(const BlockQ6_K& block, int j) {
  const int half = j / 128, part = j / 32 % 4, i = j % 32;
  const float scale = half_bits(block.d) * static_cast<float>(block.scales[j / 16]);
  const int low = (block.ql[64 * half + 32 * (part % 2) + i] >> (4 * (part / 2))) & 15;
  const int high = (block.qh[32 * half + i] >> (2 * part)) & 3;
  return scale * static_cast<float>((low | high << 4) - 32);
}
__device__ float element(const BlockIQ4_XS& block, int j) {
  const int s = j / 32;
  const int low = (block.scales_l[s / 2] >> (4 * (s % 2))) & 15;
  const int high = (block.scales_h >> (2 * s)) & 3;
  const float scale = half_bits(block.d) * static_cast<float>((low | high << 4) - 32);
  return scale * codebook(kIq4Low, kIq4High, nibble(block.qs + 16 * s, j % 32));
}

template <typename Block, int kElements>
__device__ float element_of(const std::byte* row, int i) {
  static_assert(alignof(Block) == 1, "rows have any alignment");
  return element(reinterpret_cast<const Block*>(row)[i / kElements], i % kElements);
}

// A block as GridWords reads one, of any alignment and not a byte further.
struct BlockBytes {
  const std::uint8_t* at;
};
__device__ std::uint32_t byte_at(const BlockBytes& bytes, int offset) { return bytes.at[offset]; }
__device__ std::uint32_t bytes4(const BlockBytes& bytes, int offset) {
  const std::uint8_t* p = bytes.at + offset;
  return p[0] | p[1] << 8 | p[2] << 16 | static_cast<std::uint32_t>(p[3]) << 24;
}
__device__ float half_at(const BlockBytes& bytes, int offset) {
  return half_bits(static_cast<std::uint16_t>(bytes.at[offset] | bytes.at[offset + 1] << 8));
}

template <DType dtype>
__device__ float element_on_grid(const std::byte* row, int i) {
  using Words = GridWords<dtype>;
  const int j = i % kSuperBlock;
  const BlockBytes bytes{reinterpret_cast<const std::uint8_t*>(row) + i / kSuperBlock * Words::kBlockBytes};
  const std::uint32_t byte = Words::four(bytes, j / 32, j % 32 / 4) >> (8 * (j % 4)) & 255;
  const int value = Words::kSigned ? static_cast<signed char>(byte) : static_cast<int>(byte) - Words::kOffset;
  return Words::scale(bytes, j / Words::kGroup) * static_cast<float>(value);
}

__device__ float element(DType dtype, const std::byte* row, int i) {
  switch (dtype) {
    case DType::f32:
      return reinterpret_cast<const float*>(row)[i];
    case DType::f16:
      return half_bits(reinterpret_cast<const std::uint16_t*>(row)[i]);
    case DType::bf16:
      return __uint_as_float(static_cast<unsigned>(reinterpret_cast<const std::uint16_t*>(row)[i]) << 16);
    case DType::q4_0:
      return element_of<BlockQ4_0, kBlock>(row, i);
    case DType::q4_1:
      return element_of<BlockQ4_1, kBlock>(row, i);
    case DType::q5_0:
      return element_of<BlockQ5_0, kBlock>(row, i);
    case DType::q5_1:
      return element_of<BlockQ5_1, kBlock>(row, i);
    case DType::q8_0:
      return element_of<BlockQ8_0, kBlock>(row, i);
    case DType::iq4_nl:
      return element_of<BlockIQ4_NL, kBlock>(row, i);
    case DType::mxfp4:
      return element_of<BlockMXFP4, kBlock>(row, i);
    case DType::nvfp4:
      return element_of<BlockNVFP4, kNvfp4Block>(row, i);
    case DType::q1_0:
      return element_of<BlockQ1_0, kBlockQ1_0>(row, i);
    case DType::q2_0:
      return element_of<BlockQ2_0, kBlockQ2_0>(row, i);
    case DType::q2_k:
      return element_of<BlockQ2_K, kSuperBlock>(row, i);
    case DType::q3_k:
      return element_of<BlockQ3_K, kSuperBlock>(row, i);
    case DType::q4_k:
      return element_of<BlockQ4_K, kSuperBlock>(row, i);
    case DType::q5_k:
      return element_of<BlockQ5_K, kSuperBlock>(row, i);
    case DType::q6_k:
      return element_of<BlockQ6_K, kSuperBlock>(row, i);
    case DType::iq4_xs:
      return element_of<BlockIQ4_XS, kSuperBlock>(row, i);
    case DType::iq2_xxs:
      return element_on_grid<DType::iq2_xxs>(row, i);
    case DType::iq2_xs:
      return element_on_grid<DType::iq2_xs>(row, i);
    case DType::iq2_s:
      return element_on_grid<DType::iq2_s>(row, i);
    case DType::iq3_xxs:
      return element_on_grid<DType::iq3_xxs>(row, i);
    case DType::iq3_s:
      return element_on_grid<DType::iq3_s>(row, i);
    case DType::iq1_s:
      return element_on_grid<DType::iq1_s>(row, i);
    case DType::iq1_m:
      return element_on_grid<DType::iq1_m>(row, i);
    case DType::tq1_0:
      return element_on_grid<DType::tq1_0>(row, i);
    case DType::tq2_0:
      return element_on_grid<DType::tq2_0>(row, i);
    default:
      return 0;  // not reached: such weights are never given
  }
}

}  // namespace
}  // namespace millrace::kernels::cuda
