#include "residency/ordered_ring.h"

#include <algorithm>

#include "base/status.h"

namespace millrace::residency {

OrderedRing::OrderedRing(std::vector<TileState>& tiles, std::vector<std::int32_t> sequence, std::size_t slots)
    : tiles_(tiles), sequence_(std::move(sequence)), slots_(slots) {
  for (std::size_t i = 0; i < sequence_.size(); ++i) tiles_[sequence_[i]].position = static_cast<std::int32_t>(i);
}

void OrderedRing::set_live(std::int32_t slot, bool live) {
  if (slots_[slot].live == live) return;
  MR_ASSERT(slots_[slot].tile < 0);
  slots_[slot].live = live;
  live_ += live ? 1 : -1;
}

void OrderedRing::start_pass(std::uint32_t pass) {
  pass_ = pass;
  cursor_ = -1;
  next_ = 0;
}

bool OrderedRing::comes_now(std::int32_t tile) const {
  const std::int32_t position = tiles_[tile].position;
  return position == 0 || (position > 0 && tiles_[sequence_[position - 1]].used_pass == pass_);
}

void OrderedRing::reach(std::int32_t tile) {
  cursor_ = std::max<std::int64_t>(cursor_, tiles_[tile].position);
  next_ = std::max(next_, cursor_ + 1);
}

std::int32_t OrderedRing::next_to_fetch() {
  const auto size = static_cast<std::int64_t>(sequence_.size());
  for (; next_ < std::max<std::int64_t>(cursor_, 0) + size; ++next_) {
    const std::int32_t tile = sequence_[static_cast<std::size_t>(next_ % size)];
    const TileStatus status = tiles_[tile].status;
    if (status == TileStatus::absent) return tile;
  }
  return -1;
}

std::int32_t OrderedRing::free_slot() const {
  for (std::size_t i = 0; i < slots_.size(); ++i)
    if (slots_[i].live && slots_[i].tile < 0) return static_cast<std::int32_t>(i);
  return -1;
}

std::int64_t OrderedRing::next_use(std::int32_t tile) const {
  const TileState& state = tiles_[tile];
  // Behind the cursor and used: comes again in the next pass. Behind and not used yet (an op takes two matrices in
  // turns): wanted any moment. At the cursor: may be leased again for another of its parts.
  const bool done = state.used_pass == pass_ && state.position < cursor_;
  return state.position + (done ? static_cast<std::int64_t>(sequence_.size()) : 0);
}

std::int32_t OrderedRing::victim(std::int64_t used_after) const {
  std::int32_t best = -1;
  std::int64_t best_use = used_after;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    const std::int32_t tile = slots_[i].tile;
    if (tile < 0 || tiles_[tile].pins > 0 || tiles_[tile].status != TileStatus::ready) continue;
    if (next_use(tile) <= best_use) continue;
    best = static_cast<std::int32_t>(i);
    best_use = next_use(tile);
  }
  return best;
}

void OrderedRing::clear(std::int32_t slot, bool fetch_again) {
  const std::int32_t tile = slots_[slot].tile;
  slots_[slot].tile = -1;
  const std::int64_t use = next_use(tile);
  if (fetch_again && use > cursor_) next_ = std::min(next_, use);
}

}  // namespace millrace::residency
