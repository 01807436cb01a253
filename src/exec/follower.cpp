#include "exec/follower.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>

#include "base/log.h"

namespace millrace::exec {
namespace {

/// Rows at the front of `rows` go to their places, ascending; zeros stand in all others.
void spread(std::span<const std::int64_t> places, std::int64_t cols, std::span<float> rows) {
  std::int64_t end = std::ssize(rows) / cols;  // behind the row that comes next, from the last one on
  for (std::size_t i = places.size(); i > 0; --i) {
    const auto from = static_cast<std::int64_t>(i) - 1;
    const std::int64_t place = places[i - 1];
    if (place != from) std::copy_n(rows.data() + from * cols, cols, rows.data() + place * cols);
    std::fill(rows.data() + (place + 1) * cols, rows.data() + end * cols, 0.0f);
    end = place;
  }
  std::fill_n(rows.data(), end * cols, 0.0f);
}

}  // namespace

Status Follower::prepare(const PassLimits& limits) {
  MR_ASSIGN_OR_RETURN(reservation_,
                      parts_.budget.reserve("messages", stage_message_bytes(parts_.shape, limits, parts_.link.size())));
  return {};
}

Status Follower::take(std::span<const std::byte> message) {
  std::span<const float> residual;
  Status status = pass_.read(message, parts_.shape.model_dim, residual);
  const auto begin = std::chrono::steady_clock::now();
  if (status.ok()) status = compute(residual);
  pass_.seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  if (status.ok()) status = parts_.health();
  if (status.ok() && last()) return answer();
  if (status.ok()) {
    status = read_states(pass_.write(parts_.shape.model_dim, message_));
    if (status.ok()) status = parts_.link.send(parts_.link.rank() + 1, message_);
    if (status.code() != Code::unsupported) return status;  // too long a message is this pass's failure, not the link's
  }
  remember_failure(status);
  write_failure(pass_.number, status, message_);
  return parts_.link.send(0, message_);
}

Status Follower::compute(std::span<const float> residual) {
  MR_RETURN_IF_ERROR(mark_lost());
  MR_RETURN_IF_ERROR(align());
  MR_RETURN_IF_ERROR(reserve());
  // Asked between all tiles: the link is looked at some hundred times a second.
  using Clock = std::chrono::steady_clock;
  Clock::time_point looked;
  bool given_up = pass_.number <= given_up_;
  const auto cancelled = [&] {
    if (const auto now = Clock::now(); !given_up && now - looked > std::chrono::milliseconds(2)) {
      looked = now;
      given_up = parts_.inbox.gives_up(pass_.number);
    }
    return given_up;
  };
  batch_.wants_hidden = pass_.wants_hidden;
  batch_.given = take_rows(residual);
  MR_RETURN_IF_ERROR(parts_.executor.run(batch_, cancelled));
  for (const kv::BatchRow& row : batch_.rows) {
    Mirror& mirror = mirrors_.at(pass_.sequences[static_cast<std::size_t>(row.sequence)].number);
    mirror.computed = std::max<std::int64_t>(mirror.computed, row.position + 1);
  }
  return {};
}

/// Of a pass behind one that failed here, the sequences of that one, which rank 0 has given up or will. Errors: why
/// they failed, where the pass has no others.
Status Follower::mark_lost() {
  std::erase_if(failures_, [&](const auto& one) {
    return one.second.pass + static_cast<std::uint64_t>(parts_.link.size()) <= pass_.number;
  });
  for (StagePass::Sequence& sequence : pass_.sequences) {
    const auto failure = failures_.find(sequence.number);
    if (failure != failures_.end() && sequence.length > failure->second.length) sequence.length = StagePass::kLost;
  }
  const auto row =
      std::find_if_not(pass_.rows.begin(), pass_.rows.end(), [&](const auto& one) { return pass_.is_lost(one); });
  if (row != pass_.rows.end() || pass_.rows.empty()) return {};
  const auto failure = failures_.find(pass_.sequences[static_cast<std::size_t>(pass_.rows[0].sequence)].number);
  if (failure != failures_.end()) return failure->second.status;
  return error(Code::internal, "a pass came of which nothing is left to compute");
}

/// The rows that are computed, into the batch; returns their residual stream.
const float* Follower::take_rows(std::span<const float> residual) {
  const std::int64_t dim = parts_.shape.model_dim;
  batch_.rows.clear();
  places_.clear();
  logit_places_.clear();
  std::int64_t logit_row = 0;
  for (std::size_t i = 0; i < pass_.rows.size(); ++i) {
    const kv::BatchRow& row = pass_.rows[i];
    const std::int64_t logit_place = row.wants_logits ? logit_row++ : -1;
    if (pass_.is_lost(row)) continue;
    batch_.rows.push_back(row);
    places_.push_back(static_cast<std::int64_t>(i));
    if (logit_place >= 0) logit_places_.push_back(logit_place);
  }
  if (batch_.rows.size() == pass_.rows.size()) return residual.data();
  // The message that goes is not written yet, and holds as much.
  message_.resize(batch_.rows.size() * static_cast<std::size_t>(dim) * sizeof(float));
  auto* const rows = reinterpret_cast<float*>(message_.data());
  for (std::size_t i = 0; i < places_.size(); ++i)
    std::copy_n(residual.data() + places_[i] * dim, dim, rows + static_cast<std::int64_t>(i) * dim);
  return rows;
}

/// The residual stream behind this stage: [rows, model_dim] of the pass.
Status Follower::read_states(float* out) const {
  MR_RETURN_IF_ERROR(parts_.executor.read_hidden(0, std::ssize(batch_.rows), out));
  const std::int64_t dim = parts_.shape.model_dim;
  if (batch_.rows.size() < pass_.rows.size())
    spread(places_, dim, {out, pass_.rows.size() * static_cast<std::size_t>(dim)});
  return {};
}

/// All with rows in the pass failed, unless they had before.
void Follower::remember_failure(const Status& status) {
  for (const kv::BatchRow& row : pass_.rows) {
    const StagePass::Sequence& one = pass_.sequences[static_cast<std::size_t>(row.sequence)];
    if (one.length != StagePass::kLost) failures_[one.number] = {pass_.number, one.length, status};
  }
}

/// Holds what sequences are to go on with and what rank 0 keeps, and lets go of all others, and of those that ended.
Follower::Named Follower::settle(const StagePass& pass) {
  Named named;
  std::size_t run = 0;
  for (const StagePass::Sequence& sequence : pass.sequences) {
    Named::Sequence one = {pass.names(run, run + sequence.runs), 0};
    if (const auto mirror = mirrors_.find(sequence.number); mirror != mirrors_.end())
      one.agreed = mirror->second.agreed(one.names);
    named.sequences.push_back(std::move(one));
    run += sequence.runs;
  }
  for (const kv::BlockName& name : pass.names(run, pass.runs.size())) named.kept.insert(name.number);
  // What sequences go on with may be of one that has ended, or goes back: all of it is held until they have it.
  std::set<std::uint64_t> wanted = named.kept;
  for (std::size_t s = 0; s < named.sequences.size(); ++s) {
    const auto& [names, agreed] = named.sequences[s];
    const std::int64_t needed = kv::blocks_for(std::max<std::int64_t>(pass.sequences[s].length, 0));
    for (std::int64_t i = agreed; i < std::min(needed, std::ssize(names)); ++i) {
      const kv::BlockName& name = names[static_cast<std::size_t>(i)];
      wanted.insert(name.number);
      if (name.copied != 0) wanted.insert(name.copied);
    }
  }
  hold(wanted);
  let_go_but(wanted);
  named.ended =
      std::erase_if(mirrors_, [&](const auto& one) {
        return std::none_of(pass.sequences.begin(), pass.sequences.end(),
                            [&](const StagePass::Sequence& sequence) { return sequence.number == one.first; });
      }) > 0;
  return named;
}

/// Brings all sequences to what rank 0 says of them, and keeps what it keeps.
Status Follower::align() {
  const Named named = settle(pass_);
  for (std::size_t s = 0; s < named.sequences.size(); ++s) {
    const auto& [number, length, runs] = pass_.sequences[s];
    Mirror& mirror = mirrors_.try_emplace(number, Mirror{kv::SequenceState(parts_.pool), 0, {}}).first->second;
    if (length == StagePass::kAsItIs || length == StagePass::kLost) continue;
    MR_RETURN_IF_ERROR(align_one(mirror, length, named.sequences[s]));
  }
  let_go_but(named.kept);
  if (named.ended) parts_.pool->trim();  // what they leave goes back to the weights
  return {};
}

Status Follower::recall(std::span<const std::byte> message) {
  StageRecall recall;
  const Status status = recall.read(message);
  if (!status.ok()) log::warn("{}: {}", parts_.link.name(parts_.link.rank()), status.message());
  bool more = false;
  const std::int64_t blocks = status.ok() ? load(recall, more) : 0;
  if (blocks < recall.blocks) {
    recall.blocks = blocks;
    recall.more = more;
  }
  if (last())
    write_recalled(recall, message_);
  else
    recall.write(message_);
  return parts_.link.send(last() ? 0 : parts_.link.rank() + 1, message_);
}

/// How many of the blocks asked for are held now; more: time was over.
std::int64_t Follower::load(const StageRecall& recall, bool& more) {
  const StagePass& standing = recall.standing;
  const Named named = settle(standing);
  const auto sequence = std::find_if(standing.sequences.begin(), standing.sequences.end(),
                                     [&](const auto& one) { return one.number == recall.sequence; });
  if (parts_.prompts == nullptr || sequence == standing.sequences.end()) return 0;
  const std::vector<kv::BlockName>& names =
      named.sequences[static_cast<std::size_t>(sequence - standing.sequences.begin())].names;
  if (recall.first + recall.blocks > std::ssize(names)) return 0;
  constexpr double kMostSeconds = 3600;
  const double seconds = recall.seconds > 0 ? std::min(recall.seconds, kMostSeconds) : 0;
  const auto until =
      kv::PromptCache::Clock::now() + std::chrono::microseconds(static_cast<std::int64_t>(seconds * 1e6));
  std::vector<Held> loaded = parts_.prompts->load(recall.tokens, recall.first, recall.blocks, until);
  more = !loaded.empty() && kv::PromptCache::Clock::now() >= until;
  const std::int64_t blocks = std::ssize(loaded);
  for (std::int64_t i = 0; i < blocks; ++i)
    held_[names[static_cast<std::size_t>(recall.first + i)].number] = std::move(loaded[static_cast<std::size_t>(i)]);
  return blocks;
}

Status Follower::keep(std::span<const std::byte> message) {
  StageKeep keep;
  const Status status = keep.read(message);
  const auto mirror = mirrors_.find(keep.sequence);
  if (status.ok() && parts_.prompts != nullptr && mirror != mirrors_.end()) {
    // Rank 0 has believed all of these tokens, so they count here, too.
    kv::SequenceState& state = mirror->second.state;
    state.set_length(std::max(state.length(), std::min(mirror->second.computed, std::ssize(keep.tokens))));
    parts_.prompts->keep(state, keep.tokens, std::numeric_limits<double>::infinity(), 1);
  }
  if (last() || !status.ok()) return {};
  keep.write(message_);
  return parts_.link.send(parts_.link.rank() + 1, message_);
}

Status Follower::align_one(Mirror& mirror, std::int64_t length, const Named::Sequence& named) {
  if (!named.names.empty()) {
    mirror.computed = std::min(mirror.computed, named.agreed * kv::kBlockTokens);
    if (length > mirror.computed) MR_RETURN_IF_ERROR(share(mirror, length, named.names));
    mirror.names = named.names;
  }
  if (length > mirror.computed)
    return error(Code::internal, "a sequence has {} tokens, of which {} are known here", length, mirror.computed);
  // A pass leaves the state behind its last row alone.
  if (length > mirror.state.length() && length < mirror.computed && mirror.state.layout().has_states())
    return error(Code::internal, "a sequence has {} tokens, and its state here is that behind {}", length,
                 mirror.computed);
  if (length > mirror.state.length()) mirror.state.set_length(length);
  // Room that a pass had for guesses that were wrong, or for itself if it failed, goes back likewise.
  const std::int64_t kept = mirror.state.rewind(length);
  mirror.computed = kept;
  if (kept != length)
    return error(Code::internal, "a sequence went back to {} tokens, of which {} are left here", length, kept);
  mirror.state.forget_behind_windows();
  return {};
}

std::int64_t Follower::Mirror::agreed(std::span<const kv::BlockName> others) const {
  const std::int64_t most = std::min({std::ssize(names), std::ssize(others), state.blocks()});
  const auto first = names.begin();
  std::int64_t same = std::mismatch(first, first + most, others.begin(),
                                    [](const auto& one, const auto& other) { return one.number == other.number; })
                          .first -
                      first;
  if (same < most && others[static_cast<std::size_t>(same)].copied == names[static_cast<std::size_t>(same)].number)
    ++same;
  return same;
}

/// A sequence goes on, from the last whole block of what was computed here, with blocks that are held, up to `length`.
Status Follower::share(Mirror& mirror, std::int64_t length, std::span<const kv::BlockName> names) {
  kv::SequenceState& state = mirror.state;
  const std::int64_t from = mirror.computed / kv::kBlockTokens * kv::kBlockTokens;
  if (state.length() < from) state.set_length(from);
  state.rewind(from);
  while (state.length() < length) {
    const std::int64_t at = state.length() / kv::kBlockTokens, rest = length - state.length();
    const kv::BlockName name = at < std::ssize(names) ? names[static_cast<std::size_t>(at)] : kv::BlockName();
    const auto same = held_.find(name.number), before = held_.find(name.copied);
    if (same != held_.end())
      state.share(same->second, name.number);
    else if (before != held_.end())
      MR_RETURN_IF_ERROR(state.copy(before->second, name.copied, std::min(rest, kv::kBlockTokens)));
    else
      return error(Code::internal, "a sequence of {} tokens goes on with some that are not known here behind {}",
                   length, state.length());
  }
  state.rewind(length);
  mirror.computed = length;
  return {};
}

/// Takes hold of these blocks where sequences have them.
void Follower::hold(const std::set<std::uint64_t>& wanted) {
  if (std::all_of(wanted.begin(), wanted.end(), [&](std::uint64_t number) { return held_.contains(number); })) return;
  for (const auto& [sequence, mirror] : mirrors_) {
    const std::int64_t whole =
        std::min({mirror.computed / kv::kBlockTokens, std::ssize(mirror.names), mirror.state.blocks()});
    for (std::int64_t i = 0; i < whole; ++i) {
      const std::uint64_t number = mirror.names[static_cast<std::size_t>(i)].number;
      if (!wanted.contains(number) || held_.contains(number)) continue;
      Held& held = held_[number];
      for (std::size_t g = 0; g < parts_.pool->groups(); ++g) {
        held.push_back(mirror.state.block(g, i));
        parts_.pool->retain(g, held.back());
      }
    }
  }
}

void Follower::let_go_but(const std::set<std::uint64_t>& wanted) {
  std::erase_if(held_, [&](const auto& one) {
    if (wanted.contains(one.first)) return false;
    for (std::size_t g = 0; g < one.second.size(); ++g) parts_.pool->release(g, one.second[g]);
    return true;
  });
}

/// Room for the rows of the pass.
Status Follower::reserve() {
  batch_.sequences.clear();
  std::vector<std::int64_t> ends(pass_.sequences.size(), 0);
  for (const kv::BatchRow& row : pass_.rows) {
    if (pass_.is_lost(row)) continue;
    std::int64_t& end = ends[static_cast<std::size_t>(row.sequence)];
    end = std::max<std::int64_t>(end, row.position + 1);
  }
  for (std::size_t s = 0; s < ends.size(); ++s) {
    kv::SequenceState& state = mirrors_.at(pass_.sequences[s].number).state;
    batch_.sequences.push_back(&state);
    if (ends[s] > 0) MR_RETURN_IF_ERROR(state.reserve(ends[s]));
  }
  return {};
}

/// Logits, and states where they are wanted, to rank 0.
Status Follower::answer() {
  const Logits logits = parts_.executor.last_logits();
  const auto wanted =
      std::count_if(pass_.rows.begin(), pass_.rows.end(), [](const auto& row) { return row.wants_logits; });
  const std::size_t values = logits.data == nullptr ? 0 : static_cast<std::size_t>(wanted * logits.vocab);
  const std::size_t hidden =
      pass_.wants_hidden ? pass_.rows.size() * static_cast<std::size_t>(parts_.shape.model_dim) : 0;
  const ResultRoom room = write_result(pass_, logits.vocab, values, hidden, message_);
  if (values > 0) {
    std::copy_n(logits.data, logits.rows * logits.vocab, room.logits);
    if (logits.rows < wanted) spread(logit_places_, logits.vocab, {room.logits, values});
  }
  if (hidden > 0) {
    const Status status = read_states(room.hidden);
    if (!status.ok()) write_failure(pass_.number, status, message_);
  }
  Status sent = parts_.link.send(0, message_);
  if (sent.code() != Code::unsupported) return sent;
  write_failure(pass_.number, sent, message_);
  return parts_.link.send(0, message_);
}

}  // namespace millrace::exec
