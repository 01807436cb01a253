// Chooses the homes of a model's units with one GPU, under a cap on GPU memory and one on host memory: which layers
// stay in VRAM, which cross to it from RAM or from the disk, and how many slots a mixture's experts have in each
// memory. A token reads every layer but only a few of a layer's experts, so trunks take VRAM first and experts take the
// rest; the same holds for RAM. Every byte in a faster tier shortens the predicted pass, and no room is left that
// another unit would fit into. Pure; needs no GPU. The caller sets the limits of passes. Thread-safety: values.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "residency/placement.h"
#include "residency/plan.h"
#include "residency/unit.h"

namespace millrace::residency {

/// Layers whose home the user has fixed (--pin). Dense models only.
struct Pin {
  int first_layer = 0, last_layer = 0;  // both included
  Tier tier = Tier::vram;
};

/// The caps that homes must fit into, and the other inputs of the choice.
struct HomesInput {
  std::uint64_t vram_bytes = 0, ram_bytes = 0;  // the caps
  // Memory that is not for weights: on the GPU context, activations and KV; in RAM the program, threads and loading.
  std::uint64_t vram_taken_bytes = 0, ram_taken_bytes = 0;
  std::uint64_t ram_beside_experts_bytes = 0;  // more RAM if experts are outside VRAM, because the CPU computes them
  std::uint64_t ram_spread_bytes = 0;          // a margin for the next run, which may follow this plan
  std::int64_t context_tokens = 0;             // that the above is for: errors name it
  bool parted_prompts = false;                 // a pass takes more rows of a prompt than it computes at once
  bool straight = false;                       // DevicePlacement
  std::vector<Pin> pins;
  std::int64_t most_vram_experts = -1;  // with slots in VRAM; -1: any number
  std::int64_t most_ram_experts = 0;    // in RAM at once; 0: any number
  CachePolicy policy = CachePolicy::lru;
  int cpu_share_percent = -1;  // the CPU's share of experts outside VRAM, if the user set it; -1: chosen from the rates
  // For a dense model without pins: the layers in VRAM are the first ones, at least this many, or as many as fit
  // (kFrontOfPlan). If that is impossible, the option is ignored.
  int front_layers = 0;
};

struct Homes {
  DevicePlacement placement;
  ExpertTiers experts;                   // of a mixture that is not in VRAM as a whole
  std::int64_t movers = 0, on_disk = 0;  // layers outside VRAM; of them on the disk
};

/// The memory that these homes need under each cap, other memory included.
std::uint64_t vram_bytes(const UnitTable& units, const Homes& homes, const HomesInput& input);
std::uint64_t ram_bytes(const UnitTable& units, const Homes& homes, const HomesInput& input);

/// The number of leading layers in VRAM, up to the first one elsewhere.
int leading_layers(const UnitTable& units, const std::vector<Tier>& tiers);

/// The homes of a model that is entirely in VRAM.
Homes homes_in_vram(const UnitTable& units);

/// Dense models: as many layers in VRAM as fit, then as many in RAM as fit, the rest on the disk. Each kind is spread
/// evenly over the pass, so that copies overlap with the computation of the others. Mixtures: everything except experts
/// in VRAM, and as many experts as fit; all experts in RAM, or as many as fit, and the rest on the disk.
/// Errors: out_of_budget (names the smallest --vram or --ram that works), unsupported (pinned layers of a mixture).
Expected<Homes> choose_homes(const UnitTable& units, const HomesInput& input, const Rates& rates);

/// The homes of a saved plan, unchanged. REQUIRES: no expert is outside VRAM, and every unit has a home.
/// Errors: out_of_budget (they do not fit today), unsupported (a unit where it cannot be).
Expected<Homes> follow_homes(const UnitTable& units, const std::vector<Tier>& tiers, int ring_units,
                             const HomesInput& input);
/// Whether a pass uses layers or experts from outside VRAM.
bool layers_move(const UnitTable& units, const std::vector<Tier>& tiers);
bool experts_flow(const UnitTable& units, const std::vector<Tier>& tiers);

/// The plan for these homes: what the CPU and the GPU compute, and the predicted speed. Writes the CPU's share of rows
/// into the placement, and the experts' slots into the options.
Plan plan_homes(const UnitTable& units, Homes& homes, PlanOptions& options, const Rates& rates);

}  // namespace millrace::residency
