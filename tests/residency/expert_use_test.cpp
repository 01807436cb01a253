// Predicted hit rates beside those of a SlotTable that is played.
#include "residency/expert_use.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

namespace millrace::residency {
namespace {

struct Played {
  double met = 0, touched = 0;
};

/// Passes of so many tokens through one layer's slots: by lru every expert that is missed takes a slot, by lfu one that
/// is worth more than another.
Played play(std::int64_t experts, std::int64_t top_k, double skew, std::size_t slots, std::int64_t tokens,
            CachePolicy policy) {
  std::mt19937_64 random(7);
  std::vector<double> sums(static_cast<std::size_t>(experts));
  for (std::size_t i = 0; i < sums.size(); ++i) sums[i] = std::pow(static_cast<double>(i + 1), -skew);
  std::partial_sum(sums.begin(), sums.end(), sums.begin());
  SlotTable table(sums.size(), slots, {policy, 2000});
  constexpr int kPasses = 12000, kWarm = 4000;
  std::int64_t uses = 0, met = 0;
  for (int pass = 0; pass < kPasses; ++pass) {
    std::vector<std::int32_t> called;
    for (std::int64_t token = 0; token < tokens; ++token) {
      std::vector<std::int32_t> chosen;
      while (static_cast<std::int64_t>(chosen.size()) < top_k) {
        const double at = static_cast<double>(random() >> 11) * 0x1p-53 * sums.back();
        const auto expert = static_cast<std::int32_t>(
            std::min(std::upper_bound(sums.begin(), sums.end(), at) - sums.begin(), std::ssize(sums) - 1));
        if (std::find(chosen.begin(), chosen.end(), expert) == chosen.end()) chosen.push_back(expert);
      }
      called.insert(called.end(), chosen.begin(), chosen.end());
    }
    std::sort(called.begin(), called.end());
    called.erase(std::unique(called.begin(), called.end()), called.end());
    std::shuffle(called.begin(), called.end(), random);
    table.turn();
    for (const std::int32_t expert : called) {
      const bool here = table.slot_of(expert) >= 0;
      if (pass >= kWarm) ++uses, met += here ? 1 : 0;
      table.use(expert);
    }
    for (const std::int32_t expert : called) {
      if (table.slot_of(expert) >= 0) continue;
      if (table.free_slots() == 0) {
        const std::int32_t least = table.least_worth();
        if (policy == CachePolicy::lfu && table.worth(least) >= table.worth(expert)) continue;
        table.remove(least);
      }
      (void)table.put(expert);
    }
  }
  return {static_cast<double>(met) / static_cast<double>(uses),
          static_cast<double>(uses) / static_cast<double>(kPasses - kWarm) / static_cast<double>(experts)};
}

TEST(ExpertUse, IsWhatASlotTableMeets) {
  for (const double skew : {0.0, 0.7, 1.0, 1.5}) {
    const ExpertUse use(128, 8, skew);
    for (const std::size_t slots : {16u, 40u, 96u}) {
      for (const std::int64_t tokens : {1, 8}) {
        for (const CachePolicy policy : {CachePolicy::lru, CachePolicy::lfu}) {
          const Played played = play(128, 8, skew, slots, tokens, policy);
          const double met = use.met(static_cast<double>(slots), static_cast<double>(tokens), policy);
          EXPECT_NEAR(met, played.met, 0.04) << "skew " << skew << ", " << slots << " slots, " << tokens << " tokens, "
                                             << (policy == CachePolicy::lru ? "lru" : "lfu");
          EXPECT_NEAR(use.touched(static_cast<double>(tokens)), played.touched, 0.03 * played.touched) << skew;
        }
      }
    }
  }
}

TEST(ExpertUse, HasItsFigures) {
  // Qwen3-30B-A3B in 6 GB of VRAM: 36 of 128 experts of a layer have slots.
  EXPECT_NEAR(ExpertUse(128, 8, 0).met(36, 1, CachePolicy::lfu), 36.0 / 128, 1e-9);
  EXPECT_NEAR(ExpertUse(128, 8, 0).met(36, 1, CachePolicy::lru), 36.0 / 128, 1e-6);
  EXPECT_NEAR(ExpertUse(128, 8, 1).met(36, 1, CachePolicy::lfu), 0.70, 0.02);
  EXPECT_NEAR(ExpertUse(128, 8, 1).met(36, 1, CachePolicy::lru), 0.58, 0.03);
  // Eight sequences touch 51.6 of 128 experts of a layer where all are alike.
  EXPECT_NEAR(ExpertUse(128, 8, 0).touched(8) * 128, 51.6, 0.1);
  EXPECT_EQ(ExpertUse(128, 8, 1).met(128, 1, CachePolicy::lfu), 1);
  EXPECT_EQ(ExpertUse(128, 8, 1).met(0, 1, CachePolicy::lfu), 0);
  EXPECT_EQ(ExpertUse(0, 0, 1).met(0, 1, CachePolicy::lfu), 1) << "a dense model misses nothing";
  EXPECT_NEAR(ExpertUse(16, 16, 2).touched(1), 1, 1e-9);
}

}  // namespace
}  // namespace millrace::residency
