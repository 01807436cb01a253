// Holds weights in host memory and reads them from storage. Users lease tiles. The store never exceeds the memory that
// the plan gives it.
//
// Three kinds of memory inside the store's budget:
//   resident   tiles of units at home in RAM: loaded once, at first use or before (prefetched in pass order), kept
//   ring       tiles of ordered units at home on disk: fetched in pass order, as far ahead as slots allow; a tile
//              behind the pass's cursor is the first to leave (its next use is the farthest)
//   experts    slots of one size in a virtual range backed on demand; LRU or LFU chooses the expert to evict
// A leased tile is never moved or evicted. No byte is read twice in a pass. After warm-up nothing allocates.
//
// Thread-safety: one executor thread calls begin_pass, lease, try_lease, end_pass and drops Leases; counters() and the
// budget's give-way may come from any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "device/range.h"
#include "residency/budget.h"
#include "residency/expert_meter.h"
#include "residency/guesses.h"
#include "residency/plan.h"
#include "residency/slot_table.h"
#include "residency/unit.h"
#include "storage/storage.h"

namespace millrace::residency {

class WeightStore;

/// The right to use a tile's bytes in place; their read may still be in flight. Move-only; the destructor unpins.
class Lease {
 public:
  Lease() = default;
  Lease(Lease&& other) noexcept;
  Lease& operator=(Lease&& other) noexcept;
  ~Lease();

  bool valid() const { return store_ != nullptr; }
  /// Blocks until the bytes have been read; returns the error if the read fails. Counts the time as a stall.
  Status wait();
  bool ready() const;
  /// Bytes of rows [row_begin, row_end) of segment `i` of the tile. REQUIRES: wait() returned ok.
  const std::byte* segment(std::size_t i) const;
  std::int32_t tile() const { return tile_; }

 private:
  friend class WeightStore;
  WeightStore* store_ = nullptr;
  std::int32_t tile_ = -1;
};

struct StoreCounters {
  std::uint64_t hits = 0, misses = 0;  // experts: leases that started no read, and those that did. Further leases
                                       // of an expert whose read is in flight do not count as misses
  std::uint64_t ordered_hits = 0, ordered_misses = 0;  // ordered tiles: bytes were there at lease time, or not yet
  std::uint64_t bytes_from_disk = 0;                   // weights delivered by storage
  std::uint64_t bytes_from_pack = 0;                   // of these: experts that StoreOptions::check was asked about
  std::uint64_t bytes_used = 0;                        // weights leased (the memory tier's traffic)
  std::uint64_t bytes_to_device = 0;                   // weights that crossed to a GPU
  std::uint64_t host_bytes = 0, host_ns = 0;           // beside a GPU: what the processor computed with, and how long
  std::uint64_t row_hits = 0, row_misses = 0;          // rows of begin_rows(): those that were kept, and those read
  std::uint64_t stall_ns = 0;                          // executor waiting for bytes
  std::uint64_t passes = 0;
  std::uint64_t evictions = 0;  // of tiles, experts' and others
  ExpertFigures experts;
  GuessFigures guesses;
};

/// Called from the executor's thread for every tile that was read into `slot`; its error becomes the read's error.
using TileCheck = std::function<Status(std::int32_t tile, const std::byte* slot)>;

struct StoreOptions {
  CachePolicy policy = CachePolicy::lru;
  TileCheck check = {};
  /// By unit, the fraction of passes that used it in earlier traffic (usage_by_unit()): the most used experts are read
  /// ahead while slots are free, and are evicted last. Empty: unknown.
  std::vector<float> expected = {};
  bool poison_evicted = false;  // fills evicted memory with 0xa5 (tests, debug builds)
  /// This store holds only experts, each in one tile; other units are elsewhere and never leased from this store.
  bool experts_only = false;
  /// Memory for the slots, aligned to a huge page. It outlives the store, and its owner has reserved it: the store
  /// never shrinks it. Empty: the store allocates memory, which can shrink.
  std::function<Expected<std::byte*>(std::uint64_t bytes)> memory = {};
  /// A range of addresses of device memory: a slot is backed when it is first used, and slots that cannot be backed are
  /// given up. Empty: host memory. REQUIRES: the backend reads into that kind of memory; no poison_evicted and no
  /// check.
  std::function<Expected<std::unique_ptr<device::Range>>(std::uint64_t bytes)> range = {};
};

/// The plan of a store that holds only experts, `slots` of them in memory. Pure.
Plan expert_store_plan(const UnitTable& units, int slots);
/// Bytes of memory of one of its slots.
std::uint64_t expert_slot_bytes(const UnitTable& units);

class WeightStore {
 public:
  /// Reserves the plan's weight memory under the tag "weights". `units` and `backend` outlive the store.
  /// Errors: out_of_budget.
  static Expected<std::unique_ptr<WeightStore>> create(const UnitTable& units, const Plan& plan,
                                                       storage::Backend& backend, Budget& budget,
                                                       const StoreOptions& options);
  virtual ~WeightStore() = default;

