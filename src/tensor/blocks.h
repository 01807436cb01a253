// The memory layout of every block of weights that Millrace decodes, byte for byte as in a GGUF file, and the constants
// and bit tricks that decoders and kernels share.
//
// Notation: d is a float16 scale; qs[i] & 15 is the low nibble of byte i, qs[i] >> 4 the high one. "Element j" counts
// from 0 inside the block. Every multi-byte field is little-endian. All structs are packed (alignment 1), so that a
// block can be read through a pointer of any alignment: copy fields by value, never take a reference. Source: the GGUF
// specification and the quantization formats of ggml; MXFP4: the OCP Microscaling Formats (MX) v1.0. Thread-safety:
// pure functions and constants.
#pragma once

#include <bit>
#include <cstdint>

namespace millrace {

static_assert(std::endian::native == std::endian::little, "blocks are read in place and are little-endian");

constexpr int kBlock = 32;        // elements of a simple block
constexpr int kNvfp4Block = 64;   // elements of a block of NVFP4
constexpr int kNvfp4Group = 16;   // of them, those that share a scale
constexpr int kBlockQ1_0 = 128;   // elements of a block of Q1_0
constexpr int kBlockQ2_0 = 64;    // and of one of Q2_0
constexpr int kSuperBlock = 256;  // elements of a K-quant or IQ4_XS super-block

#define MR_PACKED __attribute__((packed))

// ---------------------------------------------------------------------------------------------------------------------
// Simple blocks of 32 elements. In all 4- and 5-bit ones, the low nibble of qs[i] is element i and the high nibble is
// element i + 16. The fifth bit of element j (Q5_*) is bit j of the 32-bit little-endian word qh.

struct MR_PACKED BlockQ4_0 {  // w = d * (q - 8), q in 0..15
  std::uint16_t d;
  std::uint8_t qs[16];
};

struct MR_PACKED BlockQ4_1 {  // w = d * q + m, q in 0..15
  std::uint16_t d;
  std::uint16_t m;
  std::uint8_t qs[16];
};

struct MR_PACKED BlockQ5_0 {  // w = d * (q - 16), q in 0..31
  std::uint16_t d;
  std::uint32_t qh;
  std::uint8_t qs[16];
};

struct MR_PACKED BlockQ5_1 {  // w = d * q + m, q in 0..31
  std::uint16_t d;
  std::uint16_t m;
  std::uint32_t qh;
  std::uint8_t qs[16];
};

struct MR_PACKED BlockQ8_0 {  // w = d * q, q in -128..127; qs[j] is element j
  std::uint16_t d;
  std::int8_t qs[32];
};

struct MR_PACKED BlockIQ4_NL {  // w = d * kIq4Codebook[q]
  std::uint16_t d;
  std::uint8_t qs[16];
};

struct MR_PACKED BlockMXFP4 {  // w = e8m0_half(e) * kMxfp4Codebook[q]
  std::uint8_t e;              // E8M0: the scale is 2^(e - 127)
  std::uint8_t qs[16];
};

/// 64 elements in 4 sub-blocks s of 16: w = ue4m3_half(d[s]) * kMxfp4Codebook[q]. In the 8 bytes qs[8 s ..] low nibble
/// i is element 16 s + i, high nibble i is element 16 s + 8 + i.
struct MR_PACKED BlockNVFP4 {
  std::uint8_t d[4];  // UE4M3
  std::uint8_t qs[32];
};

/// 128 elements: w = d where bit i % 8 of qs[i / 8] is set, else -d.
struct MR_PACKED BlockQ1_0 {
  std::uint16_t d;
  std::uint8_t qs[16];
};

/// 64 elements: w = d * (q - 1), q in 0..3; of element i it is bits 2 (i % 4) and the next of qs[i / 4].
struct MR_PACKED BlockQ2_0 {
  std::uint16_t d;
  std::uint8_t qs[16];
};

// ---------------------------------------------------------------------------------------------------------------------
// Super-blocks of 256 elements.

/// 16 sub-blocks s of 16: w = (d * sc_s) * q - dmin * m_s, q in 0..3; sc_s = scales[s] & 15, m_s = scales[s] >> 4.
/// qs: elements 128 h + 32 k + i (h < 2, k < 4, i < 32) are bits 2k, 2k+1 of byte qs[32 h + i].
struct MR_PACKED BlockQ2_K {
  std::uint8_t scales[16];
  std::uint8_t qs[64];
  std::uint16_t d;
  std::uint16_t dmin;
};

/// 16 sub-blocks s of 16: w = (d * sc_s) * q, q in -4..3, sc_s in -32..31 (unpack_scales_q3_k).
/// q + 4 has its low two bits in qs, placed as in Q2_K, and its third in hmask: element 32 n + i (n < 8) is bit n of
/// hmask[i].
struct MR_PACKED BlockQ3_K {
  std::uint8_t hmask[32];
  std::uint8_t qs[64];
  std::uint8_t scales[12];
  std::uint16_t d;
};

/// 8 sub-blocks s of 32: w = (d * sc_s) * q - dmin * m_s, q in 0..15; sc_s and m_s in 0..63 (unpack_scales_k4).
/// qs: in the 32 bytes qs[32 p ..] (p < 4) low nibble i is element 64 p + i, high nibble i is element 64 p + 32 + i; so
/// the low nibbles are sub-block 2p and the high ones sub-block 2p + 1.
struct MR_PACKED BlockQ4_K {
  std::uint16_t d;
  std::uint16_t dmin;
  std::uint8_t scales[12];
  std::uint8_t qs[128];
};

/// As Q4_K with q in 0..31: the low four bits lie in qs as there, the fifth bit of element 32 s + i is bit s of qh[i].
struct MR_PACKED BlockQ5_K {
  std::uint16_t d;
  std::uint16_t dmin;
  std::uint8_t scales[12];
  std::uint8_t qh[32];
  std::uint8_t qs[128];
};

/// 16 sub-blocks s of 16: w = (d * scales[s]) * q, q in -32..31. With q + 32 of six bits and h < 2, i < 32:
///   element 128 h +      i: low bits = ql[64 h + i] & 15,       high bits = bits 0,1 of qh[32 h + i]
///   element 128 h + 32 + i: low bits = ql[64 h + 32 + i] & 15,  high bits = bits 2,3 of qh[32 h + i]
///   element 128 h + 64 + i: low bits = ql[64 h + i] >> 4,       high bits = bits 4,5 of qh[32 h + i]
///   element 128 h + 96 + i: low bits = ql[64 h + 32 + i] >> 4,  high bits = bits 6,7 of qh[32 h + i]
struct MR_PACKED BlockQ6_K {
  std::uint8_t ql[128];
  std::uint8_t qh[64];
  std::int8_t scales[16];
  std::uint16_t d;
};

/// 8 sub-blocks s of 32: w = (d * ls_s) * kIq4Codebook[q], ls_s in -32..31 (iq4_xs_scale).
/// In the 16 bytes qs[16 s ..] low nibble i is element 32 s + i, high nibble i is element 32 s + 16 + i.
struct MR_PACKED BlockIQ4_XS {
  std::uint16_t d;
  std::uint16_t scales_h;
  std::uint8_t scales_l[4];
  std::uint8_t qs[128];
};

// Weights on a grid (tensor/grids.h has the points and reads these), in parts p < 8 of 32. A point is eight weights, or
// four in IQ3; signs are a bit a weight, set where it is negative. Where seven signs are stored, the eighth makes the
// number of minuses even.

/// w = d / 8 * (2 s + 1) * value; 4 points a part, then four times seven signs and, in the top four bits, s.
struct MR_PACKED BlockIQ2_XXS {
  std::uint16_t d;
  struct MR_PACKED Part {
    std::uint8_t points[4];
    std::uint32_t signs_and_scale;
  } parts[8];
};

/// w = d / 8 * (2 s + 1) * value, with s of 16 weights: the low nibble of scales[p] for the first. qs[4 p ..]: nine
/// bits of a point, then seven signs.
struct MR_PACKED BlockIQ2_XS {
  std::uint16_t d;
  std::uint16_t qs[32];
  std::uint8_t scales[8];
};

/// As IQ2_XS, with ten bits of a point (its top two are bits 2l, 2l + 1 of qh[p] for point l < 4) and eight signs.
struct MR_PACKED BlockIQ2_S {
  std::uint16_t d;
  std::uint8_t qs[32];
  std::uint8_t signs[32];
  std::uint8_t qh[8];
  std::uint8_t scales[8];
};

/// w = d / 4 * (2 s + 1) * value; 8 points a part, then as in IQ2_XXS.
struct MR_PACKED BlockIQ3_XXS {
  std::uint16_t d;
  std::uint8_t qs[64];
  std::uint32_t signs_and_scales[8];
};

/// w = d * (2 s + 1) * value; 8 points a part, their ninth bits in qh[p]; s is a nibble of scales[p / 2], the low one
/// for even p.
struct MR_PACKED BlockIQ3_S {
  std::uint16_t d;
  std::uint8_t qs[64];
  std::uint8_t qh[8];
  std::uint8_t signs[32];
  std::uint8_t scales[4];
};

/// w = d * (2 s + 1) * (level +- 1/8); 4 points a part. qh[p]: the top three bits of each point, three
/// bits of s, and a bit that is set where the eighth is taken away.
struct MR_PACKED BlockIQ1_S {
  std::uint16_t d;
  std::uint8_t qs[32];
  std::uint16_t qh[8];
};

/// As IQ1_S, but with s of 16 weights, three bits at 3 (i % 4) of scales[i / 4], and a nibble of qh for each point: the
/// top three bits of it, and a bit that is set where the eighth is taken away. d (iq1_m_d) is in the scales' top
/// nibbles.
struct MR_PACKED BlockIQ1_M {
  std::uint8_t qs[32];
  std::uint8_t qh[16];
  std::uint16_t scales[4];
};

/// Ternary, w = d * (digit - 1). A byte b holds digits in base 3 as a fraction of 256: digit n of it is
/// ((b * 3^n mod 256) * 3) / 256. Weights 32 n + i (n < 5) are digit n of qs[i], weights 160 + 16 n + i that of
/// qs[32 + i], weights 240 + 4 n + i (n < 4) that of qh[i].
struct MR_PACKED BlockTQ1_0 {
  std::uint8_t qs[48];
  std::uint8_t qh[4];
  std::uint16_t d;
};

/// Ternary, w = d * (q - 1), q placed as in Q2_K.
struct MR_PACKED BlockTQ2_0 {
  std::uint8_t qs[64];
  std::uint16_t d;
};

#undef MR_PACKED

static_assert(sizeof(BlockQ4_0) == 18 && alignof(BlockQ4_0) == 1);
static_assert(sizeof(BlockQ4_1) == 20 && sizeof(BlockQ5_0) == 22 && sizeof(BlockQ5_1) == 24);
static_assert(sizeof(BlockQ8_0) == 34 && sizeof(BlockIQ4_NL) == 18 && sizeof(BlockMXFP4) == 17);
static_assert(sizeof(BlockNVFP4) == 36);
static_assert(sizeof(BlockQ1_0) == 18);
static_assert(sizeof(BlockQ2_0) == 18);
static_assert(sizeof(BlockQ2_K) == 84 && sizeof(BlockQ3_K) == 110 && sizeof(BlockQ4_K) == 144);
static_assert(sizeof(BlockIQ2_XXS) == 66 && sizeof(BlockIQ2_XS) == 74 && sizeof(BlockIQ2_S) == 82);
static_assert(sizeof(BlockIQ3_XXS) == 98 && sizeof(BlockIQ3_S) == 110);
static_assert(sizeof(BlockIQ1_S) == 50 && sizeof(BlockIQ1_M) == 56);
static_assert(sizeof(BlockTQ1_0) == 54 && sizeof(BlockTQ2_0) == 66);
static_assert(sizeof(BlockQ5_K) == 176 && sizeof(BlockQ6_K) == 210 && sizeof(BlockIQ4_XS) == 136);

// ---------------------------------------------------------------------------------------------------------------------
// Constants and bit tricks.

/// The sixteen levels of IQ4_NL and IQ4_XS (int8, so that integer dot products take them as they are).
alignas(16) inline constexpr std::int8_t kIq4Codebook[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                                             1,    13,   25,  38,  53,  69,  89,  113};

/// The sixteen FP4 (E2M1) values 0, .5, 1, 1.5, 2, 3, 4, 6 and their negatives, doubled to be integers. Bit 3 is the
/// sign; -0 is 0 here.
alignas(16) inline constexpr std::int8_t kMxfp4Codebook[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

/// Half of the E8M0 scale 2^(e - 127), exactly (it pairs with the doubled codebook): 2^(e - 128), subnormal for e < 2.
/// e = 255, a NaN in the MX specification, is taken as the power of two that it would be, as other readers of GGUF do.
constexpr float e8m0_half(std::uint8_t e) {
  return std::bit_cast<float>(e < 2 ? std::uint32_t{0x00200000} << e : static_cast<std::uint32_t>(e - 1) << 23);
}

/// A UE4M3 scale as the float16 that is 2^-8 of it: four bits of exponent and three of the mantissa lie in both alike,
/// subnormals included, and only the bias differs, 7 or 15. The sign's bit does not count, and what would be NaN is 0.
constexpr std::uint16_t ue4m3_as_half(std::uint8_t bits) {
  return static_cast<std::uint16_t>((bits & 0x7f) == 0x7f ? 0 : (bits & 0x7f) << 7);
}

/// Half of a UE4M3 scale, exactly (it pairs with the doubled codebook): from 2^-10 to 224, or 0.
constexpr float ue4m3_half(std::uint8_t bits) {
  const std::uint32_t exponent = (bits >> 3) & 15, mantissa = bits & 7;
  if ((bits & 0x7f) == 0x7f) return 0;
  return exponent == 0 ? static_cast<float>(mantissa) * 0x1p-10f
                       : std::bit_cast<float>((exponent + 119) << 23 | mantissa << 20);
}

/// What turns ue4m3_as_half() into ue4m3_half().
constexpr float kUe4m3Unit = 128;

/// Q4_K, Q5_K: twelve bytes to eight 6-bit scales and eight 6-bit mins. Sub-blocks 0..3 have the low six bits of bytes
/// 0..3 (scales) and 4..7 (mins); sub-blocks 4..7 have their low four bits in bytes 8..11 (low nibble scale, high
/// nibble min) and their top two in the top bits of bytes 0..3 (scales) and 4..7 (mins).
constexpr void unpack_scales_k4(const std::uint8_t packed[12], std::uint8_t scales[8], std::uint8_t mins[8]) {
  for (int s = 0; s < 4; ++s) {
    scales[s] = packed[s] & 63;
    mins[s] = packed[s + 4] & 63;
    scales[s + 4] = static_cast<std::uint8_t>((packed[s + 8] & 15) | ((packed[s] >> 6) << 4));
    mins[s + 4] = static_cast<std::uint8_t>((packed[s + 8] >> 4) | ((packed[s + 4] >> 6) << 4));
  }
}

/// The inverse of unpack_scales_k4. REQUIRES: all scales and mins in 0..63.
constexpr void pack_scales_k4(const std::uint8_t scales[8], const std::uint8_t mins[8], std::uint8_t packed[12]) {
  for (int s = 0; s < 4; ++s) {
    packed[s] = static_cast<std::uint8_t>(scales[s] | ((scales[s + 4] >> 4) << 6));
    packed[s + 4] = static_cast<std::uint8_t>(mins[s] | ((mins[s + 4] >> 4) << 6));
    packed[s + 8] = static_cast<std::uint8_t>((scales[s + 4] & 15) | ((mins[s + 4] & 15) << 4));
  }
}

/// Q3_K: twelve bytes to sixteen scales in -32..31. The low four bits of scale s are a nibble of byte s % 8 (low nibble
/// for s < 8, high for the rest), its top two are bits 2(s / 4), 2(s / 4) + 1 of byte 8 + s % 4.
constexpr void unpack_scales_q3_k(const std::uint8_t packed[12], std::int8_t scales[16]) {
  for (int s = 0; s < 16; ++s) {
    const int low = s < 8 ? packed[s] & 15 : packed[s - 8] >> 4;
    const int high = (packed[8 + s % 4] >> (2 * (s / 4))) & 3;
    scales[s] = static_cast<std::int8_t>((low | high << 4) - 32);
  }
}

/// IQ4_XS: the scale of sub-block s < 8, in -32..31: low four bits in a nibble of scales_l[s / 2] (low nibble for even
/// s), top two in bits 2s, 2s + 1 of scales_h.
constexpr int iq4_xs_scale(const BlockIQ4_XS& block, int s) {
  const int low = (block.scales_l[s / 2] >> (4 * (s % 2))) & 15;
  const int high = (block.scales_h >> (2 * s)) & 3;
  return (low | high << 4) - 32;
}

/// IQ1_M: the float16 scale, a nibble from each word.
constexpr std::uint16_t iq1_m_d(const BlockIQ1_M& block) {
  return static_cast<std::uint16_t>(block.scales[0] >> 12 | (block.scales[1] >> 8 & 0x00f0) |
                                    (block.scales[2] >> 4 & 0x0f00) | (block.scales[3] & 0xf000));
}

}  // namespace millrace
