#include "residency/census.h"

#include <algorithm>
#include <cmath>

#include "base/bytes.h"
#include "device/host_memory.h"

namespace millrace::residency {
namespace {

constexpr std::uint64_t kRowScratchBytes = 64 << 10;
constexpr std::uint64_t kRowsAheadBytes = 512 << 10;     // 64 to 128 reads, which keep any disk busy
constexpr std::uint64_t kRowCacheOfTable = 4;            // a kept row has a name, and must find room in its set
constexpr std::uint64_t kMostRowCacheBytes = 64u << 20;  // 600,000 rows of 90 bytes

/// Small tiles first: in the ring each would take a whole slot. The rest by the fraction of i times the golden ratio,
/// any prefix of which is spread evenly over the pass.
void order_by_preference(const UnitTable& units, Census& census) {
  struct Rank {
    double place;
    std::int32_t tile;
  };
  std::vector<Rank> ranks;
  for (std::size_t i = 0; i < census.ordered.size(); ++i) {
    const std::int32_t tile = census.ordered[i];
    const double spread = static_cast<double>(i) * 0.6180339887498949;
    const bool small = units.tiles()[tile].slot_bytes * 8 <= census.largest_ordered;
    ranks.push_back({small ? -1.0 : spread - std::floor(spread), tile});
  }
  std::stable_sort(ranks.begin(), ranks.end(), [](const Rank& a, const Rank& b) { return a.place < b.place; });
  for (const Rank& rank : ranks) census.by_preference.push_back(rank.tile);
}

}  // namespace

Census take_census(const UnitTable& units, int top_k, const std::vector<bool>& front) {
  Census census;
  std::uint64_t expert_bytes = 0;
  std::int64_t experts = 0;
  std::vector<int> expert_layers;
  std::vector<std::int32_t> tied_tiles;
  for (std::size_t u = 0; u < units.units().size(); ++u) {
    const Unit& unit = units.units()[u];
    if (unit.kind == UnitKind::expert && !unit.aside) {
      ++experts;
      expert_bytes += unit.bytes();
      if (expert_layers.empty() || expert_layers.back() != unit.layer) expert_layers.push_back(unit.layer);
    }
    if (unit.kind == UnitKind::embedding && !unit.parts.empty()) {
      const Part& table = unit.parts.front();
      const auto row = static_cast<std::uint64_t>(row_bytes(table.dtype, table.cols));
      if (unit.by_rows) census.table_row_bytes += row * static_cast<std::uint64_t>(unit.rows_of_token);
      if (unit.is_sparse()) {
        census.rows_ahead = kRowsAheadBytes;
        census.most_row_cache = std::min(kMostRowCacheBytes, kRowCacheOfTable * unit.bytes());
      }
      // A row may begin anywhere in a block.
      const std::uint64_t one = round_up(row, device::kPageBytes) + device::kPageBytes;
      census.row_scratch = std::max({census.row_scratch, one, kRowScratchBytes});
    }
    const auto range = units.tiles_of(static_cast<std::int32_t>(u));
    for (std::int32_t t = range.first; t < range.last; ++t) {
      const Tile& tile = units.tiles()[t];
      if (front[u]) {
        census.front.push_back(t);
        census.front_slot_bytes += tile.slot_bytes;
        if (unit.kind == UnitKind::expert && !unit.aside) ++census.front_experts;
        if (unit.kind != UnitKind::expert && !unit.aside) census.front_bytes += tile.bytes;
      } else if (unit.aside) {
        continue;  // nobody's
      } else if (unit.kind == UnitKind::expert) {
        ++census.expert_tiles;
        census.largest_expert = std::max(census.largest_expert, tile.slot_bytes);
      } else if (unit.by_rows) {
        census.table_bytes += tile.bytes;
        if (unit.is_sparse()) continue;
        census.tables.push_back(t);
        census.table_slot_bytes += tile.slot_bytes;
      } else {
        (unit.is_tied_head() ? tied_tiles : census.ordered).push_back(t);
        census.ordered_bytes += tile.bytes;
        census.ordered_slot_bytes += tile.slot_bytes;
        census.largest_ordered = std::max(census.largest_ordered, tile.slot_bytes);
      }
    }
  }
  census.ordered_bytes += census.front_bytes;
  census.ordered.insert(census.ordered.end(), tied_tiles.begin(), tied_tiles.end());
  std::sort(expert_layers.begin(), expert_layers.end());
  const auto layers = std::unique(expert_layers.begin(), expert_layers.end()) - expert_layers.begin();
  census.expert_layers = layers;
  if (experts > 0) {
    census.experts = experts / layers;
    const double mean = static_cast<double>(expert_bytes) / static_cast<double>(experts);
    census.active_expert_bytes =
        std::min(mean * std::max(1, top_k) * static_cast<double>(layers), static_cast<double>(expert_bytes));
  }
  order_by_preference(units, census);
  return census;
}

}  // namespace millrace::residency
