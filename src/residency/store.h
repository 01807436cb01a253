// The implementation of the weight store: one table of tiles, and the parts that hold, read and evict them (memory,
// loader, ring, expert cache). weight_store.h is the contract.
//
// Threads: the executor thread calls everything except counters(), give_way() and expert_slots(), which any thread may
// call; storage threads touch only Completions. One mutex guards all state; it is never held while waiting for a read.
// Only the executor thread starts loads, so a load that it waits for without the mutex is not reused for another tile;
// a thread in give_way() may at worst wait for a later use of the same load.
// Lock order: the budget's reclaim lock, this mutex, the budget's lock.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "base/mutex.h"
#include "residency/ordered_ring.h"
#include "residency/policy_choice.h"
#include "residency/row_cache.h"
#include "residency/slot_table.h"
#include "residency/tile_loader.h"
#include "residency/tile_state.h"
#include "residency/weight_memory.h"
#include "residency/weight_store.h"

namespace millrace::residency {

constexpr int kLeastRing = 2;  // slots: one tile is computed while the next is read

class Store final : public WeightStore {
 public:
  Store(const UnitTable& units, const Plan& plan, storage::Backend& backend, Budget& budget, StoreOptions options);
  ~Store() override;
  /// Lays out the memory and reserves it. Call once, before anything else.
  Status open() MR_NO_THREAD_SAFETY_ANALYSIS;  // like all of the set-up: no other thread has the store yet

  void begin_pass() override;
  void end_pass() override;
  Expected<Lease> lease(std::int32_t tile) override;
  std::optional<Lease> try_lease(std::int32_t tile) override;
  std::optional<Lease> borrow(std::int32_t tile) override;
  bool prefetch(std::int32_t tile) override;
  void count_guess(Guess guess, const GuessCounters& counted) override;
  bool present(std::int32_t tile) const override;
  Status read_rows(WeightRef part, std::span<const std::int64_t> rows, std::byte* out) override;
  Status begin_rows(WeightRef part, std::span<const std::int64_t> rows, std::byte* out) override;
  Status finish_rows() override;
  std::uint64_t give_way(std::uint64_t bytes) override;
  void take_back() override;
  Status grow(std::uint64_t bytes) override;
  std::uint64_t backed_bytes() const override;
  int expert_slots() const override;
  bool all_experts_fit() const override;
  StoreCounters counters() const override;
  ExpertUsage expert_usage() const override;
  const UnitTable& units() const override { return units_; }

 protected:
  Status wait(std::int32_t tile) override;
  bool ready(std::int32_t tile) const override;
  /// Called without the mutex, for a tile that the caller has pinned, so that its memory cannot change.
  const std::byte* segment(std::int32_t tile, std::size_t i) const override MR_NO_THREAD_SAFETY_ANALYSIS;
  void unpin(std::int32_t tile) override;

 private:
  using Piece = WeightMemory::Piece;

  // Setting up (weight_store.cpp).
  Status check_plan() const;
  bool map_in_place() MR_NO_THREAD_SAFETY_ANALYSIS;
  void place_tiles() MR_NO_THREAD_SAFETY_ANALYSIS;
  void lay_out() MR_NO_THREAD_SAFETY_ANALYSIS;
  void set_up_counters() MR_NO_THREAD_SAFETY_ANALYSIS;
  void expect_experts() MR_NO_THREAD_SAFETY_ANALYSIS;
  std::vector<std::int32_t> ordered_sequence() const;

  // Moving tiles (store.cpp). block_on() releases the mutex while it waits.
  bool available(const TileState& state) const;
  bool by_rows_only(std::int32_t tile) const MR_REQUIRES(mutex_);
  bool start(std::int32_t tile, bool demand) MR_REQUIRES(mutex_);
  bool room_for_expert(bool demand) MR_REQUIRES(mutex_);
  bool slot_for_expert(std::int32_t tile, bool demand) MR_REQUIRES(mutex_);
  bool room_ahead(int layer) MR_REQUIRES(mutex_);
  bool disk_idles() const MR_REQUIRES(mutex_);
  std::int32_t ring_slot_for(bool demand) MR_REQUIRES(mutex_);
  /// The unit whose first tile this is, if the unit is an expert; otherwise -1.
  std::int32_t expert_of(std::int32_t tile) const {
    const std::int32_t unit = units_.tiles()[static_cast<std::size_t>(tile)].unit;
    const bool expert = units_.units()[static_cast<std::size_t>(unit)].kind == UnitKind::expert;
    return expert && units_.tiles_of(unit).first == tile ? unit : -1;
  }
  void evict(std::int32_t tile) MR_REQUIRES(mutex_);
  void leave_slot(std::int32_t tile, bool fetch_again) MR_REQUIRES(mutex_);
  void finish_loads() MR_REQUIRES(mutex_);
  void finished(std::int32_t tile, const Status& read) MR_REQUIRES(mutex_);
  void advance() MR_REQUIRES(mutex_);
  void warm_up() MR_REQUIRES(mutex_);
  void read_learned() MR_REQUIRES(mutex_);
  std::int32_t load_to_wait_for(Place place) const MR_REQUIRES(mutex_);
  void block_on(std::int32_t load) MR_REQUIRES(mutex_);
  void grant(std::int32_t tile, bool was_ready, bool started) MR_REQUIRES(mutex_);
  const std::byte* present_row(WeightRef ref, std::int64_t row) const MR_REQUIRES(mutex_);
  void submit_rows() MR_REQUIRES(mutex_);
  void take_rows() MR_REQUIRES(mutex_);
  std::string describe(std::int32_t tile) const;

