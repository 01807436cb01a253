// Where weights live and how they come: leases on tiles, under the plan's memory and never a byte more.
//
// Three kinds of memory inside the store's budget:
//   resident   tiles of units at home in RAM: loaded once, at first use or before (prefetched in pass order), kept
//   ring       tiles of ordered units at home on disk: fetched in pass order, as far ahead as slots allow; a tile
//              behind the pass's cursor is the first to leave (its next use is the farthest)
//   experts    slots of one size in a virtual range backed on demand; LRU or LFU decides who leaves
// A leased tile never moves and is never evicted. No byte is read twice in a pass. After warm-up nothing allocates.
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

/// The right to use a tile's bytes where they lie, maybe still on their way. Move-only; the destructor unpins.
class Lease {
 public:
  Lease() = default;
  Lease(Lease&& other) noexcept;
  Lease& operator=(Lease&& other) noexcept;
  ~Lease();

  bool valid() const { return store_ != nullptr; }
  /// Blocks until the bytes are there; the read's error if they cannot come. Counts the time as a stall.
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
  std::uint64_t hits = 0, misses = 0;  // experts: leases that started no read, and those that did. A miss is
                                       // counted once, by the lease that met it, however often it is leased
                                       // again while it comes
  std::uint64_t ordered_hits = 0, ordered_misses = 0;  // ordered tiles: bytes were there at lease time, or not yet
  std::uint64_t bytes_from_disk = 0;                   // weights delivered by storage
  std::uint64_t bytes_from_pack = 0;                   // of these: experts that StoreOptions::check was asked about
  std::uint64_t bytes_used = 0;                        // weights leased (the memory tier's traffic)
  std::uint64_t bytes_to_device = 0;                   // weights that crossed to a GPU
  std::uint64_t host_bytes = 0, host_ns = 0;           // beside a GPU: what the processor computed with, and how long
  std::uint64_t stall_ns = 0;                          // executor waiting for bytes
  std::uint64_t passes = 0;
  std::uint64_t evictions = 0;  // of tiles, experts' and others
  ExpertFigures experts;
  GuessFigures guesses;
};

/// Asked about every tile whose bytes have come to `slot`, from the executor's thread: an error is the read's.
using TileCheck = std::function<Status(std::int32_t tile, const std::byte* slot)>;

struct StoreOptions {
  CachePolicy policy = CachePolicy::lru;
  TileCheck check = {};
  /// By unit, the part of all passes that use it, as earlier traffic had it (usage_by_unit()): experts that are used
  /// most are read ahead while there are slots, and leave them last. Empty: nothing is known.
  std::vector<float> expected = {};
  bool poison_evicted = false;  // fills evicted memory with 0xa5 (tests, debug builds)
  /// Only experts are this store's, each in one tile; other units are elsewhere, and nobody asks for them here.
  bool experts_only = false;
  /// So many bytes of memory on a huge page's edge, which outlive the store and which their owner pays for: the store
  /// gives none of them back. Empty: memory of its own, which gives way.
  std::function<Expected<std::byte*>(std::uint64_t bytes)> memory = {};
  /// Memory of another kind than the host's, so many bytes of addresses: a slot is backed when something first comes to
  /// it, and slots for which there is no more are given up. Empty: host memory. REQUIRES: the backend reads to that
  /// kind; no poison_evicted and no check.
  std::function<Expected<std::unique_ptr<device::Range>>(std::uint64_t bytes)> range = {};
};

/// What a store of experts alone needs to hold `slots` of them in memory. Pure.
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

  /// A pass begins: the cursor goes back to the first unit and ordered prefetch starts.
  virtual void begin_pass() = 0;
  virtual void end_pass() = 0;

  /// A lease on the tile; starts its read if it is not there. Waits for a slot if all are leased or loading.
  /// Errors: internal if every slot is leased by the caller itself (it must drop one first).
  virtual Expected<Lease> lease(std::int32_t tile) = 0;
  /// The same without waiting for a slot: nullopt when none is free now. For running ahead on the router's choice.
  virtual std::optional<Lease> try_lease(std::int32_t tile) = 0;
  /// Pins the tile if its bytes are there, without that being a use: no counter and no order moves.
  virtual std::optional<Lease> borrow(std::int32_t tile) = 0;
  /// Reads an expert's tile ahead, in a free slot or that of the expert of another layer that is worth least, if it is
  /// not there and nothing that is needed now is being read. Not a use. False: the disk is busy or there is no slot;
  /// ask again. True: its read has begun, or need not.
  virtual bool prefetch(std::int32_t tile) = 0;
  /// What was guessed of a layer and came of it, for counters().
  virtual void count_guess(Guess guess, const GuessCounters& counted) = 0;
  /// True if the tile's bytes are in memory, as of the executor's last call.
  virtual bool present(std::int32_t tile) const = 0;

  /// Reads single rows of a part straight from the file (embedding rows). out: [rows.size(), row_bytes] dense.
  virtual Status read_rows(WeightRef part, std::span<const std::int64_t> rows, std::byte* out) = 0;

  /// Makes room for others: drops tables, expert slots, ring slots beyond two, then ordered tiles at home
  /// (which then stream through the ring), never a leased one, and never below what a pass needs; waits for reads ahead
  /// of the pass if it must. Returns the bytes given back to the budget. Any thread; the budget's reclaimer calls it.
  virtual std::uint64_t give_way(std::uint64_t bytes) = 0;
  /// Takes back what was given, as far as the budget has room with some to spare. begin_pass() calls it.
  virtual void take_back() = 0;
  /// Takes it back at once, whoever asked for room lately, and backs `bytes` of a range now, which otherwise happens as
  /// slots are first used. Errors: out_of_budget (there is less; what there was is backed).
  virtual Status grow(std::uint64_t bytes) = 0;
  /// Of memory that is backed now; of the host's: that is paid for.
  virtual std::uint64_t backed_bytes() const = 0;

  virtual int expert_slots() const = 0;  // now (elastic)
  /// Whether every expert has memory of its own now, so that none leaves.
  virtual bool all_experts_fit() const = 0;
  virtual StoreCounters counters() const = 0;
  /// Which experts passes have used since the start. Any thread.
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
