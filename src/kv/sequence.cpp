#include "kv/sequence.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "kv/footprint.h"

namespace millrace::kv {
namespace {

/// Of a new sequence, or of new blocks.
std::uint64_t new_number() {
  static std::atomic<std::uint64_t> last{0};
  return ++last;
}

}  // namespace

SequenceState::SequenceState(std::shared_ptr<BlockPool> pool)
    : pool_(std::move(pool)), tables_(pool_->groups()), states_(pool_->groups()) {
  number_ = new_number();
  enter();
}

SequenceState::~SequenceState() {
  rewind(0);
  if (number_ != 0) pool_->living().erase(number_);
}

/// Here the pool finds the sequence.
void SequenceState::enter() {
  if (number_ != 0) pool_->living()[number_] = this;
}

SequenceState::SequenceState(SequenceState&& other) noexcept
    : pool_(other.pool_),  // NOLINT(performance-move-constructor-init): what was moved from stays usable
      number_(std::exchange(other.number_, 0)),
      tables_(std::exchange(other.tables_, std::vector<Table>(other.tables_.size()))),
      states_(std::exchange(other.states_, std::vector<States>(other.states_.size()))),
      names_(std::exchange(other.names_, {})),
      blocks_(std::exchange(other.blocks_, 0)),
      length_(std::exchange(other.length_, 0)),
      wanted_checkpoints_(std::exchange(other.wanted_checkpoints_, {})) {
  enter();
}

SequenceState& SequenceState::operator=(SequenceState&& other) noexcept {
  std::swap(pool_, other.pool_);
  std::swap(tables_, other.tables_);
  std::swap(states_, other.states_);
  std::swap(names_, other.names_);
  std::swap(blocks_, other.blocks_);
  std::swap(length_, other.length_);
  std::swap(wanted_checkpoints_, other.wanted_checkpoints_);
  std::swap(number_, other.number_);
  enter();
  other.enter();
  return *this;
}

const Layout& SequenceState::layout() const { return pool_->layout(); }

bool SequenceState::lost_first(std::size_t group, std::int64_t position) const {
  const std::vector<std::byte*>& blocks = tables_[group].blocks;
  return this->group(group).ends && position > 0 && !blocks.empty() && blocks[0] == nullptr;
}

bool SequenceState::lost_behind(std::size_t group, std::int64_t position) const {
  return this->group(group).first_seen(position) < tables_[group].first * kBlockTokens;
}

bool SequenceState::goes_on(std::int64_t position) const {
  for (std::size_t g = 0; g < tables_.size(); ++g) {
    // Where a block begins, nothing of it is complete that a plain group might have lost, and no run of tokens is open.
    const bool by_blocks = (group(g).ends || group(g).aligned) && position % kBlockTokens == 0;
    if (lost_first(g, position) || (!by_blocks && lost_behind(g, position))) return false;
    const bool needs_state = group(g).is_state() && position > 0 && position != states_[g].at;
    if (needs_state && checkpoint_behind(g, position) == nullptr) return false;
  }
  return true;
}

bool SequenceState::holds(std::int64_t position) const {
  if (position < 0 || position / kBlockTokens >= blocks_) return false;
  for (std::size_t g = 0; g < tables_.size(); ++g) {
    if (group(g).is_state() ? states_[g].next == nullptr || states_[g].at != length_ || position < length_
                            : lost_first(g, position) || lost_behind(g, position))
      return false;
  }
  return true;
}

/// Blocks of a group before number `first` are let go of; there may be fewer.
void SequenceState::let_go_before(std::size_t group, std::int64_t first) {
  Table& table = tables_[group];
  for (; table.first < first; ++table.first) {
    if (table.first == 0 && this->group(group).ends) continue;
    std::byte*& block = table.blocks[static_cast<std::size_t>(table.first)];
    if (block != nullptr) pool_->release(group, block);
    block = nullptr;
  }
}

/// The first `blocks` blocks of every group stay.
void SequenceState::cut(std::int64_t blocks) {
  for (std::size_t g = 0; g < tables_.size(); ++g) {
    Table& table = tables_[g];
    while (std::ssize(table.blocks) > blocks) {
      if (table.blocks.back() != nullptr) pool_->release(g, table.blocks.back());
      table.blocks.pop_back();
    }
    table.first = std::min(table.first, blocks);
  }
  blocks_ = std::min(blocks_, blocks);
  names_.resize(static_cast<std::size_t>(blocks_));
}

void SequenceState::share(Blocks blocks, std::uint64_t number) {
  MR_ASSERT(length_ == blocks_ * kBlockTokens && blocks.size() == tables_.size());
  ++blocks_;
  for (std::size_t g = 0; g < tables_.size(); ++g) {
    tables_[g].blocks.push_back(blocks[g]);
    if (blocks[g] != nullptr)
      pool_->retain(g, blocks[g]);
    else if (!group(g).is_state())
      let_go_before(g, blocks_);
  }
  names_.push_back({number != 0 ? number : new_number(), 0});
  length_ += kBlockTokens;
  take_checkpoints();
}

/// A block of one's own with the same bytes.
Expected<std::byte*> SequenceState::copy_of(std::size_t group, const std::byte* block) {
  MR_ASSIGN_OR_RETURN(std::byte* const own, pool_->allocate(group));
  Status status = pool_->copy(group, own, block);
  if (status.ok()) return own;
  pool_->release(group, own);
  return status;
}

Status SequenceState::copy(Blocks blocks, std::uint64_t number, std::int64_t tokens) {
  MR_ASSERT(length_ == blocks_ * kBlockTokens && tokens <= kBlockTokens && blocks.size() == tables_.size());
  MR_ASSERT(!layout().has_states());
  for (std::size_t g = 0; g < tables_.size(); ++g) {
    const Expected<std::byte*> own = copy_of(g, blocks[g]);
    if (!own.ok()) {
      cut(blocks_);
      return own.status();
    }
    tables_[g].blocks.push_back(*own);
  }
  ++blocks_;
  names_.push_back({new_number(), number});
  length_ += tokens;
  return {};
}

/// A copy in place of each block that length() lies in, where others use it too.
Status SequenceState::own_last_blocks() {
  if (length_ % kBlockTokens == 0) return {};
  MR_ASSERT(blocks_ == blocks_for(length_));
  const BlockName before = names_.back();
  for (std::size_t g = 0; g < tables_.size(); ++g) {
    if (group(g).is_state()) continue;
    std::byte*& last = tables_[g].blocks.back();
    if (pool_->users(g, last) == 1) continue;
    MR_ASSIGN_OR_RETURN(std::byte* const own, copy_of(g, last));
    pool_->release(g, std::exchange(last, own));
    if (names_.back() == before) names_.back() = {new_number(), before.number};
  }
  return {};
}

/// Every group has so many blocks, or nothing changes.
Status SequenceState::grow(std::int64_t blocks) {
  for (std::size_t g = 0; g < tables_.size(); ++g) {
    if (group(g).is_state()) {
      tables_[g].blocks.resize(static_cast<std::size_t>(std::max(blocks, std::ssize(tables_[g].blocks))));
      continue;
    }
    while (std::ssize(tables_[g].blocks) < blocks) {
      Expected<std::byte*> block = pool_->allocate(g);
      if (!block.ok()) {
        cut(blocks_);
        return block.status();
      }
      tables_[g].blocks.push_back(*block);
    }
  }
  blocks_ = std::max(blocks_, blocks);
  while (std::ssize(names_) < blocks_) names_.push_back({new_number(), 0});
  return {};
}

Status SequenceState::reserve(std::int64_t tokens) {
  if (tokens <= length_) return {};
  if (!goes_on(length_))
    return error(Code::internal, "a sequence of {} tokens has lost keys that the next one sees", length_);
  if (blocks_ == blocks_for(length_)) MR_RETURN_IF_ERROR(own_last_blocks());
  Status status = reserve_states();
  if (status.ok()) status = grow(blocks_for(tokens));
  if (!status.ok()) return status.with_context(fmt::format("no room to remember {} tokens", tokens));
  reserve_checkpoints(tokens);
  return {};
}

void SequenceState::set_length(std::int64_t tokens) {
  MR_ASSERT(tokens >= 0 && blocks_for(tokens) <= blocks_);
  if (tokens > length_) advance_states(tokens);
  length_ = tokens;
}

void SequenceState::forget_behind_windows() {
  for (std::size_t g = 0; g < tables_.size(); ++g) {
    if (group(g).is_state())
      thin_checkpoints(g, kMostCheckpoints);
    else
      let_go_before(g, std::min(group(g).first_seen(length_) / kBlockTokens, blocks_));
  }
}

std::int64_t SequenceState::rewind(std::int64_t tokens) {
  MR_ASSERT(tokens >= 0);
  length_ = std::min(length_, tokens);
  // Where a window is too far on for this position, it is for all before it, which see keys before those.
  const bool by_blocks = layout().has_states() || layout().has_plain_groups();
  if (!goes_on(length_)) length_ = by_blocks ? length_ / kBlockTokens * kBlockTokens : 0;
  while (length_ > 0 && !goes_on(length_)) length_ -= kBlockTokens;
  take_checkpoints();
  drop_next_states();
  cut(blocks_for(length_));
  std::erase_if(wanted_checkpoints_, [this](std::int64_t wanted) { return wanted > length_; });
  return length_;
}

}  // namespace millrace::kv
