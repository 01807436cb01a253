#include "residency/gpu/spare.h"

#include <algorithm>

#include "base/bytes.h"
#include "base/log.h"

namespace millrace::residency {

SpareUnits::SpareUnits(std::vector<Candidate> candidates, Budget& vram, std::uint64_t margin)
    : vram_(vram), margin_(margin) {
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const Candidate& a, const Candidate& b) { return a.on_disk && !b.on_disk; });
  for (const Candidate& candidate : candidates) {
    const auto index = static_cast<std::int32_t>(units_.size());
    units_.emplace_back();
    static_cast<Candidate&>(units_.back()) = candidate;
    const std::size_t end = candidate.first_group + candidate.groups;
    if (unit_of_.size() < end) unit_of_.resize(end, -1);
    std::fill(unit_of_.begin() + static_cast<std::ptrdiff_t>(candidate.first_group),
              unit_of_.begin() + static_cast<std::ptrdiff_t>(end), index);
  }
}

bool SpareUnits::begin_pass() {
  for (Unit& unit : units_) {
    if (unit.memory.data() == nullptr || unit.kept) continue;
    unit.kept = unit.passed_by == unit.groups;
    unit.passed_by = 0;  // a pass that ended early begins anew
    changed_ = changed_ || unit.kept;
  }
  for (Unit& unit : units_) {
    if (refused_ || unit.memory.data() != nullptr) continue;
    const std::uint64_t bytes = device::allocation_bytes(unit.bytes);
    if (vram_.available_bytes() < bytes + margin_) break;
    auto reservation = vram_.reserve("weights", 0);
    if (!reservation.ok() || !reservation->try_grow(bytes)) break;
    auto memory = device::DeviceBuffer::allocate(unit.bytes);
    if (!memory.ok()) {
      log::info("no more layers are kept in spare VRAM: {}", memory.status().message());
      refused_ = true;
      break;
    }
    unit.reservation = std::move(*reservation);
    unit.memory = std::move(*memory);
  }
  return std::exchange(changed_, false);
}

const std::byte* SpareUnits::kept(std::size_t group) const {
  if (group >= unit_of_.size() || unit_of_[group] < 0) return nullptr;
  const Unit& unit = units_[static_cast<std::size_t>(unit_of_[group])];
  return unit.kept ? unit.memory.data() : nullptr;
}

Status SpareUnits::pass_by(std::size_t group, std::uint64_t offset, const std::byte* data, std::uint64_t bytes,
                           device::StreamRef compute) {
  if (group >= unit_of_.size() || unit_of_[group] < 0) return {};
  Unit& unit = units_[static_cast<std::size_t>(unit_of_[group])];
  if (unit.memory.data() == nullptr || unit.kept) return {};
  MR_RETURN_IF_ERROR(device::copy_on_device(unit.memory.data() + offset, data, bytes, compute));
  ++unit.passed_by;
  return {};
}

void SpareUnits::let_go(Unit& unit) {
  changed_ = changed_ || unit.kept;
  unit.kept = false;
  unit.passed_by = 0;
  unit.memory = {};
  unit.reservation = {};
}

std::uint64_t SpareUnits::give_way(std::uint64_t bytes) {
  std::uint64_t freed = 0;
  for (auto unit = units_.rbegin(); unit != units_.rend() && freed < bytes; ++unit) {
    if (unit->memory.data() == nullptr) continue;
    freed += unit->reservation.bytes();
    let_go(*unit);
  }
  return freed;
}

std::int64_t SpareUnits::kept_units() const {
  return std::count_if(units_.begin(), units_.end(), [](const Unit& unit) { return unit.kept; });
}

}  // namespace millrace::residency
