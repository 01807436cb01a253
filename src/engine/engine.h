// The engine: takes requests and returns tokens. Many sequences share a pass, so that weights are read once for all of
// them.
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
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/draft_place.h"
#include "engine/options.h"
#include "engine/pictures.h"
#include "engine/sampler.h"
#include "exec/executor.h"
#include "kv/prompt_cache.h"
#include "kv/sequence.h"
#include "model/model.h"
#include "model/rank_head.h"
#include "residency/plan.h"
#include "residency/weight_store.h"
#include "storage/storage.h"
#include "text/chat_template.h"
#include "text/constraint/constraint.h"
#include "text/tokenizer.h"

namespace millrace::engine {

/// What create() would do with these options, without reading a weight: for `millrace plan`.
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
  std::vector<text::TokenId> prompt;    // rows of pictures are picture_token()s in it
  std::vector<PlacedPicture> pictures;  // ascending; all whose tokens the prompt has
  int priority = 0;                     // among the waiting requests of its own client, higher goes first
  std::string client;                   // the client with the fewest live requests goes first
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
  /// Then: where the second text of a pair begins, whose tokens are of the second type; 0: there is one text.
  std::int64_t second_text = 0;
  /// The adapters that it goes through, by their place in Engine::adapters(), and how much; nullopt: as those say.
  std::optional<kv::AdapterMix> adapters;
};

/// An adapter of the model.
struct AdapterState {
  std::string name, path;
  float scale = 1;        // of requests that do not say; the one field that changes
  float alone = 1;        // of requests that name it alone
  bool of_model = false;  // part of the model, so that these have it, too
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

/// The state of a conversation: pass it to the next submit to continue without computing the earlier tokens again.
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
  /// Runs one pass for all live requests. False: there was nothing to do. A failure ends the requests that it affects.
  virtual bool step() = 0;
  virtual void cancel(Id id) = 0;
  virtual bool finished(Id id) const = 0;
  virtual Result take(Id id) = 0;  // REQUIRES: finished(id). Forgets the request.
  /// cancel(), of a request whose result nobody will take.
  virtual void abandon(Id id) = 0;
  /// submit, step until finished, take. `stop_flag` (may be null) cancels when set, within one op.
  Result run(Request request, Session* session = nullptr, const std::atomic<bool>* stop_flag = nullptr);
  /// A session must not outlive its engine.
  virtual std::unique_ptr<Session> new_session() = 0;
  virtual void set_stop_flag(const std::atomic<bool>* flag) = 0;

  virtual const text::Tokenizer& tokenizer() const = 0;
  virtual std::shared_ptr<const text::Tokenizer> shared_tokenizer() const = 0;
  virtual const text::ChatTemplate* chat_template() const = 0;  // nullptr: the file has none we can render
  virtual Status chat_template_status() const = 0;              // why not
  /// Null: there is no vision tower (ModelOptions::mmproj).
  virtual PictureEncoder* pictures() const = 0;
  /// Empty if the model is not a reranker; an error if its head cannot be used.
  virtual const Expected<std::optional<model::RankHead>>& rank_head() const = 0;
  virtual const model::Model& model() const = 0;
  virtual const residency::Plan& plan() const = 0;
  /// The options of the plan. context_tokens is the KV that a run starts with: weights are evicted as KV grows.
  virtual const residency::PlanOptions& plan_options() const = 0;
  virtual residency::SavedPlan saved_plan() const = 0;
  /// The rates of the plan.
  virtual const residency::Rates& rates() const = 0;
  /// The device of the draft model, or the part of the model that drafts, if a drafter was requested.
  virtual const DraftSeat& draft_seat() const = 0;
  /// Where ExpertOptions::routing chooses: passes from now on go by other rows of it.
  virtual void move_routing_on() = 0;
  virtual const residency::Budget& budget() const = 0;
  /// REQUIRES: the weights are the CPU executor's (vram_budget() is null).
  virtual const residency::WeightStore& store() const = 0;
  /// The counters of the holders of weights.
  virtual residency::StoreCounters store_counters() const = 0;
  virtual const residency::Budget* vram_budget() const = 0;  // null: no GPU takes part
  virtual const storage::Backend& storage() const = 0;
  virtual const exec::Executor& executor() const = 0;
  virtual std::int64_t context_tokens() const = 0;
  /// In the order of ModelOptions::adapters.
  virtual const std::vector<AdapterState>& adapters() const = 0;
  /// From the next request on: those that are not named have scale 0. Errors: invalid_argument (no such adapter, a
  /// scale that is no number).
  virtual Status set_adapter_scales(const kv::AdapterMix& scales) = 0;
  virtual LoadCounters load() const = 0;
  /// Frees KV that is kept only for later requests. Abandons what waits to be written to the disk.
  virtual void drop_shared() = 0;
  /// Whether KV waits to be written to the disk. step() writes it, with or without requests.
  virtual bool saving() const = 0;
};

class Session {
 public:
  virtual ~Session() = default;
  virtual const std::vector<text::TokenId>& tokens() const = 0;  // whose KV is held
  virtual void clear() = 0;
};

}  // namespace millrace::engine
