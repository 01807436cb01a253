#include "exec/piece_index.h"

#include <algorithm>

namespace millrace::exec {

PieceIndex::PieceIndex(const residency::UnitTable& units) {
  std::int32_t parts = 0;
  for (const residency::Unit& unit : units.units()) {
    first_part_.push_back(parts);
    parts += static_cast<std::int32_t>(unit.parts.size());
  }
  const auto part_of = [&](const residency::Tile& tile, const residency::Segment& segment) {
    return static_cast<std::size_t>(first_part_[static_cast<std::size_t>(tile.unit)] + segment.part);
  };
  first_piece_.assign(static_cast<std::size_t>(parts) + 1, 0);
  for (const residency::Tile& tile : units.tiles()) {
    for (const residency::Segment& segment : tile.segments) ++first_piece_[part_of(tile, segment) + 1];
  }
  for (std::size_t part = 1; part < first_piece_.size(); ++part) first_piece_[part] += first_piece_[part - 1];
  pieces_.resize(first_piece_.back());
  std::vector<std::size_t> next = first_piece_;
  for (std::size_t t = 0; t < units.tiles().size(); ++t) {
    const residency::Tile& tile = units.tiles()[t];
    for (std::size_t s = 0; s < tile.segments.size(); ++s) {
      const residency::Segment& segment = tile.segments[s];
      pieces_[next[part_of(tile, segment)]++] = {static_cast<std::int32_t>(t), static_cast<std::int32_t>(s),
                                                 segment.row_begin, segment.row_end};
    }
  }
  for (std::size_t part = 0; part + 1 < first_piece_.size(); ++part) {
    std::sort(pieces_.begin() + static_cast<std::ptrdiff_t>(first_piece_[part]),
              pieces_.begin() + static_cast<std::ptrdiff_t>(first_piece_[part + 1]),
              [](const Piece& a, const Piece& b) { return a.row_begin < b.row_begin; });
  }
}

}  // namespace millrace::exec
