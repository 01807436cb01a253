// The scheduler chooses the rows of the next pass and handles their logits. Decode rows of all live requests come
// first, then prompt chunks: as many as the pass has room for, but beside decode rows at most one chunk, so that a long
// prompt never stops other requests, and weights are read once per pass for all of them. Short prompts go before long
// ones, but the prompt that has waited longest always advances. When all KV is in use, the newest request frees its KV
// and starts again later; the numerics contract guarantees the same tokens.
//
// If the executor accepts several passes at a time, the scheduler keeps them in flight: it divides decoding sequences
// over them, and continues a prompt in the next pass before the last one has ended. Thread-safety: as Engine.
#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "engine/adapter_mix.h"
#include "engine/choice.h"
#include "engine/engine.h"
#include "engine/pass_groups.h"
#include "engine/picture_rows.h"
#include "engine/pooler.h"
#include "engine/setup.h"
#include "engine/speculation.h"
#include "engine/text_stream.h"

namespace millrace::engine {

/// A conversation's KV and the tokens it stands for. Shared by the Session handle and a live request.
struct Conversation {
  explicit Conversation(std::shared_ptr<kv::BlockPool> pool) : state(std::move(pool)) {}
  kv::SequenceState state;
  std::vector<text::TokenId> tokens;  // tokens.size() == state.length() between requests
  std::uint64_t mix = 0;              // mix_key() of the adapters that they went through
  bool busy = false;                  // a request that is not finished uses it
};

/// What a request comes to. It outlives the request until somebody takes it.
struct Outcome {
  Result result;
  std::atomic<bool> cancelled{false};
  bool ended = false;      // `result` is whole
  bool abandoned = false;  // nobody takes it
};

/// A live request: queued, in its prompt, or decoding.
struct Live {
  using Clock = std::chrono::steady_clock;
  /// prompt: known tokens are computed, for the first time or again after the request freed its KV. decode: each pass
  /// gives at least one token.
  enum class Phase : std::uint8_t { prompt, decode };

  Live(Request request, std::shared_ptr<Conversation> conversation, std::shared_ptr<const text::Tokenizer> tokenizer,
       kv::AdapterMix mix);

  /// The number of tokens without a pass. While decoding this is 1; it is more after a pass accepted drafts, if layers
  /// keep a state from which such a pass cannot continue.
  std::int64_t waiting() const { return static_cast<std::int64_t>(tokens.size()) - conversation->state.length(); }
  bool in_prompt() const { return phase == Phase::prompt; }
  /// Whether nothing of the request can be computed before a pass in flight ends.
  bool awaits_pass() const { return passes > 0 && !in_prompt(); }
  bool embeds() const { return request.pooling != model::Pooling::none; }
  /// Whether the prompt may continue from other requests' KV; otherwise all of its rows are computed.
  bool shares_prefix() const { return !request.logits_of_prompt && !embeds(); }
  /// Whether this request was submitted before the other.
  bool before(const Live& other) const { return id < other.id; }
  /// Its tokens, as KV is found by them.
  std::span<const text::TokenId> kv_tokens() { return keys.of(tokens); }

