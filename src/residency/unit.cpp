#include "residency/unit.h"

#include <algorithm>
#include <numeric>

#include "base/bytes.h"
#include "storage/storage.h"

namespace millrace::residency {
namespace {

constexpr std::uint64_t kBlock = storage::kMaxAlignment;
constexpr std::int64_t kRowGroup = 16;  // what kernels like to take at once

/// Gives every segment its place in the slot and derives the reads. Segments are placed in file order: those whose
/// blocks meet in the file keep their distance in the slot, the others start on a block of their own.
void lay_out(const Unit& unit, Tile& tile) {
  std::vector<std::size_t> by_offset(tile.segments.size());
  std::iota(by_offset.begin(), by_offset.end(), std::size_t{0});
  const auto file_of = [&](std::size_t i) { return unit.parts[tile.segments[i].part].file; };
  std::stable_sort(by_offset.begin(), by_offset.end(), [&](std::size_t a, std::size_t b) {
    if (file_of(a) != file_of(b)) return file_of(a) < file_of(b);
    return tile.segments[a].file_offset < tile.segments[b].file_offset;
  });

  std::uint64_t slot_end = 0;
  for (const std::size_t i : by_offset) {
    Segment& segment = tile.segments[i];
    Span* last = tile.spans.empty() ? nullptr : &tile.spans.back();
    const bool shares_block = last != nullptr && last->file == file_of(i) &&
                              round_down(segment.file_offset, kBlock) <= last->file_offset + last->bytes;
    if (shares_block) {
      segment.slot_offset = last->slot_offset + (segment.file_offset - last->file_offset);
      const std::uint64_t end = segment.file_offset + segment.bytes;
      last->bytes = std::max(last->bytes, end - last->file_offset);
    } else {
      segment.slot_offset = round_up(slot_end, kBlock) + segment.file_offset % kBlock;
      tile.spans.push_back({file_of(i), segment.file_offset, segment.bytes, segment.slot_offset});
    }
    slot_end = tile.spans.back().slot_offset + tile.spans.back().bytes;
    tile.bytes += segment.bytes;
  }
  tile.slot_bytes = round_up(slot_end, kBlock);
}

Segment segment_of(const Part& part, std::int32_t index, std::int64_t row_begin, std::int64_t row_end) {
  const auto row = static_cast<std::uint64_t>(row_bytes(part.dtype, part.cols));
  Segment segment;
  segment.part = index;
  segment.row_begin = row_begin;
  segment.row_end = row_end;
  segment.file_offset = part.offset + static_cast<std::uint64_t>(row_begin) * row;
  segment.bytes = static_cast<std::uint64_t>(row_end - row_begin) * row;
  return segment;
}

/// Rows a tile when a part is cut evenly into as few tiles of at most `tile_bytes` as possible.
std::int64_t rows_per_tile(const Part& part, std::uint64_t tile_bytes) {
  const auto row = static_cast<std::uint64_t>(row_bytes(part.dtype, part.cols));
  std::int64_t most = std::max<std::int64_t>(1, static_cast<std::int64_t>(tile_bytes / row));
  if (most >= kRowGroup) most -= most % kRowGroup;
  const std::int64_t pieces = (part.rows + most - 1) / most;
  const std::int64_t even = (part.rows + pieces - 1) / pieces;
  // Rounding up to a row group keeps the number of pieces and never passes `most`, itself a whole number of groups.
  return most >= kRowGroup ? std::min(most, (even + kRowGroup - 1) / kRowGroup * kRowGroup) : even;
}

void cut_unit(const Unit& unit, std::int32_t index, std::uint64_t tile_bytes, std::vector<Tile>& tiles) {
  Tile open;
  open.unit = index;
  std::uint64_t open_bytes = 0;
  const auto close = [&] {
    if (open.segments.empty()) return;
    lay_out(unit, open);
    tiles.push_back(std::move(open));
    open = Tile{};
    open.unit = index;
    open_bytes = 0;
  };
  for (std::int32_t p = 0; p < static_cast<std::int32_t>(unit.parts.size()); ++p) {
    const Part& part = unit.parts[p];
    if (part.rows == 0 || part.bytes() == 0) continue;
    if (open_bytes + part.bytes() > tile_bytes) close();
    if (part.bytes() <= tile_bytes) {
      open.segments.push_back(segment_of(part, p, 0, part.rows));
      open_bytes += part.bytes();
      continue;
    }
    // A part cut by rows keeps its tiles to itself: matrices of one shape (gate and up) are then cut at the same rows.
    const std::int64_t rows = rows_per_tile(part, tile_bytes);
    for (std::int64_t row = 0; row < part.rows; row += rows) {
      open.segments.push_back(segment_of(part, p, row, std::min(part.rows, row + rows)));
      close();
    }
  }
  close();
}

}  // namespace

std::string_view unit_kind_name(UnitKind kind) {
  switch (kind) {
    case UnitKind::embedding:
      return "embedding";
    case UnitKind::trunk:
      return "trunk";
    case UnitKind::expert:
      return "expert";
    case UnitKind::head:
      return "head";
  }
  return "unknown";
}

std::uint64_t Unit::bytes() const {
  std::uint64_t total = 0;
  for (const Part& part : parts) total += part.bytes();
  return total;
}

std::int32_t UnitTable::add(Unit unit) {
  if (unit.kind == UnitKind::expert && !unit.aside) ++experts_;
  units_.push_back(std::move(unit));
  return static_cast<std::int32_t>(units_.size()) - 1;
}

void UnitTable::cut(std::uint64_t tile_bytes) {
  MR_ASSERT(tiles_.empty() && unit_tiles_.empty());
  unit_tiles_.reserve(units_.size());
  for (std::size_t u = 0; u < units_.size(); ++u) {
    const auto first = static_cast<std::int32_t>(tiles_.size());
    cut_unit(units_[u], static_cast<std::int32_t>(u), std::max<std::uint64_t>(1, tile_bytes), tiles_);
    unit_tiles_.push_back({first, static_cast<std::int32_t>(tiles_.size())});
  }
  for (Tile& tile : tiles_) {
    tile.segments.shrink_to_fit();
    tile.spans.shrink_to_fit();
  }
  tiles_.shrink_to_fit();
}

std::vector<std::int32_t> UnitTable::tiles_of(WeightRef ref) const {
  std::vector<std::int32_t> tiles;
  const Range range = unit_tiles_[ref.unit];
  for (std::int32_t t = range.first; t < range.last; ++t) {
    for (const Segment& segment : tiles_[t].segments) {
      if (segment.part != ref.part) continue;
      tiles.push_back(t);
      break;
    }
  }
  return tiles;
}

std::uint64_t UnitTable::total_bytes() const {
  std::uint64_t total = 0;
  for (const Unit& unit : units_) total += unit.bytes();
  return total;
}

std::int32_t UnitTable::find(UnitKind kind) const {
  const auto found = std::find_if(units_.begin(), units_.end(), [kind](const Unit& unit) { return unit.kind == kind; });
  return found == units_.end() ? -1 : static_cast<std::int32_t>(found - units_.begin());
}

}  // namespace millrace::residency
