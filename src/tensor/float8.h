// The two forms of 8-bit floats that checkpoints hold, as floats. Source: OCP 8-bit Floating Point Specification
// (2023). Thread-safety: pure functions.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

#include "tensor/half.h"

namespace millrace {

/// E4M3: bias 7, no infinities; 0x7f and 0xff are NaN, the largest is 448.
inline float e4m3_to_float(std::uint8_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x80) << 24;
  const std::uint32_t exponent = (bits >> 3) & 0xf, mantissa = bits & 7;
  if ((bits & 0x7f) == 0x7f) return std::numeric_limits<float>::quiet_NaN();
  constexpr float kLeast = 0x1p-9f;  // of the subnormals, whose mantissa counts it
  const float magnitude = exponent == 0 ? static_cast<float>(mantissa) * kLeast
                                        : std::bit_cast<float>((exponent + 120) << 23 | mantissa << 20);
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(magnitude) | sign);
}

/// E5M2: the leading byte of a float16.
inline float e5m2_to_float(std::uint8_t bits) { return half_to_float(static_cast<std::uint16_t>(bits << 8)); }

}  // namespace millrace
