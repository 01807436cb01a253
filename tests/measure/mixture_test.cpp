// The knapsack of types against all combinations there are.
#include "app/measure/mixture.h"

#include <gtest/gtest.h>

#include <random>

namespace millrace::measure {
namespace {

using Groups = std::vector<std::vector<MixtureOption>>;

struct Sum {
  std::uint64_t bytes = 0;
  double divergence = 0;
};

Sum sum_of(const Groups& groups, const std::vector<std::size_t>& chosen) {
  Sum sum;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    sum.bytes += groups[g][chosen[g]].bytes;
    sum.divergence += groups[g][chosen[g]].divergence;
  }
  return sum;
}

/// The least divergence of all combinations that fit; below 0: none does.
double best_by_trying(const Groups& groups, std::uint64_t most_bytes) {
  std::vector<std::size_t> chosen(groups.size());
  double best = -1;
  for (;;) {
    const Sum sum = sum_of(groups, chosen);
    if (sum.bytes <= most_bytes && (best < 0 || sum.divergence < best)) best = sum.divergence;
    std::size_t g = 0;
    while (g < groups.size() && ++chosen[g] == groups[g].size()) chosen[g++] = 0;
    if (g == groups.size()) return best;
  }
}

Groups random_groups(unsigned seed, std::size_t count, std::size_t types) {
  std::mt19937 random(seed);
  Groups groups(count);
  for (auto& group : groups)
    for (std::size_t t = 0; t < types; ++t)
      group.push_back({DType::f16, random() % 50 + 1, static_cast<double>(random() % 1000) / 100});
  return groups;
}

TEST(Mixture, IsTheBestThereIs) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    const Groups groups = random_groups(seed, 1 + seed % 6, 1 + seed / 7 % 5);
    for (const std::uint64_t most : {20u, 60u, 120u, 1000u}) {
      SCOPED_TRACE(testing::Message() << "seed " << seed << ", " << most << " bytes");
      const double best = best_by_trying(groups, most);
      const auto chosen = choose_mixture(groups, {most});
      ASSERT_EQ(chosen.ok(), best >= 0);
      if (!chosen.ok()) continue;
      const Sum sum = sum_of(groups, *chosen);
      EXPECT_LE(sum.bytes, most);
      EXPECT_NEAR(sum.divergence, best, 1e-9);
    }
  }
}

TEST(Mixture, HasFewestBytesOfThoseThatDivergeSoLittle) {
  for (unsigned seed = 0; seed < 100; ++seed) {
    const Groups groups = random_groups(seed, 1 + seed % 6, 1 + seed / 7 % 5);
    for (const double most : {3.0, 10.0, 25.0}) {
      SCOPED_TRACE(testing::Message() << "seed " << seed << ", " << most);
      const auto chosen = choose_mixture(groups, {.divergence = most});
      if (!chosen.ok()) {
        EXPECT_EQ(chosen.status().code(), Code::out_of_budget);
        EXPECT_GT(best_by_trying(groups, 1u << 20), most);
        continue;
      }
      const Sum sum = sum_of(groups, *chosen);
      EXPECT_LE(sum.divergence, most);
      const double smaller = best_by_trying(groups, sum.bytes - 1);  // below 0: there is none so small
      EXPECT_TRUE(smaller < 0 || smaller > most) << smaller;
    }
  }
}

TEST(Mixture, FewStatesStayWithinTheBudgetAndNearTheBest) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    const Groups groups = random_groups(seed, 60, 6);
    const std::uint64_t most = 800;
    const Sum exact = sum_of(groups, *choose_mixture(groups, {most}));
    const auto chosen = choose_mixture(groups, {most}, 64);
    ASSERT_TRUE(chosen.ok());
    const Sum sum = sum_of(groups, *chosen);
    EXPECT_LE(sum.bytes, most);
    EXPECT_GE(sum.divergence, exact.divergence - 1e-9);
    EXPECT_LE(sum.divergence, 1.5 * exact.divergence + 1);
  }
}

TEST(Mixture, SaysWhatWouldFit) {
  const Groups groups = {{{DType::q4_k, 3000, 1}, {DType::q8_0, 6000, 0}}, {{DType::q4_k, 4000, 1}}};
  EXPECT_EQ(choose_mixture(groups, {7000})->at(0), 0u);
  EXPECT_EQ(choose_mixture(groups, {10000})->at(0), 1u);
  const auto refused = choose_mixture(groups, {6999});
  EXPECT_EQ(refused.status().code(), Code::out_of_budget);
  EXPECT_NE(refused.status().message().find("7.00 kB"), std::string::npos) << refused.status().message();
  EXPECT_EQ(choose_mixture(Groups(1), {5}).status().code(), Code::invalid_argument);
}

}  // namespace
}  // namespace millrace::measure
