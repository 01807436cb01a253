#include "residency/plan.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "residency/budget.h"
#include "residency/census.h"
#include "residency/expert_use.h"
#include "residency/plan_rows.h"
#include "residency/predict.h"
#include "residency/type_rates.h"

namespace millrace::residency {
namespace {

// A typical machine, for choices without measured rates; such a plan predicts no speed.
constexpr double kUsualDisk = 3e9, kUsualCpu = 20e9;
// Ring sizes to try. The list is fixed: a larger budget has all choices of a smaller one, so it is never slower.
constexpr int kRingSlots[] = {2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256};

/// One division of the memory.
struct Choice {
  int ring_slots = 0;
  std::int64_t expert_slots = 0;
  std::uint64_t table_bytes = 0;       // of memory for tiles of tables at home
  std::uint64_t resident_weights = 0;  // bytes of ordered weights at home
  double stream_seconds = 0, miss_seconds = 0, compute_seconds = 0;
  double seconds() const { return miss_seconds + std::max(stream_seconds, compute_seconds); }
};

double positive_or(double value, double fallback) { return value > 0 ? value : fallback; }

double cpu_rate(const Rates& rates) {
  if (rates.cpu_decode > 0 && rates.ram > 0) return std::min(rates.cpu_decode, rates.ram);
  return std::max(rates.cpu_decode, rates.ram);
}

double hit_rate(const Census& census, const PlanOptions& options, std::int64_t slots) {
  const std::int64_t tiles = census.expert_tiles + census.front_experts;
  if (tiles == 0) return 0;
  const double part = static_cast<double>(slots + census.front_experts) / static_cast<double>(tiles);
  if (options.experts.routing.skew <= 0) return part;
  return ExpertUse(census.experts, std::max(1, options.passes.top_k), options.experts.routing.skew)
      .met(part * static_cast<double>(census.experts), 1, options.experts.routing.policy);
}

/// Ordered reads overlap with computing; an expert's read starts only after the router has chosen it, so the time of
/// misses is added to both.
void predict(const Census& census, const PlanOptions& options, const Rates& rates, Choice& choice) {
  const double disk = positive_or(rates.disk, kUsualDisk), cpu = positive_or(cpu_rate(rates), kUsualCpu);
  const auto read_seconds = [&](double bytes, double in_flight) {
    return bytes <= 0 ? 0 : bytes_in_order(bytes, in_flight, rates) / disk;
  };
  const double streamed = static_cast<double>(census.ordered_bytes - choice.resident_weights);
  choice.stream_seconds =
      read_seconds(streamed, static_cast<double>(census.largest_ordered) * std::max(1, choice.ring_slots - 1));
  const double missed = census.active_expert_bytes * (1 - hit_rate(census, options, choice.expert_slots));
  const auto together = std::min<std::int64_t>(choice.expert_slots, std::max(1, options.passes.top_k));
  choice.miss_seconds =
      read_seconds(missed, static_cast<double>(census.largest_expert) * static_cast<double>(together));
  choice.compute_seconds = (static_cast<double>(census.ordered_bytes) + census.active_expert_bytes) / cpu +
                           step_seconds(options.passes.steps, rates, 1);
}

/// Chooses the tiles that stay in `bytes` of memory, by preference; more `bytes` never give fewer. Marks them in
/// `marks` unless it is null; returns the bytes of weights (slot_bytes gets the bytes of memory).
std::uint64_t pack(const UnitTable& units, const Census& census, std::uint64_t bytes, std::vector<bool>* marks,
                   std::uint64_t* slot_bytes = nullptr) {
  std::uint64_t weights = 0, used = 0;
  for (const std::int32_t t : census.by_preference) {
    const Tile& tile = units.tiles()[t];
    if (tile.slot_bytes > bytes - used) continue;
    used += tile.slot_bytes;
    weights += tile.bytes;
    if (marks != nullptr) (*marks)[t] = true;
  }
  if (slot_bytes != nullptr) *slot_bytes = used;
  return weights;
}

/// All ordered units resident, the remaining memory for experts, then for tables.
std::optional<Choice> choose_without_ring(const Census& census, std::int64_t most_experts, std::uint64_t memory) {
  if (memory < census.ordered_slot_bytes) return std::nullopt;
  memory -= census.ordered_slot_bytes;
  Choice choice;
  choice.resident_weights = census.ordered_bytes;
  if (census.expert_tiles > 0) {
    choice.expert_slots = std::min(most_experts, static_cast<std::int64_t>(std::min<std::uint64_t>(
                                                     memory / census.largest_expert, std::uint64_t{1} << 30)));
    if (choice.expert_slots == 0) return std::nullopt;
    memory -= static_cast<std::uint64_t>(choice.expert_slots) * census.largest_expert;
  }
  if (choice.expert_slots == census.expert_tiles) choice.table_bytes = std::min(memory, census.table_slot_bytes);
  return choice;
}

/// `memory`: for resident tiles, ring and expert slots.
std::optional<Choice> choose(const UnitTable& units, const Census& census, const PlanOptions& options,
                             const Rates& rates, std::uint64_t memory) {
  const std::int64_t limit =
      options.experts.most_slots > 0 ? std::min(options.experts.most_slots, census.expert_tiles) : census.expert_tiles;
  std::optional<Choice> best = choose_without_ring(census, limit, memory);
  if (best) predict(census, options, rates, *best);
  const std::int64_t most_experts = std::min<std::int64_t>(limit, std::max(1, options.passes.top_k));
  for (const int ring : kRingSlots) {
    const std::uint64_t ring_bytes = census.largest_ordered * static_cast<std::uint64_t>(ring);
    if (census.ordered.empty() || ring_bytes > memory) break;
    if (ring > 2 && ring_bytes > options.ring_bytes_wanted) break;
    for (std::int64_t experts = census.expert_tiles == 0 ? 0 : 1; experts <= most_experts;
         experts = std::max<std::int64_t>(1, experts * 2)) {
      const std::uint64_t expert_bytes = census.largest_expert * static_cast<std::uint64_t>(experts);
      if (expert_bytes <= memory - ring_bytes && experts <= census.expert_tiles) {
        Choice choice;
        choice.ring_slots = ring;
        choice.expert_slots = experts;
        choice.resident_weights = census.front_bytes + pack(units, census, memory - ring_bytes - expert_bytes, nullptr);
        predict(census, options, rates, choice);
        const bool streams = choice.resident_weights < census.ordered_bytes;
        if (streams && (!best || choice.seconds() < best->seconds())) best = choice;
      }
      if (experts == most_experts) break;
    }
  }
  return best;
}

std::uint64_t add_or_max(std::uint64_t a, std::uint64_t b) { return a > UINT64_MAX - b ? UINT64_MAX : a + b; }

std::uint64_t other_bytes(const PlanOptions& options) { return add_or_max(options.fixed_bytes, options.kv_bytes); }

/// Huge pages are used as a whole: the rest of the last one is lost, and when the store's memory has shrunk to its
/// minimum, slots and resident tiles may be on two additional pages.
constexpr std::uint64_t kHugeSlack = 2 * device::kHugePageBytes;
std::uint64_t usable(std::uint64_t memory) {
  const std::uint64_t whole = round_down(memory, device::kHugePageBytes);
  return std::max(std::min(memory, kHugeWeightBytes - device::kPageBytes), whole - std::min(whole, kHugeSlack));
}

Status too_small(const Census& census, const PlanOptions& options) {
  const std::uint64_t streaming = census.ordered.empty() ? UINT64_MAX : 2 * census.largest_ordered;
  std::uint64_t weights = census.row_scratch + census.rows_ahead + census.front_slot_bytes +
                          std::min(streaming, census.ordered_slot_bytes) + census.largest_expert;
  if (weights >= kHugeWeightBytes) weights = round_up(weights, device::kHugePageBytes) + kHugeSlack;
  const std::uint64_t other = other_bytes(options);
  const std::uint64_t needed = add_or_max(weights, other);
  return error(Code::out_of_budget,
               "a budget of {} is too small: the least is {} ({} to stream the weights through, {} for KV, activations "
               "and the program); give at least --ram {}{}",
               format_bytes(options.ram_bytes), format_bytes(needed), format_bytes(weights), format_bytes(other),
               ram_argument(needed), options.kv_bytes > needed / 2 ? ", or a smaller --ctx" : "");
}

void fill_homes(const UnitTable& units, Plan& plan) {
  plan.homes.resize(units.units().size(), Tier::disk);
  const bool experts_home = plan.expert_slots > 0 && plan.predicted_hit_rate >= 1;
  for (std::size_t u = 0; u < units.units().size(); ++u) {
    const auto range = units.tiles_of(static_cast<std::int32_t>(u));
    bool home = true;
    for (std::int32_t t = range.first; t < range.last; ++t) home = home && plan.resident_tiles[t];
    const Unit& unit = units.units()[u];
    if (unit.kind == UnitKind::expert && !unit.aside) home = home || experts_home;
    if (unit.kind == UnitKind::embedding) plan.embedding_rows_from_disk = true;
    plan.homes[u] = home ? Tier::ram : Tier::disk;
  }
}

std::string row_name(const PlanRowKind& kind, Tier tier, const Plan& plan) {
  switch (kind.unit) {
    case UnitKind::embedding:
      if (!kind.by_rows) return tier == Tier::disk ? "embedding as head, streamed" : "embedding as head";
      return tier == Tier::disk ? "embedding, by rows" : "embedding";
    case UnitKind::trunk:
      return tier == Tier::disk ? "trunks, streamed" : "trunks";
    case UnitKind::head:
      return tier == Tier::disk ? "head, streamed" : "head";
    case UnitKind::expert:
      if (tier == Tier::disk) return "experts, misses";
      return plan.predicted_hit_rate < 1 ? "experts, cache" : "experts";
  }
  return "";
}

/// Rows of the printed table, by tier and kind. Experts that do not all fit are listed in both tiers: cache and misses.
void fill_rows(const UnitTable& units, const Census& census, const Choice& choice, const Rates& rates, Plan& plan) {
  const double cpu = cpu_rate(rates);
  const bool computing = rates.cpu_decode > 0 && (rates.ram <= 0 || rates.cpu_decode < 0.95 * rates.ram);
  for (const Tier tier : {Tier::ram, Tier::disk}) {
    for (const PlanRowKind& kind : kPlanRowKinds) {
      const bool expert = kind.unit == UnitKind::expert;
      Plan::Row row{std::string(tier_name(tier)), row_name(kind, tier, plan), std::string(executor_name(Executor::cpu)),
                    tier == Tier::disk ? "disk"
                    : computing        ? "compute"
                                       : "ram"};
      for (std::size_t u = 0; u < units.units().size(); ++u) {
        if (!kind.has(units.units()[u])) continue;
        const auto range = units.tiles_of(static_cast<std::int32_t>(u));
        const std::int64_t before = row.tiles;
        for (std::int32_t t = range.first; t < range.last; ++t) {
          const bool at_home = expert ? plan.homes[u] == Tier::ram : plan.resident_tiles[t];
          if (at_home != (tier == Tier::ram)) continue;
          ++row.tiles;
          row.bytes += units.tiles()[t].bytes;
        }
        if (row.tiles > before) ++row.units;
      }
      double bytes_of_home = 0;  // read for a token, of experts that stay
      if (expert && tier == Tier::ram && plan.predicted_hit_rate < 1 && plan.expert_slots > 0) {
        if (row.tiles > 0) {
          Plan::Row home = row;
          home.what = "experts";
          bytes_of_home = census.active_expert_bytes * static_cast<double>(census.front_experts) /
                          static_cast<double>(census.front_experts + census.expert_tiles);
          home.bytes_per_token = bytes_of_home;
          home.milliseconds = cpu > 0 ? bytes_of_home / cpu * 1e3 : 0;
          plan.rows.push_back(std::move(home));
        }
        row.units = row.tiles = plan.expert_slots;
        row.bytes = plan.expert_slot_bytes * static_cast<std::uint64_t>(plan.expert_slots);
      }
      if (row.tiles == 0) continue;
      const double hits = plan.predicted_hit_rate;
      row.bytes_per_token = expert ? census.active_expert_bytes * (tier == Tier::ram ? hits : 1 - hits) - bytes_of_home
                            : kind.by_rows
                                ? static_cast<double>(census.table_row_bytes) * static_cast<double>(row.bytes) /
                                      static_cast<double>(census.table_bytes)
                                : static_cast<double>(row.bytes);
      const double rate = tier == Tier::disk ? rates.disk : cpu;
      row.milliseconds = rate > 0 ? row.bytes_per_token / rate * 1e3 : 0;
      // Streamed tiles share the ring's rate; experts are read only a few at a time, as the router chooses them.
      const double streamed = static_cast<double>(census.ordered_bytes - choice.resident_weights);
      if (tier == Tier::disk && rates.disk > 0 && expert) row.milliseconds = choice.miss_seconds * 1e3;
      if (tier == Tier::disk && rates.disk > 0 && !expert && !kind.by_rows)
        row.milliseconds = choice.stream_seconds * 1e3 * row.bytes_per_token / streamed;
      plan.rows.push_back(std::move(row));
    }
  }
}

void fill_prediction(const Choice& choice, const Rates& rates, Plan& plan) {
  const bool reads = choice.stream_seconds + choice.miss_seconds > 0;
  if (cpu_rate(rates) <= 0 || (reads && rates.disk <= 0) || choice.seconds() <= 0) return;
  plan.predicted_decode_tokens_per_second = 1 / choice.seconds();
  const bool disk = choice.miss_seconds > choice.compute_seconds || choice.stream_seconds > choice.compute_seconds;
  plan.bound = disk ? "disk" : rates.cpu_decode > 0 && rates.cpu_decode < 0.95 * rates.ram ? "compute" : "ram";
}

/// The memory for resident tiles, ring and expert slots; nothing if there is none.
std::optional<std::uint64_t> memory_for_tiles(const Census& census, const PlanOptions& options) {
  const std::uint64_t other = other_bytes(options);
  if (other > options.ram_bytes) return std::nullopt;
  const std::uint64_t memory = usable(options.ram_bytes - other),
                      always = census.row_scratch + census.rows_ahead + census.front_slot_bytes;
  if (memory < always) return std::nullopt;
  return memory - always;
}

/// Of that memory, what keeps rows of a table that is read here and there: little, because a row saves a read of one
/// block, and an expert one of hundreds.
std::uint64_t row_cache_bytes(const Census& census, std::uint64_t memory) {
  constexpr std::uint64_t kShare = 64;
  return std::min(census.most_row_cache, round_down(memory / kShare, device::kPageBytes));
}

/// The plan without the resident tiles.
Plan with_slots(const UnitTable& units, const Census& census, const Choice& choice, const PlanOptions& options) {
  Plan plan;
  plan.fixed_bytes = options.fixed_bytes;
  plan.row_scratch_bytes = census.row_scratch;
  plan.rows_ahead_bytes = census.rows_ahead;
  plan.ring_slots = choice.ring_slots;
  plan.ring_slot_bytes = choice.ring_slots > 0 ? census.largest_ordered : 0;
  plan.expert_slots = static_cast<int>(choice.expert_slots);
  plan.expert_slot_bytes = census.largest_expert;
  plan.predicted_hit_rate = hit_rate(census, options, choice.expert_slots);
  plan.resident_tiles.assign(units.tiles().size(), false);
  return plan;
}

std::uint64_t slot_bytes(const Plan& plan) {
  return plan.ring_slot_bytes * static_cast<std::uint64_t>(plan.ring_slots) +
         plan.expert_slot_bytes * static_cast<std::uint64_t>(plan.expert_slots);
}

/// By unit: whether a drafter of this many first layers uses it.
std::vector<bool> front_of(const UnitTable& units, int layers) {
  std::vector<bool> front;
  for (const Unit& unit : units.units()) front.push_back(in_front(unit, layers));
  return front;
}

/// Marks the front's tiles as resident.
void place_front(const Census& census, int front_layers, std::vector<bool> front, Plan& plan) {
  for (const std::int32_t t : census.front) plan.resident_tiles[static_cast<std::size_t>(t)] = true;
  plan.resident_bytes += census.front_slot_bytes;
  plan.front_layers = front_layers;
  if (front_layers != 0) plan.front = std::move(front);
}

/// Completes the plan after all tiles have homes.
void complete(const UnitTable& units, const Census& census, const Choice& choice, const PlanOptions& options,
              const Rates& rates, Plan& plan) {
  fill_homes(units, plan);
  fill_rows(units, census, choice, rates, plan);
  fill_prediction(choice, rates, plan);
  plan.cost = pass_cost(units, plan, options, false);
}

Status check_decisions(const UnitTable& units, const Census& census, const Decisions& decisions) {
  constexpr int kMostRingSlots = 4096;
  if (decisions.resident_tiles.size() != units.tiles().size())
    return error(Code::invalid_argument, "the plan is for {} tiles but the model has {}",
                 decisions.resident_tiles.size(), units.tiles().size());
  bool streams = false;
  for (const std::int32_t t : census.ordered) streams = streams || !decisions.resident_tiles[t];
  if (decisions.ring_slots < (streams ? 2 : 0) || decisions.ring_slots > kMostRingSlots)
    return error(Code::invalid_argument, "the plan has a ring of {} slots; {} to {} work", decisions.ring_slots,
                 streams ? 2 : 0, kMostRingSlots);
  if (decisions.expert_slots < (census.expert_tiles > 0 ? 1 : 0) || decisions.expert_slots > census.expert_tiles)
    return error(Code::invalid_argument, "the plan has {} expert slots but the model {} experts' tiles",
                 decisions.expert_slots, census.expert_tiles);
  for (std::size_t t = 0; t < units.tiles().size(); ++t)
    if (decisions.resident_tiles[t] && units.units()[units.tiles()[t].unit].kind == UnitKind::expert)
      return error(Code::invalid_argument, "the plan keeps tile {}, an expert's, in RAM; experts have slots", t);
  return {};
}

}  // namespace

std::string_view tier_name(Tier tier) {
  switch (tier) {
    case Tier::vram:
      return "vram";
    case Tier::ram:
      return "ram";
    case Tier::disk:
      return "disk";
  }
  return "unknown";
}

std::string_view executor_name(Executor executor) {
  switch (executor) {
    case Executor::cpu:
      return "cpu";
    case Executor::gpu:
      return "gpu";
    case Executor::split:
      return "cpu+gpu";
  }
  return "unknown";
}

namespace {

/// The plan with exactly this front. Errors: out_of_budget.
Expected<Plan> plan_with_front(const UnitTable& units, const PlanOptions& options, const Rates& rates,
                               int front_layers) {
  std::vector<bool> front = front_of(units, front_layers);
  const Census census = take_census(units, options.passes.top_k, front);
  std::optional<std::uint64_t> memory = memory_for_tiles(census, options);
  if (!memory) return too_small(census, options);
  const std::uint64_t row_cache = row_cache_bytes(census, *memory);
  auto choice = choose(units, census, options, rates, *memory - row_cache);
  const bool keeps_rows = choice.has_value();
  if (!choice) choice = choose(units, census, options, rates, *memory);
  if (!choice) return too_small(census, options);

  Plan plan = with_slots(units, census, *choice, options);
  if (keeps_rows) {
    plan.row_cache_bytes = row_cache;
    *memory -= row_cache;
  }
  pack(units, census, *memory - slot_bytes(plan), &plan.resident_tiles, &plan.resident_bytes);
  place_front(census, front_layers, std::move(front), plan);
  std::uint64_t for_tables = choice->table_bytes;
  for (const std::int32_t t : census.tables) {
    const std::uint64_t bytes = units.tiles()[static_cast<std::size_t>(t)].slot_bytes;
    if (bytes > for_tables) break;
    plan.resident_tiles[t] = true;
    plan.resident_bytes += bytes;
    for_tables -= bytes;
  }
  complete(units, census, *choice, options, rates, plan);
  return plan;
}

int count_layers(const UnitTable& units) {
  int layers = 0;
  for (const Unit& unit : units.units())
    if (!unit.aside) layers = std::max(layers, unit.layer + 1);
  return layers;
}

}  // namespace

bool reads_disk(const UnitTable& units, const Plan& plan) {
  for (std::size_t u = 0; u < units.units().size(); ++u)
    if (!units.units()[u].by_rows && !units.units()[u].aside && plan.homes[u] == Tier::disk) return true;
  return false;
}

bool in_front(const Unit& unit, int layers) {
  return !unit.by_rows && (unit.aside || (layers != 0 && unit.layer < std::max(0, layers)));
}

Expected<Plan> make_plan(const UnitTable& units, const PlanOptions& options, const Rates& machine) {
  const Rates rates = rates_for(weights_by_type(units, options.passes.top_k, false), machine);
  const auto plan_with_layers = [&](int layers) { return plan_with_front(units, options, rates, layers); };
  if (options.front_layers == kFrontOfHead) return plan_with_layers(kFrontOfHead);
  Expected<Plan> plain = plan_with_layers(0);
  if (!plain.ok() || options.front_layers == 0) return plain;
  if (options.front_layers > 0) {
    Expected<Plan> plan = plan_with_layers(options.front_layers);
    return plan.ok() ? plan : plain;
  }
  if (!reads_disk(units, *plain)) return plain;
  const Census all = take_census(units, options.passes.top_k, front_of(units, 0));
  const std::uint64_t memory = memory_for_tiles(all, options).value_or(0);
  for (int layers = count_layers(units) - 1; layers > 0; --layers) {
    if (take_census(units, options.passes.top_k, front_of(units, layers)).front_slot_bytes > memory / 2) continue;
    Expected<Plan> plan = plan_with_layers(layers);
    if (plan.ok()) return plan;
  }
  return plain;
}

Expected<FollowedPlan> follow_plan(const UnitTable& units, const Decisions& decisions, const PlanOptions& options,
                                   const Rates& machine) {
  const Rates rates = rates_for(weights_by_type(units, options.passes.top_k, false), machine);
  const Census census = take_census(units, options.passes.top_k, front_of(units, 0));
  MR_RETURN_IF_ERROR(check_decisions(units, census, decisions));
  const std::optional<std::uint64_t> memory = memory_for_tiles(census, options);
  if (!memory) return too_small(census, options);

  std::vector<bool> at_home = decisions.resident_tiles;
  std::uint64_t home_bytes = 0, ordered_at_home = 0;
  const auto take = [&](std::int32_t t) { home_bytes += at_home[t] ? units.tiles()[t].slot_bytes : 0; };
  std::for_each(census.tables.begin(), census.tables.end(), take);
  std::for_each(census.ordered.begin(), census.ordered.end(), take);

  Choice choice;
  choice.ring_slots = decisions.ring_slots;
  choice.expert_slots = decisions.expert_slots;
  const auto used = [&] {
    return home_bytes + census.largest_ordered * static_cast<std::uint64_t>(choice.ring_slots) +
           census.largest_expert * static_cast<std::uint64_t>(choice.expert_slots);
  };
  std::uint64_t gave_way = 0;
  const auto give_way = [&](std::int32_t t) {
    if (used() <= *memory || !at_home[t]) return;
    at_home[t] = false;
    home_bytes -= units.tiles()[t].slot_bytes;
    gave_way += units.tiles()[t].bytes;
    if (!units.units()[units.tiles()[t].unit].by_rows) choice.ring_slots = std::max(choice.ring_slots, 2);
  };
  std::for_each(census.tables.begin(), census.tables.end(), give_way);
  std::for_each(census.by_preference.rbegin(), census.by_preference.rend(), give_way);
  while (used() > *memory && choice.expert_slots > 1) {
    --choice.expert_slots;
    gave_way += census.largest_expert;
  }
  if (used() > *memory) return too_small(census, options);

  for (const std::int32_t t : census.ordered) ordered_at_home += at_home[t] ? units.tiles()[t].bytes : 0;
  choice.resident_weights = ordered_at_home;
  predict(census, options, rates, choice);
  FollowedPlan followed{with_slots(units, census, choice, options), gave_way};
  followed.plan.resident_tiles = std::move(at_home);
  followed.plan.resident_bytes = home_bytes;
  followed.plan.row_cache_bytes =
      std::min(row_cache_bytes(census, *memory), round_down(*memory - used(), device::kPageBytes));
  complete(units, census, choice, options, rates, followed.plan);
  return followed;
}

}  // namespace millrace::residency