  // Elasticity (store_elastic.cpp).
  bool idle(std::int32_t tile) const MR_REQUIRES(mutex_) {
    return tiles_[tile].pins == 0 && tiles_[tile].status != TileStatus::loading;
  }
  bool gave_enough(std::uint64_t bytes) const MR_REQUIRES(mutex_) {
    return memory_.paid_bytes() >= memory_.used_bytes() + bytes;
  }
  void drop_expert_slots(std::uint64_t bytes) MR_REQUIRES(mutex_);
  void drop_ring_slots(std::uint64_t bytes, int keep) MR_REQUIRES(mutex_);
  void drop_homes(std::uint64_t bytes, std::size_t keep) MR_REQUIRES(mutex_);
  void drop_ordered_homes(std::uint64_t bytes) MR_REQUIRES(mutex_);
  std::int32_t unclaimed_load() const MR_REQUIRES(mutex_);
  void make_resident(std::size_t order) MR_REQUIRES(mutex_);
  void make_streamed(std::size_t order) MR_REQUIRES(mutex_);
  bool room_for(std::uint64_t bytes) const MR_REQUIRES(mutex_);
  void take_back_homes(std::size_t end) MR_REQUIRES(mutex_);
  void take_back_from_ring() MR_REQUIRES(mutex_);
  void close_ring() MR_REQUIRES(mutex_);
  void take_back_slots() MR_REQUIRES(mutex_);
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
  std::size_t slotted_experts_ = 0;  // that have no home

  mutable Mutex mutex_;  // also guards *loader_, except TileLoader::wait_for() and done()
  std::vector<TileState> tiles_ MR_GUARDED_BY(mutex_);
  std::map<std::int32_t, Status> failures_ MR_GUARDED_BY(mutex_);  // of failed tiles
  WeightMemory memory_ MR_GUARDED_BY(mutex_);
  Status refused_ MR_GUARDED_BY(mutex_);            // why a range backed no more slots
  std::vector<Piece> homes_ MR_GUARDED_BY(mutex_);  // by tile; empty for tiles that never are resident
  // Resident tiles in the order of their addresses; the last ones are evicted first.
  std::vector<std::int32_t> home_order_ MR_GUARDED_BY(mutex_);
  std::size_t homes_fixed_ = 0;                       // the number of leading tiles that are never evicted
  std::size_t homes_ordered_ = 0;                     // tiles from this index on belong to tables read by rows
  std::size_t homes_live_ MR_GUARDED_BY(mutex_) = 0;  // the number of leading tiles that are resident now
  std::uint64_t ring_offset_ = 0, ring_slot_bytes_ = 0, expert_offset_ = 0, address_bytes_ = 0;
  Piece row_scratch_ MR_GUARDED_BY(mutex_);
  std::unique_ptr<OrderedRing> ring_ MR_PT_GUARDED_BY(mutex_);
  std::unique_ptr<SlotTable> experts_ MR_PT_GUARDED_BY(mutex_);    // keys are tiles
  std::unique_ptr<PolicyChoice> choice_ MR_PT_GUARDED_BY(mutex_);  // null: the policy was given
  ExpertMeter meter_ MR_GUARDED_BY(mutex_);
  std::vector<std::int32_t> warm_ MR_GUARDED_BY(mutex_);  // tiles to load once before they are asked for
  std::size_t warm_next_ MR_GUARDED_BY(mutex_) = 0;
  std::vector<std::int32_t> learned_ MR_GUARDED_BY(mutex_);  // tiles of experts, the likeliest first: as many as slots
  std::size_t learned_next_ MR_GUARDED_BY(mutex_) = 0;
  int givers_ MR_GUARDED_BY(mutex_) = 0;  // threads in give_way(); nothing is prefetched while there are any
  // The margin that take_back() leaves free for a while, so that giving and taking do not oscillate.
  std::uint64_t headroom_ MR_GUARDED_BY(mutex_) = 0;

  std::uint32_t pass_ MR_GUARDED_BY(mutex_) = 1;
  StoreCounters counters_ MR_GUARDED_BY(mutex_);

  /// Rows that are read while other weights are computed.
  struct RowsAhead {
    WeightRef part;
    std::span<const std::int64_t> rows;
    std::byte* out = nullptr;
    std::size_t next = 0;  // the first of them that was not asked for yet
    bool unfinished = false, in_flight = false;
    Status status;
    std::vector<storage::Read> reads;
    std::vector<std::size_t> places;  // of each read: the number of its row
  };
  RowsAhead ahead_ MR_GUARDED_BY(mutex_);
  storage::Completion ahead_reads_;
  Piece ahead_scratch_ MR_GUARDED_BY(mutex_), row_cache_memory_ MR_GUARDED_BY(mutex_);
  RowCache row_cache_ MR_GUARDED_BY(mutex_);
  WeightRef cached_part_ MR_GUARDED_BY(mutex_);  // whose rows the cache has

  storage::Completion row_reads_;  // the executor thread's
  std::vector<storage::Read> row_batch_;
  std::vector<std::int64_t> missing_rows_;

  std::unique_ptr<TileLoader> loader_;  // the last member: its reads must end before the memory is freed
};

}  // namespace millrace::residency
