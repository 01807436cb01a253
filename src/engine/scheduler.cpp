#include "engine/scheduler.h"

#include <algorithm>
#include <exception>
#include <new>
#include <utility>

#include "base/carry_on.h"
#include "engine/draft_place.h"
#include "engine/ngram_drafter.h"

namespace millrace::engine {

using text::TokenId;

namespace {

/// The drafters, in order of precedence.
std::vector<std::shared_ptr<Drafter>> drafters(Parts& parts, const SpeculateOptions& speculate) {
  std::vector<std::shared_ptr<Drafter>> all = speculate.drafters;
  if (speculate.mode != SpeculateOptions::Mode::off) all.push_back(std::make_shared<NgramDrafter>(*parts.budget));
  return all;
}

/// What `work` returns, or an exception in the place of it.
template <typename Work>
Status told(const Work& work) {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    return Status(Code::unavailable, "out of memory");
  } catch (const std::exception& thrown) {
    return error(Code::internal, "a pass failed unexpectedly: {}", thrown.what());
  }
}

}  // namespace

Live::Live(Request asked, std::shared_ptr<Conversation> shared, std::shared_ptr<const text::Tokenizer> tokenizer,
           kv::AdapterMix adapters)
    : request(std::move(asked)),
      conversation(std::move(shared)),
      tokens(request.prompt),
      mix(std::move(adapters)),
      keys(conversation->mix),
      chooser(request),
      stream(std::move(tokenizer), request.stop, request.shown_tokens),
      pooler(request.pooling) {
  result.prompt_tokens = static_cast<std::int64_t>(request.prompt.size());
}

Scheduler::Scheduler(Parts& parts, const SpeculateOptions& speculate)
    : parts_(parts),
      whole_prompts_(!parts.model->program().is_causal()),
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
    if ((id < 0 && request.pictures.empty()) || id >= vocab)
      return error(Code::invalid_argument, "token id {} is outside the vocabulary of {}", id, vocab);
  if (!request.pictures.empty()) MR_RETURN_IF_ERROR(check_pictures(request));
  if (request.pooling == model::Pooling::none) MR_RETURN_IF_ERROR(model::check_writes(parts_.model->hyperparameters()));
  if (request.pooling == model::Pooling::other)
    return error(
        Code::unsupported,
        "this model's file asks for a pooling that is none of mean, first, last; a reranker answers /v1/rerank alone");
  if (request.constraint != nullptr && !request.forced_tokens.empty())
    return error(Code::internal, "a request cannot both force tokens and constrain them");
  return {};
}

Status Scheduler::check_pictures(const Request& request) const {
  const model::Hyperparameters& hp = parts_.model->hyperparameters();
  MR_RETURN_IF_ERROR(parts_.executor->takes_pictures(hp.pictures_see_ahead));
  MR_RETURN_IF_ERROR(engine::check_pictures(request.prompt, request.pictures, hp));
  if (request.pooling != model::Pooling::none)
    return error(Code::unsupported, "embeddings are of texts alone; leave the pictures out");
  if (!hp.pictures_see_ahead) return {};
  if (request.logits_of_prompt)
    return error(Code::unsupported, "this model's pictures are not read with logits of the prompt");
  const std::int64_t room = parts_.limits.batch_tokens - parts_.limits.sequences;
  for (const PlacedPicture& placed : request.pictures)
    if (placed.count > room)
      return error(Code::invalid_argument,
                   "the picture has {} tokens, which one pass must read, but passes have room for {}; use --batch {}",
                   placed.count, room, placed.count + parts_.limits.sequences);
  return {};
}

