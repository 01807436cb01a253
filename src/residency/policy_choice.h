// Chooses the policy with which a cache would have had fewer misses recently. It simulates all policies on the actual
// uses, without memory, and on a sample if there are many keys; so the choice adapts to changing use, at little cost.
// Not thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "residency/slot_table.h"

namespace millrace::residency {

class PolicyChoice {
 public:
  /// lru; lfu with a short half-life; lfu with a long half-life, which loses least while the use stays the same.
  static constexpr std::array kRules{CacheRule{CachePolicy::lru, 32}, CacheRule{CachePolicy::lfu, 32},
                                     CacheRule{CachePolicy::lfu, 256}};

  /// As of the cache's SlotTable.
  PolicyChoice(std::size_t keys, std::size_t slots);

  /// As SlotTable::expect(). The favourites of long are followed until another rule proves better.
  void expect(std::span<const float> rates);
  void use(std::int32_t key);
  /// A turn ends.
  void turn();
  /// It changes only where another one is better by more than chance.
  const CacheRule& best() const { return kRules[best_]; }

 private:
  const std::size_t keys_;
  const std::size_t step_;  // of `step_` keys one is played
  std::array<SlotTable, kRules.size()> tables_;
  std::array<double, kRules.size()> misses_{};  // each worth less with every turn
  std::size_t best_ = 0;
};

}  // namespace millrace::residency
