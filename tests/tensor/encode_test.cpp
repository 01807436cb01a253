#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "tensor/codec.h"
#include "tensor/encode_blocks.h"

namespace millrace {
namespace {

std::vector<DType> encodable() {
  std::vector<DType> found;
  for (const DTypeInfo& row : all_dtypes())
    if (can_encode(row.dtype)) found.push_back(row.dtype);
  return found;
}

std::vector<DType> quantized() {
  std::vector<DType> found = encodable();
  std::erase_if(found, [](DType dtype) { return info(dtype).block_elements == 1; });
  return found;
}

std::vector<float> round_trip(DType dtype, const std::vector<float>& x, const float* importance = nullptr) {
  const auto cols = static_cast<std::int64_t>(x.size());
  std::vector<std::byte> bytes(static_cast<std::size_t>(row_bytes(dtype, cols)));
  std::vector<float> out(x.size());
  encode_row(dtype, x.data(), cols, bytes.data(), importance);
  decode_row(dtype, bytes.data(), cols, out.data());
  return out;
}

double relative_error(const std::vector<float>& x, const std::vector<float>& y,
                      const std::vector<float>& importance = {}) {
  double error = 0, squares = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double difference = static_cast<double>(x[i]) - y[i], weight = importance.empty() ? 1 : importance[i];
    error += weight * difference * difference;
    squares += weight * x[i] * x[i];
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

TEST(Encode, EveryComputableType) {
  for (const DTypeInfo& row : all_dtypes()) EXPECT_EQ(can_encode(row.dtype), row.computable) << row.name;
  EXPECT_EQ(quantized().size(), 25u);
}

TEST(Encode, RelativeErrorOnGaussianWeights) {
  // The bounds stand a percent above the measured errors: a worse search fails here.
  const std::vector<float> x = gaussian(256 * 1024, 0.02f);
  const std::pair<DType, double> bounds[] = {
      {DType::f16, 0.0003},     {DType::bf16, 0.0018},    {DType::q8_0, 0.0055},   {DType::q6_k, 0.0172},
      {DType::q5_k, 0.0352},    {DType::q5_1, 0.0340},    {DType::q5_0, 0.0405},   {DType::q4_k, 0.0710},
      {DType::q4_1, 0.0704},    {DType::iq4_nl, 0.0741},  {DType::iq4_xs, 0.0747}, {DType::q4_0, 0.0818},
      {DType::mxfp4, 0.113},    {DType::nvfp4, 0.09},     {DType::q3_k, 0.1448},   {DType::q2_k, 0.2665},
      {DType::iq3_s, 0.1302},   {DType::iq3_xxs, 0.1785}, {DType::iq2_s, 0.2412},  {DType::iq2_xs, 0.2880},
      {DType::iq2_xxs, 0.3302}, {DType::iq1_m, 0.4165},   {DType::iq1_s, 0.4490},  {DType::tq1_0, 0.4375},
      {DType::tq2_0, 0.4375},   {DType::q1_0, 0.61},      {DType::q2_0, 0.40}};
  EXPECT_EQ(relative_error(x, round_trip(DType::f32, x)), 0);
  for (const auto& [dtype, bound] : bounds)
    EXPECT_LT(relative_error(x, round_trip(dtype, x)), bound) << info(dtype).name;
  EXPECT_EQ(std::size(bounds) + 1, encodable().size());
}

TEST(Encode, ImportanceTakesErrorWhereItCounts) {
  // Columns that count a hundred times as much as others, as those of real activations do.
  const std::vector<float> x = gaussian(64 * 256, 0.02f);
  std::normal_distribution<float> normal(0, 2);
  const auto importance = sample(x.size(), [&](std::mt19937& random) { return std::exp(normal(random)); });
  for (const DType dtype : quantized()) {
    const std::vector<float> alike = round_trip(dtype, x), weighed = round_trip(dtype, x, importance.data());
    const double before = relative_error(x, alike, importance), after = relative_error(x, weighed, importance);
    const double least_gain = dtype == DType::q8_0 ? 1 : dtype == DType::mxfp4 || dtype == DType::nvfp4 ? 0.99 : 0.8;
    EXPECT_LE(after, least_gain * before) << info(dtype).name;
    // Only ratios count, and none of them turns a weight into anything.
    std::vector<float> scaled = importance;
    for (float& value : scaled) value *= 1024;
    EXPECT_EQ(round_trip(dtype, x, scaled.data()), weighed) << info(dtype).name;
    const std::vector<float> nothing(x.size(), 0.0f);
    EXPECT_EQ(round_trip(dtype, x, nothing.data()), alike) << info(dtype).name;
    scaled.assign(x.size(), 0.0f);
    for (std::size_t i = 0; i < scaled.size(); i += 7) scaled[i] = 1e30f;
    EXPECT_LT(relative_error(x, round_trip(dtype, x, scaled.data())), 0.75) << info(dtype).name;
  }
}

/// The same file on every machine: whichever vectors it has, and however many blocks are worked on at once.
TEST(Encode, WidthsOfVectorsAndCountsOfBlocksChangeNoByte) {
  std::student_t_distribution<float> heavy(3);
  const auto x = sample(37 * 256, [&](std::mt19937& random) { return 0.02f * heavy(random); });
  const auto importance = sample(x.size(), [&](std::mt19937& random) { return std::fabs(heavy(random)); });
  std::vector<EncodeBlocks> widths = {plain::encode_blocks, fastest_encode_blocks()};
#if defined(__x86_64__)
  if (fastest_encode_blocks() == avx512::encode_blocks) widths.push_back(avx2::encode_blocks);
#endif
  for (const DType dtype : quantized()) {
    if (dtype == DType::q8_0) continue;  // not searched for
    for (const float* weights : {static_cast<const float*>(nullptr), importance.data()}) {
      const auto encode = [&](EncodeBlocks encode_blocks, std::size_t first, std::size_t count) {
        std::vector<std::byte> out(static_cast<std::size_t>(row_bytes(dtype, static_cast<std::int64_t>(count))));
        encode_blocks(dtype, x.data() + first, weights == nullptr ? nullptr : weights + first,
                      static_cast<std::int64_t>(count), out.data());
        return out;
      };
      const std::vector<std::byte> whole = encode(widths.front(), 0, x.size());
      for (const EncodeBlocks encode_blocks : widths) EXPECT_EQ(encode(encode_blocks, 0, x.size()), whole);
      std::vector<std::byte> joined;
      for (std::size_t at = 0, step = 256; at < x.size(); at += step) {
        step = std::min<std::size_t>(256 * (1 + at / 256 % 3), x.size() - at);
        const std::vector<std::byte> part = encode(widths.back(), at, step);
        joined.insert(joined.end(), part.begin(), part.end());
      }
      EXPECT_EQ(joined, whole) << info(dtype).name;
    }
  }
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

TEST(Encode, NoElementOfQ8IsFartherThanHalfAStep) {
  const std::vector<float> x = gaussian(32 * 512, 1);
  const std::vector<float> q8 = round_trip(DType::q8_0, x);
  for (std::size_t block = 0; block < x.size(); block += 32) {
    float largest = 0;
    for (std::size_t i = block; i < block + 32; ++i) largest = std::max(largest, std::fabs(x[i]));
    for (std::size_t i = block; i < block + 32; ++i) {
      ASSERT_LE(std::fabs(x[i] - q8[i]), largest / 127 * 0.502f);
    }
  }
}

TEST(Encode, ConstantsAndZeros) {
  for (const DType dtype : encodable()) {
    const std::vector<float> zeros = round_trip(dtype, std::vector<float>(512, 0.0f));
    for (const float value : zeros) ASSERT_EQ(value, 0.0f) << info(dtype).name;
    for (const float constant : {1.0f, -1.0f, 0.03125f, -640.0f}) {
      if (dtype == DType::mxfp4 && constant == -640.0f) continue;  // between two powers of two and their levels
      for (const float value : round_trip(dtype, std::vector<float>(512, constant))) {
        ASSERT_NEAR(value, constant, std::fabs(constant) * 0.004f) << info(dtype).name;
      }
    }
  }
}

TEST(Encode, OneOutlierLeavesTheOtherSubBlocksAlone) {
  std::vector<float> x = gaussian(256, 1);
  x[40] = 12;
  for (const DType dtype : {DType::q4_k, DType::q5_k, DType::q6_k, DType::iq4_xs}) {
    const std::vector<float> y = round_trip(dtype, x);
    EXPECT_NEAR(y[40], 12, 0.7);
    EXPECT_LT(relative_error({x.begin() + 64, x.end()}, {y.begin() + 64, y.end()}), 0.12) << info(dtype).name;
  }
}

TEST(Encode, AlreadyQuantizedWeightsStayNearlyThemselves) {
  // Values that lie on a quantizer's own grid: a second round trip must not drift.
  const std::vector<float> x = gaussian(64 * 256, 0.02f);
  for (const DType dtype : quantized()) {
    const std::vector<float> once = round_trip(dtype, x), twice = round_trip(dtype, once);
    EXPECT_LT(relative_error(once, twice), 0.5 * relative_error(x, once)) << info(dtype).name;
  }
}

TEST(Encode, NonFiniteAndExtremeInputsAreSafe) {
  constexpr float kInf = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();
  const float specials[] = {kInf, -kInf, kNan, 3.4e38f, -3.4e38f, 1e-45f, -1e-38f, 6.5e4f, -1e30f, 1e8f};
  std::mt19937 random(5);
  for (const DType dtype : quantized()) {
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
  for (const DType dtype : encodable()) {
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
