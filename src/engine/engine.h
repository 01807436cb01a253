// Requests in, tokens out: many sequences share a pass, so that weights are read once for all of them.
//
// The engine owns the model's whole run-time: file, storage, plan, weight store, executor, KV pool. submit() admits a
// request; step() runs one pass for all live requests (prompt chunks and decode rows together) and delivers tokens
// through their callbacks. Thread-safety: one thread calls submit and step; cancel() may come from any thread or a
// signal handler's flag.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/trace.h"
#include "engine/draft_place.h"
#include "engine/drafter.h"
#include "engine/sampler.h"
#include "exec/executor.h"
#include "kv/prompt_cache.h"
#include "kv/sequence.h"
#include "model/model.h"
#include "model/rank_head.h"
#include "residency/homes.h"
#include "residency/plan.h"
#include "residency/plan_file.h"
#include "residency/weight_store.h"
#include "storage/fault_injection.h"
#include "storage/storage.h"
#include "text/chat_template.h"
#include "text/constraint/constraint.h"
#include "text/tokenizer.h"

namespace millrace::engine {

/// Who computes. automatic: the GPU where there is one and it can run the model, else the CPU; of a model larger than
/// VRAM, the one whose plan predicts more decoded tokens a second, where both predict. The log says why.
enum class DeviceChoice { automatic, cpu, cuda };

using residency::Pin;
/// "0-9=vram,10-29=ram,30-=disk", "5=disk". Errors: invalid_argument.
Expected<std::vector<Pin>> parse_pins(std::string_view text);

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

struct Cluster;

struct EngineOptions {
  std::string model_path;
  /// Other processes compute layers, too (engine/cluster.h); null: none. Outlives the engine.
  Cluster* cluster = nullptr;
  model::Stage stage;  // only these layers, for one rank of a cluster: no engine by itself
  int ranks = 1;       // of that cluster
  /// Brings what the engine needs of the model's file, of which the header alone is there; empty: the file is whole.
  std::function<Status(const residency::UnitTable& units)> fetch;
  std::string identity;                 // what ranks compare in the place of their files' own pages; empty: nothing
  std::uint64_t most_header_bytes = 0;  // of memory for the file's metadata and tensor table; 0: ram_bytes, or no bound
  std::string overlay;  // a file whose tensors take the place of the model's (modelfile/overlay.h); empty: none
  DeviceChoice device = DeviceChoice::automatic;
  int cuda_index = 0;
  bool cuda_named = false;         // that one was asked for; else the processes of one host take a GPU each
  std::vector<int> cuda_beside;    // GPUs that compute with that one, each with its rows of every matrix; empty: none
  bool gpus_through_host = false;  // those write to the host's memory, not to each other's
  model::Shard shard;              // only these rows, for one of those GPUs: no engine by itself
  std::uint64_t vram_bytes = 0;  // cap on all memory of a device that the process takes, its context included; 0: what
                                 // is free
  std::vector<std::uint64_t> vram_beside;  // the caps of cuda_beside, in their order; empty: vram_bytes for each
  std::vector<Pin> pins;
  int cpu_share_percent = -1;  // of the rows of layers streamed from RAM, the CPU's; -1: chosen from the rates
  // Of a mixture: experts with slots in VRAM at most; -1: as many as there is room for, all of them if they fit.
  std::int64_t vram_experts = -1;
  bool cuda_graphs = true, cuda_fuse = true;  // off: tests that compare
  Trace* trace = nullptr;                     // if set, passes are timed into it; outlives the engine
  /// How far weights are, on a GPU: bytes in memory, of all that belong there; false cancels. Called in create() from
  /// its thread, until what is at home in VRAM is there; the rest comes to RAM behind the first pass, and while that
  /// waits for it, this is called from step()'s thread some times a second (false then ends the pass's requests, not
  /// the loading), and once when all is there. What it refers to outlives the engine.
  std::function<bool(std::uint64_t done, std::uint64_t total)> on_load;
  /// What was told to on_load is over for now, well or not: create()'s part, or a pass's wait. From the same threads.
  std::function<void()> on_load_end;
  std::uint64_t ram_bytes = 0;         // 0: what the machine can spare (MemAvailable and cgroup, less a margin)
  std::uint64_t ram_taken_bytes = 0;   // of it, by others than the engine (a draft model)
  std::int64_t context_tokens = 0;     // 0: the model's, or what fits the budget, at most 65,536
  std::int64_t automatic_context = 0;  // of that, what planning found to fit (choose_context of limits.h)
  std::int64_t batch_tokens = 0;       // rows in a pass at most; 0: 512 on the CPU, 2048 on a GPU,
                                       // and there a whole prompt, up to 16,384, where layers stream
  std::int64_t max_sequences = 1;      // requests that share a pass; 0: as many as KV allows
  bool fewer_sequences = false;        // max_sequences and kv_tokens are ceilings: less is taken where memory is short
  std::int64_t max_queue = 0;          // requests that wait for their turn at most; 0: any number
  std::int64_t kv_tokens = 0;          // KV of all sequences together; 0: every sequence may fill its context,
                                       // with fewer_sequences as far as half of what is left
  std::int64_t chunk_tokens =
      0;  // prompt rows in a pass beside decode rows, so that no stream stalls; 0: 128, on a GPU 512
  bool share_prefixes = false;  // keep the KV of what requests began with, for others that begin the same
  /// Where the KV of slow prompts is kept on the disk (kv/prompt_cache.h); empty: nowhere.
  std::string prompt_cache;
  std::uint64_t prompt_cache_bytes = 4'000'000'000;  // there at most
  double prompt_cache_seconds = 1;                   // what is computed faster is not kept there
  /// Rows of a pass that may want logits, where memory allows (logits_of_prompt): a sixteenth of --ram, or a
  /// thirty-second of --vram, at most. 0: what answers need.
  std::int64_t logit_rows = 0;
  exec::InputObserver* observer = nullptr;  // sees what products read; on the CPU alone. Outlives the engine
  int threads = 0;                          // 0: all usable processors
  kernels::Isa isa = kernels::Isa::plain;
  bool best_isa = true;  // overrides isa
  storage::BackendKind storage = storage::BackendKind::automatic;
  bool cufile = false;  // read straight into the GPU's memory, by cuFile
  residency::CachePolicy policy = residency::CachePolicy::automatic;
  std::int64_t expert_slots = 0;  // experts in RAM at most; 0: as many as fit
  std::uint64_t tile_bytes = 0;   // 0: chosen from the budget
  DType kv_dtype = DType::f16;    // f16, f32, q8_0, q4_0; q3_k or q2_0: of three or two bits (kv/layout.h)
  kv::Rotation kv_rotation = kv::Rotation::of_format;  // else: to measure what it does
  bool exact_budget = false;                           // tests: do not subtract measured program overhead
  SpeculateOptions speculate;
  residency::Rates rates;  // for the plan's prediction; zeros: unknown
  double decode_rows = 1;  // of most passes that decode, as the caller expects; those of a draft model's guesses beside
  /// Where they are unknown: plan with those kept for this machine, and measure briefly, keep and refine what a choice
  /// depends on (engine/machine_rates.h).
  bool find_rates = false;
  /// Decides as this plan did; the options that it was made for (device, caps, context, batch, tiles) are the caller's
  /// to set. May be null.
  std::shared_ptr<const residency::SavedPlan> follow;
  std::string routing;  // of mixtures, in their routers' place (exec/routing.h); empty: the routers choose
  /// Of a mixture's experts (engine/pack_choice.h): "auto", "off" or a file.
  std::string pack = "auto";
  exec::Prefetch prefetch = exec::Prefetch::automatic;  // of experts that are guessed: the same tokens
  /// A folder where it is learned, of each mixture, which experts its traffic calls for (engine/usage_keeper.h); empty:
  /// nowhere. The same tokens.
  std::string learn_experts;
  std::string record_routing;  // a file to which the routers' choices are written; empty: none
  std::vector<storage::Fault> faults;
  std::uint64_t bare_resident_bytes = 0;  // RSS at program start; what the budget does not count
};

/// What create() would do with these options, found without reading a weight: for `millrace plan`.
struct Planned {
  residency::Plan plan;
  residency::PlanOptions options;
  std::int64_t context_tokens = 0;  // of one sequence
  std::int64_t batch_tokens = 0;
  residency::SavedPlan saved;
  // Blocks that were trained to guess more tokens (model::Model::draft_blocks()): left on the disk.
  std::int64_t draft_blocks = 0;
  std::uint64_t draft_block_bytes = 0;
  DraftSeat draft = {};  // of SpeculateOptions::draft_model or within
};
/// Errors: as Engine::create.
Expected<Planned> plan_only(const EngineOptions& options);

/// A token that became part of an answer, and how likely it was: natural logarithms, at temperature 1, of the model's
/// own distribution (before bias, constraint and penalties).
struct TokenChoice {
  struct Candidate {
    text::TokenId id = 0;
    float log_probability = 0;
  };
  text::TokenId id = 0;
  float log_probability = 0;
  std::span<const Candidate> likeliest;  // best first; valid during the call
};

enum class Finish { stop, length, cancelled, error };

/// A request's life: created by submit(), finished exactly once.
struct Request {
  std::vector<text::TokenId> prompt;
  int priority = 0;    // among the waiting requests of its own client, higher goes first
  std::string client;  // the client with the fewest live requests goes first
  SamplerOptions sampler;
  std::int64_t max_tokens = -1;            // -1: to the end of the context
  std::vector<std::string> stop;           // stop strings, also across token borders
  std::vector<text::TokenId> stop_tokens;  // end the answer and are no part of it, also where end tokens are ignored
  /// The first tokens of the answer are none of `late_tokens` (ascending).
  std::int64_t min_tokens = 0;
  std::vector<text::TokenId> late_tokens;
  std::vector<std::vector<text::TokenId>> banned;  // sequences of tokens that the answer never has
  std::vector<text::TokenId> shown_tokens;         // control tokens that are part of the text, ascending
  bool ignore_end_tokens = false;                  // bench
  /// The first tokens of the answer, taken instead of what the sampler would pick (bench: text that does not repeat).
  std::vector<text::TokenId> forced_tokens;
  /// Bench, for weights that are random: in place of what the drafter guessed, each guess is the forced token with this
  /// probability, and else another. Below 0: the drafter's own.
  double drafts_right = -1;
  /// A piece of text that holds no half character and no part of a stop string; token ids beside it.
  std::function<void(std::string_view text, std::span<const text::TokenId> tokens)> on_text;
  /// Prompt progress: tokens done of total. First when its first pass begins, with those that need not be computed.
  std::function<void(std::int64_t done, std::int64_t total)> on_prompt;
  /// Logits of each sampled row before sampling (bench's hash, tests).
  std::function<void(std::int64_t position, std::span<const float> logits)> on_logits;
  bool logits_of_prompt = false;  // on_logits for every prompt row too
  std::int64_t first_logits = 0;  // then: from this position on; those before it take no room for logits
  /// The form the answer keeps; it belongs to this request alone. May be null. The answer ends when it is done().
  std::shared_ptr<text::Constraint> constraint;
  std::map<text::TokenId, float> logit_bias;  // added to the logits of these tokens
  /// Each token of the answer as it is picked, before the on_text that holds it; with the `top_logprobs` likeliest.
  std::function<void(const TokenChoice& choice)> on_token;
  int top_logprobs = 0;
  /// Asked after each piece of the answer, when on_text has seen it: true ends the answer with Finish::stop. May be
  /// null.
  std::function<bool()> enough;
  /// Other than none: the result is the prompt's embedding, and no token is generated. Nothing is taken from KV that
  /// other requests or the session left, and nothing left for them.
  model::Pooling pooling = model::Pooling::none;
};

struct Result {
  Finish finish = Finish::error;
  Status status;  // why, when finish == error
  std::string text;
  std::string stop;                   // the stop string that ended the answer; empty: none did
  std::vector<text::TokenId> tokens;  // generated, without the end token
  std::int64_t prompt_tokens = 0;
  std::int64_t cached_tokens = 0;  // of the prompt, that were not computed: an earlier request's KV, or the disk's
  double prompt_seconds = 0, decode_seconds = 0;
  std::int64_t drafted = 0, drafts_right = 0;  // guesses that passes verified, and those that became part of the answer
  std::int64_t decode_turns = 0;               // passes that gave tokens, but the first
  std::vector<float> embedding;  // [model_dim], of length 1 (rank: as it is), where the request asked for it
};

/// What a drafter guessed and passes verified.
struct DraftCounters {
  std::string drafter;
  std::uint64_t drafted = 0, right = 0;
  std::array<std::uint64_t, kMostDrafts> drafted_at{}, right_at{};  // by place: the first guess, the second
  double seconds = 0;                                               // of guessing
  // Passes that verified some, what they took, and of that what a pass without guesses would not have taken.
  std::uint64_t passes = 0;
  double pass_seconds = 0, verify_seconds = 0;
};

/// What passed since the start, and what is there now.
struct LoadCounters {
  std::uint64_t passes = 0, rows = 0;                 // rows: of prompts, decode and drafts together
  std::uint64_t decode_turns = 0, decode_tokens = 0;  // a request in a pass that decodes, and what those gave
  /// Tokens that a request gets of a pass, on average; 1 before there was any.
  double tokens_a_turn() const {
    return decode_turns > 0 ? static_cast<double>(decode_tokens) / static_cast<double>(decode_turns) : 1;
  }
  std::vector<DraftCounters> drafts;  // of each drafter that had its turn; the present one last
  std::uint64_t finished = 0, failed = 0, cancelled = 0;
  std::uint64_t preempted = 0;      // times a request gave its KV up and began again
  std::uint64_t shared_tokens = 0;  // prompt tokens taken from the KV of an earlier request
  kv::PromptCache::Counters disk;   // of the prompt cache, where there is one
  std::int64_t queued = 0, live = 0, max_sequences = 0;
  std::int64_t kv_blocks = 0, kv_blocks_cached = 0, kv_blocks_bound = 0;  // in use, of those kept for later; the most
  std::int64_t last_rows = 0;                                             // of the last pass
  double last_pass_seconds = 0;
};

/// What stays of a conversation: keep it and pass it to the next submit to go on without a new prefill of the past.
class Session;

class Engine {
 public:
  /// Opens file, storage, plan and executor. Errors name what to do (a budget too small names the smallest that works).
  static Expected<std::unique_ptr<Engine>> create(const EngineOptions& options);
  virtual ~Engine() = default;

