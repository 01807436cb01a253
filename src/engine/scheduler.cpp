#include "engine/scheduler.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "engine/draft_place.h"
#include "engine/ngram_drafter.h"

namespace millrace::engine {

using text::TokenId;

namespace {

// How long a turn of loads from the disk may take, but for the block it is at.
constexpr std::chrono::milliseconds kLoadBesideStreams{10}, kLoadAlone{100};

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

/// Who guesses, in the order in which they take over from each other.
std::vector<std::shared_ptr<Drafter>> drafters(Parts& parts, const SpeculateOptions& speculate) {
  std::vector<std::shared_ptr<Drafter>> all = speculate.drafters;
  if (speculate.mode != SpeculateOptions::Mode::off) all.push_back(std::make_shared<NgramDrafter>(*parts.budget));
  return all;
}

}  // namespace

Live::Live(Request asked, std::shared_ptr<Conversation> shared, std::shared_ptr<const text::Tokenizer> tokenizer)
    : request(std::move(asked)),
      conversation(std::move(shared)),
      tokens(request.prompt),
      chooser(request),
      stream(std::move(tokenizer), request.stop, request.shown_tokens),
      pooler(request.pooling) {
  result.prompt_tokens = static_cast<std::int64_t>(request.prompt.size());
}

Scheduler::Scheduler(Parts& parts, const SpeculateOptions& speculate)
    : parts_(parts),
      speculator_(speculate, drafters(parts, speculate),
                  predicted_passes(parts.plan, parts.rates, PassCosts::kMostRows)),
      groups_(parts.executor->passes()) {}

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
  if (request.pooling == model::Pooling::other)
    return error(
        Code::unsupported,
        "this model's file asks for a pooling that is none of mean, first, last; a reranker answers /v1/rerank alone");
  if (request.constraint != nullptr && !request.forced_tokens.empty())
    return error(Code::internal, "a request cannot both force tokens and constrain them");
  return {};
}

Expected<Engine::Id> Scheduler::submit(Request request, std::shared_ptr<Conversation> conversation) {
  MR_RETURN_IF_ERROR(check(request));
  const Limits& limits = parts_.limits;
  if (limits.queue > 0 && static_cast<std::int64_t>(queue_.size() + live_.size()) >= limits.sequences + limits.queue)
    return error(Code::unavailable, "{} requests wait already; try again later", queue_.size());
  if (conversation->busy)
    return error(Code::invalid_argument, "this session still works on its last request; wait for it or cancel it");
  // What the conversation holds is kept as far as the prompt agrees; the last token is computed anew for its logits.
  const auto& held = conversation->tokens;
  const bool embeds = request.pooling != model::Pooling::none;
  const auto limit = embeds ? 0 : std::min(held.size(), request.prompt.size() - 1);
  const auto agreed =
      std::mismatch(held.begin(), held.begin() + static_cast<std::ptrdiff_t>(limit), request.prompt.begin());
  const bool anew = parts_.rewinds_to_start && agreed.first != held.end();
  const std::int64_t kept = conversation->state.rewind(anew ? 0 : agreed.first - held.begin());
  conversation->tokens.resize(static_cast<std::size_t>(kept));
  conversation->busy = true;

  Entry entry;
  entry.id = next_id_++;
  entry.live = std::make_shared<Live>(std::move(request), std::move(conversation), parts_.tokenizer);
  entry.live->id = entry.id;
  entry.live->result.cached_tokens = entry.live->conversation->state.length();
  {
    const MutexLock lock(cancel_mutex_);
    cancellable_.emplace(entry.id, entry.live);
  }
  const Engine::Id id = entry.id;
  queue_.push_back(std::move(entry));
  return id;
}

void Scheduler::cancel(Engine::Id id) {
  const MutexLock lock(cancel_mutex_);
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
  if (parts_.prompts != nullptr) parts_.prompts->pump();
  drop_cancelled();
  admit();
  if (live_.empty() && under_way_.empty()) return false;
  // A prompt's KV that comes from the disks of several ranks comes behind the passes under way, and is awaited.
  const bool awaits = parts_.prompts != nullptr && parts_.prompts->asks_others() &&
                      std::any_of(live_.begin(), live_.end(), [&](const Entry& entry) {
                        return entry.live != nullptr && waits_for_disk(*entry.live);
                      });
  const std::int64_t most = awaits ? 1 : parts_.executor->passes();
  while (std::ssize(under_way_) < most && begin_pass()) {
  }
  if (!under_way_.empty()) finish_pass();
  std::erase_if(live_, [](const Entry& entry) { return entry.live == nullptr; });
  return true;
}

