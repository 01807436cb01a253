// Inline float16 and bfloat16 conversions for loops over many elements; codec.h has the same as plain functions.
// Portable and exact: subnormals, signed zeros and infinities are kept, rounding is to nearest even, a NaN becomes a
// quiet NaN with its leading payload bits, as the F16C instructions have it. Neither flush-to-zero mode changes a
// result. Thread-safety: pure functions.
#pragma once

#include <bit>
#include <cstdint>

namespace millrace {

inline float half_to_float(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000) << 16;
  const std::uint32_t magnitude = static_cast<std::uint32_t>(bits & 0x7fff) << 13;
  const std::uint32_t exponent = magnitude & 0x0f800000;
  // Normal numbers only need another exponent bias (127 - 15). Infinity and NaN need the top exponent.
  std::uint32_t result = magnitude + (112u << 23);
  if (exponent == 0x0f800000) {
    result += 112u << 23;
    if (magnitude != exponent) result |= 0x00400000;
  }
  if (exponent == 0) {
    // A subnormal's mantissa m is worth m * 2^-24: give it a hidden bit worth 2^-14, and take that away again.
    const float shifted = std::bit_cast<float>(magnitude + (113u << 23));
    result = std::bit_cast<std::uint32_t>(shifted - std::bit_cast<float>(113u << 23));
  }
  return std::bit_cast<float>(result | sign);
}

inline std::uint16_t float_to_half(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000;
  const std::uint32_t magnitude = bits & 0x7fffffff;
  // Normal result: re-bias and round the thirteen dropped bits to nearest even; a carry runs into the exponent as it
  // should.
  std::uint32_t result = (magnitude + 0xfff + ((magnitude >> 13) & 1) - (112u << 23)) >> 13;
  if (magnitude < 0x38800000) {
    // Subnormal result: beside 0.5 a float's last place is 2^-24, the step of float16's subnormals, so the addition
    // rounds.
    result = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000;
  }
  if (magnitude >= 0x477ff000) result = 0x7c00;  // 65520 and above round to infinity
  if (magnitude > 0x7f800000) result = 0x7e00 | ((magnitude >> 13) & 0x3ff);
  return static_cast<std::uint16_t>(result | sign);
}

inline float bfloat_to_float(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

inline std::uint16_t float_to_bfloat(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<std::uint16_t>((bits >> 16) | 0x40);
  return static_cast<std::uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

}  // namespace millrace
