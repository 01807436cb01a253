// A model's weights at home in device memory: one arena, a table of addresses on the device, filled from the disk
// through a page-locked ring while the copy engine empties it.
// Thread-safety: one thread loads; entries may be asked from any thread afterwards.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/status.h"
#include "device/cuda_runtime.h"
#include "residency/budget.h"
#include "residency/unit.h"
#include "storage/storage.h"

namespace millrace::residency {

class DeviceWeights {
 public:
  /// Bytes of device memory that a model takes: every part on a 256-byte edge with 256 readable bytes behind it, and
  /// the table. Pure.
  static std::uint64_t device_bytes(const UnitTable& units);
  /// Page-locked bytes that loading takes for as long as it lasts.
  static std::uint64_t staging_bytes();

  /// Reads everything. `progress` (may be empty) is told the bytes done of all; false from it cancels. `units` outlives
  /// the object; `vram` too. Errors: out_of_budget, io_error, corrupt, cancelled.
  static Expected<std::unique_ptr<DeviceWeights>> load(
      const UnitTable& units, storage::Backend& backend, Budget& vram,
      const std::function<bool(std::uint64_t, std::uint64_t)>& progress);

  /// The entry in device memory that holds where a weight lies. REQUIRES: not none().
  const std::byte* const* entry(WeightRef ref) const {
    return table_ + first_part_[static_cast<std::size_t>(ref.unit)] + static_cast<std::size_t>(ref.part);
  }

 private:
  DeviceWeights() = default;
  std::vector<std::size_t> first_part_;  // by unit: index of its part 0 in the table
  Reservation reservation_;
  device::DeviceBuffer arena_;
  const std::byte* const* table_ = nullptr;  // on the device
};

}  // namespace millrace::residency