Expected<Engine::Id> Scheduler::submit(Request request, std::shared_ptr<Conversation> conversation) {
  MR_RETURN_IF_ERROR(check(request));
  const Limits& limits = parts_.limits;
  if (limits.queue > 0 && static_cast<std::int64_t>(queue_.size() + live_.size()) >= limits.sequences + limits.queue)
    return error(Code::unavailable, "{} requests wait already; try again later", queue_.size());
  if (conversation->busy)
    return error(Code::invalid_argument, "this session still works on its last request; wait for it or cancel it");
  MR_ASSIGN_OR_RETURN(kv::AdapterMix mix, resolve_mix(request.adapters, parts_.adapter_states));
  const std::uint64_t key = mix_key(mix, parts_.adapters.get());
  // Keep the conversation's KV as far as the prompt matches it; compute the last token again for its logits.
  const auto& held = conversation->tokens;
  const bool embeds = request.pooling != model::Pooling::none;
  const bool others = std::exchange(conversation->mix, key) != key;  // it went through other adapters
  const auto limit = embeds || others ? 0 : std::min(held.size(), request.prompt.size() - 1);
  const auto agreed =
      std::mismatch(held.begin(), held.begin() + static_cast<std::ptrdiff_t>(limit), request.prompt.begin());
  const bool anew = parts_.rewinds_to_start && agreed.first != held.end();
  const std::int64_t kept = conversation->state.rewind(anew ? 0 : agreed.first - held.begin());
  conversation->tokens.resize(static_cast<std::size_t>(kept));

  Entry entry;
  entry.id = next_id_++;
  entry.live = std::make_shared<Live>(std::move(request), std::move(conversation), parts_.tokenizer, std::move(mix));
  entry.live->id = entry.id;
  entry.live->pictures =
      PictureRows(entry.live->request.pictures, parts_.model->program(), parts_.model->hyperparameters());
  entry.live->result.cached_tokens = entry.live->conversation->state.length();
  queue_.push_back(entry);
  try {
    const MutexLock lock(requests_mutex_);
    requests_.emplace(entry.id, entry.live->outcome);
  } catch (...) {
    queue_.pop_back();
    throw;
  }
  entry.live->conversation->busy = true;
  return entry.id;
}

void Scheduler::cancel(Engine::Id id) {
  const MutexLock lock(requests_mutex_);
  if (const auto found = requests_.find(id); found != requests_.end()) found->second->cancelled = true;
}

void Scheduler::abandon(Engine::Id id) {
  const MutexLock lock(requests_mutex_);
  const auto found = requests_.find(id);
  if (found == requests_.end()) return;
  found->second->cancelled = found->second->abandoned = true;
  if (found->second->ended) requests_.erase(found);
}

bool Scheduler::finished(Engine::Id id) const {
  const MutexLock lock(requests_mutex_);
  const auto found = requests_.find(id);
  return found != requests_.end() && found->second->ended;
}

Result Scheduler::take(Engine::Id id) {
  const MutexLock lock(requests_mutex_);
  const auto found = requests_.find(id);
  if (found == requests_.end() || !found->second->ended) {
    Result none;
    none.status = error(Code::internal, "request {} is not finished or was already taken", id);
    return none;
  }
  Result result = std::move(found->second->result);
  requests_.erase(found);
  return result;
}

bool Scheduler::step() {
  if (parts_.prompts != nullptr) parts_.prompts->pump();
  drop_cancelled();
  admit();
  if (live_.empty() && under_way_.empty()) return false;
  // If several ranks load a prompt's KV from their disks, that happens after the passes in flight, and is awaited.
  const bool awaits = parts_.prompts != nullptr && parts_.prompts->asks_others() &&
                      std::any_of(live_.begin(), live_.end(), [&](const Entry& entry) {
                        return entry.live != nullptr && waits_for_disk(*entry.live);
                      });
  const std::int64_t most = awaits ? 1 : parts_.executor->passes();
  while (std::ssize(under_way_) < most && begin_pass()) {
  }
  tell_all();
  if (!under_way_.empty()) finish_pass();
  std::erase_if(live_, [](const Entry& entry) { return entry.live == nullptr; });
  return true;
}

