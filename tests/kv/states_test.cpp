// Groups with states: what a pass reads and makes, checkpoints, how far back a sequence can go, and what others may go
// on from.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <numeric>

#include "kv/footprint.h"
#include "kv/prefix_cache.h"
#include "kv/prompt_cache.h"
#include "kv/small_layout.h"

namespace millrace::kv {
namespace {

constexpr std::size_t kStates = 0, kKeys = 1;
constexpr std::int64_t kLayers[] = {0, 1, 3};

std::vector<Token> text(std::int64_t count, std::int64_t differs = 1'000'000) {
  std::vector<Token> tokens(static_cast<std::size_t>(count));
  std::iota(tokens.begin(), tokens.end(), 0);
  for (std::int64_t i = differs; i < count; ++i) tokens[static_cast<std::size_t>(i)] += 5000;
  return tokens;
}

struct States : testing::Test {
  residency::Budget budget{4 << 20};
  std::shared_ptr<BlockPool> pool = std::make_shared<BlockPool>(with_states(), budget);

  std::int64_t floats() const { return pool->layout().groups()[kStates].state.floats(); }
  /// Stands for the state behind so many tokens of a layer.
  static float mark(std::int64_t layer, std::int64_t tokens) { return static_cast<float>(layer * 100'000 + tokens); }

  /// What a pass does: it reads the state, and writes the next one and the checkpoints that it goes by.
  void pass(SequenceState& state, std::int64_t to) const {
    ASSERT_TRUE(state.reserve(to).ok());
    const std::int64_t from = state.length();
    for (std::int64_t position = from; position < to; ++position) ASSERT_TRUE(state.holds(position));
    for (const std::int64_t layer : kLayers) {
      expect_state(state, layer);
      std::fill_n(state.next_state(layer), floats(), mark(layer, to));
      for (std::int64_t i = from / kBlockTokens; (i + 1) * kBlockTokens <= to; ++i)
        if (float* const checkpoint = state.checkpoint(i, layer); checkpoint != nullptr)
          std::fill_n(checkpoint, floats(), mark(layer, (i + 1) * kBlockTokens));
    }
    state.set_length(to);
  }
  void compute(SequenceState& state, std::int64_t tokens, std::int64_t rows, PrefixCache* cache = nullptr,
               std::int64_t differs = 1'000'000) const {
    while (state.length() < tokens) {
      pass(state, std::min(tokens, state.length() + rows));
      if (cache != nullptr) cache->enter(state, text(tokens, differs));
      state.forget_behind_windows();
    }
  }
  static void expect_state(const SequenceState& state, std::int64_t layer) {
    const float* const now = state.state(layer);
    ASSERT_EQ(now != nullptr, state.length() > 0);
    EXPECT_EQ(now != nullptr ? now[0] : mark(layer, 0), mark(layer, state.length()));
  }
  static void expect_goes_on(const SequenceState& state) {
    ASSERT_TRUE(state.goes_on(state.length()));
    for (const std::int64_t layer : kLayers) expect_state(state, layer);
  }
  static std::vector<std::int64_t> checkpoints(const SequenceState& state) {
    std::vector<std::int64_t> found;
    for (std::int64_t i = 0; i < state.blocks(); ++i)
      if (state.block(kStates, i) != nullptr) found.push_back((i + 1) * kBlockTokens);
    return found;
  }
};

TEST_F(States, HaveAPlaceForEachLayer) {
  SequenceState state(pool);
  ASSERT_TRUE(state.reserve(1).ok());
  EXPECT_EQ(floats(), 3 * 8 + 2 * 4 * 32);
  EXPECT_EQ(state.next_state(1) - state.next_state(0), floats());
  EXPECT_EQ(state.next_state(3) - state.next_state(1), floats());
  EXPECT_EQ(pool->layout().groups()[kStates].block_bytes(), 3 * floats() * 4);
  EXPECT_EQ(pool->layout().bytes_per_token(), 8 * 2 * 2);
  EXPECT_EQ(pool->layout().describe(), "3 layers x states of 3 x 8 + 2 x 4 x 32 f32; 1 layers x 1 heads x 8 F16");
}

TEST_F(States, GoOnThroughPassesOfAnyLength) {
  for (const std::int64_t rows : {1, 7, 63, 64, 65, 500}) {
    SequenceState state(pool);
    compute(state, 700, rows);
    expect_goes_on(state);
    EXPECT_LE(checkpoints(state).size(), std::size_t{kMostCheckpoints});
    EXPECT_EQ(checkpoints(state).back(), 640);
    EXPECT_LE(pool->blocks_in_use(kStates), 2 + kMostCheckpoints);
  }
  EXPECT_EQ(pool->blocks_in_use(), 0);
}

TEST_F(States, APassThatFailsHasChangedNothing) {
  SequenceState state(pool);
  compute(state, 100, 100);
  ASSERT_TRUE(state.reserve(300).ok());
  for (const std::int64_t layer : kLayers) std::fill_n(state.next_state(layer), floats(), -1.0f);
  for (std::int64_t i = 1; i < 4; ++i)
    if (state.checkpoint(i, 0) != nullptr) std::fill_n(state.checkpoint(i, 0), floats(), -1.0f);
  EXPECT_EQ(state.rewind(state.length()), 100);
  expect_goes_on(state);
  EXPECT_EQ(checkpoints(state), std::vector<std::int64_t>{64});
  compute(state, 300, 300);
  expect_goes_on(state);
}

TEST_F(States, RewindGoesBackToACheckpoint) {
  SequenceState state(pool);
  compute(state, 500, 200);
  EXPECT_EQ(checkpoints(state), (std::vector<std::int64_t>{192, 448})) << "384 lay nearest to its neighbours";
  EXPECT_EQ(state.rewind(500), 500);
  expect_goes_on(state);
  EXPECT_EQ(state.rewind(499), 448);
  expect_goes_on(state);
  compute(state, 460, 1);
  EXPECT_EQ(state.rewind(300), 192);
  expect_goes_on(state);
  EXPECT_EQ(state.rewind(191), 0);
  expect_goes_on(state);
  EXPECT_EQ(pool->blocks_in_use(), 0);
}

TEST_F(States, ThePromptsEndIsKeptWhileAnAnswerGrows) {
  SequenceState state(pool);
  state.want_checkpoint(960);
  compute(state, 1000, 512);
  compute(state, 1500, 1);
  const std::vector<std::int64_t> held = checkpoints(state);
  EXPECT_NE(std::find(held.begin(), held.end(), 960), held.end());
  EXPECT_EQ(held.back(), 1472);
}

TEST_F(States, CheckpointsGiveWayToSequences) {
  pool->set_bound(kStates, 4);
  SequenceState first(pool);
  compute(first, 700, 200);
  EXPECT_EQ(pool->blocks_in_use(kStates), 4);
  SequenceState second(pool);
  EXPECT_EQ(second.reserve(10).code(), Code::out_of_budget);
  first.forget_checkpoints();
  compute(second, 200, 100);
  expect_goes_on(first);
  expect_goes_on(second);
  EXPECT_TRUE(checkpoints(second).empty()) << "nobody gave way for one";
  ASSERT_TRUE(second.reserve(201).ok());
}

TEST_F(States, SnapshotsHoldTheLastOne) {
  for (const std::int64_t length : {0, 1, 100, 128}) {
    SequenceState state(pool);
    compute(state, length, 50);
    const std::vector<std::byte> bytes = state.snapshot().value();
    SequenceState other(pool);
    compute(other, 70, 70);
    ASSERT_TRUE(other.restore(bytes).ok());
    EXPECT_EQ(other.length(), length);
    expect_goes_on(other);
    EXPECT_EQ(other.snapshot().value(), bytes);
    compute(other, length + 10, 10);
    expect_goes_on(other);
  }
}

TEST(StatesFootprint, IsOfSequencesNotOfTokens) {
  const Layout layout = with_states();
  EXPECT_EQ(most_blocks(layout.groups()[kStates], {100'000, 5, 512}), 5 * 4 + 2);
  EXPECT_EQ(most_blocks(layout.groups()[kStates], {64, 5, 512}), 4 + 2);
}

// --- The tree of beginnings ---

TEST_F(States, ABeginningIsOfUseUpToACheckpoint) {
  PrefixCache cache(pool);
  {
    SequenceState first(pool);
    compute(first, 640, 256, &cache);  // checkpoints behind 256, 512, 640
  }
  SequenceState second(pool);
  EXPECT_EQ(cache.extend(second, text(700), 699), 640);
  expect_goes_on(second);
  SequenceState third(pool);
  EXPECT_EQ(cache.extend(third, text(700, 430), 699), 256);
  expect_goes_on(third);
  compute(third, 700, 444, &cache, 430);
  SequenceState fourth(pool);
  EXPECT_EQ(cache.extend(fourth, text(700, 430), 600), 384) << "where the third parted from the first";
  expect_goes_on(fourth);
  SequenceState fifth(pool);
  EXPECT_EQ(cache.extend(fifth, text(700, 100), 699), 0);
}

TEST_F(States, TheTreeLetsGoFirstOfWhatNobodyWouldGoOnFrom) {
  PrefixCache cache(pool);
  {
    SequenceState first(pool);
    compute(first, 320, 64, &cache);
    SequenceState second(pool);
    EXPECT_EQ(cache.extend(second, text(320, 128), 319), 128);
    compute(second, 320, 64, &cache, 128);
  }
  EXPECT_EQ(pool->blocks_in_use(kStates), 8);
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(cache.let_go(kStates));
  SequenceState branch(pool);
  EXPECT_EQ(cache.extend(branch, text(320, 130), 319), 128) << "where they part";
  SequenceState end(pool);
  EXPECT_EQ(cache.extend(end, text(400), 399), 320) << "where one ends";
  EXPECT_EQ(pool->blocks_in_use(kStates), 3);
}

// --- The disk's tier ---

struct StatesOnDisk : States {
  std::filesystem::path folder = std::filesystem::temp_directory_path() / ("states-" + std::to_string(getpid()));
  void SetUp() override { std::filesystem::remove_all(folder); }
  void TearDown() override {
    EXPECT_EQ(pool->blocks_in_use(), 0);
    std::filesystem::remove_all(folder);
  }
  std::unique_ptr<PromptCache> open() {
    return PromptCache::open({{folder.string(), 4 << 20, 0}, 0}, "a model", pool, budget).value();
  }
};

TEST_F(StatesOnDisk, ABeginningIsOfUseUpToACheckpoint) {
  {
    const auto cache = open();
    SequenceState state(pool);
    compute(state, 700, 300);
    EXPECT_EQ(checkpoints(state), (std::vector<std::int64_t>{256, 640}));
    cache->keep(state, text(700), 1, 1);
  }
  const auto cache = open();
  const auto no_hurry = PromptCache::Clock::time_point::max();
  SequenceState state(pool);
  EXPECT_FALSE(cache->extend(state, text(800), 799, no_hurry));
  EXPECT_EQ(state.length(), 640);
  expect_goes_on(state);
  SequenceState shorter(pool);
  EXPECT_FALSE(cache->extend(shorter, text(800, 500), 799, no_hurry));
  EXPECT_EQ(shorter.length(), 256);
  expect_goes_on(shorter);
  SequenceState other(pool);
  EXPECT_FALSE(cache->extend(other, text(800, 200), 799, no_hurry));
  EXPECT_EQ(other.length(), 0);
}

TEST_F(StatesOnDisk, AWayThatEndsEarlyGoesBackToWhatItHas) {
  {
    const auto cache = open();
    SequenceState state(pool);
    compute(state, 700, 300);
    cache->keep(state, text(700), 1, 1);
  }
  const auto cache = open();
  SequenceState state(pool);
  EXPECT_TRUE(cache->extend(state, text(800), 799, PromptCache::Clock::time_point()));
  EXPECT_EQ(state.length(), 64);
  EXPECT_FALSE(state.goes_on(64));
  EXPECT_EQ(state.rewind(state.length()), 0);
  expect_goes_on(state);
}

}  // namespace
}  // namespace millrace::kv
