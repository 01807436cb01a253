// The planner: a pure function of (units, budget, rates). For each unit its home tier and its executor, made before the
// first token, with the predicted time of a pass. `millrace plan` prints it as a database prints a query plan.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"
#include "device/host_memory.h"
#include "residency/slot_table.h"
#include "residency/unit.h"

namespace millrace::residency {

/// Weight memory from this size on lies in huge pages: they more than double O_DIRECT on some disks. Below it their
/// rounding would show in the budget.
constexpr std::uint64_t kHugeWeightBytes = 64u << 20;

/// The processor's rates for weights of a type, as they stand for Q4_K in Rates.
struct TypeRates {
  DType dtype = DType::f32;
  double decode = 0;        // weight bytes a second, one row of activations
  double rows_macs = 0;     // multiply-accumulates a second, eight rows
  double prefill_macs = 0;  // and many
  bool operator==(const TypeRates&) const = default;
};

/// Measured rates of this machine (`millrace calibrate`, or a short measurement: brief.h), in bytes per second. 0: not
/// measured (or not there).
struct Rates {
  double disk = 0;          // O_DIRECT reads into huge pages
  double disk_latency = 0;  // seconds that a small read takes alone beyond its bytes
  // Windows: `disk` by DirectStorage, where that was measured to be the faster way; else 0.
  double directstorage = 0;
  double ram = 0;         // all threads reading RAM
  double cpu_decode = 0;  // weight bytes per second through the decode kernels (at most ram)
  double host_to_device = 0;
  // While both go on: they read the same RAM, which may be too slow for the sum of what either does alone.
  double host_to_device_busy = 0, cpu_decode_busy = 0;
  double shared_link() const { return host_to_device_busy > 0 ? host_to_device_busy : host_to_device; }
  double shared_decode() const { return cpu_decode_busy > 0 ? cpu_decode_busy : cpu_decode; }
  double device_memory = 0;        // a GPU copying within its memory: bytes read and written
  double cpu_prefill_macs = 0;     // multiply-accumulates per second of a prompt's products
  double device_prefill_macs = 0;  // the same of a GPU, one large product
  double cpu_product = 0;          // seconds: what each product of decoding takes on all threads beside its bytes
  // Multiply-accumulates per second of products of a few generated rows, the link being busy, too.
  double cpu_few_macs = 0;
  double cpu_rows_macs = 0;  // the same without a GPU, eight rows, weights from RAM
  std::string machine;       // what was measured: CPU, cores, disk
  std::string gpu = {};      // the GPU whose rates these are; empty: not said, or none
  bool brief = false;        // at least in part by a short measurement, or by passes
  // The processor's rates above are those of Q4_K; here are those of other types. type_rates.h mixes them.
  std::vector<TypeRates> types = {};
  bool known() const { return disk > 0 || ram > 0 || cpu_decode > 0 || host_to_device > 0; }
};
Expected<Rates> parse_rates_json(const std::string& text);
std::string rates_to_json(const Rates& rates);

/// Of a layer's experts without slots in VRAM, in passes of few rows: what the GPU reads across the link, the others
/// being the processor's. In thousandths.
struct LinkShare {
  int single = 0, several = 0;  // for one row, for more

