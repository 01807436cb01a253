#include "tensor/kv_codec.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "tensor/codec.h"

namespace millrace {
namespace {

float squared_error(const float* x, const KvGroup& group) {
  float sum = 0;
  for (int i = 0; i < kKvGroup; ++i) {
    const float missed = x[i] - f16_to_f32(group.d) * static_cast<float>(group.q[i]);
    sum += missed * missed;
  }
  return sum;
}

/// What the first of the scales gives.
float error_of_range(const float* x) {
  float most = -1e30f, least = 1e30f;
  for (int i = 0; i < kKvGroup; ++i) most = std::max(most, x[i]), least = std::min(least, x[i]);
  const float d = f16_to_f32(f32_to_f16((-least >= most ? least : most) / -8));
  KvGroup group;
  group.d = f32_to_f16(d);
  for (int i = 0; i < kKvGroup; ++i)
    group.q[i] = static_cast<std::int8_t>(std::nearbyint(std::min(std::max(x[i] * (1 / d), -8.0f), 7.0f)));
  return squared_error(x, group);
}

TEST(KvCodec, NumbersComeBackWithinAFewHundredths) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  double squares = 0, missed = 0, of_range = 0;
  for (int round = 0; round < 2000; ++round) {
    float x[kKvGroup];
    for (float& value : x) value = normal(random), squares += value * value;
    const KvGroup group = encode_kv_q4(x);
    for (const int q : group.q) EXPECT_TRUE(q >= -8 && q <= 7);
    const float error = squared_error(x, group), range = error_of_range(x);
    EXPECT_LE(error, range * 1.00001f);
    missed += error;
    of_range += range;
  }
  EXPECT_LT(missed / squares, 0.0070);
  EXPECT_LT(missed / of_range, 0.94);
}

TEST(KvCodec, LevelsAreExact) {
  float x[kKvGroup];
  for (int i = 0; i < kKvGroup; ++i) x[i] = 0.25f * static_cast<float>(i % 16 - 8);
  EXPECT_EQ(squared_error(x, encode_kv_q4(x)), 0);
  for (float& value : x) value = -value;
  EXPECT_EQ(squared_error(x, encode_kv_q4(x)), 0);
  const float zeros[kKvGroup] = {};
  for (const int q : encode_kv_q4(zeros).q) EXPECT_EQ(q, 0);
}

TEST(KvCodec, WhatIsNoNumberDoesNoHarm) {
  float x[kKvGroup] = {1, std::numeric_limits<float>::quiet_NaN(), -2};
  KvGroup group = encode_kv_q4(x);
  EXPECT_EQ(group.q[1], 0);
  EXPECT_NEAR(f16_to_f32(group.d) * static_cast<float>(group.q[2]), -2, 0.2);
  x[5] = std::numeric_limits<float>::infinity();
  group = encode_kv_q4(x);
  EXPECT_TRUE(std::isfinite(f16_to_f32(group.d)));
  EXPECT_GT(std::abs(f16_to_f32(group.d) * static_cast<float>(group.q[5])), 1e5f);
}

}  // namespace
}  // namespace millrace
