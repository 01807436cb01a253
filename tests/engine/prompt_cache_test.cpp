// Prompts that the disk remembers: the same tokens and logits after a restart, with fewer rows computed.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "base/os/file.h"
#include "base/os/file_info.h"
#include "engine/rank_threads.h"
#include "engine/service.h"
#include "engine/support.h"

namespace millrace::engine {
namespace {

namespace fs = std::filesystem;
using test::draft_path;
using test::drain;
using test::greedy;
using test::make;
using test::moe_path;
using test::RankThreads;
using test::real_text;
using test::roomy;
using text::TokenId;

struct PromptCache : testing::Test {
  fs::path folder = fs::temp_directory_path() / ("engine-prompts-" + std::to_string(getpid()));
  void SetUp() override { fs::remove_all(folder); }
  void TearDown() override { fs::remove_all(folder); }

  EngineOptions caching(const std::string& path) const {
    EngineOptions options = roomy(path);
    options.demand.context_tokens = 512;
    options.kv.prompt_cache = folder.string();
    options.kv.prompt_cache_seconds = 0;
    return options;
  }
  std::size_t files() const {
    return fs::exists(folder)
               ? static_cast<std::size_t>(std::distance(fs::directory_iterator(folder), fs::directory_iterator()))
               : 0;
  }
};

struct Answer {
  Result result;
  std::vector<float> logits;  // of the sampled rows
  std::uint64_t rows = 0;
};

Answer ask(Engine& engine, const std::vector<TokenId>& prompt) {
  Answer answer;
  Request request = greedy(prompt, 8);
  request.ignore_end_tokens = true;
  request.on_logits = [&](std::int64_t, std::span<const float> row) {
    answer.logits.insert(answer.logits.end(), row.begin(), row.end());
  };
  const std::uint64_t before = engine.load().rows;
  answer.result = engine.run(std::move(request));
  answer.rows = engine.load().rows - before;
  EXPECT_EQ(answer.result.finish, Finish::length) << answer.result.status.message();
  return answer;
}

TEST_F(PromptCache, ARestartGivesTheSameBitsWithFewerRows) {
  for (const std::string& path : {draft_path(), moe_path()}) {
    const std::vector<TokenId> prompt = real_text(*make(roomy(path)), 300);
    EngineOptions without = caching(path);
    without.kv.prompt_cache.clear();
    const Answer plain = ask(*make(without), prompt);
    const Answer first = ask(*make(caching(path)), prompt);
    EXPECT_EQ(first.result.cached_tokens, 0);
    EXPECT_EQ(first.rows, plain.rows);
    const auto again = make(caching(path));
    const Answer second = ask(*again, prompt);
    EXPECT_EQ(second.result.cached_tokens, 256);
    EXPECT_EQ(second.rows, first.rows - 256);
    EXPECT_EQ(again->load().disk.tokens, 256u);
    EXPECT_EQ(second.result.tokens, plain.result.tokens);
    EXPECT_TRUE(first.logits == plain.logits);
    EXPECT_TRUE(second.logits == plain.logits);
  }
}

TEST_F(PromptCache, WhateverTheBudgetAndTheKernelsTheBitsAreTheSame) {
  const std::vector<TokenId> prompt = real_text(*make(roomy(moe_path())), 200);
  const Answer first = ask(*make(caching(moe_path())), prompt);
  EngineOptions tight = caching(moe_path());
  tight.memory.ram_bytes = 6'000'000;
  tight.device.best_isa = false;
  tight.demand.batch_tokens = 16;
  const auto engine = make(tight);
  const Answer second = ask(*engine, prompt);
  EXPECT_EQ(second.result.cached_tokens, 192);
  EXPECT_TRUE(second.logits == first.logits);
}

TEST_F(PromptCache, KvOfFewBitsComesBackInEveryBit) {
  const std::vector<TokenId> prompt = real_text(*make(roomy(moe_path())), 300);
  for (const DType dtype : {DType::q4_0, DType::q3_k, DType::q2_0}) {
    EngineOptions options = caching(moe_path());
    options.kv.dtype = dtype;
    const Answer first = ask(*make(options), prompt), second = ask(*make(options), prompt);
    EXPECT_EQ(first.result.cached_tokens, 0);
    EXPECT_EQ(second.result.cached_tokens, 256);
    EXPECT_TRUE(second.logits == first.logits);
    options.kv.rotation = kv::Rotation::never;
    EXPECT_EQ(ask(*make(options), prompt).result.cached_tokens, 0) << "what lies there is rotated";
  }
}

/// A prompt cache for each rank, in a folder of its own or all in one.
struct PromptCacheOverRanks : PromptCache {
  EngineOptions rank(const std::string& name) const {
    EngineOptions options = caching(moe_path());
    options.device.threads = 1;
    options.kv.prompt_cache = (folder / name).string();
    return options;
  }
  static Answer ask_ranks(RankThreads& ranks, const EngineOptions& options, const std::vector<TokenId>& prompt) {
    const auto engine = ranks.create(options);
    EXPECT_TRUE(engine.ok()) << engine.status().message();
    return engine.ok() ? ask(**engine, prompt) : Answer();
  }
  void SetUp() override {
    PromptCache::SetUp();
    fs::create_directories(folder);
  }
};

TEST_F(PromptCacheOverRanks, ARestartGivesTheSameBitsWithFewerRows) {
  const std::vector<TokenId> prompt = real_text(*make(roomy(moe_path())), 300);
  EngineOptions alone = rank("alone");
  alone.kv.prompt_cache.clear();
  const Answer plain = ask(*make(alone), prompt);
  RankThreads ranks({rank("all"), rank("all")});  // stages of as many layers in one folder
  const Answer first = ask_ranks(ranks, rank("all"), prompt), second = ask_ranks(ranks, rank("all"), prompt);
  EXPECT_EQ(first.result.cached_tokens, 0);
  EXPECT_EQ(second.result.cached_tokens, 256);
  EXPECT_EQ(second.rows, first.rows - 256);
  EXPECT_TRUE(first.logits == plain.logits);
  EXPECT_TRUE(second.logits == plain.logits);
}

TEST_F(PromptCacheOverRanks, WhatOneLacksAllCompute) {
  const std::vector<TokenId> prompt = real_text(*make(roomy(moe_path())), 300);
  RankThreads ranks({rank("one"), rank("two")});
  const Answer first = ask_ranks(ranks, rank("zero"), prompt);
  for (const char* name : {"zero", "one", "two"}) {
    const fs::path path = folder / name;
    std::vector<fs::path> files;
    for (const fs::directory_entry& entry : fs::directory_iterator(path)) files.push_back(entry.path());
    ASSERT_EQ(files.size(), 4u) << name;
    std::sort(files.begin(), files.end(), [](const fs::path& one, const fs::path& other) {
      return os::file_info(one.string())->modified_ns < os::file_info(other.string())->modified_ns;
    });
    fs::remove(files.front());  // the last block's, which leaves first
    const Answer second = ask_ranks(ranks, rank("zero"), prompt);
    EXPECT_EQ(second.result.cached_tokens, 192) << name;
    EXPECT_TRUE(second.logits == first.logits) << name;
    EXPECT_EQ(ask_ranks(ranks, rank("zero"), prompt).result.cached_tokens, 256) << "written again";
    fs::remove_all(path);
    const Answer third = ask_ranks(ranks, rank("zero"), prompt);
    EXPECT_EQ(third.result.cached_tokens, 0) << name;
    EXPECT_TRUE(third.logits == first.logits) << name;
  }
}

TEST_F(PromptCacheOverRanks, NothingIsKeptWhereOneKeepsNothing) {
  const std::vector<TokenId> prompt = real_text(*make(roomy(moe_path())), 200);
  EngineOptions none = rank("none");
  none.kv.prompt_cache.clear();
  RankThreads ranks({none});
  ask_ranks(ranks, rank("zero"), prompt);
  EXPECT_EQ(ask_ranks(ranks, rank("zero"), prompt).result.cached_tokens, 0);
}

/// What is loaded goes on beside other sequences, shares their blocks and is shared: as in one process.
TEST_F(PromptCacheOverRanks, ConversationsGoOnAfterARestart) {
  const std::vector<TokenId> text = real_text(*make(roomy(moe_path())), 400);
  const auto talk = [&](Engine& engine) {
    std::vector<TokenId> tokens;
    std::vector<Engine::Id> ids;
    for (const std::size_t length : {300u, 140u, 260u, 400u}) {  // beginnings of one text, and two at a time
      Request request = greedy({text.begin(), text.begin() + static_cast<std::ptrdiff_t>(length)}, 8);
      request.ignore_end_tokens = true;
      ids.push_back(*engine.submit(std::move(request)));
      if (ids.size() % 2 == 1) continue;
      drain(engine);
      for (const Engine::Id id : std::exchange(ids, {})) {
        const Result result = engine.take(id);
        EXPECT_EQ(result.finish, Finish::length) << result.status.message();
        tokens.insert(tokens.end(), result.tokens.begin(), result.tokens.end());
      }
    }
    return tokens;
  };
  EngineOptions options = rank("zero");
  options.kv.share_prefixes = true;
  options.demand.max_sequences = 2;
  options.demand.batch_tokens = 64;
  EngineOptions alone = options;
  alone.kv.prompt_cache.clear();
  const std::vector<TokenId> expected = talk(*make(alone));
  RankThreads ranks({rank("one"), rank("two")});
  std::uint64_t loaded = 0;
  for (int time = 0; time < 2; ++time) {
    const auto engine = ranks.create(options);
    ASSERT_TRUE(engine.ok()) << engine.status().message();
    EXPECT_EQ(talk(**engine), expected);
    loaded = (*engine)->load().disk.tokens;
  }
  EXPECT_GE(loaded, 300u / 64 * 64);
}

TEST_F(PromptCache, AnotherModelOrFormatTakesNothingOfIt) {
  const std::vector<TokenId> prompt = real_text(*make(roomy(draft_path())), 200);
  ask(*make(caching(draft_path())), prompt);
  EngineOptions f32 = caching(draft_path());
  f32.kv.dtype = DType::f32;
  EXPECT_EQ(ask(*make(f32), prompt).result.cached_tokens, 0);
  const std::string copy = folder.string() + ".gguf";  // the same bytes, changed at another time
  fs::copy_file(draft_path(), copy);
  const std::int64_t modified = os::file_info(draft_path())->modified_ns;
  const auto set_modified = [&copy](std::int64_t ns) {
    return os::File::open(copy, {.access = os::File::Access::both})->set_modified(ns).ok();
  };
  ASSERT_TRUE(set_modified(modified + 1'000'000'000));
  EXPECT_EQ(ask(*make(caching(copy)), prompt).result.cached_tokens, 0);
  ASSERT_TRUE(set_modified(modified));
  EXPECT_EQ(ask(*make(caching(copy)), prompt).result.cached_tokens, 192) << "the same model in another place";
  fs::remove(copy);
}

TEST_F(PromptCache, AConversationGoesOnAfterARestart) {
  std::vector<TokenId> prompt = real_text(*make(roomy(draft_path())), 150);
  const auto talk = [&](std::vector<TokenId> so_far) {
    const auto engine = make(caching(draft_path()));
    const auto session = engine->new_session();
    std::vector<std::int64_t> cached;
    for (int turn = 0; turn < 3; ++turn) {
      Request request = greedy(so_far, 10);
      request.ignore_end_tokens = true;
      const Result result = engine->run(std::move(request), session.get());
      cached.push_back(result.cached_tokens);
      so_far.insert(so_far.end(), result.tokens.begin(), result.tokens.end());
      const auto more = real_text(*engine, 50, 2000);
      so_far.insert(so_far.end(), more.begin(), more.end());
    }
    return std::pair(so_far, cached);
  };
  const auto [first, nothing] = talk(prompt);
  const auto [second, cached] = talk(prompt);
  EXPECT_EQ(first, second);
  EXPECT_EQ(nothing[0], 0);
  EXPECT_EQ(cached[0], 128);
  EXPECT_GE(cached[1], 192) << "the second turn's blocks too";
}

TEST_F(PromptCache, StreamsAndTheTreeTakePart) {
  EngineOptions options = caching(draft_path());
  options.demand.max_sequences = 4;
  options.kv.share_prefixes = true;
  std::vector<TokenId> prompt = real_text(*make(roomy(draft_path())), 400);
  const Answer plain = ask(*make(roomy(draft_path())), prompt);
  ask(*make(options), prompt);
  const auto engine = make(options);
  Request stream = greedy(real_text(*engine, 40, 5000), 100);
  stream.ignore_end_tokens = true;
  const Engine::Id stream_id = *engine->submit(std::move(stream));
  engine->step();
  std::vector<Engine::Id> ids;
  for (int i = 0; i < 3; ++i) {
    Request request = greedy(prompt, 8);
    request.ignore_end_tokens = true;
    ids.push_back(*engine->submit(std::move(request)));
  }
  drain(*engine);
  EXPECT_EQ(engine->take(stream_id).tokens.size(), 100u);
  for (const Engine::Id id : ids) {
    const Result result = engine->take(id);
    EXPECT_EQ(result.tokens, plain.result.tokens);
    EXPECT_GE(result.cached_tokens, 384);
  }
  EXPECT_EQ(engine->load().disk.tokens, 384u) << "once, then the tree has it";
}

TEST_F(PromptCache, WhatIsDamagedIsComputedAgain) {
  const std::vector<TokenId> prompt = real_text(*make(roomy(draft_path())), 300);
  const Answer first = ask(*make(caching(draft_path())), prompt);
  ASSERT_EQ(files(), 4u);
  std::vector<fs::path> by_size(fs::directory_iterator(folder), fs::directory_iterator{});
  std::sort(by_size.begin(), by_size.end(),
            [](const fs::path& one, const fs::path& other) { return fs::file_size(one) < fs::file_size(other); });
  {
    std::fstream stream(by_size[1], std::ios::in | std::ios::out | std::ios::binary);
    stream.seekp(-5, std::ios::end);
    stream.write("wrong", 5);
  }
  const Answer second = ask(*make(caching(draft_path())), prompt);
  EXPECT_EQ(second.result.cached_tokens, 64);
  EXPECT_TRUE(second.logits == first.logits);
  EXPECT_EQ(ask(*make(caching(draft_path())), prompt).result.cached_tokens, 256) << "and kept again";
}

TEST_F(PromptCache, WithoutAFolderItWorksAsBefore) {
  EngineOptions options = caching(draft_path());
  options.kv.prompt_cache = "/proc/nowhere/prompts";
  const auto engine = make(options);
  ask(*engine, real_text(*engine, 100));
  EXPECT_EQ(engine->load().disk.store.files, 0u);
}

TEST_F(PromptCache, AnIdleServiceFinishesWriting) {
  const auto service = *Service::start(caching(draft_path()));
  std::atomic<bool> done{false};
  const auto id = service->submit(greedy(real_text(service->engine(), 300), 1), [&](const Result&) { done = true; });
  ASSERT_TRUE(id.ok());
  for (int i = 0; i < 5000 && (!done || files() < 4); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(files(), 4u);
}

TEST_F(PromptCache, UnderATightBudgetItNeedsNoMemory) {
  EngineOptions tight = caching(moe_path());
  tight.memory.ram_bytes = 6'000'000;
  const auto engine = make(tight);
  const Answer answer = ask(*engine, real_text(*engine, 200));
  EXPECT_LE(engine->budget().reserved_bytes(), 6'000'000u);
  for (const auto& entry : engine->budget().entries()) EXPECT_NE(entry.tag, "prompt cache");
  for (int i = 0; i < 2000 && engine->saving(); ++i) {
    engine->step();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_FALSE(engine->saving());
  EXPECT_EQ(files(), 3u);
}

}  // namespace
}  // namespace millrace::engine
