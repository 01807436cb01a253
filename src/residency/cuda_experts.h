// A mixture's experts beside one GPU that has no room for all of them: all of them on the disk, many of them in
// page-locked RAM (a WeightStore of experts alone), some in slots of the GPU's memory. The trunk is in VRAM.
//
// Which experts have slots changes between passes only, so that a pass sees one table of addresses from its begin to
// its end, on the device as on the host. An expert without a slot is computed with in one of two ways:
//   few rows   by the processor, where it lies in RAM; and some of them by the GPU, which reads those across the link
//              where they lie, so that link and processor end together. What a router calls for again and again is
//              copied to a slot meanwhile, and is there from the next pass on.
//   many rows  by the GPU. A layer's experts cross in waves of neighbours, through rooms of device memory that are
//              filled ahead of the launches; those with slots do not cross. While slots are free they are filled.
// Beside the slots of the plan there are more in memory that KV does not need yet. They come into use when the others
// are taken, and go when KV grows. An expert without a slot has an address all the same, that of zeros: launches need
// no case for it, and what they make of it is overwritten by whoever computes in their place.
//
// Thread-safety: one thread at a time calls. That of a pass hands over to that of the processor's share and takes back
// with the share's own synchronisation (exec/cuda_exchange.h). add_to() may be called from any thread.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "device/cuda_runtime.h"
#include "residency/budget.h"
#include "residency/cuda_copies.h"
#include "residency/cuda_spare_slots.h"
#include "residency/cuda_weights.h"
#include "residency/expert_meter.h"
#include "residency/placement.h"
#include "residency/slot_table.h"
#include "residency/unit.h"
#include "residency/weight_store.h"
#include "storage/storage.h"

namespace millrace::residency {

class DeviceExperts {
 public:
  /// Reads nothing yet: experts come to RAM as they are called for, and behind the passes. While one waits for that,
  /// on_load is told how far all that belong there are, from the thread of begin_pass() (false then ends the pass).
  /// REQUIRES: each expert is one tile; the placement of the weights that `table` is of has experts at home outside
  /// VRAM. All outlive the object. check: of what comes to RAM, as StoreOptions::check; may be empty. expected: as
  /// StoreOptions::expected, of RAM as of slots. Errors: out_of_budget, io_error, internal.
  static Expected<std::unique_ptr<DeviceExperts>> create(const UnitTable& units, const ExpertTiers& tiers,
                                                         const AddressTable& table, storage::Backend& backend,
                                                         Budget& vram, Budget& ram, OnLoad on_load, TileCheck check,
                                                         const std::vector<float>& expected);
  ~DeviceExperts();
  DeviceExperts(const DeviceExperts&) = delete;
  DeviceExperts& operator=(const DeviceExperts&) = delete;

  /// Slots that were filled become visible, others are freed for those to come. What is launched on `compute` from here
  /// on sees the new table. REQUIRES: the pass before has ended on the device.
  Status begin_pass(cudaStream_t compute);
  /// All launches of the pass are made, or it has failed.
  void end_pass();
  /// Slots beyond the plan's go, the last ones first, until `bytes` are free. Between passes only. Returns what was
  /// freed.
  std::uint64_t give_way(std::uint64_t bytes);

  // --- Few rows ---

  /// The router has called for the expert. True: it has a slot in this pass.
  bool use(std::int32_t unit);
  bool has_slot(std::int32_t unit) const { return visible_[static_cast<std::size_t>(key_of(unit))]; }
  /// Whether RAM has room for all experts, so that each is read once.
  bool all_in_ram() const { return static_cast<std::size_t>(tiers_.ram_slots) >= visible_.size(); }
  /// Which of a layer's experts without slots the GPU reads where they lie, for the rule of claim_experts(): addresses,
  /// on the device, of those that lie in RAM for good. Only where all experts have slots there.
  const std::byte* const* in_ram(std::int32_t first_unit) const { return device_in_ram_ + mirror_of(first_unit); }
  bool lies_in_ram(std::int32_t unit) const { return in_ram_[mirror_of(unit)] != nullptr; }
  /// The GPU has read it there.
  void read_in_ram(std::int32_t unit) { copied_bytes_ += units_.units()[static_cast<std::size_t>(unit)].bytes(); }
  /// The present pass's tiers of experts, for a route bias: of each unit from first_unit on the number of its tier,
  /// counted from the slowest, on the device. As of begin_pass(). REQUIRES: tell_tiers() before.
  const std::uint8_t* tiers(std::int32_t first_unit) const { return device_near_ + key_of(first_unit); }
  /// The fastest tier's number: a slot's. 1 where RAM has room for all experts, so that none is on the disk for good.
  std::int32_t fastest_tier() const { return all_in_ram() ? 1 : 2; }
  /// From here on begin_pass() finds the tiers.
  void tell_tiers() { tells_tiers_ = true; }
  const LinkShare& link() const { return tiers_.link; }
  const std::byte* absent() const { return arena_.data(); }
  /// Device memory for a layer's table of addresses, [experts, parts].
  const std::byte** claimed() const { return claimed_; }
  std::int32_t parts_of_expert() const { return static_cast<std::int32_t>(parts()); }
  /// Leases in RAM; see WeightStore.
  WeightStore& store() { return *store_; }
  /// A router has called for the expert, which has no slot. True: it is worth one, and one is free.
  bool wants(std::int32_t unit);
  /// Orders its copy to a slot, without a call of the driver. Takes the lease, which ends once nothing reads. A copy
  /// that fails says so in begin_pass(). REQUIRES: wants(), the bytes are there.
  void offer(std::int32_t unit, Lease lease);

