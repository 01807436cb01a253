// Rows that stand for several tokens each, and the inputs of which they are made: where they lie, how much that is, and
// how far a sequence can go back.
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "kv/footprint.h"
#include "kv/prefix_cache.h"
#include "kv/sequence.h"

namespace millrace::kv {
namespace {

constexpr std::int64_t kDim = 32, kIndexDim = 16;
constexpr std::size_t kNear = 0, kRows = 1, kInputs = 2;  // groups

/// A window of 16 latents, rows of `ratio` tokens with index keys, and inputs of as many tokens as a row needs.
Layout rows_layout(std::int64_t ratio, std::int64_t needs, DType dtype = DType::f16) {
  const LayerKv layers[] = {{Keeps::latent, 1, 0, kDim, 16},
                            {Keeps::latent, 1, 0, kDim, 0, -1, {}, kIndexDim, ratio},
                            {Keeps::inputs, 1, 0, 4 * kDim, needs}};
  return Layout(layers).with(dtype, kOnHost);
}

TEST(Rows, LieInTheBlockOfTheirLastToken) {
  for (const std::int64_t ratio : {1, 2, 4, 16, 64, 128, 192}) {
    ASSERT_TRUE(is_ratio(ratio));
    const std::int64_t rows = rows_layout(ratio, ratio).groups()[kRows].rows();
    for (std::int64_t row = 0; row < 100; ++row) {
      const RowPlace place = row_place(row, ratio);
      EXPECT_EQ(place.block, ((row + 1) * ratio - 1) / kBlockTokens);
      EXPECT_LT(place.row, rows);
      if (row == 0) continue;
      const RowPlace before = row_place(row - 1, ratio);
      EXPECT_TRUE(place.block > before.block || place.row == before.row + 1) << ratio << " " << row;
    }
  }
  EXPECT_FALSE(is_ratio(0));
  EXPECT_FALSE(is_ratio(3));
  EXPECT_FALSE(is_ratio(96));
}

TEST(Rows, TakeAShareOfWhatTokensWould) {
  for (const DType dtype : {DType::f16, DType::f32, DType::q8_0}) {
    const std::int64_t latent = row_bytes(dtype, kDim), index = kIndexDim * (dtype == DType::f32 ? 4 : 2);
    const Layout layout = rows_layout(4, 8, dtype);
    ASSERT_EQ(layout.groups().size(), 3u);
    EXPECT_EQ(layout.groups()[kRows].block_bytes(), 16 * (latent + index));
    EXPECT_EQ(layout.groups()[kInputs].block_bytes(), 64 * 4 * kDim * 4) << "float32 whatever the format";
    EXPECT_EQ(layout.offset(1, Part::index, 0), 16 * latent);
    EXPECT_TRUE(layout.groups()[kRows].keeps_all());
    EXPECT_EQ(rows_layout(128, 128, dtype).groups()[kRows].block_bytes(), latent + index);
  }
  EXPECT_EQ(rows_layout(4, 8).describe(),
            "1 layers x latents of 32 F16, window 16; 1 layers x latents of 32 F16 for each 4 tokens, index keys of 16 "
            "F16; 1 layers x inputs of 128 f32, window 8");
  EXPECT_NE(rows_layout(4, 8).describe(), rows_layout(8, 8).describe());
  // Of a long sequence, inputs take the blocks of their window alone.
  EXPECT_EQ(most_blocks(rows_layout(4, 8).groups()[kInputs], {100'000, 1, 0}), 3);
}

struct RowBlocks : testing::Test {
  residency::Budget budget{16 << 20};
  std::shared_ptr<BlockPool> pool;

  void keep(const Layout& layout) { pool = std::make_shared<BlockPool>(layout, budget); }
  static void compute(SequenceState& state, std::int64_t tokens, std::int64_t rows) {
    while (state.length() < tokens) {
      const std::int64_t to = std::min(tokens, state.length() + rows);
      ASSERT_TRUE(state.reserve(to).ok());
      state.set_length(to);
      state.forget_behind_windows();
    }
  }
};

TEST_F(RowBlocks, StayWhereWindowsLetGo) {
  keep(rows_layout(128, 128));
  SequenceState state(pool);
  compute(state, 1000, 50);
  EXPECT_EQ(pool->blocks_in_use(kRows), 16);
  EXPECT_EQ(pool->blocks_in_use(kNear), 1) << "keys from 985 on";
  EXPECT_EQ(pool->blocks_in_use(kInputs), 3) << "inputs from 873 on";
}

/// What is needed to make the open row anew is there as far as a sequence goes back at all.
TEST_F(RowBlocks, ASequenceGoesBackAsFarAsTheOpenRowsInputsAreThere) {
  for (const std::int64_t ratio : {4, 128}) {
    keep(rows_layout(ratio, ratio));
    SequenceState state(pool);
    compute(state, 1000, 1);
    const std::int64_t first = pool->layout().groups()[kInputs].first_seen(1000) / kBlockTokens * kBlockTokens;
    const std::int64_t near = pool->layout().groups()[kNear].first_seen(1000) / kBlockTokens * kBlockTokens;
    const std::int64_t least = std::max(first + ratio - 1, near + 15);  // sees no token before these blocks
    EXPECT_EQ(state.rewind(least), least) << ratio;
    EXPECT_TRUE(state.goes_on(least));
    for (std::int64_t token = least / ratio * ratio; token < least; ++token)
      EXPECT_NE(state.block(kInputs, token / kBlockTokens), nullptr) << ratio << " " << token;
    EXPECT_EQ(state.rewind(least - 1), 0) << ratio;
  }
}

TEST_F(RowBlocks, ASnapshotIsOfOneRatio) {
  keep(rows_layout(4, 8));
  SequenceState state(pool);
  compute(state, 200, 50);
  const Expected<std::vector<std::byte>> bytes = state.snapshot();
  ASSERT_TRUE(bytes.ok());
  SequenceState again(pool);
  ASSERT_TRUE(again.restore(*bytes).ok());
  EXPECT_EQ(again.length(), 200);
  // As many bytes, but rows of other tokens.
  const auto other = std::make_shared<BlockPool>(rows_layout(128, 8), budget);
  SequenceState of_other(other);
  EXPECT_EQ(of_other.restore(*bytes).code(), Code::corrupt);
  EXPECT_EQ(of_other.length(), 0);
}

}  // namespace
}  // namespace millrace::kv
