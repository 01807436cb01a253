#include "exec/expert_choice.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

namespace millrace::exec {
namespace {

struct Choice {
  std::vector<std::int32_t> chosen;
  std::vector<float> weight;
};

Choice choose(const Experts& experts, std::vector<float> logits, const std::vector<float>& bias = {}) {
  Choice choice;
  choice.chosen.resize(static_cast<std::size_t>(experts.top_k));
  choice.weight.resize(static_cast<std::size_t>(experts.top_k));
  std::vector<float> selection(logits.size());
  choose_experts(kernels::table(kernels::Isa::plain), experts, bias.empty() ? nullptr : bias.data(), logits.data(),
                 selection.data(), choice.chosen.data(), choice.weight.data());
  return choice;
}

Experts of(std::int32_t count, std::int32_t top_k, Gating gating = Gating::softmax) {
  Experts experts;
  experts.count = count;
  experts.top_k = top_k;
  experts.gating = gating;
  return experts;
}

TEST(ExpertChoice, WeightsAreThoseOfTheRoutersScores) {
  const std::vector<float> logits{4, 3, 2, 0}, bias{0, -2, 2, 0};  // the second gives way to the third
  for (const Gating gating : {Gating::softmax, Gating::sigmoid, Gating::softmax_chosen, Gating::sqrt_softplus}) {
    const Choice all = choose(of(4, 4, gating), logits), two = choose(of(4, 2, gating), logits, bias);
    std::vector<std::int32_t> chosen = two.chosen;
    std::sort(chosen.begin(), chosen.end());
    ASSERT_EQ(chosen, (std::vector<std::int32_t>{0, 2}));
    const std::size_t first = two.chosen[0] == 0 ? 0 : 1;
    EXPECT_NEAR(two.weight[first] / two.weight[1 - first], all.weight[0] / all.weight[2], 1e-5f);
    EXPECT_NEAR(two.weight[0] + two.weight[1], 1, 1e-6f);
  }
}

TEST(ExpertChoice, WeightsMayBeRootsOfSoftplus) {
  Experts experts = of(4, 2, Gating::sqrt_softplus);
  experts.normalize = false;
  experts.scale = 1.5f;
  const Choice choice = choose(experts, {-20, 30, 1, 2});
  EXPECT_EQ(choice.chosen, (std::vector<std::int32_t>{1, 3}));
  EXPECT_NEAR(choice.weight[0], 1.5 * std::sqrt(30.0), 1e-4);
  EXPECT_NEAR(choice.weight[1], 1.5 * std::sqrt(std::log1p(std::exp(2.0))), 1e-5);
}

/// The experts are what the caller has put there, whatever the scores and a bias say; their weights are by the scores.
TEST(ExpertChoice, ATokenMayHaveItsExperts) {
  Experts experts = of(4, 2, Gating::sigmoid);
  experts.of_tokens = {0, 0};
  std::vector<float> scores{9, -1, 9, 0.5f}, selection(4), weight(2);
  std::vector<std::int32_t> chosen{3, 1};
  choose_experts(kernels::table(kernels::Isa::plain), experts, nullptr, scores.data(), selection.data(), chosen.data(),
                 weight.data());
  EXPECT_EQ(chosen, (std::vector<std::int32_t>{3, 1}));
  const double third = 1 / (1 + std::exp(-0.5)), first = 1 / (1 + std::exp(1.0));
  EXPECT_NEAR(weight[0], third / (third + first), 1e-6);
  EXPECT_NEAR(weight[1], first / (third + first), 1e-6);
}

TEST(ExpertChoice, SparseMixerWeighsWhatComesNear) {
  Experts experts = of(5, 2, Gating::sparse_mixer);
  experts.normalize = false;
  const Choice alone = choose(experts, {4, 3, 2, -1, 0});
  EXPECT_EQ(alone.chosen, (std::vector<std::int32_t>{0, 1}));
  EXPECT_EQ(alone.weight, (std::vector<float>{1, 1}));
  // The second comes near the first, the third near the second alone.
  const Choice near = choose(experts, {4, 3.95f, 3.9f, -1, 0});
  EXPECT_EQ(near.chosen, (std::vector<std::int32_t>{0, 1}));
  EXPECT_NEAR(near.weight[0], 1 / (1 + std::exp(-0.05)), 1e-5);
  EXPECT_NEAR(near.weight[1], 1 / (1 + std::exp(-0.05)), 1e-5);
  // Below zero, by the size of the score itself: -1.019 is near to -1, -1.03 is not.
  const Choice negative = choose(experts, {-1.019f, -1, -1.03f, -2, -3});
  EXPECT_EQ(negative.chosen, (std::vector<std::int32_t>{1, 0}));
  EXPECT_NEAR(negative.weight[0], 1 / (1 + std::exp(-0.019)), 1e-5);
  EXPECT_NEAR(negative.weight[1], 1 / (1 + std::exp(-0.011)), 1e-5);
}

TEST(ExpertChoice, ABiasOfZerosAndGroupsOfAllChangeNothing) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  for (int turn = 0; turn < 200; ++turn) {
    Experts experts = of(16, 4, turn % 2 == 0 ? Gating::softmax : Gating::sigmoid);
    std::vector<float> logits(16);
    for (float& value : logits) value = normal(random);
    const Choice plain = choose(experts, logits), biased = choose(experts, logits, std::vector<float>(16, 0));
    experts.groups = experts.groups_used = 4;
    const Choice grouped = choose(experts, logits);
    for (const Choice& same : {biased, grouped}) {
      EXPECT_EQ(same.chosen, plain.chosen);
      EXPECT_EQ(same.weight, plain.weight);
    }
  }
}

TEST(ExpertChoice, OfTheBestGroupsAlone) {
  Experts experts = of(8, 3, Gating::sigmoid);
  experts.groups = 2;
  const Choice choice = choose(experts, {3, 2, -5, -6, 1, 1, 1, 1});
  EXPECT_EQ(choice.chosen, (std::vector<std::int32_t>{0, 1, 2})) << "the second group's are larger than the third";
}

TEST(ExpertChoice, ScoresThatAreNoNumbersDoNoHarm) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();
  for (const float odd : {nan, infinity, -infinity}) {
    const Choice choice = choose(of(4, 2), {odd, 1, 2, odd}, {1, 0, 1, 0});
    for (const std::int32_t expert : choice.chosen) EXPECT_TRUE(expert >= 0 && expert < 4);
    EXPECT_NE(choice.chosen[0], choice.chosen[1]);
  }
}

}  // namespace
}  // namespace millrace::exec
