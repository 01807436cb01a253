#include "kernels/cpu/fused.h"

#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <random>

#include "device/cpu.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace millrace::kernels {
namespace {

TEST(Fused, RoundsOnceWhereTwiceIsAnother) {
  // The product is 1 + 2^-12 + 2^-26 and lies on no float; with the addend the sum is just above the middle of two.
  const float a = 1 + 0x1p-13f, tiny = 0x1p-60f;
  EXPECT_EQ(fused_in_doubles(a, a, 0), 1 + 0x1p-12f);
  EXPECT_EQ(fused_in_doubles(1 + 0x1p-12f, 1 - 0x1p-12f, 0x1p-24f), 1.0f);
  EXPECT_EQ(fused_in_doubles(1, 1 + 0x1p-23f, 0x1p-24f), 1 + 0x1p-22f) << "a tie goes to the even one";
  EXPECT_EQ(fused_in_doubles(tiny, tiny, 1 + 0x1p-23f), 1 + 0x1p-23f);
  EXPECT_EQ(fused_in_doubles(tiny, 1, 0x1p-149f), 0x1p-60f);
  EXPECT_EQ(fused_in_doubles(0x1p-80f, 0x1p-70f, 0x1p-149f), 0x1p-148f) << "half of the least float, to the even one";
}

TEST(Fused, KnowsNoNumbersAndZeros) {
  const float infinite = std::numeric_limits<float>::infinity(), most = std::numeric_limits<float>::max();
  EXPECT_EQ(fused_in_doubles(infinite, 2, 1), infinite);
  EXPECT_EQ(fused_in_doubles(most, 2, 0), infinite);
  EXPECT_EQ(fused_in_doubles(most, 2, -most), most);
  EXPECT_TRUE(std::isnan(fused_in_doubles(infinite, 0, 1)));
  EXPECT_TRUE(std::isnan(fused_in_doubles(infinite, 1, -infinite)));
  EXPECT_FALSE(std::signbit(fused_in_doubles(1, 1, -1)));
  EXPECT_TRUE(std::signbit(fused_in_doubles(-0.0f, 1, -0.0f)));
}

#if defined(__x86_64__)

[[gnu::target("fma")]] float by_instruction(float a, float b, float c) {
  return _mm_cvtss_f32(_mm_fmadd_ss(_mm_set_ss(a), _mm_set_ss(b), _mm_set_ss(c)));
}

TEST(Fused, IsTheInstructionsToTheBit) {
  if (device::best_isa() == device::Isa::plain) GTEST_SKIP() << "this processor has no such instruction";
  std::mt19937 random(1);
  const auto any = [&] { return std::bit_cast<float>(static_cast<std::uint32_t>(random())); };
  const auto near = [&](float x) {  // so that sums cancel
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(x) + static_cast<std::uint32_t>(random() % 64) - 32u);
  };
  int wrong = 0;
  for (int i = 0; i < 4'000'000; ++i) {
    const float a = any(), b = any(), c = i % 2 == 0 ? any() : near(-(a * b));
    const float ours = fused_in_doubles(a, b, c), theirs = by_instruction(a, b, c);
    const bool same = std::bit_cast<std::uint32_t>(ours) == std::bit_cast<std::uint32_t>(theirs) ||
                      (std::isnan(ours) && std::isnan(theirs));
    if (!same && ++wrong < 10) ADD_FAILURE() << a << " * " << b << " + " << c << ": " << ours << ", not " << theirs;
  }
  EXPECT_EQ(wrong, 0);
}

#endif

}  // namespace
}  // namespace millrace::kernels