  // --- Many rows ---

  /// Experts of a layer, [first_unit, first_unit + count), and vectors of the trunk that have a row for each of them
  /// (biases, scales; none() where there is none).
  struct Layer {
    std::int32_t first_unit = 0, count = 0;
    WeightRef biases[kExpertBiases];
  };
  /// Experts [first, first + count) of the layer. entries: on the device, of each expert's parts one after the other,
  /// then of the rows of its biases from `first` on.
  struct Wave {
    std::int32_t first = 0, count = 0;
    const std::byte* const* entries = nullptr;
    const std::byte* const* bias(int i) const { return entries + parts * count + i; }
    std::int32_t parts = 0;
  };
  /// The layers whose experts this pass calls for, in order. Copies begin.
  void begin_waves(std::vector<Layer> layers);
  /// The next wave of the pass. What is launched on `compute` from here on finds it. Errors: io_error, corrupt,
  /// cancelled.
  Expected<Wave> acquire(cudaStream_t compute, const std::function<bool()>& cancelled);
  /// Whether the wave that was acquired last was its layer's last.
  bool layer_ended() const { return next_.first == 0; }
  /// All launches that use the wave are on `compute`.
  Status let_go(cudaStream_t compute, const std::function<bool()>& cancelled);

  /// Adds what experts have done since the start: figures of slots in passes of few rows (a use is an expert of a
  /// layer, once a pass); bytes to slots, through the rooms, and read in RAM by the GPU; reads and stalls of the store
  /// in RAM.
  void add_to(StoreCounters& counters) const;
  /// As WeightStore::expert_usage(), of passes of few rows.
  ExpertUsage usage() const;

 private:
  DeviceExperts(const UnitTable& units, const ExpertTiers& tiers, const AddressTable& table, OnLoad on_load);

  /// Where a wave stands in a pass.
  struct At {
    std::size_t layer = 0;   // index into layers_
    std::int32_t first = 0;  // expert
  };
  /// Its leases, by expert; empty for those that do not cross, and those that are still to be taken.
  struct LeasedWave {
    At at;
    std::vector<Lease> leases;
  };
  /// Device memory of a wave, and the table of its addresses.
  struct Room {
    std::byte* memory = nullptr;
    const std::byte** device_table = nullptr;
    const std::byte** host_table = nullptr;
    std::vector<Lease> leases;  // of the copies to it
    device::Event filled, used;
  };
  /// On its way to a slot. The lease ends with the copy, the rest with the pass.
  struct Coming {
    std::int32_t unit = -1;
    Lease lease;
    device::Event arrived;
    std::uint64_t number = 0;  // of the event in copies_
  };
  /// The device's table of a layer's experts: units [first_unit, first_unit + count).
  struct Entries {
    std::int32_t first_unit = 0, count = 0;
    std::size_t mirror = 0;  // its first one in tables_
    bool dirty = true;       // not yet the device's
  };