  int of(double rows) const { return rows > 1 ? several : single; }
  double part_of(double rows) const { return of(rows) / 1000.0; }
  bool any() const { return single > 0 || several > 0; }
  bool operator==(const LinkShare&) const = default;
};

/// Beside a GPU the processor has its share in passes of so many rows at most.
constexpr std::int64_t kSplitRows = 8;
/// And computes with the experts that are not in VRAM in passes of so many; for more rows these cross to the GPU.
constexpr std::int64_t kExpertShareRows = 32;

enum class Tier : std::uint8_t { vram, ram, disk };
/// split: a share of every matrix's rows is the processor's, the rest is the GPU's.
enum class Executor : std::uint8_t { cpu, gpu, split };
std::string_view tier_name(Tier tier);
std::string_view executor_name(Executor executor);

/// Attention in all layers that see as many keys, over heads or over latents.
struct AttentionCost {
  std::int64_t window = 0;  // keys that a token sees, its own among them; 0: all
  bool latent = false;
  double macs = 0;      // multiply-accumulates of a token and a key that it sees
  double kv_bytes = 0;  // read for such a key
};

/// What a pass does one after the other beside reading weights and keys.
struct StepCost {
  std::int64_t steps = 0, products = 0;    // of them such that all threads take part in
  double state_bytes = 0, state_macs = 0;  // states of a sequence, read and written anew; computed with for a token
  std::int64_t latents = 0;                // attentions over latents, which have products of heads beside them
  double head_macs = 0;                    // of a row's products of heads
  // Beside other GPUs: what they bring together, and how many bytes of a row this one stores for each other.
  std::int64_t gathers = 0;
  double gather_bytes = 0;
};

/// How routers choose, as far as it is known.
struct RoutingGuess {
  double skew = 0;                              // ExpertUse; 0: all experts alike
  CachePolicy policy = CachePolicy::automatic;  // of those in RAM
};

/// In PlanOptions::front_layers: as many as half of the memory for weights holds, if the plan moves weights at all.
constexpr int kFrontOfPlan = -1;
/// Likewise: no layer, but the head; a plan without room for it is none.
constexpr int kFrontOfHead = -2;
/// Whether the unit is computed with by a drafter whose passes go through the first `layers` layers and the head
/// (Plan::front_layers), or is a drafter's alone.
bool in_front(const Unit& unit, int layers);

/// The passes that a plan is made for.
struct PassDemand {
  std::vector<AttentionCost> attention = {};
  StepCost steps = {};
  int top_k = 0;              // experts a token uses in a layer; 0 for dense models
  std::int64_t tokens = 0;    // of a prompt, in a pass at most; 0: all
  bool quantized_kv = false;  // its attention multiplies integers
  bool crowded = false;       // no processor is left to the thread that makes a GPU's launches
  double decode_rows = 1;     // of most passes that decode: for these the processor's part is chosen
};

/// What is known of a mixture's experts, and where they may have slots.
struct ExpertDemand {
  RoutingGuess routing = {};
  // Beside a GPU that has not room for all experts: how many have slots in VRAM, and in page-locked RAM.
  std::int64_t vram_slots = 0, ram_slots = 0;
  LinkShare link = {};
  std::int64_t most_slots = 0;  // tiles in memory at most; 0: as many as fit
};

struct PlanOptions {
  std::uint64_t ram_bytes = UINT64_MAX;            // the cap on everything
  std::uint64_t fixed_bytes = 0;                   // activations, KV floor, tokenizer, program: not for weights
  std::uint64_t kv_bytes = 0;                      // KV planned for
  std::int64_t context_tokens = 0;                 // the tokens it is of
  std::uint64_t most_kv_bytes = 0;                 // KV when every context is full
  std::uint64_t vram_bytes = 0;                    // the cap on device memory; 0: no GPU takes part
  std::optional<int> cpu_permille = std::nullopt;  // as in Plan; none: chosen from the rates
  PassDemand passes = {};
  ExpertDemand experts = {};
  // So many first layers with their experts, and the head, are at home in RAM before anything else and stay there: a
  // drafter computes with them between the passes. All of them or none: Plan::front_layers.
  int front_layers = 0;
  // The prefetch window for units on disk, at most. More only costs: 32 MiB keep any disk busy, and a ring that stays
  // in the processor's cache was filled a quarter faster than one of 64 MiB (2 cores, NVMe behind virtio).
  std::uint64_t ring_bytes_wanted = 32u << 20;
};

/// Weights of a type that a decoded token computes with.
struct TypeWeights {
  DType dtype = DType::f32;
  double bytes = 0, macs = 0;
};

/// What a pass moves, in bytes of weights, and computes, in multiply-accumulates: what predictions are made of.
struct PassCost {
  bool gpu = false;
  double home = 0;         // trunks and head, computed from where they always lie: VRAM, or RAM where there is no GPU
  double shared = 0;       // beside a GPU: at home in RAM
  double shared_macs = 0;  // of a row of those
  double crossing = 0;     // beside a GPU: what else crosses to it
  double read = 0;         // from the disk
  std::int64_t layers = 0, shared_layers = 0;
  double expert_bytes = 0, expert_share = 1;  // all experts; of those of a layer, the part that a token uses
  double macs = 0, expert_macs = 0;           // of a token: of trunks; with all experts
  double head_macs = 0;                       // of a row of logits
  std::vector<AttentionCost> attention = {};
  StepCost steps = {};
  RoutingGuess routing = {};
  std::int64_t experts = 0, top_k = 0;  // of a layer; a token's
  double vram_slots = 0;                // for experts of a layer, on average
  // Experts that flow beside a GPU: the part of them that has slots in VRAM, and in RAM. Else both are 1.
  double experts_in_vram = 1, experts_in_ram = 1;
  LinkShare expert_link = {};
  bool quantized_kv = false, crowded = false;  // as in PlanOptions
  std::int64_t pass_tokens = 0;                // as in PlanOptions
  std::vector<TypeWeights> weights = {};       // type_rates.h
};

/// How the weight store uses its bytes.
struct Plan {
  std::vector<Tier> homes;           // by unit index. A disk home: streamed through the ring, or cached (experts)
  std::vector<bool> resident_tiles;  // by tile index: kept in RAM. Ordered units may be at home in part: then their
                                     // home is disk and the tiles marked here are not read again
  bool embedding_rows_from_disk = false;  // rows of the embedding are asked for one by one (read_rows, which takes them
                                          // from memory where they lie there). Always so when there is an embedding:
                                          // its home may have to give way while the engine runs
  std::uint64_t row_scratch_bytes = 0;    // for reading them
  std::uint64_t resident_bytes = 0;       // memory for resident tiles
  std::uint64_t ring_slot_bytes = 0;      // one slot of the ring for ordered tiles
  int ring_slots = 0;
  std::uint64_t expert_slot_bytes = 0;
  // Decided: of the rows of every matrix of layers at home in RAM, those that the processor computes where they lie,
  // in passes of up to kSplitRows rows beside a GPU.
  int cpu_permille = 0;
  int expert_slots = 0;          // 0: dense. One for each expert tile: all experts are at home in RAM
  int front_layers = 0;          // of PlanOptions::front_layers
  std::vector<bool> front = {};  // by unit: a drafter computes with it, and it stays. Empty: with none
  std::uint64_t fixed_bytes = 0;
  // On a GPU: weights; activations and context; a draft model with all that is its own; likewise a vision tower.
  std::uint64_t vram_weight_bytes = 0, vram_fixed_bytes = 0, vram_draft_bytes = 0, vram_tower_bytes = 0;

