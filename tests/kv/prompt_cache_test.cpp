// The tier on the disk, in front of host memory and of memory elsewhere.
#include "kv/prompt_cache.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <functional>
#include <numeric>
#include <set>
#include <thread>

#include "kv/small_layout.h"

namespace millrace::kv {
namespace {

namespace fs = std::filesystem;
using Clock = PromptCache::Clock;

const auto kBlockBytes = static_cast<std::size_t>(kSmall.groups()[0].block_bytes());

/// Memory whose addresses nobody may look at: what lies there is only to be had by read() and write().
class Elsewhere final : public BlockMemory {
 public:
  ~Elsewhere() override { EXPECT_TRUE(blocks_.empty()); }
  Expected<std::byte*> allocate(bool /*press*/) override {
    auto* const block = new std::byte[kBlockBytes]();
    blocks_.insert(block);
    return block + kOffset;
  }
  void release(std::byte* block) override {
    EXPECT_EQ(blocks_.erase(block - kOffset), 1u);
    delete[](block - kOffset);
  }
  Status read(const std::byte* block, std::byte* out, std::size_t bytes) override {
    std::memcpy(out, block - kOffset, bytes);
    return {};
  }
  Status write(std::byte* block, const std::byte* in, std::size_t bytes) override {
    std::memcpy(block - kOffset, in, bytes);
    return {};
  }
  Status copy(std::byte* to, const std::byte* from, std::size_t bytes) override {
    std::memcpy(to - kOffset, from - kOffset, bytes);
    return {};
  }

 private:
  static constexpr std::ptrdiff_t kOffset = 1;  // whoever looked there would read other bytes
  std::set<std::byte*> blocks_;
};

struct PromptTier : testing::TestWithParam<bool> {
  fs::path folder = fs::temp_directory_path() / ("prompt-cache-" + std::to_string(getpid()));
  residency::Budget budget{1 << 20};
  std::shared_ptr<BlockPool> pool = new_pool();
  PromptCache::Options options{{folder.string(), 1 << 20, 0}, 0};

  void SetUp() override { fs::remove_all(folder); }
  void TearDown() override {
    EXPECT_EQ(pool->blocks_in_use(), 0);
    fs::remove_all(folder);
  }

