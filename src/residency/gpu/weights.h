// A model's weights for one GPU. Units whose home is device memory are in one arena and never move. The others are in
// page-locked memory or in the file and cross to the device in pass order, in every pass, through a ring that is filled
// ahead of the launches. Kernels find every weight through a table of addresses in device memory, which the copies
// update. Streamed units whose home is RAM are read in the background during the first passes (ram_fill.h), which wait
// for the units that they need; everything else is loaded when load() returns. Thread-safety: one thread loads and runs
// passes; any thread may query entries.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "device/device.h"
#include "residency/budget.h"
#include "residency/gpu/table.h"
#include "residency/head_start.h"
#include "residency/placement.h"
#include "residency/ram_fill.h"
#include "residency/unit.h"
#include "storage/cufile.h"
#include "storage/storage.h"

namespace millrace::residency {

class DeviceStream;

/// Callbacks for the progress of loading. Either may be empty.
struct OnLoad {
  /// Receives the bytes loaded and the bytes in all; false cancels.
  std::function<bool(std::uint64_t done, std::uint64_t total)> progress;
  /// Called when a pass that reported its wait continues or has failed.
  std::function<void()> end;
};

class DeviceWeights {
 public:
  /// Reads everything that has its home in memory, but what moves and is at home in RAM: a thread reads that from here
  /// on. `straight`: a backend over the same files that reads to device memory (cuFile), REQUIRED where the placement
  /// says so, else null. `on_load` is told the bytes done of all, from this thread; later from that of the passes,
  /// while one waits for RAM (then false ends that pass alone), and once when all is there. `head_start`: has
  /// read the first of it, through the same backend, and goes when what it has is on the device, or where `ram` has no
  /// room for it beside the weights; may be null. `units`, the backends,
  /// `vram`, `ram` and what `on_load` refers to outlive the object. Errors: out_of_budget, io_error, corrupt,
  /// cancelled.
  static Expected<std::unique_ptr<DeviceWeights>> load(const UnitTable& units, const DevicePlacement& placement,
                                                       storage::Backend& backend, storage::Backend* straight,
                                                       Budget& vram, Budget& ram, const OnLoad& on_load,
                                                       std::unique_ptr<HeadStart> head_start = nullptr);
  ~DeviceWeights();

  const AddressTable& table() const { return table_; }
  const std::byte* const* entry(WeightRef ref) const { return table_.entry(ref); }
  /// The device address from load() on. REQUIRES: the unit's home is VRAM.
  const std::byte* address(WeightRef ref) const { return table_.address(ref); }

  /// Whether some units stream; then passes must call begin_pass(), acquire(), let_go(), end_pass() and
  /// pass_launched().
  bool streams() const { return stream_ != nullptr; }
  bool moves(WeightRef ref) const { return stream_ != nullptr && group_of_[table_.index(ref)] >= 0; }
  /// Whether the CPU computes a share of some units' rows.
  bool splits() const { return splits_; }
  /// The number of leading rows of the matrix that the device computes in a split pass; the CPU computes the others.
  std::int64_t device_rows(WeightRef ref) const { return device_rows_[table_.index(ref)]; }
  /// The matrix in page-locked memory, or null.
  const std::byte* in_ram(WeightRef ref) const { return in_ram_[table_.index(ref)]; }
  /// split: the CPU computes its share in this pass; otherwise the device needs every row.
  /// `cancelled` (may be empty) is polled while the pass waits for RAM; true ends the wait.
  /// REQUIRES: the pass before has ended on the device. Errors: io_error.
  Status begin_pass(bool split, std::function<bool()> cancelled);
  /// Puts a wait on `compute`, so that what is launched on it next finds the weight, and starts the copies that the
  /// ring has room for. Does nothing for a weight that does not move. Units come in their order, the parts of one in
  /// any: a part comes with those before it. Launches that use a unit must all come before the next one is acquired.
  /// Blocks while the disk is read. When it returns ok, the part lies whole in RAM where it is at home there.
  /// Errors: io_error, corrupt, internal (out of order), cancelled; then nothing that reads the weight may be launched,
  /// and the pass is over.
  Status acquire(WeightRef ref, device::StreamRef compute);
  /// All launches that use parts before the one asked for last are on `compute`: the ring takes their room back before
  /// the unit ends.
  Status let_go(device::StreamRef compute);
  /// Called after a pass's last launch: starts to fill the ring for the next pass.
  Status end_pass(device::StreamRef compute);
  /// Called when all launches of the pass are made, or the pass has failed.
  void pass_launched();
  /// Evicts units from spare VRAM until `bytes` of it are free; returns the bytes freed. Only between passes.
  std::uint64_t give_way(std::uint64_t bytes);
  /// Adds the bytes that crossed to the device and those that passes read from the disk since the start, without the
  /// loading of RAM.
  void add_to(StoreCounters& counters) const;

 private:
  DeviceWeights() = default;
  Status wait_a_moment();
  Budget* asks_ = nullptr;  // whose reclaimer this is
  Reservation reservation_, host_reservation_;
  device::DeviceBuffer arena_;
  device::PinnedBuffer host_;
  storage::CuFileBuffer registered_;  // the ring, where reads go straight into it
  AddressTable table_;
  std::vector<std::int64_t> device_rows_;  // by part, as the table
  std::vector<const std::byte*> in_ram_;   // likewise
  bool splits_ = false;
  std::vector<std::int32_t> group_of_;     // by part, as the table: of those that move; -1: it does not
  OnLoad on_load_;                         // of the fill
  std::uint64_t total_bytes_ = 0;          // that belong into memory
  std::function<bool()> cancelled_;        // of the present pass
  bool tells_ = false, told_all_ = false;  // on_load_: in this pass; that all is there
  std::chrono::steady_clock::time_point told_at_;
  std::unique_ptr<RamFill> fill_;         // null: nothing that moves is at home in RAM
  std::unique_ptr<DeviceStream> stream_;  // null: nothing moves
};

}  // namespace millrace::residency
