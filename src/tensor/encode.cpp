#include <algorithm>
#include <cmath>
#include <cstring>

#include "tensor/blocks.h"
#include "tensor/codec.h"
#include "tensor/encode_blocks.h"
#include "tensor/half.h"
#include "tensor/lanes.h"

namespace millrace {
namespace {

/// d of a block and the 32 levels, each a row's largest magnitude at 127. NaN becomes 0, infinities the largest finite.
void encode_q8_0(const float* row, BlockQ8_0& out) {
  alignas(64) float x[kBlock];
  const Lanes low = splat(-kLargestEncodable), high = splat(kLargestEncodable);
  Lanes largest4 = {};
  for (int i = 0; i < kBlock; i += kLanes) {
    const Lanes v = load_lanes(row + i), finite = clamp(v == v ? v : Lanes{}, low, high);
    store_lanes(x + i, finite);
    largest4 = larger(largest4, magnitude(finite));
  }
  float largest = 0;
  for (int i = 0; i < kLanes; ++i) largest = std::max(largest, largest4[i]);
  out.d = float_to_half(std::min(largest / 127, kLargestHalf));
  const float scale = half_to_float(out.d);  // as stored, so that levels are chosen for what a decoder will see
  const Lanes inverse = splat(scale != 0 ? 1.0f / scale : 0.0f), bottom = splat(-127), top = splat(127);
  for (int i = 0; i < kBlock; i += kLanes)
    store_lanes(x + i, round_lanes(clamp(load_lanes(x + i) * inverse, bottom, top)));
  for (int i = 0; i < kBlock; ++i) out.qs[i] = static_cast<std::int8_t>(static_cast<int>(x[i]));
}

template <std::uint16_t (*kConvert)(float)>
void encode_halves(const float* row, std::int64_t cols, std::byte* out) {
  for (std::int64_t i = 0; i < cols; ++i) {
    const std::uint16_t bits = kConvert(row[i]);
    std::memcpy(out + 2 * i, &bits, sizeof bits);
  }
}

}  // namespace

EncodeBlocks fastest_encode_blocks() {
#if defined(__x86_64__)
  // What cmake/millrace.cmake compiles the files for.
  static const EncodeBlocks fastest = [] {
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                        __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512vbmi");
    return avx2 && avx512 ? avx512::encode_blocks : avx2 ? avx2::encode_blocks : plain::encode_blocks;
  }();
  return fastest;
#else
  return plain::encode_blocks;
#endif
}

float nvfp4_factor(float largest) {
  constexpr float kMost = 6 * 448;  // the largest level times the largest scale
  const float factor = largest / kMost;
  return std::isnormal(factor) ? factor : 1;
}

NumberRange range_of(std::span<const float> numbers) {
  NumberRange range;
  for (const float x : numbers) {
    range.finite &= std::isfinite(x);
    range.largest = std::max(range.largest, std::fabs(x));
  }
  return range;
}

bool can_encode(DType dtype) { return info(dtype).computable; }

void encode_row(DType dtype, const float* row, std::int64_t cols, std::byte* out, const float* importance) {
  MR_ASSERT(can_encode(dtype) && cols >= 0 && cols % info(dtype).block_elements == 0);
  switch (dtype) {
    case DType::f32:
      if (cols > 0) std::memcpy(out, row, static_cast<std::size_t>(cols) * sizeof(float));
      return;
    case DType::f16:
      return encode_halves<float_to_half>(row, cols, out);
    case DType::bf16:
      return encode_halves<float_to_bfloat>(row, cols, out);
    case DType::q8_0:
      for (std::int64_t b = 0; b < cols / kBlock; ++b)
        encode_q8_0(row + b * kBlock, reinterpret_cast<BlockQ8_0*>(out)[b]);
      return;
    default:
      return fastest_encode_blocks()(dtype, row, importance, cols, out);
  }
}

}  // namespace millrace
