#include <algorithm>
#include <cmath>
#include <cstring>

#include "tensor/codec.h"
#include "tensor/encode_k.h"
#include "tensor/half.h"
#include "tensor/lanes.h"

namespace millrace {
namespace {

// Finite copies for the block encoders: NaN becomes 0, infinities and what no block can hold the largest magnitude.
template <int kCount>
void load_finite(const float* row, float* x) {
  const F4 low = splat(-kLargestEncodable), high = splat(kLargestEncodable);
  for (int i = 0; i < kCount; i += 4) {
    const F4 v = load4(row + i);
    store4(x + i, clamp4(v == v ? v : F4{}, low, high));
  }
}

std::uint16_t scale_bits(float scale) { return float_to_half(std::clamp(scale, -65504.0f, 65504.0f)); }

// 1 / d of the scale as stored, so that levels are chosen for what a decoder will see.
float inverse_of(std::uint16_t d) {
  const float scale = half_to_float(d);
  return scale != 0 ? 1.0f / scale : 0.0f;
}

void encode_block(const float* x, BlockQ8_0& out) {
  F4 largest = {};
  for (int i = 0; i < kBlock; i += 4) {
    const F4 v = load4(x + i);
    const F4 magnitude = v < F4{} ? -v : v;
    largest = magnitude > largest ? magnitude : largest;
  }
  const float amax = std::max({largest[0], largest[1], largest[2], largest[3]});
  out.d = scale_bits(amax / 127);
  const F4 inverse = splat(inverse_of(out.d)), low = splat(-127), high = splat(127);
  alignas(16) float q[kBlock];
  for (int i = 0; i < kBlock; i += 4) store4(q + i, round4(clamp4(load4(x + i) * inverse, low, high)));
  for (int i = 0; i < kBlock; ++i) out.qs[i] = static_cast<std::int8_t>(static_cast<int>(q[i]));
}

void encode_block(const float* x, BlockQ4_0& out) {
  F4 low4 = {}, high4 = {};
  for (int i = 0; i < kBlock; i += 4) {
    const F4 v = load4(x + i);
    low4 = v < low4 ? v : low4;
    high4 = v > high4 ? v : high4;
  }
  const float low = std::min({low4[0], low4[1], low4[2], low4[3]});
  const float high = std::max({high4[0], high4[1], high4[2], high4[3]});
  // Level -8 has no opposite: the element of largest magnitude takes it, whatever its sign.
  out.d = scale_bits((high > -low ? high : low) / -8);
  const F4 inverse = splat(inverse_of(out.d)), bottom = splat(-8), top = splat(7);
  alignas(16) float q[kBlock];
  for (int i = 0; i < kBlock; i += 4) store4(q + i, round4(clamp4(load4(x + i) * inverse, bottom, top)));
  for (int i = 0; i < 16; ++i) {
    out.qs[i] = static_cast<std::uint8_t>((static_cast<int>(q[i]) + 8) | (static_cast<int>(q[i + 16]) + 8) << 4);
  }
}

void encode_block(const float* x, BlockQ4_K& out) { encode_q4_k(x, out); }
void encode_block(const float* x, BlockQ6_K& out) { encode_q6_k(x, out); }

template <typename Block, int kElements>
void encode_blocks(const float* row, std::int64_t cols, std::byte* out) {
  alignas(16) float x[kElements];
  Block* blocks = reinterpret_cast<Block*>(out);
  for (std::int64_t b = 0; b < cols / kElements; ++b) {
    load_finite<kElements>(row + b * kElements, x);
    encode_block(x, blocks[b]);
  }
}

template <std::uint16_t (*kConvert)(float)>
void encode_halves(const float* row, std::int64_t cols, std::byte* out) {
  for (std::int64_t i = 0; i < cols; ++i) {
    const std::uint16_t bits = kConvert(row[i]);
    std::memcpy(out + 2 * i, &bits, sizeof bits);
  }
}

}  // namespace

bool can_encode(DType dtype) {
  switch (dtype) {
    case DType::f32:
    case DType::f16:
    case DType::bf16:
    case DType::q4_0:
    case DType::q8_0:
    case DType::q4_k:
    case DType::q6_k:
      return true;
    default:
      return false;
  }
}

void encode_row(DType dtype, const float* row, std::int64_t cols, std::byte* out) {
  MR_ASSERT(can_encode(dtype) && cols >= 0 && cols % info(dtype).block_elements == 0);
  switch (dtype) {
    case DType::f32:
      if (cols > 0) std::memcpy(out, row, static_cast<std::size_t>(cols) * sizeof(float));
      return;
    case DType::f16:
      return encode_halves<float_to_half>(row, cols, out);
    case DType::bf16:
      return encode_halves<float_to_bfloat>(row, cols, out);
    case DType::q4_0:
      return encode_blocks<BlockQ4_0, kBlock>(row, cols, out);
    case DType::q8_0:
      return encode_blocks<BlockQ8_0, kBlock>(row, cols, out);
    case DType::q4_k:
      return encode_blocks<BlockQ4_K, kSuperBlock>(row, cols, out);
    case DType::q6_k:
      return encode_blocks<BlockQ6_K, kSuperBlock>(row, cols, out);
    default:
      return;  // excluded by can_encode
  }
}

}  // namespace millrace
