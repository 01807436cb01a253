#include "residency/unit.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/bytes.h"
#include "storage/storage.h"

namespace millrace::residency {
namespace {

constexpr std::uint64_t kBlock = storage::kMaxAlignment;

Part part(std::string name, std::int64_t rows, std::int64_t cols, std::uint64_t offset, int file = 0) {
  return {std::move(name), DType::f32, rows, cols, file, offset};
}

/// What every table must keep: each row of each part in exactly one segment, the slot rules, spans that cover segments.
void check_table(const UnitTable& table, std::uint64_t tile_bytes) {
  std::vector<std::vector<std::int64_t>> next_row(table.units().size());
  for (std::size_t u = 0; u < table.units().size(); ++u) next_row[u].resize(table.units()[u].parts.size());
  std::uint64_t total = 0;
  for (const Tile& tile : table.tiles()) {
    std::uint64_t bytes = 0;
    for (const Segment& segment : tile.segments) {
      const Part& owner = table.units()[tile.unit].parts[segment.part];
      EXPECT_EQ(segment.row_begin, next_row[tile.unit][segment.part]) << owner.name;
      next_row[tile.unit][segment.part] = segment.row_end;
      const auto row = static_cast<std::uint64_t>(row_bytes(owner.dtype, owner.cols));
      EXPECT_EQ(segment.bytes, row * static_cast<std::uint64_t>(segment.row_end - segment.row_begin));
      EXPECT_EQ(segment.file_offset, owner.offset + row * static_cast<std::uint64_t>(segment.row_begin));
      EXPECT_EQ(segment.slot_offset % kBlock, segment.file_offset % kBlock);
      EXPECT_LE(segment.slot_offset + segment.bytes, tile.slot_bytes);
      const bool covered = std::any_of(tile.spans.begin(), tile.spans.end(), [&](const Span& span) {
        return span.file == owner.file && span.file_offset <= segment.file_offset &&
               segment.file_offset + segment.bytes <= span.file_offset + span.bytes &&
               segment.slot_offset - span.slot_offset == segment.file_offset - span.file_offset;
      });
      EXPECT_TRUE(covered) << owner.name;
      bytes += segment.bytes;
    }
    EXPECT_EQ(bytes, tile.bytes);
    EXPECT_EQ(tile.slot_bytes % kBlock, 0u);
    const bool one_row = tile.segments.size() == 1 && tile.segments[0].row_end - tile.segments[0].row_begin == 1;
    EXPECT_TRUE(tile.bytes <= tile_bytes || one_row);
    for (std::size_t i = 0; i < tile.spans.size(); ++i) {
      const Span& span = tile.spans[i];
      EXPECT_LE(round_up(span.slot_offset + span.bytes, kBlock), tile.slot_bytes);
      if (i == 0) continue;
      const Span& before = tile.spans[i - 1];
      EXPECT_GE(round_down(span.slot_offset, kBlock), round_up(before.slot_offset + before.bytes, kBlock));
      if (span.file != before.file) continue;
      EXPECT_GE(round_down(span.file_offset, kBlock), round_up(before.file_offset + before.bytes, kBlock));
    }
    total += bytes;
  }
  EXPECT_EQ(total, table.total_bytes());
  for (std::size_t u = 0; u < table.units().size(); ++u)
    for (std::size_t p = 0; p < table.units()[u].parts.size(); ++p)
      EXPECT_EQ(next_row[u][p], table.units()[u].parts[p].rows);
}

UnitTable trunk_and_experts() {
  UnitTable table;
  std::uint64_t at = 1000032;  // a data section starts anywhere that 32 divides
  const auto take = [&](std::string name, std::int64_t rows, std::int64_t cols) {
    Part p = part(std::move(name), rows, cols, at);
    at = round_up(at + p.bytes(), 32);
    return p;
  };
  Unit trunk;
  trunk.layer = 0;
  trunk.parts = {take("attn_norm", 1, 260), take("q", 256, 260),      take("k", 64, 260),    take("v", 64, 260),
                 take("o", 260, 256),       take("ffn_norm", 1, 260), take("router", 8, 260)};
  const Part gate = take("gate_exps", 8 * 96, 260), up = take("up_exps", 8 * 96, 260),
             down = take("down_exps", 8 * 260, 96);
  table.add(trunk);
  for (int e = 0; e < 8; ++e) {
    Unit expert;
    expert.kind = UnitKind::expert;
    expert.layer = 0;
    expert.expert = e;
    for (const Part& whole : {gate, up, down}) {
      Part slice = whole;
      slice.rows = whole.rows / 8;
      slice.offset = whole.offset + static_cast<std::uint64_t>(e) * slice.bytes();
      expert.parts.push_back(slice);
    }
    table.add(expert);
  }
  return table;
}

TEST(UnitTable, EveryRowOnceForManyTileSizes) {
  for (const std::uint64_t tile_bytes :
       {1ull, 1040ull, 4096ull, 20000ull, 65536ull, 100000ull, 1ull << 20, 1ull << 40}) {
    UnitTable table = trunk_and_experts();
    table.cut(tile_bytes);
    SCOPED_TRACE(tile_bytes);
    check_table(table, tile_bytes);
  }
}

TEST(UnitTable, AUnitThatFitsIsOneTile) {
  UnitTable table = trunk_and_experts();
  table.cut(320000);
  for (std::int32_t u = 1; u <= 8; ++u) {
    const auto range = table.tiles_of(u);
    EXPECT_EQ(range.last - range.first, 1);
  }
}

TEST(UnitTable, SideBySideIsOneRead) {
  UnitTable table;
  Unit unit;
  unit.parts = {part("a", 16, 100, 4096 + 7 * 32), part("b", 16, 100, 4096 + 7 * 32 + 6400),
                part("far", 4, 100, 1 << 20), part("other file", 4, 100, 64, 1)};
  table.add(unit);
  table.cut(1 << 20);
  ASSERT_EQ(table.tiles().size(), 1u);
  const Tile& tile = table.tiles()[0];
  ASSERT_EQ(tile.spans.size(), 3u);
  EXPECT_EQ(tile.spans[0].bytes, 12800u);
  EXPECT_EQ(tile.segments[1].slot_offset, tile.segments[0].slot_offset + 6400);
  check_table(table, 1 << 20);
}

TEST(UnitTable, PartsThatShareABlockAreOneRead) {
  UnitTable table;
  Unit unit;
  unit.parts = {part("late", 1, 25, 9000), part("early", 1, 25, 8200)};  // out of file order, 700 bytes apart
  table.add(unit);
  table.cut(1 << 20);
  const Tile& tile = table.tiles()[0];
  ASSERT_EQ(tile.spans.size(), 1u);
  EXPECT_EQ(tile.spans[0].file_offset, 8200u);
  EXPECT_EQ(tile.spans[0].bytes, 900u);
  EXPECT_EQ(tile.slot_bytes, 4096u);
  check_table(table, 1 << 20);
}

TEST(UnitTable, BigMatricesAreCutEvenlyAtRowGroups) {
  UnitTable table;
  Unit unit;
  unit.parts = {part("norm", 1, 256, 0), part("gate", 1000, 256, 1024), part("up", 1000, 256, 1024 + 1024000)};
  table.add(unit);
  table.cut(400 << 10);  // 400 rows of 1 KiB
  ASSERT_EQ(table.tiles().size(), 1u + 3u + 3u);
  const auto gate = table.tiles_of(WeightRef{0, 1}), up = table.tiles_of(WeightRef{0, 2});
  ASSERT_EQ(gate.size(), up.size());
  for (std::size_t i = 0; i < gate.size(); ++i) {
    const Segment& g = table.tiles()[gate[i]].segments[0];
    const Segment& u = table.tiles()[up[i]].segments[0];
    EXPECT_EQ(g.row_begin, u.row_begin);
    EXPECT_EQ(g.row_begin % 16, 0);
    EXPECT_EQ(g.row_begin, static_cast<std::int64_t>(i) * 336);
  }
}

}  // namespace
}  // namespace millrace::residency