  using Id = std::uint64_t;
  /// Requests beyond max_sequences wait for their turn: the client with the fewest live requests first, then the
  /// first come; of one client's requests the highest priority first. A callback may call submit() and cancel(), not
  /// step(). Errors: unavailable (max_queue requests wait already); invalid_argument (prompt empty, longer than the
  /// context, or with ids outside the vocabulary; a session whose last request is not finished).
  virtual Expected<Id> submit(Request request) = 0;
  /// The same, in a session: the tokens it already holds are a prefix of request.prompt and are not computed again.
  virtual Expected<Id> submit(Request request, Session& session) = 0;
  /// One pass for all live requests. False when there was nothing to do. Failures end the requests they touch.
  virtual bool step() = 0;
  virtual void cancel(Id id) = 0;
  virtual bool finished(Id id) const = 0;
  virtual Result take(Id id) = 0;  // REQUIRES: finished(id). Forgets the request.
  /// submit, step until finished, take. `stop_flag` (may be null) cancels when set, within one op.
  Result run(Request request, Session* session = nullptr, const std::atomic<bool>* stop_flag = nullptr);
  /// A session must not outlive its engine.
  virtual std::unique_ptr<Session> new_session() = 0;
  virtual void set_stop_flag(const std::atomic<bool>* flag) = 0;

