// Which tiles hold the rows of a weight: looked up by every product, so laid out once, flat.
// Thread-safety: immutable.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "residency/unit.h"

namespace millrace::exec {

/// Rows [row_begin, row_end) of a part: segment `segment` of tile `tile`.
struct Piece {
  std::int32_t tile = 0, segment = 0;
  std::int64_t row_begin = 0, row_end = 0;
  std::int64_t rows() const { return row_end - row_begin; }
};

class PieceIndex {
 public:
  explicit PieceIndex(const residency::UnitTable& units);
  /// In row order.
  std::span<const Piece> pieces(residency::WeightRef ref) const {
    const auto part = static_cast<std::size_t>(first_part_[static_cast<std::size_t>(ref.unit)] + ref.part);
    return std::span(pieces_).subspan(first_piece_[part], first_piece_[part + 1] - first_piece_[part]);
  }

 private:
  std::vector<std::int32_t> first_part_;  // by unit: index of its first part among all parts
  std::vector<std::size_t> first_piece_;  // by part, and one past the last
  std::vector<Piece> pieces_;
};

}  // namespace millrace::exec
