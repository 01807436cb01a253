// The plan of a model that a GPU computes.
#include <algorithm>

#include "residency/plan.h"
#include "residency/plan_rows.h"
#include "residency/predict.h"
#include "residency/type_rates.h"

namespace millrace::residency {
namespace {

/// The bytes of a unit that a decoded token reads.
double bytes_per_token(const Unit& unit, int top_k, std::int64_t experts) {
  const auto bytes = static_cast<double>(unit.bytes());
  if (unit.kind == UnitKind::expert && experts > 0) return bytes * top_k / static_cast<double>(experts);
  if (unit.by_rows && !unit.parts.empty()) return bytes / static_cast<double>(unit.parts.front().rows);
  return bytes;
}

const char* vram_row_name(const PlanRowKind& kind) {
  switch (kind.unit) {
    case UnitKind::embedding:
      return kind.by_rows ? "embedding, by rows" : "embedding and head";
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

/// The share of the rows with which link and CPU finish together in passes of this many rows. Layers are computed one
/// after another: the CPU waits while the GPU computes, the link does not.
int even_share(const Plan& plan, const Rates& rates, double rows) {
  const PassCost& cost = plan.cost;
  const double decode = shared_decode(cost, rates, rows);
  const double link = (cost.shared + cost.crossing) / rates.shared_link(), cpu = host_rest_seconds(plan, rates, true);
  const double share = (link - cpu) / (cost.shared / decode + cost.shared / rates.shared_link());
  return cost.shared <= 0 ? 0 : std::clamp(static_cast<int>(share * 1000), 0, kMostHostPermille);
}

/// The fastest share in passes of this many rows.
int choose_share(Plan plan, const Rates& rates, double rows) {
  if (rates.cpu_decode <= 0 || rates.host_to_device <= 0 || rates.device_memory <= 0) return 0;
  const double alone = (plan.cost.shared + plan.cost.crossing) / rates.host_to_device;
  if (rates.disk > 0 && plan.cost.read / rates.disk >= alone) return 0;  // the disk is waited for in any case
  const double without = predict_pass(plan, rates, {}, rows).seconds;
  plan.cpu_permille = even_share(plan, rates, rows);
  return predict_pass(plan, rates, {}, rows).seconds < without ? plan.cpu_permille : 0;
}

/// Table rows for experts that are not all in VRAM: in VRAM, used by the CPU in RAM, and read from the disk.
void add_expert_rows(Plan::Row all, const PlanOptions& options, const Rates& rates, Plan& plan) {
  const auto units = static_cast<double>(all.units);
  const auto add = [&](Tier tier, const char* what, const char* executor, const char* bound, std::int64_t slots,
                       double share, double rate) {
    Plan::Row row{std::string(tier_name(tier)), what, executor, bound};
    row.units = row.tiles = slots;
    row.bytes = static_cast<std::uint64_t>(static_cast<double>(all.bytes) / units * static_cast<double>(slots));
    row.bytes_per_token = all.bytes_per_token * share;
    if (rate > 0) row.milliseconds = row.bytes_per_token / rate * 1e3;
    plan.rows.push_back(std::move(row));
  };
  const double vram = plan.cost.experts_in_vram, ram = plan.cost.experts_in_ram;
  add(Tier::vram, "experts, slots", "gpu", "vram", std::min(options.experts.vram_slots, all.units), vram,
      rates.device_memory);
  const bool shares = plan.cost.expert_link.single > 0;
  add(Tier::ram, "experts", shares ? "split" : "cpu", shares ? "pcie, ram" : "ram",
      std::min(options.experts.ram_slots, all.units), 1 - vram,
      rates.shared_decode() + (shares ? rates.shared_link() : 0));
  if (ram < 1) add(Tier::disk, "experts", "cpu", "disk", all.units, (1 - vram) * (1 - ram), rates.disk);
  plan.predicted_hit_rate = vram;
}

}  // namespace

Plan make_vram_plan(const UnitTable& units, const std::vector<Tier>& homes, const PlanOptions& options,
                    const Rates& machine) {
  const Rates rates = rates_for(weights_by_type(units, options.passes.top_k, true), machine);
  Plan plan;
  plan.resident_tiles.assign(units.tiles().size(), true);
  plan.homes = homes;
  plan.cost = pass_cost(units, plan, options, true);
  if (plan.cost.shared_layers > 0)
    plan.cpu_permille =
        std::min(options.cpu_permille ? *options.cpu_permille : choose_share(plan, rates, options.passes.decode_rows),
                 kMostHostPermille);
  const double on_host = host_bytes(plan);
  for (const Tier tier : {Tier::vram, Tier::ram, Tier::disk}) {
    const double rate = tier == Tier::vram  ? rates.device_memory
                        : tier == Tier::ram ? rates.host_to_device
                                            : rates.disk;
    for (const PlanRowKind& kind : kPlanRowKinds) {
      const bool shared = tier == Tier::ram && kind.unit == UnitKind::trunk && plan.cpu_permille > 0;
      Plan::Row row{std::string(tier_name(tier)), vram_row_name(kind),
                    std::string(executor_name(shared ? Executor::split : Executor::gpu)),
                    tier == Tier::vram  ? "vram"
                    : shared            ? "pcie, ram"
                    : tier == Tier::ram ? "pcie"
                                        : "disk"};
      for (std::size_t u = 0; u < units.units().size(); ++u) {
        const Unit& unit = units.units()[u];
        if (!kind.has(unit) || homes[u] != tier) continue;
        const auto range = units.tiles_of(static_cast<std::int32_t>(u));
        ++row.units;
        row.tiles += range.last - range.first;
        row.bytes += unit.bytes();
        row.bytes_per_token += bytes_per_token(unit, options.passes.top_k, plan.cost.experts);
      }
      if (row.units == 0) continue;
      if (kind.unit == UnitKind::expert && options.experts.ram_slots > 0) {
        add_expert_rows(std::move(row), options, rates, plan);
        continue;
      }
      if (rate > 0) row.milliseconds = row.bytes_per_token / rate * 1e3;
      if (shared && rate > 0 && rates.cpu_decode > 0)
        row.milliseconds = std::max((row.bytes_per_token - on_host) / rate, on_host / rates.shared_decode()) * 1e3;
      plan.rows.push_back(std::move(row));
    }
  }
  const PassTime pass = predict_pass(plan, rates, {}, 1);
  plan.bound = pass.bound;
  if (pass.seconds > 0) plan.predicted_decode_tokens_per_second = 1 / pass.seconds;
  return plan;
}

}  // namespace millrace::residency
