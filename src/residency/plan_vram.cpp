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

constexpr int kMostHostPermille = 950;  // the GPU keeps a few rows of every matrix
// Measured on an H200 (docs/benchmarks.md). Products of decoding read this much of what a copy within device memory
// moves, and each layer has launches that begin and end.
constexpr double kProductsOfCopy = 0.8;
constexpr double kLaunchSeconds = 13e-6;
// A layer that is shared hands over four times (Q K V, output, gate and up, down): so long nobody computes.
constexpr double kHandOverSeconds = 4 * 95e-6;

/// What a decoded token moves, in bytes.
struct Moved {
  double home = 0;      // computed from device memory, where it always lies
  double shared = 0;    // at home in RAM, and computed by both
  double crossing = 0;  // other bytes that cross to the device
  double read = 0;      // from the disk
  std::int64_t layers = 0, shared_layers = 0;

  /// What the processor waits for in a pass, however many rows it takes.
  double rest_seconds(const Rates& rates) const {
    return home / (rates.device_memory * kProductsOfCopy) + launch_seconds() +
           static_cast<double>(shared_layers) * kHandOverSeconds;
  }
  double launch_seconds() const { return static_cast<double>(layers) * kLaunchSeconds; }
};

/// The processor's share that lets the link and the processor end together. Layers are computed one after the other:
/// the processor rests while layers at home in VRAM are, the link does not.
int share_for(const Moved& moved, const Rates& rates) {
  if (moved.shared == 0 || rates.cpu_decode <= 0 || rates.host_to_device <= 0 || rates.device_memory <= 0) return 0;
  const double alone = (moved.shared + moved.crossing) / rates.host_to_device;
  if (rates.disk > 0 && moved.read / rates.disk >= alone) return 0;  // the disk is waited for in any case
  const double link = (moved.shared + moved.crossing) / rates.shared_link();
  const double share =
      (link - moved.rest_seconds(rates)) / (moved.shared / rates.shared_decode() + moved.shared / rates.shared_link());
  return std::clamp(static_cast<int>(share * 1000), 0, kMostHostPermille);
}

}  // namespace

Plan make_vram_plan(const UnitTable& units, const std::vector<Tier>& homes, const PlanOptions& options,
                    const Rates& rates) {
  Plan plan;
  plan.resident_tiles.assign(units.tiles().size(), true);
  std::int64_t experts = 0;
  for (const Unit& unit : units.units()) experts = std::max(experts, static_cast<std::int64_t>(unit.expert) + 1);
  Moved moved;
  const auto is_shared = [&](std::size_t u) {
    return homes[u] == Tier::ram && units.units()[u].kind == UnitKind::trunk;
  };
  for (std::size_t u = 0; u < homes.size(); ++u) {
    const double bytes = bytes_per_token(units, units.units()[u], options.top_k, experts);
    (homes[u] == Tier::vram ? moved.home : is_shared(u) ? moved.shared : moved.crossing) += bytes;
    if (homes[u] == Tier::disk) moved.read += bytes;
    if (units.units()[u].kind == UnitKind::trunk) ++moved.layers;
    if (is_shared(u)) ++moved.shared_layers;
  }
  plan.host_permille =
      options.host_permille >= 0 ? std::min(options.host_permille, kMostHostPermille) : share_for(moved, rates);
  if (moved.shared == 0) plan.host_permille = 0;
  const double host_share = plan.host_permille / 1000.0;
  for (std::size_t u = 0; u < homes.size(); ++u)
    plan.homes.push_back({homes[u], is_shared(u) && plan.host_permille > 0 ? Executor::split : Executor::gpu});
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
  // The device's memory, the link, the processor and the disk work side by side.
  double seconds = 0;
  const auto at_least = [&](double bytes, double rate, double before, const char* bound) {
    if (bytes == 0) return true;
    if (rate <= 0) return false;
    if (before + bytes / rate > seconds) seconds = before + bytes / rate, plan.bound = bound;
    return true;
  };
  const double on_host = moved.shared * host_share, crossed = moved.shared - on_host + moved.crossing;
  const double link = plan.host_permille > 0 ? rates.shared_link() : rates.host_to_device;
  if (at_least(moved.home + crossed, rates.device_memory * kProductsOfCopy, moved.launch_seconds(), "vram") &&
      at_least(crossed, link, 0, "pcie") && at_least(moved.read, rates.disk, 0, "disk") &&
      at_least(on_host, rates.shared_decode(), rates.device_memory > 0 ? moved.rest_seconds(rates) : 0, "ram") &&
      seconds > 0) {
    plan.predicted_decode_tokens_per_second = 1 / seconds;
  } else {
    plan.bound.clear();
  }
  return plan;
}

}  // namespace millrace::residency
