// The table of addresses: kernels read a weight's address from its entry in device memory, so that a captured graph
// remains valid when weights move. The code that moves a weight updates its entry: the stream for units that cross,
// DeviceExperts for experts. Thread-safety: one thread creates and writes it; any thread may query entries.
#pragma once

#include <cstddef>
#include <vector>

#include "base/status.h"
#include "residency/unit.h"

namespace millrace::residency {

class AddressTable {
 public:
  AddressTable() = default;
  /// memory: table_bytes(units) on the device, which outlive the object.
  AddressTable(const UnitTable& units, std::byte* memory);

  /// Of a part among all parts of all units, in their order.
  std::size_t index(WeightRef ref) const {
    return first_part_[static_cast<std::size_t>(ref.unit)] + static_cast<std::size_t>(ref.part);
  }
  /// The entry in device memory with a weight's address. REQUIRES: not none().
  const std::byte* const* entry(WeightRef ref) const { return table_ + index(ref); }
  const std::byte** entries() const { return table_; }
  /// What the entry held to begin with. REQUIRES: begin() was ok.
  const std::byte* address(WeightRef ref) const { return addresses_[index(ref)]; }
  /// Writes all entries, by index. Errors: io_error.
  Status begin(std::vector<const std::byte*> addresses);

 private:
  std::vector<std::size_t> first_part_;  // by unit: index of its part 0
  const std::byte** table_ = nullptr;    // on the device
  std::vector<const std::byte*> addresses_;
};

}  // namespace millrace::residency
