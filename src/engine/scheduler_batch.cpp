// The rows of a pass that the scheduler begins: which prompts go along, what they share, and room for their KV.
#include <algorithm>
#include <utility>

#include "engine/scheduler.h"

namespace millrace::engine {

using text::TokenId;

namespace {

// How long a turn of loads from the disk may take, but for the block it is at.
constexpr std::chrono::milliseconds kLoadBesideStreams{10}, kLoadAlone{100};

}  // namespace

void Scheduler::build_batch() {
  std::erase_if(live_, [](const Entry& entry) { return entry.live == nullptr; });
  batch_.sequences.clear();
  batch_.rows.clear();
  batch_.pictures.clear();
  batch_.mixes.clear();
  batch_.wants_hidden = false;
  batch_logit_rows_ = 0;
  for (Entry& entry : live_) entry.rows = entry.first = entry.first_row = entry.logit_rows = entry.place = 0;
  std::stable_sort(live_.begin(), live_.end(),
                   [](const Entry& one, const Entry& other) { return one.live->before(*other.live); });
  share_prefixes();
  add_decoding();
  add_prompts();
  if (!batch_.pictures.empty()) batch_.pictures.resize(batch_.rows.size());
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
      counters_.shared_tokens += static_cast<std::uint64_t>(parts_.prefixes->extend(state, live.kv_tokens(), limit));
    if (waits_for_disk(live) && in_time) {
      const std::int64_t in_memory = state.length();
      live.disk_asked = !parts_.prompts->extend(state, live.kv_tokens(), limit, until);
      if (parts_.prefixes != nullptr && state.length() > in_memory) parts_.prefixes->enter(state, live.kv_tokens());
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

/// True if this pass computes, for another request, the whole block that this one needs next: it can share it then.
bool Scheduler::others_compute_its_next_block(const Entry& entry) const {
  const Live& live = *entry.live;
  const std::int64_t end = live.conversation->state.length() + kv::kBlockTokens;
  if (parts_.prefixes == nullptr || !live.shares_prefix() || end % kv::kBlockTokens != 0 ||
      end >= static_cast<std::int64_t>(live.tokens.size()))
    return false;
  return std::any_of(live_.begin(), live_.end(), [&](const Entry& other) {
    if (other.live == nullptr || other.rows == 0 || other.live == entry.live || other.live->embeds() ||
        other.live->keys.key() != live.keys.key())
      return false;
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
  const std::int64_t share =
      whole_prompts_ ? first->live->waiting() : std::max((room + 3) / 4, parts_.executor->prompt_chunk());
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
  if (whole_prompts_) return live.waiting() <= most ? live.waiting() : 0;
  const std::int64_t rows = whole_pictures(live, std::min(live.waiting(), most));
  if (live.embeds()) return rows;
  if (live.request.logits_of_prompt) {
    const std::int64_t before = live.request.first_logits - live.conversation->state.length();
    return std::min(rows, std::max<std::int64_t>(0, before) + logit_room);
  }
  return rows == live.waiting() && logit_room == 0 ? whole_pictures(live, rows - 1) : rows;
}

/// Of the next `rows` tokens as many as a pass may end behind, or those of the picture that begins there, if the pass
/// has room for it at all: a picture whose rows see each other is never cut.
std::int64_t Scheduler::whole_pictures(const Live& live, std::int64_t rows) const {
  const std::int64_t first = live.conversation->state.length();
  if (rows <= 0 || live.pictures.may_end_before(first + rows)) return rows;
  const PictureRows::Range picture = live.pictures.range_of(first + rows);
  if (picture.first > first) return picture.first - first;
  const std::int64_t all = picture.end - first;
  return all <= parts_.limits.batch_tokens - std::ssize(batch_.rows) ? all : 0;
}

/// Rows that a prompt's pass has to have room for beside drafts, so that its picture gets its turn.
std::int64_t Scheduler::largest_picture() const {
  std::int64_t rows = 0;
  for (const Entry& entry : live_) {
    if (entry.live == nullptr || !entry.live->in_prompt()) continue;
    const std::int64_t first = entry.live->conversation->state.length();
    if (!entry.live->pictures.may_end_before(first + 1))
      rows = std::max(rows, entry.live->pictures.range_of(first).end - first);
  }
  return rows;
}

/// What its pictures make of the last `rows` rows of the batch, which begin at position `first`.
void Scheduler::add_picture_rows(const Live& live, std::int64_t first, std::int64_t rows) {
  if (!live.pictures.any()) return;
  batch_.pictures.resize(batch_.rows.size());
  const auto end = std::ssize(batch_.rows);
  for (std::int64_t row = 0; row < rows; ++row)
    batch_.pictures[static_cast<std::size_t>(end - rows + row)] = live.pictures.at(first + row);
}

/// The mix that the request's rows in the batch name.
std::int32_t Scheduler::mix_of(const Live& live) {
  if (live.mix.empty()) return -1;
  const auto found = std::find(batch_.mixes.begin(), batch_.mixes.end(), live.mix);
  const auto index = found - batch_.mixes.begin();
  if (found == batch_.mixes.end()) batch_.mixes.push_back(live.mix);
  return static_cast<std::int32_t>(index);
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
  tell(*entry.live);
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
  const std::int32_t mix = mix_of(live);
  batch_.wants_hidden = batch_.wants_hidden || live.pooler.wants(first, first + rows, last + 1) ||
                        (speculator_.wants_states() && !live.embeds());
  for (std::int64_t position = first; position < first + rows; ++position) {
    const bool whole_prompt =
        live.request.logits_of_prompt && live.in_prompt() && position >= live.request.first_logits;
    const bool wants_logits = !live.embeds() && (position == last || whole_prompt);
    // What a row is follows from the request alone, also where generated tokens are computed anew.
    const bool prompt = position < static_cast<std::int64_t>(live.request.prompt.size());
    const bool second = live.request.second_text > 0 && position >= live.request.second_text;
    batch_.rows.push_back({live.tokens[static_cast<std::size_t>(position)], sequence,
                           static_cast<std::int32_t>(position), wants_logits, prompt, second ? 1 : 0, mix});
    entry.logit_rows += wants_logits ? 1 : 0;
  }
  auto position = static_cast<std::int32_t>(last);
  for (const TokenId draft : live.drafts) batch_.rows.push_back({draft, sequence, ++position, true, false, 0, mix});
  add_picture_rows(live, first, rows + std::ssize(live.drafts));
  entry.logit_rows += std::ssize(live.drafts);
  entry.rows = rows;
  entry.first = first;
  entry.place = sequence;
  batch_logit_rows_ += entry.logit_rows;
}

}  // namespace millrace::engine