  virtual const text::Tokenizer& tokenizer() const = 0;
  virtual std::shared_ptr<const text::Tokenizer> shared_tokenizer() const = 0;
  virtual const text::ChatTemplate* chat_template() const = 0;  // nullptr: the file has none we can render
  virtual Status chat_template_status() const = 0;              // why not
  /// Holds none where the model is no reranker; an error where its head cannot be used.
  virtual const Expected<std::optional<model::RankHead>>& rank_head() const = 0;
  virtual const model::Model& model() const = 0;
  virtual const residency::Plan& plan() const = 0;
  /// What the plan was made for. Its context_tokens are the KV a run starts with: weights give way as it grows.
  virtual const residency::PlanOptions& plan_options() const = 0;
  virtual residency::SavedPlan saved_plan() const = 0;
  /// What the plan was made with.
  virtual const residency::Rates& rates() const = 0;
  /// Where the draft model computes, or what part of the model guesses, if any was asked for.
  virtual const DraftSeat& draft_seat() const = 0;
  /// Where EngineOptions::routing chooses: passes from now on go by other rows of it.
  virtual void move_routing_on() = 0;
  virtual const residency::Budget& budget() const = 0;
  /// REQUIRES: the weights are the CPU executor's (vram_budget() is null).
  virtual const residency::WeightStore& store() const = 0;
  /// Of whoever holds the weights.
  virtual residency::StoreCounters store_counters() const = 0;
  virtual const residency::Budget* vram_budget() const = 0;  // null: no GPU takes part
  virtual const storage::Backend& storage() const = 0;
  virtual const exec::Executor& executor() const = 0;
  virtual std::int64_t context_tokens() const = 0;
  virtual LoadCounters load() const = 0;
  /// Lets go of KV that is only kept for later. What waits to be written to the disk is given up.
  virtual void drop_shared() = 0;
  /// KV is on its way to the disk: step() takes it there, with or without requests.
  virtual bool saving() const = 0;
};

class Session {
 public:
  virtual ~Session() = default;
  virtual const std::vector<text::TokenId>& tokens() const = 0;  // whose KV is held
  virtual void clear() = 0;
};

}  // namespace millrace::engine
