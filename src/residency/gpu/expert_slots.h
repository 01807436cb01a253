// A mixture's experts in the memory of one GPU: slots, buffers for waves, and the entries of the table of addresses
// that its kernels read. DeviceExperts (experts.h), which has one of these for each GPU, decides which expert has which
// slot and when that changes. If several GPUs share the rows of experts, each has its rows of all of them, from the
// same host memory. Thread-safety: one thread at a time.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"
#include "device/device.h"
#include "residency/budget.h"
#include "residency/gpu/copies.h"
#include "residency/gpu/spare_slots.h"
#include "residency/gpu/table.h"
#include "residency/placement.h"
#include "residency/unit.h"
#include "residency/weight_store.h"

namespace millrace::residency {

/// Experts by key, from 0 on, in the order of the unit table, where those of a layer follow each other.
class ExpertIndex {
 public:
  /// Units [first_unit, first_unit + count).
  struct Layer {
    std::int32_t first_unit = 0, count = 0;
  };

  explicit ExpertIndex(const UnitTable& units);

  std::size_t count() const { return unit_of_.size(); }
  std::int32_t key_of(std::int32_t unit) const { return key_of_[static_cast<std::size_t>(unit)]; }
  std::int32_t unit_of(std::int32_t key) const { return unit_of_[static_cast<std::size_t>(key)]; }
  const std::vector<std::int32_t>& units() const { return unit_of_; }
  const std::vector<Layer>& layers() const { return layers_; }
  std::size_t layer_of(std::int32_t unit) const { return layer_of_[static_cast<std::size_t>(key_of(unit))]; }
  /// Of any expert, at most.
  std::size_t parts() const { return parts_; }
  /// Of the parts of all experts, and where those of a unit begin among them.
  std::size_t addresses() const { return count() * parts_; }
  std::size_t address_of(std::int32_t unit) const { return static_cast<std::size_t>(key_of(unit)) * parts_; }

 private:
  std::vector<std::int32_t> key_of_;   // by unit; -1: no expert
  std::vector<std::int32_t> unit_of_;  // by key
  std::vector<std::size_t> layer_of_;  // by key
  std::vector<Layer> layers_;
  std::size_t parts_ = 0;
};

/// A GPU, and what it has of the model; all of it outlives the experts.
struct ExpertGpu {
  int device = 0;
  const UnitTable& units;  // its rows, under the numbers that units have elsewhere
  const AddressTable& table;
  Budget& vram;
};

class ExpertSlots {
 public:
  /// Device memory of a wave, and the table of its addresses.
  struct Room {
    std::byte* memory = nullptr;
    const std::byte** device_table = nullptr;
    const std::byte** host_table = nullptr;
    std::vector<Lease> leases;  // of the copies to it
    device::Event filled, used;
  };

  /// Of RAM for tables, of one GPU. Pure.
  static std::uint64_t table_bytes(const ExpertIndex& index, const ExpertTiers& tiers);
  /// whole: units as they lie in RAM. Errors: out_of_budget, io_error, internal (other units than in `whole`).
  static Expected<std::unique_ptr<ExpertSlots>> create(const UnitTable& whole, const ExpertIndex& index,
                                                       const ExpertTiers& tiers, const ExpertGpu& gpu);
  ~ExpertSlots();
  ExpertSlots(const ExpertSlots&) = delete;
  ExpertSlots& operator=(const ExpertSlots&) = delete;

  int device() const { return gpu_.device; }
  const AddressTable& table() const { return gpu_.table; }
  std::byte* slot_at(std::int32_t slot) const {
    if (slot >= tiers_.vram_slots) return spare_->slot(slot - tiers_.vram_slots);
    return slots_memory_ + static_cast<std::uint64_t>(slot) * slot_bytes_;
  }
  std::uint64_t slot_bytes() const { return slot_bytes_; }
  /// null: the plan's slots are all.
  SpareSlots* spare() { return spare_.get(); }

  // --- Addresses. publish() makes them the device's. ---

