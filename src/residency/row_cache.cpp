#include "residency/row_cache.h"

#include <algorithm>
#include <cstring>
#include <new>

namespace millrace::residency {

/// First the places of all sets, then their bytes.
RowCache::RowCache(std::span<std::byte> memory, std::int64_t row_bytes)
    : memory_(memory.data()),
      row_bytes_(row_bytes),
      sets_(static_cast<std::int64_t>(memory.size()) /
            (kWays * (static_cast<std::int64_t>(sizeof(Place)) + row_bytes))) {
  for (std::int64_t i = 0; i < rows(); ++i) new (memory_ + i * static_cast<std::int64_t>(sizeof(Place))) Place{-1, 0};
}

RowCache::Place* RowCache::places_of(std::int64_t row) const {
  constexpr std::uint64_t kOdd = 0x9E3779B97F4A7C15;
  constexpr int kHigh = 32;  // the product's high bits depend on all of the row's
  const std::uint64_t set = (static_cast<std::uint64_t>(row) * kOdd >> kHigh) % static_cast<std::uint64_t>(sets_);
  return std::launder(reinterpret_cast<Place*>(memory_)) + set * kWays;
}

std::byte* RowCache::bytes_of(const Place* place) const {
  const auto number = place - std::launder(reinterpret_cast<const Place*>(memory_));
  return memory_ + rows() * static_cast<std::int64_t>(sizeof(Place)) + number * row_bytes_;
}

const std::byte* RowCache::find(std::int64_t row) {
  if (sets_ == 0) return nullptr;
  Place* const places = places_of(row);
  Place* const found = std::find_if(places, places + kWays, [row](const Place& place) { return place.row == row; });
  if (found == places + kWays) return nullptr;
  ++found->uses;
  return bytes_of(found);
}

void RowCache::put(std::int64_t row, const std::byte* bytes) {
  if (sets_ == 0) return;
  Place* const places = places_of(row);
  Place* const least = std::min_element(places, places + kWays,
                                        [](const Place& one, const Place& other) { return one.uses < other.uses; });
  if (least->row >= 0)
    for (Place* place = places; place != places + kWays; ++place) place->uses /= 2;
  *least = {row, 1};
  std::memcpy(bytes_of(least), bytes, static_cast<std::size_t>(row_bytes_));
}

}  // namespace millrace::residency
