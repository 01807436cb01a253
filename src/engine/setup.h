// Assembles everything that the first pass needs: the model, the limits that fit the budget, the plan, and the parts
// that follow from it. Order matters for the budget: the program's memory is measured after tokenizer, threads and
// storage exist and before the plan is made, so that the plan gives weights only the memory that is left.
// Thread-safety: one thread.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/thread_pool.h"
#include "engine/draft_place.h"
#include "engine/engine.h"
#include "engine/limits.h"
#include "engine/pictures.h"
#include "exec/adapters.h"
#include "exec/routing.h"
#include "kv/prefix_cache.h"
#include "kv/prompt_cache.h"
#include "residency/expert_pack.h"
#include "residency/head_start.h"

namespace millrace::engine {

struct DraftModelPlan;
struct Parts;
class UsageKeeper;
enum class DraftUnits : std::uint8_t;  // engine/within.h

/// The parts that exist only with a GPU (engine/gpu/setup.cpp).
struct GpuParts {
  virtual ~GpuParts() = default;
  /// The counters of the holders of weights since the start, without the loading of resident weights.
  virtual void add_to(residency::StoreCounters& counters) const = 0;
  /// An executor beside the target's, over the same weights (exec::GpuOptions::aside), with room for its graphs.
  /// Errors: out_of_budget, unsupported.
  virtual Expected<std::unique_ptr<exec::Executor>> executor_aside(const Parts& target);
  /// As WeightStore::expert_usage(); empty if all experts are in VRAM.
  virtual residency::ExpertUsage expert_usage() const { return {}; }
};

/// The engine's parts; each may use those declared above it.
struct Parts {
  Parts();
  Parts(Parts&&) noexcept;
  Parts& operator=(Parts&&) noexcept;
  ~Parts();

