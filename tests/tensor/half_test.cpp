// float16 and bfloat16 against definitions by arithmetic (ldexp, nearest neighbours), over every bit pattern.
#include "tensor/half.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>

#include "tensor/codec.h"

namespace millrace {
namespace {

// What the 16 bits mean by the IEEE definition.
double half_value(std::uint16_t bits) {
  const int exponent = (bits >> 10) & 31, mantissa = bits & 1023;
  const double magnitude = exponent == 31  ? (mantissa == 0 ? INFINITY : NAN)
                           : exponent == 0 ? std::ldexp(mantissa, -24)
                                           : std::ldexp(1024 + mantissa, exponent - 25);
  return bits & 0x8000 ? -magnitude : magnitude;
}

TEST(Half, EveryPatternDecodesToItsValueAndBack) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const float value = f16_to_f32(half);
    const double wanted = half_value(half);
    if (std::isnan(wanted)) {
      ASSERT_TRUE(std::isnan(value)) << bits;
      // Quiet, sign and payload kept: what F16C gives.
      ASSERT_EQ(f32_to_f16(value), half | 0x200) << bits;
      ASSERT_EQ(std::bit_cast<std::uint32_t>(value), (bits & 0x8000) << 16 | 0x7fc00000 | (bits & 0x3ff) << 13);
    } else {
      ASSERT_EQ(value, wanted) << bits;
      ASSERT_EQ(std::signbit(value), (bits & 0x8000) != 0) << bits;
      ASSERT_EQ(f32_to_f16(value), half) << bits;
    }
  }
}

TEST(Half, RoundsToNearestEven) {
  // Around the midpoint of every two finite neighbours: just below goes down, just above up, the middle to the even
  // one.
  for (std::uint32_t bits = 0; bits < 0x7c00; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const auto above = static_cast<std::uint16_t>(bits + 1);
    const double upper = bits == 0x7bff ? 65536.0 : half_value(above);  // the step where infinity begins
    const auto middle = static_cast<float>((half_value(half) + upper) / 2);
    for (const std::uint16_t sign : {0x0000, 0x8000}) {
      const float s = sign ? -1.0f : 1.0f;
      ASSERT_EQ(f32_to_f16(s * std::nextafter(middle, 0.0f)), half | sign) << bits;
      ASSERT_EQ(f32_to_f16(s * std::nextafter(middle, 1e9f)), above | sign) << bits;
      ASSERT_EQ(f32_to_f16(s * middle), (bits % 2 == 0 ? half : above) | sign) << bits;
    }
  }
  EXPECT_EQ(f32_to_f16(1e30f), 0x7c00);
  EXPECT_EQ(f32_to_f16(-INFINITY), 0xfc00);
  EXPECT_EQ(f32_to_f16(std::numeric_limits<float>::denorm_min()), 0);
}

TEST(BFloat, EveryPatternAndNearestEven) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const auto bfloat = static_cast<std::uint16_t>(bits);
    const float value = bf16_to_f32(bfloat);
    ASSERT_EQ(std::bit_cast<std::uint32_t>(value), bits << 16);
    if (std::isnan(value)) {
      ASSERT_EQ(f32_to_bf16(value), bfloat | 0x40) << bits;
      continue;
    }
    ASSERT_EQ(f32_to_bf16(value), bfloat) << bits;
    if (std::isinf(value)) continue;
    const std::uint32_t middle = bits << 16 | 0x8000;
    ASSERT_EQ(f32_to_bf16(std::bit_cast<float>(middle - 1)), bfloat);
    ASSERT_EQ(f32_to_bf16(std::bit_cast<float>(middle)), bits % 2 == 0 ? bfloat : bfloat + 1);
    ASSERT_EQ(f32_to_bf16(std::bit_cast<float>(middle + 1)), bfloat + 1);
  }
  // A NaN whose payload lies in the dropped bits alone stays a NaN.
  EXPECT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16(std::bit_cast<float>(0x7f800001u)))));
  EXPECT_TRUE(std::isnan(f16_to_f32(f32_to_f16(std::bit_cast<float>(0xff800001u)))));
}

}  // namespace
}  // namespace millrace
