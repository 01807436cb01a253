// A mixture that knows from earlier runs which experts it will need: the same tokens, fewer faults when it begins.
#include "engine/usage_keeper.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "engine/support.h"

namespace millrace::engine {
namespace {

namespace fs = std::filesystem;
using test::greedy;
using test::make;

class LearnedExperts : public testing::Test {
 protected:
  void SetUp() override {
    static int count = 0;
    folder_ = fs::temp_directory_path() / fmt::format("millrace-learned-{}-{}", getpid(), count++);
    options_ = test::roomy(test::moe_path());
    options_.demand.context_tokens = 512;
    options_.experts.ram_slots = 24;  // of 6 layers' experts
    options_.experts.prefetch = exec::Prefetch::off;
    options_.experts.policy = residency::CachePolicy::lru;
  }
  void TearDown() override { fs::remove_all(folder_); }

  struct Run {
    std::string text;
    residency::StoreCounters counters;
  };
  /// An answer of an engine that has just begun.
  Run ask(const std::string& question, std::int64_t tokens) const {
    const auto engine = make(options_);
    if (engine == nullptr) return {};
    Request request = greedy(test::chat(*engine, question), tokens);
    request.ignore_end_tokens = true;
    const Result result = engine->run(std::move(request));
    EXPECT_EQ(result.finish, Finish::length) << result.status.message();
    return {result.text, engine->store_counters()};
  }
  fs::path file() const {
    for (const auto& entry : fs::directory_iterator(folder_)) return entry.path();
    return {};
  }

  fs::path folder_;
  EngineOptions options_;
};

TEST_F(LearnedExperts, AColdStartHasFewerFaultsAndTheSameTokens) {
  const Run plain = ask("What is the capital of France?", 12);
  options_.experts.usage_folder = folder_.string();
  const Run first = ask("What is the capital of Italy?", 60);
  EXPECT_EQ(first.counters.experts.learned, 0u);
  ASSERT_FALSE(file().empty());
  const Run learned = ask("What is the capital of France?", 12);
  EXPECT_EQ(learned.text, plain.text);
  EXPECT_GT(learned.counters.experts.learned, 0u);
  EXPECT_GT(learned.counters.experts.learned_used, 0u);
  EXPECT_LT(learned.counters.misses, plain.counters.misses)
      << learned.counters.experts.describe() << " instead of " << plain.counters.experts.describe();
}

TEST_F(LearnedExperts, ADamagedFileIsLeftAloneAndReplaced) {
  options_.experts.usage_folder = folder_.string();
  const Run first = ask("What is the capital of Italy?", 20);
  const fs::path path = file();
  std::ofstream(path, std::ios::trunc) << "{\"version\":1";
  const Run second = ask("What is the capital of Italy?", 20);
  EXPECT_EQ(second.text, first.text);
  EXPECT_EQ(second.counters.experts.learned, 0u);
  const Run third = ask("What is the capital of Italy?", 20);
  EXPECT_GT(third.counters.experts.learned, 0u) << "the file is whole again";
  EXPECT_EQ(file(), path);
}

TEST_F(LearnedExperts, NothingIsLearnedWhereNothingLeavesOrRoutersDoNotChoose) {
  options_.experts.usage_folder = folder_.string();
  options_.experts.ram_slots = 0;
  ask("What is the capital of Italy?", 4);
  EXPECT_FALSE(fs::exists(folder_)) << "all experts stay in memory";
  options_.experts.ram_slots = 24;
  options_.experts.routing = "uniform";
  ask("What is the capital of Italy?", 4);
  EXPECT_FALSE(fs::exists(folder_));
}

TEST_F(LearnedExperts, AFolderThatCannotBeWrittenChangesNothing) {
  std::ofstream(folder_) << "a file";
  options_.experts.usage_folder = (folder_ / "experts").string();
  EXPECT_FALSE(ask("What is the capital of Italy?", 20).text.empty());
}

}  // namespace
}  // namespace millrace::engine
