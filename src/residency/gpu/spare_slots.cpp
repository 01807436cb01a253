#include "residency/gpu/spare_slots.h"

#include <algorithm>

#include "base/bytes.h"
#include "base/log.h"
#include "device/range.h"

namespace millrace::residency {
namespace {

constexpr std::uint64_t kChunkOfSlots = 64 * kMiB;  // backed at once

}  // namespace

Expected<std::unique_ptr<SpareSlots>> SpareSlots::create(int most, std::uint64_t slot_bytes, Budget& vram,
                                                         std::uint64_t margin) {
  std::unique_ptr<SpareSlots> slots(new SpareSlots(most, slot_bytes, vram, margin));
  MR_ASSIGN_OR_RETURN(slots->range_, device::reserve_device_range(slots->end_of(most)));
  MR_ASSIGN_OR_RETURN(slots->reservation_, vram.reserve("experts", 0));
  return slots;
}

std::uint64_t SpareSlots::backed_bytes(int count) const { return round_up(end_of(count), range_->granule_bytes()); }

int SpareSlots::grow() {
  const int chunk = static_cast<int>(std::max<std::uint64_t>(1, kChunkOfSlots / slot_bytes_));
  const std::uint64_t before = backed_bytes(count_), available = vram_.available_bytes();
  int wanted = std::min(most_, count_ + chunk);
  while (wanted > count_ && backed_bytes(wanted) - before + margin_ > available) --wanted;
  const std::uint64_t bytes = backed_bytes(wanted) - before;
  if (refused_ || wanted == count_ || !reservation_.try_grow(bytes)) return count_;
  if (const Status backed = range_->back(before, bytes); !backed.ok()) {
    log::info("no more experts have slots in spare VRAM: {}", backed.message());
    refused_ = true;
    range_->release(before, bytes);
    (void)reservation_.resize(before);  // shrinking cannot fail
    return count_;
  }
  return count_ = wanted;
}

int SpareSlots::count_without(std::uint64_t bytes) const {
  int count = count_;
  while (count > 0 && backed_bytes(count_) - backed_bytes(count) < bytes) --count;
  return count;
}

std::uint64_t SpareSlots::shrink(int count) {
  const std::uint64_t left = backed_bytes(count), freed = backed_bytes(count_) - left;
  range_->release(left, freed);
  count_ = count;
  (void)reservation_.resize(left);  // shrinking cannot fail
  return freed;
}

}  // namespace millrace::residency
