// The store's one buffer and the reservation that pays for it. Pieces of the buffer (homes of tiles, slots) are used
// and given back in any order; a granule (a page, or a huge page) is paid for while any piece in use touches it. Host
// memory is backed by the kernel when it is first touched, a range of other memory by back(). Not thread-safe: the
// store's mutex guards it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"
#include "device/host_memory.h"
#include "device/range.h"
#include "residency/budget.h"

namespace millrace::residency {

class WeightMemory {
 public:
  struct Piece {
    std::uint64_t offset = 0, bytes = 0;
  };

  /// Reserves the addresses; no byte is paid for yet. Errors: out_of_budget when the kernel refuses.
  static Expected<WeightMemory> create(std::uint64_t bytes, device::Pages pages);
  /// Addresses of a range; what is not in use goes back to where it came from.
  static WeightMemory over(std::unique_ptr<device::Range> range);
  /// The memory at `data`, which outlives the object and is paid for by its owner: nothing of it is given back.
  static WeightMemory at(std::byte* data);

  std::byte* data(const Piece& piece) const { return base() + piece.offset; }
  bool fixed() const { return fixed_ != nullptr; }

  /// Makes sure that there is memory behind the piece. Errors: a range's that has no more.
  Status back(const Piece& piece) { return range_ == nullptr ? Status() : range_->back(piece.offset, piece.bytes); }
  /// Bytes that have memory now, as far as can be told: of host memory all that is in use.
  std::uint64_t backed_bytes() const { return range_ == nullptr ? used_ : range_->backed_bytes(); }

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
  void set_granules(std::uint64_t granule);
  std::uint64_t bytes() const { return range_ != nullptr ? range_->bytes() : buffer_.bytes(); }
  std::byte* base() const { return fixed_ != nullptr ? fixed_ : range_ != nullptr ? range_->data() : buffer_.data(); }

  std::byte* fixed_ = nullptr;            // somebody else's memory; null: range_ or buffer_
  std::unique_ptr<device::Range> range_;  // null: buffer_
  device::HostBuffer buffer_;
  std::uint64_t granule_ = device::kPageBytes;
  std::vector<std::uint16_t> users_;  // by granule: pieces in use that touch it
  std::uint64_t used_ = 0;            // bytes of granules with users
  Reservation reservation_;
};

}  // namespace millrace::residency
