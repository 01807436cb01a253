#include "kv/sequence.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "kv/small_layout.h"

namespace millrace::kv {
namespace {

const Layout kSmallOfTwoHeads = equal_layers(3, 2, 8);
const std::int64_t kBlockBytes = kSmallOfTwoHeads.groups()[0].block_bytes(), kHeadBytes = 8 * kBlockTokens * 2;

/// Fills every head of every block with bytes that name (block, layer, head, K or V) and nothing else.
void fill(SequenceState& state, unsigned seed) {
  std::mt19937 random(seed);
  for (std::int64_t block = 0; block < state.blocks(); ++block)
    for (std::int64_t layer = 0; layer < 3; ++layer)
      for (std::int64_t head = 0; head < 2; ++head)
        for (std::byte* at : {state.k(block, layer, head), state.v(block, layer, head)})
          for (std::int64_t i = 0; i < kHeadBytes; ++i) at[i] = static_cast<std::byte>(random());
}

TEST(BlockPool, KnowsItsSequencesByNumber) {
  residency::Budget budget(1 << 20);
  const auto pool = std::make_shared<BlockPool>(kSmallOfTwoHeads, budget);
  SequenceState first(pool);
  const std::uint64_t number = first.number();
  EXPECT_EQ(pool->sequences().at(number), &first);
  {
    SequenceState second(pool);
    EXPECT_NE(second.number(), number);
    EXPECT_EQ(pool->sequences().size(), 2u);
  }
  EXPECT_EQ(pool->sequences().size(), 1u);
  SequenceState moved(std::move(first));
  EXPECT_EQ(moved.number(), number);
  EXPECT_EQ(first.number(), 0u);  // NOLINT(bugprone-use-after-move): what was moved from stays usable
  EXPECT_EQ(pool->sequences().at(number), &moved);
  SequenceState other(pool);
  const std::uint64_t of_other = other.number();
  other = std::move(moved);
  EXPECT_EQ(pool->sequences().at(number), &other);
  EXPECT_EQ(pool->sequences().at(of_other), &moved);
}

TEST(BlockPool, ReservesWholePagesBlockByBlockAndGivesThemBackOnTrim) {
  residency::Budget budget(1 << 20);
  BlockPool pool(kSmallOfTwoHeads, budget);
  EXPECT_EQ(budget.reserved_bytes(), 0u);
  const std::uint64_t block = (static_cast<std::uint64_t>(kBlockBytes) + 4095) / 4096 * 4096;
  std::byte* first = *pool.allocate(0);
  std::byte* second = *pool.allocate(0);
  EXPECT_EQ(budget.reserved_bytes(), 2 * block);
  EXPECT_EQ(budget.entries().at(0).tag, "kv");
  std::memset(first, 0x5a, static_cast<std::size_t>(kBlockBytes));
  pool.release(0, first);
  EXPECT_EQ(pool.blocks_in_use(), 1);
  EXPECT_EQ(budget.reserved_bytes(), 2 * block) << "free blocks are kept for reuse";
  std::byte* again = *pool.allocate(0);
  EXPECT_EQ(again, first);
  for (std::int64_t i = 0; i < kBlockBytes; ++i) ASSERT_EQ(again[i], std::byte{0}) << "not zeroed at " << i;
  pool.release(0, again);
  pool.release(0, second);
  pool.trim();
  EXPECT_EQ(budget.reserved_bytes(), 0u);
}

TEST(SequenceState, HeadsDoNotOverlapAndCoverTheBlock) {
  residency::Budget budget(1 << 20);
  SequenceState state(std::make_shared<BlockPool>(kSmallOfTwoHeads, budget));
  ASSERT_TRUE(state.reserve(1).ok());
  std::byte* expected = state.k(0, 0, 0);
  for (std::int64_t layer = 0; layer < 3; ++layer) {
    for (std::int64_t head = 0; head < 2; ++head, expected += kHeadBytes) EXPECT_EQ(state.k(0, layer, head), expected);
    for (std::int64_t head = 0; head < 2; ++head, expected += kHeadBytes) EXPECT_EQ(state.v(0, layer, head), expected);
  }
  EXPECT_EQ(expected - state.k(0, 0, 0), kBlockBytes);
}

TEST(SequenceState, ReserveThatDoesNotFitChangesNothing) {
  residency::Budget budget(static_cast<std::uint64_t>(2 * ((kBlockBytes + 4095) / 4096 * 4096)));
  auto pool = std::make_shared<BlockPool>(kSmallOfTwoHeads, budget);
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

TEST(SequenceState, RewindGivesBlocksBack) {
  residency::Budget budget(1 << 20);
  auto pool = std::make_shared<BlockPool>(kSmallOfTwoHeads, budget);
  SequenceState state(pool);
  ASSERT_TRUE(state.reserve(200).ok());
  state.set_length(200);
  EXPECT_EQ(state.blocks(), 4);
  EXPECT_EQ(state.rewind(65), 65);
  EXPECT_EQ(state.blocks(), 2);
  EXPECT_EQ(state.length(), 65);
  EXPECT_EQ(state.rewind(500), 65);
  EXPECT_EQ(state.length(), 65) << "rewind never grows";
  EXPECT_EQ(state.rewind(0), 0);
  EXPECT_EQ(pool->blocks_in_use(), 0);
}

TEST(SequenceState, MovesLeaveNothingBehind) {
  residency::Budget budget(1 << 20);
  auto pool = std::make_shared<BlockPool>(kSmallOfTwoHeads, budget);
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
  auto pool = std::make_shared<BlockPool>(kSmallOfTwoHeads, budget);
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
    EXPECT_EQ(std::memcmp(state.k(block, 0, 0), other.k(block, 0, 0), static_cast<std::size_t>(kBlockBytes)), 0);
  EXPECT_EQ(other.snapshot().value(), bytes);
}

TEST(Snapshot, OfAnEmptySequenceRestores) {
  residency::Budget budget(1 << 20);
  auto pool = std::make_shared<BlockPool>(kSmallOfTwoHeads, budget);
  const std::vector<std::byte> bytes = SequenceState(pool).snapshot().value();
  SequenceState other(pool);
  EXPECT_TRUE(other.restore(bytes).ok());
  EXPECT_EQ(other.length(), 0);
}

TEST(Snapshot, DamageAnywhereIsFoundAndChangesNothing) {
  residency::Budget budget(1 << 20);
  auto pool = std::make_shared<BlockPool>(kSmallOfTwoHeads, budget);
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
  for (std::size_t size : {std::size_t{0}, std::size_t{7}, std::size_t{39}, std::size_t{40}, std::size_t{63},
                           good.size() - 1, good.size() / 2})
    ASSERT_EQ(other.restore({good.begin(), good.begin() + static_cast<std::ptrdiff_t>(size)}).code(), Code::corrupt);
  EXPECT_EQ(other.snapshot().value(), before);
}

TEST(Snapshot, OfAnotherShapeIsRefused) {
  residency::Budget budget(1 << 20);
  SequenceState state(std::make_shared<BlockPool>(kSmallOfTwoHeads, budget));
  for (const Layout& wrong : {equal_layers(3, 2, 8, DType::f32), equal_layers(2, 2, 8), with_window(100)}) {
    SequenceState other(std::make_shared<BlockPool>(wrong, budget));
    EXPECT_EQ(other.restore(state.snapshot().value()).code(), Code::corrupt) << wrong.describe();
  }
}

TEST(Snapshot, ThatDoesNotFitTheBudgetLeavesTheSequenceAsItWas) {
  residency::Budget large(1 << 20), small(static_cast<std::uint64_t>(kBlockBytes) + 4096);
  SequenceState state(std::make_shared<BlockPool>(kSmallOfTwoHeads, large));
  ASSERT_TRUE(state.reserve(300).ok());
  state.set_length(300);
  SequenceState other(std::make_shared<BlockPool>(kSmallOfTwoHeads, small));
  ASSERT_TRUE(other.reserve(5).ok());
  other.set_length(5);
  EXPECT_EQ(other.restore(state.snapshot().value()).code(), Code::out_of_budget);
  EXPECT_EQ(other.length(), 5);
}

}  // namespace
}  // namespace millrace::kv