std::int64_t Scheduler::decoding() const {
  return std::count_if(live_.begin(), live_.end(),
                       [](const Entry& entry) { return entry.live != nullptr && !entry.live->in_prompt(); });
}

/// Begins a pass with the rows that can be computed now; false: there are none.
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
  tell_cached(pass);
  const TraceZone zone(parts_.trace, "pass");
  parts_.executor->bring_top_logits_only(pass.top_logits_only);
  if (pass.top_logits_only) ask_for_draws(pass);
  if (parts_.executor->waits()) parts_.executor->meanwhile([this] { tell_all(); });
  const Status status =
      told([&] { return parts_.executor->begin(batch_, [&] { return stop_asked() || pass.unwanted(); }); });
  counters_.last_rows = pass.rows;
  counters_.rows += static_cast<std::uint64_t>(pass.rows);
  ++counters_.passes;
  if (!status.ok()) {
    fail(pass, status);
    return true;
  }
  for (const Entry& entry : pass.entries) {
    ++entry.live->passes;
    // The next rows of a prompt depend on no logits. Its tokens join the conversation when the pass succeeds.
    if (entry.live->in_prompt()) entry.live->conversation->state.set_length(entry.first + entry.rows);
  }
  under_way_.push_back(std::move(pass));
  return true;
}

/// Called when a prompt's first pass begins, because the tokens from caches are known then.
void Scheduler::tell_cached(const Pass& pass) {
  for (const Entry& entry : pass.entries) {
    const Live& live = *entry.live;
    if (live.in_prompt() && live.request.on_prompt && entry.first == live.result.cached_tokens)
      live.request.on_prompt(entry.first, std::ssize(live.request.prompt));
  }
}

/// Whether the passes in flight are not needed any more. One alone cannot be abandoned: later ones continue from it.
bool Scheduler::given_up() const {
  return stop_asked() ||
         std::all_of(under_way_.begin(), under_way_.end(), [](const Pass& pass) { return pass.unwanted(); });
}

bool Scheduler::Pass::unwanted() const {
  return std::all_of(entries.begin(), entries.end(), [](const Entry& entry) { return entry.live->cancelled.load(); });
}

/// The live request of this entry, with its rows of the pass; null: it has ended.
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

