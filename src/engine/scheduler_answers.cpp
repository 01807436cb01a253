// What a pass of the scheduler brought its requests: tokens, text, embeddings, and KV for those to come.
#include <algorithm>
#include <bit>
#include <utility>

#include "engine/scheduler.h"

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

}  // namespace

Status Scheduler::check_logits(const Pass& pass) const {
  bool finite = true;
  if (top_logits_only_) {
    for (std::int64_t row = 0; row < pass.logit_rows; ++row)
      finite = finite && parts_.executor->last_top_logits(row).finite;
  } else {
    const exec::Logits logits = parts_.executor->last_logits();
    if (logits.rows != pass.logit_rows)
      return error(Code::internal, "a pass gave {} rows of logits instead of {}", logits.rows, pass.logit_rows);
    finite = all_finite({logits.data, static_cast<std::size_t>(logits.rows * logits.vocab)});
  }
  if (finite) return {};
  return error(Code::corrupt, "the model's results are not finite; its weights are damaged: fetch the file again");
}

/// The first `tokens` tokens of a request are computed. Whole blocks are there for others, those of passes that are
/// still under way not yet: these may be given up.
void Scheduler::complete(Live& live, std::int64_t tokens) const {
  kv::SequenceState& state = live.conversation->state;
  if (state.length() < tokens) state.set_length(tokens);
  auto& held = live.conversation->tokens;
  const std::int64_t first = std::ssize(held);
  held.insert(held.end(), live.tokens.begin() + std::ssize(held), live.tokens.begin() + tokens);
  if (parts_.prefixes != nullptr && !live.embeds() && first / kv::kBlockTokens < tokens / kv::kBlockTokens)
    parts_.prefixes->enter(state, live.kv_tokens().first(static_cast<std::size_t>(tokens)));
}

void Scheduler::tell_logits(const Live& live, std::int64_t position, std::int64_t logit_row) const {
  if (live.request.on_logits) live.request.on_logits(position, logits_of(logit_row));
}

/// What a pass did for one request that is in its prompt, whose logits begin at this row of the pass's.
void Scheduler::deliver(Entry& entry, std::int64_t first_logit_row) {
  const std::shared_ptr<Live> live = entry.live;
  kv::SequenceState& state = live->conversation->state;
  const auto prompt = static_cast<std::int64_t>(live->request.prompt.size());
  const std::int64_t first = entry.first, end = first + entry.rows;
  complete(*live, end);
  if (first < prompt && live->request.on_prompt) live->request.on_prompt(end, prompt);
  if (live->embeds()) {
    state.forget_behind_windows();
    return pool(entry, first);
  }
  for (std::int64_t row = 0; row < entry.logit_rows; ++row)
    tell_logits(*live, end - entry.logit_rows + row, first_logit_row + row);
  // Behind what keeps blocks for later requests: those that this one lets go of are kept as long as there is room.
  const bool computed = end == std::ssize(live->tokens);
  if (computed && live->result.tokens.empty()) {
    live->prompt_done = Live::Clock::now();
    keep_prompt(*live);
  }
  state.forget_behind_windows();
  if (!computed) return;
  live->phase = Live::Phase::decode;
  pick(entry, first_logit_row + entry.logit_rows - 1);
}

/// Of those that go on, the rows whose tokens stay and have one behind them. `before`: where each began.
void Scheduler::tell_drafters(std::span<const Computed> before) {
  std::vector<Computed> computed;
  for (Computed one : before) {
    const auto entry =
        std::find_if(live_.begin(), live_.end(), [&](const Entry& other) { return other.id == one.request; });
    if (entry == live_.end() || entry->live == nullptr) continue;
    const Live& live = *entry->live;
    one.tokens = live.tokens;
    // Computed are the prompt's rows that the conversation has, or all before the last token that was picked.
    const std::int64_t end = live.in_prompt() ? std::ssize(live.conversation->tokens) : std::ssize(live.tokens) - 1;
    one.rows = std::min(one.rows, std::min(end, std::ssize(live.tokens) - 1) - one.first);
    computed.push_back(one);
  }
  const TraceZone zone(parts_.trace, "draft");
  speculator_.computed(computed, *parts_.executor);
}

/// Adds the states that the pass computed from this position on to the request's embedding.
void Scheduler::pool(Entry& entry, std::int64_t position) {
  Live& live = *entry.live;
  const auto prompt = static_cast<std::int64_t>(live.tokens.size());
  const std::int64_t dim = parts_.model->hyperparameters().model_dim;
  Status status = live.pooler.add(*parts_.executor, entry.first_row, dim, position, position + entry.rows, prompt);
  if (status.ok() && position + entry.rows < prompt) return;
  live.prompt_done = Live::Clock::now();
  if (status.ok()) status = live.pooler.finish(live.result.embedding);
  const Finish reason = status.ok() ? Finish::stop : Finish::error;
  finish(entry, reason, std::move(status));
}

