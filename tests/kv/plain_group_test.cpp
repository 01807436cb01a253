// Few bits: the second group, of each sequence's first block and the one that its next token lies in.
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "kv/footprint.h"
#include "kv/prefix_cache.h"
#include "kv/sequence.h"

namespace millrace::kv {
namespace {

constexpr std::size_t kFew = 0, kPlain = 1;

std::vector<Token> text(std::int64_t count) {
  std::vector<Token> tokens(static_cast<std::size_t>(count));
  std::iota(tokens.begin(), tokens.end(), 0);
  return tokens;
}

struct PlainGroup : testing::Test {
  static Layout layout() {
    const LayerKv layer{Keeps::attention, 1, 32, 32};
    return Layout(std::span(&layer, 1)).with(DType::q2_0, kOnHost);
  }
  residency::Budget budget{8 << 20};
  std::shared_ptr<BlockPool> pool = std::make_shared<BlockPool>(layout(), budget);

  std::size_t bytes(std::size_t group) const {
    return static_cast<std::size_t>(pool->layout().groups()[group].block_bytes());
  }
  static int mark(std::size_t group, std::int64_t block) {
    return static_cast<int>(block) * 2 + static_cast<int>(group);
  }
  /// Goes on to `tokens` in passes of `rows`, each block filled with a byte that names it.
  void compute(SequenceState& state, std::int64_t tokens, std::int64_t rows, PrefixCache* cache = nullptr) const {
    while (state.length() < tokens) {
      const std::int64_t from = state.length(), to = std::min(tokens, from + rows);
      ASSERT_TRUE(state.reserve(to).ok());
      for (std::int64_t position = from; position < to; ++position) ASSERT_TRUE(state.holds(position));
      for (std::int64_t i = from / kBlockTokens; i < blocks_for(to); ++i)
        for (const std::size_t g : {kFew, kPlain}) std::memset(state.block(g, i), mark(g, i), bytes(g));
      state.set_length(to);
      if (cache != nullptr) cache->enter(state, text(tokens));
      state.forget_behind_windows();
    }
  }
  static void expect_marked(const SequenceState& state, std::size_t group, std::int64_t block) {
    ASSERT_NE(state.block(group, block), nullptr) << group << " " << block;
    EXPECT_EQ(*state.block(group, block), static_cast<std::byte>(mark(group, block))) << group << " " << block;
  }
};

TEST_F(PlainGroup, KeepsTheFirstBlockAndTheOneThatTheNextTokenLiesIn) {
  for (const std::int64_t rows : {1, 50, 300}) {
    SequenceState state(pool);
    compute(state, 1000, rows);
    EXPECT_EQ(pool->blocks_in_use(kFew), 16);
    EXPECT_EQ(pool->blocks_in_use(kPlain), 2);
    expect_marked(state, kPlain, 0);
    expect_marked(state, kPlain, 15);
    EXPECT_EQ(state.block(kPlain, 14), nullptr);
    compute(state, 1024, 24);
    EXPECT_EQ(pool->blocks_in_use(kPlain), 1) << "behind a whole block the next token lies in none yet";
    EXPECT_TRUE(state.goes_on(1024));
  }
  EXPECT_EQ(pool->blocks_in_use(), 0);
}

TEST_F(PlainGroup, APassTakesNoMoreBlocksThanArePlanned) {
  const Group& group = pool->layout().groups()[kPlain];
  for (const std::int64_t begin : {0, 1, 63, 64, 700}) {
    SequenceState state(pool);
    compute(state, begin, 64);
    ASSERT_TRUE(state.reserve(begin + 256).ok());
    EXPECT_LE(pool->blocks_in_use(kPlain), most_blocks(group, {4096, 1, 256})) << begin;
  }
  EXPECT_LE(most_blocks(group, {100'000, 2, 256}), 10);
}

TEST_F(PlainGroup, GoesBackToWhereABlockBeginsIfItsHalvesAreGone) {
  SequenceState state(pool);
  compute(state, 200, 200);
  EXPECT_EQ(state.rewind(195), 195) << "in the newest block all is there";
  EXPECT_EQ(state.rewind(192), 192);
  EXPECT_EQ(state.rewind(150), 128) << "of block 2 only the few bits are";
  expect_marked(state, kPlain, 0);
  compute(state, 300, 7);
  expect_marked(state, kPlain, 4);
  expect_marked(state, kFew, 1);
  EXPECT_EQ(state.rewind(20), 0);
}

TEST_F(PlainGroup, OthersGoOnFromWholeBlocks) {
  PrefixCache cache(pool);
  {
    SequenceState first(pool);
    compute(first, 300, 100, &cache);
  }
  while (cache.let_go(kPlain)) {
  }
  SequenceState second(pool);
  EXPECT_EQ(cache.extend(second, text(1000), 300), 0) << "without the first block in f16 nobody goes on";
  compute(second, 64, 64, &cache);
  SequenceState third(pool);
  EXPECT_EQ(cache.extend(third, text(1000), 300), 256);
  EXPECT_TRUE(third.goes_on(256));
  expect_marked(third, kPlain, 0);
  expect_marked(third, kFew, 3);
  compute(third, 400, 100);
  expect_marked(third, kPlain, 6);
}

TEST_F(PlainGroup, SnapshotsHaveBothEnds) {
  SequenceState state(pool);
  compute(state, 300, 100);
  const auto bytes = state.snapshot();
  ASSERT_TRUE(bytes.ok()) << bytes.status().message();
  SequenceState other(pool);
  ASSERT_TRUE(other.restore(*bytes).ok());
  EXPECT_EQ(other.length(), 300);
  expect_marked(other, kPlain, 0);
  expect_marked(other, kPlain, 4);
  EXPECT_EQ(other.block(kPlain, 2), nullptr);
  for (std::int64_t i = 0; i < 5; ++i) expect_marked(other, kFew, i);
  EXPECT_TRUE(other.goes_on(300));
}

}  // namespace
}  // namespace millrace::kv