std::int64_t Scheduler::decoding() const {
  return std::count_if(live_.begin(), live_.end(),
                       [](const Entry& entry) { return entry.live != nullptr && !entry.live->in_prompt(); });
}

/// A pass of what can be computed now; false: nothing can.
bool Scheduler::begin_pass() {
  build_batch();
  if (batch_.rows.empty()) return false;
  Pass pass;
  for (const Entry& entry : live_)
    if (entry.live != nullptr && entry.rows > 0) pass.entries.push_back(entry);
  const bool decodes = std::none_of(pass.entries.begin(), pass.entries.end(),
                                    [](const Entry& entry) { return entry.live->in_prompt(); });
  pass.rows = std::ssize(batch_.rows);
  pass.logit_rows = batch_logit_rows_;
  pass.top_logits_only = top_logits_suffice();
  pass.decoding = decodes ? decoding() : 0;
  pass.begin = Live::Clock::now();
  began_prompts_ = began_prompts_ || !decodes;
  const TraceZone zone(parts_.trace, "pass");
  parts_.executor->bring_top_logits_only(pass.top_logits_only);
  if (pass.top_logits_only) ask_for_draws(pass);
  const Status status = parts_.executor->begin(batch_, [&] { return stop_asked() || pass.unwanted(); });
  counters_.last_rows = pass.rows;
  counters_.rows += static_cast<std::uint64_t>(pass.rows);
  ++counters_.passes;
  if (!status.ok()) {
    fail(pass, status);
    return true;
  }
  for (const Entry& entry : pass.entries) {
    ++entry.live->passes;
    // What comes next of a prompt follows from no logits. Its tokens are the conversation's when the pass ends well.
    if (entry.live->in_prompt()) entry.live->conversation->state.set_length(entry.first + entry.rows);
  }
  under_way_.push_back(std::move(pass));
  return true;
}

/// What is under way is wanted by nobody. A pass may not be given up by itself: others go on behind it.
bool Scheduler::given_up() const {
  return stop_asked() ||
         std::all_of(under_way_.begin(), under_way_.end(), [](const Pass& pass) { return pass.unwanted(); });
}

bool Scheduler::Pass::unwanted() const {
  return std::all_of(entries.begin(), entries.end(), [](const Entry& entry) { return entry.live->cancelled.load(); });
}

/// The live request that this is a part of, with what the pass has of it; null: it ended before.
Scheduler::Entry* Scheduler::resume(const Entry& part) {
  const auto found =
      std::find_if(live_.begin(), live_.end(), [&](const Entry& entry) { return entry.live == part.live; });
  if (found == live_.end()) return nullptr;
  *found = part;
  return &*found;
}

void Scheduler::fail(const Pass& pass, const Status& status) {
  for (const Entry& part : pass.entries)
    if (Entry* const entry = resume(part))
      finish(*entry, status.code() == Code::cancelled ? Finish::cancelled : Finish::error, status);
}