  /// The unit's slot begins at `first`; null: it has none, and the addresses are those of zeros.
  void set(std::int32_t unit, const std::byte* first);
  /// Writes where each part lies of an expert that begins at `first`, by part.
  void write_addresses(std::int32_t unit, const std::byte* first, const std::byte** to) const;
  /// Where RAM is that leases lie in: page-locked, for this GPU, too. Once. Errors: io_error.
  Status see_ram(std::byte* memory);
  /// The unit lies in RAM for good. False: not where kernels can read it.
  bool find_in_ram(std::int32_t unit, const Lease& lease);
  void forget_in_ram(std::int32_t unit);
  bool lies_in_ram(std::int32_t unit) const { return in_ram_[index_.address_of(unit)] != nullptr; }
  /// What has changed is the device's for what is launched on `compute` from here on.
  Status publish(device::StreamRef compute);

  const std::byte* absent() const { return arena_.data(); }
  const std::byte** claimed() const { return claimed_; }
  const std::byte* const* in_ram(std::int32_t first_unit) const {
    return device_in_ram_ + index_.address_of(first_unit);
  }

  // --- Copies, of the unit's bytes, which the lease holds ---

  /// On the stream of copies.
  Status copy(const Lease& lease, std::int32_t unit, std::byte* to);
  /// By a thread that waits for the driver in the caller's place.
  void order_copy(const Lease& lease, std::int32_t unit, std::byte* to);
  CopyQueue& orders() { return *copies_; }
  device::StreamRef copy_stream() const { return copy_; }
  void await_copies() { (void)copy_.synchronise(); }  // a lost device says so elsewhere
  std::uint64_t copied_bytes() const { return copied_bytes_; }
  Room& room(std::uint64_t wave) { return rooms_[wave % kExpertRooms]; }

 private:
  ExpertSlots(const UnitTable& whole, const ExpertIndex& index, const ExpertTiers& tiers, const ExpertGpu& gpu);
  Status open();
  Status lay_out();
  template <typename Copy>
  void for_each_stretch(const Lease& lease, std::int32_t unit, std::byte* to, Copy copy);
  const Tile& tile(std::int32_t unit) const {
    return whole_.tiles()[static_cast<std::size_t>(whole_.tiles_of(unit).first)];
  }
  /// Where the segment of an expert's tile lies in a slot; of it this GPU has a stretch.
  std::uint64_t offset_in_slot(const Segment& segment) const {
    return as_in_ram_ ? segment.slot_offset : part_offset_[static_cast<std::size_t>(segment.part)];
  }
  struct Stretch {
    std::uint64_t first = 0, bytes = 0;
  };
  Stretch stretch(std::int32_t unit, const Segment& segment) const;

  const UnitTable& whole_;
  const ExpertIndex& index_;
  const ExpertTiers tiers_;
  const ExpertGpu gpu_;
  std::vector<std::uint64_t> part_offset_;  // of parts that lie on edges; the last is the size of all
  bool as_in_ram_ = true;                   // slots are laid out as in RAM, so that an expert is one copy
  std::uint64_t slot_bytes_ = 0;

  Reservation reservation_;
  std::unique_ptr<SpareSlots> spare_;
  device::DeviceBuffer arena_;   // zeros, slots, rooms, tables of waves
  device::PinnedBuffer tables_;  // what tables are copied from: all experts' entries, and the waves'
  std::byte* slots_memory_ = nullptr;
  std::byte *ram_ = nullptr, *device_ram_ = nullptr;  // as the host and as the device sees it
  const std::byte** device_in_ram_ = nullptr;         // as addresses of all experts
  const std::byte** claimed_ = nullptr;               // [most experts of a layer, parts]
  const std::byte** in_ram_ = nullptr;                // page-locked, as addresses of all experts
  std::vector<bool> dirty_;                           // by layer: its addresses are not yet the device's
  bool in_ram_dirty_ = false;
  std::array<Room, kExpertRooms> rooms_;
  device::Stream copy_;
  std::unique_ptr<CopyQueue> copies_;
  std::atomic<std::uint64_t> copied_bytes_{0};
};

}  // namespace millrace::residency
