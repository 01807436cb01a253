// Groups with a window: what goes behind it, how far back a sequence can go, and what others may share.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <numeric>
#include <thread>

#include "kv/prefix_cache.h"
#include "kv/prompt_cache.h"
#include "kv/small_layout.h"

namespace millrace::kv {
namespace {

constexpr std::int64_t kWindow = 100;
constexpr std::size_t kLocal = 0, kGlobal = 1;

std::vector<Token> text(std::int64_t count, std::int64_t differs = 1'000'000) {
  std::vector<Token> tokens(static_cast<std::size_t>(count));
  std::iota(tokens.begin(), tokens.end(), 0);
  for (std::int64_t i = differs; i < count; ++i) tokens[static_cast<std::size_t>(i)] += 5000;
  return tokens;
}

struct Windows : testing::Test {
  residency::Budget budget{4 << 20};
  std::shared_ptr<BlockPool> pool = std::make_shared<BlockPool>(with_window(kWindow), budget);

  std::size_t bytes(std::size_t group) const {
    return static_cast<std::size_t>(pool->layout().groups()[group].block_bytes());
  }
  static int mark(std::size_t group, std::int64_t block) {
    return static_cast<int>(block) * 2 + static_cast<int>(group);
  }
  /// Goes on to `tokens` in passes of `rows`, as the scheduler does, each block filled with a byte that names it.
  void compute(SequenceState& state, std::int64_t tokens, std::int64_t rows, PrefixCache* cache = nullptr,
               std::int64_t differs = 1'000'000) const {
    while (state.length() < tokens) {
      const std::int64_t from = state.length(), to = std::min(tokens, from + rows);
      ASSERT_TRUE(state.reserve(to).ok());
      for (std::int64_t position = from; position < to; ++position) ASSERT_TRUE(state.holds(position));
      for (std::int64_t i = from / kBlockTokens; i < blocks_for(to); ++i)
        for (const std::size_t g : {kLocal, kGlobal}) std::memset(state.block(g, i), mark(g, i), bytes(g));
      state.set_length(to);
      if (cache != nullptr) cache->enter(state, text(tokens, differs));
      state.forget_behind_windows();
    }
  }
  /// All that the next token sees is there and is what was computed.
  void expect_goes_on(const SequenceState& state) const {
    ASSERT_TRUE(state.goes_on(state.length()));
    for (const std::size_t g : {kLocal, kGlobal}) {
      const std::int64_t first = pool->layout().groups()[g].first_seen(state.length()) / kBlockTokens;
      for (std::int64_t i = first; i < blocks_for(state.length()); ++i) {
        ASSERT_NE(state.block(g, i), nullptr) << g << " " << i;
        EXPECT_EQ(*state.block(g, i), static_cast<std::byte>(mark(g, i))) << g << " " << i;
      }
    }
  }
};

TEST_F(Windows, LetGoOfTheBlocksBehindThem) {
  SequenceState state(pool);
  compute(state, 1000, 1);
  // Token 1000 sees keys from 901 on, which lie in block 14.
  EXPECT_EQ(pool->blocks_in_use(kLocal), 2);
  EXPECT_EQ(pool->blocks_in_use(kGlobal), 16);
  EXPECT_EQ(state.block(kLocal, 13), nullptr);
  EXPECT_NE(state.block(kLocal, 14), nullptr);
  expect_goes_on(state);
  ASSERT_TRUE(state.reserve(1600).ok());
  EXPECT_EQ(pool->blocks_in_use(kLocal), 11) << "a pass of many rows has room for all of them and the window";
  state.set_length(1600);
  EXPECT_EQ(pool->blocks_in_use(kLocal), 11);
  state.forget_behind_windows();
  EXPECT_EQ(pool->blocks_in_use(kLocal), 2) << "keys from 1501 on";
}

TEST_F(Windows, KeepWhatAWindowStillTouches) {
  for (const std::int64_t window : {1, 2, 63, 64, 65, 128, 129}) {
    pool = std::make_shared<BlockPool>(with_window(window), budget);
    SequenceState state(pool);
    for (std::int64_t length = 1; length < 400; ++length) {
      compute(state, length, 1);
      expect_goes_on(state);
      const std::int64_t first = std::max<std::int64_t>(0, length - window + 1) / 64;
      EXPECT_EQ(pool->blocks_in_use(kLocal), std::max<std::int64_t>(0, blocks_for(length) - first)) << window;
    }
  }
}

TEST_F(Windows, RewindSaysHowFarItGot) {
  SequenceState state(pool);
  compute(state, 1000, 50);
  EXPECT_EQ(state.rewind(995), 995) << "sees keys from 896 on, the first of block 14";
  expect_goes_on(state);
  EXPECT_EQ(state.rewind(994), 0) << "would see key 895";
  EXPECT_EQ(pool->blocks_in_use(), 0);
  EXPECT_EQ(state.blocks(), 0);
  compute(state, 300, 50);
  expect_goes_on(state);
}

TEST_F(Windows, ASequenceThatLostKeysIsNotComputedOn) {
  SequenceState state(pool);
  for (int i = 0; i < 3; ++i) {
    std::byte* const global = *pool->allocate(kGlobal);
    std::byte* const blocks[] = {nullptr, global};
    state.share(blocks, 0);
    pool->release(kGlobal, global);
  }
  EXPECT_EQ(state.length(), 192);
  EXPECT_FALSE(state.goes_on(192));
  EXPECT_FALSE(state.holds(191));
  EXPECT_EQ(state.reserve(193).code(), Code::internal);
  EXPECT_EQ(state.rewind(192), 0);
}

TEST_F(Windows, SnapshotsLeaveOutWhatIsGone) {
  SequenceState state(pool);
  compute(state, 1000, 100);
  const std::vector<std::byte> bytes_of = state.snapshot().value();
  EXPECT_LT(bytes_of.size(), 16 * bytes(kGlobal) + 3 * bytes(kLocal));
  SequenceState other(pool);
  ASSERT_TRUE(other.restore(bytes_of).ok());
  EXPECT_EQ(other.length(), 1000);
  expect_goes_on(other);
  EXPECT_EQ(other.block(kLocal, 13), nullptr);
  EXPECT_EQ(other.snapshot().value(), bytes_of);
}

// --- The tree of beginnings ---

TEST_F(Windows, ABeginningIsOfUseWhereTheWindowsKeysAreThere) {
  PrefixCache cache(pool);
  {
    SequenceState first(pool);
    compute(first, 640, 640, &cache);
  }
  EXPECT_EQ(pool->blocks_in_use(kLocal), 10) << "the tree has all of the pass";
  SequenceState second(pool);
  EXPECT_EQ(cache.extend(second, text(640, 330), 639), 330);
  expect_goes_on(second);
  EXPECT_EQ(second.block(kLocal, 2), nullptr) << "not held for nothing: keys from 231 on";
  EXPECT_NE(second.block(kLocal, 3), nullptr);
}

TEST_F(Windows, TheLongestUsableBeginningIsTaken) {
  PrefixCache cache(pool);
  {
    SequenceState first(pool);
    compute(first, 256, 256, &cache);  // local blocks 0 to 3
    pool->set_bound(kLocal, 4);
    for (std::int64_t length = 257; length <= 640; ++length) compute(first, length, 1, &cache);
  }
  EXPECT_EQ(pool->blocks_in_use(kLocal), 4) << "the tree gave its own up as the sequence went on";
  EXPECT_EQ(pool->blocks_in_use(kGlobal), 10);
  SequenceState to_the_end(pool);
  EXPECT_EQ(cache.extend(to_the_end, text(700), 699), 640);
  expect_goes_on(to_the_end);
  SequenceState far_back(pool);
  EXPECT_EQ(cache.extend(far_back, text(700, 300), 699), 0) << "keys from 201 on are gone";
  EXPECT_EQ(pool->blocks_in_use(kGlobal), 10);
}

TEST_F(Windows, TheTreeLetsGoOfLocalBlocksWhereverTheyStand) {
  PrefixCache cache(pool);
  {
    SequenceState first(pool);
    compute(first, 640, 640, &cache);
  }
  ASSERT_TRUE(cache.let_go(kLocal));
  EXPECT_EQ(pool->blocks_in_use(kLocal), 9);
  EXPECT_EQ(pool->blocks_in_use(kGlobal), 10);
  SequenceState second(pool);
  EXPECT_EQ(cache.extend(second, text(640, 64), 639), 0) << "the oldest is the first";
  EXPECT_EQ(cache.extend(second, text(640), 639), 639);
  EXPECT_EQ(second.rewind(0), 0);
  cache.clear();
  EXPECT_EQ(pool->blocks_in_use(), 0);
  EXPECT_EQ(cache.blocks(), 0);
}

TEST_F(Windows, WhatIsComputedAgainComesBackToTheTree) {
  PrefixCache cache(pool);
  {
    SequenceState first(pool);
    compute(first, 320, 320, &cache);
  }
  while (cache.let_go(kLocal)) {
  }
  {
    SequenceState again(pool);
    EXPECT_EQ(cache.extend(again, text(320), 319), 0);
    compute(again, 320, 320, &cache);
  }
  SequenceState third(pool);
  EXPECT_EQ(cache.extend(third, text(320), 319), 319);
  expect_goes_on(third);
}

TEST_F(Windows, AModelOfWindowsAloneLeavesNothingInTheTree) {
  const LayerKv local{Keeps::attention, 1, 8, 8, kWindow};
  pool = std::make_shared<BlockPool>(Layout(std::span(&local, 1)), budget);
  PrefixCache cache(pool);
  SequenceState state(pool);
  for (std::int64_t length = 64; length <= 1280; length += 64) {
    ASSERT_TRUE(state.reserve(length).ok());
    state.set_length(length);
    cache.enter(state, text(length));
    state.forget_behind_windows();
  }
  EXPECT_EQ(cache.blocks(), 20);
  EXPECT_EQ(state.rewind(0), 0);
  cache.clear();
  EXPECT_EQ(cache.blocks(), 0);
  SequenceState next(pool);
  EXPECT_EQ(cache.extend(next, text(1280), 1279), 0);
}

TEST_F(Windows, OneGroupsRoomIsTheOthersToo) {
  PrefixCache cache(pool);
  {
    SequenceState first(pool);
    compute(first, 640, 640, &cache);
  }
  const auto all = budget.reserve("others", budget.available_bytes());
  ASSERT_TRUE(all.ok());
  SequenceState second(pool);
  ASSERT_TRUE(second.reserve(1).ok());
  std::vector<std::byte*> local;
  for (;;) {  // more than the group ever had
    const Expected<std::byte*> block = pool->allocate(kLocal);
    if (!block.ok()) break;
    local.push_back(*block);
  }
  EXPECT_GT(std::ssize(local), 10);
  EXPECT_EQ(cache.blocks(), 0);
  for (std::byte* const block : local) pool->release(kLocal, block);
}

// --- The disk's tier ---

struct WindowsOnDisk : Windows {
  std::filesystem::path folder = std::filesystem::temp_directory_path() / ("windows-" + std::to_string(getpid()));
  void SetUp() override { std::filesystem::remove_all(folder); }
  void TearDown() override {
    EXPECT_EQ(pool->blocks_in_use(), 0);
    std::filesystem::remove_all(folder);
  }
  std::unique_ptr<PromptCache> open() {
    return PromptCache::open({{folder.string(), 4 << 20, 0}, 0}, "a model", pool, budget).value();
  }
  /// A prompt of 640 tokens in passes of `rows` has been written.
  void write(std::int64_t rows) {
    const auto cache = open();
    SequenceState state(pool);
    compute(state, 640, rows);
    cache->keep(state, text(640), 1, 1);
  }
};

TEST_F(WindowsOnDisk, ABeginningIsOfUseWhereTheWindowsKeysAreThere) {
  write(64);
  const auto cache = open();
  SequenceState state(pool);
  EXPECT_FALSE(cache->extend(state, text(700), 699, PromptCache::Clock::time_point::max()));
  EXPECT_EQ(state.length(), 640);
  expect_goes_on(state);
  EXPECT_EQ(state.block(kLocal, 7), nullptr);
  SequenceState shorter(pool);
  EXPECT_FALSE(cache->extend(shorter, text(700, 600), 699, PromptCache::Clock::time_point::max()));
  EXPECT_EQ(shorter.length(), 0) << "block 7 of the window was behind it when the prompt was written";
}

TEST_F(WindowsOnDisk, WhatTheTreeStillHasIsWrittenToo) {
  {
    PrefixCache tree(pool);
    const auto cache = open();
    SequenceState state(pool);
    compute(state, 640, 64, &tree);
    while (pool->blocks_in_use(kLocal) > 5) ASSERT_TRUE(tree.let_go(kLocal));  // 5 to 9
    cache->keep(state, text(640), 1, 1, &tree);
  }
  const auto cache = open();
  SequenceState state(pool);
  EXPECT_FALSE(cache->extend(state, text(700, 500), 699, PromptCache::Clock::time_point::max()));
  EXPECT_EQ(state.length(), 448) << "block 7 differs; keys from 349 on are in block 5";
  expect_goes_on(state);
  SequenceState shorter(pool);
  EXPECT_FALSE(cache->extend(shorter, text(700, 400), 699, PromptCache::Clock::time_point::max()));
  EXPECT_EQ(shorter.length(), 0);
}

TEST_F(WindowsOnDisk, LoadsABlockAtATimeWhereTimeIsShort) {
  write(64);
  const auto cache = open();
  SequenceState state(pool);
  for (int turn = 1; turn < 10; ++turn) {
    EXPECT_TRUE(cache->extend(state, text(700), 699, PromptCache::Clock::time_point::min()));
    EXPECT_EQ(state.length(), turn * 64);
  }
  EXPECT_FALSE(cache->extend(state, text(700), 699, PromptCache::Clock::time_point::min()));
  EXPECT_EQ(state.length(), 640);
  expect_goes_on(state);
}

TEST_F(WindowsOnDisk, AWayThatEndsEarlyGivesOnlyWhatGoesOn) {
  write(640);
  const auto cache = open();
  SequenceState state(pool);
  EXPECT_TRUE(cache->extend(state, text(700), 699, PromptCache::Clock::time_point::min()));
  for (const auto& file : std::filesystem::directory_iterator(folder)) std::filesystem::remove(file);
  EXPECT_FALSE(cache->extend(state, text(700), 699, PromptCache::Clock::time_point::max()));
  EXPECT_EQ(state.length(), 0) << "the global block alone is of no use";
  compute(state, 200, 64);
  expect_goes_on(state);
}

}  // namespace
}  // namespace millrace::kv
