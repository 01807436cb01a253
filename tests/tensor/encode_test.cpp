#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <vector>

#include "tensor/codec.h"

namespace millrace {
namespace {

constexpr DType kEncodable[] = {DType::f32,  DType::f16,  DType::bf16, DType::q4_0,
                                DType::q8_0, DType::q4_k, DType::q6_k};

std::vector<float> round_trip(DType dtype, const std::vector<float>& x) {
  const auto cols = static_cast<std::int64_t>(x.size());
  std::vector<std::byte> bytes(static_cast<std::size_t>(row_bytes(dtype, cols)));
  std::vector<float> out(x.size());
  encode_row(dtype, x.data(), cols, bytes.data());
  decode_row(dtype, bytes.data(), cols, out.data());
  return out;
}

double relative_error(const std::vector<float>& x, const std::vector<float>& y) {
  double error = 0, squares = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double difference = static_cast<double>(x[i]) - y[i];
    error += difference * difference;
    squares += static_cast<double>(x[i]) * x[i];
  }
  return std::sqrt(error / squares);
}

std::vector<float> sample(std::size_t n, const std::function<float(std::mt19937&)>& draw) {
  std::mt19937 random(20261121);
  std::vector<float> x(n);
  for (float& value : x) value = draw(random);
  return x;
}

std::vector<float> gaussian(std::size_t n, float deviation) {
  std::normal_distribution<float> normal(0, deviation);
  return sample(n, [&](std::mt19937& random) { return normal(random); });
}

TEST(Encode, ExactlyTheTypesItPromises) {
  for (const DTypeInfo& row : all_dtypes()) {
    const bool listed = std::find(std::begin(kEncodable), std::end(kEncodable), row.dtype) != std::end(kEncodable);
    EXPECT_EQ(can_encode(row.dtype), listed) << row.name;
  }
}

TEST(Encode, RelativeErrorOnGaussianWeights) {
  // The bounds stand a few percent above the measured errors, and below llama.cpp's reference quantizer's for the
  // K-quants (0.0714 and 0.0178 on such data): a worse scale search fails here.
  const std::vector<float> x = gaussian(256 * 1024, 0.02f);
  EXPECT_EQ(relative_error(x, round_trip(DType::f32, x)), 0);
  EXPECT_LT(relative_error(x, round_trip(DType::f16, x)), 0.0003);
  EXPECT_LT(relative_error(x, round_trip(DType::bf16, x)), 0.0018);
  EXPECT_LT(relative_error(x, round_trip(DType::q8_0, x)), 0.0055);
  EXPECT_LT(relative_error(x, round_trip(DType::q6_k, x)), 0.0174);
  EXPECT_LT(relative_error(x, round_trip(DType::q4_k, x)), 0.0710);
  EXPECT_LT(relative_error(x, round_trip(DType::q4_0, x)), 0.0880);
}

TEST(Encode, RelativeErrorOnOtherShapes) {
  std::student_t_distribution<float> heavy(4);
  std::exponential_distribution<float> skewed(1);
  const auto tails = sample(64 * 1024, [&](std::mt19937& random) { return 0.02f * heavy(random); });
  const auto positive = sample(64 * 1024, [&](std::mt19937& random) { return 0.5f + skewed(random); });
  EXPECT_LT(relative_error(tails, round_trip(DType::q4_k, tails)), 0.090);
  EXPECT_LT(relative_error(tails, round_trip(DType::q6_k, tails)), 0.024);
  EXPECT_LT(relative_error(positive, round_trip(DType::q4_k, positive)), 0.070);
  EXPECT_LT(relative_error(positive, round_trip(DType::q6_k, positive)), 0.024);
}

TEST(Encode, ErrorDoesNotDependOnScale) {
  const double q4 = relative_error(gaussian(4096, 1), round_trip(DType::q4_k, gaussian(4096, 1)));
  const double q6 = relative_error(gaussian(4096, 1), round_trip(DType::q6_k, gaussian(4096, 1)));
  for (const float deviation : {0.002f, 0.05f, 30.0f, 1e4f}) {
    const std::vector<float> x = gaussian(4096, deviation);
    EXPECT_LT(relative_error(x, round_trip(DType::q4_k, x)), 1.1 * q4) << deviation;
    EXPECT_LT(relative_error(x, round_trip(DType::q6_k, x)), 1.1 * q6 + 0.002) << deviation;
  }
}

TEST(Encode, NoElementIsFartherThanTheStepAllows) {
  // An upper bound on single errors: a level's half step, and what clipping to the outermost level may cost.
  const std::vector<float> x = gaussian(32 * 512, 1);
  const std::vector<float> q8 = round_trip(DType::q8_0, x), q4 = round_trip(DType::q4_0, x);
  for (std::size_t block = 0; block < x.size(); block += 32) {
    float largest = 0;
    for (std::size_t i = block; i < block + 32; ++i) largest = std::max(largest, std::fabs(x[i]));
    for (std::size_t i = block; i < block + 32; ++i) {
      ASSERT_LE(std::fabs(x[i] - q8[i]), largest / 127 * 0.502f);
      ASSERT_LE(std::fabs(x[i] - q4[i]), largest / 8 * 1.01f);
    }
  }
}

TEST(Encode, ConstantsAndZeros) {
  for (const DType dtype : kEncodable) {
    const std::vector<float> zeros = round_trip(dtype, std::vector<float>(512, 0.0f));
    for (const float value : zeros) ASSERT_EQ(value, 0.0f) << info(dtype).name;
    for (const float constant : {1.0f, -1.0f, 0.03125f, -640.0f}) {
      for (const float value : round_trip(dtype, std::vector<float>(512, constant))) {
        ASSERT_NEAR(value, constant, std::fabs(constant) * 0.004f) << info(dtype).name;
      }
    }
  }
}

TEST(Encode, OneOutlierLeavesTheOtherSubBlocksAlone) {
  std::vector<float> x = gaussian(256, 1);
  x[40] = 12;
  for (const DType dtype : {DType::q4_k, DType::q6_k}) {
    const std::vector<float> y = round_trip(dtype, x);
    EXPECT_NEAR(y[40], 12, 0.6);
    EXPECT_LT(relative_error({x.begin() + 64, x.end()}, {y.begin() + 64, y.end()}), 0.12) << info(dtype).name;
  }
}

TEST(Encode, AlreadyQuantizedWeightsStayNearlyThemselves) {
  // Values that lie on a quantizer's own grid: a second round trip must not drift.
  const std::vector<float> x = gaussian(64 * 256, 0.02f);
  for (const DType dtype : {DType::q4_0, DType::q8_0, DType::q4_k, DType::q6_k}) {
    const std::vector<float> once = round_trip(dtype, x), twice = round_trip(dtype, once);
    EXPECT_LT(relative_error(once, twice), 0.5 * relative_error(x, once)) << info(dtype).name;
  }
}

TEST(Encode, NonFiniteAndExtremeInputsAreSafe) {
  constexpr float kInf = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();
  const float specials[] = {kInf, -kInf, kNan, 3.4e38f, -3.4e38f, 1e-45f, -1e-38f, 6.5e4f, -1e30f, 1e8f};
  std::mt19937 random(5);
  for (const DType dtype : {DType::q4_0, DType::q8_0, DType::q4_k, DType::q6_k}) {
    for (int round = 0; round < 400; ++round) {
      std::vector<float> x = gaussian(256, 0.02f);
      const int count = round % 2 ? 256 : 1 + round % 5;
      for (int i = 0; i < count; ++i) x[random() % 256] = specials[(round / 2 + (round % 3 ? i : 0)) % 10];
      for (const float value : round_trip(dtype, x)) {
        ASSERT_TRUE(std::isfinite(value)) << info(dtype).name << " round " << round;
      }
    }
  }
  for (const DType dtype : {DType::f16, DType::bf16}) {
    const std::vector<float> y = round_trip(dtype, {kInf, -kInf, kNan});
    EXPECT_EQ(y[0], kInf);
    EXPECT_EQ(y[1], -kInf);
    EXPECT_TRUE(std::isnan(y[2]));
  }
}

TEST(Encode, WritesExactlyTheRow) {
  const std::vector<float> x = gaussian(3 * 256, 1);
  for (const DType dtype : kEncodable) {
    const auto bytes = static_cast<std::size_t>(row_bytes(dtype, 3 * 256));
    std::vector<std::byte> aligned(bytes), odd(bytes + 2, std::byte{0xa5});
    encode_row(dtype, x.data(), 3 * 256, aligned.data());
    encode_row(dtype, x.data(), 3 * 256, odd.data() + 1);
    EXPECT_EQ(std::memcmp(aligned.data(), odd.data() + 1, bytes), 0) << info(dtype).name;
    EXPECT_EQ(odd.front(), std::byte{0xa5});
    EXPECT_EQ(odd.back(), std::byte{0xa5});
  }
}

}  // namespace
}  // namespace millrace