  Status open(storage::Backend& backend, Budget& vram, Budget& ram, TileCheck check,
              const std::vector<float>& expected);
  void index_experts();
  Status lay_out();
  bool crosses(std::int32_t unit) const { return slots_.slot_of(key_of(unit)) < 0; }
  std::int32_t wave_count(At at) const;
  At after(At at) const;
  bool ended(At at) const { return at.layer >= layers_.size(); }
  bool lease_ahead();
  Status await_bytes(Lease& lease, const std::function<bool()>& cancelled);
  Status fill_next(const std::function<bool()>& cancelled);
  Status fill(LeasedWave& wave, Room& room, const std::function<bool()>& cancelled);
  Status send_to_slot(std::int32_t unit, Lease lease);
  template <typename Copy>
  void for_each_stretch(const Lease& lease, std::int32_t unit, std::byte* to, Copy copy);
  Status copy(const Lease& lease, std::int32_t unit, std::byte* to);
  Coming& take_slot(std::int32_t unit, Lease lease);
  bool arrived(const Coming& coming) const;
  void let_leases_go();
  void take_arrivals();
  void free_some_slots();
  void use_spare_memory();
  void leave_slot(std::int32_t key);
  /// first: where the unit's slot begins; null: it has none.
  void set_entries(std::int32_t unit, const std::byte* first);
  /// Where the segment of an expert's tile lies in a slot.
  std::uint64_t offset_in_slot(const Segment& segment) const {
    return as_in_ram_ ? segment.slot_offset : part_offset_[static_cast<std::size_t>(segment.part)];
  }
  const Tile& tile(std::int32_t unit) const { return units_.tiles()[static_cast<std::size_t>(tile_of(unit))]; }
  Status find_in_ram(cudaStream_t compute);
  Status find_tiers(cudaStream_t compute);
  /// Index of the unit's part 0 among all experts' parts.
  std::size_t mirror_of(std::int32_t unit) const {
    const Entries& entries = entries_[static_cast<std::size_t>(entries_of_[static_cast<std::size_t>(unit)])];
    return entries.mirror + static_cast<std::size_t>(unit - entries.first_unit) * parts();
  }
  std::byte* slot_at(std::int32_t slot) const {
    if (slot >= tiers_.vram_slots) return spare_->slot(slot - tiers_.vram_slots);
    return slots_memory_ + static_cast<std::uint64_t>(slot) * slot_bytes_;
  }
  std::int32_t key_of(std::int32_t unit) const { return key_of_[static_cast<std::size_t>(unit)]; }
  std::int32_t tile_of(std::int32_t unit) const { return units_.tiles_of(unit).first; }
  std::size_t parts() const { return part_offset_.size() - 1; }

  const UnitTable& units_;
  const ExpertTiers tiers_;
  const AddressTable& table_;
  std::vector<std::uint64_t> part_offset_;  // of parts that lie on edges; the last is the size of all
  bool as_in_ram_ = true;                   // slots are laid out as in RAM, so that an expert is one copy
  std::uint64_t slot_bytes_ = 0;
  std::vector<std::int32_t> key_of_;      // by unit; -1: no expert
  std::vector<std::int32_t> unit_of_;     // by key
  std::vector<std::int32_t> entries_of_;  // by unit: index into entries_
  std::vector<Entries> entries_;
  std::size_t mirrored_ = 0;  // addresses in the mirror

  Reservation vram_reservation_, ram_reservation_;
  Budget* asks_ = nullptr;             // whose reclaimer this is
  std::unique_ptr<SpareSlots> spare_;  // null: the plan's slots are all
  device::PinnedBuffer memory_;        // the store's
  std::unique_ptr<WeightStore> store_;
  device::DeviceBuffer arena_;   // zeros, slots, rooms, tables of waves
  device::PinnedBuffer tables_;  // what tables are copied from: all experts' entries, and the waves'
  std::byte* slots_memory_ = nullptr;
  std::byte* device_memory_ = nullptr;         // memory_ as the device sees it
  const std::byte** device_in_ram_ = nullptr;  // as the mirror
  const std::byte** claimed_ = nullptr;        // [most experts of a layer, parts]
  const std::byte** in_ram_ = nullptr;         // page-locked, as the mirror
  std::uint8_t* device_near_ = nullptr;        // by key: its tier in this pass
  std::uint8_t* near_ = nullptr;               // page-locked, likewise
  bool tells_tiers_ = false;
  std::vector<std::int32_t> not_in_ram_;  // units that are still to come there for good
  device::Stream copy_;
  std::unique_ptr<CopyQueue> copies_;  // of few rows, on copy_

  SlotTable slots_;
  std::vector<bool> visible_;  // by key: its slot is in the device's table
  std::vector<Coming> coming_;
  std::vector<device::Event> events_;      // for others to come
  double least_worth_ = 0;                 // of those in slots when the pass began
  std::size_t offered_ = 0, refused_ = 0;  // in this pass: copied, and worth it but without a slot
  std::size_t reserved_ = 0;               // free slots, for those that are worth more than who left them

  std::vector<Layer> layers_;  // of this pass's waves
  At leased_to_, next_;        // the wave whose leases are to be taken next; that to be acquired next
  std::deque<LeasedWave> leased_;
  std::array<Room, kExpertRooms> rooms_;
  std::uint64_t filled_ = 0, acquired_ = 0, let_go_ = 0;  // waves, in this pass
  bool waves_ = false;

  const OnLoad on_load_;
  std::uint64_t all_bytes_ = 0;  // that belong into RAM
  bool told_ = false;            // on_load_, in this pass
  std::chrono::steady_clock::time_point told_at_;

  std::atomic<std::uint64_t> copied_bytes_{0};
  mutable Mutex meter_mutex_;
  ExpertMeter meter_ MR_GUARDED_BY(meter_mutex_);
};

}  // namespace millrace::residency
