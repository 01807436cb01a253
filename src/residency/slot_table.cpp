#include "residency/slot_table.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace millrace::residency {
namespace {

constexpr double kLargest = 0x1p200;  // of what a use is worth, before all numbers are made small again

}  // namespace

Expected<CachePolicy> policy_from_name(std::string_view name) {
  constexpr std::pair<std::string_view, CachePolicy> kKnown[] = {
      {"lru", CachePolicy::lru}, {"lfu", CachePolicy::lfu}, {"auto", CachePolicy::automatic}};
  for (const auto& [known, policy] : kKnown)
    if (known == name) return policy;
  return error(Code::invalid_argument, "a cache's policy '{}': use lru, lfu or auto", name);
}

SlotTable::SlotTable(std::size_t keys, std::size_t slots, CacheRule rule, bool live)
    : slot_of_(keys, -1),
      key_of_(slots, -1),
      pins_(keys, 0),
      live_(slots, live),
      live_slots_(live ? slots : 0),
      worth_(keys, 0.0),
      used_(keys, 0) {
  set_rule(rule);
  free_.reserve(slots);
  for (std::size_t i = live_slots_; i-- > 0;) free_.push_back(static_cast<std::int32_t>(i));  // the first comes first
}

void SlotTable::set_rule(CacheRule rule) {
  policy_ = rule.policy;
  growth_ = std::exp2(1 / rule.half_life);
}

void SlotTable::expect(std::span<const float> rates) {
  std::vector<std::int32_t> expected;
  for (std::size_t key = 0; key < rates.size(); ++key)
    if (rates[key] > 0) expected.push_back(static_cast<std::int32_t>(key));
  const auto rate = [&](std::int32_t key) { return rates[static_cast<std::size_t>(key)]; };
  std::stable_sort(expected.begin(), expected.end(), [&](auto one, auto other) { return rate(one) < rate(other); });
  const double all_turns = 1 / (1 - 1 / growth_);  // what a use in each of them is worth
  for (const std::int32_t key : expected) {
    worth_[static_cast<std::size_t>(key)] += rate(key) * all_turns * now_;
    used_[static_cast<std::size_t>(key)] = ++uses_;
  }
}

void SlotTable::set_live(std::int32_t slot, bool live) {
  if (this->live(slot) == live) return;
  MR_ASSERT(key_of(slot) < 0);
  live_[static_cast<std::size_t>(slot)] = live;
  live_slots_ += live ? 1 : -1;
  if (live)
    free_.push_back(slot);
  else
    free_.erase(std::find(free_.begin(), free_.end(), slot));
}

void SlotTable::turn() {
  now_ *= growth_;
  if (now_ < kLargest) return;
  for (double& worth : worth_) worth /= now_;
  now_ = 1;
}

std::int32_t SlotTable::put(std::int32_t key) {
  MR_ASSERT(!free_.empty() && slot_of(key) < 0);
  const std::int32_t slot = free_.back();
  free_.pop_back();
  slot_of_[static_cast<std::size_t>(key)] = slot;
  key_of_[static_cast<std::size_t>(slot)] = key;
  return slot;
}

void SlotTable::remove(std::int32_t key) {
  const std::int32_t slot = slot_of(key);
  MR_ASSERT(slot >= 0 && pins_[static_cast<std::size_t>(key)] == 0);
  slot_of_[static_cast<std::size_t>(key)] = -1;
  key_of_[static_cast<std::size_t>(slot)] = -1;
  free_.push_back(slot);
}

}  // namespace millrace::residency
