#include "residency/expert_cache.h"

#include <algorithm>
#include <cmath>

namespace millrace::residency {
namespace {

constexpr double kHalfLifePasses = 32;
constexpr double kLargestExponent = 256;

}  // namespace

ExpertCache::ExpertCache(std::vector<TileState>& tiles, std::size_t slots, CachePolicy policy)
    : tiles_(tiles), slots_(slots), uses_(slots == 0 ? 0 : tiles.size()), policy_(policy) {
  free_.reserve(slots);
}

void ExpertCache::set_live(std::int32_t slot, bool live) {
  if (slots_[slot].live == live) return;
  MR_ASSERT(slots_[slot].tile < 0);
  slots_[slot].live = live;
  if (live) {
    free_.push_back(slot);
    ++live_;
  } else {
    free_.erase(std::find(free_.begin(), free_.end(), slot));
    --live_;
  }
}

void ExpertCache::touch(std::int32_t tile, std::uint32_t pass) {
  Use& use = uses_[tile];
  use.tick = ++tick_;
  double exponent = (pass - base_pass_) / kHalfLifePasses;
  if (exponent > kLargestExponent) {
    const double scale = std::exp2(-exponent);
    for (Use& other : uses_) other.frequency *= scale;
    base_pass_ = pass;
    exponent = 0;
  }
  use.frequency += std::exp2(exponent);
}

bool ExpertCache::evictable(const Slot& slot) const {
  return slot.tile >= 0 && tiles_[slot.tile].pins == 0 && tiles_[slot.tile].status == TileStatus::ready;
}

bool ExpertCache::worth_less(std::int32_t tile, std::int32_t than) const {
  const Use &a = uses_[tile], &b = uses_[than];
  if (policy_ == CachePolicy::lfu && a.frequency != b.frequency) return a.frequency < b.frequency;
  return a.tick < b.tick;
}

std::int32_t ExpertCache::victim() const {
  std::int32_t best = -1;
  for (std::int32_t i = 0; i < static_cast<std::int32_t>(slots_.size()); ++i) {
    if (evictable(slots_[i]) && (best < 0 || worth_less(slots_[i].tile, slots_[best].tile))) best = i;
  }
  return best;
}

void ExpertCache::put(std::int32_t slot, std::int32_t tile) {
  MR_ASSERT(slots_[slot].live && slots_[slot].tile < 0);
  slots_[slot].tile = tile;
  free_.erase(std::find(free_.rbegin(), free_.rend(), slot).base() - 1);
}

void ExpertCache::clear(std::int32_t slot) {
  MR_ASSERT(slots_[slot].live && slots_[slot].tile >= 0);
  slots_[slot].tile = -1;
  free_.push_back(slot);
}

}  // namespace millrace::residency
