// The automatic policy beside each fixed one, on traces whose favourites stay, drift, and go round.
#include "residency/policy_choice.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <random>
#include <vector>

namespace millrace::residency {
namespace {

constexpr std::size_t kKeys = 256, kSlots = 64;
using Trace = std::function<std::int32_t(int turn, std::mt19937& random)>;

/// Misses of 8 uses a turn, in 6,000 turns, behind 500 in which the cache fills.
int misses(CacheRule rule, const Trace& trace) {
  const bool chooses = rule.policy == CachePolicy::automatic;
  SlotTable table(kKeys, kSlots, chooses ? PolicyChoice::kRules[0] : rule);
  PolicyChoice choice(kKeys, kSlots);
  std::mt19937 random(11);
  int count = 0;
  for (int turn = 0; turn < 6500; ++turn) {
    table.turn();
    if (chooses) {
      choice.turn();
      table.set_rule(choice.best());
    }
    for (int use = 0; use < 8; ++use) {
      const std::int32_t key = trace(turn, random);
      table.use(key);
      if (chooses) choice.use(key);
      if (table.slot_of(key) >= 0) continue;
      count += turn >= 500 ? 1 : 0;
      if (table.free_slots() == 0) table.remove(table.least_worth([&](std::int32_t other) { return other != key; }));
      (void)table.put(key);
    }
  }
  return count;
}

std::int32_t favourite(double exponent, std::mt19937& random) {
  // The k-th of them comes as 1 / k^exponent: by the inverse of the integral, near enough.
  const double u = std::uniform_real_distribution<double>(0, 1)(random);
  const double most = std::pow(static_cast<double>(kKeys), 1 - exponent);
  return std::min<std::int32_t>(kKeys - 1,
                                static_cast<std::int32_t>(std::pow(1 + u * (most - 1), 1 / (1 - exponent)) - 1));
}

struct Case {
  const char* name;
  Trace trace;
};
class PolicyTraces : public testing::TestWithParam<Case> {};

TEST_P(PolicyTraces, TheChoiceIsNearTheBetterOne) {
  std::vector<int> by_rule;
  for (const CacheRule& rule : PolicyChoice::kRules) by_rule.push_back(misses(rule, GetParam().trace));
  const int chosen = misses({CachePolicy::automatic}, GetParam().trace);
  const int least = *std::min_element(by_rule.begin(), by_rule.end());
  EXPECT_LE(chosen, 1.03 * least) << testing::PrintToString(by_rule);
  EXPECT_GT(least, 1000) << "a trace that tells nothing";
}

INSTANTIATE_TEST_SUITE_P(
    All, PolicyTraces,
    testing::Values(
        Case{"stay", [](int, std::mt19937& random) { return favourite(0.9, random); }},
        Case{"drift",
             [](int turn, std::mt19937& random) {
               return static_cast<std::int32_t>((favourite(1.1, random) + turn / 3) % static_cast<int>(kKeys));
             }},
        Case{"jump",  // a text of another kind every 400 turns
             [](int turn, std::mt19937& random) {
               return static_cast<std::int32_t>((favourite(1.2, random) + turn / 400 * 97) % static_cast<int>(kKeys));
             }},
        Case{"alike", [](int, std::mt19937& random) { return static_cast<std::int32_t>(random() % kKeys); }}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace millrace::residency