  /// Begins a pass: resets the cursor to the first unit and starts the ordered prefetch.
  virtual void begin_pass() = 0;
  virtual void end_pass() = 0;

  /// Leases the tile, and starts its read if it is not in memory. Waits for a slot if all are leased or loading.
  /// Errors: internal if the caller itself leases every slot (it must drop one first).
  virtual Expected<Lease> lease(std::int32_t tile) = 0;
  /// The same without waiting for a slot: nullopt if none is free now. Used to read ahead what the router chose.
  virtual std::optional<Lease> try_lease(std::int32_t tile) = 0;
  /// Pins the tile if it is in memory, without counting as a use: counters and the eviction order do not change.
  virtual std::optional<Lease> borrow(std::int32_t tile) = 0;
  /// Prefetches an expert's tile into a free slot, or into the slot of the least valuable expert of another layer,
  /// unless the tile is in memory or a read that is needed now is in flight. Does not count as a use. False: the disk
  /// is busy or there is no slot; call again later. True: the read has begun or is not needed.
  virtual bool prefetch(std::int32_t tile) = 0;
  /// Adds the outcome of guesses of one kind to counters().
  virtual void count_guess(Guess guess, const GuessCounters& counted) = 0;
  /// True if the tile's bytes are in memory, as of the executor's last call.
  virtual bool present(std::int32_t tile) const = 0;

  /// Reads single rows of a part straight from the file (embedding rows). out: [rows.size(), row_bytes] dense.
  virtual Status read_rows(WeightRef part, std::span<const std::int64_t> rows, std::byte* out) = 0;
  /// The same of a table of which tokens read several rows (Unit::rows_of_token), without waiting: as many reads as
  /// there is memory for are in flight, and later calls of lease() start the next ones. `rows` and `out` outlive the
  /// reading. Errors: invalid_argument; internal (another such reading is unfinished).
  virtual Status begin_rows(WeightRef part, std::span<const std::int64_t> rows, std::byte* out) = 0;
  /// Waits for all of them. Errors: io_error.
  virtual Status finish_rows() = 0;

  /// Frees memory for other holders: drops tables, expert slots, ring slots beyond two, then resident ordered tiles
  /// (which then stream through the ring). Never drops a leased tile or what a pass needs; waits for prefetches if it
  /// must. Returns the bytes that it gave back to the budget. Any thread; the budget's reclaimer calls it.
  virtual std::uint64_t give_way(std::uint64_t bytes) = 0;
  /// Takes back memory that give_way() freed, as far as the budget has room and a margin. begin_pass() calls it.
  virtual void take_back() = 0;
  /// Takes it back at once, even if another holder asked for room recently, and backs `bytes` of a range now instead of
  /// at the first use of its slots. Errors: out_of_budget (less was available; that much is backed).
  virtual Status grow(std::uint64_t bytes) = 0;
  /// Bytes of device memory that are backed now; for host memory, the bytes reserved.
  virtual std::uint64_t backed_bytes() const = 0;

  virtual int expert_slots() const = 0;  // now (elastic)
  /// Whether every expert has a slot now, so that none is evicted.
  virtual bool all_experts_fit() const = 0;
  virtual StoreCounters counters() const = 0;
  /// How often passes have used each expert since the start. Any thread.
  virtual ExpertUsage expert_usage() const = 0;
  virtual const UnitTable& units() const = 0;

 protected:
  friend class Lease;
  virtual Status wait(std::int32_t tile) = 0;
  virtual bool ready(std::int32_t tile) const = 0;
  virtual const std::byte* segment(std::int32_t tile, std::size_t i) const = 0;
  virtual void unpin(std::int32_t tile) = 0;
  Lease make_lease(std::int32_t tile);
};

}  // namespace millrace::residency
