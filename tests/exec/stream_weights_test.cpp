#include "exec/stream_weights.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

namespace millrace::exec {
namespace {

std::vector<float> some_floats(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> floats(count);
  for (float& one : floats) one = normal(random);
  return floats;
}

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

/// What Ops::weigh_streams() says, in double and by the letter.
std::vector<double> weights_by_definition(const StreamWeighing& of, const std::vector<float>& scales,
                                          const std::vector<float>& bias, const std::vector<float>& x) {
  const auto n = static_cast<std::size_t>(of.streams);
  std::vector<double> out(x.size());
  for (std::size_t i = 0; i < n; ++i) {
    out[i] = sigmoid(double{x[i]} * scales[0] + bias[i]) + of.eps;
    out[n + i] = 2 * sigmoid(double{x[n + i]} * scales[1] + bias[n + i]);
  }
  std::vector<std::vector<double>> stays(n, std::vector<double>(n));  // [source][target]
  for (std::size_t s = 0; s < n; ++s) {
    double sum = 0;
    for (std::size_t t = 0; t < n; ++t) {
      const std::size_t at = 2 * n + s * n + t;
      sum += stays[s][t] = std::exp(double{x[at]} * scales[2] + bias[at]);
    }
    for (std::size_t t = 0; t < n; ++t) stays[s][t] = stays[s][t] / sum + of.eps;
  }
  for (std::int64_t turn = 0; turn < of.iterations; ++turn) {
    for (std::size_t s = 0; s < n && turn > 0; ++s) {
      double sum = of.eps;
      for (std::size_t t = 0; t < n; ++t) sum += stays[s][t];
      for (std::size_t t = 0; t < n; ++t) stays[s][t] /= sum;
    }
    for (std::size_t t = 0; t < n; ++t) {
      double sum = of.eps;
      for (std::size_t s = 0; s < n; ++s) sum += stays[s][t];
      for (std::size_t s = 0; s < n; ++s) stays[s][t] /= sum;
    }
  }
  for (std::size_t s = 0; s < n; ++s)
    for (std::size_t t = 0; t < n; ++t) out[2 * n + t * n + s] = stays[s][t];
  return out;
}

TEST(StreamWeights, AreWhatTheContractSays) {
  const std::vector<float> scales{0.7f, 1.3f, 2.1f};
  for (const std::int64_t streams : {2, 3, 4, 16}) {
    for (const std::int64_t iterations : {1, 2, 20}) {
      const StreamWeighing of{streams, iterations, 1e-6f};
      const auto columns = static_cast<std::size_t>(of.whole());
      std::vector<float> x = some_floats(columns, 1);
      const std::vector<float> bias = some_floats(columns, 2);
      const std::vector<double> wanted = weights_by_definition(of, scales, bias, x);
      weigh_streams(of, scales.data(), bias.data(), x.data());
      for (std::size_t i = 0; i < columns; ++i)
        EXPECT_NEAR(x[i], wanted[i], 1e-6 + 2e-5 * wanted[i]) << streams << " streams, " << iterations << ", " << i;
    }
  }
}

TEST(StreamWeights, WhatStaysOfAllStreamsIsAsMuchAsWasThere) {
  const StreamWeighing of{4, 20, 1e-6f};
  const std::vector<float> scales{1, 1, 1}, bias(static_cast<std::size_t>(of.whole()), 0.0f);
  std::vector<float> x = some_floats(static_cast<std::size_t>(of.whole()), 3);
  weigh_streams(of, scales.data(), bias.data(), x.data());
  for (std::size_t i = 0; i < 4; ++i) {
    float of_target = 0, of_source = 0;
    for (std::size_t j = 0; j < 4; ++j) {
      of_target += x[8 + i * 4 + j];
      of_source += x[8 + j * 4 + i];
    }
    EXPECT_NEAR(of_target, 1, 1e-3);
    EXPECT_NEAR(of_source, 1, 1e-3);
  }
}

TEST(StreamWeights, OfReadsAloneAreTheFirstOfThem) {
  const StreamWeighing of{4, 20, 1e-6f};
  const std::vector<float> scales{0.7f, 1, 1}, bias = some_floats(static_cast<std::size_t>(of.whole()), 5);
  std::vector<float> all = some_floats(static_cast<std::size_t>(of.whole()), 4), reads(all.begin(), all.begin() + 4);
  weigh_streams(of, scales.data(), bias.data(), all.data());
  weigh_read_streams(of, scales[0], bias.data(), reads.data());
  all.resize(4);
  EXPECT_EQ(reads, all);
}

}  // namespace
}  // namespace millrace::exec
