// Slots of one size for experts, and who leaves when a new one comes: LRU, or LFU with decay.
// Not thread-safe: the store's mutex guards it.
#pragma once

#include <cstdint>
#include <vector>

#include "residency/tile_state.h"
#include "residency/weight_store.h"

namespace millrace::residency {

class ExpertCache {
 public:
  /// `tiles` is the store's table; it outlives the cache. Slots are dead until set_live().
  ExpertCache(std::vector<TileState>& tiles, std::size_t slots, CachePolicy policy);

  struct Slot {
    std::int32_t tile = -1;
    bool live = false;  // has memory
  };
  const std::vector<Slot>& slots() const { return slots_; }
  int live_slots() const { return live_; }
  /// REQUIRES: a slot to be killed is empty.
  void set_live(std::int32_t slot, bool live);

  /// A use of the tile, for the policy.
  void touch(std::int32_t tile, std::uint32_t pass);

  /// A live empty slot, or -1.
  std::int32_t free_slot() const { return free_.empty() ? -1 : free_.back(); }
  /// The slot whose tile should leave: ready and not leased, the lowest in the policy's order; -1 if there is none.
  std::int32_t victim() const;

  void put(std::int32_t slot, std::int32_t tile);
  void clear(std::int32_t slot);  // its tile has left

 private:
  struct Use {
    double frequency = 0;    // uses, each worth 2^(pass / half-life) at its time: later uses weigh more, and nothing
                             // needs to be decayed until the numbers grow large
    std::uint64_t tick = 0;  // of the last use
  };
  bool evictable(const Slot& slot) const;
  bool worth_less(std::int32_t tile, std::int32_t than) const;

  std::vector<TileState>& tiles_;
  std::vector<Slot> slots_;
  std::vector<std::int32_t> free_;
  std::vector<Use> uses_;  // by tile; kept when the tile leaves
  const CachePolicy policy_;
  std::uint64_t tick_ = 0;
  std::uint32_t base_pass_ = 0;
  int live_ = 0;
};

}  // namespace millrace::residency
