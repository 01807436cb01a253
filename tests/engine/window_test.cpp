// Layers that see a window of keys: what their KV takes, and that nobody sees the difference. Gemma 3's checkpoint: six
// layers with a window of 16, one that sees all.
#include <gtest/gtest.h>

#include <filesystem>

#include "engine/own_path.h"
#include "engine/setup.h"
#include "engine/step_cost.h"
#include "engine/support.h"
#include "fresh_folder.h"

namespace millrace::engine {
namespace {

using test::drain;
using test::greedy;
using test::keep_logits;
using test::make;
using test::own_path;
using text::TokenId;

constexpr std::int64_t kWindow = 16;

/// Others whose layers forget: Gemma 3n's, some of which see an earlier layer's keys, and Llama 4's, with chunks of 24.
constexpr const char* kForgetful[] = {"gemma3", "gemma3n", "llama4"};

EngineOptions forgetful(const std::string& name, std::int64_t context, std::int64_t batch = 512) {
  EngineOptions options = test::roomy(MILLRACE_TEST_DATA "/reference/" + name + ".gguf");
  options.demand.max_sequences = 1;
  options.demand.context_tokens = context;
  options.demand.batch_tokens = batch;
  options.kv.share_prefixes = false;
  return options;
}

EngineOptions gemma(std::int64_t context, std::int64_t batch = 512) { return forgetful("gemma3", context, batch); }

std::vector<TokenId> windowed_tokens(const Engine& engine, std::int64_t count, std::int64_t differs = 1'000'000) {
  const std::int64_t vocab = engine.model().hyperparameters().vocab;
  std::vector<TokenId> tokens;
  for (std::int64_t i = 0; i < count; ++i)
    tokens.push_back(static_cast<TokenId>(3 + (i * i * 7 + i * 31 + (i >= differs ? 11 : 0)) % (vocab - 3)));
  return tokens;
}

/// Logits of a prompt and of what is generated behind it.
std::vector<float> windowed_logits(Engine& engine, std::vector<TokenId> prompt) {
  std::vector<float> logits;
  Request request = greedy(std::move(prompt), 40);
  keep_logits(request, logits);
  EXPECT_TRUE(engine.run(std::move(request)).status.ok());
  return logits;
}

std::uint64_t kv_reserved(const Engine& engine) {
  for (const auto& entry : engine.budget().entries())
    if (entry.tag == "kv") return entry.bytes;
  return 0;
}

TEST(Window, KvIsWhatTheLayoutAndThePlanSay) {
  const auto engine = make(gemma(4096, 256));
  const kv::Layout& layout = engine->model().program().layout;
  ASSERT_EQ(layout.groups().size(), 2u);
  EXPECT_EQ(layout.groups()[0].window, kWindow);
  EXPECT_EQ(layout.groups()[0].layers, 6);
  EXPECT_EQ(layout.groups()[1].layers, 1);
  const auto session = engine->new_session();
  Request request = greedy(windowed_tokens(*engine, 2000), 70);
  request.ignore_end_tokens = true;
  ASSERT_TRUE(engine->run(std::move(request), session.get()).status.ok());
  const std::int64_t length = std::ssize(session->tokens());
  ASSERT_EQ(length, 2069);
  EXPECT_EQ(engine->load().kv_blocks, kv::blocks_for(length) + 1) << "keys from 2054 on are in one block";
  // A session's most: 64 blocks of the one layer, 3 and those of a pass of the others.
  const auto bytes = [&](std::size_t group) {
    return (static_cast<std::uint64_t>(layout.groups()[group].block_bytes()) + 4095) / 4096 * 4096;
  };
  EXPECT_EQ(engine->load().kv_blocks_bound, 64 + 3 + 4);
  EXPECT_EQ(engine->plan_options().most_kv_bytes, 64 * bytes(1) + 7 * bytes(0));
  Request rest = greedy(windowed_tokens(*engine, 4090), -1);
  rest.ignore_end_tokens = true;
  ASSERT_TRUE(engine->run(std::move(rest), session.get()).status.ok());
  EXPECT_GE(kv_reserved(*engine), 64 * bytes(1) + bytes(0));
  EXPECT_LE(kv_reserved(*engine), engine->plan_options().most_kv_bytes);
}

TEST(Window, ChunksShorterAndLongerThanTheWindowGiveTheSameBits) {
  for (const char* name : kForgetful) {
    SCOPED_TRACE(name);
    const auto whole = make(forgetful(name, 512));
    const std::vector<TokenId> prompt = windowed_tokens(*whole, 300);
    const std::vector<float> expected = windowed_logits(*whole, prompt);
    ASSERT_EQ(expected.size(), 339 * static_cast<std::size_t>(whole->model().hyperparameters().vocab));
    for (const std::int64_t batch : {1, 7, 16, 64, 100}) {
      const auto engine = make(forgetful(name, 512, batch));
      EXPECT_TRUE(windowed_logits(*engine, prompt) == expected) << batch << " rows a pass";
      EXPECT_EQ(engine->load().kv_blocks, 0);
    }
  }
}

TEST(Window, ASessionGoesBackAsFarAsItCanAndAnswersTheSame) {
  EngineOptions options = gemma(512, 64);
  options.demand.max_sequences = 2;  // KV for the session and a stranger
  const auto engine = make(options);
  for (const std::int64_t agreed : {299, 290, 200, 20, 0}) {
    const auto session = engine->new_session();
    Request first = greedy(windowed_tokens(*engine, 300), 1);
    first.ignore_end_tokens = true;
    ASSERT_TRUE(engine->run(std::move(first), session.get()).status.ok());
    Request next = greedy(windowed_tokens(*engine, 310, agreed), 30);
    next.ignore_end_tokens = true;
    Request alone = next;
    const Result result = engine->run(std::move(next), session.get());
    // Block 4 begins at 256: what a token before 271 sees is gone.
    EXPECT_EQ(result.cached_tokens, agreed >= 271 ? agreed : 0);
    EXPECT_EQ(result.tokens, engine->run(std::move(alone)).tokens) << agreed;
  }
}

TEST(Window, RequestsThatBeginAlikeShareWhatIsLeft) {
  EngineOptions options = gemma(512, 64);
  options.demand.max_sequences = 4;
  options.kv.share_prefixes = true;
  const auto engine = make(options);
  std::vector<std::vector<TokenId>> prompts;
  for (const std::int64_t differs : {400, 300, 250, 130, 70, 400})
    prompts.push_back(windowed_tokens(*engine, 400, differs));
  std::vector<std::vector<TokenId>> alone;
  {
    const auto plain = make(gemma(512));
    for (const auto& prompt : prompts) alone.push_back(plain->run(greedy(prompt, 60)).tokens);
  }
  for (int round = 0; round < 3; ++round) {
    std::vector<Engine::Id> ids;
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      ids.push_back(*engine->submit(greedy(prompts[i], 60)));
      for (std::size_t pass = 0; pass < i; ++pass) engine->step();
    }
    drain(*engine);
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const Result result = engine->take(ids[i]);
      EXPECT_TRUE(result.status.ok()) << result.status.message();
      EXPECT_EQ(result.tokens, alone[i]) << i;
    }
    EXPECT_LE(engine->load().kv_blocks, engine->load().kv_blocks_bound);
  }
  EXPECT_GT(engine->load().shared_tokens, 0u);
  engine->drop_shared();
  EXPECT_EQ(engine->load().kv_blocks, 0) << "every block is back";
}

