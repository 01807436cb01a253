#include "tensor/codec.h"

#include <cstring>

#include "tensor/blocks.h"
#include "tensor/grid_blocks.h"
#include "tensor/grids.h"
#include "tensor/half.h"

namespace millrace {
namespace {

// One decoder a block type. Each product is rounded to float32 once, in the order that blocks.h writes its formula.

void decode_block(const BlockQ4_0& block, float* out) {
  const float d = half_to_float(block.d);
  for (int i = 0; i < 16; ++i) {
    out[i] = d * static_cast<float>((block.qs[i] & 15) - 8);
    out[i + 16] = d * static_cast<float>((block.qs[i] >> 4) - 8);
  }
}

void decode_block(const BlockQ4_1& block, float* out) {
  const float d = half_to_float(block.d), m = half_to_float(block.m);
  for (int i = 0; i < 16; ++i) {
    out[i] = d * static_cast<float>(block.qs[i] & 15) + m;
    out[i + 16] = d * static_cast<float>(block.qs[i] >> 4) + m;
  }
}

// The five-bit value of element j of a Q5_0 or Q5_1 block.
template <typename Block>
int five_bits(const Block& block, int j) {
  const int low = j < 16 ? block.qs[j] & 15 : block.qs[j - 16] >> 4;
  return low | static_cast<int>((block.qh >> j) & 1) << 4;
}

void decode_block(const BlockQ5_0& block, float* out) {
  const float d = half_to_float(block.d);
  for (int j = 0; j < kBlock; ++j) out[j] = d * static_cast<float>(five_bits(block, j) - 16);
}

void decode_block(const BlockQ5_1& block, float* out) {
  const float d = half_to_float(block.d), m = half_to_float(block.m);
  for (int j = 0; j < kBlock; ++j) out[j] = d * static_cast<float>(five_bits(block, j)) + m;
}

void decode_block(const BlockQ8_0& block, float* out) {
  const float d = half_to_float(block.d);
  for (int j = 0; j < kBlock; ++j) out[j] = d * static_cast<float>(block.qs[j]);
}

// 32 elements of two nibbles each byte, looked up in a codebook.
void decode_codebook(const std::uint8_t* qs, const std::int8_t* codebook, float d, float* out) {
  for (int i = 0; i < 16; ++i) {
    out[i] = d * static_cast<float>(codebook[qs[i] & 15]);
    out[i + 16] = d * static_cast<float>(codebook[qs[i] >> 4]);
  }
}

void decode_block(const BlockIQ4_NL& block, float* out) {
  decode_codebook(block.qs, kIq4Codebook, half_to_float(block.d), out);
}

void decode_block(const BlockMXFP4& block, float* out) {
  decode_codebook(block.qs, kMxfp4Codebook, e8m0_half(block.e), out);
}

void decode_block(const BlockNVFP4& block, float* out) {
  for (int s = 0; s < 4; ++s) {
    const float d = ue4m3_half(block.d[s]);
    for (int i = 0; i < 8; ++i) {
      const int q = block.qs[8 * s + i];
      out[16 * s + i] = d * static_cast<float>(kMxfp4Codebook[q & 15]);
      out[16 * s + 8 + i] = d * static_cast<float>(kMxfp4Codebook[q >> 4]);
    }
  }
}

void decode_block(const BlockQ1_0& block, float* out) {
  const float d = half_to_float(block.d);
  for (int i = 0; i < kBlockQ1_0; ++i) out[i] = d * static_cast<float>(2 * (block.qs[i / 8] >> i % 8 & 1) - 1);
}

void decode_block(const BlockQ2_0& block, float* out) {
  const float d = half_to_float(block.d);
  for (int i = 0; i < kBlockQ2_0; ++i) out[i] = d * static_cast<float>((block.qs[i / 4] >> 2 * (i % 4) & 3) - 1);
}

void decode_block(const BlockIQ4_XS& block, float* out) {
  const float d = half_to_float(block.d);
  for (int s = 0; s < 8; ++s) {
    const float scale = d * static_cast<float>(iq4_xs_scale(block, s));
    decode_codebook(block.qs + 16 * s, kIq4Codebook, scale, out + 32 * s);
  }
}

// The low two bits of element j of a Q2_K or Q3_K block.
int two_bits(const std::uint8_t* qs, int j) { return (qs[32 * (j / 128) + j % 32] >> (2 * (j / 32 % 4))) & 3; }

void decode_block(const BlockQ2_K& block, float* out) {
  const float d = half_to_float(block.d), dmin = half_to_float(block.dmin);
  for (int s = 0; s < 16; ++s) {
    const float scale = d * static_cast<float>(block.scales[s] & 15);
    const float min = dmin * static_cast<float>(block.scales[s] >> 4);
    for (int j = 16 * s; j < 16 * s + 16; ++j) out[j] = scale * static_cast<float>(two_bits(block.qs, j)) - min;
  }
}

void decode_block(const BlockQ3_K& block, float* out) {
  const float d = half_to_float(block.d);
  std::int8_t scales[16];
  unpack_scales_q3_k(block.scales, scales);
  for (int s = 0; s < 16; ++s) {
    const float scale = d * static_cast<float>(scales[s]);
    for (int j = 16 * s; j < 16 * s + 16; ++j) {
      const int third = (block.hmask[j % 32] >> (j / 32)) & 1;
      out[j] = scale * static_cast<float>((two_bits(block.qs, j) | third << 2) - 4);
    }
  }
}

void decode_block(const BlockQ4_K& block, float* out) {
  const float d = half_to_float(block.d), dmin = half_to_float(block.dmin);
  std::uint8_t scales[8], mins[8];
  unpack_scales_k4(block.scales, scales, mins);
  for (int s = 0; s < 8; ++s) {
    const float scale = d * static_cast<float>(scales[s]), min = dmin * static_cast<float>(mins[s]);
    const std::uint8_t* qs = block.qs + 32 * (s / 2);
    const int shift = 4 * (s % 2);
    for (int i = 0; i < 32; ++i) out[32 * s + i] = scale * static_cast<float>((qs[i] >> shift) & 15) - min;
  }
}

void decode_block(const BlockQ5_K& block, float* out) {
  const float d = half_to_float(block.d), dmin = half_to_float(block.dmin);
  std::uint8_t scales[8], mins[8];
  unpack_scales_k4(block.scales, scales, mins);
  for (int s = 0; s < 8; ++s) {
    const float scale = d * static_cast<float>(scales[s]), min = dmin * static_cast<float>(mins[s]);
    const std::uint8_t* qs = block.qs + 32 * (s / 2);
    const int shift = 4 * (s % 2);
    for (int i = 0; i < 32; ++i) {
      const int q = ((qs[i] >> shift) & 15) | ((block.qh[i] >> s) & 1) << 4;
      out[32 * s + i] = scale * static_cast<float>(q) - min;
    }
  }
}

void decode_block(const BlockQ6_K& block, float* out) {
  const float d = half_to_float(block.d);
  for (int s = 0; s < 16; ++s) {
    const float scale = d * static_cast<float>(block.scales[s]);
    const int half = s / 8, part = s / 2 % 4;  // of 128 elements, then of 32
    const std::uint8_t* ql = block.ql + 64 * half + 32 * (part % 2);
    const std::uint8_t* qh = block.qh + 32 * half;
    for (int j = 16 * s; j < 16 * s + 16; ++j) {
      const int i = j % 32;
      const int q = ((ql[i] >> (4 * (part / 2))) & 15) | ((qh[i] >> (2 * part)) & 3) << 4;
      out[j] = scale * static_cast<float>(q - 32);
    }
  }
}

/// Weights on a grid; every product is exact.
template <typename Block>
requires requires { Grid<Block>::kOffset; }
void decode_block(const Block& block, float* out) {
  const float step = half_to_float(Grid<Block>::d(block)) * Grid<Block>::kStep;
  for (int p = 0; p < 8; ++p) {
    std::uint8_t bytes[32];
    Grid<Block>::bytes(block, p, bytes);
    for (int i = 0; i < 32; ++i) {
      const float scale = step * static_cast<float>(Grid<Block>::scale(block, 2 * p + i / 16));
      out[32 * p + i] = scale * static_cast<float>(bytes[i] - Grid<Block>::kOffset);
    }
  }
}

template <typename Block, int kElements>
void decode_blocks(const std::byte* row, std::int64_t cols, float* out) {
  static_assert(alignof(Block) == 1, "rows have any alignment");
  const Block* blocks = reinterpret_cast<const Block*>(row);
  for (std::int64_t b = 0; b < cols / kElements; ++b) decode_block(blocks[b], out + b * kElements);
}

std::uint16_t load_u16(const std::byte* bytes) {
  std::uint16_t bits;
  std::memcpy(&bits, bytes, sizeof bits);
  return bits;
}

}  // namespace

float f16_to_f32(std::uint16_t bits) { return half_to_float(bits); }
std::uint16_t f32_to_f16(float value) { return float_to_half(value); }
float bf16_to_f32(std::uint16_t bits) { return bfloat_to_float(bits); }
std::uint16_t f32_to_bf16(float value) { return float_to_bfloat(value); }

void decode_row(DType dtype, const std::byte* row, std::int64_t cols, float* out) {
  MR_ASSERT(info(dtype).computable && cols >= 0 && cols % info(dtype).block_elements == 0);
  switch (dtype) {
    case DType::f32:
      if (cols > 0) std::memcpy(out, row, static_cast<std::size_t>(cols) * sizeof(float));
      return;
    case DType::f16:
      for (std::int64_t i = 0; i < cols; ++i) out[i] = half_to_float(load_u16(row + 2 * i));
      return;
    case DType::bf16:
      for (std::int64_t i = 0; i < cols; ++i) out[i] = bfloat_to_float(load_u16(row + 2 * i));
      return;
    case DType::q4_0:
      return decode_blocks<BlockQ4_0, kBlock>(row, cols, out);
    case DType::q4_1:
      return decode_blocks<BlockQ4_1, kBlock>(row, cols, out);
    case DType::q5_0:
      return decode_blocks<BlockQ5_0, kBlock>(row, cols, out);
    case DType::q5_1:
      return decode_blocks<BlockQ5_1, kBlock>(row, cols, out);
    case DType::q8_0:
      return decode_blocks<BlockQ8_0, kBlock>(row, cols, out);
    case DType::q2_k:
      return decode_blocks<BlockQ2_K, kSuperBlock>(row, cols, out);
    case DType::q3_k:
      return decode_blocks<BlockQ3_K, kSuperBlock>(row, cols, out);
    case DType::q4_k:
      return decode_blocks<BlockQ4_K, kSuperBlock>(row, cols, out);
    case DType::q5_k:
      return decode_blocks<BlockQ5_K, kSuperBlock>(row, cols, out);
    case DType::q6_k:
      return decode_blocks<BlockQ6_K, kSuperBlock>(row, cols, out);
    case DType::iq4_nl:
      return decode_blocks<BlockIQ4_NL, kBlock>(row, cols, out);
    case DType::iq4_xs:
      return decode_blocks<BlockIQ4_XS, kSuperBlock>(row, cols, out);
    case DType::mxfp4:
      return decode_blocks<BlockMXFP4, kBlock>(row, cols, out);
    case DType::nvfp4:
      return decode_blocks<BlockNVFP4, kNvfp4Block>(row, cols, out);
    case DType::q1_0:
      return decode_blocks<BlockQ1_0, kBlockQ1_0>(row, cols, out);
    case DType::q2_0:
      return decode_blocks<BlockQ2_0, kBlockQ2_0>(row, cols, out);
    default:
      with_grid_block(dtype, [&]<typename Block>() { decode_blocks<Block, kSuperBlock>(row, cols, out); });
  }
}

}  // namespace millrace
