// Decoding checked in three ways: blocks written out by hand with answers worked out on paper; a second, deliberately
// different decoder (by element, from the bit positions in the format's description) on random blocks; exact buffers.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "tensor/blocks.h"
#include "tensor/codec.h"
#include "tensor/grids.h"
#include "tensor/half.h"

namespace millrace {
namespace {

using Bytes = std::vector<std::uint8_t>;

std::vector<float> decode(DType dtype, const Bytes& bytes) {
  const std::int64_t cols =
      static_cast<std::int64_t>(bytes.size()) / info(dtype).block_bytes * info(dtype).block_elements;
  std::vector<float> out(static_cast<std::size_t>(cols), -12345.0f);
  decode_row(dtype, reinterpret_cast<const std::byte*>(bytes.data()), cols, out.data());
  return out;
}

constexpr std::uint8_t kOneLow = 0x00, kOneHigh = 0x3c;    // 1.0 in float16
constexpr std::uint8_t kHalfHigh = 0x38, kTwoHigh = 0x40;  // 0.5 and 2.0 (low byte 0)

// A block that is all zero but for the given {place, byte} pairs.
Bytes block_of(DType dtype, std::initializer_list<std::pair<std::size_t, std::uint8_t>> bytes) {
  Bytes block(static_cast<std::size_t>(info(dtype).block_bytes), 0);
  for (const auto& [place, byte] : bytes) block[place] = byte;
  return block;
}

TEST(DecodeByHand, SimpleBlocks) {
  {  // Q4_0: scale 0.5; byte 0 = low 15, high 0; all else 0 -> -8
    const auto w = decode(DType::q4_0, block_of(DType::q4_0, {{1, kHalfHigh}, {2, 0x0f}}));
    EXPECT_EQ(w[0], 3.5f);
    EXPECT_EQ(w[16], -4.0f);
    EXPECT_EQ(w[1], -4.0f);
  }
  {  // Q4_1: d 2, m 1; byte 3 = low 2, high 10
    const auto w = decode(DType::q4_1, block_of(DType::q4_1, {{1, kTwoHigh}, {3, kOneHigh}, {4 + 3, 0xa2}}));
    EXPECT_EQ(w[3], 5.0f);
    EXPECT_EQ(w[19], 21.0f);
    EXPECT_EQ(w[0], 1.0f);
  }
  {  // Q5_0: d 1; fifth bits of elements 1 and 31; byte 1 = low 3, byte 15 = high 4
    const auto w =
        decode(DType::q5_0, block_of(DType::q5_0, {{1, kOneHigh}, {2, 0x02}, {5, 0x80}, {7, 0x03}, {21, 0x40}}));
    EXPECT_EQ(w[1], 3.0f);
    EXPECT_EQ(w[31], 4.0f);
    EXPECT_EQ(w[17], -16.0f);
  }
  {  // Q5_1: d 1, m 0.5; fifth bit of element 16 (bit 0 of the third byte of qh); byte 0 = 0x21
    const auto w = decode(DType::q5_1, block_of(DType::q5_1, {{1, kOneHigh}, {3, kHalfHigh}, {6, 0x01}, {8, 0x21}}));
    EXPECT_EQ(w[0], 1.5f);
    EXPECT_EQ(w[16], 18.5f);
  }
  {  // Q8_0
    const auto w = decode(DType::q8_0, block_of(DType::q8_0, {{1, kTwoHigh}, {2, 0x80}, {33, 0x7f}}));
    EXPECT_EQ(w[0], -256.0f);
    EXPECT_EQ(w[31], 254.0f);
    EXPECT_EQ(w[1], 0.0f);
  }
  {  // IQ4_NL: level 0 is -127, 15 is 113, 8 is 1
    const auto w = decode(DType::iq4_nl, block_of(DType::iq4_nl, {{0, kOneLow}, {1, kOneHigh}, {2, 0x8f}}));
    EXPECT_EQ(w[0], 113.0f);
    EXPECT_EQ(w[16], 1.0f);
    EXPECT_EQ(w[5], -127.0f);
  }
  {  // MXFP4: e = 128 is a scale of 2; 7 is 6, 9 is -0.5
    const auto w = decode(DType::mxfp4, block_of(DType::mxfp4, {{0, 128}, {1, 0x97}}));
    EXPECT_EQ(w[0], 12.0f);
    EXPECT_EQ(w[16], -1.0f);
    EXPECT_EQ(w[1], 0.0f);
  }
}

TEST(DecodeByHand, Mxfp4ScalesOverTheWholeRange) {
  for (int e = 0; e < 256; ++e) {
    const auto w = decode(DType::mxfp4, block_of(DType::mxfp4, {{0, static_cast<std::uint8_t>(e)}, {1, 0x02}}));
    EXPECT_EQ(w[0], std::ldexp(1.0f, e - 127)) << e;  // level 2 is 1
  }
}

TEST(DecodeByHand, Nvfp4) {
  // Scales 2, 1.125, 2^-9 and 448; byte 9 of the nibbles is the second of sub-block 1, 24 the first of sub-block 3.
  const auto w =
      decode(DType::nvfp4,
             block_of(DType::nvfp4,
                      {{0, 0x40}, {1, 0x39}, {2, 0x01}, {3, 0x7e}, {4, 0x97}, {13, 0xc5}, {27, 0x20}, {28, 0x07}}));
  EXPECT_EQ(w[0], 12.0f);
  EXPECT_EQ(w[8], -1.0f);
  EXPECT_EQ(w[1], 0.0f);
  EXPECT_EQ(w[17], 3 * 1.125f);
  EXPECT_EQ(w[25], -2 * 1.125f);
  EXPECT_EQ(w[32 + 8 + 7], 0x1p-9f);
  EXPECT_EQ(w[48], 6 * 448.0f);
}

TEST(DecodeByHand, Nvfp4ScalesOverTheWholeRange) {
  for (int code = 0; code < 256; ++code) {
    const auto bits = static_cast<std::uint8_t>(code);
    const auto w = decode(DType::nvfp4, block_of(DType::nvfp4, {{0, bits}, {4, 0x02}}));  // level 2 is 1
    const int exponent = code >> 3 & 15, mantissa = code & 7;
    const float scale = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                                      : std::ldexp(1 + static_cast<float>(mantissa) / 8, exponent - 7);
    EXPECT_EQ(w[0], (code & 127) == 127 ? 0 : scale) << code;
    EXPECT_EQ(half_to_float(ue4m3_as_half(bits)) * kUe4m3Unit, ue4m3_half(bits)) << code;
  }
}

TEST(DecodeByHand, FieldsOfOneAndTwoBits) {
  {  // d 1; bits 0 and 9 of 128, the second being bit 1 of the second byte
    const auto w = decode(DType::q1_0, block_of(DType::q1_0, {{1, kOneHigh}, {2, 0x01}, {3, 0x02}, {17, 0x80}}));
    for (std::size_t i = 0; i < 128; ++i) EXPECT_EQ(w[i], i == 0 || i == 9 || i == 127 ? 1.0f : -1.0f) << i;
  }
  {  // d 1; fields 0, 1, 2 and 3 in the first byte, 3 last in the last
    const auto w = decode(DType::q2_0, block_of(DType::q2_0, {{1, kOneHigh}, {2, 0xe4}, {17, 0xc0}}));
    for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(w[i], static_cast<float>(i) - 1);
    EXPECT_EQ(w[4], -1.0f);
    EXPECT_EQ(w[63], 2.0f);
  }
}

TEST(DecodeByHand, SuperBlocks) {
  {  // Q4_K: d 1, dmin 0.5. Scale 0 = 3, min 0 = 2. Scale 5: low four bits 9 (byte 4+9), top two 2 (byte 4+1) -> 41.
    const auto w = decode(DType::q4_k, block_of(DType::q4_k, {{1, kOneHigh},
                                                              {3, kHalfHigh},
                                                              {4 + 0, 3},
                                                              {4 + 4, 2},
                                                              {4 + 9, 0x09},
                                                              {4 + 1, 2 << 6},
                                                              {16 + 0, 0x05},
                                                              {16 + 64 + 7, 0x70}}));
    EXPECT_EQ(w[0], 14.0f);               // 3 * 5 - 0.5 * 2
    EXPECT_EQ(w[1], -1.0f);               // 3 * 0 - 1
    EXPECT_EQ(w[5 * 32 + 7], 41.0f * 7);  // sub-block 5 is the high nibbles of the third 32 bytes
    EXPECT_EQ(w[4 * 32 + 7], 0.0f);
  }
  {  // Q4_K: min 7 = low four bits in the high nibble of byte 11, top two in byte 7.
    const auto w = decode(DType::q4_k, block_of(DType::q4_k, {{3, kOneHigh}, {4 + 11, 0xb0}, {4 + 7, 3 << 6}}));
    EXPECT_EQ(w[255], -59.0f);  // 3 * 16 + 11
    EXPECT_EQ(w[223], 0.0f);
  }
  {  // Q5_K: fifth bit of element 6 * 32 + 2 is bit 6 of qh[2]
    const auto w =
        decode(DType::q5_k, block_of(DType::q5_k, {{1, kOneHigh}, {4 + 10, 0x01}, {16 + 2, 1 << 6}, {48 + 98, 0x03}}));
    EXPECT_EQ(w[6 * 32 + 2], 19.0f);
    EXPECT_EQ(w[6 * 32 + 3], 0.0f);
  }
  {  // Q6_K: the last element: high nibble of ql[127], bits 6,7 of qh[63]; scale 15 = -3
    const auto w =
        decode(DType::q6_k, block_of(DType::q6_k, {{127, 0x50}, {128 + 63, 0x80}, {192 + 15, 0xfd}, {209, kOneHigh}}));
    EXPECT_EQ(w[255], -3.0f * (5 + 32 - 32));
    EXPECT_EQ(w[254], -3.0f * -32);
    EXPECT_EQ(w[239], 0.0f);  // scale 14 is 0
  }
  {  // Q2_K: sub-block 9 (elements 144..159): bits 0,1 of qs[48..63]
    const auto w =
        decode(DType::q2_k, block_of(DType::q2_k, {{9, 0x25}, {16 + 50, 0x03}, {81, kOneHigh}, {83, kTwoHigh}}));
    EXPECT_EQ(w[146], 5.0f * 3 - 2.0f * 2);
    EXPECT_EQ(w[147], -4.0f);
    EXPECT_EQ(w[160], 0.0f);
  }
  {  // Q3_K: scale 12: low bits in the high nibble of byte 4, top bits 6,7 of byte 8; element 200 = 6 * 32 + 8
    const auto w =
        decode(DType::q3_k,
               block_of(DType::q3_k, {{8, 1 << 6}, {32 + 40, 0x20}, {96 + 4, 0x70}, {96 + 8, 0xc0}, {109, kOneHigh}}));
    EXPECT_EQ(w[200], (55.0f - 32) * (2 + 4 - 4));
    EXPECT_EQ(w[201], (55.0f - 32) * -4);
    EXPECT_EQ(w[0], -32.0f * -4);
  }
  {  // IQ4_XS: scale 3: low bits in the high nibble of scales_l[1], top bits 6,7 of scales_h
    const auto w =
        decode(DType::iq4_xs, block_of(DType::iq4_xs, {{1, kOneHigh}, {2, 0x80}, {5, 0x90}, {8 + 48 + 1, 0xf0}}));
    EXPECT_EQ(w[96 + 17], 9.0f * 113);  // 2 * 16 + 9 - 32
    EXPECT_EQ(w[96 + 1], 9.0f * -127);
    EXPECT_EQ(w[0], -32.0f * -127);
  }
}

// --- a second decoder: for element j of a block, gathers its bits one at a time from bit positions
// ---------------------

class Bits {
 public:
  explicit Bits(const std::uint8_t* block) : block_(block) {}
  int bit(int byte, int position) const { return (block_[byte] >> position) & 1; }
  int bits(int byte, int position, int count) const {
    int value = 0;
    for (int i = 0; i < count; ++i) value += bit(byte + (position + i) / 8, (position + i) % 8) << i;
    return value;
  }
  double half(int byte) const {
    return static_cast<double>(f16_to_f32(static_cast<std::uint16_t>(bits(byte, 0, 8) + 256 * bits(byte + 1, 0, 8))));
  }
  int byte(int at) const { return block_[at]; }

