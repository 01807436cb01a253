#include "residency/placement.h"

#include <algorithm>

#include "base/bytes.h"

namespace millrace::residency {
namespace {

constexpr std::int64_t kRowStep = 32;  // rows a kernel's block likes

}  // namespace

std::int64_t device_rows(std::int64_t rows, int host_permille) {
  if (host_permille == 0 || rows < 2 * kRowStep) return rows;
  const std::int64_t wanted = rows * (1000 - host_permille) / 1000 / kRowStep * kRowStep;
  return std::clamp(wanted, kRowStep, rows);
}

std::uint64_t device_room(const Part& part) { return round_up(part.bytes() + kBehindWeight, kDeviceEdge); }

std::uint64_t pinned_lead(const Part& part) { return part.offset % storage::kMaxAlignment; }

std::uint64_t pinned_room(const Part& part) {
  return round_up(pinned_lead(part) + part.bytes(), storage::kMaxAlignment);
}

std::uint64_t device_room(const Unit& unit) {
  std::uint64_t bytes = 0;
  for (const Part& part : unit.parts) bytes += device_room(part);
  return bytes;
}

std::uint64_t pinned_room(const Unit& unit) {
  std::uint64_t bytes = 0;
  for (const Part& part : unit.parts) bytes += pinned_room(part);
  return bytes;
}

std::vector<MovingCut> cut_for_moving(const Unit& unit) {
  const std::uint64_t most = device_room(unit) / 4;
  std::vector<MovingCut> cuts;
  for (std::size_t p = 0; p < unit.parts.size(); ++p) {
    const std::uint64_t room = device_room(unit.parts[p]);
    if (cuts.empty() || cuts.back().bytes + room > most) cuts.push_back({p, 0});
    cuts.back().bytes += room;
  }
  return cuts;
}

std::uint64_t table_bytes(const UnitTable& units) {
  std::size_t parts = 0;
  for (const Unit& unit : units.units()) parts += unit.parts.size();
  return round_up(parts * sizeof(std::byte*), kDeviceEdge);
}

std::uint64_t ring_bytes(const UnitTable& units, const DevicePlacement& placement) {
  std::uint64_t all = 0, largest_unit = 0, ahead = 0;
  for (std::size_t u = 0; u < units.units().size(); ++u) {
    if (!placement.moves(units, u)) continue;
    const Unit& unit = units.units()[u];
    all += device_room(unit);
    largest_unit = std::max(largest_unit, device_room(unit));
    const std::vector<MovingCut> cuts = cut_for_moving(unit);
    for (const MovingCut& cut : cuts) ahead = std::max(ahead, cut.bytes);
    // With less behind a unit's last group, the next one's second would begin where the unit's own second lies, which
    // is used until a prompt's last part: the link would rest.
    if (cuts.size() > 1) ahead = std::max(ahead, cuts[0].bytes + cuts[1].bytes);
  }
  return std::min(all, static_cast<std::uint64_t>(placement.ring_units) * largest_unit + ahead);
}

std::uint64_t device_weight_bytes(const UnitTable& units, const DevicePlacement& placement) {
  std::uint64_t bytes = table_bytes(units);
  for (std::size_t u = 0; u < units.units().size(); ++u)
    if (placement.homes[u] == Tier::vram) bytes += device_room(units.units()[u]);
  return bytes + ring_bytes(units, placement);
}

std::uint64_t pinned_weight_bytes(const UnitTable& units, const DevicePlacement& placement) {
  std::uint64_t bytes = 0;
  bool disk = false;
  for (std::size_t u = 0; u < units.units().size(); ++u) {
    if (placement.flows(units, u)) continue;
    if (placement.homes[u] == Tier::ram) bytes += pinned_room(units.units()[u]);
    disk = disk || placement.homes[u] == Tier::disk;
  }
  if (disk && !placement.straight) bytes += kChunkRingBytes;
  return bytes == 0 ? 0 : bytes + storage::kMaxAlignment;  // the last part, too, has readable bytes behind it
}

std::vector<std::uint64_t> expert_part_offsets(const UnitTable& units) {
  std::vector<std::uint64_t> offsets = {0};
  for (const Unit& unit : units.units()) {
    if (unit.kind != UnitKind::expert) continue;
    offsets.resize(std::max(offsets.size(), unit.parts.size() + 1), 0);
  }
  // The largest of each part, so that experts of any layer fit.
  std::vector<std::uint64_t> room(offsets.size() - 1, 0);
  for (const Unit& unit : units.units())
    for (std::size_t p = 0; unit.kind == UnitKind::expert && p < unit.parts.size(); ++p)
      room[p] = std::max(room[p], device_room(unit.parts[p]));
  for (std::size_t p = 0; p < room.size(); ++p) offsets[p + 1] = offsets[p] + room[p];
  return offsets;
}

std::size_t most_experts_of_a_layer(const UnitTable& units) {
  int most = 0;
  for (const Unit& unit : units.units()) most = std::max(most, unit.expert + 1);
  return static_cast<std::size_t>(most);
}

std::uint64_t device_slot_bytes(const UnitTable& units) {
  return std::max(expert_part_offsets(units).back(), round_up(expert_slot_bytes(units) + kBehindWeight, kDeviceEdge));
}

std::uint64_t wave_table_bytes(const ExpertTiers& tiers, std::size_t parts) {
  return round_up((static_cast<std::uint64_t>(tiers.wave_experts) * parts + kExpertBiases) * sizeof(std::byte*),
                  kDeviceEdge);
}

std::uint64_t device_expert_bytes(const UnitTable& units, const ExpertTiers& tiers) {
  if (!tiers.any()) return 0;
  const std::size_t parts = expert_part_offsets(units).size() - 1;
  const auto slots = static_cast<std::uint64_t>(1 + tiers.vram_slots + kExpertRooms * tiers.wave_experts);
  const std::uint64_t addresses =
      (static_cast<std::uint64_t>(units.experts()) + most_experts_of_a_layer(units)) * parts;
  return slots * device_slot_bytes(units) + kExpertRooms * wave_table_bytes(tiers, parts) +
         addresses * sizeof(std::byte*);
}

std::uint64_t pinned_expert_bytes(const UnitTable& units, const ExpertTiers& tiers) {
  if (!tiers.any()) return 0;
  const std::size_t parts = expert_part_offsets(units).size() - 1;
  return round_up(static_cast<std::uint64_t>(tiers.ram_slots) * expert_slot_bytes(units), device::kHugePageBytes) +
         kBehindExperts + 2 * static_cast<std::uint64_t>(units.experts()) * parts * sizeof(std::byte*) +
         kExpertRooms * wave_table_bytes(tiers, parts);
}

}  // namespace millrace::residency