/// [vocab], or empty where the pass brought only the largest.
std::span<const float> Scheduler::logits_of(std::int64_t logit_row) const {
  if (top_logits_only_) return {};
  const exec::Logits logits = parts_.executor->last_logits();
  return {logits.data + logit_row * logits.vocab, static_cast<std::size_t>(logits.vocab)};
}

Expected<TokenId> Scheduler::sample(Live& live, std::int64_t logit_row) {
  const TraceZone zone(parts_.trace, "sample");
  const std::size_t generated = live.result.tokens.size();
  if (generated < live.request.forced_tokens.size()) return live.request.forced_tokens[generated];
  if (top_logits_only_) {
    const exec::TopLogits top = parts_.executor->last_top_logits(logit_row);
    return live.chooser.logits_needed() == 0 ? live.chooser.take_drawn(top.drawn)
                                             : live.chooser.pick_from_largest(top.logits, top.ids);
  }
  return live.chooser.pick(live.request, logits_of(logit_row), live.tokens);
}

/// What a constraint has learned is granted as it grows; weights give way to it.
Status Scheduler::hold_form(Live& live) {
  const text::Constraint* form = live.request.constraint.get();
  if (form == nullptr) return {};
  const auto hold = [&](residency::Reservation& held, const char* tag, std::uint64_t bytes) -> Status {
    if (bytes == held.bytes()) return {};
    if (held.bytes() > 0) return held.resize(bytes);
    MR_ASSIGN_OR_RETURN(held, parts_.budget->reserve(tag, bytes));
    return {};
  };
  MR_RETURN_IF_ERROR(hold(form_tokens_, "tokens of forms", form->shared_bytes()));
  return hold(live.form_memory, "forms", form->bytes());
}

/// Samples the next token and applies the stop rules.
void Scheduler::pick(Entry& entry, std::int64_t logit_row) {
  Live& live = *entry.live;
  const auto generated = [&] { return static_cast<std::int64_t>(live.result.tokens.size()); };
  if (live.request.max_tokens == 0) return finish(entry, Finish::length);

  const Expected<TokenId> picked = sample(live, logit_row);
  if (!picked.ok()) return finish(entry, Finish::error, picked.status());
  if (Status held = hold_form(live); !held.ok()) return finish(entry, Finish::error, std::move(held));
  const TokenId id = *picked;
  if (!live.request.ignore_end_tokens && parts_.tokenizer->ends_generation(id)) return finish(entry, Finish::stop);
  const std::vector<TokenId>& stops = live.request.stop_tokens;
  if (std::find(stops.begin(), stops.end(), id) != stops.end()) return finish(entry, Finish::stop);
  live.tokens.push_back(id);
  live.result.tokens.push_back(id);
  live.chooser.tell(live.request, logits_of(logit_row), id);
  emit(live, live.stream.push(id));
  const bool whole = live.request.constraint != nullptr && live.request.constraint->done();
  const bool enough = live.request.enough && live.request.enough();
  if (whole || enough || live.stream.stopped()) return finish(entry, Finish::stop);
  const bool full = static_cast<std::int64_t>(live.tokens.size()) >= parts_.limits.context_tokens;
  if (full || generated() == live.request.max_tokens) finish(entry, Finish::length);
}

/// What the answer says next. Where this thread would wait for the next pass it tells of it then: 64 streams take a
/// tenth of a pass's time. Who hears of tokens, too, hears of both in their order.
void Scheduler::emit(Live& live, TextStream::Piece piece) {
  if (piece.empty()) return;
  live.result.text += piece.text;
  if (!live.request.on_text) return;
  live.untold.push_back(std::move(piece));
  if (live.request.on_token || live.request.enough || !parts_.executor->waits()) tell(live);
}

void Scheduler::tell(Live& live) {
  for (const TextStream::Piece& piece : std::exchange(live.untold, {})) live.request.on_text(piece.text, piece.tokens);
}

void Scheduler::tell_all() {
  for (const Entry& entry : live_)
    if (entry.live != nullptr) tell(*entry.live);
}

/// Writes a prompt that was just computed to the disk, if that took long.
void Scheduler::keep_prompt(Live& live) const {
  if (parts_.prompts == nullptr) return;
  const std::int64_t computed = live.result.prompt_tokens - live.result.cached_tokens;
  const std::span<const TokenId> prompt = live.kv_tokens().first(live.request.prompt.size());
  parts_.prompts->keep(live.conversation->state, prompt, seconds_between(live.start, live.prompt_done),
                       std::max(computed, parts_.limits.batch_tokens), parts_.prefixes.get());
}

}  // namespace millrace::engine
