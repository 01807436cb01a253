// The planner: a pure function of (units, budget, rates). Before the first token it chooses a home tier and an executor
// for each unit, and predicts the time of a pass. `millrace plan` prints the plan as a database prints a query plan.
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

/// Weight memory of this size or more uses huge pages, which more than double the rate of O_DIRECT on some disks. For
/// less memory, rounding to huge pages would cost too much of the budget.
constexpr std::uint64_t kHugeWeightBytes = 64u << 20;

/// The CPU's rates for weights of one type; Rates has those of Q4_K.
struct TypeRates {
  DType dtype = DType::f32;
  double decode = 0;        // weight bytes a second, one row of activations
  double rows_macs = 0;     // multiply-accumulates a second, eight rows
  double prefill_macs = 0;  // the same with many rows
  bool operator==(const TypeRates&) const = default;
};

/// Measured rates of a machine (`millrace calibrate`, or a short measurement: brief.h), in bytes per second. 0: not
/// measured, or the machine has no such part.
struct Rates {
  double disk = 0;          // O_DIRECT reads into huge pages
  double disk_latency = 0;  // seconds of a single small read beyond the transfer of its bytes
  // Windows: `disk` by DirectStorage, where that was measured to be the faster way; else 0.
  double directstorage = 0;
  double ram = 0;         // all threads reading RAM
  double cpu_decode = 0;  // weight bytes per second through the decode kernels (at most ram)
  double host_to_device = 0;
  // The rates while both run: they read the same RAM, which may be too slow for the sum of their separate rates.
  double host_to_device_busy = 0, cpu_decode_busy = 0;
  double shared_link() const { return host_to_device_busy > 0 ? host_to_device_busy : host_to_device; }
  double shared_decode() const { return cpu_decode_busy > 0 ? cpu_decode_busy : cpu_decode; }
  double device_memory = 0;        // a GPU copying within its memory: bytes read and written
  double cpu_prefill_macs = 0;     // multiply-accumulates per second of a prompt's products
  double device_prefill_macs = 0;  // the same of a GPU, one large product
  double cpu_product = 0;          // seconds of overhead of each product of decoding on all threads, beside its bytes
  // Multiply-accumulates per second of products of a few generated rows while the link is busy.
  double cpu_few_macs = 0;
  double cpu_rows_macs = 0;  // the same without a GPU, eight rows, weights from RAM
  std::string machine;       // what was measured: CPU, cores, disk
  std::string gpu = {};      // the GPU whose rates these are; empty: unknown, or none
  bool brief = false;        // at least in part from a short measurement, or from passes
  // The CPU's rates above are those of Q4_K; these are the rates of other types. type_rates.h combines them.
  std::vector<TypeRates> types = {};
  bool known() const { return disk > 0 || ram > 0 || cpu_decode > 0 || host_to_device > 0; }
};
Expected<Rates> parse_rates_json(const std::string& text);
std::string rates_to_json(const Rates& rates);

/// Which part of a layer's experts without slots in VRAM the GPU reads across the link, in passes of few rows; the CPU
/// computes the others. In thousandths.
struct LinkShare {
  int single = 0, several = 0;  // for one row, for more

  int of(double rows) const { return rows > 1 ? several : single; }
  double part_of(double rows) const { return of(rows) / 1000.0; }
  bool any() const { return single > 0 || several > 0; }
  bool operator==(const LinkShare&) const = default;
};

/// Beside a GPU, the CPU computes a share of the rows in passes of at most this many rows.
constexpr std::int64_t kSplitRows = 8;
/// And the experts outside VRAM in passes of at most this many rows; for more rows, these experts cross to the GPU.
constexpr std::int64_t kExpertShareRows = 32;

enum class Tier : std::uint8_t { vram, ram, disk };
/// split: the CPU computes a share of every matrix's rows, the GPU the rest.
enum class Executor : std::uint8_t { cpu, gpu, split };
std::string_view tier_name(Tier tier);
std::string_view executor_name(Executor executor);

/// The cost of attention in all layers with the same window, over heads or over latents.
struct AttentionCost {
  std::int64_t window = 0;  // keys that a token attends to, including its own; 0: all
  bool latent = false;
  double macs = 0;      // multiply-accumulates per token and key
  double kv_bytes = 0;  // bytes read per token and key
};

/// The serial work of a pass beside reading weights and keys.
struct StepCost {
  std::int64_t steps = 0, products = 0;    // all steps; those in which all threads take part
  double state_bytes = 0, state_macs = 0;  // of a sequence's states, read and written; computed per token
  std::int64_t latents = 0;                // attentions over latents, which need additional products of heads
  double head_macs = 0;                    // of a row's products of heads
  // With several GPUs: the number of gathers, and how many bytes of a row this GPU stores for each other one.
  std::int64_t gathers = 0;
  double gather_bytes = 0;
};

