#include "residency/policy_choice.h"

#include <algorithm>
#include <utility>

namespace millrace::residency {
namespace {

constexpr std::size_t kFewSlots = 512;  // of more, a sample is played
constexpr std::size_t kSample = 8;
constexpr double kFade = 1 - 1.0 / 128;  // of a miss, a turn
constexpr double kClear = 0.98;          // of the misses by the rule that is followed: fewer are no chance

}  // namespace

PolicyChoice::PolicyChoice(std::size_t keys, std::size_t slots)
    : keys_(keys), step_(slots > kFewSlots ? kSample : 1), tables_([&]<std::size_t... i>(std::index_sequence<i...>) {
        return std::array{SlotTable(keys / step_ + 1, std::max<std::size_t>(1, slots / step_), kRules[i])...};
      }(std::make_index_sequence<kRules.size()>{})) {}

void PolicyChoice::expect(std::span<const float> rates) {
  std::vector<float> played(keys_ / step_ + 1, 0.0f);
  for (std::size_t key = 0; key < rates.size(); key += step_) played[key / step_] = rates[key];
  for (SlotTable& table : tables_) table.expect(played);
  best_ = kRules.size() - 1;
}

void PolicyChoice::use(std::int32_t key) {
  const auto number = static_cast<std::size_t>(key);
  if (number % step_ != 0) return;
  const auto played = static_cast<std::int32_t>(number / step_);
  for (std::size_t i = 0; i < tables_.size(); ++i) {
    SlotTable& table = tables_[i];
    table.use(played);
    if (table.slot_of(played) >= 0) continue;
    misses_[i] += 1;
    if (table.free_slots() == 0) table.remove(table.least_worth([&](std::int32_t other) { return other != played; }));
    (void)table.put(played);
  }
}

void PolicyChoice::turn() {
  for (SlotTable& table : tables_) table.turn();
  for (double& misses : misses_) misses *= kFade;
  const auto least = std::min_element(misses_.begin(), misses_.end());
  if (*least < misses_[best_] * kClear) best_ = static_cast<std::size_t>(least - misses_.begin());
}

}  // namespace millrace::residency
