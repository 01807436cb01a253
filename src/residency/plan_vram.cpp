// The plan of a model that is at home in a GPU's memory as a whole.
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

Plan make_vram_plan(const UnitTable& units, const PlanOptions& options, const Rates& rates) {
  Plan plan;
  plan.homes.assign(units.units().size(), {Tier::vram, Executor::gpu});
  plan.resident_tiles.assign(units.tiles().size(), true);
  std::int64_t experts = 0;
  for (const Unit& unit : units.units()) experts = std::max(experts, static_cast<std::int64_t>(unit.expert) + 1);
  double seconds = 0;
  for (const UnitKind kind : {UnitKind::embedding, UnitKind::trunk, UnitKind::expert, UnitKind::head}) {
    Plan::Row row{std::string(tier_name(Tier::vram)), row_name(kind, units.tied_head()),
                  std::string(executor_name(Executor::gpu)), "vram"};
    for (std::size_t u = 0; u < units.units().size(); ++u) {
      const Unit& unit = units.units()[u];
      if (unit.kind != kind) continue;
      const auto range = units.tiles_of(static_cast<std::int32_t>(u));
      ++row.units;
      row.tiles += range.last - range.first;
      row.bytes += unit.bytes();
      row.bytes_per_token += bytes_per_token(units, unit, options.top_k, experts);
    }
    if (row.units == 0) continue;
    if (rates.device_memory > 0) row.milliseconds = row.bytes_per_token / rates.device_memory * 1e3;
    seconds += row.milliseconds * 1e-3;
    plan.rows.push_back(std::move(row));
  }
  if (seconds > 0) {
    plan.predicted_decode_tokens_per_second = 1 / seconds;
    plan.bound = "vram";
  }
  return plan;
}

}  // namespace millrace::residency
