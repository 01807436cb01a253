// Softmax and divergence against plain sums in long double.
#include "app/measure/distribution.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace millrace::measure {
namespace {

std::vector<float> random_logits(std::size_t size, unsigned seed, float spread = 4) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, spread);
  std::vector<float> logits(size);
  for (float& logit : logits) logit = normal(random);
  return logits;
}

std::vector<long double> plain_log_softmax(const std::vector<float>& logits) {
  long double total = 0;
  for (const float logit : logits) total += std::exp(static_cast<long double>(logit));
  std::vector<long double> out;
  for (const float logit : logits) out.push_back(logit - std::log(total));
  return out;
}

TEST(Distribution, LogProbabilitiesAreThoseOfAPlainSum) {
  Distributions math(nullptr);
  for (const std::size_t size : {1u, 2u, 777u, 8192u, 8193u, 20001u}) {
    const std::vector<float> logits = random_logits(size, static_cast<unsigned>(size));
    const std::vector<long double> expected = plain_log_softmax(logits);
    const LogSum sum = math.log_sum(logits);
    for (std::size_t i = 0; i < size; i += 1 + size / 50)
      EXPECT_NEAR(sum.log_probability(logits[i]), static_cast<double>(expected[i]), 1e-6);
    EXPECT_EQ(logits[static_cast<std::size_t>(sum.top)], sum.largest);
    EXPECT_GE(sum.log_sum, 0);
  }
}

TEST(Distribution, DivergenceIsThePlainSumAndNeverNegative) {
  Distributions math(nullptr);
  const std::vector<float> p = random_logits(2263, 1);
  const std::vector<long double> log_p = plain_log_softmax(p);
  const std::vector<float> log_p_floats(log_p.begin(), log_p.end());
  EXPECT_LT(math.divergence(log_p_floats, p, math.log_sum(p)), 1e-9);
  for (const float difference : {1e-3f, 0.1f, 1.0f}) {
    std::vector<float> q = random_logits(2263, 2);
    for (std::size_t i = 0; i < q.size(); ++i) q[i] = p[i] + difference * q[i];
    const std::vector<long double> log_q = plain_log_softmax(q);
    long double expected = 0;
    for (std::size_t i = 0; i < q.size(); ++i) expected += std::exp(log_p[i]) * (log_p[i] - log_q[i]);
    const double found = math.divergence(log_p_floats, q, math.log_sum(q));
    EXPECT_GE(found, 0);
    EXPECT_NEAR(found, static_cast<double>(expected), 1e-3 * static_cast<double>(expected) + 1e-9);
  }
}

TEST(Distribution, ThreadsChangeNoBit) {
  const std::vector<float> p = random_logits(100003, 3), q = random_logits(100003, 4);
  const std::vector<long double> log_p = plain_log_softmax(p);
  const std::vector<float> log_p_floats(log_p.begin(), log_p.end());
  Distributions alone(nullptr);
  const LogSum sum = alone.log_sum(q);
  const double divergence = alone.divergence(log_p_floats, q, sum);
  for (const int threads : {2, 3}) {
    ThreadPool pool({.threads = threads, .pin = false});
    Distributions together(&pool);
    EXPECT_EQ(together.log_sum(q).log_sum, sum.log_sum);
    EXPECT_EQ(together.divergence(log_p_floats, q, sum), divergence);
  }
}

}  // namespace
}  // namespace millrace::measure
