#include "residency/gpu/table.h"

#include <utility>

#include "device/device.h"

namespace millrace::residency {

AddressTable::AddressTable(const UnitTable& units, std::byte* memory)
    : table_(reinterpret_cast<const std::byte**>(memory)) {
  std::size_t parts = 0;
  for (const Unit& unit : units.units()) {
    first_part_.push_back(parts);
    parts += unit.parts.size();
  }
}

Status AddressTable::begin(std::vector<const std::byte*> addresses) {
  addresses_ = std::move(addresses);
  return device::write_device(table_, addresses_.data(), addresses_.size() * sizeof(std::byte*));
}

}  // namespace millrace::residency
