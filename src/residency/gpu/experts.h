// The experts of a mixture whose GPU has no room for all of them: all experts are on the disk, many of them in
// page-locked RAM (a WeightStore of experts), some in slots of the GPU's memory. The trunk is in VRAM. The same for
// several GPUs that share the rows of each expert: all have slots for the same experts, each for its rows.
//
// The experts in slots change only between passes, so that a pass sees one table of addresses from its begin to its
// end, on the devices and on the host. An expert without a slot is computed in one of two ways:
//   few rows   on the CPU, in place in RAM; and some experts on the GPU, which reads them across the link, so that link
//   and
//              CPU finish together. An expert that a router chooses repeatedly is copied to a slot meanwhile, and is
//              used there from the next pass on.
//   many rows  on the GPU. A layer's experts cross in waves of neighbours, through two buffers of device memory that
//   are
//              filled ahead of the launches; experts with slots do not cross. Free slots are filled on the way.
// Beside the slots of the plan, there are more in memory that KV does not need yet. They are used when the others are
// taken, and freed when KV grows. An expert without a slot has the address of a block of zeros, so that launches need
// no special case; their result is overwritten by the device that computes the expert.
//
// Thread-safety: one thread at a time calls. A pass's thread hands over to the thread of the CPU's share, and back, by
// the share's synchronisation (exec/gpu/exchange.h). Between begin_pass() and end_pass(), each GPU's thread may publish
// to it and bring its waves. Any thread may call add_to().
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "device/device.h"
#include "residency/budget.h"
#include "residency/expert_meter.h"
#include "residency/gpu/expert_slots.h"
#include "residency/gpu/weights.h"
#include "residency/placement.h"
#include "residency/slot_table.h"
#include "residency/unit.h"
#include "residency/weight_store.h"
#include "storage/storage.h"

namespace millrace::residency {

class DeviceExperts {
 public:
  /// Reads nothing yet: experts come to RAM as they are called for, and behind the passes. While one waits for that,
  /// on_load is told how far all that belong there are, from the thread of a pass (false then ends the pass).
  /// units: all rows, which lie in RAM. gpus: one with those units, or several with rows of each.
  /// REQUIRES: each expert is one tile; the placement of the weights that a GPU's `table` is of has experts at home
  /// outside VRAM. All outlive the object. check: of what comes to RAM, as StoreOptions::check; may be empty.
  /// expected: as StoreOptions::expected, of RAM as of slots. Errors: out_of_budget, io_error, internal.
  static Expected<std::unique_ptr<DeviceExperts>> create(const UnitTable& units, const ExpertTiers& tiers,
                                                         const std::vector<ExpertGpu>& gpus, storage::Backend& backend,
                                                         Budget& ram, OnLoad on_load, TileCheck check,
                                                         const std::vector<float>& expected);
  ~DeviceExperts();
  DeviceExperts(const DeviceExperts&) = delete;
  DeviceExperts& operator=(const DeviceExperts&) = delete;

  /// Slots that were filled become visible, others are freed for those to come. REQUIRES: the pass before has ended on
  /// all devices.
  Status begin_pass();
  /// What is launched on `compute` of that GPU (its place in `gpus`) from here on sees the new table.
  Status publish(std::size_t gpu, device::StreamRef compute) { return gpus_[gpu]->publish(compute); }
  /// Called when all launches of the pass have ended, or the pass has failed.
  void end_pass();
  /// Frees slots beyond the plan's, the last ones first, until `bytes` are free. Only between passes. Returns the bytes
  /// freed.
  std::uint64_t give_way(std::uint64_t bytes);

  // --- Few rows ---

  /// Records that a router chose the expert. True: the expert has a slot in this pass.
  bool use(std::int32_t unit);
  bool has_slot(std::int32_t unit) const { return visible_[static_cast<std::size_t>(key_of(unit))]; }
  /// Whether RAM has room for all experts, so that each is read once.
  bool all_in_ram() const { return static_cast<std::size_t>(tiers_.ram_slots) >= visible_.size(); }
  /// What a GPU's launches read: addresses in its memory, and of a layer's experts those that it may read where they
  /// lie in RAM for good, for the rule of claim_experts(). Only where all experts have slots there.
  const ExpertSlots& gpu(std::size_t gpu) const { return *gpus_[gpu]; }
  std::size_t gpus() const { return gpus_.size(); }
  /// The units with all rows of the experts, as in RAM.
  const UnitTable& units() const { return units_; }
  bool lies_in_ram(std::int32_t unit) const { return gpus_.front()->lies_in_ram(unit); }
  /// The GPUs have read it there.
  void read_in_ram(std::int32_t unit) { bytes_read_in_ram_ += units_.units()[static_cast<std::size_t>(unit)].bytes(); }
  const LinkShare& link() const { return tiers_.link; }
  std::int32_t parts_of_expert() const { return static_cast<std::int32_t>(index_.parts()); }
  /// Leases in RAM; see WeightStore.
  WeightStore& store() { return *store_; }
  /// Whether an expert without a slot, which a router chose, is worth one, and one is free.
  bool wants(std::int32_t unit);
  /// Orders its copy to a slot, without a call of the driver. Takes the lease, which ends once nothing reads. A copy
  /// that fails says so in begin_pass(). REQUIRES: wants(), the bytes are there.
  void offer(std::int32_t unit, Lease lease);

  // --- Many rows: each GPU brings its waves, from a thread of its own (expert_waves.cpp) ---