 private:
  const std::uint8_t* block_;
};

double nibble32(const Bits& b, int base, int j) {
  return j < 16 ? b.bits(base + j, 0, 4) : b.bits(base + j - 16, 4, 4);
}

std::pair<double, double> scale_min_k(const Bits& b, int s) {
  const int base = 4;
  if (s < 4) return {b.bits(base + s, 0, 6), b.bits(base + 4 + s, 0, 6)};
  return {b.bits(base + 4 + s, 0, 4) + 16 * b.bits(base + s - 4, 6, 2),
          b.bits(base + 4 + s, 4, 4) + 16 * b.bits(base + s, 6, 2)};
}

// Byte j of a point, minus what the grid adds; negative where bit j of `signs` is set.
template <typename Word, std::size_t kCount>
int value_on(const GridTable<Word, kCount>& grid, int point, int j, int signs) {
  const int level = static_cast<int>(grid.at[static_cast<std::size_t>(point)] >> (8 * j) & 255);
  return (signs >> j & 1) != 0 ? -level : level;
}

// Seven signs, and the eighth that makes the number of minuses even.
int with_eighth(int seven) {
  int minuses = 0;
  for (int i = 0; i < 7; ++i) minuses += seven >> i & 1;
  return seven + 128 * (minuses % 2);
}

int digit_of(int byte, int n) {
  for (; n > 0; --n) byte = byte * 3 % 256;
  return byte * 3 / 256;
}

// The weight is scaled + offset; each may be far larger than their sum.
struct Terms {
  double scaled = NAN, offset = 0;
};

Terms element(DType dtype, const Bits& b, int j) {
  static constexpr double kNl[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
  static constexpr double kFp4[16] = {0, .5, 1, 1.5, 2, 3, 4, 6, -0., -.5, -1, -1.5, -2, -3, -4, -6};
  const int sub16 = j / 16, sub32 = j / 32, i = j % 32;
  switch (dtype) {
    case DType::q4_0:
      return {b.half(0) * (nibble32(b, 2, j) - 8)};
    case DType::q4_1:
      return {b.half(0) * nibble32(b, 4, j), b.half(2)};
    case DType::q5_0:
      return {b.half(0) * (nibble32(b, 6, j) + 16 * b.bit(2 + j / 8, j % 8) - 16)};
    case DType::q5_1:
      return {b.half(0) * (nibble32(b, 8, j) + 16 * b.bit(4 + j / 8, j % 8)), b.half(2)};
    case DType::q8_0:
      return {b.half(0) * (b.byte(2 + j) < 128 ? b.byte(2 + j) : b.byte(2 + j) - 256)};
    case DType::iq4_nl:
      return {b.half(0) * kNl[static_cast<int>(nibble32(b, 2, j))]};
    case DType::mxfp4:
      return {std::ldexp(kFp4[static_cast<int>(nibble32(b, 1, j))], b.byte(0) - 127)};
    case DType::nvfp4: {
      const int exponent = b.bits(sub16, 3, 4), mantissa = b.bits(sub16, 0, 3);
      const double scale = exponent == 15 && mantissa == 7 ? 0
                           : exponent == 0                 ? std::ldexp(mantissa, -9)
                                                           : std::ldexp(8 + mantissa, exponent - 10);
      return {scale * kFp4[b.bits(4 + 8 * sub16 + j % 8, j % 16 < 8 ? 0 : 4, 4)]};
    }
    case DType::q1_0:
      return {b.half(0) * (2 * b.bit(2 + j / 8, j % 8) - 1)};
    case DType::q2_0:
      return {b.half(0) * (b.bits(2 + j / 4, 2 * (j % 4), 2) - 1)};
    case DType::q2_k: {
      const int q = b.bits(16 + 32 * (j / 128) + i, 2 * (sub32 % 4), 2);
      return {b.half(80) * b.bits(sub16, 0, 4) * q, -b.half(82) * b.bits(sub16, 4, 4)};
    }
    case DType::q3_k: {
      const int q = b.bits(32 + 32 * (j / 128) + i, 2 * (sub32 % 4), 2) + 4 * b.bit(i, sub32) - 4;
      const int low = b.bits(96 + sub16 % 8, sub16 < 8 ? 0 : 4, 4), high = b.bits(104 + sub16 % 4, 2 * (sub16 / 4), 2);
      return {b.half(108) * (low + 16 * high - 32) * q};
    }
    case DType::q4_k: {
      const auto [scale, min] = scale_min_k(b, sub32);
      return {b.half(0) * scale * b.bits(16 + 32 * (j / 64) + i, 4 * (sub32 % 2), 4), -b.half(2) * min};
    }
    case DType::q5_k: {
      const auto [scale, min] = scale_min_k(b, sub32);
      const int q = b.bits(48 + 32 * (j / 64) + i, 4 * (sub32 % 2), 4) + 16 * b.bit(16 + i, sub32);
      return {b.half(0) * scale * q, -b.half(2) * min};
    }
    case DType::q6_k: {
      const int part = sub32 % 4, h = j / 128;
      const int q =
          b.bits(64 * h + 32 * (part % 2) + i, part < 2 ? 0 : 4, 4) + 16 * b.bits(128 + 32 * h + i, 2 * part, 2) - 32;
      const int scale = b.byte(192 + sub16) < 128 ? b.byte(192 + sub16) : b.byte(192 + sub16) - 256;
      return {b.half(208) * scale * q};
    }
    case DType::iq4_xs: {
      const int ls = b.bits(4 + sub32 / 2, sub32 % 2 ? 4 : 0, 4) + 16 * b.bits(2 + sub32 / 4, 2 * (sub32 % 4), 2) - 32;
      return {b.half(0) * ls * kNl[static_cast<int>(nibble32(b, 8 + 16 * sub32, i))]};
    }
    case DType::iq2_xxs: {
      const int part = 2 + 8 * sub32, l = i / 8;
      const int point = b.byte(part + l), signs = with_eighth(b.bits(part + 4 + 7 * l / 8, 7 * l % 8, 7));
      return {b.half(0) * (0.5 + b.bits(part + 7, 4, 4)) / 4 * value_on(kIq2XxsGrid, point, j % 8, signs)};
    }
    case DType::iq2_xs: {
      const int q = 2 + 2 * (j / 8);
      const int point = b.byte(q) + 256 * b.bit(q + 1, 0), signs = with_eighth(b.bits(q + 1, 1, 7));
      const double scale = 0.5 + b.bits(66 + sub32, 4 * (sub16 % 2), 4);
      return {b.half(0) * scale / 4 * value_on(kIq2XsGrid, point, j % 8, signs)};
    }
    case DType::iq2_s: {
      const int point = b.byte(2 + j / 8) + 256 * b.bits(66 + sub32, 2 * (i / 8), 2);
      const double scale = 0.5 + b.bits(74 + sub32, 4 * (sub16 % 2), 4);
      return {b.half(0) * scale / 4 * value_on(kIq2SGrid, point, j % 8, b.byte(34 + j / 8))};
    }
    case DType::iq3_xxs: {
      const int packed = 66 + 4 * sub32, l = i / 8;
      const int signs = with_eighth(b.bits(packed + 7 * l / 8, 7 * l % 8, 7)) >> (j % 8 / 4 * 4);
      const double scale = 0.5 + b.bits(packed + 3, 4, 4);
      return {b.half(0) * scale / 2 * value_on(kIq3XxsGrid, b.byte(2 + j / 4), j % 4, signs)};
    }
    case DType::iq3_s: {
      const int point = b.byte(2 + j / 4) + 256 * b.bit(66 + sub32, i / 4);
      const int signs = b.bits(74 + j / 8, j % 8 / 4 * 4, 4);
      const int scale = 1 + 2 * b.bits(106 + sub32 / 2, 4 * (sub32 % 2), 4);
      return {b.half(0) * scale * value_on(kIq3SGrid, point, j % 4, signs)};
    }
    case DType::iq1_s: {
      const int high = 34 + 2 * sub32, l = i / 8;
      const int point = b.byte(2 + j / 8) + 256 * b.bits(high + 3 * l / 8, 3 * l % 8, 3);
      const double level = value_on(kIq1Grid, point, j % 8, 0) / 8.0 - 1;
      return {b.half(0) * (2 * b.bits(high + 1, 4, 3) + 1) * (level + (b.bit(high + 1, 7) != 0 ? -0.125 : 0.125))};
    }
    case DType::iq1_m: {
      const std::uint16_t d = static_cast<std::uint16_t>(b.bits(49, 4, 4) | b.bits(51, 4, 4) << 4 |
                                                         b.bits(53, 4, 4) << 8 | b.bits(55, 4, 4) << 12);
      const int high = 32 + j / 16, shift = 4 * (j / 8 % 2), at = 3 * (sub16 % 4);
      const int point = b.byte(j / 8) + 256 * b.bits(high, shift, 3);
      const double level = value_on(kIq1Grid, point, j % 8, 0) / 8.0 - 1;
      const int scale = 2 * b.bits(48 + 2 * (sub16 / 4) + at / 8, at % 8, 3) + 1;
      return {static_cast<double>(f16_to_f32(d)) * scale * (level + (b.bit(high, shift + 3) != 0 ? -0.125 : 0.125))};
    }
    case DType::tq1_0: {
      const int k = j < 160 ? j : j < 240 ? j - 160 : j - 240, run = j < 160 ? 32 : j < 240 ? 16 : 4;
      return {b.half(52) * (digit_of(b.byte((j < 160 ? 0 : j < 240 ? 32 : 48) + k % run), k / run) - 1)};
    }
    case DType::tq2_0:
      return {b.half(64) * (b.bits(32 * (j / 128) + i, 2 * (sub32 % 4), 2) - 1)};
    default:
      return {};
  }
}

// Sums over what the published tables hold: a wrong, missing or misplaced point shows.
TEST(Grids, HoldThePublishedPoints) {
  const auto sum_of = [](const auto& grid) {
    std::uint64_t sum = 0;
    for (const std::uint64_t point : grid.at) sum = sum * 0x100000001b3ULL + point;
    return sum;
  };
  EXPECT_EQ(sum_of(kIq2XxsGrid), 0x558be3f81adf19e1ULL);
  EXPECT_EQ(sum_of(kIq2XsGrid), 0x7ea98ca4b3fd5829ULL);
  EXPECT_EQ(sum_of(kIq2SGrid), 0x45e54868255bb01cULL);
  EXPECT_EQ(sum_of(kIq3XxsGrid), 0xbcc478c8d1a805eULL);
  EXPECT_EQ(sum_of(kIq3SGrid), 0x538a4aaa7ae95d46ULL);
  EXPECT_EQ(sum_of(kIq1Grid), 0x202efc4eb7ba1ff0ULL);
}

TEST(Decode, RandomBlocksAgreeWithBitByBitDecoder) {
  std::mt19937 random(1);
  for (const DTypeInfo& row : all_dtypes()) {
    if (row.block_elements == 1) continue;
    constexpr int kBlocks = 37;
    Bytes bytes(static_cast<std::size_t>(kBlocks * row.block_bytes));
    for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(random());
    const std::vector<float> got = decode(row.dtype, bytes);
    std::int64_t compared = 0;
    for (std::size_t j = 0; j < got.size(); ++j) {
      const auto elements = static_cast<std::size_t>(row.block_elements);
      const Bits block(bytes.data() + j / elements * static_cast<std::size_t>(row.block_bytes));
      const auto [scaled, offset] = element(row.dtype, block, static_cast<int>(j % elements));
      if (!std::isfinite(static_cast<float>(scaled + offset))) continue;  // random scales reach infinity and NaN
      ++compared;
      // At most three roundings to float32, each relative to a term.
      const double tolerance = (std::fabs(scaled) + std::fabs(offset)) * std::ldexp(1, -23) + 1e-44;
      ASSERT_NEAR(got[j], scaled + offset, tolerance) << row.name << " element " << j;
    }
    EXPECT_GT(compared, kBlocks * row.block_elements / 2) << row.name;
  }
}

TEST(Decode, ReadsExactlyTheRowAtAnyAlignment) {
  // The row ends where its heap block ends and starts at an odd address: a byte more is an error under ASan, an aligned
  // load one under UBSan. The output is exact too.
  std::mt19937 random(2);
  for (const DTypeInfo& row : all_dtypes()) {
    if (!row.computable) continue;
    for (const std::int64_t blocks : {1, 3, 7}) {
      const auto bytes = static_cast<std::size_t>(row_bytes(row.dtype, blocks * row.block_elements));
      const auto cols = static_cast<std::size_t>(blocks * row.block_elements);
      Bytes even(bytes);
      for (std::uint8_t& byte : even) byte = static_cast<std::uint8_t>(random());
      const auto odd = std::make_unique<std::uint8_t[]>(bytes + 1);
      std::memcpy(odd.get() + 1, even.data(), bytes);
      const auto out = std::make_unique<float[]>(cols);
      decode_row(row.dtype, reinterpret_cast<const std::byte*>(odd.get() + 1), static_cast<std::int64_t>(cols),
                 out.get());
      const std::vector<float> wanted = decode(row.dtype, even);
      EXPECT_EQ(std::memcmp(out.get(), wanted.data(), cols * sizeof(float)), 0) << row.name;
    }
    decode_row(row.dtype, nullptr, 0, nullptr);  // an empty row touches nothing
  }
}

TEST(Blocks, SixBitScalesPackAndUnpack) {
  std::mt19937 random(3);
  for (int round = 0; round < 1000; ++round) {
    std::uint8_t scales[8], mins[8], packed[12], scales2[8], mins2[8];
    for (int s = 0; s < 8; ++s) {
      scales[s] = random() % 64;
      mins[s] = random() % 64;
    }
    pack_scales_k4(scales, mins, packed);
    unpack_scales_k4(packed, scales2, mins2);
    ASSERT_EQ(std::memcmp(scales, scales2, 8), 0);
    ASSERT_EQ(std::memcmp(mins, mins2, 8), 0);
  }
}

}  // namespace
}  // namespace millrace
