// Slots for experts in device memory that is free for now: what KV will need once sequences grow is of use before. They
// are a range of addresses in which memory comes chunk by chunk and goes from the end, so that a slot's address never
// changes. What lies in a slot, and who may read it, is the owner's affair (experts.h). Thread-safety: one thread.
#pragma once

#include <cstdint>
#include <memory>

#include "base/status.h"
#include "device/range.h"
#include "residency/budget.h"

namespace millrace::residency {

class SpareSlots {
 public:
  /// most: slots at most; none has memory yet. margin: bytes of the budget that stay free, so that not every growth of
  /// others takes a slot. `vram` outlives the object. Errors: unsupported (a driver without virtual memory management).
  static Expected<std::unique_ptr<SpareSlots>> create(int most, std::uint64_t slot_bytes, Budget& vram,
                                                      std::uint64_t margin);

  /// Slots that have memory: the first ones.
  int count() const { return count_; }
  std::byte* slot(int index) const { return range_->data() + end_of(index); }
  /// A chunk of memory more, or less where budget and driver have no more. Returns count().
  int grow();
  /// How many slots remain when `bytes` at least are given back; 0 where there are not so many.
  int count_without(std::uint64_t bytes) const;
  /// Gives back what slots from `count` on have. REQUIRES: nothing on the device reads or writes them. Returns the
  /// bytes that are free again.
  std::uint64_t shrink(int count);

 private:
  SpareSlots(int most, std::uint64_t slot_bytes, Budget& vram, std::uint64_t margin)
      : most_(most), slot_bytes_(slot_bytes), margin_(margin), vram_(vram) {}
  std::uint64_t end_of(int count) const { return static_cast<std::uint64_t>(count) * slot_bytes_; }
  /// Of memory, in whole granules.
  std::uint64_t backed_bytes(int count) const;

  const int most_;
  const std::uint64_t slot_bytes_, margin_;
  Budget& vram_;
  Reservation reservation_;
  std::unique_ptr<device::Range> range_;
  int count_ = 0;
  bool refused_ = false;  // the driver had no memory although the budget had: not asked again
};

}  // namespace millrace::residency
