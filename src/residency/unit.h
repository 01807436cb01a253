// What has one home, and how it is cut for moving. Built once from a model file; immutable afterwards.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "modelfile/gguf.h"
#include "tensor/dtype.h"

namespace millrace::residency {

enum class UnitKind : std::uint8_t { embedding, trunk, expert, head };
std::string_view unit_kind_name(UnitKind kind);

/// A matrix (or a vector: rows == 1) that belongs to a unit: `rows` rows that lie side by side in the file.
struct Part {
  std::string name;  // the tensor's name; an expert's part is a range of its tensor's rows
  DType dtype = DType::f32;
  std::int64_t rows = 0, cols = 0;
  int file = 0;
  std::uint64_t offset = 0;  // absolute
  std::uint64_t bytes() const { return static_cast<std::uint64_t>(rows * millrace::row_bytes(dtype, cols)); }
};

struct Unit {
  UnitKind kind = UnitKind::trunk;
  int layer = -1;   // -1 for embedding and head
  int expert = -1;  // within the layer, for experts
  // A table of which a pass reads only the rows of its tokens; it is not part of the order of a pass.
  bool by_rows = false;
  /// Rows of such a table that a token reads. A table of which tokens read several is as large as a model and read here
  /// and there: none of its tiles has a home in RAM, and rows that were read stay in a cache (row_cache.h).
  std::int64_t rows_of_token = 1;
  /// Only the drafter uses it, no pass of the model: it is kept where there is room, and otherwise left out.
  bool aside = false;
  std::vector<Part> parts;
  std::uint64_t bytes() const;
  bool is_sparse() const { return by_rows && rows_of_token > 1; }
  /// An embedding that is also the head, the last matrix of a pass.
  bool is_tied_head() const { return kind == UnitKind::embedding && !by_rows; }
};

/// Identifies a weight for models and ops: part `part` of unit `unit`. `none()` means an absent optional weight.
struct WeightRef {
  std::int32_t unit = -1;
  std::int32_t part = -1;
  bool none() const { return unit < 0; }
  friend bool operator==(const WeightRef&, const WeightRef&) = default;
};

/// Rows [row_begin, row_end) of one part, inside a tile.
struct Segment {
  std::int32_t part = 0;
  std::int64_t row_begin = 0, row_end = 0;
  std::uint64_t file_offset = 0, bytes = 0;
  std::uint64_t slot_offset = 0;  // its offset in the tile's slot; congruent to file_offset modulo 4096
};

/// One read of a tile: a range of the file that is copied unchanged to slot_offset. It covers one or more segments;
/// segments less than a block apart are one read, including the bytes between them, so that no two reads share a block.
struct Span {
  int file = 0;
  std::uint64_t file_offset = 0, bytes = 0;
  std::uint64_t slot_offset = 0;  // congruent to file_offset modulo 4096
};

/// The unit of transfer: segments of one unit, with `slot_bytes` of memory in all (blocks around the segments
/// included). Segments that are adjacent in the file are read as one. Invariant: the 4096-byte blocks around one span
/// touch no other span's blocks, in the slot as in the file.
struct Tile {
  std::int32_t unit = 0;
  std::vector<Segment> segments;  // by part, then by row
  std::vector<Span> spans;
  std::uint64_t bytes = 0;       // of weights
  std::uint64_t slot_bytes = 0;  // of memory, a multiple of 4096
};

/// All units of a model in pass order (embedding, layer 0 trunk, layer 0 experts, layer 1 trunk, ..., head) and their
/// tiles. A tied head has no unit: the embedding's unit is used again. Other embeddings are read by rows.
class UnitTable {
 public:
  /// Adds a unit; returns its index. REQUIRES: parts are inside their files (the model file has checked that).
  std::int32_t add(Unit unit);
  /// Cuts every unit into tiles of at most `tile_bytes` (at least one row per tile). Small parts share a tile with
  /// their neighbours in part order; a part larger than a tile is cut evenly, at multiples of 16 rows if a tile holds
  /// that many; a unit that fits is one tile. Call once, after the last add.
  void cut(std::uint64_t tile_bytes);

  const std::vector<Unit>& units() const { return units_; }
  const std::vector<Tile>& tiles() const { return tiles_; }
  /// Tiles of a unit: [first, last).
  struct Range {
    std::int32_t first, last;
  };
  Range tiles_of(std::int32_t unit) const { return unit_tiles_[unit]; }
  const Part& part(WeightRef ref) const { return units_[ref.unit].parts[ref.part]; }
  /// Tiles that hold rows of this part, in row order.
  std::vector<std::int32_t> tiles_of(WeightRef ref) const;
  std::uint64_t total_bytes() const;
  /// The number of units that are experts which the model's passes use.
  std::int64_t experts() const { return experts_; }
  /// The index of the first unit of this kind, or -1.
  std::int32_t find(UnitKind kind) const;

 private:
  std::vector<Unit> units_;
  std::vector<Tile> tiles_;
  std::vector<Range> unit_tiles_;
  std::int64_t experts_ = 0;
};

}  // namespace millrace::residency
