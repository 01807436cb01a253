#include "exec/expert_choice.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace millrace::exec {
namespace {

struct Choice {
  std::vector<std::int32_t> chosen;
  std::vector<float> weight;
};

Choice choose(const Experts& experts, std::vector<float> logits, const std::vector<std::uint8_t>& near, float of_range,
              const std::vector<float>& bias = {}) {
  Choice choice;
  choice.chosen.resize(static_cast<std::size_t>(experts.top_k));
  choice.weight.resize(static_cast<std::size_t>(experts.top_k));
  std::vector<float> selection(logits.size());
  choose_experts(kernels::table(kernels::Isa::plain), experts, bias.empty() ? nullptr : bias.data(),
                 {of_range, near.empty() ? nullptr : near.data()}, logits.data(), selection.data(),
                 choice.chosen.data(), choice.weight.data());
  return choice;
}

Experts of(std::int32_t count, std::int32_t top_k, Gating gating = Gating::softmax) {
  Experts experts;
  experts.count = count;
  experts.top_k = top_k;
  experts.gating = gating;
  return experts;
}

TEST(ExpertChoice, APreferredExpertIsRaisedByAPartOfTheRange) {
  const std::vector<float> logits{4, 3, 2, 0};  // a range of 4
  const std::vector<std::uint8_t> near{0, 0, 1, 0};
  EXPECT_EQ(choose(of(4, 2), logits, near, 0.24f).chosen, (std::vector<std::int32_t>{0, 1}));
  EXPECT_EQ(choose(of(4, 2), logits, near, 0.26f).chosen, (std::vector<std::int32_t>{0, 2}));
}

TEST(ExpertChoice, OfThreeTiersTheMiddleOneIsRaisedByHalf) {
  const std::vector<float> logits{8, 3, 2.5f, 2, 0};  // a range of 8
  const std::vector<std::uint8_t> near{0, 0, 1, 2, 0};
  Experts experts = of(5, 2);
  const auto second = [&](float of_range) {
    std::vector<float> scores = logits, selection(5), weight(2);
    std::vector<std::int32_t> chosen(2);
    choose_experts(kernels::table(kernels::Isa::plain), experts, nullptr, {of_range, near.data(), 2}, scores.data(),
                   selection.data(), chosen.data(), weight.data());
    EXPECT_EQ(chosen[0], 0);
    return chosen[1];
  };
  EXPECT_EQ(second(0.12f), 1);   // 3, 2.98, 2.96
  EXPECT_EQ(second(0.126f), 3);  // 3, 3.004, 3.008
}

TEST(ExpertChoice, WeightsAreThoseOfTheRoutersScores) {
  const std::vector<float> logits{4, 3, 2, 0};
  for (const Gating gating : {Gating::softmax, Gating::sigmoid, Gating::softmax_chosen}) {
    const Choice all = choose(of(4, 4, gating), logits, {}, 0), two = choose(of(4, 2, gating), logits, {0, 0, 1, 0}, 1);
    ASSERT_EQ(two.chosen, (std::vector<std::int32_t>{0, 2}));
    EXPECT_NEAR(two.weight[0] / two.weight[1], all.weight[0] / all.weight[2], 1e-5f);
    EXPECT_NEAR(two.weight[0] + two.weight[1], 1, 1e-6f);
  }
}

TEST(ExpertChoice, TheFavouriteIsKeptWhereverItLies) {
  const Choice choice = choose(of(4, 2), {1, 2, 9, 3}, {1, 1, 0, 1}, 1);
  EXPECT_EQ(choice.chosen, (std::vector<std::int32_t>{2, 3}));
  EXPECT_GT(choice.weight[0], choice.weight[1]);
}

TEST(ExpertChoice, NothingChangesWhereNothingOrAllIsPreferred) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  for (int turn = 0; turn < 200; ++turn) {
    Experts experts = of(16, 4, turn % 2 == 0 ? Gating::softmax : Gating::sigmoid);
    if (turn % 3 == 0) experts.groups = 4, experts.groups_used = 2;
    std::vector<float> logits(16), bias(turn % 5 == 0 ? 16 : 0);
    for (float& value : logits) value = normal(random);
    for (float& value : bias) value = normal(random);
    const Choice plain = choose(experts, logits, {}, 0, bias);
    for (const std::uint8_t all : {0, 1}) {
      const Choice same = choose(experts, logits, std::vector<std::uint8_t>(16, all), 0.5f, bias);
      EXPECT_EQ(same.chosen, plain.chosen);
      EXPECT_EQ(same.weight, plain.weight);
    }
  }
}

TEST(ExpertChoice, GroupsAreChosenByTheRouterAlone) {
  Experts experts = of(8, 2, Gating::sigmoid);
  experts.groups = 2;
  const Choice choice = choose(experts, {3, 2, 1, 0, -1, -2, -3, -4}, {0, 0, 0, 1, 1, 1, 1, 1}, 1);
  EXPECT_EQ(choice.chosen, (std::vector<std::int32_t>{0, 3}));  // none of the second group
}

TEST(ExpertChoice, ScoresThatAreNoNumbersDoNoHarm) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();
  for (const float odd : {nan, infinity, -infinity}) {
    const Choice choice = choose(of(4, 2), {odd, 1, 2, odd}, {1, 0, 1, 0}, 0.5f);
    for (const std::int32_t expert : choice.chosen) EXPECT_TRUE(expert >= 0 && expert < 4);
    EXPECT_NE(choice.chosen[0], choice.chosen[1]);
  }
}

}  // namespace
}  // namespace millrace::exec