  std::shared_ptr<BlockPool> new_pool() {
    if (GetParam()) return std::make_shared<BlockPool>(kSmall, budget);
    std::vector<std::unique_ptr<BlockMemory>> elsewhere;
    elsewhere.push_back(std::make_unique<Elsewhere>());
    return std::make_shared<BlockPool>(kSmall, std::move(elsewhere));
  }
  std::unique_ptr<PromptCache> open(const char* identity = "a model") {
    auto cache = PromptCache::open(options, identity, pool, budget);
    EXPECT_TRUE(cache.ok()) << cache.status().message();
    return cache.ok() ? std::move(*cache) : nullptr;
  }
  static std::vector<Token> text(std::int64_t count) {
    std::vector<Token> tokens(static_cast<std::size_t>(count));
    std::iota(tokens.begin(), tokens.end(), 0);
    return tokens;
  }
  std::vector<std::byte> bytes(std::byte* block) const {
    std::vector<std::byte> out(kBlockBytes);
    EXPECT_TRUE(pool->read(0, block, out.data()).ok());
    return out;
  }
  static std::vector<std::byte> pattern(std::int64_t block) {
    return std::vector<std::byte>(kBlockBytes, static_cast<std::byte>(65 + block));
  }
  /// A sequence as passes leave it.
  SequenceState computed(std::int64_t tokens) {
    SequenceState state(pool);
    EXPECT_TRUE(state.reserve(tokens).ok());
    for (std::int64_t i = 0; i < state.blocks(); ++i)
      EXPECT_TRUE(pool->write(0, state.block(0, i), pattern(i).data()).ok());
    state.set_length(tokens);
    return state;
  }
  static void drain(PromptCache& cache) {
    for (int i = 0; i < 2000 && cache.busy(); ++i) {
      cache.pump();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_FALSE(cache.busy());
  }
  std::size_t files() const {
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
  }
};

TEST_P(PromptTier, ALaterProgramGoesOnWhereTheFirstWas) {
  {
    const auto cache = open();
    cache->keep(computed(200), text(200), 1, 1);
  }  // writes what waits
  EXPECT_EQ(files(), 3u);
  const auto cache = open();
  SequenceState state(pool);
  EXPECT_FALSE(cache->extend(state, text(200), 199, Clock::time_point::max()));
  EXPECT_EQ(state.length(), 192);
  for (std::int64_t i = 0; i < 3; ++i) EXPECT_EQ(bytes(state.block(0, i)), pattern(i));
  EXPECT_EQ(cache->counters().tokens, 192u);
}

TEST_P(PromptTier, GivesWholeBlocksBelowTheLimitOfTheSameBeginning) {
  const auto cache = open();
  cache->keep(computed(192), text(192), 1, 1);
  drain(*cache);
  SequenceState state(pool);
  EXPECT_FALSE(cache->extend(state, text(192), 191, Clock::time_point::max()));
  EXPECT_EQ(state.length(), 128);
  auto other = text(192);
  other[70] = 5000;
  SequenceState second(pool);
  EXPECT_FALSE(cache->extend(second, other, 191, Clock::time_point::max()));
  EXPECT_EQ(second.length(), 64);
  other[0] = 5000;
  SequenceState third(pool);
  EXPECT_FALSE(cache->extend(third, other, 191, Clock::time_point::max()));
  EXPECT_EQ(third.length(), 0);
  EXPECT_EQ(third.blocks(), 0);
}

TEST_P(PromptTier, AnotherModelFindsNothing) {
  const auto cache = open();
  cache->keep(computed(192), text(192), 1, 1);
  drain(*cache);
  SequenceState state(pool);
  EXPECT_FALSE(open("another model")->extend(state, text(192), 192, Clock::time_point::max()));
  EXPECT_EQ(state.length(), 0);
}

TEST_P(PromptTier, LoadsABlockAtATimeWhereTimeIsShort) {
  const auto cache = open();
  cache->keep(computed(192), text(192), 1, 1);
  drain(*cache);
  SequenceState state(pool);
  EXPECT_TRUE(cache->extend(state, text(192), 192, Clock::time_point::min()));
  EXPECT_EQ(state.length(), 64);
  EXPECT_TRUE(cache->extend(state, text(192), 192, Clock::time_point::min()));
  EXPECT_FALSE(cache->extend(state, text(192), 192, Clock::time_point::min()));
  EXPECT_EQ(state.length(), 192);
}

/// Another process with as many other layers.
class OtherRank final : public PromptsElsewhere {
 public:
  OtherRank(PromptCache& cache, BlockPool& pool, std::function<SequenceState(std::int64_t)> computed)
      : cache_(cache), pool_(pool), computed_(std::move(computed)) {}
  Expected<Loaded> load(const SequenceState& state, std::span<const Token> tokens, std::int64_t blocks,
                        double seconds) override {
    const auto until =
        Clock::now() + std::chrono::microseconds(static_cast<std::int64_t>(std::min(seconds, 9.0) * 1e6));
    const auto loaded = cache_.load(tokens, state.length() / kBlockTokens - blocks, blocks, until);
    for (const auto& groups : loaded) pool_.release(0, groups[0]);
    return Loaded{std::ssize(loaded), !loaded.empty() && Clock::now() >= until};
  }
  Status keep(const SequenceState& /*state*/, std::span<const Token> tokens) override {
    cache_.keep(computed_(std::ssize(tokens)), tokens, 1, 1);
    return {};
  }

