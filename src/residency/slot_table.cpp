#include "residency/slot_table.h"

#include <cmath>

#include "base/status.h"

namespace millrace::residency {
namespace {

constexpr double kLargest = 0x1p200;  // of what a use is worth, before all numbers are made small again

}  // namespace

SlotTable::SlotTable(std::size_t keys, std::size_t slots, double half_life)
    : slot_of_(keys, -1), key_of_(slots, -1), pins_(keys, 0), worth_(keys, 0.0), growth_(std::exp2(1 / half_life)) {
  for (std::size_t i = slots; i-- > 0;) free_.push_back(static_cast<std::int32_t>(i));  // the first is taken first
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

std::int32_t SlotTable::least_worth() const {
  std::int32_t least = -1;
  for (const std::int32_t key : key_of_) {
    if (key < 0 || pins_[static_cast<std::size_t>(key)] > 0) continue;
    if (least < 0 || worth_[static_cast<std::size_t>(key)] < worth_[static_cast<std::size_t>(least)]) least = key;
  }
  return least;
}

}  // namespace millrace::residency