  /// Of the trunk a vector that has elements for each of a layer's experts, `stride` floats apart.
  struct OfEach {
    WeightRef ref;  // none() where there is none
    std::int64_t stride = 1;
  };
  /// Experts of a layer, [first_unit, first_unit + count), their biases and scales.
  struct Layer {
    std::int32_t first_unit = 0, count = 0;
    OfEach biases[kExpertBiases];
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
  void begin_waves(std::size_t gpu, std::vector<Layer> layers);
  /// The next wave of the pass. What is launched on `compute` from here on finds it. Errors: io_error, corrupt,
  /// cancelled.
  Expected<Wave> acquire(std::size_t gpu, device::StreamRef compute, const std::function<bool()>& cancelled);
  /// Whether the wave that was acquired last was its layer's last.
  bool layer_ended(std::size_t gpu) const { return waves_[gpu].next.first == 0; }
  /// Declares that all launches that use the wave are on `compute`.
  Status let_go(std::size_t gpu, device::StreamRef compute, const std::function<bool()>& cancelled);

  /// Adds what experts have done since the start: figures of slots in passes of few rows (a use is an expert of a
  /// layer, once a pass); bytes to slots, through the rooms, and read in RAM by the GPUs; reads and stalls of the store
  /// in RAM.
  void add_to(StoreCounters& counters) const;
  /// As WeightStore::expert_usage(), of passes of few rows.
  ExpertUsage usage() const;

 private:
  DeviceExperts(const UnitTable& units, const ExpertTiers& tiers, OnLoad on_load);

  /// Where a wave stands in a pass.
  struct At {
    std::size_t layer = 0;   // index into Waves::layers
    std::int32_t first = 0;  // expert
  };
  /// Its leases, by expert; empty for those that do not cross, and those that are still to be taken.
  struct LeasedWave {
    At at;
    std::vector<Lease> leases;
  };
  /// Of one GPU in one pass.
  struct Waves {
    std::vector<Layer> layers;
    At leased_to, next;  // the wave whose leases are to be taken next; that to be acquired next
    std::deque<LeasedWave> leased;
    std::uint64_t filled = 0, acquired = 0, let_go = 0;
    bool any = false;
    bool ended(At at) const { return at.layer >= layers.size(); }
  };
  /// The end of a copy to one GPU.
  struct Arrival {
    device::Event event;
    std::uint64_t number = 0;  // of the event among ordered copies; 0: it is recorded
  };
  /// On its way to a slot. The lease ends with the copies, the rest with the pass.
  struct Coming {
    std::int32_t unit = -1;
    Lease lease;
    std::vector<Arrival> arrivals;  // by GPU
  };

  Status open(const std::vector<ExpertGpu>& gpus, storage::Backend& backend, Budget& ram, TileCheck check,
              const std::vector<float>& expected);
  bool crosses(std::int32_t unit) const { return slots_.slot_of(key_of(unit)) < 0; }
  std::int32_t wave_count(const Waves& waves, At at) const;
  At after(const Waves& waves, At at) const;
  bool lease_ahead(Waves& waves);
  Expected<Lease> lease_for(std::int32_t unit, const std::function<bool()>& cancelled) MR_REQUIRES(waves_mutex_);
  Status await_bytes(Lease& lease, const std::function<bool()>& cancelled);
  Status fill_next(std::size_t gpu, const std::function<bool()>& cancelled);
  Status fill(ExpertSlots& gpu, const Layer& layer, LeasedWave& wave, ExpertSlots::Room& room,
              const std::function<bool()>& cancelled) MR_REQUIRES(waves_mutex_);
  Status send_to_slot(std::int32_t unit, Lease lease);
  Status make_arrivals();
  Coming& take_slot(std::int32_t unit, Lease lease);
  bool arrived(const Coming& coming) const;
  void let_leases_go();
  void take_arrivals();
  void free_some_slots();
  void use_spare_memory();
  void leave_slot(std::int32_t key);
  void set_slot(std::int32_t unit, std::int32_t slot);
  void find_in_ram();
  SpareSlots* spare() { return gpus_.front()->spare(); }
  std::int32_t key_of(std::int32_t unit) const { return index_.key_of(unit); }
  std::int32_t tile_of(std::int32_t unit) const { return units_.tiles_of(unit).first; }

  const UnitTable& units_;
  const ExpertTiers tiers_;
  const ExpertIndex index_;
  std::uint64_t all_bytes_ = 0;  // that belong into RAM

  Reservation ram_reservation_;
  Budget* asks_ = nullptr;       // whose reclaimer this is
  device::PinnedBuffer memory_;  // the store's
  std::unique_ptr<WeightStore> store_;
  std::vector<std::unique_ptr<ExpertSlots>> gpus_;
  std::vector<std::int32_t> not_in_ram_;  // units that are still to come there for good

  SlotTable slots_;
  std::vector<bool> visible_;  // by key: its slot is in the devices' tables
  std::vector<Coming> coming_;
  std::vector<std::vector<Arrival>> arrivals_;  // for others to come
  double least_worth_ = 0;                      // of those in slots when the pass began
  std::size_t offered_ = 0, refused_ = 0;       // in this pass: copied, and worth it but without a slot
  std::size_t reserved_ = 0;                    // free slots, for those that are worth more than who left them

  Mutex waves_mutex_;  // GPUs that bring waves take leases and slots one after the other
  std::vector<Waves> waves_;

  const OnLoad on_load_;
  bool told_ = false;  // on_load_, in this pass
  std::chrono::steady_clock::time_point told_at_;

  std::atomic<std::uint64_t> bytes_read_in_ram_{0};
  mutable Mutex meter_mutex_;
  ExpertMeter meter_ MR_GUARDED_BY(meter_mutex_);
};

}  // namespace millrace::residency
