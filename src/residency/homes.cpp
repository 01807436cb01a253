#include "residency/homes.h"

#include <algorithm>
#include <climits>

#include "base/bytes.h"
#include "base/log.h"
#include "residency/budget.h"
#include "residency/predict.h"
#include "residency/type_rates.h"

namespace millrace::residency {
namespace {

constexpr int kMostRingUnits = 2, kLeastRingUnits = 1;
constexpr int kMostWaveExperts = 16;  // more would take VRAM from slots, and copies are long enough
// Of a layer's experts outside VRAM, in passes of few rows: what the GPU reads across the link where rates are unknown.
constexpr LinkShare kUsualLink = {.single = 300, .several = 220};

bool is_expert(const Unit& unit) { return unit.kind == UnitKind::expert; }
bool is_trunk(const Unit& unit) { return unit.kind == UnitKind::trunk; }

Status vram_refusal(const char* what, std::uint64_t least, const HomesInput& input) {
  return error(Code::out_of_budget,
               "{} of VRAM are too few even with every {} ({} tokens of context): --vram {} is the least that works",
               format_bytes(input.vram_bytes), what, input.context_tokens, ram_argument(least));
}

/// Homes for `moving` of the layers outside VRAM, `to_disk` of them on the disk; what the user pinned stays where it is
/// pinned. from: layers before this one stay, and what is no layer; -1: none does. trunks: all others. ring_units:
/// where the disk is read behind the parts of a prompt.
Homes spread_layers(const UnitTable& units, const HomesInput& input, int from, std::int64_t trunks, std::int64_t moving,
                    std::int64_t to_disk, int ring_units) {
  Homes homes = homes_in_vram(units);
  homes.placement.straight = input.straight;
  std::int64_t trunk = 0, mover = 0;
  for (std::size_t u = 0; u < units.units().size(); ++u) {
    const Unit& unit = units.units()[u];
    Tier& home = homes.placement.homes[u];
    if (unit.by_rows) home = Tier::ram;
    if (!is_trunk(unit) || unit.layer < from) continue;
    const bool moves = (trunk + 1) * moving / trunks > trunk * moving / trunks;
    ++trunk;
    if (moves) {
      const bool disk = (mover + 1) * to_disk / moving > mover * to_disk / moving;
      home = disk ? Tier::disk : Tier::ram;
      ++mover;
    }
    for (const Pin& pin : input.pins)
      if (unit.layer >= pin.first_layer && unit.layer <= pin.last_layer) home = pin.tier;
    if (home != Tier::vram) ++homes.movers;
    if (home == Tier::disk) ++homes.on_disk;
  }
  // While a prompt of several parts is worked, one unit stays: the disk reads on only where the ring has room for more.
  const bool large_ring = homes.on_disk > 0 && input.parted_prompts;
  homes.placement.ring_units = homes.movers == 0 ? 0 : large_ring ? ring_units : kLeastRingUnits;
  return homes;
}

/// front: HomesInput::front_layers, or 0.
Expected<Homes> choose_layers(const UnitTable& units, const HomesInput& input, int front) {
  const std::int64_t all = std::count_if(units.units().begin(), units.units().end(), is_trunk);
  const std::int64_t layers = std::count_if(units.units().begin(), units.units().end(),
                                            [](const Unit& unit) { return is_trunk(unit) && unit.layer >= 0; });
  const std::int64_t trunks = front == 0 ? all : std::max<std::int64_t>(0, layers - std::max(0, front));
  std::uint64_t least = UINT64_MAX;
  for (int ring_units = kMostRingUnits; ring_units >= kLeastRingUnits; --ring_units) {
    for (std::int64_t moving = input.pins.empty() ? 1 : 0; moving <= trunks; ++moving) {
      const std::int64_t stay = front == 0 ? -1 : front > 0 ? front : layers - moving;
      Homes homes;
      std::uint64_t ram = 0;
      for (std::int64_t to_disk = 0; to_disk <= moving; ++to_disk) {
        homes = spread_layers(units, input, static_cast<int>(stay), front < 0 ? moving : trunks, moving, to_disk,
                              ring_units);
        ram = ram_bytes(units, homes, input) + input.ram_spread_bytes;
        if (ram <= input.ram_bytes) break;
      }
      if (ram > input.ram_bytes)
        return error(
            Code::out_of_budget,
            "--ram {} is too little to stream to the GPU: reading ahead of it takes {}; give more, or use --device "
            "cpu, which needs less",
            ram_argument(input.ram_bytes), format_bytes(ram));
      const std::uint64_t vram = vram_bytes(units, homes, input);
      least = std::min(least, vram);
      if (vram <= input.vram_bytes) return homes;
    }
  }
  return vram_refusal("layer streamed", least, input);
}

/// As many experts in RAM as there is room for. REQUIRES: what lies in VRAM is decided, ram_slots is the most.
Status choose_experts_in_ram(const UnitTable& units, const HomesInput& input, const Rates& rates, Homes& homes) {
  ExpertTiers& experts = homes.experts;
  const auto all = static_cast<int>(units.experts());
  const int most = experts.ram_slots;
  const std::uint64_t room = input.ram_bytes - std::min(input.ram_bytes, input.ram_spread_bytes);
  if (ram_bytes(units, homes, input) > room) {
    experts.ram_slots = std::min(most, least_ram_experts(experts.wave_experts));
    const std::uint64_t least = ram_bytes(units, homes, input);
    if (least > room)
      return error(Code::out_of_budget,
                   "--ram {} is too little for experts beside the GPU: --ram {} is the least that works; or use "
                   "--device cpu, which needs less",
                   ram_argument(input.ram_bytes), ram_argument(least + input.ram_spread_bytes));
    experts.ram_slots = static_cast<int>(std::min<std::uint64_t>(
        static_cast<std::uint64_t>(most),
        static_cast<std::uint64_t>(experts.ram_slots) + (room - least) / expert_slot_bytes(units)));
    while (ram_bytes(units, homes, input) > room) --experts.ram_slots;
  }
  if (experts.ram_slots == all) {
    // What lets link and processor end together. A user's share of rows is one of experts, too.
    const LinkShare share = link_share(rates_for(weights_by_type(units, 0, true), rates));
    const int asked = 1000 - input.cpu_share_percent * 10;
    experts.link = input.cpu_share_percent >= 0 ? LinkShare{.single = asked, .several = asked}
                   : share.any()                ? share
                                                : kUsualLink;
    return {};
  }
  for (std::size_t u = 0; u < units.units().size(); ++u)
    if (is_expert(units.units()[u])) homes.placement.homes[u] = Tier::disk;
  return {};
}

Expected<Homes> choose_experts(const UnitTable& units, const HomesInput& input, const Rates& rates) {
  if (!input.pins.empty()) return error(Code::unsupported, "--pin: experts come and go as they are used; leave it out");
  Homes homes = homes_in_vram(units);
  homes.placement.straight = input.straight;
  for (std::size_t u = 0; u < units.units().size(); ++u)
    if (is_expert(units.units()[u]) || units.units()[u].by_rows) homes.placement.homes[u] = Tier::ram;
  const std::int64_t all = units.experts();
  const std::int64_t most_vram = input.most_vram_experts >= 0 ? std::min(input.most_vram_experts, all) : all;
  const std::int64_t most_ram = input.most_ram_experts > 0 ? std::min(input.most_ram_experts, all) : all;
  std::uint64_t least = UINT64_MAX;
  for (int wave = std::min(kMostWaveExperts, static_cast<int>(most_experts_of_a_layer(units))); wave > 0; wave /= 2) {
    homes.experts = {.ram_slots = static_cast<int>(most_ram), .wave_experts = wave, .policy = input.policy};
    if (most_ram < std::min<std::int64_t>(all, least_ram_experts(wave))) {
      if (wave > 1) continue;
      return error(Code::out_of_budget, "--expert-slots {}: beside a GPU {} are the least that work",
                   input.most_ram_experts, least_ram_experts(1));
    }
    const std::uint64_t vram = vram_bytes(units, homes, input);
    least = std::min(least, vram);
    if (vram > input.vram_bytes) continue;
    homes.experts.vram_slots = static_cast<int>(std::min<std::uint64_t>(
        static_cast<std::uint64_t>(most_vram), (input.vram_bytes - vram) / device_slot_bytes(units)));
    MR_RETURN_IF_ERROR(choose_experts_in_ram(units, input, rates, homes));
    return homes;
  }
  return vram_refusal("expert outside", least, input);
}

}  // namespace

std::uint64_t vram_bytes(const UnitTable& units, const Homes& homes, const HomesInput& input) {
  return input.vram_taken_bytes + device_weight_bytes(units, homes.placement) +
         device_expert_bytes(units, homes.experts);
}

std::uint64_t ram_bytes(const UnitTable& units, const Homes& homes, const HomesInput& input) {
  return input.ram_taken_bytes + pinned_weight_bytes(units, homes.placement) +
         pinned_expert_bytes(units, homes.experts) + (homes.experts.any() ? input.ram_beside_experts_bytes : 0);
}

Homes homes_in_vram(const UnitTable& units) {
  Homes homes;
  homes.placement.homes.assign(units.units().size(), Tier::vram);
  return homes;
}

Expected<Homes> choose_homes(const UnitTable& units, const HomesInput& input, const Rates& rates) {
  if (units.experts() > 0) return choose_experts(units, input, rates);
  if (input.front_layers != 0 && input.pins.empty()) {
    Expected<Homes> homes = choose_layers(units, input, input.front_layers);
    if (homes.ok()) return homes;
  }
  return choose_layers(units, input, 0);
}

int leading_layers(const UnitTable& units, const std::vector<Tier>& tiers) {
  int leading = 0, moves = INT_MAX;
  for (std::size_t u = 0; u < tiers.size(); ++u) {
    const Unit& unit = units.units()[u];
    leading = std::max(leading, unit.layer + 1);
    if (unit.layer >= 0 && tiers[u] != Tier::vram) moves = std::min(moves, unit.layer);
  }
  return std::min(leading, moves);
}

bool layers_move(const UnitTable& units, const std::vector<Tier>& tiers) {
  for (std::size_t u = 0; u < tiers.size(); ++u)
    if (is_trunk(units.units()[u]) && tiers[u] != Tier::vram) return true;
  return false;
}

bool experts_flow(const UnitTable& units, const std::vector<Tier>& tiers) {
  for (std::size_t u = 0; u < tiers.size(); ++u)
    if (is_expert(units.units()[u]) && tiers[u] != Tier::vram) return true;
  return false;
}

Expected<Homes> follow_homes(const UnitTable& units, const std::vector<Tier>& tiers, int ring_units,
                             const HomesInput& input) {
  Homes homes;
  homes.placement.straight = input.straight;
  homes.placement.homes = tiers;
  for (std::size_t u = 0; u < tiers.size(); ++u) {
    const Unit& unit = units.units()[u];
    if (tiers[u] == Tier::vram) continue;
    if (is_trunk(unit)) {
      ++homes.movers;
      if (tiers[u] == Tier::disk) ++homes.on_disk;
    } else if (!unit.by_rows || tiers[u] == Tier::disk) {
      return error(Code::unsupported, "the plan places unit {}, {}, in {}; it must be in vram", u,
                   unit_kind_name(unit.kind), tier_name(tiers[u]));
    }
  }
  homes.placement.ring_units = homes.movers > 0 ? std::clamp(ring_units, kLeastRingUnits, kMostRingUnits) : 0;
  const std::uint64_t vram = vram_bytes(units, homes, input), ram = ram_bytes(units, homes, input);
  if (vram > input.vram_bytes)
    return error(Code::out_of_budget,
                 "the plan takes {} of VRAM and there are {}: --vram {} is the least for it, or make one anew",
                 format_bytes(vram), format_bytes(input.vram_bytes), ram_argument(vram));
  if (ram > input.ram_bytes)
    return error(Code::out_of_budget, "the plan takes {} of RAM: --ram {} is the least for it, or make one anew",
                 format_bytes(ram), ram_argument(ram));
  return homes;
}

Plan plan_homes(const UnitTable& units, Homes& homes, PlanOptions& options, const Rates& rates) {
  options.experts.vram_slots = homes.experts.vram_slots;
  options.experts.ram_slots = homes.experts.ram_slots;
  options.experts.link = homes.experts.link;
  Plan plan = make_vram_plan(units, homes.placement.homes, options, rates);
  homes.placement.host_permille = plan.cpu_permille;
  plan.ring_slots = homes.placement.ring_units;
  plan.expert_slots = homes.experts.ram_slots;
  plan.vram_weight_bytes = device_weight_bytes(units, homes.placement) + device_expert_bytes(units, homes.experts);
  return plan;
}

}  // namespace millrace::residency
