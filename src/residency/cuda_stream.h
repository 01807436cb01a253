// The moving part of DeviceWeights: units that cross to the device in pass order, each pass anew.
//
// Copies are numbered through all passes: number n is unit n modulo the count of units, and lies in slot n modulo the
// count of slots. Copy n may start once the launches that use copy n - slots are over, which an event of the compute
// stream tells; launches wait for an event of the copy. Units in page-locked memory are copied straight from there.
// Units on the disk come in chunks through a page-locked ring of their own: reads run ahead of the copies by the whole
// ring, across units and passes. Or, by a backend that reads to device memory (cuFile), straight into their slot: this
// thread then waits until the launches that used the slot are over, because such reads follow no stream.
//
// Where the processor computes a share of a unit's rows, a pass needs only the others on the device. Which of the two a
// pass wants is said when it begins; a unit that was copied ahead for a pass of the other kind is completed.
// Thread-safety: one thread.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"
#include "device/cuda_runtime.h"
#include "residency/unit.h"
#include "storage/storage.h"

namespace millrace::residency {

class DeviceStream {
 public:
  /// A part of a unit that moves.
  struct Piece {
    const std::byte* host = nullptr;  // page-locked; null: on the disk
    int file = 0;
    std::uint64_t file_offset = 0, bytes = 0;
    std::uint64_t device_bytes = 0;  // from the first on: what a pass needs whose other rows the processor computes
    std::uint64_t slot_offset = 0;
  };
  struct Moving {
    std::int32_t unit = 0;
    bool on_disk = false;
    std::size_t first_entry = 0;  // in the table of addresses
    std::vector<Piece> pieces;
  };

  // The ring in front of the disk. Small: one that stays in the processor's cache is filled faster. Chunks end at
  // multiples of kChunk of the file, so that O_DIRECT reads them as one request each.
  static constexpr std::uint64_t kChunk = 512u << 10;
  static constexpr std::size_t kChunks = 16;
  static constexpr std::uint64_t kChunkRoom = kChunk + 2 * storage::kMaxAlignment;
  static constexpr std::uint64_t kDiskRingBytes = kChunks * kChunkRoom;
  /// Where the chunk of a file that begins at `offset` ends, in bytes that end at `end`.
  static std::uint64_t chunk_end(std::uint64_t offset, std::uint64_t end, std::uint64_t chunk = kChunk) {
    return std::min(round_down(offset, chunk) + chunk, end);
  }

  /// moving: in pass order. slots: device memory, `count` of `slot_bytes`. table: on the device. disk_ring:
  /// page-locked, kDiskRingBytes, or null where no unit is on the disk or `backend` reads to device memory. All outlive
  /// the object.
  static Expected<std::unique_ptr<DeviceStream>> create(std::vector<Moving> moving, std::byte* slots, int count,
                                                        std::uint64_t slot_bytes, const std::byte** table,
                                                        std::byte* disk_ring, storage::Backend& backend);
  ~DeviceStream();

  /// whole: with all rows of every unit.
  void begin_pass(bool whole) { whole_ = whole; }
  Status acquire(std::int32_t unit, cudaStream_t compute);
  Status end_pass(cudaStream_t compute);
  std::uint64_t copied_bytes() const { return copied_bytes_; }
  std::uint64_t disk_bytes() const { return disk_bytes_; }

 private:
  explicit DeviceStream(storage::Backend& backend) : backend_(backend) {}

  struct Slot {
    std::byte* data = nullptr;
    device::Event filled, used;
    std::uint64_t issued = 0;  // 1 + the number of the copy that was started into it last
    bool ever_used = false;
    bool whole = false;                         // of the copy: all rows
    std::uint64_t reading = 0;                  // 1 + the number of the copy that is being read straight into it
    std::unique_ptr<storage::Completion> read;  // its end
  };
  /// A chunk of a piece of a unit on the disk.
  struct Chunk {
    std::size_t moving = 0;
    int file = 0;
    std::uint64_t offset = 0, bytes = 0, slot_offset = 0;
    bool last = false;  // of its unit
  };

  const Moving& unit_of(std::uint64_t n) const { return moving_[n % moving_.size()]; }
  Slot& slot_of(std::uint64_t n) { return slots_[n % slots_.size()]; }
  bool straight() const { return backend_.traits().memory == storage::Memory::device; }
  bool issued(std::uint64_t n) { return slot_of(n).issued == n + 1; }
  Status begin_copy(std::uint64_t n, const device::Stream& stream);
  Status finish_copy(std::uint64_t n, const device::Stream& stream);
  Status copy_from_ram(std::uint64_t n);
  Status complete(std::uint64_t n);
  Status copy_from_disk(std::uint64_t n, bool wait);
  Status read_into_slot(std::uint64_t n, bool wait);
  Status start_read(std::uint64_t n, bool wait);
  Status copy_ahead();
  Status release(cudaStream_t compute);
  Status restart(std::int32_t unit);
  Status read_ahead();
  void drain();
  std::byte* ring_slot(std::uint64_t chunk) const;

  storage::Backend& backend_;
  std::vector<Moving> moving_;
  std::vector<Slot> slots_;
  const std::byte** table_ = nullptr;
  device::PinnedBuffer addresses_;  // [moving][slot][part]: what a copy writes into the table
  std::vector<std::size_t> first_address_;
  device::Stream from_ram_, from_disk_;
  std::uint64_t next_ = 0;  // the copy that the next acquire() is for
  bool whole_ = true;       // what the present pass wants
  bool holding_ = false;    // copy next_ - 1 is in use and its end is not recorded yet
  bool broken_ = false;     // a copy failed half-way: nothing in the ring is to be trusted

  // The disk's ring. Chunks are numbered through all passes, too.
  std::byte* disk_ring_ = nullptr;
  std::vector<Chunk> chunks_;             // of one pass
  std::vector<std::size_t> first_chunk_;  // by moving
  std::array<storage::Completion, kChunks> read_;
  std::array<device::Event, kChunks> emptied_;
  std::array<bool, kChunks> ever_emptied_{};
  std::uint64_t chunk_base_ = 0;                 // which chunk of a pass number 0 is
  std::uint64_t read_next_ = 0, land_next_ = 0;  // numbers
  std::uint64_t disk_copy_ = 0;                  // the copy whose chunks land next
  bool disk_copy_begun_ = false;

  std::vector<storage::Read> reads_;  // of one unit; keeps its memory

  std::uint64_t copied_bytes_ = 0, disk_bytes_ = 0;
};

}  // namespace millrace::residency
