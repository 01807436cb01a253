// The weight store's implementation: one table of tiles, and the parts that decide and move for it (memory, loader,
// ring, expert cache). weight_store.h is the contract.
//
// Threads: the executor thread calls everything but counters(), give_way(), expert_slots(), which any thread may call;
// storage threads touch nothing but Completions. One mutex guards all state; it is never held while waiting for a read.
// Only the executor thread starts loads, so a load it waits for without the mutex is not used for another tile
// meanwhile; a giver that waits may at worst wait for a later use of the same load.
// Lock order: the budget's reclaim lock, this mutex, the budget's own lock.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "residency/expert_cache.h"
#include "residency/ordered_ring.h"
#include "residency/tile_loader.h"
#include "residency/tile_state.h"
#include "residency/weight_memory.h"
#include "residency/weight_store.h"

namespace millrace::residency {

class Store final : public WeightStore {
 public:
  Store(const UnitTable& units, const Plan& plan, storage::Backend& backend, Budget& budget, StoreOptions options);
  ~Store() override;
  /// Lays the memory out and pays for it. Call once, before anything else.
  Status open();

  void begin_pass() override;
  void end_pass() override;
  Expected<Lease> lease(std::int32_t tile) override;
  std::optional<Lease> try_lease(std::int32_t tile) override;
  bool present(std::int32_t tile) const override;
  Status read_rows(WeightRef part, std::span<const std::int64_t> rows, std::byte* out) override;
  std::uint64_t give_way(std::uint64_t bytes) override;
  void take_back() override;
  int expert_slots() const override;
  StoreCounters counters() const override;
  const UnitTable& units() const override { return units_; }

 protected:
  Status wait(std::int32_t tile) override;
  bool ready(std::int32_t tile) const override;
  const std::byte* segment(std::int32_t tile, std::size_t i) const override;
  void unpin(std::int32_t tile) override;

 private:
  using Piece = WeightMemory::Piece;

  // Setting up (weight_store.cpp).
  Status check_plan() const;
  bool map_in_place();
  void place_tiles();
  void lay_out();
  void set_up_counters();
  std::vector<std::int32_t> ordered_sequence() const;

  // Moving (store.cpp). The mutex is held, except inside block_on().
  bool available(const TileState& state) const;
  bool by_rows_only(std::int32_t tile) const;
  bool start(std::int32_t tile, bool demand);
  std::int32_t slot_for(std::int32_t tile, bool demand);
  void evict(std::int32_t tile);
  void leave_slot(std::int32_t tile, bool fetch_again);
  void finish_loads();
  void finished(std::int32_t tile, const Status& status);
  void advance();
  void warm_up();
  std::int32_t load_to_wait_for(Place place) const;
  void block_on(std::unique_lock<std::mutex>& lock, std::int32_t load);
  void grant(std::int32_t tile, bool was_ready, bool started);
  const std::byte* present_row(WeightRef ref, std::int64_t row) const;
  std::string describe(std::int32_t tile) const;

  // Elasticity (store_elastic.cpp). The mutex is held.
  bool idle(std::int32_t tile) const { return tiles_[tile].pins == 0 && tiles_[tile].status != TileStatus::loading; }
  bool gave_enough(std::uint64_t bytes) const { return memory_.paid_bytes() >= memory_.used_bytes() + bytes; }
  void drop_expert_slots(std::uint64_t bytes);
  void drop_ring_slots(std::uint64_t bytes, int keep);
  void drop_homes(std::uint64_t bytes, std::size_t keep);
  void drop_ordered_homes(std::uint64_t bytes);
  std::int32_t unclaimed_load() const;
  void make_resident(std::size_t order);
  void make_streamed(std::size_t order);
  bool room_for(std::uint64_t bytes) const;
  void take_back_homes(std::size_t end);
  void take_back_from_ring();
  void close_ring();
  void take_back_slots();
  Piece ring_piece(std::size_t slot) const { return {ring_offset_ + slot * ring_slot_bytes_, ring_slot_bytes_}; }
  Piece expert_piece(std::size_t slot) const {
    return {expert_offset_ + slot * plan_.expert_slot_bytes, plan_.expert_slot_bytes};
  }

  const UnitTable& units_;
  const Plan plan_;
  storage::Backend& backend_;
  Budget& budget_;
  const StoreOptions options_;
  bool mapped_ = false;
  bool has_experts_ = false;

  mutable std::mutex mutex_;  // guards everything below
  std::vector<TileState> tiles_;
  std::map<std::int32_t, Status> failures_;  // of failed tiles
  WeightMemory memory_;
  std::vector<Piece> homes_;              // by tile; empty for tiles that never are resident
  std::vector<std::int32_t> home_order_;  // resident tiles as they lie in memory; the last ones give way first
  std::size_t homes_fixed_ = 0;           // the first so many never give way
  std::size_t homes_ordered_ = 0;         // those from here on are an untied embedding's
  std::size_t homes_live_ = 0;            // the first so many are resident now
  std::uint64_t ring_offset_ = 0, ring_slot_bytes_ = 0, expert_offset_ = 0, address_bytes_ = 0;
  Piece row_scratch_;
  std::unique_ptr<OrderedRing> ring_;
  std::unique_ptr<ExpertCache> experts_;
  std::vector<std::int32_t> warm_;  // tiles to load once before they are asked for
  std::size_t warm_next_ = 0;
  int givers_ = 0;              // threads in give_way(): nothing is prefetched meanwhile
  std::uint64_t headroom_ = 0;  // what take_back() leaves free for a while: givers and takers must not swing

  std::uint32_t pass_ = 1;
  StoreCounters counters_;
  std::vector<std::uint32_t> unit_pass_;    // by unit: the pass that last used this expert
  std::vector<std::uint32_t> working_set_;  // by layer: distinct experts used in this pass

  storage::Completion row_reads_;  // the executor thread's
  std::vector<storage::Read> row_batch_;
  std::vector<std::int64_t> missing_rows_;

  std::unique_ptr<TileLoader> loader_;  // last: its reads end before the memory goes
};

}  // namespace millrace::residency
