// Where blocks keep their scales, for tests that make blocks of random bits with scales of sane size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "tensor/blocks.h"
#include "tensor/dtype.h"
#include "tensor/half.h"

namespace millrace::test {

/// Offsets of a block's float16 fields. MXFP4 has an exponent instead, NVFP4 four bytes any of which will
/// do, IQ1_M four nibbles.
inline std::vector<std::size_t> half_fields(DType dtype) {
  switch (dtype) {
    case DType::q4_1:
    case DType::q5_1:
    case DType::q4_k:
    case DType::q5_k:
      return {0, 2};
    case DType::q2_k:
      return {offsetof(BlockQ2_K, d), offsetof(BlockQ2_K, dmin)};
    case DType::q3_k:
      return {offsetof(BlockQ3_K, d)};
    case DType::q6_k:
      return {offsetof(BlockQ6_K, d)};
    case DType::tq1_0:
      return {offsetof(BlockTQ1_0, d)};
    case DType::tq2_0:
      return {offsetof(BlockTQ2_0, d)};
    case DType::mxfp4:
    case DType::nvfp4:
    case DType::iq1_m:
      return {};
    default:
      return {0};
  }
}

/// Gives the block at `out` float16 scales from next(), which is called once a field, and an MXFP4 block the exponent
/// from exponent().
template <typename Next, typename Exponent>
void put_scales(DType dtype, std::byte* out, const Next& next, const Exponent& exponent) {
  if (dtype == DType::mxfp4) out[0] = static_cast<std::byte>(exponent());
  for (const std::size_t field : half_fields(dtype)) {
    const std::uint16_t bits = float_to_half(next());
    std::memcpy(out + field, &bits, sizeof bits);
  }
  if (dtype != DType::iq1_m) return;
  const std::uint16_t bits = float_to_half(next());
  for (std::size_t i = 0; i < 4; ++i) {
    std::byte& high = out[offsetof(BlockIQ1_M, scales) + 2 * i + 1];
    high = (high & std::byte{0x0f}) | static_cast<std::byte>((bits >> (4 * i) & 15) << 4);
  }
}

}  // namespace millrace::test