  Request request;
  std::shared_ptr<Conversation> conversation;
  std::vector<text::TokenId> tokens;  // prompt, then generated
  PictureRows pictures;               // of `request`
  kv::AdapterMix mix;                 // the adapters that it goes through
  KvKeys keys;                        // of `mix`
  std::vector<text::TokenId> drafts;  // guesses of what comes behind them, in the present pass
  Phase phase = Phase::prompt;
  Chooser chooser;
  residency::Reservation form_memory;  // of the request's constraint
  TextStream stream;
  std::vector<TextStream::Piece> untold;  // pieces of text that on_text has not received yet
  Pooler pooler;
  const std::shared_ptr<Outcome> outcome = std::make_shared<Outcome>();
  Result& result = outcome->result;
  std::atomic<bool>& cancelled = outcome->cancelled;
  Clock::time_point start;        // of the first pass
  Clock::time_point prompt_done;  // when the first token was picked
  std::int64_t passes = 0;        // that are under way with it
  bool started = false;
  bool disk_asked = false;  // for all of the KV it may have
  Engine::Id id = 0;        // ascending: who came first
};

inline double seconds_between(Live::Clock::time_point from, Live::Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

class Scheduler {
 public:
  /// `parts` outlives the scheduler.
  Scheduler(Parts& parts, const SpeculateOptions& speculate);

  Expected<Engine::Id> submit(Request request, std::shared_ptr<Conversation> conversation);
  bool step();
  void cancel(Engine::Id id);
  void abandon(Engine::Id id);
  bool finished(Engine::Id id) const;
  Result take(Engine::Id id);
  void set_stop_flag(const std::atomic<bool>* flag) { stop_flag_ = flag; }
  LoadCounters load() const;

 private:
  struct Entry {
    Engine::Id id = 0;
    std::shared_ptr<Live> live;
    std::int64_t rows = 0;        // in this pass, without those of drafts, which come behind them
    std::int64_t first = 0;       // position of the first of them
    std::int64_t first_row = 0;   // of them in the batch
    std::int64_t logit_rows = 0;  // among them
    std::int64_t place = 0;       // of its sequence in the batch
  };
  /// A pass in flight.
  struct Pass {
    std::vector<Entry> entries;  // that have rows in it
    std::int64_t rows = 0;
    std::int64_t logit_rows = 0;
    bool top_logits_only = false;  // what it brings
    std::int64_t decoding = 0;     // sequences that decoded when it began; 0: it has prompts' rows, too
    Live::Clock::time_point begin;

    bool unwanted() const;  // whether all requests with rows in it were cancelled
  };

  Status check(const Request& request) const;
  Status check_pictures(const Request& request) const;
  void drop_cancelled();
  void admit();
  std::size_t next_in_queue() const;
  bool has_kv_for(const Live& live) const;
  void build_batch();
  void share_prefixes();
  bool waits_for_disk(const Live& live) const;
  void keep_prompt(Live& live) const;
  bool others_compute_its_next_block(const Entry& entry) const;
  void add_decoding();
  void draft(std::span<Entry* const> entries);
  std::int64_t room_for_drafts(const Live& live) const;
  void add_prompts();
  std::int64_t prompt_rows(const Live& live, std::int64_t most) const;
  std::int64_t whole_chunks(const Live& live, std::int64_t rows) const;
  std::int64_t whole_pictures(const Live& live, std::int64_t rows) const;
  std::int64_t largest_picture() const;
  void add_picture_rows(const Live& live, std::int64_t first, std::int64_t rows);
  std::int32_t mix_of(const Live& live);
  void add_rows(Entry& entry, std::int64_t rows);
  Expected<bool> reserve(Entry& entry, std::int64_t tokens);
  void preempt(Entry& entry);
  bool begin_pass();
  static void tell_cached(const Pass& pass);
  void finish_pass();
  void fail(const Pass& pass, const Status& status);
  Entry* resume(const Entry& part);
  bool given_up() const;
  std::int64_t decoding() const;
  void deliver(Entry& entry, std::int64_t first_logit_row);
  void tell_drafters(std::span<const Computed> before);
  void verify(Entry& entry, std::int64_t first_logit_row);
  void complete(Live& live, std::int64_t tokens) const;
  void tell_logits(const Live& live, std::int64_t position, std::int64_t logit_row) const;
  void pool(Entry& entry, std::int64_t position);
  bool top_logits_suffice() const;
  void ask_for_draws(const Pass& pass);
  Status check_logits(const Pass& pass) const;
  std::span<const float> logits_of(std::int64_t logit_row) const;
  Status hold_form(Live& live);
  Expected<text::TokenId> sample(Live& live, std::int64_t logit_row);
  void pick(Entry& entry, std::int64_t logit_row);
  void emit(Live& live, TextStream::Piece piece);
  static void tell(Live& live);
  void tell_all();
  void finish(Entry& entry, Finish reason, Status status = {});
  bool stop_asked() const {
    const std::atomic<bool>* flag = stop_flag_;
    return flag != nullptr && flag->load(std::memory_order_relaxed);
  }

  Parts& parts_;
  const bool whole_prompts_;  // prompt tokens see later ones: no pass cuts a prompt
  Speculator speculator_;
  Engine::Id next_id_ = 1;
  std::deque<Entry> queue_;
  std::vector<Entry> live_;
  kv::Batch batch_;  // of the pass that is begun
  std::int64_t batch_logit_rows_ = 0;
  std::deque<Pass> under_way_;  // the oldest first
  PassGroups groups_;
  bool began_prompts_ = false;            // since a pass ended last: its time is not the next one's alone
  Live::Clock::time_point last_end_;      // of a pass
  bool top_logits_only_ = false;          // what the pass that ended brought
  std::vector<kernels::DrawRule> draws_;  // of the pass that is begun, a row of logits each
  LoadCounters counters_;
  residency::Reservation form_tokens_;  // what constraints share
  std::atomic<const std::atomic<bool>*> stop_flag_{nullptr};
  mutable Mutex requests_mutex_;
  // From submit() to take(). The mutex also guards `ended` and `abandoned` of each.
  std::unordered_map<Engine::Id, std::shared_ptr<Outcome>> requests_ MR_GUARDED_BY(requests_mutex_);
};

}  // namespace millrace::engine
