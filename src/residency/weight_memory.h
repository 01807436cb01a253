// The store's one buffer and the reservation that pays for it. Pieces of the buffer (homes of tiles, slots) are used
// and given back in any order; a granule (a page, or a huge page) is paid for while any piece in use touches it. Not
// thread-safe: the store's mutex guards it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/status.h"
#include "device/host_memory.h"
#include "residency/budget.h"

namespace millrace::residency {

class WeightMemory {
 public:
  struct Piece {
    std::uint64_t offset = 0, bytes = 0;
  };

  /// Reserves the addresses; no byte is paid for yet. Errors: out_of_budget when the kernel refuses.
  static Expected<WeightMemory> create(std::uint64_t bytes, device::Pages pages);
  /// The memory at `data`, which outlives the object and is paid for by its owner: nothing of it is given back.
  static WeightMemory at(std::byte* data);

  std::byte* data(const Piece& piece) const { return (fixed_ != nullptr ? fixed_ : buffer_.data()) + piece.offset; }
  bool fixed() const { return fixed_ != nullptr; }

  /// Marks a piece used or unused; unused granules go back to the kernel at once. Pay with settle().
  void use(const Piece& piece);
  void drop(const Piece& piece);

  /// Makes the reservation what is in use. Shrinking always works; growing asks for what is free and never makes others
  /// give way. False: too little is free, and the caller must drop what it used.
  bool settle();
  /// The first payment. Errors: out_of_budget, naming what would do.
  Status reserve(Budget& budget);

  std::uint64_t used_bytes() const { return used_; }
  std::uint64_t paid_bytes() const { return reservation_.bytes(); }

 private:
  std::uint64_t granule_bytes_at(std::size_t granule) const;

  std::byte* fixed_ = nullptr;  // somebody else's memory; null: buffer_
  device::HostBuffer buffer_;
  std::uint64_t granule_ = device::kPageBytes;
  std::vector<std::uint16_t> users_;  // by granule: pieces in use that touch it
  std::uint64_t used_ = 0;            // bytes of granules with users
  Reservation reservation_;
};

}  // namespace millrace::residency
