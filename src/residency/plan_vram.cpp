// The plan of a model that a GPU computes.
#include <algorithm>

#include "residency/plan.h"

namespace millrace::residency {
namespace {

/// Bytes of the unit that a decoded token reads.
double bytes_per_token(const UnitTable& units, const Unit& unit, int top_k, std::int64_t experts) {
  const auto bytes = static_cast<double>(unit.bytes());
  if (unit.kind == UnitKind::expert && experts > 0) return bytes * top_k / static_cast<double>(experts);
  if (unit.kind == UnitKind::embedding && !units.tied_head() && !unit.parts.empty())
    return bytes / static_cast<double>(unit.parts.front().rows);
  return bytes;
}

const char* row_name(UnitKind kind, bool tied) {
  switch (kind) {
    case UnitKind::embedding:
      return tied ? "embedding and head" : "embedding, by rows";
    case UnitKind::trunk:
      return "trunks";
    case UnitKind::expert:
      return "experts";
    case UnitKind::head:
      return "head";
  }
  return "";
}

}  // namespace

Plan make_vram_plan(const UnitTable& units, const std::vector<Tier>& homes, const PlanOptions& options,
                    const Rates& rates) {
  Plan plan;
  plan.resident_tiles.assign(units.tiles().size(), true);
  for (const Tier home : homes) plan.homes.push_back({home, Executor::gpu});
  std::int64_t experts = 0;
  for (const Unit& unit : units.units()) experts = std::max(experts, static_cast<std::int64_t>(unit.expert) + 1);
  // What a token moves: through the device's memory, over PCIe, from the disk. The three run side by side.
  double computed = 0, crossed = 0, read = 0;
  for (const Tier tier : {Tier::vram, Tier::ram, Tier::disk}) {
    const double rate = tier == Tier::vram  ? rates.device_memory
                        : tier == Tier::ram ? rates.host_to_device
                                            : rates.disk;
    for (const UnitKind kind : {UnitKind::embedding, UnitKind::trunk, UnitKind::expert, UnitKind::head}) {
      Plan::Row row{std::string(tier_name(tier)), row_name(kind, units.tied_head()),
                    std::string(executor_name(Executor::gpu)),
                    tier == Tier::vram  ? "vram"
                    : tier == Tier::ram ? "pcie"
                                        : "disk"};
      for (std::size_t u = 0; u < units.units().size(); ++u) {
        const Unit& unit = units.units()[u];
        if (unit.kind != kind || homes[u] != tier) continue;
        const auto range = units.tiles_of(static_cast<std::int32_t>(u));
        ++row.units;
        row.tiles += range.last - range.first;
        row.bytes += unit.bytes();
        row.bytes_per_token += bytes_per_token(units, unit, options.top_k, experts);
      }
      if (row.units == 0) continue;
      if (rate > 0) row.milliseconds = row.bytes_per_token / rate * 1e3;
      computed += row.bytes_per_token;
      if (tier != Tier::vram) crossed += row.bytes_per_token;
      if (tier == Tier::disk) read += row.bytes_per_token;
      plan.rows.push_back(std::move(row));
    }
  }
  double seconds = 0;
  const auto at_least = [&](double bytes, double rate, const char* bound) {
    if (bytes == 0) return true;
    if (rate <= 0) return false;
    if (bytes / rate > seconds) seconds = bytes / rate, plan.bound = bound;
    return true;
  };
  if (at_least(computed, rates.device_memory, "vram") && at_least(crossed, rates.host_to_device, "pcie") &&
      at_least(read, rates.disk, "disk") && seconds > 0) {
    plan.predicted_decode_tokens_per_second = 1 / seconds;
  } else {
    plan.bound.clear();
  }
  return plan;
}

}  // namespace millrace::residency
