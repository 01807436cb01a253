#include "engine/scheduler.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace millrace::engine {

using text::TokenId;

namespace {

/// False if any value is NaN or infinite: an exponent of all ones.
bool all_finite(std::span<const float> values) {
  constexpr std::uint32_t exponent = 0x7f800000u;
  std::uint32_t bad = 0;
  for (const float value : values)
    bad |= static_cast<std::uint32_t>((std::bit_cast<std::uint32_t>(value) & exponent) == exponent);
  return bad == 0;
}

double seconds_between(Live::Clock::time_point from, Live::Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

}  // namespace

Live::Live(Request asked, std::shared_ptr<Conversation> shared, std::shared_ptr<const text::Tokenizer> tokenizer)
    : request(std::move(asked)),
      conversation(std::move(shared)),
      tokens(request.prompt),
      chooser(request),
      stream(std::move(tokenizer), request.stop) {
  result.prompt_tokens = static_cast<std::int64_t>(request.prompt.size());
}

Status Scheduler::check(const Request& request) const {
  const auto prompt = static_cast<std::int64_t>(request.prompt.size());
  const std::int64_t vocab = parts_.model->hyperparameters().vocab;
  if (prompt == 0) return error(Code::invalid_argument, "the prompt is empty; write something");
  if (prompt > parts_.limits.context_tokens)
    return error(Code::invalid_argument,
                 "the prompt has {} tokens but the context holds {}; raise it with --ctx {} or shorten the prompt",
                 prompt, parts_.limits.context_tokens, prompt + 1);
  for (const TokenId id : request.prompt)
    if (id < 0 || id >= vocab)
      return error(Code::invalid_argument, "token id {} is outside the vocabulary of {}", id, vocab);
  if (request.constraint != nullptr && !request.forced_tokens.empty())
    return error(Code::internal, "a request cannot both force tokens and constrain them");
  return {};
}

Expected<Engine::Id> Scheduler::submit(Request request, std::shared_ptr<Conversation> conversation) {
  MR_RETURN_IF_ERROR(check(request));
  if (conversation->busy)
    return error(Code::invalid_argument, "this session still works on its last request; wait for it or cancel it");
  // What the conversation holds is kept as far as the prompt agrees; the last token is computed anew for its logits.
  const auto& held = conversation->tokens;
  const auto limit = std::min(held.size(), request.prompt.size() - 1);
  const auto agreed =
      std::mismatch(held.begin(), held.begin() + static_cast<std::ptrdiff_t>(limit), request.prompt.begin());
  conversation->tokens.erase(agreed.first, conversation->tokens.end());
  conversation->state.truncate(static_cast<std::int64_t>(conversation->tokens.size()));
  conversation->busy = true;

  Entry entry;
  entry.id = next_id_++;
  entry.live = std::make_shared<Live>(std::move(request), std::move(conversation), parts_.tokenizer);
  {
    std::lock_guard lock(cancel_mutex_);
    cancellable_.emplace(entry.id, entry.live);
  }
  const Engine::Id id = entry.id;
  queue_.push_back(std::move(entry));
  return id;
}

void Scheduler::cancel(Engine::Id id) {
  std::lock_guard lock(cancel_mutex_);
  if (const auto found = cancellable_.find(id); found != cancellable_.end()) found->second->cancelled = true;
}

Result Scheduler::take(Engine::Id id) {
  const auto found = results_.find(id);
  if (found == results_.end()) {
    Result none;
    none.status = error(Code::internal, "request {} is not finished or was already taken", id);
    return none;
  }
  Result result = std::move(found->second);
  results_.erase(found);
  return result;
}

bool Scheduler::step() {
  drop_cancelled();
  admit();
  if (live_.empty()) return false;
  build_batch();
  if (!batch_.rows.empty()) {
    const Status status = run_pass();
    std::int64_t logit_row = 0;
    for (Entry& entry : live_) {
      if (entry.rows == 0) continue;
      if (!status.ok()) {
        finish(entry, status.code() == Code::cancelled ? Finish::cancelled : Finish::error, status);
        continue;
      }
      deliver(entry, logit_row);
      logit_row += entry.logit_rows;
    }
  }
  std::erase_if(live_, [](const Entry& entry) { return entry.live == nullptr; });
  return true;
}

void Scheduler::drop_cancelled() {
  const bool all = stop_asked();
  for (Entry& entry : live_)
    if (all || entry.live->cancelled) finish(entry, Finish::cancelled);
  for (Entry& entry : queue_)
    if (all || entry.live->cancelled) finish(entry, Finish::cancelled);
  std::erase_if(live_, [](const Entry& entry) { return entry.live == nullptr; });
  std::erase_if(queue_, [](const Entry& entry) { return entry.live == nullptr; });
}

void Scheduler::admit() {
  while (!queue_.empty() && static_cast<std::int64_t>(live_.size()) < parts_.limits.sequences) {
    live_.push_back(std::move(queue_.front()));
    queue_.pop_front();
    Live& live = *live_.back().live;
    live.start = Live::Clock::now();
    live.started = true;
  }
}

void Scheduler::build_batch() {
  batch_.sequences.clear();
  batch_.rows.clear();
  batch_logit_rows_ = 0;
  for (Entry& entry : live_) entry.rows = entry.logit_rows = 0;
  // Every decode row goes along (limits.batch_tokens >= limits.sequences), then prompts in the order they came.
  for (Entry& entry : live_)
    if (!entry.live->in_prompt()) add_rows(entry, 1);
  for (Entry& entry : live_)
    if (entry.live != nullptr && entry.live->in_prompt()) add_rows(entry, prompt_rows(*entry.live));
}

/// As much of a prompt as the pass has room for, in rows and in rows of logits.
std::int64_t Scheduler::prompt_rows(const Live& live) const {
  const std::int64_t room = parts_.limits.batch_tokens - static_cast<std::int64_t>(batch_.rows.size());
  const std::int64_t logit_room = parts_.limits.logit_rows - batch_logit_rows_;
  const std::int64_t rows = std::min(live.waiting(), room);
  if (live.request.logits_of_prompt) return std::min(rows, logit_room);
  return rows == live.waiting() && logit_room == 0 ? rows - 1 : rows;
}

/// The next `rows` uncomputed tokens of a request. A request that the budget has no KV for ends here; the others live.
void Scheduler::add_rows(Entry& entry, std::int64_t rows) {
  if (rows <= 0) return;
  Live& live = *entry.live;
  kv::SequenceState& state = live.conversation->state;
  const std::int64_t first = state.length();
  if (Status status = state.reserve(first + rows); !status.ok()) {
    finish(entry, Finish::error, std::move(status));
    return;
  }
  const auto sequence = static_cast<std::int32_t>(batch_.sequences.size());
  batch_.sequences.push_back(&state);
  const auto last = static_cast<std::int64_t>(live.tokens.size()) - 1;
  for (std::int64_t position = first; position < first + rows; ++position) {
    const bool wants_logits = position == last || live.request.logits_of_prompt;
    batch_.rows.push_back(
        {live.tokens[static_cast<std::size_t>(position)], sequence, static_cast<std::int32_t>(position), wants_logits});
    entry.logit_rows += wants_logits ? 1 : 0;
  }
  entry.rows = rows;
  batch_logit_rows_ += entry.logit_rows;
}

/// Whether every request of the pass can pick from the few logits that the executor finds by itself.
bool Scheduler::top_logits_suffice() const {
  const std::int64_t limit = parts_.ops->top_logits_limit();
  if (limit == 0) return false;
  return std::all_of(live_.begin(), live_.end(), [&](const Entry& entry) {
    if (entry.live == nullptr || entry.logit_rows == 0) return true;
    const std::int64_t needed = entry.live->chooser.logits_needed();
    return needed >= 0 && needed <= limit && !entry.live->request.on_logits;
  });
}

Status Scheduler::check_logits() const {
  bool finite = true;
  if (top_logits_only_) {
    for (std::int64_t row = 0; row < batch_logit_rows_; ++row)
      finite = finite && parts_.ops->last_top_logits(row).finite;
  } else {
    const exec::Logits logits = parts_.ops->last_logits();
    if (logits.rows != batch_logit_rows_)
      return error(Code::internal, "a pass gave {} rows of logits instead of {}", logits.rows, batch_logit_rows_);
    finite = all_finite({logits.data, static_cast<std::size_t>(logits.rows * logits.vocab)});
  }
  if (finite) return {};
  return error(Code::corrupt, "the model's results are not finite; its weights are damaged: fetch the file again");
}

/// One pass. Lengths advance only when its results can be believed.
Status Scheduler::run_pass() {
  const TraceZone zone(parts_.trace, "pass");
  top_logits_only_ = top_logits_suffice();
  parts_.ops->bring_top_logits_only(top_logits_only_);
  parts_.ops->begin_pass(batch_, [this] {
    if (stop_asked()) return true;
    return std::all_of(live_.begin(), live_.end(), [](const Entry& entry) {
      return entry.live == nullptr || entry.rows == 0 || entry.live->cancelled;
    });
  });
  parts_.model->forward(*parts_.ops);
  MR_RETURN_IF_ERROR(parts_.ops->end_pass());
  MR_RETURN_IF_ERROR(parts_.backend->health());
  return check_logits();
}

/// What a pass did for one request, whose logits begin at this row of the pass's.
void Scheduler::deliver(Entry& entry, std::int64_t first_logit_row) {
  const std::shared_ptr<Live> live = entry.live;
  kv::SequenceState& state = live->conversation->state;
  const auto prompt = static_cast<std::int64_t>(live->request.prompt.size());
  const std::int64_t first = state.length();
  state.set_length(first + entry.rows);
  for (std::int64_t position = first; position < first + entry.rows; ++position)
    live->conversation->tokens.push_back(live->tokens[static_cast<std::size_t>(position)]);
  if (first < prompt && live->request.on_prompt) live->request.on_prompt(state.length(), prompt);
  if (live->request.on_logits) {
    const exec::Logits logits = parts_.ops->last_logits();
    for (std::int64_t row = 0; row < entry.logit_rows; ++row)
      live->request.on_logits(
          state.length() - entry.logit_rows + row,
          {logits.data + (first_logit_row + row) * logits.vocab, static_cast<std::size_t>(logits.vocab)});
  }
  if (live->waiting() > 0) return;
  if (live->result.tokens.empty()) live->prompt_done = Live::Clock::now();
  pick(entry, first_logit_row + entry.logit_rows - 1);
}

/// [vocab], or empty where the pass brought only the largest.
std::span<const float> Scheduler::logits_of(std::int64_t logit_row) const {
  if (top_logits_only_) return {};
  const exec::Logits logits = parts_.ops->last_logits();
  return {logits.data + logit_row * logits.vocab, static_cast<std::size_t>(logits.vocab)};
}

Expected<TokenId> Scheduler::sample(Live& live, std::int64_t logit_row) {
  const TraceZone zone(parts_.trace, "sample");
  const std::size_t generated = live.result.tokens.size();
  if (generated < live.request.forced_tokens.size()) return live.request.forced_tokens[generated];
  if (top_logits_only_) {
    const exec::TopLogits top = parts_.ops->last_top_logits(logit_row);
    return live.chooser.pick_from_largest(top.logits, top.ids);
  }
  return live.chooser.pick(live.request, logits_of(logit_row), live.tokens);
}

/// Samples the next token and applies the stop rules.
void Scheduler::pick(Entry& entry, std::int64_t logit_row) {
  Live& live = *entry.live;
  const auto generated = [&] { return static_cast<std::int64_t>(live.result.tokens.size()); };
  if (live.request.max_tokens == 0) return finish(entry, Finish::length);

  const Expected<TokenId> picked = sample(live, logit_row);
  if (!picked.ok()) return finish(entry, Finish::error, picked.status());
  const TokenId id = *picked;
  if (!live.request.ignore_end_tokens && parts_.tokenizer->ends_generation(id)) return finish(entry, Finish::stop);
  live.tokens.push_back(id);
  live.result.tokens.push_back(id);
  live.chooser.tell(live.request, logits_of(logit_row), id);
  emit(live, live.stream.push(id));
  const bool whole = live.request.constraint != nullptr && live.request.constraint->done();
  if (whole || live.stream.stopped()) return finish(entry, Finish::stop);
  const bool full = static_cast<std::int64_t>(live.tokens.size()) >= parts_.limits.context_tokens;
  if (full || generated() == live.request.max_tokens) finish(entry, Finish::length);
}

void Scheduler::emit(Live& live, TextStream::Piece piece) {
  if (piece.empty()) return;
  live.result.text += piece.text;
  if (live.request.on_text) live.request.on_text(piece.text, piece.tokens);
}

void Scheduler::finish(Entry& entry, Finish reason, Status status) {
  const std::shared_ptr<Live> live = std::move(entry.live);
  entry.live = nullptr;
  if (reason != Finish::error) emit(*live, live->stream.finish());
  const auto now = Live::Clock::now();
  const bool picked = live->prompt_done != Live::Clock::time_point();
  if (live->started) live->result.prompt_seconds = seconds_between(live->start, picked ? live->prompt_done : now);
  if (picked) live->result.decode_seconds = seconds_between(live->prompt_done, now);
  live->result.finish = reason;
  live->result.status = std::move(status);
  // Room that was reserved for a pass that failed goes back.
  live->conversation->state.truncate(live->conversation->state.length());
  live->conversation->busy = false;
  {
    std::lock_guard lock(cancel_mutex_);
    cancellable_.erase(entry.id);
  }
  results_.emplace(entry.id, std::move(live->result));
}

}  // namespace millrace::engine
