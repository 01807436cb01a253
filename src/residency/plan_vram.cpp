// The plan of a model that a GPU computes.
#include <algorithm>

#include "residency/plan.h"
#include "residency/predict.h"

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

constexpr int kMostHostPermille = 950;  // the GPU keeps a few rows of every matrix

/// The processor's share that lets the link and the processor end together. Layers are computed one after the other:
/// the processor rests while layers at home in VRAM are, the link does not.
int share_for(const PassCost& cost, const Rates& rates) {
  if (cost.shared == 0 || rates.cpu_decode <= 0 || rates.host_to_device <= 0 || rates.device_memory <= 0) return 0;
  const double alone = (cost.shared + cost.crossing) / rates.host_to_device;
  if (rates.disk > 0 && cost.read / rates.disk >= alone) return 0;  // the disk is waited for in any case
  const double link = (cost.shared + cost.crossing) / rates.shared_link();
  const double share = (link - host_rest_seconds(cost, rates)) /
                       (cost.shared / rates.shared_decode() + cost.shared / rates.shared_link());
  return std::clamp(static_cast<int>(share * 1000), 0, kMostHostPermille);
}

}  // namespace

Plan make_vram_plan(const UnitTable& units, const std::vector<Tier>& homes, const PlanOptions& options,
                    const Rates& rates) {
  Plan plan;
  plan.resident_tiles.assign(units.tiles().size(), true);
  std::int64_t experts = 0;
  for (const Unit& unit : units.units()) experts = std::max(experts, static_cast<std::int64_t>(unit.expert) + 1);
  const auto is_shared = [&](std::size_t u) {
    return homes[u] == Tier::ram && units.units()[u].kind == UnitKind::trunk;
  };
  for (const Tier home : homes) plan.homes.push_back({home, Executor::gpu});
  plan.cost = pass_cost(units, plan, options, true);
  plan.host_permille =
      options.host_permille >= 0 ? std::min(options.host_permille, kMostHostPermille) : share_for(plan.cost, rates);
  if (plan.cost.shared == 0) plan.host_permille = 0;
  const double host_share = plan.host_permille / 1000.0;
  for (std::size_t u = 0; u < homes.size(); ++u)
    if (is_shared(u) && plan.host_permille > 0) plan.homes[u].executor = Executor::split;
  for (const Tier tier : {Tier::vram, Tier::ram, Tier::disk}) {
    const double rate = tier == Tier::vram  ? rates.device_memory
                        : tier == Tier::ram ? rates.host_to_device
                                            : rates.disk;
    for (const UnitKind kind : {UnitKind::embedding, UnitKind::trunk, UnitKind::expert, UnitKind::head}) {
      const bool shared = tier == Tier::ram && kind == UnitKind::trunk && plan.host_permille > 0;
      Plan::Row row{std::string(tier_name(tier)), row_name(kind, units.tied_head()),
                    std::string(executor_name(shared ? Executor::split : Executor::gpu)),
                    tier == Tier::vram  ? "vram"
                    : shared            ? "pcie, ram"
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
      if (shared && rate > 0 && rates.cpu_decode > 0)
        row.milliseconds = std::max(row.milliseconds * (1 - host_share),
                                    row.bytes_per_token * host_share / rates.shared_decode() * 1e3);
      plan.rows.push_back(std::move(row));
    }
  }
  const PassTime pass = predict_pass(plan, rates, {}, 1);
  plan.bound = pass.bound;
  if (pass.seconds > 0) plan.predicted_decode_tokens_per_second = 1 / pass.seconds;
  return plan;
}

}  // namespace millrace::residency
