// Everything that must stand before the first pass: the model, the limits that fit the budget, the plan, and the parts
// made to it. Order matters for the budget: what the program itself takes is measured after tokenizer, threads and
// storage exist and before the plan is made, so that the plan gives weights only what is truly left.
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
#include "exec/routing.h"
#include "kv/prefix_cache.h"
#include "kv/prompt_cache.h"
#include "residency/expert_pack.h"
#include "residency/head_start.h"

namespace millrace::engine {

struct DraftModelPlan;
struct Parts;
class UsageKeeper;

/// What only a GPU run has (engine/gpu/setup.cpp).
struct GpuParts {
  virtual ~GpuParts() = default;
  /// What those who hold weights have done since the start. What comes to memory to stay is loading, and not among it.
  virtual void add_to(residency::StoreCounters& counters) const = 0;
  /// An executor beside the target's, over the same weights (exec::GpuOptions::aside), with room for its graphs.
  /// Errors: out_of_budget, unsupported.
  virtual Expected<std::unique_ptr<exec::Executor>> executor_aside(const Parts& target);
  /// As WeightStore::expert_usage(); empty where all experts are in VRAM.
  virtual residency::ExpertUsage expert_usage() const { return {}; }
};

/// The engine's parts; each may use those above it.
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
  std::unique_ptr<residency::HeadStart> head_start;  // null: weights are not there yet, or are loaded
  std::unique_ptr<storage::Backend> straight;        // reads to the GPU's memory; null: none does
  std::unique_ptr<residency::Budget> budget;
  residency::Reservation program;      // code, tokenizer, threads, tables: measured
  residency::Reservation mapped;       // the model's pages, where storage maps the file
  residency::Reservation draft_model;  // on the CPU, beside a GPU that computes this one
  DType kv_dtype = DType::f16;
  kv::Rotation kv_rotation = kv::Rotation::of_format;
  residency::Rates rates;
  residency::PlanOptions plan_options;
  residency::Plan plan;
  std::unique_ptr<UsageKeeper> usage;             // null: nobody learns which experts are used
  std::unique_ptr<residency::WeightStore> store;  // null where the weights are on a GPU
  std::unique_ptr<residency::Budget> vram;        // null where no GPU takes part
  residency::Reservation gpu_context;             // of vram
  std::unique_ptr<GpuParts> gpu;
  std::unique_ptr<exec::Routing> routing;       // null: the routers choose
  std::unique_ptr<exec::RoutingRecord> record;  // null: nobody asked
  std::unique_ptr<exec::Executor> executor;
  std::shared_ptr<kv::BlockPool> kv_pool;
  std::string identity;                       // of the model, where there is to be a prompt cache
  std::unique_ptr<kv::PrefixCache> prefixes;  // null: nothing is shared
  std::unique_ptr<kv::PromptCache> prompts;   // null: none
  TowerSeat tower_seat;                       // beside a model on a GPU
  std::unique_ptr<TowerRunner> tower;         // null: the processor computes pictures
  std::unique_ptr<PictureEncoder> pictures;   // null: the model sees none
  DraftSeat draft;                            // that there is room for; the model itself is not loaded
  /// Layers with windows or states lie on other ranks too, and nobody here knows how far back they reach: a sequence
  /// that does not go on from its end begins anew.
  bool rewinds_to_start = false;
};

/// All parts, ready for a pass. `draft` (may be null): there is to be room for it beside them, where that is of use.
/// Errors: those of every part; out_of_budget names the smallest --ram that works.
Expected<Parts> assemble(const EngineOptions& options, const DraftModelPlan* draft = nullptr);

/// The same up to the plan: `store`, `executor` and `kv_pool` stay empty.
Expected<Parts> assemble_plan(const EngineOptions& options, const DraftModelPlan* draft = nullptr);

/// The plan and the limits it was made for, on paper. REQUIRES: parts from one of the two above.
residency::SavedPlan saved_plan(const Parts& parts);

/// The model on a GPU, up to the plan (load = false) or ready for a pass. `accept` sees the parts once there is a plan,
/// before a weight is read; what it returns other than ok is the error. Errors: unsupported (no GPU, or built without
/// CUDA: says which), out_of_budget (does not fit; says what would), and those of every part.
Expected<Parts> assemble_gpu(const EngineOptions& options, const DraftModelPlan* draft, bool load,
                             const std::function<Status(const Parts&)>& accept);

/// Up to the plan, on paper: for options.vram_bytes of a GPU that need not be here, and a machine whose rates are
/// options.rates. Errors: those of a plan; unsupported (built without CUDA).
Expected<Parts> assemble_gpu_on_paper(const EngineOptions& options);

/// The draft model on the GPU of `target`, whose budgets grant what it takes and outlive it. REQUIRES: target's seat
/// for it is there. Errors: those of every part.
Expected<Parts> assemble_gpu_draft(const DraftModelPlan& draft, Parts& target);

// What both ways share (setup.cpp).

/// The model's file, with its overlay. Errors: as Model::open and lay_over.
Expected<modelfile::Model> open_file(const EngineOptions& options, const modelfile::OpenOptions& how = {});
/// Opens the file and makes model, tokenizer and chat template; the file's metadata is gone when this returns.
/// `draft_block`: with the block that guesses, if there is one; else parts.draft says why not.
Status open_model(const EngineOptions& options, std::uint64_t tile_bytes, bool draft_block, Parts& parts,
                  std::vector<std::string>& paths);
/// Whether weights fit into so much RAM with some room beside them, so that they are read once.
inline bool all_fit(const residency::UnitTable& units, std::uint64_t ram) {
  return units.total_bytes() / 10 * 12 <= ram;
}
/// The threads that compute (0: as many as this process may use), and with which kernels.
void start_threads(const EngineOptions& options, int threads, std::chrono::microseconds spin, Parts& parts);
/// How storage reads the model's files.
storage::OpenOptions storage_options(const EngineOptions& options, bool everything_fits);
/// Rates measured under these options are the machine's: by all its threads, with its best kernels.
inline bool keeps_rates(const EngineOptions& options) {
  return options.planning.find_rates && options.device.threads == 0 && options.device.best_isa &&
         options.part.cluster == nullptr;
}
Status start_storage(const EngineOptions& options, const std::vector<std::string>& paths, bool everything_fits,
                     Parts& parts);
/// Resident bytes since the program's start but the head start's, and a margin. `ram`: as ram_of().
std::uint64_t measured_program_bytes(const EngineOptions& options, std::uint64_t ram, const Parts& parts);
std::uint64_t ram_of(const EngineOptions& options);
/// What is known of how routers choose; `routing`: what takes their place, or null.
residency::RoutingGuess routing_guess(const EngineOptions& options, const exec::Routing* routing);
/// Bounds the pool and, where asked, keeps what requests begin with, in memory and on the disk.
void finish_kv(const EngineOptions& options, Parts& parts);
/// From now on nothing is kept on the disk.
void close_prompt_cache(Parts& parts);
/// What sequences of this model keep, in that format: in host memory or in a device's.
kv::Layout kv_layout(const model::Model& model, const EngineOptions& options, int device);
std::string kv_name(DType dtype);  // as --kv has it
/// Can this model's KV be kept in that format? Errors: unsupported.
Status check_kv(const kv::Layout& layout, DType dtype);

}  // namespace millrace::engine
