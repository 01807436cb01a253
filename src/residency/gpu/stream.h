// The streaming part of DeviceWeights: units that cross to the device in pass order, in every pass, through a ring in
// device memory.
//
// A unit is copied in groups of consecutive parts, so that the ring is small and a copy starts as soon as there is room
// for a group. Copies are numbered across passes: number n is group n modulo the number of groups. Each copy takes the
// next place in the ring (or the beginning, if the end is too near) after the launches that used the old contents have
// ended, which an event of the compute stream signals; launches wait for an event of the copy. Groups in page-locked
// memory are copied directly, once they are loaded. Groups on the disk are read in chunks through a separate
// page-locked ring: reads run ahead of the copies by that whole ring, across groups and passes. A backend that reads to
// device memory (cuFile) reads directly into the place in the ring: this thread then waits until the launches that used
// it have ended, because such reads follow no stream.
//
// If the CPU computes a part of a unit, a pass needs only the rest on the device. Each pass states at its begin which
// of the two it needs; if that changes, the ring starts again. Thread-safety: one thread.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"
#include "device/device.h"
#include "residency/chunk_ring.h"
#include "residency/gpu/spare.h"
#include "residency/placement.h"
#include "residency/ram_fill.h"
#include "residency/unit.h"
#include "storage/storage.h"

namespace millrace::residency {

class DeviceStream {
 public:
  /// A part of a streamed unit.
  struct Piece {
    const std::byte* host = nullptr;  // page-locked; null: on the disk
    int file = 0;
    std::uint64_t file_offset = 0, bytes = 0;
    std::uint64_t device_bytes = 0;  // from the first on: what a pass needs whose other rows the processor computes
    std::uint64_t group_offset = 0;
  };
  /// Parts of one unit that are copied together, in the order in which passes use them.
  struct Group {
    std::int32_t unit = 0;
    bool on_disk = false;
    std::size_t first_entry = 0;    // in the table of addresses
    std::uint64_t bytes = 0;        // of room in the ring
    std::uint64_t split_bytes = 0;  // of it, what a pass needs in which the processor does its part; 0: nothing of it
    std::uint64_t unit_offset = 0;  // of that room in its unit's
    std::vector<Piece> pieces;
  };

  /// groups: in pass order. ring: device memory, room for all groups of a unit and one more at least, or for all
  /// groups. table: on the device. disk_ring: page-locked, kChunkRingBytes, or null where no group is on the disk or
  /// `backend` reads to device memory. fill: by index into groups, which of those at home in RAM are there; null: all.
  /// All outlive the object. spare: candidates by index into groups; may be null.
  static Expected<std::unique_ptr<DeviceStream>> create(std::vector<Group> groups, std::byte* ring,
                                                        std::uint64_t ring_bytes, const std::byte** table,
                                                        std::byte* disk_ring, storage::Backend& backend,
                                                        const RamFill* fill, std::unique_ptr<SpareUnits> spare);
  ~DeviceStream();

  /// whole: with all rows of every group. REQUIRES: no launch of a pass before is under way.
  Status begin_pass(bool whole);
  /// What is launched on `compute` from here on finds the group (by index), and those before it of its unit that have
  /// not been let go. Launches that use another unit are all on `compute`. Asking again for a group is free.
  /// REQUIRES: the group, and those before it that are at home in RAM, are there.
  Status acquire(std::size_t group, device::StreamRef compute);
  /// Declares that all launches that use groups before the last acquired one are on `compute`.
  Status let_go(device::StreamRef compute);
  Status end_pass(device::StreamRef compute);
  /// The units in spare memory; null: none are kept there.
  SpareUnits* spare() const { return spare_.get(); }
  std::uint64_t copied_bytes() const { return copied_bytes_; }
  std::uint64_t disk_bytes() const { return disk_bytes_; }

 private:
  DeviceStream(storage::Backend& backend, std::byte* disk_ring)
      : backend_(backend), disk_(backend, disk_ring, kChunks) {}

  static constexpr std::uint64_t kFlights = 1024;     // copies that have a place in the ring, or need none, at most
  static constexpr std::uint64_t kGenerations = 3;    // of addresses: passes whose copies may be under way, and one
  static constexpr std::uint64_t kNone = UINT64_MAX;  // no copy

