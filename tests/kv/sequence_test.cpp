#include "kv/sequence.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

namespace millrace::kv {
namespace {

constexpr KvShape kSmall{.layers = 3, .kv_heads = 2, .head_dim = 8, .dtype = DType::f16};

/// Fills every head of every block with bytes that name (block, layer, head, K or V) and nothing else.
void fill(SequenceState& state, unsigned seed) {
  std::mt19937 random(seed);
  const std::int64_t head_bytes = kSmall.block_bytes() / (2 * kSmall.layers * kSmall.kv_heads);
  for (std::int64_t block = 0; block < state.blocks(); ++block)
    for (std::int64_t layer = 0; layer < kSmall.layers; ++layer)
      for (std::int64_t head = 0; head < kSmall.kv_heads; ++head)
        for (std::byte* at : {state.k(block, layer, head), state.v(block, layer, head)})
          for (std::int64_t i = 0; i < head_bytes; ++i) at[i] = static_cast<std::byte>(random());
}

TEST(KvShape, CountsBytesOfBothKindsInAllLayers) {
  EXPECT_EQ(kSmall.bytes_per_token(), 2 * 3 * 2 * 8 * 2);
  EXPECT_EQ(kSmall.block_bytes(), 64 * 2 * 3 * 2 * 8 * 2);
  KvShape wide = kSmall;
  wide.dtype = DType::f32;
  EXPECT_EQ(wide.bytes_per_token(), 2 * kSmall.bytes_per_token());
}

TEST(BlockPool, ReservesWholePagesBlockByBlockAndGivesThemBackOnTrim) {
  residency::Budget budget(1 << 20);
  BlockPool pool(kSmall, budget);
  EXPECT_EQ(budget.reserved_bytes(), 0u);
  const std::uint64_t block = (static_cast<std::uint64_t>(kSmall.block_bytes()) + 4095) / 4096 * 4096;
  std::byte* first = *pool.allocate();
  std::byte* second = *pool.allocate();
  EXPECT_EQ(budget.reserved_bytes(), 2 * block);
  EXPECT_EQ(budget.entries().at(0).tag, "kv");
  std::memset(first, 0x5a, static_cast<std::size_t>(kSmall.block_bytes()));
  pool.release(first);
  EXPECT_EQ(pool.blocks_in_use(), 1);
  EXPECT_EQ(budget.reserved_bytes(), 2 * block) << "free blocks are kept for reuse";
  std::byte* again = *pool.allocate();
  EXPECT_EQ(again, first);
  for (std::int64_t i = 0; i < kSmall.block_bytes(); ++i) ASSERT_EQ(again[i], std::byte{0}) << "not zeroed at " << i;
  pool.release(again);
  pool.release(second);
  pool.trim();
  EXPECT_EQ(budget.reserved_bytes(), 0u);
}

TEST(SequenceState, HeadsDoNotOverlapAndCoverTheBlock) {
  residency::Budget budget(1 << 20);
  SequenceState state(std::make_shared<BlockPool>(kSmall, budget));
  ASSERT_TRUE(state.reserve(1).ok());
  const std::int64_t head_bytes = kSmall.head_dim * kBlockTokens * 2;
  std::byte* expected = state.k(0, 0, 0);
  for (std::int64_t layer = 0; layer < kSmall.layers; ++layer) {
    for (std::int64_t head = 0; head < kSmall.kv_heads; ++head, expected += head_bytes)
      EXPECT_EQ(state.k(0, layer, head), expected);
    for (std::int64_t head = 0; head < kSmall.kv_heads; ++head, expected += head_bytes)
      EXPECT_EQ(state.v(0, layer, head), expected);
  }
  EXPECT_EQ(expected - state.k(0, 0, 0), kSmall.block_bytes());
}

TEST(SequenceState, ReserveThatDoesNotFitChangesNothing) {
  residency::Budget budget(static_cast<std::uint64_t>(2 * ((kSmall.block_bytes() + 4095) / 4096 * 4096)));
  auto pool = std::make_shared<BlockPool>(kSmall, budget);
  SequenceState state(pool);
  ASSERT_TRUE(state.reserve(64).ok());
  state.set_length(64);
  const Status refused = state.reserve(64 * 3);
  EXPECT_EQ(refused.code(), Code::out_of_budget);
  EXPECT_NE(refused.message().find("192 tokens"), std::string::npos) << refused.message();
  EXPECT_EQ(state.blocks(), 1);
  EXPECT_EQ(state.length(), 64);
  EXPECT_TRUE(state.reserve(128).ok()) << "what was tried in vain must be free again";
}

TEST(SequenceState, TruncateGivesBlocksBack) {
  residency::Budget budget(1 << 20);
  auto pool = std::make_shared<BlockPool>(kSmall, budget);
  SequenceState state(pool);
  ASSERT_TRUE(state.reserve(200).ok());
  state.set_length(200);
  EXPECT_EQ(state.blocks(), 4);
  state.truncate(65);
  EXPECT_EQ(state.blocks(), 2);
  EXPECT_EQ(state.length(), 65);
  state.truncate(500);
  EXPECT_EQ(state.length(), 65) << "truncate never grows";
  state.truncate(0);
  EXPECT_EQ(pool->blocks_in_use(), 0);
}

TEST(SequenceState, MovesLeaveNothingBehind) {
  residency::Budget budget(1 << 20);
  auto pool = std::make_shared<BlockPool>(kSmall, budget);
  {
    SequenceState first(pool);
    ASSERT_TRUE(first.reserve(100).ok());
    first.set_length(100);
    SequenceState second(std::move(first));
    EXPECT_EQ(second.length(), 100);
    SequenceState third(pool);
    third = std::move(second);
    EXPECT_EQ(third.length(), 100);
    EXPECT_EQ(pool->blocks_in_use(), 2);
  }
  EXPECT_EQ(pool->blocks_in_use(), 0);
}

TEST(Snapshot, RestoresWhatWasThere) {
  residency::Budget budget(1 << 20);
  auto pool = std::make_shared<BlockPool>(kSmall, budget);
  SequenceState state(pool);
  ASSERT_TRUE(state.reserve(150).ok());
  state.set_length(150);
  fill(state, 1);
  const std::vector<std::byte> bytes = state.snapshot().value();

  SequenceState other(pool);
  ASSERT_TRUE(other.reserve(400).ok());
  other.set_length(400);
  fill(other, 2);
  ASSERT_TRUE(other.restore(bytes).ok());
  EXPECT_EQ(other.length(), 150);
  EXPECT_EQ(other.blocks(), 3);
  for (std::int64_t block = 0; block < 3; ++block)
    EXPECT_EQ(std::memcmp(state.k(block, 0, 0), other.k(block, 0, 0), static_cast<std::size_t>(kSmall.block_bytes())),
              0);
  EXPECT_EQ(other.snapshot().value(), bytes);
}

TEST(Snapshot, OfAnEmptySequenceRestores) {
  residency::Budget budget(1 << 20);
  auto pool = std::make_shared<BlockPool>(kSmall, budget);
  const std::vector<std::byte> bytes = SequenceState(pool).snapshot().value();
  SequenceState other(pool);
  EXPECT_TRUE(other.restore(bytes).ok());
  EXPECT_EQ(other.length(), 0);
}

TEST(Snapshot, DamageAnywhereIsFoundAndChangesNothing) {
  residency::Budget budget(1 << 20);
  auto pool = std::make_shared<BlockPool>(kSmall, budget);
  SequenceState state(pool);
  ASSERT_TRUE(state.reserve(70).ok());
  state.set_length(70);
  fill(state, 3);
  const std::vector<std::byte> good = state.snapshot().value();
  SequenceState other(pool);
  ASSERT_TRUE(other.reserve(10).ok());
  other.set_length(10);
  fill(other, 4);
  const std::vector<std::byte> before = other.snapshot().value();

  for (std::size_t at = 0; at < good.size(); at += at < 64 ? 1 : 509) {
    std::vector<std::byte> bad = good;
    bad[at] ^= std::byte{0x10};
    const Status status = other.restore(bad);
    ASSERT_EQ(status.code(), Code::corrupt) << "flip at " << at;
  }
  for (std::size_t size : {std::size_t{0}, std::size_t{7}, std::size_t{63}, good.size() - 1, good.size() / 2})
    ASSERT_EQ(other.restore({good.begin(), good.begin() + static_cast<std::ptrdiff_t>(size)}).code(), Code::corrupt);
  EXPECT_EQ(other.snapshot().value(), before);
}

TEST(Snapshot, OfAnotherShapeIsRefused) {
  residency::Budget budget(1 << 20);
  SequenceState state(std::make_shared<BlockPool>(kSmall, budget));
  KvShape wider = kSmall;
  wider.dtype = DType::f32;
  SequenceState other(std::make_shared<BlockPool>(wider, budget));
  EXPECT_EQ(other.restore(state.snapshot().value()).code(), Code::corrupt);
}

TEST(Snapshot, ThatDoesNotFitTheBudgetLeavesTheSequenceAsItWas) {
  residency::Budget large(1 << 20), small(static_cast<std::uint64_t>(kSmall.block_bytes()) + 4096);
  SequenceState state(std::make_shared<BlockPool>(kSmall, large));
  ASSERT_TRUE(state.reserve(300).ok());
  state.set_length(300);
  SequenceState other(std::make_shared<BlockPool>(kSmall, small));
  ASSERT_TRUE(other.reserve(5).ok());
  other.set_length(5);
  EXPECT_EQ(other.restore(state.snapshot().value()).code(), Code::out_of_budget);
  EXPECT_EQ(other.length(), 5);
}

}  // namespace
}  // namespace millrace::kv
