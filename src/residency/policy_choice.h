// Which of a cache's policies would have met fewer misses lately. Both are played on what is used, without memory, on a
// sample of the keys where there are many; so the choice follows favourites that drift, and costs little.
// Not thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "residency/slot_table.h"

namespace millrace::residency {

class PolicyChoice {
 public:
  /// As of the cache's SlotTable.
  PolicyChoice(std::size_t keys, std::size_t slots, double half_life);

  void use(std::int32_t key);
  /// A turn ends.
  void turn();
  /// It changes only where the other one is better by more than chance.
  CachePolicy better() const { return policies_[best_]; }

 private:
  static constexpr std::array policies_{CachePolicy::lru, CachePolicy::lfu};

  const std::size_t step_;  // of `step_` keys one is played
  std::array<SlotTable, 2> tables_;
  std::array<double, 2> misses_{};  // each worth less with every turn
  std::size_t best_ = 0;
};

}  // namespace millrace::residency
