// How the store gives memory to others and takes it back. Order of giving: experts (fewer hits), the ring beyond its
// least (less run-ahead), resident tiles (read again in every pass). Taking back goes the other way round.
#include <algorithm>

#include "residency/store.h"

namespace millrace::residency {
namespace {

constexpr int kLeastExperts = 1, kLeastRing = 2;

}  // namespace

std::uint64_t Store::give_way(std::uint64_t bytes) {
  std::lock_guard lock(mutex_);
  if (mapped_) return 0;
  const std::uint64_t before = memory_.paid_bytes();
  bytes = std::min(bytes, before);
  headroom_ = std::max(headroom_, 2 * bytes);
  drop_expert_slots(bytes);
  drop_ring_slots(bytes, kLeastRing);
  drop_resident_tiles(bytes);
  memory_.settle();
  return before - memory_.paid_bytes();
}

void Store::drop_expert_slots(std::uint64_t bytes) {
  for (std::size_t i = experts_->slots().size(); i-- > 0;) {
    if (gave_enough(bytes) || experts_->live_slots() <= kLeastExperts) return;
    const ExpertCache::Slot& slot = experts_->slots()[i];
    if (!slot.live || (slot.tile >= 0 && !idle(slot.tile))) continue;
    if (slot.tile >= 0) evict(slot.tile);
    experts_->set_live(static_cast<std::int32_t>(i), false);
    memory_.drop(expert_piece(i));
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

void Store::drop_resident_tiles(std::uint64_t bytes) {
  if (gave_enough(bytes) || homes_live_ == homes_fixed_) return;
  // Tiles without a home need the ring: where there is none, its least is paid from what the first tiles give.
  const int ring_before = ring_->live_slots();
  for (int i = ring_before; i < kLeastRing; ++i) {
    ring_->set_live(i, true);
    memory_.use(ring_piece(i));
  }
  const std::size_t homes_before = homes_live_;
  while (homes_live_ > homes_fixed_ && !gave_enough(bytes) && idle(home_order_[homes_live_ - 1]))
    make_streamed(homes_live_ - 1);
  if (memory_.used_bytes() >= memory_.paid_bytes()) {  // nothing gained (leased tiles stand in the way): as it was
    while (homes_live_ < homes_before) make_resident(homes_live_);
    if (ring_before == 0) close_ring();
  }
  warm_next_ = 0;
  ring_->rescan();
}

/// REQUIRES: no streamed tile is left. Tiles in the ring leave it.
void Store::close_ring() { drop_ring_slots(UINT64_MAX / 2, 0); }

bool Store::room_for(std::uint64_t bytes) const { return budget_.available_bytes() >= bytes + headroom_; }

void Store::take_back() {
  std::lock_guard lock(mutex_);
  if (mapped_) return;
  finish_loads();
  const bool whole = homes_live_ == home_order_.size() && ring_->live_slots() == plan_.ring_slots &&
                     experts_->live_slots() == plan_.expert_slots;
  if (whole) return;
  take_back_resident();
  take_back_slots();
  warm_next_ = 0;
  ring_->rescan();
}

void Store::take_back_resident() {
  while (homes_live_ < home_order_.size()) {
    const std::int32_t tile = home_order_[homes_live_];
    if (!idle(tile) || !room_for(homes_[tile].bytes)) break;
    make_resident(homes_live_);
    if (memory_.settle()) continue;
    make_streamed(homes_live_ - 1);
    break;
  }
  if (plan_.ring_slots > 0) return;

  // The plan had no ring: once the rest fits in its place it goes, and everything is at home again.
  const std::size_t from = homes_live_;
  std::uint64_t rest = 0;
  for (std::size_t i = from; i < home_order_.size(); ++i) {
    if (!idle(home_order_[i])) return;
    rest += homes_[home_order_[i]].bytes;
  }
  const std::uint64_t ring_bytes = ring_slot_bytes_ * static_cast<std::uint64_t>(ring_->live_slots());
  if (rest > ring_bytes && !room_for(rest - ring_bytes)) return;
  for (const OrderedRing::Slot& slot : ring_->slots())
    if (slot.tile >= 0 && !idle(slot.tile)) return;
  for (std::size_t i = from; i < home_order_.size(); ++i) make_resident(i);
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
    if (experts_->slots()[i].live) continue;
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
