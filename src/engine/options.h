// The options of an engine: the model, the device, the memory limits, and the number of requests. Each struct has one
// subject. 0, -1 or empty usually mean that the engine chooses, and the log has the choice with its reason. The values
// that the planner derives are in engine::Demand.
// Thread-safety: values.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/thread_pool.h"
#include "base/trace.h"
#include "device/cpu.h"
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

/// An adapter of the model (exec/adapters.h), in memory with it.
struct AdapterOptions {
  std::string path;             // a GGUF file
  std::string name;             // by which requests ask for it; empty: the file's, without folder and ending
  float scale = 1;              // of requests that do not say; 0: they go without it
  std::shared_ptr<void> keeps;  // the file, where it was made for this run; may be null
  bool of_model = false;        // part of a stored model (ADAPTER), not added with --lora
};
/// "FILE" or "FILE=SCALE", with its name. Errors: invalid_argument.
Expected<AdapterOptions> parse_adapter(std::string_view text);

/// The model's file.
struct ModelOptions {
  std::string path;
  std::string mmproj;         // the vision tower's file (engine/pictures.h); empty: the model reads no pictures
  bool mmproj_found = false;  // found, not named by the user: if it cannot be used, it is left out with a warning
  std::string overlay;        // a file whose tensors replace the model's (modelfile/overlay.h); empty: none
  std::vector<AdapterOptions> adapters;
  std::string control;                       // what control vectors add (model/control_vector.h); empty: nothing
  std::shared_ptr<void> control_keeps = {};  // that file, where it was made for this run
  /// Fetches the tensors that the engine needs, if only the file's header is on the disk; empty: the file is complete.
  std::function<Status(const residency::UnitTable& units)> fetch;
  std::string identity;                 // what ranks compare instead of pages of their files; empty: those pages
  std::uint64_t most_header_bytes = 0;  // limit for the file's metadata and tensor table; 0: ram_bytes, or no limit
};

/// The device that computes. automatic: the GPU if there is one that can run the model, otherwise the CPU; for a model
/// larger than VRAM, the device with the higher predicted decode speed, if both have a prediction. The log has the
/// reason.
enum class DeviceChoice { automatic, cpu, cuda };

/// The processors that compute.
struct DeviceOptions {
  DeviceChoice choice = DeviceChoice::automatic;
  int gpu = 0;                     // its index
  bool gpu_named = false;          // the user chose this GPU; otherwise each process of a host takes another GPU
  std::vector<int> gpus_beside;    // GPUs that compute together with `gpu`, each some rows of every matrix; empty: none
  bool gpus_through_host = false;  // GPUs exchange results through the host's memory, not directly
  bool graphs = true;              // off: launches every kernel by itself, for tests that compare
  bool fuse = true;                // off: one launch per step, for tests that compare
  int threads = 0;                 // of the CPU; 0: all usable processors
  kernels::Isa isa = kernels::Isa::plain;
  bool best_isa = true;  // overrides isa

  /// What the CPU computes with.
  kernels::Isa cpu_isa() const { return best_isa ? device::best_isa() : isa; }
  int cpu_threads() const { return threads > 0 ? threads : ThreadPool::usable_processors(); }
};

using residency::Pin;
/// "0-9=vram,10-29=ram,30-=disk", "5=disk". Errors: invalid_argument.
Expected<std::vector<Pin>> parse_pins(std::string_view text);

/// The caps on memory, and where weights must be placed under them.
struct MemoryOptions {
  std::uint64_t ram_bytes = 0;             // 0: what the machine can spare (MemAvailable and cgroup, less a margin)
  std::uint64_t ram_taken_bytes = 0;       // the part of ram_bytes that is not for the engine (a draft model)
  std::uint64_t vram_bytes = 0;            // all of the process's device memory, context included; 0: what is free
  std::vector<std::uint64_t> vram_beside;  // the caps of DeviceOptions::gpus_beside; empty: vram_bytes for each
  std::vector<Pin> pins;
  int cpu_share_percent = -1;             // the CPU's rows of layers streamed from RAM; -1: chosen from the rates
  std::uint64_t tile_bytes = 0;           // 0: chosen from the budget
  std::uint64_t bare_resident_bytes = 0;  // RSS at program start, which the budget does not count
  bool exact_budget = false;              // tests: the measured overhead of the program is not subtracted
};

/// The passes that the engine must be able to run.
struct DemandOptions {
  std::int64_t context_tokens = 0;  // 0: the model's, or what fits the budget, at most 65,536
  std::int64_t batch_tokens = 0;    // rows in a pass at most; 0: 512 on the CPU, 2048 on a GPU,
                                    // and on a GPU a whole prompt of up to 16,384 if layers stream
  std::int64_t max_sequences = 1;   // requests that share a pass; 0: as many as KV allows
  bool fewer_sequences = false;     // max_sequences and kv_tokens are upper bounds, reduced if memory is short
  std::int64_t max_queue = 0;       // requests that wait for their turn at most; 0: any number
  std::int64_t kv_tokens = 0;       // KV of all sequences together; 0: every sequence may fill its context,
                                    // with fewer_sequences up to half of the remaining memory
  std::int64_t chunk_tokens = 0;    // prompt rows in a pass beside decode rows, so that no stream stalls; 0: 128, on a
                                    // GPU 512
  /// Rows of a pass whose logits may be requested, if memory allows (logits_of_prompt): at most a sixteenth of --ram,
  /// or a thirty-second of --vram. 0: as many as answers need.
  std::int64_t logit_rows = 0;
  double decode_rows = 1;  // rows of a typical decode pass, as the caller expects; without a draft model's guesses
};