/// How routers choose experts, as far as this is known.
struct RoutingGuess {
  double skew = 0;                              // ExpertUse; 0: all experts alike
  CachePolicy policy = CachePolicy::automatic;  // of those in RAM
};

/// PlanOptions::front_layers: as many layers as half of the memory for weights holds, if weights stream at all.
constexpr int kFrontOfPlan = -1;
/// PlanOptions::front_layers: no layer, only the head; without room for it there is no plan.
constexpr int kFrontOfHead = -2;
/// Whether a drafter uses the unit: one whose passes go through the first `layers` layers and the head
/// (Plan::front_layers), or one that has units of its own.
bool in_front(const Unit& unit, int layers);

/// The passes that a plan optimizes for.
struct PassDemand {
  std::vector<AttentionCost> attention = {};
  StepCost steps = {};
  int top_k = 0;              // experts a token uses in a layer; 0 for dense models
  std::int64_t tokens = 0;    // of a prompt, in a pass at most; 0: all
  bool quantized_kv = false;  // attention multiplies integers
  bool crowded = false;       // the thread that launches a GPU's kernels has no processor for itself
  double decode_rows = 1;     // rows of a typical decode pass, for which the CPU's share is chosen
};

/// The use of a mixture's experts, as far as known, and the slots that they may have.
struct ExpertDemand {
  RoutingGuess routing = {};
  // If a GPU has no room for all experts: the number of slots in VRAM, and in page-locked RAM.
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
  // The first layers with their experts, and the head, are placed in RAM before anything else and stay there, because a
  // drafter uses them between passes. All of them or none: Plan::front_layers.
  int front_layers = 0;
  // The largest prefetch window for units on disk. 32 MiB keep any disk busy, and a ring that stays in the CPU's cache
  // was filled a quarter faster than one of 64 MiB (2 cores, NVMe behind virtio).
  std::uint64_t ring_bytes_wanted = 32u << 20;
};

/// The weights of one type that a decoded token uses.
struct TypeWeights {
  DType dtype = DType::f32;
  double bytes = 0, macs = 0;
};

/// The bytes of weights that a pass moves and the multiply-accumulates that it computes: the input of predictions.
struct PassCost {
  bool gpu = false;
  double home = 0;         // trunks and head that are never moved: in VRAM, or in RAM without a GPU
  double shared = 0;       // with a GPU: those whose home is RAM
  double shared_macs = 0;  // of one row of those
  double crossing = 0;     // with a GPU: other bytes that cross to it
  double read = 0;         // from the disk
  std::int64_t layers = 0, shared_layers = 0;
  double expert_bytes = 0, expert_share = 1;  // of all experts; the part of a layer's experts that a token uses
  double macs = 0, expert_macs = 0;           // of a token: of trunks; with all experts
  double head_macs = 0;                       // of a row of logits
  std::vector<AttentionCost> attention = {};
  StepCost steps = {};
  RoutingGuess routing = {};
  std::int64_t experts = 0, top_k = 0;  // of a layer; a token's
  double vram_slots = 0;                // for experts of a layer, on average
  // With a GPU and experts outside VRAM: the part of them that has slots in VRAM, and in RAM. Else both are 1.
  double experts_in_vram = 1, experts_in_ram = 1;
  LinkShare expert_link = {};
  bool quantized_kv = false, crowded = false;  // as in PlanOptions
  std::int64_t pass_tokens = 0;                // as in PlanOptions
  std::vector<TypeWeights> weights = {};       // type_rates.h
};

/// How the weight store uses its bytes.
struct Plan {
  std::vector<Tier> homes;           // by unit index. Home disk: streamed through the ring, or cached (experts)
  std::vector<bool> resident_tiles;  // by tile index: kept in RAM. An ordered unit may be resident in part: then its
                                     // home is disk, and the tiles marked here are not read again
  bool embedding_rows_from_disk = false;  // rows of the embedding are read one by one (read_rows, which takes them from
                                          // memory if they are there). Always true if there is an embedding, because
                                          // its memory may be reclaimed while the engine runs
  std::uint64_t row_scratch_bytes = 0;    // for reading them
  std::uint64_t rows_ahead_bytes = 0;     // for rows of a table of which a token reads several: on their way, and
  std::uint64_t row_cache_bytes = 0;      // those that stay (row_cache.h)
  std::uint64_t resident_bytes = 0;       // memory for resident tiles
  std::uint64_t ring_slot_bytes = 0;      // one slot of the ring for ordered tiles
  int ring_slots = 0;
  std::uint64_t expert_slot_bytes = 0;
  // With a GPU: the part of the rows of every matrix of layers in RAM that the CPU computes in place, in passes of up
  // to kSplitRows rows.
  int cpu_permille = 0;
  int expert_slots = 0;          // 0: dense. One for each expert tile: all experts are resident in RAM
  int front_layers = 0;          // of PlanOptions::front_layers
  std::vector<bool> front = {};  // by unit: a drafter uses it, so it is never evicted. Empty: no unit
  std::uint64_t fixed_bytes = 0;
  // On a GPU: weights; activations and context; a draft model with its KV and activations; a vision tower likewise.
  std::uint64_t vram_weight_bytes = 0, vram_fixed_bytes = 0, vram_draft_bytes = 0, vram_tower_bytes = 0;

