#include "exec/follower.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace millrace::exec {

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
    float* const handed = pass_.write(parts_.shape.model_dim, message_);
    status = parts_.executor.read_hidden(0, std::ssize(pass_.rows), handed);
    if (status.ok()) status = parts_.link.send(parts_.link.rank() + 1, message_);
    if (status.code() != Code::unsupported) return status;  // too long a message is this pass's failure, not the link's
  }
  failed_ = status;
  failed_pass_ = pass_.number;
  write_failure(pass_.number, status, message_);
  return parts_.link.send(0, message_);
}

Status Follower::compute(std::span<const float> residual) {
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
  batch_.rows = pass_.rows;
  batch_.wants_hidden = pass_.wants_hidden;
  batch_.given = residual.data();
  MR_RETURN_IF_ERROR(parts_.executor.run(batch_, cancelled));
  for (const kv::BatchRow& row : pass_.rows) {
    Mirror& mirror = mirrors_.at(pass_.sequences[static_cast<std::size_t>(row.sequence)].number);
    mirror.computed = std::max<std::int64_t>(mirror.computed, row.position + 1);
  }
  return {};
}

/// Brings all sequences to what rank 0 says of them.
Status Follower::align() {
  const auto ended = std::erase_if(mirrors_, [&](const auto& one) {
    return std::none_of(pass_.sequences.begin(), pass_.sequences.end(),
                        [&](const StagePass::Sequence& sequence) { return sequence.number == one.first; });
  });
  if (ended > 0) parts_.pool->trim();  // what they leave goes back to the weights
  for (const auto& [number, length] : pass_.sequences) {
    const auto found = mirrors_.try_emplace(number, Mirror{kv::SequenceState(parts_.pool)}).first;
    Mirror& mirror = found->second;
    if (length == StagePass::kAsItIs) continue;
    const bool sent_behind = failed_pass_ + static_cast<std::uint64_t>(parts_.link.size()) > pass_.number;
    if (length > mirror.computed && !failed_.ok() && sent_behind) return failed_;
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
  }
  return {};
}

/// Room for the rows of the pass.
Status Follower::reserve() {
  batch_.sequences.clear();
  std::vector<std::int64_t> ends(pass_.sequences.size(), 0);
  for (const kv::BatchRow& row : pass_.rows) {
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
  const std::size_t values = static_cast<std::size_t>(logits.rows * logits.vocab);
  const std::size_t hidden =
      pass_.wants_hidden ? pass_.rows.size() * static_cast<std::size_t>(parts_.shape.model_dim) : 0;
  float* const states =
      write_result(pass_, logits.vocab, {logits.data, logits.data == nullptr ? 0 : values}, hidden, message_);
  if (hidden > 0) {
    const Status status = parts_.executor.read_hidden(0, std::ssize(pass_.rows), states);
    if (!status.ok()) write_failure(pass_.number, status, message_);
  }
  Status sent = parts_.link.send(0, message_);
  if (sent.code() != Code::unsupported) return sent;
  write_failure(pass_.number, sent, message_);
  return parts_.link.send(0, message_);
}

}  // namespace millrace::exec
