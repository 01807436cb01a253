// Rows of a table that were read, kept in memory of a fixed size. A row may lie in one set of kWays places. The place
// whose row was used least gives way, and each time one does, the others of its set count half as much: rows that were
// used often long ago leave, too. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace millrace::residency {

class RowCache {
 public:
  static constexpr std::int64_t kWays = 8;

  RowCache() = default;
  /// `memory` outlives the object, and is aligned to 8 bytes. May be too small for a set: then nothing is kept.
  RowCache(std::span<std::byte> memory, std::int64_t row_bytes);
  /// The row's bytes, until the next put(); nullptr: not here. Counts as a use.
  const std::byte* find(std::int64_t row);
  /// REQUIRES: find(row) gave nullptr.
  void put(std::int64_t row, const std::byte* bytes);
  std::int64_t rows() const { return sets_ * kWays; }

 private:
  struct Place {
    std::int64_t row;  // -1: none
    std::uint64_t uses;
  };
  Place* places_of(std::int64_t row) const;
  std::byte* bytes_of(const Place* place) const;

  std::byte* memory_ = nullptr;
  std::int64_t row_bytes_ = 0, sets_ = 0;
};

}  // namespace millrace::residency