/// Waits for the oldest pass under way and gives everybody what it brought. What a prompt has computed counts only when
/// that can be believed.
void Scheduler::finish_pass() {
  Status status = parts_.executor->finish([this] { return given_up(); });
  const Pass pass = std::move(under_way_.front());
  under_way_.pop_front();
  for (const Entry& part : pass.entries) --part.live->passes;
  top_logits_only_ = pass.top_logits_only;
  if (status.ok()) status = parts_.backend->health();
  if (status.ok()) status = check_logits(pass);
  const Live::Clock::time_point end = Live::Clock::now();
  const bool decoded_only = pass.decoding > 0 && (parts_.executor->passes() == 1 || !began_prompts_);
  began_prompts_ = false;
  counters_.last_pass_seconds = seconds_between(std::max(pass.begin, last_end_), end);
  last_end_ = end;
  if (!status.ok()) return fail(pass, status);
  if (decoded_only) speculator_.passed(pass.rows, counters_.last_pass_seconds);
  const std::uint64_t tokens = counters_.decode_tokens;
  std::int64_t logit_row = 0;
  std::vector<Computed> computed;
  for (const Entry& part : pass.entries) {
    const std::int64_t first_logit_row = std::exchange(logit_row, logit_row + part.logit_rows);
    Entry* const entry = resume(part);
    if (entry == nullptr) continue;
    const Live& live = *entry->live;
    if (speculator_.wants_states() && !live.embeds())
      computed.push_back({entry->id, {}, entry->first, entry->rows + std::ssize(live.drafts), entry->first_row});
    if (live.in_prompt())
      deliver(*entry, first_logit_row);
    else
      verify(*entry, first_logit_row);
  }
  if (decoded_only)
    groups_.passed(pass.decoding, static_cast<std::int64_t>(counters_.decode_tokens - tokens),
                   counters_.last_pass_seconds);
  if (!computed.empty()) tell_drafters(computed);
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

/// The place in the queue of the request whose turn it is.
std::size_t Scheduler::next_in_queue() const {
  const auto live_of_client = [&](const Entry& entry) {
    return std::count_if(live_.begin(), live_.end(),
                         [&](const Entry& other) { return other.live->request.client == entry.live->request.client; });
  };
  std::size_t best = 0;
  std::ptrdiff_t best_live = live_of_client(queue_[0]);
  for (std::size_t i = 1; i < queue_.size(); ++i) {
    const Live &one = *queue_[i].live, &other = *queue_[best].live;
    if (one.request.priority < other.request.priority) continue;
    const std::ptrdiff_t live = live_of_client(queue_[i]);
    const bool same_priority = one.request.priority == other.request.priority;
    if (same_priority && (live > best_live || (live == best_live && other.id < one.id))) continue;
    best = i;
    best_live = live;
  }
  return best;
}

/// Whether the KV of what is live leaves room for this one's tokens so far and a block to go on. What is shared is
/// counted for each of its users, so that nobody is thrown out who was just let in.
bool Scheduler::has_kv_for(const Live& live) const {
  const auto blocks = [](const Live& one) {
    return static_cast<std::int64_t>(one.tokens.size()) / kv::kBlockTokens + 1;
  };
  std::int64_t needed = blocks(live);
  for (const Entry& entry : live_) needed += blocks(*entry.live);
  return live_.empty() || needed <= parts_.limits.kv_tokens / kv::kBlockTokens;
}

void Scheduler::admit() {
  while (!queue_.empty() && static_cast<std::int64_t>(live_.size()) < parts_.limits.sequences) {
    const auto next = queue_.begin() + static_cast<std::ptrdiff_t>(next_in_queue());
    if (!has_kv_for(*next->live)) return;
    live_.push_back(std::move(*next));
    queue_.erase(next);
    Live& live = *live_.back().live;
    if (!live.started) live.start = Live::Clock::now();
    live.started = true;
  }
}

void Scheduler::build_batch() {
  std::erase_if(live_, [](const Entry& entry) { return entry.live == nullptr; });
  batch_.sequences.clear();
  batch_.rows.clear();
  batch_.wants_hidden = false;
  batch_logit_rows_ = 0;
  for (Entry& entry : live_) entry.rows = entry.first = entry.first_row = entry.logit_rows = entry.place = 0;
  std::stable_sort(live_.begin(), live_.end(),
                   [](const Entry& one, const Entry& other) { return one.live->before(*other.live); });
  share_prefixes();
  add_decoding();
  add_prompts();
  // A pass's logits come in the order of its rows, and deliver() walks live_.
  std::stable_sort(live_.begin(), live_.end(),
                   [](const Entry& one, const Entry& other) { return one.place < other.place; });
}

/// Lets prompts go on from what earlier requests began with: what the tree holds, then what the disk does. The disk
/// takes turns with the passes, so that nobody's stream stops for a long prompt's KV.
void Scheduler::share_prefixes() {
  const bool streams =
      std::any_of(live_.begin(), live_.end(), [](const Entry& entry) { return !entry.live->in_prompt(); });
  const auto until = Live::Clock::now() + (streams ? kLoadBesideStreams : kLoadAlone);
  bool in_time = true;
  for (Entry& entry : live_) {
    Live& live = *entry.live;
    if (!live.in_prompt() || !live.shares_prefix() || live.passes > 0) continue;
    kv::SequenceState& state = live.conversation->state;
    const std::int64_t before = state.length();
    const auto limit = static_cast<std::int64_t>(live.tokens.size()) - 1;
    if (parts_.prefixes != nullptr)
      counters_.shared_tokens += static_cast<std::uint64_t>(parts_.prefixes->extend(state, live.tokens, limit));
    if (waits_for_disk(live) && in_time) {
      const std::int64_t in_memory = state.length();
      live.disk_asked = !parts_.prompts->extend(state, live.tokens, limit, until);
      if (parts_.prefixes != nullptr && state.length() > in_memory) parts_.prefixes->enter(state, live.tokens);
      in_time = Live::Clock::now() < until;
    }
    if (state.length() == before) continue;
    live.conversation->tokens.assign(live.tokens.begin(), live.tokens.begin() + state.length());
    live.result.cached_tokens += state.length() - before;
  }
}

/// Whether KV of this prompt may lie on the disk that was not looked for yet.
bool Scheduler::waits_for_disk(const Live& live) const {
  return parts_.prompts != nullptr && !live.disk_asked && live.in_prompt() && live.shares_prefix();
}

/// Writes a prompt that was just computed to the disk, if that took long.
void Scheduler::keep_prompt(Live& live) const {
  if (parts_.prompts == nullptr) return;
  const std::int64_t computed = live.result.prompt_tokens - live.result.cached_tokens;
  parts_.prompts->keep(live.conversation->state, live.request.prompt, seconds_between(live.start, live.prompt_done),
                       std::max(computed, parts_.limits.batch_tokens), parts_.prefixes.get());
}

/// True if this pass computes, for another request, the whole block that this one needs next: it can share it then.
bool Scheduler::others_compute_its_next_block(const Entry& entry) const {
  const Live& live = *entry.live;
  const std::int64_t end = live.conversation->state.length() + kv::kBlockTokens;
  if (parts_.prefixes == nullptr || !live.shares_prefix() || end % kv::kBlockTokens != 0 ||
      end >= static_cast<std::int64_t>(live.tokens.size()))
    return false;
  return std::any_of(live_.begin(), live_.end(), [&](const Entry& other) {
    if (other.live == nullptr || other.rows == 0 || other.live == entry.live || other.live->embeds()) return false;
    const std::int64_t first = other.live->conversation->state.length();
    return first < end && end <= first + other.rows &&
           std::equal(live.tokens.begin(), live.tokens.begin() + end, other.live->tokens.begin());
  });
}

void Scheduler::add_prompts() {
  std::vector<Entry*> prompts;
  for (Entry& entry : live_)
    if (entry.live != nullptr && entry.live->in_prompt() && !waits_for_disk(*entry.live)) prompts.push_back(&entry);
  if (prompts.empty()) return;
  const auto decode_rows = static_cast<std::int64_t>(batch_.rows.size());
  const Limits& limits = parts_.limits;
  std::int64_t room = limits.batch_tokens - decode_rows;
  if (decoding() > 0) room = std::min(room, limits.chunk_tokens);
  if (const std::int64_t piece = parts_.executor->prompt_piece(); piece > 0) room = std::min(room, piece);
  // The first has a quarter for sure; the rest goes to those that need least, so that a new short one is answered soon.
  Entry* const first = prompts.front();
  const std::int64_t share = std::max((room + 3) / 4, parts_.executor->prompt_chunk());
  const std::int64_t for_first = std::min(first->live->waiting(), share);
  std::stable_sort(prompts.begin(), prompts.end(),
                   [](const Entry* one, const Entry* other) { return one->live->waiting() < other->live->waiting(); });
  for (Entry* entry : prompts) {
    if (entry->live == nullptr || others_compute_its_next_block(*entry)) continue;
    const std::int64_t used = static_cast<std::int64_t>(batch_.rows.size()) - decode_rows;
    const std::int64_t kept = first->live != nullptr && entry != first && first->rows == 0 ? for_first : 0;
    add_rows(*entry, prompt_rows(*entry->live, room - used - kept));
  }
}

/// As much of a prompt as the pass has room for, in rows and in rows of logits.
std::int64_t Scheduler::prompt_rows(const Live& live, std::int64_t most) const {
  const std::int64_t logit_room = parts_.limits.logit_rows - batch_logit_rows_;
  const std::int64_t rows = std::min(live.waiting(), most);
  if (live.embeds()) return rows;
  if (live.request.logits_of_prompt) {
    const std::int64_t before = live.request.first_logits - live.conversation->state.length();
    return std::min(rows, std::max<std::int64_t>(0, before) + logit_room);
  }
  return rows == live.waiting() && logit_room == 0 ? rows - 1 : rows;
}

/// Of the next `rows` tokens as many as a pass may end behind: a prompt is cut where the executor's chunks end. A pass
/// has room for one, and for its rows of logits (limits.cpp).
std::int64_t Scheduler::whole_chunks(const Live& live, std::int64_t rows) const {
  const std::int64_t chunk = parts_.executor->prompt_chunk(), first = live.conversation->state.length();
  if (chunk == 1 || first + rows >= std::ssize(live.request.prompt)) return rows;
  return std::max<std::int64_t>(0, (first + rows) / chunk * chunk - first);
}

/// Takes a request's KV and puts it back into the queue, to begin again.
void Scheduler::preempt(Entry& entry) {
  ++counters_.preempted;
  entry.live->conversation->state.rewind(0);
  entry.live->conversation->tokens.clear();
  entry.live->pooler.restart();
  entry.live->disk_asked = false;
  entry.live->phase = Live::Phase::prompt;
  entry.live->drafts.clear();
  entry.live->result.cached_tokens = 0;
  queue_.push_back(std::exchange(entry, {}));
}

/// Room for a request's positions; while there is none, those that come after it and have no rows in this pass yet give
/// theirs up, last of all the request itself, if others remain that will end. Nobody gives up what a pass that is under
/// way computes with. False: not in this pass.
Expected<bool> Scheduler::reserve(Entry& entry, std::int64_t tokens) {
  const std::shared_ptr<Live> live = entry.live;
  for (;;) {
    Status status = live->conversation->state.reserve(tokens);
    if (status.ok()) return true;
    if (status.code() != Code::out_of_budget) return status;
    if (live->passes > 0) return false;  // its own pass may let go of some
    Entry* last = nullptr;
    std::size_t others = 0;
    for (Entry& other : live_) {
      if (other.live == nullptr || other.live == live) continue;
      ++others;
      const bool gives = other.rows == 0 && other.live->passes == 0 && other.live->conversation->state.blocks() > 0 &&
                         live->before(*other.live);
      if (gives && (last == nullptr || last->live->before(*other.live))) last = &other;
    }
    if (last == nullptr && !under_way_.empty()) return false;
    if (last == nullptr && others == 0) return status;
    preempt(last != nullptr ? *last : entry);
    if (last == nullptr) return false;
  }
}

/// The next `rows` uncomputed tokens of a request, and its drafts behind the last one. A request that the budget has no
/// KV for ends here; the others live.
void Scheduler::add_rows(Entry& entry, std::int64_t rows) {
  Live& live = *entry.live;
  rows = whole_chunks(live, rows);
  if (rows <= 0) return;
  if (rows < live.waiting()) live.drafts.clear();
  kv::SequenceState& state = live.conversation->state;
  const std::int64_t first = state.length();
  // Where its prompt ends, the next one of the conversation goes on.
  const auto last_of_prompt = static_cast<std::int64_t>(live.request.prompt.size()) - 1;
  if (last_of_prompt >= kv::kBlockTokens) state.want_checkpoint(last_of_prompt / kv::kBlockTokens * kv::kBlockTokens);
  const Expected<bool> has_room = reserve(entry, first + rows);
  if (!has_room.ok()) return finish(entry, Finish::error, has_room.status());
  if (!*has_room) return;
  if (!live.drafts.empty() && !state.reserve(first + rows + std::ssize(live.drafts)).ok()) live.drafts.clear();
  const auto sequence = static_cast<std::int32_t>(batch_.sequences.size());
  batch_.sequences.push_back(&state);
  entry.first_row = static_cast<std::int64_t>(batch_.rows.size());
  const auto last = static_cast<std::int64_t>(live.tokens.size()) - 1;
  batch_.wants_hidden = batch_.wants_hidden || live.pooler.wants(first, first + rows, last + 1) ||
                        (speculator_.wants_states() && !live.embeds());
  for (std::int64_t position = first; position < first + rows; ++position) {
    const bool whole_prompt =
        live.request.logits_of_prompt && live.in_prompt() && position >= live.request.first_logits;
    const bool wants_logits = !live.embeds() && (position == last || whole_prompt);
    // What a row is follows from the request alone, also where generated tokens are computed anew.
    const bool prompt = position < static_cast<std::int64_t>(live.request.prompt.size());
    batch_.rows.push_back({live.tokens[static_cast<std::size_t>(position)], sequence,
                           static_cast<std::int32_t>(position), wants_logits, prompt});
    entry.logit_rows += wants_logits ? 1 : 0;
  }
  auto position = static_cast<std::int32_t>(last);
  for (const TokenId draft : live.drafts) batch_.rows.push_back({draft, sequence, ++position, true, false});
  entry.logit_rows += std::ssize(live.drafts);
  entry.rows = rows;
  entry.first = first;
  entry.place = sequence;
  batch_logit_rows_ += entry.logit_rows;
}

/// Whether every request of the pass can pick from the few logits that the executor finds by itself.
bool Scheduler::top_logits_suffice() const {
  const std::int64_t limit = parts_.executor->top_logits_limit();
  if (limit == 0) return false;
  return std::all_of(live_.begin(), live_.end(), [&](const Entry& entry) {
    if (entry.live == nullptr || entry.logit_rows == 0) return true;
    const std::int64_t needed = entry.live->chooser.logits_needed();
    return needed >= 0 && needed <= limit && !entry.live->request.on_logits;
  });
}

/// Of those who draw from all logits: their rows' draws, as if each guess came true. Nobody is in two passes with rows
/// to pick from.
void Scheduler::ask_for_draws(const Pass& pass) {
  draws_.clear();
  bool any = false;
  for (const Entry& entry : pass.entries) {
    const Chooser& chooser = entry.live->chooser;
    const bool draws = chooser.logits_needed() == 0;
    any = any || (draws && entry.logit_rows > 0);
    const std::int64_t first = entry.logit_rows - 1 - std::ssize(entry.live->drafts);
    for (std::int64_t row = 0; row < entry.logit_rows; ++row)
      draws_.push_back(draws && row >= first ? chooser.draw_rule(row - first) : kernels::DrawRule());
  }
  if (!any) draws_.clear();
  parts_.executor->draw(draws_);
}

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
    parts_.prefixes->enter(state, std::span(live.tokens).first(static_cast<std::size_t>(tokens)));
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
  live->result.cached_tokens = std::clamp<std::int64_t>(live->result.cached_tokens, 0, live->result.prompt_tokens);
  live->result.status = std::move(status);
  // Room that was reserved for a pass that failed goes back, and KV on its way from the disk.
  // Other ranks have let go of what windows passed in a pass that is under way; what is before it cannot be gone on
  // from.
  const bool anew = parts_.rewinds_to_start && live->passes > 0;
  const std::int64_t kept = live->conversation->state.rewind(anew ? 0 : std::ssize(live->conversation->tokens));
  if (parts_.prefixes != nullptr) live->conversation->state.forget_checkpoints();  // the tree has them
  live->conversation->tokens.resize(static_cast<std::size_t>(kept));
  live->form_memory = {};
  live->conversation->busy = false;
  speculator_.forget(entry.id);
  {
    const MutexLock lock(cancel_mutex_);
    cancellable_.erase(entry.id);
  }
  ++(reason == Finish::error       ? counters_.failed
     : reason == Finish::cancelled ? counters_.cancelled
                                   : counters_.finished);
  results_.emplace(entry.id, std::move(live->result));
}

LoadCounters Scheduler::load() const {
  LoadCounters load = counters_;
  load.drafts = speculator_.counters();
  load.queued = static_cast<std::int64_t>(queue_.size());
  load.live = static_cast<std::int64_t>(live_.size());
  load.max_sequences = parts_.limits.sequences;
  load.kv_blocks = parts_.kv_pool->blocks_in_use();
  for (std::size_t g = 0; g < parts_.kv_pool->groups(); ++g) load.kv_blocks_bound += parts_.kv_pool->bound(g);
  if (parts_.prefixes != nullptr) load.kv_blocks_cached = parts_.prefixes->blocks();
  if (parts_.prompts != nullptr) load.disk = parts_.prompts->counters();
  return load;
}

}  // namespace millrace::engine
