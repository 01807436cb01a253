#include "kv/prefix_cache.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <numeric>

#include "kv/small_layout.h"

namespace millrace::kv {
namespace {

struct Fixture : testing::Test {
  residency::Budget budget{1 << 20};
  std::shared_ptr<BlockPool> pool = std::make_shared<BlockPool>(kSmall, budget);
  PrefixCache cache{pool};

  /// `count` tokens; those from `differs` on are others than usual.
  static std::vector<Token> text(std::int64_t count, std::int64_t differs = 1'000'000) {
    std::vector<Token> tokens(static_cast<std::size_t>(count));
    std::iota(tokens.begin(), tokens.end(), 0);
    for (std::int64_t i = differs; i < count; ++i) tokens[static_cast<std::size_t>(i)] += 5000;
    return tokens;
  }

  /// A sequence as a pass leaves it: each block filled with a byte that names it.
  SequenceState computed(std::int64_t tokens, char mark) {
    SequenceState state(pool);
    EXPECT_TRUE(state.reserve(tokens).ok());
    for (std::int64_t i = 0; i < state.blocks(); ++i)
      std::memset(state.block(0, i), mark + static_cast<char>(i),
                  static_cast<std::size_t>(kSmall.groups()[0].block_bytes()));
    state.set_length(tokens);
    return state;
  }
};

TEST_F(Fixture, SharesWholeBlocksAndCopiesTheOneThatAgreesInPart) {
  const SequenceState first = computed(200, 'a');
  cache.enter(first, text(200));
  EXPECT_EQ(cache.blocks(), 3);
  SequenceState second(pool);
  EXPECT_EQ(cache.extend(second, text(190, 150), 189), 150);
  EXPECT_EQ(second.block(0, 0), first.block(0, 0));
  EXPECT_EQ(second.block(0, 1), first.block(0, 1));
  EXPECT_NE(second.block(0, 2), first.block(0, 2));
  EXPECT_EQ(*second.block(0, 2), static_cast<std::byte>('c'));
  EXPECT_EQ(pool->users(0, first.block(0, 1)), 3) << "two sequences and the cache";
}

TEST_F(Fixture, EntersNoMoreThanTheTokensItIsGiven) {
  const SequenceState ahead = computed(200, 'a');  // of which the last ones are still under way
  cache.enter(ahead, text(130));
  EXPECT_EQ(cache.blocks(), 2);
  EXPECT_EQ(pool->kept(), (std::set<std::uint64_t>{ahead.block_names()[0].number, ahead.block_names()[1].number}));
  SequenceState second(pool);
  EXPECT_EQ(cache.extend(second, text(200), 199), 128);
  EXPECT_EQ(second.block_names()[1], ahead.block_names()[1]) << "shared blocks have one name";
}

TEST_F(Fixture, NeverGivesMoreThanTheLimit) {
  const SequenceState first = computed(128, 'a');
  cache.enter(first, text(128));
  SequenceState second(pool);
  EXPECT_EQ(cache.extend(second, text(128), 127), 127) << "the last token is computed for its logits";
  EXPECT_NE(second.block(0, 1), first.block(0, 1)) << "and what will be written is a copy";
}

TEST_F(Fixture, WritingBehindASharedBlocksEndCopiesIt) {
  const SequenceState first = computed(128, 'a');
  cache.enter(first, text(128));
  SequenceState second(pool);
  ASSERT_EQ(cache.extend(second, text(300), 299), 128);
  ASSERT_EQ(second.rewind(100), 100);
  ASSERT_TRUE(second.reserve(101).ok());
  EXPECT_NE(second.block(0, 1), first.block(0, 1));
  std::memset(second.block(0, 1), 'z', 16);
  EXPECT_EQ(*first.block(0, 1), static_cast<std::byte>('b'));
}

TEST_F(Fixture, OtherBeginningsShareNothing) {
  cache.enter(computed(128, 'a'), text(128));
  SequenceState other(pool);
  EXPECT_EQ(cache.extend(other, text(128, 0), 127), 0);
  EXPECT_EQ(cache.extend(other, text(128, 7), 127), 0) << "a few tokens are not worth a copy";
}

TEST_F(Fixture, LetsGoOfTheOldestLeafWhenTheBoundIsReached) {
  pool->set_bound(0, 4);
  cache.enter(computed(128, 'a'), text(128));
  cache.enter(computed(128, 'p'), text(128, 0));
  EXPECT_EQ(pool->blocks_in_use(), 4);
  {
    SequenceState again(pool);
    EXPECT_EQ(cache.extend(again, text(128), 128), 128);
  }
  SequenceState more(pool);
  ASSERT_TRUE(more.reserve(128).ok()) << "the other text's two blocks left";
  EXPECT_EQ(cache.blocks(), 2);
  SequenceState third(pool);
  EXPECT_EQ(cache.extend(third, text(128), 128), 128);
  EXPECT_FALSE(SequenceState(pool).reserve(1).ok()) << "what sequences use never leaves";
}

TEST_F(Fixture, GivesEveryBlockBack) {
  cache.enter(computed(128, 'a'), text(128));
  cache.clear();
  EXPECT_EQ(pool->blocks_in_use(), 0);
}

/// A full cache lets go of a block for each that is asked for, in the middle of a pass: it must not look through all.
TEST(PrefixCache, LetsGoOfOneOfManyAtOnce) {
  constexpr Token kTexts = 6000;
  residency::Budget budget(1 << 28);
  const auto pool = std::make_shared<BlockPool>(kSmall, budget);
  PrefixCache cache(pool);
  for (Token i = 0; i < kTexts; ++i) {
    SequenceState state(pool);
    ASSERT_TRUE(state.reserve(kBlockTokens).ok());
    state.set_length(kBlockTokens);
    cache.enter(state, std::vector<Token>(kBlockTokens, i));
  }
  EXPECT_EQ(cache.blocks(), kTexts);
  const auto begin = std::chrono::steady_clock::now();
  cache.clear();
  EXPECT_EQ(cache.blocks(), 0);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(1));
}

}  // namespace
}  // namespace millrace::kv
