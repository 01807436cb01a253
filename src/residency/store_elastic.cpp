// How the store gives memory to others and takes it back. Order of giving, the least useful bytes first: an untied
// embedding at home (a token needs one row of it), expert slots, the ring beyond its least, ordered tiles at home (then
// read in every pass). Taking back goes the other way round.
#include <algorithm>

#include "base/mutex.h"
#include "residency/store.h"

namespace millrace::residency {
namespace {

constexpr std::size_t kLeastExperts = 1;
// Room left free after others have asked for memory fades by this share of itself a pass.
constexpr std::uint64_t kHeadroomPasses = 64;

}  // namespace

std::uint64_t Store::give_way(std::uint64_t bytes) {
  MutexLock lock(mutex_);
  if (mapped_ || memory_.fixed()) return 0;
  const std::uint64_t before = memory_.paid_bytes();
  bytes = std::min(bytes, before);
  headroom_ = std::max(headroom_, 2 * bytes);
  ++givers_;
  for (;;) {
    finish_loads();
    drop_homes(bytes, homes_ordered_);
    drop_expert_slots(bytes);
    drop_ring_slots(bytes, kLeastRing);
    drop_ordered_homes(bytes);
    if (gave_enough(bytes)) break;
    // Reads ahead of the pass hold memory until they end; nobody needs them as much as the asker.
    const std::int32_t load = unclaimed_load();
    if (load < 0) break;
    lock.unlock();
    loader_->wait_for(load);
    lock.lock();
  }
  --givers_;
  memory_.settle();
  return before - memory_.paid_bytes();
}

std::int32_t Store::unclaimed_load() const {
  for (const std::int32_t load : loader_->active())
    if (tiles_[loader_->tile_of(load)].pins == 0) return load;
  return -1;
}

void Store::drop_expert_slots(std::uint64_t bytes) {
  for (auto slot = static_cast<std::int32_t>(experts_->slots()); slot-- > 0;) {
    if (gave_enough(bytes) || experts_->live_slots() <= kLeastExperts) return;
    const std::int32_t tile = experts_->key_of(slot);
    if (!experts_->live(slot) || (tile >= 0 && !idle(tile))) continue;
    if (tile >= 0) evict(tile);
    experts_->set_live(slot, false);
    memory_.drop(expert_piece(static_cast<std::size_t>(slot)));
  }
}

void Store::drop_ring_slots(std::uint64_t bytes, int keep) {
  for (std::size_t i = ring_->slots().size(); i-- > 0;) {
    if (gave_enough(bytes) || ring_->live_slots() <= keep) return;
    const OrderedRing::Slot& slot = ring_->slots()[i];
    if (!slot.live || (slot.tile >= 0 && !idle(slot.tile))) continue;
    if (slot.tile >= 0) evict(slot.tile);
    ring_->set_live(static_cast<std::int32_t>(i), false);
    memory_.drop(ring_piece(i));
  }
}

void Store::make_streamed(std::size_t order) {
  const std::int32_t tile = home_order_[order];
  TileState& state = tiles_[tile];
  if (state.status == TileStatus::ready) evict(tile);
  state.place = Place::ring;
  memory_.drop(homes_[tile]);
  homes_live_ = order;
}

void Store::make_resident(std::size_t order) {
  const std::int32_t tile = home_order_[order];
  TileState& state = tiles_[tile];
  if (state.status == TileStatus::ready) evict(tile);
  state.place = Place::resident;
  memory_.use(homes_[tile]);
  homes_live_ = order + 1;
}

/// Ends the homes of the last tiles, down to the first `keep`.
void Store::drop_homes(std::uint64_t bytes, std::size_t keep) {
  while (homes_live_ > keep && !gave_enough(bytes) && idle(home_order_[homes_live_ - 1]))
    make_streamed(homes_live_ - 1);
}

void Store::drop_ordered_homes(std::uint64_t bytes) {
  if (gave_enough(bytes) || homes_live_ > homes_ordered_ || homes_live_ == homes_fixed_) return;
  // Tiles without a home need the ring: where there is none, its least is paid from what the first tiles give.
  const std::uint64_t used_before = memory_.used_bytes();
  const std::size_t homes_before = homes_live_;
  const int ring_before = ring_->live_slots();
  for (int i = ring_before; i < kLeastRing; ++i) {
    ring_->set_live(i, true);
    memory_.use(ring_piece(i));
  }
  drop_homes(bytes, homes_fixed_);
  if (memory_.used_bytes() >= used_before) {  // nothing gained (leased tiles stand in the way): as it was
    while (homes_live_ < homes_before) make_resident(homes_live_);
    if (ring_before == 0) close_ring();
  }
  ring_->rescan();
}

/// REQUIRES: no streamed tile is left. Tiles in the ring leave it.
void Store::close_ring() { drop_ring_slots(UINT64_MAX / 2, 0); }

bool Store::room_for(std::uint64_t bytes) const { return budget_.available_bytes() >= bytes + headroom_; }

Status Store::grow(std::uint64_t bytes) {
  {
    const MutexLock lock(mutex_);
    headroom_ = 0;
    refused_ = Status();
  }
  take_back();
  const MutexLock lock(mutex_);
  for (int i = 0; i < plan_.expert_slots && memory_.backed_bytes() < bytes; ++i)
    if (experts_->live(i)) MR_RETURN_IF_ERROR(memory_.back(expert_piece(static_cast<std::size_t>(i))));
  return {};
}

std::uint64_t Store::backed_bytes() const {
  const MutexLock lock(mutex_);
  return memory_.backed_bytes();
}

void Store::take_back() {
  const MutexLock lock(mutex_);
  if (mapped_) return;
  finish_loads();
  headroom_ -= (headroom_ + kHeadroomPasses - 1) / kHeadroomPasses;
  const bool whole = homes_live_ == home_order_.size() && ring_->live_slots() == plan_.ring_slots &&
                     experts_->live_slots() == experts_->slots();
  if (whole) return;
  take_back_homes(homes_ordered_);
  if (plan_.ring_slots == 0) take_back_from_ring();
  take_back_slots();
  const bool slots_back = ring_->live_slots() == plan_.ring_slots && experts_->live_slots() == experts_->slots();
  if (homes_live_ >= homes_ordered_ && slots_back) take_back_homes(home_order_.size());
  warm_next_ = 0;
  ring_->rescan();
}

void Store::take_back_homes(std::size_t end) {
  while (homes_live_ < end) {
    const std::int32_t tile = home_order_[homes_live_];
    if (!idle(tile) || !room_for(homes_[tile].bytes)) return;
    make_resident(homes_live_);
    if (memory_.settle()) continue;
    make_streamed(homes_live_ - 1);
    return;
  }
}

/// For a plan without a ring: once the rest of the ordered tiles fits in the ring's place, the ring goes and all are at
/// home again.
void Store::take_back_from_ring() {
  if (ring_->live_slots() == 0) return;
  const std::size_t from = homes_live_;
  std::uint64_t rest = 0;
  for (std::size_t i = from; i < homes_ordered_; ++i) {
    if (!idle(home_order_[i])) return;
    rest += homes_[home_order_[i]].bytes;
  }
  const std::uint64_t ring_bytes = ring_slot_bytes_ * static_cast<std::uint64_t>(ring_->live_slots());
  if (rest > ring_bytes && !room_for(rest - ring_bytes)) return;
  for (const OrderedRing::Slot& slot : ring_->slots())
    if (slot.tile >= 0 && !idle(slot.tile)) return;
  for (std::size_t i = from; i < homes_ordered_; ++i) make_resident(i);
  const int ring_before = ring_->live_slots();
  close_ring();
  if (memory_.settle()) return;
  for (int i = 0; i < ring_before; ++i) {
    ring_->set_live(i, true);
    memory_.use(ring_piece(i));
  }
  while (homes_live_ > from) make_streamed(homes_live_ - 1);
  memory_.settle();
}

void Store::take_back_slots() {
  for (int i = 0; i < plan_.ring_slots; ++i) {
    if (ring_->slots()[i].live) continue;
    if (!room_for(ring_slot_bytes_)) return;
    memory_.use(ring_piece(i));
    if (!memory_.settle()) {
      memory_.drop(ring_piece(i));
      return;
    }
    ring_->set_live(i, true);
  }
  for (int i = 0; i < plan_.expert_slots; ++i) {
    if (experts_->live(i)) continue;
    if (!room_for(plan_.expert_slot_bytes)) return;
    memory_.use(expert_piece(i));
    if (!memory_.settle()) {
      memory_.drop(expert_piece(i));
      return;
    }
    experts_->set_live(i, true);
  }
}

}  // namespace millrace::residency