  /// A copy with a place in the ring.
  struct Flight {
    std::uint64_t offset = 0, bytes = 0;  // in the ring; no bytes: nothing of it is needed here
    std::uint64_t behind = kNone;         // the copy whose launches must be over first; then those before it are, too
    device::Event filled, used;
    std::uint64_t issued = 0;                   // 1 + the number of the copy that was started last
    std::uint64_t reading = 0;                  // 1 + the number of the copy that is being read straight into its place
    std::unique_ptr<storage::Completion> read;  // its end
  };
  /// A chunk of a piece of a group on the disk.
  struct Chunk {
    std::size_t group = 0;
    int file = 0;
    std::uint64_t offset = 0, bytes = 0, group_offset = 0;
    bool last = false;  // of its group
  };

  const Group& group_of(std::uint64_t n) const { return groups_[n % groups_.size()]; }
  Flight& flight_of(std::uint64_t n) { return flights_[n % kFlights]; }
  std::byte* place_of(std::uint64_t n) { return ring_ + flight_of(n).offset; }
  bool straight() const { return backend_.traits().memory == storage::Memory::device; }
  const std::byte* kept(std::uint64_t n) const {
    return spare_ == nullptr ? nullptr : spare_->kept(n % groups_.size());
  }
  std::uint64_t room_of(std::uint64_t n) const {
    return kept(n) != nullptr ? 0 : whole_ ? group_of(n).bytes : group_of(n).split_bytes;
  }
  bool from_disk(std::uint64_t n) const { return group_of(n).on_disk && kept(n) == nullptr; }
  bool in_ram(std::uint64_t n) const { return fill_ == nullptr || fill_->has(n % groups_.size()); }
  bool issued(std::uint64_t n) { return flight_of(n).issued == n + 1; }
  const std::byte** addresses_of(std::uint64_t n) const;
  bool place(std::uint64_t n);
  Status begin_copy(std::uint64_t n, const device::Stream& stream);
  Status finish_copy(std::uint64_t n, const device::Stream& stream);
  Status copy_from_ram(std::uint64_t n);
  Status copy_from_disk(std::uint64_t n, bool wait);
  Status read_into_place(std::uint64_t n, bool wait);
  Status start_read(std::uint64_t n, bool wait);
  Status copy_ahead();
  Status acquire_next(device::StreamRef compute);
  Status release_before(std::uint64_t n, device::StreamRef compute);
  Status restart();
  Status rebuild();
  void list_chunks();
  Status read_ahead();
  void drain();
  /// Chunk `number` of the disk's ring.
  const Chunk& chunk(std::uint64_t number) const { return chunks_[(chunk_base_ + number) % chunks_.size()]; }

  storage::Backend& backend_;
  const RamFill* fill_ = nullptr;
  std::unique_ptr<SpareUnits> spare_;
  std::vector<Group> groups_;
  std::byte* ring_ = nullptr;
  std::uint64_t ring_bytes_ = 0;
  const std::byte** table_ = nullptr;
  device::PinnedBuffer addresses_;  // [group][generation][part]: what a copy writes into the table
  std::vector<std::size_t> first_address_;
  device::Stream from_ram_, from_disk_;
  bool splits_ = false;  // some groups are needed in part only, by passes that are not whole
  bool whole_ = true;    // what the present pass wants
  bool broken_ = false;  // a copy failed half-way: the contents of the ring are invalid

  // Copies by number: oldest_ <= held_ <= next_ <= placed_. Those from oldest_ on have room in the ring; those before
  // held_ are used by no later launch; those before next_ have been acquired; those before placed_ have a place.
  std::uint64_t oldest_ = 0, held_ = 0, next_ = 0, placed_ = 0;
  std::uint64_t pass_ = 0;      // number of the present pass's first copy
  std::uint64_t wanted_ = 0;    // the one asked for last
  std::uint64_t ring_end_ = 0;  // where the last one placed ends
  std::array<Flight, kFlights> flights_;

  // The disk's ring. Chunks are numbered through all passes, too.
  ChunkRing disk_;
  std::vector<Chunk> chunks_;                   // of one pass
  std::vector<std::size_t> first_chunk_;        // by group
  std::array<device::Event, kChunks> emptied_;  // by place in the ring
  std::uint64_t chunk_base_ = 0;                // which chunk of a pass number 0 is
  std::uint64_t disk_copy_ = 0;                 // the copy whose chunks land next
  bool disk_copy_begun_ = false;

  std::vector<storage::Read> reads_;  // of one group; keeps its memory

  std::uint64_t copied_bytes_ = 0, disk_bytes_ = 0;
};

}  // namespace millrace::residency
