// Homes of a model's units beside one GPU, under a cap on its memory and one on the host's: which layers stay in VRAM,
// which cross to it from RAM and which from the disk, how many of a mixture's experts have slots where. A token reads
// every layer and a few of a layer's experts, so that VRAM goes to trunks first, as many as fit, and what is left to
// experts; RAM likewise: each byte more in a faster tier makes the predicted pass shorter, and none is left over that
// another unit would fit into. Pure; needs no GPU, and limits of passes are the caller's. Thread-safety: values.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "residency/placement.h"
#include "residency/plan.h"
#include "residency/unit.h"

namespace millrace::residency {

/// Layers that stay where the user wants them, against the planner's choice. Dense models.
struct Pin {
  int first_layer = 0, last_layer = 0;  // both included
  Tier tier = Tier::vram;
};

/// What homes have to fit into, and what else decides them.
struct HomesInput {
  std::uint64_t vram_bytes = 0, ram_bytes = 0;  // the caps
  // Of them by others than weights: context, activations, KV; the program, its threads, what loading takes.
  std::uint64_t vram_taken_bytes = 0, ram_taken_bytes = 0;
  std::uint64_t ram_beside_experts_bytes = 0;  // of RAM more where experts flow: the processor computes with them
  std::uint64_t ram_spread_bytes = 0;          // so much more may others take in the next run, which follows this plan
  std::int64_t context_tokens = 0;             // that the above is for: errors name it
  bool parted_prompts = false;                 // a pass takes more rows of a prompt than it works at once
  bool straight = false;                       // DevicePlacement
  std::vector<Pin> pins;
  std::int64_t most_vram_experts = -1;  // with slots in VRAM; -1: any number
  std::int64_t most_ram_experts = 0;    // in RAM at once; 0: any number
  CachePolicy policy = CachePolicy::lru;
  int cpu_share_percent = -1;  // of experts outside VRAM, by the user's wish; -1: as the rates say
  // Of a dense model, without pins: the first layers in VRAM come before others, so many at least, or all that are
  // there (kFrontOfPlan); where that cannot be, they lie as without.
  int front_layers = 0;
};

struct Homes {
  DevicePlacement placement;
  ExpertTiers experts;                   // of a mixture that is not in VRAM as a whole
  std::int64_t movers = 0, on_disk = 0;  // layers outside VRAM; of them on the disk
};

/// What such homes take of either cap, others' bytes included.
std::uint64_t vram_bytes(const UnitTable& units, const Homes& homes, const HomesInput& input);
std::uint64_t ram_bytes(const UnitTable& units, const Homes& homes, const HomesInput& input);

/// How many of the first layers are at home in VRAM, up to the first that is not.
int leading_layers(const UnitTable& units, const std::vector<Tier>& tiers);

/// The model in VRAM as a whole.
Homes homes_in_vram(const UnitTable& units);

/// Of a dense model as many layers in VRAM as fit, the others in RAM while there is room, the rest on the disk; each
/// kind spread evenly over the pass, so that copies run on while the others are computed. Of a mixture everything but
/// the experts in VRAM and as many of these as fit; all experts in RAM, or as many as fit, and the rest on the disk.
/// Errors: out_of_budget (names the smallest --vram or --ram that works), unsupported (pinned layers of a mixture).
Expected<Homes> choose_homes(const UnitTable& units, const HomesInput& input, const Rates& rates);

/// The homes of a saved plan as they are. REQUIRES: no expert of them outside VRAM, a home for every unit.
/// Errors: out_of_budget (they do not fit today), unsupported (a unit where it cannot be).
Expected<Homes> follow_homes(const UnitTable& units, const std::vector<Tier>& tiers, int ring_units,
                             const HomesInput& input);
/// Does a pass bring layers, or experts, from outside VRAM?
bool layers_move(const UnitTable& units, const std::vector<Tier>& tiers);
bool experts_flow(const UnitTable& units, const std::vector<Tier>& tiers);

/// The plan for such homes: who computes what of them, and how fast that is predicted to be. The processor's share
/// of the rows becomes the placement's, and the experts' slots the options'.
Plan plan_homes(const UnitTable& units, Homes& homes, PlanOptions& options, const Rates& rates);

}  // namespace millrace::residency