/// The format of the KV cache, and how long KV is kept.
struct KvOptions {
  DType dtype = DType::f16;                         // f16, f32, q8_0, q4_0; q3_k or q2_0: 3 or 2 bits (kv/layout.h)
  kv::Rotation rotation = kv::Rotation::of_format;  // else: to measure what it does
  bool share_prefixes = false;                      // keeps the KV of prompts for requests with the same beginning
  std::string prompt_cache;  // folder for the KV of slow prompts (kv/prompt_cache.h); empty: none
  std::uint64_t prompt_cache_bytes = 4'000'000'000;  // in that folder at most
  double prompt_cache_seconds = 1;                   // prompts that are computed faster are not stored
};

/// The experts of a mixture. None of these changes a token, except `routing`.
struct ExpertOptions {
  std::int64_t vram_slots = -1;  // experts in VRAM at most; -1: as many as fit
  std::int64_t ram_slots = 0;    // experts in RAM at most; 0: as many as fit
  residency::CachePolicy policy = residency::CachePolicy::automatic;
  std::string pack = "auto";  // the pack that experts are read from (engine/pack_choice.h): "auto", "off" or a file
  exec::Prefetch prefetch = exec::Prefetch::automatic;  // of experts that are predicted to be used
  std::string usage_folder;    // where the use of experts is recorded (usage_keeper.h); empty: nowhere
  std::string routing;         // replaces the routers (exec/routing.h); empty: the routers choose
  std::string record_routing;  // a file to which the routers' choices are written; empty: none
};

/// How weights are read.
struct StorageOptions {
  storage::BackendKind backend = storage::BackendKind::automatic;
  bool cufile = false;                 // directly into the GPU's memory
  std::vector<storage::Fault> faults;  // injected by tests
};

/// The planner's inputs beside the model and the limits.
struct PlanningOptions {
  residency::Rates rates;  // zeros: unknown
  /// If rates are unknown: uses those saved for this machine, measures the rates that a choice depends on, and saves
  /// and refines them (engine/machine_rates.h).
  bool find_rates = false;
  /// Follows the decisions of this plan. The caller must set the options that it was made for (device, caps, context,
  /// batch, tiles). May be null.
  std::shared_ptr<const residency::SavedPlan> follow;
};

/// The part of the model that this process computes, if others compute the rest.
struct PartOptions {
  Cluster* cluster = nullptr;  // other processes compute layers (engine/cluster.h); null: none. Outlives the engine
  int ranks = 1;               // of that cluster
  model::Stage stage;          // only these layers, for one rank of a cluster; not a complete engine
  model::Shard shard;          // only these rows, for one of DeviceOptions::gpus_beside; not a complete engine
};

/// Observers. All of them outlive the engine.
struct WatchOptions {
  Trace* trace = nullptr;                 // records passes
  exec::InputObserver* inputs = nullptr;  // receives the inputs of products; only on the CPU
  /// The progress of loading for a GPU: bytes loaded, and bytes in all; returning false cancels. create() calls it from
  /// its thread until the weights in VRAM are loaded. The weights in RAM are loaded in the background; while the first
  /// pass waits for them, step() calls this from its thread several times per second (false then ends the pass's
  /// requests, not the loading), and once when everything is loaded.
  std::function<bool(std::uint64_t done, std::uint64_t total)> on_load;
  /// Called from the same threads when a series of on_load calls ends, with success or failure.
  std::function<void()> on_load_end;
};

/// A drafter that is part of the model, or reads what its layers read.
enum class Within : std::uint8_t {
  none,
  self,       // the model's first layers and the head (engine/self_drafter.h)
  mtp,        // the block after the last layer that was trained for multi-token prediction (engine/mtp_drafter.h)
  eagle3,     // likewise, a head in a file of its own, draft_model, which was trained for the model (model/eagle3.h)
  assistant,  // likewise, one that reads the model's keys and values (model/gemma4_assistant.h)
};
constexpr int kMostSelfLayers = 1 << 16;

/// Speculation: a drafter guesses tokens, and one pass verifies several. The tokens are the same, and come sooner if
/// passes are slow.
struct SpeculateOptions {
  /// automatic: the number of guesses with the most tokens per second, from the measured time of passes and the
  /// acceptance of guesses.
  enum class Mode : std::uint8_t { off, automatic, fixed };
  Mode mode = Mode::off;
  std::string draft_model;                         // a GGUF file that guesses: a small model of the same vocabulary, or
                                                   // a head, which with_head() recognizes
  Within within = Within::none;                    // or part of the model does
  int self_layers = 0;                             // Within::self: the number of layers; 0: as many as memory allows
  double acceptance = 0.7;                         // of guesses, assumed for the choice of the drafter's device
  std::int64_t drafts = 0;                         // fixed: guesses per pass, if there are any; <= kMostDrafts
  std::vector<std::shared_ptr<Drafter>> drafters;  // consulted before the engine's drafters; for tests
};
/// "off", "auto" or a number of guesses. Errors: invalid_argument.
Expected<SpeculateOptions> parse_speculation(std::string_view text);
/// Reads a drafter into the options: "self", "self:K", "mtp", or a model's name or file.
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