/// Waits for the oldest pass in flight and distributes its results. A prompt's rows count as computed only if the pass
/// succeeded.
void Scheduler::finish_pass() {
  Status status = told([&] { return parts_.executor->finish([this] { return given_up(); }); });
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
    if (speculator_.wants_states() && !live.embeds() && !live.pictures.any())
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

/// Where an exception ended the step before, some have no request any more.
void Scheduler::drop_cancelled() {
  const bool all = stop_asked();
  const auto drop = [&](Entry& entry) {
    if (entry.live != nullptr && (all || entry.live->cancelled)) finish(entry, Finish::cancelled);
  };
  std::for_each(live_.begin(), live_.end(), drop);
  std::for_each(queue_.begin(), queue_.end(), drop);
  std::erase_if(live_, [](const Entry& entry) { return entry.live == nullptr; });
  std::erase_if(queue_, [](const Entry& entry) { return entry.live == nullptr; });
}

/// The index in the queue of the request whose turn it is.
std::size_t Scheduler::next_in_queue() const {
  const auto live_of_client = [&](const Entry& entry) {
    return std::count_if(live_.begin(), live_.end(),
                         [&](const Entry& other) { return other.live->request.client == entry.live->request.client; });
  };
  std::size_t best = 0;
  std::ptrdiff_t best_live = live_of_client(queue_[0]);
  for (std::size_t i = 1; i < queue_.size(); ++i) {
    const std::ptrdiff_t live = live_of_client(queue_[i]);
    if (live > best_live || (live == best_live && queue_[best].live->before(*queue_[i].live))) continue;
    best = i;
    best_live = live;
  }
  // Turns belong to clients; the priorities of a client choose which of its requests takes the turn.
  for (std::size_t i = 0; i < queue_.size(); ++i) {
    const Live &one = *queue_[i].live, &other = *queue_[best].live;
    if (one.request.client != other.request.client || one.request.priority < other.request.priority) continue;
    if (one.request.priority > other.request.priority || one.before(other)) best = i;
  }
  return best;
}

/// Whether the KV of live requests leaves room for this one's tokens so far and one more block. Shared blocks count for
/// each user, so that a request that was just admitted is not evicted at once.
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

/// Whether every request of the pass can sample from the few logits that the executor selects.
bool Scheduler::top_logits_suffice() const {
  const std::int64_t limit = parts_.executor->top_logits_limit();
  if (limit == 0) return false;
  return std::all_of(live_.begin(), live_.end(), [&](const Entry& entry) {
    if (entry.live == nullptr || entry.logit_rows == 0) return true;
    const std::int64_t needed = entry.live->chooser.logits_needed();
    return needed >= 0 && needed <= limit && !entry.live->request.on_logits;
  });
}

/// The draws of the rows of requests that sample from all logits, as if every guess were right. No request has rows to
/// sample from in two passes.
void Scheduler::ask_for_draws(const Pass& pass) {
  draws_.clear();
  const auto draws = [](const Entry& entry) { return entry.live->chooser.logits_needed() == 0; };
  const bool any = std::any_of(pass.entries.begin(), pass.entries.end(),
                               [&](const Entry& entry) { return entry.logit_rows > 0 && draws(entry); });
  for (const Entry& entry : pass.entries) {
    if (!any) break;
    const std::int64_t first = entry.logit_rows - 1 - std::ssize(entry.live->drafts);
    for (std::int64_t row = 0; row < entry.logit_rows; ++row)
      draws_.push_back(draws(entry) && row >= first ? entry.live->chooser.draw_rule(row - first) : kernels::DrawRule());
  }
  parts_.executor->draw(draws_);
}

void Scheduler::finish(Entry& entry, Finish reason, Status status) {
  const std::shared_ptr<Live> live = std::move(entry.live);
  entry.live = nullptr;
  const bool whole = carry_on("a request's last text", [&] {
    if (reason != Finish::error) emit(*live, live->stream.finish());
    tell(*live);
    live->result.stop = live->stream.stop();
  });
  if (!whole && reason != Finish::error) {
    reason = Finish::error;
    status = Status(Code::unavailable, "out of memory");
  }
  const auto now = Live::Clock::now();
  const bool picked = live->prompt_done != Live::Clock::time_point();
  if (live->started) live->result.prompt_seconds = seconds_between(live->start, picked ? live->prompt_done : now);
  if (picked) live->result.decode_seconds = seconds_between(live->prompt_done, now);
  live->result.finish = reason;
  live->result.cached_tokens = std::clamp<std::int64_t>(live->result.cached_tokens, 0, live->result.prompt_tokens);
  live->result.status = std::move(status);
  // Free the room that was reserved for a failed pass, and KV that is being loaded from the disk.
  // Other ranks have released blocks that windows passed in a pass in flight; a sequence cannot continue from before
  // it.
  const bool anew = parts_.rewinds_to_start && live->passes > 0;
  carry_on("a conversation's end", [&] {  // where that fails, nobody continues it
    const std::int64_t kept = live->conversation->state.rewind(anew ? 0 : std::ssize(live->conversation->tokens));
    if (parts_.prefixes != nullptr) live->conversation->state.forget_checkpoints();  // the tree has them
    live->conversation->tokens.resize(static_cast<std::size_t>(kept));
    live->conversation->busy = false;
  });
  live->form_memory = {};
  speculator_.forget(entry.id);
  ++(reason == Finish::error       ? counters_.failed
     : reason == Finish::cancelled ? counters_.cancelled
                                   : counters_.finished);
  const MutexLock lock(requests_mutex_);
  live->outcome->ended = true;
  if (live->outcome->abandoned) requests_.erase(entry.id);
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
