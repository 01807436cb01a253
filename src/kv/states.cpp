// The states of a sequence: the one behind its last token, the one that a pass makes, and checkpoints.

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>

#include "kv/footprint.h"
#include "kv/sequence.h"

namespace millrace::kv {

/// The state behind so many tokens, where the group has it in its table.
std::byte* SequenceState::checkpoint_behind(std::size_t group, std::int64_t tokens) const {
  const std::int64_t index = tokens / kBlockTokens - 1;
  if (tokens % kBlockTokens != 0 || index < 0 || index >= blocks_) return nullptr;
  return block(group, index);
}

void SequenceState::set_now(std::size_t group, std::byte* block) {
  if (block != nullptr) pool_->retain(group, block);
  if (states_[group].now != nullptr) pool_->release(group, states_[group].now);
  states_[group].now = block;
}

/// Each group's state is the one behind length() tokens, if there is one.
void SequenceState::take_checkpoints() {
  for (std::size_t g = 0; g < tables_.size(); ++g) {
    States& states = states_[g];
    if (!group(g).is_state() || states.at == length_) continue;
    std::byte* const checkpoint = checkpoint_behind(g, length_);
    if (checkpoint == nullptr && length_ > 0) continue;
    set_now(g, checkpoint);
    states.at = length_;
  }
}

void SequenceState::drop_next_states() {
  for (std::size_t g = 0; g < tables_.size(); ++g)
    if (std::byte* const next = std::exchange(states_[g].next, nullptr); next != nullptr) pool_->release(g, next);
}

/// Room for what a pass makes; where there is none, checkpoints give way.
Status SequenceState::reserve_states() {
  for (std::size_t g = 0; g < tables_.size(); ++g) {
    States& states = states_[g];
    if (!group(g).is_state() || states.next != nullptr) continue;
    Expected<std::byte*> room = pool_->allocate(g);
    if (!room.ok()) {
      thin_checkpoints(g, 0);
      room = pool_->allocate(g);
    }
    if (!room.ok()) return room.status();
    states.next = *room;
  }
  return {};
}

/// Room for a checkpoint that a pass goes by, if it costs nobody anything.
void SequenceState::reserve_checkpoint(std::size_t group, std::int64_t tokens) {
  std::byte*& place = tables_[group].blocks[static_cast<std::size_t>(tokens / kBlockTokens - 1)];
  if (place != nullptr) return;
  thin_checkpoints(group, kMostCheckpoints, tokens / kBlockTokens - 1);
  if (const Expected<std::byte*> room = pool_->allocate_spare(group); room.ok()) place = *room;
}

void SequenceState::want_checkpoint(std::int64_t tokens) {
  if (!layout().has_states()) return;
  const auto place = std::lower_bound(wanted_checkpoints_.begin(), wanted_checkpoints_.end(), tokens);
  if (place == wanted_checkpoints_.end() || *place != tokens) wanted_checkpoints_.insert(place, tokens);
}

/// Within a pass up to `tokens`, those that are wanted, and one behind its last whole block: where the pass ends with
/// the block there is one without room of its own.
void SequenceState::reserve_checkpoints(std::int64_t tokens) {
  const std::int64_t last = tokens / kBlockTokens * kBlockTokens;
  for (std::size_t g = 0; g < tables_.size(); ++g) {
    if (!group(g).is_state()) continue;
    for (const std::int64_t wanted : wanted_checkpoints_)
      if (wanted > length_ && wanted < tokens) reserve_checkpoint(g, wanted);
    if (last > length_ && last < tokens) reserve_checkpoint(g, last);
  }
}

/// What a pass made becomes the state behind `tokens` tokens; behind a whole block it is a checkpoint, too.
void SequenceState::advance_states(std::int64_t tokens) {
  for (std::size_t g = 0; g < tables_.size(); ++g) {
    States& states = states_[g];
    if (!group(g).is_state()) continue;
    MR_ASSERT(states.next != nullptr && states.at == length_);
    std::swap(states.now, states.next);
    states.at = tokens;
    if (states.next != nullptr && pool_->users(g, states.next) > 1)  // a checkpoint, which nobody writes
      pool_->release(g, std::exchange(states.next, nullptr));
    if (tokens % kBlockTokens != 0) continue;
    std::byte*& place = tables_[g].blocks[static_cast<std::size_t>(tokens / kBlockTokens - 1)];
    if (place != nullptr) continue;
    place = states.now;
    pool_->retain(g, place);
  }
}

/// So many checkpoints stay, the one that comes behind block `coming` among them (-1: none comes). The newest stays,
/// then the last one that was wanted; of the others goes the one whose neighbours are nearest to each other.
void SequenceState::thin_checkpoints(std::size_t group, std::int64_t most, std::int64_t coming) {
  std::vector<std::byte*>& blocks = tables_[group].blocks;
  std::vector<std::int64_t> held;  // numbers of blocks
  for (std::int64_t i = 0; i < std::ssize(blocks); ++i)
    if (blocks[static_cast<std::size_t>(i)] != nullptr || i == coming) held.push_back(i);
  const auto is_wanted = [&](std::int64_t block) {
    return !wanted_checkpoints_.empty() && (block + 1) * kBlockTokens == wanted_checkpoints_.back();
  };
  while (std::ssize(held) > most) {
    std::size_t least = held.size();
    auto least_cost = std::tuple(true, true, std::numeric_limits<std::int64_t>::max());
    for (std::size_t i = 0; i < held.size(); ++i) {
      if (held[i] == coming) continue;
      const bool is_newest = i + 1 == held.size();
      const std::int64_t gap = (is_newest ? held[i] : held[i + 1]) - (i > 0 ? held[i - 1] : -1);
      const auto cost = std::tuple(is_newest, is_wanted(held[i]), gap);
      if (least < held.size() && cost >= least_cost) continue;
      least_cost = cost;
      least = i;
    }
    if (least == held.size()) return;
    std::byte*& gone = blocks[static_cast<std::size_t>(held[least])];
    pool_->release(group, std::exchange(gone, nullptr));
    held.erase(held.begin() + static_cast<std::ptrdiff_t>(least));
  }
}

void SequenceState::forget_checkpoints() {
  for (std::size_t g = 0; g < tables_.size(); ++g)
    if (group(g).is_state()) thin_checkpoints(g, 0);
}

}  // namespace millrace::kv
