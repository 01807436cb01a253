// What an engine is asked for: the model, who computes it, how much memory it may take, and for how many requests. Each
// struct has one subject. A default is what happens where nobody says anything; 0, -1 or empty usually mean that the
// engine chooses, and the log says what. What a planner derives from them is a value of its own (engine::Demand).
// Thread-safety: values.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/trace.h"
#include "engine/drafter.h"
#include "exec/executor.h"
#include "kernels/kernels.h"
#include "kv/layout.h"
#include "model/model.h"
#include "residency/homes.h"
#include "residency/plan.h"
#include "residency/plan_file.h"
#include "residency/weight_store.h"
#include "storage/fault_injection.h"
#include "storage/storage.h"

namespace millrace::engine {

struct Cluster;

/// The model's file.
struct ModelOptions {
  std::string path;
  std::string mmproj;         // the vision tower's file (engine/pictures.h); empty: the model sees no pictures
  bool mmproj_found = false;  // nobody named it: if it cannot be used, it is left out with a warning
  std::string overlay;        // a file whose tensors replace the model's (modelfile/overlay.h); empty: none
  /// Fetches what the engine needs of a file of which only the header is on the disk; empty: the file is whole.
  std::function<Status(const residency::UnitTable& units)> fetch;
  std::string identity;                 // what ranks compare in place of pages of their files; empty: those pages
  std::uint64_t most_header_bytes = 0;  // of memory for the file's metadata and tensor table; 0: ram_bytes, or no bound
};

/// Who computes. automatic: the GPU where there is one and it can run the model, else the CPU; of a model larger than
/// VRAM, the one whose plan predicts more decoded tokens a second, where both predict. The log says why.
enum class DeviceChoice { automatic, cpu, cuda };

/// The processors that compute.
struct DeviceOptions {
  DeviceChoice choice = DeviceChoice::automatic;
  int gpu = 0;                     // its index
  bool gpu_named = false;          // somebody asked for that one; else the processes of one host take a GPU each
  std::vector<int> gpus_beside;    // compute together with `gpu`, each its rows of every matrix; empty: none
  bool gpus_through_host = false;  // GPUs exchange results through the host's memory, not directly
  bool graphs = true;              // off: every launch by itself, for tests that compare
  bool fuse = true;                // off: one launch a step, for tests that compare
  int threads = 0;                 // of the CPU; 0: all usable processors
  kernels::Isa isa = kernels::Isa::plain;
  bool best_isa = true;  // overrides isa
};

using residency::Pin;
/// "0-9=vram,10-29=ram,30-=disk", "5=disk". Errors: invalid_argument.
Expected<std::vector<Pin>> parse_pins(std::string_view text);

/// The caps on memory, and where weights have to be under them.
struct MemoryOptions {
  std::uint64_t ram_bytes = 0;             // 0: what the machine can spare (MemAvailable and cgroup, less a margin)
  std::uint64_t ram_taken_bytes = 0;       // of ram_bytes, by others than the engine (a draft model)
  std::uint64_t vram_bytes = 0;            // all that the process takes of a device, its context too; 0: what is free
  std::vector<std::uint64_t> vram_beside;  // the caps of DeviceOptions::gpus_beside; empty: vram_bytes for each
  std::vector<Pin> pins;
  int cpu_share_percent = -1;             // the CPU's rows of layers streamed from RAM; -1: chosen from the rates
  std::uint64_t tile_bytes = 0;           // 0: chosen from the budget
  std::uint64_t bare_resident_bytes = 0;  // RSS at program start, which the budget does not count
  bool exact_budget = false;              // tests: the measured overhead of the program is not subtracted
};

/// The passes that the engine has to be ready for.
struct DemandOptions {
  std::int64_t context_tokens = 0;  // 0: the model's, or what fits the budget, at most 65,536
  std::int64_t batch_tokens = 0;    // rows in a pass at most; 0: 512 on the CPU, 2048 on a GPU,
                                    // and there a whole prompt, up to 16,384, where layers stream
  std::int64_t max_sequences = 1;   // requests that share a pass; 0: as many as KV allows
  bool fewer_sequences = false;     // max_sequences and kv_tokens are ceilings: less is taken where memory is short
  std::int64_t max_queue = 0;       // requests that wait for their turn at most; 0: any number
  std::int64_t kv_tokens = 0;       // KV of all sequences together; 0: every sequence may fill its context,
                                    // with fewer_sequences as far as half of what is left
  std::int64_t chunk_tokens = 0;    // prompt rows in a pass beside decode rows, so that no stream stalls; 0: 128, on a
                                    // GPU 512
  /// Rows of a pass that may want logits, where memory allows (logits_of_prompt): a sixteenth of --ram, or a
  /// thirty-second of --vram, at most. 0: what answers need.
  std::int64_t logit_rows = 0;
  double decode_rows = 1;  // of most passes that decode, as the caller expects; without a draft model's guesses
};

/// What sequences remember, and for how long.
struct KvOptions {
  DType dtype = DType::f16;                         // f16, f32, q8_0, q4_0; q3_k or q2_0: 3 or 2 bits (kv/layout.h)
  kv::Rotation rotation = kv::Rotation::of_format;  // else: to measure what it does
  bool share_prefixes = false;                      // keeps the KV of prompts for others that begin the same
  std::string prompt_cache;  // folder for the KV of slow prompts (kv/prompt_cache.h); empty: none
  std::uint64_t prompt_cache_bytes = 4'000'000'000;  // in that folder at most
  double prompt_cache_seconds = 1;                   // prompts computed faster than that are not kept there
};

/// The experts of a mixture. None of these changes a token, except `routing`.
struct ExpertOptions {
  std::int64_t vram_slots = -1;  // experts in VRAM at most; -1: as many as fit
  std::int64_t ram_slots = 0;    // experts in RAM at most; 0: as many as fit
  residency::CachePolicy policy = residency::CachePolicy::automatic;
  std::string pack = "auto";  // the pack that experts are read from (engine/pack_choice.h): "auto", "off" or a file
  exec::Prefetch prefetch = exec::Prefetch::automatic;  // of experts that are guessed
  std::string usage_folder;    // where the engine learns which experts are used (usage_keeper.h); empty: nowhere
  std::string routing;         // chooses in place of the routers (exec/routing.h); empty: the routers choose
  std::string record_routing;  // a file to which the routers' choices are written; empty: none
};

/// How weights are read.
struct StorageOptions {
  storage::BackendKind backend = storage::BackendKind::automatic;
  bool cufile = false;                 // straight into the GPU's memory
  std::vector<storage::Fault> faults;  // that are injected
};

/// What the planner knows beforehand.
struct PlanningOptions {
  residency::Rates rates;  // zeros: unknown
  /// Where rates are unknown, takes those kept for this machine, and measures briefly, keeps and refines what a choice
  /// depends on (engine/machine_rates.h).
  bool find_rates = false;
  /// Decides as this plan did; the options that it was made for (device, caps, context, batch, tiles) are the caller's
  /// to set. May be null.
  std::shared_ptr<const residency::SavedPlan> follow;
};

/// The part of the model that is computed here, and who computes the rest.
struct PartOptions {
  Cluster* cluster = nullptr;  // other processes compute layers (engine/cluster.h); null: none. Outlives the engine
  int ranks = 1;               // of that cluster
  model::Stage stage;          // only these layers, for one rank of a cluster: no engine by itself
  model::Shard shard;          // only these rows, for one of DeviceOptions::gpus_beside: no engine by itself
};

/// Who looks on. All of them outlive the engine.
struct WatchOptions {
  Trace* trace = nullptr;                 // passes are timed into it
  exec::InputObserver* inputs = nullptr;  // sees what products read; on the CPU alone
  /// How far weights are, on a GPU: bytes in memory, of all that belong there; false cancels. Called in create() from
  /// its thread, until what is at home in VRAM is there; the rest comes to RAM behind the first pass, and while that
  /// waits for it, this is called from step()'s thread some times a second (false then ends the pass's requests, not
  /// the loading), and once when all is there.
  std::function<bool(std::uint64_t done, std::uint64_t total)> on_load;
  /// What was told to on_load is over for now, well or not: create()'s part, or a pass's wait. From the same threads.
  std::function<void()> on_load_end;
};

/// A drafter that is part of the model itself.
enum class Within : std::uint8_t {
  none,
  self,  // its first layers and the head (engine/self_drafter.h)
  mtp,   // the block behind its layers that was trained to (engine/mtp_drafter.h)
};
constexpr int kMostSelfLayers = 1 << 16;

/// Tokens of an answer are guessed, and a pass verifies several: the same tokens, sooner where passes are slow.
struct SpeculateOptions {
  /// automatic: as many guesses as bring the most tokens a second, by what passes took and how often guesses were
  /// right.
  enum class Mode : std::uint8_t { off, automatic, fixed };
  Mode mode = Mode::off;
  std::string draft_model;                         // a small GGUF file of the same vocabulary, which guesses
  Within within = Within::none;                    // or part of the model does
  int self_layers = 0;                             // Within::self: so many; 0: as the plan has memory for
  double acceptance = 0.7;                         // of its guesses, assumed where it is chosen who computes it
  std::int64_t drafts = 0;                         // fixed: so many a pass, where there are guesses; <= kMostDrafts
  std::vector<std::shared_ptr<Drafter>> drafters;  // before the engine's own: tests
};
/// "off", "auto" or a number of guesses. Errors: invalid_argument.
Expected<SpeculateOptions> parse_speculation(std::string_view text);
/// Who guesses: "self", "self:K", "mtp" or a model's name or file, into the options.
/// Errors: invalid_argument.
Status read_draft(std::string_view text, SpeculateOptions& options);

struct EngineOptions {
  ModelOptions model;
  DeviceOptions device;
  MemoryOptions memory;
  DemandOptions demand;
  KvOptions kv;
  ExpertOptions experts;
  StorageOptions storage;
  PlanningOptions planning;
  PartOptions part;
  WatchOptions watch;
  SpeculateOptions speculate;
};

}  // namespace millrace::engine
