// The ring for tiles that every pass uses in the same order: chooses the next tile to fetch and the slot for it. The
// next use of each tile is known, so the tile used farthest in the future, one behind the cursor, is evicted first
// (Belady's rule). Near the end of a pass the first tiles of the next one are fetched, so that no pass starts by
// waiting. Not thread-safe: the store's mutex guards it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "residency/tile_state.h"

namespace millrace::residency {

class OrderedRing {
 public:
  /// `tiles` is the store's table; it outlives the ring. `sequence`: all ordered tiles in pass order, including
  /// resident ones; their positions are written into the table. Slots have no memory until set_live().
  OrderedRing(std::vector<TileState>& tiles, std::vector<std::int32_t> sequence, std::size_t slots);

  struct Slot {
    std::int32_t tile = -1;
    bool live = false;  // has memory
  };
  const std::vector<Slot>& slots() const { return slots_; }
  int live_slots() const { return live_; }
  /// REQUIRES: a slot to be killed is empty.
  void set_live(std::int32_t slot, bool live);

  /// Resets the cursor to before the first tile; `pass` is the number that marks uses from now on.
  void start_pass(std::uint32_t pass);
  /// Whether the pass has reached this tile: the one before it was leased, or it is the first.
  bool comes_now(std::int32_t tile) const;
  /// Moves the cursor to the tile, which is being leased in this pass.
  void reach(std::int32_t tile);

  /// The next tile in pass order that is neither in memory nor being read, across the end of the pass into the next
  /// one; -1: there is none. Looks at most one pass ahead.
  std::int32_t next_to_fetch();
  /// Records that the tile of next_to_fetch() is being fetched, and continues after it.
  void fetched() { ++next_; }

  /// A live empty slot, or -1.
  std::int32_t free_slot() const;
  /// A slot whose tile may be evicted for the tile of next_to_fetch(): ready, not leased, used later than that one; -1:
  /// none.
  std::int32_t victim_for_fetch() const { return victim(next_); }
  /// A slot for a tile that is needed now: that of the ready, unleased tile which is used latest.
  std::int32_t victim_for_demand() const { return victim(INT64_MIN); }

  void put(std::int32_t slot, std::int32_t tile) { slots_[slot].tile = tile; }
  /// Records that the slot's tile was evicted. If this pass still needs it, it is fetched again, unless `fetch_again`
  /// is false (its read failed; its user will request it).
  void clear(std::int32_t slot, bool fetch_again);
  /// Considers all tiles after the cursor again, because tiles have changed their place.
  void rescan() { next_ = cursor_ + 1; }

 private:
  std::int64_t next_use(std::int32_t tile) const;
  std::int32_t victim(std::int64_t used_after) const;

  std::vector<TileState>& tiles_;
  const std::vector<std::int32_t> sequence_;
  std::vector<Slot> slots_;
  std::uint32_t pass_ = 0;
  // Positions count from the start of this pass; the next pass's begin at sequence_.size().
  std::int64_t cursor_ = -1;  // the farthest tile leased in this pass
  std::int64_t next_ = 0;     // the next to be fetched; cursor_ < next_ <= cursor_ + sequence_.size()
  int live_ = 0;
};

}  // namespace millrace::residency
