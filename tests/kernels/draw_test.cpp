#include "kernels/draw.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "kernels/kernels.h"

namespace millrace::kernels {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();
constexpr std::uint64_t kPoints = std::uint64_t{1} << 53;

/// The probabilities that the header describes, on a full sorted copy, in double.
std::vector<double> slow_way(const std::vector<float>& logits, const DrawRule& rule) {
  std::vector<std::size_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0u);
  std::erase_if(order, [&](std::size_t i) { return std::isnan(logits[i]); });
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return logits[a] > logits[b]; });
  const double best = logits[order[0]];
  const auto weight = [&](std::size_t i, double t) { return std::exp((double{logits[i]} - best) / t); };
  double total = 0, held = 0;
  for (const std::size_t i : order) total += weight(i, 1);
  std::size_t kept = 0;
  while (kept < order.size() &&
         (kept == 0 || held < rule.top_p * total || logits[order[kept]] == logits[order[kept - 1]]))
    held += weight(order[kept++], 1);
  if (rule.top_p < 1) order.resize(kept);
  std::erase_if(order, [&](std::size_t i) { return weight(i, 1) < rule.min_p; });
  std::vector<double> result(logits.size());
  total = 0;
  for (const std::size_t i : order) total += result[i] = weight(i, rule.temperature);
  for (double& one : result) one /= total;
  return result;
}

/// Points spread evenly draw each token as often as it is likely.
void expect_shares(const std::vector<float>& logits, DrawRule rule) {
  constexpr int kDraws = 2000;
  const std::vector<double> expected = slow_way(logits, rule);
  std::vector<int> drawn(logits.size());
  std::vector<std::uint64_t> scratch;
  for (int i = 0; i < kDraws; ++i) {
    rule.point = kPoints / kDraws * static_cast<std::uint64_t>(i) + 12345;
    ++drawn[static_cast<std::size_t>(draw(logits, rule, scratch))];
  }
  for (std::size_t i = 0; i < logits.size(); ++i)
    EXPECT_NEAR(drawn[i], expected[i] * kDraws, 1.01) << "token " << i << " of " << logits.size();
}

TEST(Draw, GivesEachTokenItsShare) {
  std::mt19937 random(5);
  for (const std::size_t n : {1u, 2u, 31u, 300u}) {
    std::normal_distribution<float> normal(0, 3);
    std::vector<float> logits(n);
    for (float& logit : logits) logit = normal(random);
    for (const float temperature : {0.3f, 1.0f, 2.5f})
      for (const float top_p : {1.0f, 0.9f, 0.31f, 0.0f})
        for (const float min_p : {0.0f, 0.02f, 1.0f}) expect_shares(logits, {temperature, top_p, min_p, 0});
  }
}

TEST(Draw, KeepsAllThatAreAsLikelyAsTheLastOfTopP) {
  expect_shares({0, 3, 3, 3, -0.0f, 1}, {1, 0.4f, 0, 0});
  expect_shares(std::vector<float>(300, -2.5f), {1, 0.5f, 0, 0});
}

TEST(Draw, LeavesOutWhatIsNoNumberOrForbidden) {
  std::vector<float> logits = {kNan, 1, -kInfinity, 2, kNan, -kInfinity, 1.5f};
  expect_shares(logits, {1, 1, 0, 0});
  expect_shares(logits, {0.7f, 0.8f, 0.1f, 0});
}

TEST(Draw, TakesTheLargestWhereNothingHasAWeight) {
  std::vector<std::uint64_t> scratch;
  EXPECT_EQ(draw(std::vector<float>{-kInfinity, kNan, -kInfinity}, {1, 1, 0, 99}, scratch), 0);
  EXPECT_EQ(draw(std::vector<float>{1, kInfinity, 3, kInfinity}, {1, 0.5f, 0.1f, kPoints - 1}, scratch), 1);
}

TEST(Draw, ReachesBothEnds) {
  std::vector<std::uint64_t> scratch;
  const std::vector<float> logits(100'000, 1.0f);
  EXPECT_EQ(draw(logits, {1, 1, 0, 0}, scratch), 0);
  EXPECT_EQ(draw(logits, {1, 1, 0, kPoints - 1}, scratch), 99'999);
}

}  // namespace
}  // namespace millrace::kernels