  std::unique_ptr<model::Model> model;
  std::vector<std::string> model_paths;  // its files; an overlay's beside them
  std::shared_ptr<const text::Tokenizer> tokenizer;
  std::unique_ptr<text::ChatTemplate> chat_template;
  Status chat_template_status;
  Expected<std::optional<model::RankHead>> rank_head = std::optional<model::RankHead>();
  Trace* trace = nullptr;
  Limits limits;
  kernels::Isa isa = kernels::Isa::plain;
  std::unique_ptr<ThreadPool> pool;
  std::unique_ptr<residency::ExpertPack> pack;  // null: experts are read from the model
  std::unique_ptr<storage::Backend> backend;
  std::unique_ptr<residency::HeadStart> head_start;  // null: not started, or the weights are loaded
  std::unique_ptr<storage::Backend> straight;        // reads into the GPU's memory; null: not used
  std::unique_ptr<residency::Budget> budget;
  std::vector<AdapterState> adapter_states;           // of `adapters`
  std::uint64_t adapter_bytes = 0;                    // the memory that they take, in RAM and on a GPU
  std::vector<residency::WeightRef> adapted_weights;  // that they change
  bool adapts_embedding = false;                      // one of them does
  std::unique_ptr<exec::Adapters> adapters;           // null: none
  std::shared_ptr<void> control_keeps;                // ModelOptions::control_keeps
  residency::Reservation program;                     // code, tokenizer, threads, tables: measured
  residency::Reservation mapped;                      // the model's pages, if storage maps the file
  residency::Reservation draft_model;                 // of a draft model on the CPU, if a GPU computes this model
  DType kv_dtype = DType::f16;
  kv::Rotation kv_rotation = kv::Rotation::of_format;
  residency::Rates rates;
  residency::PlanOptions plan_options;
  residency::Plan plan;
  std::unique_ptr<UsageKeeper> usage;             // null: the use of experts is not recorded
  std::unique_ptr<residency::WeightStore> store;  // null if a GPU computes
  std::unique_ptr<residency::Budget> vram;        // null without a GPU
  residency::Reservation gpu_context;             // of vram
  std::unique_ptr<GpuParts> gpu;
  std::unique_ptr<exec::Routing> routing;       // null: the routers choose
  std::unique_ptr<exec::RoutingRecord> record;  // null: not requested
  std::unique_ptr<exec::Executor> executor;
  std::shared_ptr<kv::BlockPool> kv_pool;
  std::string identity;                       // of the model, if there is a prompt cache
  std::unique_ptr<kv::PrefixCache> prefixes;  // null: nothing is shared
  std::unique_ptr<kv::PromptCache> prompts;   // null: none
  TowerSeat tower_seat;                       // of a vision tower beside a model on a GPU
  std::unique_ptr<TowerRunner> tower;         // null: the CPU computes pictures
  std::unique_ptr<PictureEncoder> pictures;   // null: the model reads no pictures
  DraftSeat draft;                            // the place reserved for a drafter; the drafter itself is not loaded
  /// Other ranks have layers with windows or states, and it is not known here how far back those reach: a sequence that
  /// does not continue from its end starts again.
  bool rewinds_to_start = false;
};

/// Assembles all parts, ready for a pass. `draft` (may be null): a draft model to leave room for, if it is predicted to
/// help. Errors: those of every part; out_of_budget names the smallest --ram that works.
Expected<Parts> assemble(const EngineOptions& options, const DraftModelPlan* draft = nullptr);

/// The same up to the plan: `store`, `executor` and `kv_pool` stay empty.
Expected<Parts> assemble_plan(const EngineOptions& options, const DraftModelPlan* draft = nullptr);

/// The plan and its limits as a value that can be saved. REQUIRES: parts from one of the two functions above.
residency::SavedPlan saved_plan(const Parts& parts);
Planned planned_from(Parts parts);  // the same as plan_only() returns it

/// Assembles the parts of a model on a GPU, up to the plan (load = false) or ready for a pass. Calls `accept` with the
/// parts after the plan is made and before a weight is read; its error ends the assembly. Errors: unsupported (no GPU,
/// or built without CUDA), out_of_budget (names what would fit), and those of every part.
Expected<Parts> assemble_gpu(const EngineOptions& options, const DraftModelPlan* draft, bool load,
                             const std::function<Status(const Parts&)>& accept);

/// The same up to the plan, for `gpus` GPUs with memory.vram_bytes each in a machine with planning.rates and this many
/// processors (0: this machine's), none of which need be here. Errors: those of a plan; unsupported (built without
/// CUDA, or several GPUs cannot share the model).
Expected<Parts> assemble_gpu_on_paper(const EngineOptions& options, int processors = 0, int gpus = 1);

/// Assembles the draft model on the GPU of `target`, whose budgets grant its memory and outlive it. REQUIRES: target
/// has a seat for it. Errors: those of every part.
Expected<Parts> assemble_gpu_draft(const DraftModelPlan& draft, Parts& target);

// Shared by the assembly for the CPU and for a GPU (setup.cpp).

/// The model's file, with its overlay. Errors: as Model::open and lay_over.
Expected<modelfile::Model> open_file(const EngineOptions& options, const modelfile::OpenOptions& how = {});
/// Opens the file and makes model, tokenizer and chat template; the file's metadata is freed when this returns.
/// `draft`: also loads the block or the head that guesses; if there is none, parts.draft has the reason.
Status open_model(const EngineOptions& options, std::uint64_t tile_bytes, DraftUnits draft, Parts& parts,
                  std::vector<std::string>& paths);
/// Whether the weights fit into this much RAM with a margin, so that they are read only once.
inline bool all_fit(const residency::UnitTable& units, std::uint64_t ram) {
  return units.total_bytes() / 10 * 12 <= ram;
}
/// Starts the threads that compute (0: as many as this process may use), and chooses the kernels.
void start_threads(const EngineOptions& options, int threads, std::chrono::microseconds spin, Parts& parts);
/// How storage reads the model's files.
storage::OpenOptions storage_options(const EngineOptions& options, bool everything_fits);
/// Whether rates measured under these options are valid for the machine: with all threads and the best kernels.
inline bool keeps_rates(const EngineOptions& options) {
  return options.planning.find_rates && options.device.threads == 0 && options.device.best_isa &&
         options.part.cluster == nullptr;
}
Status start_storage(const EngineOptions& options, const std::vector<std::string>& paths, bool everything_fits,
                     Parts& parts);
/// The resident bytes added since program start, without the head start's, and a margin. `ram`: as ram_of().
std::uint64_t measured_program_bytes(const EngineOptions& options, std::uint64_t ram, const Parts& parts);
std::uint64_t ram_of(const EngineOptions& options);
/// The assumption about how routers choose; `routing`: replaces the routers, or null.
residency::RoutingGuess routing_guess(const EngineOptions& options, const exec::Routing* routing);
/// Sets the bounds of the KV pool and, if the options ask for it, opens the prefix cache and the prompt cache.
void finish_kv(const EngineOptions& options, Parts& parts);
/// Closes the prompt cache on the disk.
void close_prompt_cache(Parts& parts);
/// The layout of the KV of this model's sequences in the options' format, in host memory; engine/gpu/kv_layout.h has a
/// GPU's.
kv::Layout kv_layout(const model::Model& model, const EngineOptions& options);
std::string kv_name(DType dtype);  // as --kv has it
/// Checks that this model's KV can be stored in this format. Errors: unsupported.
Status check_kv(const kv::Layout& layout, DType dtype);

}  // namespace millrace::engine
