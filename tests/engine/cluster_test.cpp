// Engines over ranks that are threads: the same answers, limits that hold for all, and a word where it cannot be.
#include "engine/cluster.h"

#include <gtest/gtest.h>

#include "engine/checkpoint_path.h"
#include "engine/rank_threads.h"
#include "engine/support.h"

namespace millrace::engine {
namespace {

using namespace test;

EngineOptions one_thread(const std::string& path = moe_path()) {
  EngineOptions options = roomy(path);
  options.device.threads = 1;
  options.demand.context_tokens = 512;
  return options;
}

/// Logits of a prompt longer than a pass and of what is generated, of three requests that share passes.
std::vector<float> clustered_logits(Engine& engine) {
  std::vector<std::vector<float>> logits(3);
  std::vector<Engine::Id> ids;
  for (std::size_t i = 0; i < 3; ++i) {
    Request request = greedy(real_text(engine, i == 0 ? 150 : 20, 500 * i), 6);
    keep_logits(request, logits[i]);
    const auto id = engine.submit(std::move(request));
    EXPECT_TRUE(id.ok()) << id.status().message();
    if (id.ok()) ids.push_back(*id);
  }
  drain(engine);
  std::vector<float> all;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    EXPECT_EQ(engine.take(ids[i]).finish, Finish::length);
    all.insert(all.end(), logits[i].begin(), logits[i].end());
  }
  return all;
}

TEST(Cluster, GivesTheBitsOfOneProcess) {
  EngineOptions options = one_thread();
  options.demand.max_sequences = 3;
  options.demand.batch_tokens = 64;
  const auto alone = make(options);
  ASSERT_NE(alone, nullptr);
  const std::vector<float> expected = clustered_logits(*alone);
  for (const std::size_t followers : {1u, 2u}) {
    RankThreads ranks(std::vector<EngineOptions>(followers, one_thread()));
    for (const char* stages : {"", followers == 1 ? "0-0,1-5" : "0-2,3-3,4-5"}) {
      auto engine = ranks.create(options, stages);
      ASSERT_TRUE(engine.ok()) << engine.status().message();
      EXPECT_EQ(clustered_logits(**engine), expected) << followers + 1 << " ranks " << stages;
    }
  }
}

TEST(Cluster, TheLeastOfAllRanksHolds) {
  EngineOptions options = one_thread(), small = one_thread();
  options.demand.context_tokens = 0;
  small.memory.ram_bytes = 2'500'000;
  RankThreads ranks({small});
  auto engine = ranks.create(options);
  ASSERT_TRUE(engine.ok()) << engine.status().message();
  const auto alone = make(options);
  EXPECT_LT((*engine)->context_tokens(), alone->context_tokens());
  // As full as it gets: nobody else runs out first.
  Request request = greedy(real_text(**engine, static_cast<std::size_t>((*engine)->context_tokens() - 4)), 4);
  request.ignore_end_tokens = true;
  const Result result = (*engine)->run(std::move(request));
  EXPECT_EQ(result.finish, Finish::length) << result.status.message();
}

TEST(Cluster, RowsOfAPassAreTheLeastOfAllRanks) {
  EngineOptions options = one_thread(), small = one_thread();
  small.memory.ram_bytes = 4'000'000;
  RankThreads ranks({small});
  auto engine = ranks.create(options);
  ASSERT_TRUE(engine.ok()) << engine.status().message();
  const auto alone = make(options);
  EXPECT_LT((*engine)->saved_plan().batch_tokens, alone->saved_plan().batch_tokens);
  const Result result = (*engine)->run(greedy(real_text(**engine, 400), 4));
  EXPECT_NE(result.finish, Finish::error) << result.status.message();
}

TEST(Cluster, ConversationsGoOn) {
  RankThreads ranks({one_thread()});
  auto engine = ranks.create(one_thread());
  const auto alone = make(one_thread());
  ASSERT_TRUE(engine.ok()) << engine.status().message();
  const auto talk = [](Engine& engine) {
    const auto session = engine.new_session();
    std::string said;
    for (const std::size_t tokens : {30u, 80u, 50u}) {  // the last one goes back
      const Result result = engine.run(greedy(real_text(engine, tokens), 8), session.get());
      EXPECT_NE(result.finish, Finish::error) << result.status.message();
      said += result.text + "|";
    }
    return said;
  };
  EXPECT_EQ(talk(**engine), talk(*alone));
}

/// The logits of 90 tokens, and of what is generated behind them.
std::vector<float> logits_of_any(Engine& engine) {
  const auto vocab = engine.model().hyperparameters().vocab;
  std::vector<TokenId> prompt;
  for (std::int64_t i = 0; i < 90; ++i) prompt.push_back(static_cast<TokenId>(3 + (i * i * 7 + i * 31) % (vocab - 3)));
  std::vector<float> logits;
  Request request = greedy(std::move(prompt), 8);
  keep_logits(request, logits);
  const Result result = engine.run(std::move(request));
  EXPECT_EQ(result.finish, Finish::length) << result.status.message();
  return logits;
}

TEST(Cluster, EveryArchitectureThatCanBeCutGivesItsBits) {
  for (const char* name : {"llama",      "llama3",         "deepseek-v2-lite", "deepseek-v3", "glm-4.7-flash",
                           "glm4moe",    "granite",        "minimax-m2",       "mistral3",    "phi3",
                           "qwen2",      "qwen3",          "qwen3moe",         "mamba2",      "lfm2",
                           "lfm2moe",    "granitehybrid",  "falcon-h1",        "jamba",       "mamba",
                           "nemotron-h", "nemotron-h-moe", "qwen3next",        "kimi-linear"}) {
    EngineOptions options = one_thread(reference(name));
    options.demand.context_tokens = 128;
    const auto alone = make(options);
    ASSERT_NE(alone, nullptr) << name;
    RankThreads ranks({options});
    const auto layers = alone->model().hyperparameters().layers;
    auto engine = ranks.create(options, fmt::format("0-{},{}-{}", layers - 2, layers - 1, layers - 1));
    ASSERT_TRUE(engine.ok()) << name << ": " << engine.status().message();
    EXPECT_EQ(logits_of_any(**engine), logits_of_any(*alone)) << name;
  }
}

TEST(Cluster, LayersThatNeedMoreThanTheResidualStreamAreRefused) {
  for (const char* name : {"gemma4"}) {
    EngineOptions options = one_thread(reference(name));
    RankThreads ranks({options});
    const Status status = ranks.create(options).status();
    EXPECT_EQ(status.code(), Code::unsupported) << name << ": " << status.message();
  }
}

/// Gemma 3: six layers with a window of 16, the sixth of seven sees all.
TEST(Cluster, ConversationsGoOnWhereLayersHaveWindows) {
  EngineOptions options = one_thread(reference("gemma3"));
  options.demand.context_tokens = 512;
  const auto talk = [](Engine& engine) {
    const auto vocab = engine.model().hyperparameters().vocab;
    const auto session = engine.new_session();
    std::vector<float> all;
    for (const std::int64_t tokens : {200, 300, 250}) {  // the last one goes back, further than a window
      std::vector<TokenId> prompt;
      for (std::int64_t i = 0; i < tokens; ++i) prompt.push_back(static_cast<TokenId>(3 + i * 31 % (vocab - 3)));
      Request request = greedy(std::move(prompt), 8);
      request.ignore_end_tokens = true;
      request.on_logits = [&](std::int64_t, std::span<const float> row) {
        all.insert(all.end(), row.begin(), row.end());
      };
      const Result result = engine.run(std::move(request), session.get());
      EXPECT_EQ(result.finish, Finish::length) << result.status.message();
    }
    return all;
  };
  const auto alone = make(options);
  RankThreads ranks({options});
  auto engine = ranks.create(options, "0-5,6-6");
  ASSERT_TRUE(engine.ok()) << engine.status().message();
  EXPECT_EQ(talk(**engine), talk(*alone));
  *engine = nullptr;
  const Status status = ranks.create(options, "0-0,1-6").status();
  EXPECT_EQ(status.code(), Code::unsupported);
  EXPECT_NE(status.message().find("only layers with windows"), std::string::npos) << status.message();
}

/// Passes of long prompts are under way beside each other, with all sequences in use: windows keep the rows of each
/// until it ends.
TEST(Cluster, KvHasRoomForAllPassesUnderWay) {
  EngineOptions options = one_thread(reference("gemma3"));
  options.demand.context_tokens = 1024;
  options.demand.batch_tokens = 256;
  options.demand.max_sequences = 2;
  options.kv.share_prefixes = false;
  const auto talk = [](Engine& engine) {
    const auto vocab = engine.model().hyperparameters().vocab;
    std::vector<Engine::Id> ids;
    for (const std::int64_t length : {700, 600}) {
      std::vector<TokenId> prompt;
      for (std::int64_t i = 0; i < length; ++i) prompt.push_back(static_cast<TokenId>(3 + i * 31 % (vocab - 3)));
      Request request = greedy(std::move(prompt), 8);
      request.ignore_end_tokens = true;
      const auto id = engine.submit(std::move(request));
      EXPECT_TRUE(id.ok()) << id.status().message();
      if (id.ok()) ids.push_back(*id);
    }
    drain(engine);
    std::vector<TokenId> said;
    for (const Engine::Id id : ids) {
      const Result result = engine.take(id);
      EXPECT_EQ(result.finish, Finish::length) << result.status.message();
      said.insert(said.end(), result.tokens.begin(), result.tokens.end());
    }
    EXPECT_EQ(engine.load().preempted, 0u);
    return said;
  };
  const auto alone = make(options);
  ASSERT_NE(alone, nullptr);
  // Both contexts of the layer that sees all; of the others 3 blocks for each window, and those of a pass.
  EXPECT_EQ(alone->load().kv_blocks_bound, 2 * 16 + 2 * 3 + 4);
  RankThreads ranks({options});
  auto engine = ranks.create(options, "0-5,6-6");
  ASSERT_TRUE(engine.ok()) << engine.status().message();
  EXPECT_EQ((*engine)->load().kv_blocks_bound, 2 * 16 + 2 * 3 + 2 * 4);
  EXPECT_EQ(talk(**engine), talk(*alone));
}

/// Logits of a conversation that goes on from its end, goes back, and goes on again; its texts repeat themselves.
std::vector<float> logits_of_talk(Engine& engine) {
  const auto vocab = engine.model().hyperparameters().vocab;
  const auto session = engine.new_session();
  std::vector<float> all;
  std::vector<TokenId> said;
  struct Turn {
    std::size_t kept_percent;  // of what was said
    int generated;             // 200: so many checkpoints are passed by that not all stay
  };
  for (const Turn turn : {Turn{100, 200}, Turn{40, 12}, Turn{100, 12}, Turn{70, 12}}) {
    said.resize(said.size() * turn.kept_percent / 100);
    for (std::int64_t i = 0; i < 90; ++i) said.push_back(static_cast<TokenId>(3 + i % 7 * 31 % (vocab - 3)));
    Request request = greedy(said, turn.generated);
    request.ignore_end_tokens = true;
    request.on_logits = [&](std::int64_t, std::span<const float> row) {
      all.insert(all.end(), row.begin(), row.end());
    };
    const Result result = engine.run(std::move(request), session.get());
    EXPECT_EQ(result.finish, Finish::length) << result.status.message();
    said.insert(said.end(), result.tokens.begin(), result.tokens.end());
  }
  return all;
}

TEST(Cluster, ConversationsGoOnWhereLayersKeepAState) {
  for (const char* name : {"mamba2", "lfm2", "qwen3next", "nemotron-h", "kimi-linear"}) {
    EngineOptions options = one_thread(reference(name));
    options.demand.context_tokens = 512;
    options.demand.batch_tokens = 64;  // several passes of a prompt are under way
    const auto alone = make(options);
    ASSERT_NE(alone, nullptr) << name;
    const auto layers = alone->model().hyperparameters().layers;
    const std::vector<float> expected = logits_of_talk(*alone);
    for (const bool drafts : {false, true}) {
      if (drafts) options.speculate.mode = SpeculateOptions::Mode::fixed;
      options.speculate.drafts = 3;
      RankThreads ranks({options});
      auto engine = ranks.create(options, fmt::format("0-{},{}-{}", layers - 2, layers - 1, layers - 1));
      ASSERT_TRUE(engine.ok()) << name << ": " << engine.status().message();
      EXPECT_EQ(logits_of_talk(**engine), expected) << name << (drafts ? " with drafts" : "");
      std::uint64_t verified = 0;  // passes
      for (const DraftCounters& one : (*engine)->load().drafts) verified += one.passes;
      EXPECT_EQ(verified > 0, drafts) << name;
    }
  }
}

/// Qwen 3.5's reference: three layers that keep a state, then one that keeps all.
TEST(Cluster, TheFirstStageNeedsALayerThatKeepsAll) {
  EngineOptions options = one_thread(reference("qwen35"));
  const auto alone = make(options);
  ASSERT_NE(alone, nullptr);
  RankThreads ranks({options});
  const Status status =
      ranks.create(options, fmt::format("0-0,1-{}", alone->model().hyperparameters().layers - 1)).status();
  EXPECT_EQ(status.code(), Code::unsupported);
  EXPECT_NE(status.message().find("only layers with windows or states"), std::string::npos) << status.message();
}

TEST(Cluster, AnotherFileIsRefused) {
  RankThreads ranks({one_thread(draft_path())});
  const auto engine = ranks.create(one_thread());
  EXPECT_EQ(engine.status().code(), Code::invalid_argument);
  EXPECT_NE(engine.status().message().find("rank 1 (this process)"), std::string::npos) << engine.status().message();
  EXPECT_NE(engine.status().message().find("another file"), std::string::npos) << engine.status().message();
  EXPECT_TRUE(make(one_thread()) != nullptr);
}

TEST(Cluster, ARankWithTooLittleMemorySaysSo) {
  EngineOptions small = one_thread();
  small.memory.ram_bytes = 500'000;
  RankThreads ranks({one_thread(), small});
  const auto engine = ranks.create(one_thread());
  EXPECT_EQ(engine.status().code(), Code::out_of_budget);
  EXPECT_NE(engine.status().message().find("rank 2"), std::string::npos) << engine.status().message();
  // The ranks are there for another try, which fails the same way.
  EXPECT_EQ(ranks.create(one_thread()).status().code(), Code::out_of_budget);
}

TEST(Cluster, OneModelAtATime) {
  RankThreads ranks({one_thread()});
  auto first = ranks.create(one_thread());
  ASSERT_TRUE(first.ok()) << first.status().message();
  EXPECT_EQ(ranks.create(one_thread()).status().code(), Code::unavailable);
  *first = nullptr;
  EXPECT_TRUE(ranks.create(one_thread()).ok());
}

TEST(Cluster, WhatDoesNotWorkYetIsRefusedByName) {
  RankThreads ranks({one_thread()});
  EngineOptions drafts = one_thread();
  drafts.speculate.mode = SpeculateOptions::Mode::automatic;
  drafts.speculate.draft_model = draft_path();
  EXPECT_NE(ranks.create(drafts).status().message().find("--draft"), std::string::npos);
  EngineOptions gpu = one_thread();
  gpu.memory.vram_bytes = 1'000'000'000;
  EXPECT_NE(ranks.create(gpu).status().message().find("without --device cuda"), std::string::npos);
  EngineOptions several = one_thread();
  several.device.gpus_beside = {1};
  EXPECT_NE(ranks.create(several).status().message().find("cuda:0,1"), std::string::npos);
  EXPECT_EQ(ranks.create(one_thread(), "0-3,4-6").status().code(), Code::invalid_argument);
}

TEST(Cluster, AReadErrorElsewhereEndsTheRequestWithAWord) {
  EngineOptions failing = one_thread();
  failing.memory.ram_bytes = 4'000'000;
  failing.storage.backend = storage::BackendKind::pread_buffered;
  failing.storage.faults = {*storage::parse_fault("eio@60")};
  EngineOptions options = one_thread();
  options.demand.context_tokens = 256;
  RankThreads ranks({failing});
  auto engine = ranks.create(options, "0-2,3-5");
  ASSERT_TRUE(engine.ok()) << engine.status().message();
  Result result;
  result.finish = Finish::length;
  for (int i = 0; i < 50 && result.finish != Finish::error; ++i) {
    Request request = greedy(real_text(**engine, 20), 4);
    request.ignore_end_tokens = true;
    result = (*engine)->run(std::move(request));
    if (result.finish != Finish::error) continue;
    EXPECT_EQ(result.status.code(), Code::io_error) << result.status.message();
    EXPECT_NE(result.status.message().find("rank 1"), std::string::npos) << result.status.message();
  }
  EXPECT_EQ(result.finish, Finish::error) << "no read failed";
}

}  // namespace
}  // namespace millrace::engine