 private:
  PromptCache& cache_;
  BlockPool& pool_;
  std::function<SequenceState(std::int64_t)> computed_;
};

TEST_P(PromptTier, OverRanksAPromptGoesOnWithWhatAllHave) {
  const auto cache = open("first layers"), other = open("last layers");
  OtherRank rank(*other, *pool, [&](std::int64_t tokens) { return computed(tokens); });
  cache->join(&rank);
  cache->keep(computed(192), text(192), 1, 1);
  drain(*cache);
  drain(*other);
  EXPECT_EQ(files(), 6u);
  SequenceState state(pool), slow(pool);
  EXPECT_FALSE(cache->extend(state, text(192), 192, Clock::time_point::max()));
  EXPECT_EQ(state.length(), 192);
  EXPECT_TRUE(cache->extend(slow, text(192), 192, Clock::time_point::min()));
  EXPECT_EQ(slow.length(), 64);
  cache->join(nullptr);
  cache->keep(computed(320), text(320), 1, 1);  // two blocks that the other one lacks
  drain(*cache);
  EXPECT_EQ(files(), 8u);
  cache->join(&rank);
  SequenceState longer(pool);
  EXPECT_FALSE(cache->extend(longer, text(320), 320, Clock::time_point::max()));
  EXPECT_EQ(longer.length(), 192);
  EXPECT_FALSE(cache->extend(longer, text(320), 320, Clock::time_point::max()));
  EXPECT_EQ(longer.length(), 192);
}

TEST_P(PromptTier, ABlockHeldInPartIsLoadedWhole) {
  const auto cache = open();
  cache->keep(computed(192), text(192), 1, 1);
  drain(*cache);
  SequenceState state = computed(100);
  EXPECT_FALSE(cache->extend(state, text(192), 192, Clock::time_point::max()));
  EXPECT_EQ(state.length(), 192);
  SequenceState elsewhere = computed(100);
  auto other = text(192);
  other[127] = 5000;
  EXPECT_FALSE(cache->extend(elsewhere, other, 192, Clock::time_point::max()));
  EXPECT_EQ(elsewhere.length(), 100) << "what the disk lacks stays";
}

TEST_P(PromptTier, ADamagedBlockEndsTheWay) {
  const auto cache = open();
  cache->keep(computed(192), text(192), 1, 1);
  drain(*cache);
  for (const auto& file : fs::directory_iterator(folder))
    if (fs::file_size(file) == 128 + 2 * 64 * 4 + kBlockBytes) fs::resize_file(file, 50);
  SequenceState state(pool);
  EXPECT_FALSE(cache->extend(state, text(192), 192, Clock::time_point::max()));
  EXPECT_EQ(state.length(), 64);
  EXPECT_EQ(state.blocks(), 1);
  cache->keep(computed(192), text(192), 1, 1);
  drain(*cache);
  EXPECT_FALSE(cache->extend(state, text(192), 192, Clock::time_point::max()));
  EXPECT_EQ(state.length(), 192) << "mended by the next who computes it";
}

TEST_P(PromptTier, QuickPromptsAndWhatIsThereAreNotWritten) {
  options.least_seconds = 100;
  const auto cache = open();
  cache->keep(computed(192), text(192), 0.5, 1);
  drain(*cache);
  EXPECT_EQ(files(), 0u);
  cache->keep(computed(192), text(192), 49, 100);
  drain(*cache);
  EXPECT_EQ(files(), 0u) << "two passes";
  cache->keep(computed(192), text(192), 0.6, 1);
  drain(*cache);
  EXPECT_EQ(files(), 3u);
  const auto written = cache->counters().store.written_bytes;
  cache->keep(computed(256), text(256), 0.6, 1);
  drain(*cache);
  EXPECT_EQ(cache->counters().store.written_bytes, written) << "one block more is quick to compute";
}

TEST_P(PromptTier, APromptLargerThanTheCapKeepsItsBeginning) {
  options.store.most_bytes = 3 * 8192;
  const auto cache = open();
  cache->keep(computed(640), text(640), 1, 1);
  drain(*cache);
  EXPECT_EQ(files(), 3u);
  SequenceState state(pool);
  EXPECT_FALSE(cache->extend(state, text(640), 640, Clock::time_point::max()));
  EXPECT_EQ(state.length(), 192);
}

TEST_P(PromptTier, WhoeverNeedsTheRoomGetsIt) {
  const auto cache = open();
  pool->set_bound(0, 10);
  pool->set_reclaimer([&](std::size_t) { return cache->let_go(); });
  cache->keep(computed(640), text(640), 1, 1);
  SequenceState next(pool);
  EXPECT_TRUE(next.reserve(640).ok());
  pool->set_reclaimer({});
}

TEST_P(PromptTier, AFolderThatGoesAwayEndsTheWritingAlone) {
  const auto cache = open();
  fs::remove_all(folder);
  cache->keep(computed(192), text(192), 1, 1);
  drain(*cache);
  cache->keep(computed(192), text(192), 1, 1);
  EXPECT_FALSE(cache->busy());
  SequenceState state(pool);
  EXPECT_FALSE(cache->extend(state, text(192), 192, Clock::time_point::max()));
  EXPECT_EQ(state.length(), 0);
}

TEST_P(PromptTier, WithoutMemoryItStepsAside) {
  const auto cache = open();
  cache->keep(computed(192), text(192), 1, 1);
  drain(*cache);
  pool->trim();
  const auto all = budget.reserve("others", budget.available_bytes());
  ASSERT_TRUE(all.ok());
  SequenceState state(pool);
  EXPECT_FALSE(cache->extend(state, text(192), 192, Clock::time_point::max()));
  EXPECT_EQ(state.length(), 0);
}

INSTANTIATE_TEST_SUITE_P(Memory, PromptTier, testing::Bool(),
                         [](const auto& info) { return info.param ? "OnTheHost" : "Elsewhere"; });

}  // namespace
}  // namespace millrace::kv