  /// What the weight store takes: the sum of the above, in whole huge pages where it uses them.
  std::uint64_t weight_memory_bytes() const {
    const std::uint64_t sum = row_scratch_bytes + resident_bytes +
                              ring_slot_bytes * static_cast<std::uint64_t>(ring_slots) +
                              expert_slot_bytes * static_cast<std::uint64_t>(expert_slots);
    return sum < kHugeWeightBytes ? sum : round_up(sum, device::kHugePageBytes);
  }

  /// One row a tier and kind, as printed.
  struct Row {
    std::string tier, what, executor, bound;  // bound: "disk", "ram", "compute"
    std::int64_t units = 0;                   // with at least a tile here; slots for a cache
    std::int64_t tiles = 0;
    std::uint64_t bytes = 0;     // of weights; of memory for a cache
    double bytes_per_token = 0;  // read from that tier for one decoded token
    double milliseconds = 0;
  };
  std::vector<Row> rows;
  double predicted_decode_tokens_per_second = 0;  // 0 without rates
  double predicted_hit_rate = 0;                  // experts; what uniform routing would give, so at least that
  std::string bound;                              // of the whole: "disk", "ram", "compute"; empty without rates
  PassCost cost;                                  // for predict.h
};

/// Of all ways to share the budget out, the one with the least predicted time of a decoded token. More memory never
/// makes a plan slower. What every token reads (trunks, head) goes before experts, experts before tables, of which a
/// token needs one row. Ordered tiles at home are spread evenly over the pass, so that the disk reads on
/// while they are computed. Without rates it plans for a usual machine. Errors: out_of_budget, naming the smallest
/// --ram that works.
Expected<Plan> make_plan(const UnitTable& units, const PlanOptions& options, const Rates& rates);

/// Whether a pass of that plan, on the CPU, reads anything but single rows from the disk.
bool reads_disk(const UnitTable& units, const Plan& plan);

/// What somebody decided before (a saved plan): all else of a plan follows from it, the units and the caps.
struct Decisions {
  int ring_slots = 0, expert_slots = 0;
  std::vector<bool> resident_tiles;  // by tile index
  int cpu_permille = 0;
};
struct FollowedPlan {
  Plan plan;
  std::uint64_t gave_way_bytes = 0;  // of weights that were decided to be at home and no longer fit
};
/// The plan that was decided, under today's caps: where less is free than then, the tiles at home that the planner
/// prefers least stream instead, then the expert cache shrinks. Errors: invalid_argument (decisions that no model of
/// these units can follow), out_of_budget as make_plan.
Expected<FollowedPlan> follow_plan(const UnitTable& units, const Decisions& decisions, const PlanOptions& options,
                                   const Rates& rates);

/// The plan of a model that a GPU computes, its units at home where `homes` says (by unit). Those that are not in VRAM
/// cross to it in every pass, beside the computing; of layers at home in RAM the processor computes a share of the
/// rows where they lie, as much as lets both ways end together. The predicted speed is what the slowest of these ways
/// allows. Pure.
Plan make_vram_plan(const UnitTable& units, const std::vector<Tier>& homes, const PlanOptions& options,
                    const Rates& rates);

/// The table people see.
std::string render_plan(const Plan& plan, const PlanOptions& options, const Rates& rates);

/// What decoding cost, all passes together.
struct DecodeCost {
  std::int64_t passes = 0, tokens = 0;
  double seconds = 0, stall_seconds = 0;             // of them the executor waited for weights
  double weight_bytes = 0;                           // computed with
  double device_bytes = 0;                           // that crossed to a GPU
  double host_bytes = 0, host_seconds = 0;           // that the processor computed with beside a GPU
  double disk_bytes = 0, disk_busy_seconds = 0;      // busy: with a read in flight
  std::uint64_t expert_hits = 0, expert_misses = 0;  // leases of experts
  std::int64_t context = 0;                          // keys before a token, on average
  std::int64_t prompt_tokens = 0, sequences = 1;     // of each of so many prompts, and how fast they were read
  double prompt_tokens_per_second = 0;
};
/// The plan's prediction beside what came of it, tier by tier, and the time lost to waiting.
std::string render_explain(const Plan& plan, const Rates& rates, const DecodeCost& cost);

}  // namespace millrace::residency
