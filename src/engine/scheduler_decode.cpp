// The scheduler's requests that decode: their rows and drafts in a pass, and what becomes of both.
#include <algorithm>
#include <utility>

#include "engine/scheduler.h"

namespace millrace::engine {

using text::TokenId;

/// A row of every request that decodes goes along (limits.batch_tokens >= limits.sequences), or of this pass's share of
/// them, then those that have to be computed anew, then drafts.
void Scheduler::add_decoding() {
  const std::int64_t all = decoding(), groups = groups_.groups(all), share = (all + groups - 1) / groups;
  // All in one pass: those that were divided meet when the last of them is there.
  const bool apart = groups == 1 && std::any_of(live_.begin(), live_.end(),
                                                [](const Entry& entry) { return entry.live->awaits_pass(); });
  std::vector<const Live*> group;
  for (const Entry& entry : live_)
    if (!entry.live->in_prompt() && !entry.live->awaits_pass() && !apart && std::ssize(group) < share)
      group.push_back(entry.live.get());
  const auto decodes = [&](const Entry& entry) {
    return entry.live != nullptr && std::find(group.begin(), group.end(), entry.live.get()) != group.end();
  };
  // Before there are drafts: nobody gives way for a guess.
  for (Entry& entry : live_) {
    if (!decodes(entry)) continue;
    const std::shared_ptr<Live> live = entry.live;
    const Expected<bool> has_room = reserve(entry, std::ssize(live->tokens));
    if (!has_room.ok()) finish(entry, Finish::error, has_room.status());
    if (!has_room.ok() || !*has_room) std::erase(group, live.get());
  }
  std::vector<Entry*> drafting;
  for (Entry& entry : live_)
    if (decodes(entry)) drafting.push_back(&entry);
  draft(drafting);
  std::int64_t others = std::count_if(live_.begin(), live_.end(), decodes);
  for (Entry& entry : live_) {
    if (!decodes(entry)) continue;
    --others;
    const std::int64_t room = parts_.limits.batch_tokens - std::ssize(batch_.rows) - others;
    add_rows(entry, std::min(entry.live->waiting(), room));
  }
}

/// How many guesses a request may have verified: all of them may come true, and the last row gives a token more.
std::int64_t Scheduler::room_for_drafts(const Live& live) const {
  const kv::SequenceState& state = live.conversation->state;
  const auto tokens = std::ssize(live.tokens);
  std::int64_t room = parts_.limits.context_tokens - tokens - 1;
  if (live.request.max_tokens >= 0) room = std::min(room, live.request.max_tokens - std::ssize(live.result.tokens) - 1);
  // A checkpoint that the pass leaves on its way would be one of guesses.
  if (state.layout().has_states()) room = std::min(room, (tokens / kv::kBlockTokens + 1) * kv::kBlockTokens - tokens);
  return std::clamp<std::int64_t>(room, 0, kMostDrafts);
}

void Scheduler::draft(std::span<Entry* const> entries) {
  if (!speculator_.on()) return;
  std::vector<DraftTurn> turns;
  std::vector<Live*> drafted;
  std::int64_t rows = 0;
  for (const Entry* const entry : entries) {
    Live& live = *entry->live;
    live.drafts.clear();
    rows += live.waiting();
    const auto prompt = std::ssize(live.request.prompt);
    const std::int64_t rest = parts_.limits.context_tokens - prompt;
    DraftTurn turn;
    turn.id = entry->id;
    turn.request = &live.request;
    turn.tokens = live.tokens;
    turn.generated = std::ssize(live.result.tokens);
    turn.expected = prompt + (live.request.max_tokens < 0 ? rest : std::min(rest, live.request.max_tokens));
    turn.most = room_for_drafts(live);
    turn.sequence = &live.conversation->state;
    turns.push_back(std::move(turn));
    drafted.push_back(&live);
  }
  if (turns.empty()) return;
  // One logit row of each request is there beside those of its drafts.
  const std::int64_t cheap = parts_.executor->cheap_rows();
  const bool cheap_alone = rows <= cheap && !speculator_.may_be_dear();
  std::int64_t most = std::min(parts_.limits.batch_tokens, cheap_alone ? cheap : PassCosts::kMostRows) - rows;
  most = std::min(most, parts_.limits.logit_rows - std::ssize(turns));
  most = std::min(most, parts_.limits.batch_tokens - largest_picture() - rows);
  const TraceZone zone(parts_.trace, "draft");
  speculator_.draft(turns, rows, most, [this] { return stop_asked(); });
  for (std::size_t i = 0; i < turns.size(); ++i) drafted[i]->drafts = std::move(turns[i].drafts);
}

/// What a pass did for one request that decodes. Each row's logits give the token that they would give in a pass of
/// their own: a row's bits do not depend on what shares its pass, and nothing that picks has seen a draft. The token
/// behind a draft counts while it is the draft's turn and the draft is what was picked.
void Scheduler::verify(Entry& entry, std::int64_t first_logit_row) {
  const std::shared_ptr<Live> live = entry.live;
  kv::SequenceState& state = live->conversation->state;
  const std::int64_t first = state.length(), known = first + entry.rows;
  const std::vector<TokenId> drafts = std::move(live->drafts);
  live->drafts.clear();
  const auto settle = [&](std::int64_t tokens) {
    complete(*live, tokens);
    state.forget_behind_windows();
  };
  if (entry.logit_rows == 0) return settle(known);  // there was no room for all that is to be computed anew
  // A pass's states are those behind its last row: they are taken as a whole, or its tokens computed anew.
  const bool whole = state.layout().has_states() && !drafts.empty();
  const std::size_t had = live->tokens.size();
  for (std::int64_t row = 0;; ++row) {
    if (!whole) settle(known + row);
    tell_logits(*live, known + row - 1, first_logit_row + row);
    pick(entry, first_logit_row + row);
    const bool goes_on = entry.live != nullptr && row < std::ssize(drafts) && !live->cancelled && !stop_asked();
    if (!goes_on || live->tokens.back() != drafts[static_cast<std::size_t>(row)]) break;
  }
  const auto picked = std::span(live->tokens).subspan(had);
  const std::int64_t right =
      std::mismatch(picked.begin(), picked.end(), drafts.begin(), drafts.end()).first - picked.begin();
  if (entry.live != nullptr && whole && picked.size() > drafts.size()) settle(known + right);
  Result& result = live->result;
  ++result.decode_turns;
  ++counters_.decode_turns;
  counters_.decode_tokens += picked.size();
  if (drafts.empty()) return;
  result.drafted += std::ssize(drafts);
  result.drafts_right += right;
  speculator_.verified(entry.id, std::ssize(drafts), right);
}

}  // namespace millrace::engine