  /// The memory of the weight store: the sum of the above, in whole huge pages if it uses them.
  std::uint64_t weight_memory_bytes() const {
    const std::uint64_t sum = row_scratch_bytes + rows_ahead_bytes + row_cache_bytes + resident_bytes +
                              ring_slot_bytes * static_cast<std::uint64_t>(ring_slots) +
                              expert_slot_bytes * static_cast<std::uint64_t>(expert_slots);
    return sum < kHugeWeightBytes ? sum : round_up(sum, device::kHugePageBytes);
  }

  /// One printed row per tier and kind.
  struct Row {
    std::string tier, what, executor, bound;  // bound: "disk", "ram", "compute"
    std::int64_t units = 0;                   // with at least one tile in this tier; slots for a cache
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

/// Chooses the division of the budget with the least predicted time of a decoded token. More memory never makes a plan
/// slower. Weights that every token reads (trunks, head) take precedence over experts, and experts over tables, of
/// which a token needs one row. Resident ordered tiles are spread evenly over the pass, so that the disk continues to
/// read while they are computed. Without rates it assumes a typical machine. Errors: out_of_budget, naming the smallest
/// --ram that works.
Expected<Plan> make_plan(const UnitTable& units, const PlanOptions& options, const Rates& rates);

/// Whether a pass of that plan, on the CPU, reads anything but single rows from the disk.
bool reads_disk(const UnitTable& units, const Plan& plan);

/// The decisions of a saved plan. The rest of the plan follows from them, the units and the caps.
struct Decisions {
  int ring_slots = 0, expert_slots = 0;
  std::vector<bool> resident_tiles;  // by tile index
  int cpu_permille = 0;
};
struct FollowedPlan {
  Plan plan;
  std::uint64_t gave_way_bytes = 0;  // of weights that the saved plan kept in memory and that no longer fit
};
/// The saved plan under the current caps: if less memory is free than before, the resident tiles of the lowest priority
/// stream instead, then the expert cache shrinks. Errors: invalid_argument (the decisions do not match these units),
/// out_of_budget as make_plan.
Expected<FollowedPlan> follow_plan(const UnitTable& units, const Decisions& decisions, const PlanOptions& options,
                                   const Rates& rates);

/// The plan of a model that a GPU computes, with the given homes (by unit). Units outside VRAM cross to the GPU in
/// every pass while it computes. The CPU computes a share of the rows of layers in RAM in place, chosen so that both
/// finish together. The slowest of these paths determines the predicted speed. Pure.
Plan make_vram_plan(const UnitTable& units, const std::vector<Tier>& homes, const PlanOptions& options,
                    const Rates& rates);

/// The plan as `millrace plan` prints it.
std::string render_plan(const Plan& plan, const PlanOptions& options, const Rates& rates);

/// The measured cost of decoding, summed over all passes.
struct DecodeCost {
  std::int64_t passes = 0, tokens = 0;
  double seconds = 0, stall_seconds = 0;             // in all; while the executor waited for weights
  double weight_bytes = 0;                           // used by products
  double device_bytes = 0;                           // that crossed to a GPU
  double host_bytes = 0, host_seconds = 0;           // with a GPU: used by the CPU's products, and their time
  double disk_bytes = 0, disk_busy_seconds = 0;      // busy: with a read in flight
  std::uint64_t expert_hits = 0, expert_misses = 0;  // leases of experts
  std::int64_t context = 0;                          // keys before a token, on average
  std::int64_t prompt_tokens = 0, sequences = 1;     // of each of so many prompts, and how fast they were read
  double prompt_tokens_per_second = 0;
};
/// The plan's prediction beside the measurement, tier by tier, and the time lost to waiting.
std::string render_explain(const Plan& plan, const Rates& rates, const DecodeCost& cost);

}  // namespace millrace::residency