void expect_restored(const std::string& name) {
  const std::string folder = own_path("window-prompts");
  std::filesystem::remove_all(folder);
  const millrace::test::RemovedLater removed(folder);
  EngineOptions options = forgetful(name, 512, 64);
  options.kv.share_prefixes = true;
  options.kv.prompt_cache = folder;
  options.kv.prompt_cache_seconds = 0;
  const auto cold = make(forgetful(name, 512));
  const std::vector<TokenId> prompt = windowed_tokens(*cold, 330), longer = windowed_tokens(*cold, 350);
  {
    const auto engine = make(options);
    ASSERT_TRUE(engine->run(greedy(prompt, 2)).status.ok());
    while (engine->saving()) engine->step();
  }
  const auto engine = make(options);
  const Result result = engine->run(greedy(longer, 40));
  EXPECT_EQ(result.cached_tokens, 320);
  EXPECT_EQ(result.tokens, cold->run(greedy(longer, 40)).tokens);
  engine->drop_shared();
  const std::vector<TokenId> shorter = windowed_tokens(*cold, 350, 300);
  const Result part = engine->run(greedy(shorter, 40));
  EXPECT_EQ(part.cached_tokens, 256) << "what the tree had of the blocks before was written with the prompt";
  EXPECT_EQ(part.tokens, cold->run(greedy(shorter, 40)).tokens);
}

TEST(Window, ThePromptCacheGivesWhatEveryWindowStillSees) {
  for (const char* name : kForgetful) {
    SCOPED_TRACE(name);
    expect_restored(name);
  }
}

TEST(Window, IsWhatPredictionsCount) {
  const auto engine = make(gemma(256));
  ASSERT_NE(engine, nullptr);
  const auto costs = attention_costs(engine->model().program(), kv_layout(engine->model(), {}));
  ASSERT_EQ(costs.size(), 2u);
  constexpr double kHeads = 2, kKvHeads = 1, kChannels = 64 + 64;  // of K and V
  for (const residency::AttentionCost& cost : costs) {
    const double layers = cost.window == kWindow ? 6 : 1;
    EXPECT_EQ(cost.window, layers == 6 ? kWindow : 0);
    EXPECT_EQ(cost.macs, layers * kHeads * kChannels);
    EXPECT_EQ(cost.kv_bytes, layers * kKvHeads * kChannels * 2);
  }
}

}  // namespace
}  // namespace millrace::engine
