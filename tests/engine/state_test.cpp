// Layers that keep a state: what their states take, and that nobody sees how a sequence was cut, taken back, thrown out
// or restored. Where one model is enough it is Qwen3.5's mixture: two layers of three keep a state.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "engine/setup.h"
#include "engine/support.h"

namespace millrace::engine {
namespace {

using test::drain;
using test::greedy;
using test::keep_logits;
using test::make;
using text::TokenId;

EngineOptions options_of(const std::string& model, std::int64_t batch, bool share) {
  EngineOptions options = test::roomy(MILLRACE_TEST_DATA "/reference/" + model + ".gguf");
  options.max_sequences = 1;
  options.context_tokens = 512;
  options.batch_tokens = batch;
  options.share_prefixes = share;
  return options;
}

EngineOptions hybrid(std::int64_t batch = 512, bool share = false) { return options_of("qwen35moe", batch, share); }

/// Of each kind of state.
class States : public testing::TestWithParam<const char*> {
 protected:
  static EngineOptions hybrid(std::int64_t batch = 512, bool share = false) {
    return options_of(GetParam(), batch, share);
  }
};

std::vector<TokenId> some_tokens(std::int64_t count, std::int64_t differs = 1'000'000) {
  constexpr std::int64_t kVocab = 80;
  std::vector<TokenId> tokens;
  for (std::int64_t i = 0; i < count; ++i)
    tokens.push_back(static_cast<TokenId>(3 + (i * i * 7 + i * 31 + (i >= differs ? 11 : 0)) % (kVocab - 3)));
  return tokens;
}

Request answer_of(std::vector<TokenId> prompt, std::int64_t tokens = 30) {
  Request request = greedy(std::move(prompt), tokens);
  request.ignore_end_tokens = true;
  return request;
}

std::vector<float> logits_of(Engine& engine, std::vector<TokenId> prompt) {
  std::vector<float> logits;
  Request request = answer_of(std::move(prompt), 40);
  keep_logits(request, logits);
  EXPECT_TRUE(engine.run(std::move(request)).status.ok());
  return logits;
}

TEST(State, KvIsWhatTheLayoutAndThePlanSay) {
  const auto engine = make(hybrid());
  const kv::Layout& layout = engine->model().program().layout;
  ASSERT_EQ(layout.groups().size(), 2u);
  const kv::Group &states = layout.groups()[0], &keys = layout.groups()[1];
  EXPECT_EQ(states.state, (kv::StateShape{3, 256, 4, 32, 32}));
  EXPECT_EQ(states.layers, 2);
  EXPECT_EQ(keys.layers, 1);
  const auto pages = [](std::int64_t bytes) { return (static_cast<std::uint64_t>(bytes) + 4095) / 4096 * 4096; };
  EXPECT_EQ(engine->plan_options().most_kv_bytes, 6 * pages(states.block_bytes()) + 8 * pages(keys.block_bytes()));
  const auto session = engine->new_session();
  ASSERT_TRUE(engine->run(answer_of(some_tokens(300)), session.get()).status.ok());
  EXPECT_EQ(engine->load().kv_blocks, 6 + 1 + kv::kMostCheckpoints) << "of keys; the last state; checkpoints";
}

TEST_P(States, ChunksGiveTheSameBits) {
  const auto whole = make(hybrid());
  const std::vector<TokenId> prompt = some_tokens(300);
  const std::vector<float> expected = logits_of(*whole, prompt);
  for (const std::int64_t batch : {1, 7, 63, 64, 100}) {
    const auto engine = make(hybrid(batch));
    EXPECT_TRUE(logits_of(*engine, prompt) == expected) << batch << " rows a pass";
    EXPECT_EQ(engine->load().kv_blocks, 0);
  }
}

TEST_P(States, ASessionGoesBackToACheckpointAndAnswersTheSame) {
  EngineOptions options = hybrid(64);
  options.max_sequences = 2;  // states for the session and a stranger
  const auto engine = make(options);
  for (const std::int64_t agreed : {329, 299, 257, 256, 255, 20, 0}) {
    const auto session = engine->new_session();
    const Result first = engine->run(answer_of(some_tokens(300)), session.get());
    std::vector<TokenId> held = some_tokens(300);
    held.insert(held.end(), first.tokens.begin(), first.tokens.end());
    held.resize(static_cast<std::size_t>(agreed));
    for (const TokenId token : some_tokens(30, 0)) held.push_back(token);
    const Result result = engine->run(answer_of(held), session.get());
    EXPECT_TRUE(result.cached_tokens == agreed || result.cached_tokens % 64 == 0) << result.cached_tokens;
    EXPECT_GE(result.cached_tokens, agreed >= 256 ? 256 : 0);
    EXPECT_LE(result.cached_tokens, agreed);
    EXPECT_EQ(result.tokens, engine->run(answer_of(held)).tokens) << agreed;
  }
}

TEST_P(States, RequestsThatBeginAlikeShareWhatThereIs) {
  EngineOptions options = hybrid(64, true);
  options.max_sequences = 4;
  const auto engine = make(options);
  std::vector<std::vector<TokenId>> prompts, alone;
  for (const std::int64_t differs : {400, 300, 250, 130, 70, 400}) prompts.push_back(some_tokens(400, differs));
  {
    const auto plain = make(hybrid());
    for (const auto& prompt : prompts) alone.push_back(plain->run(answer_of(prompt)).tokens);
  }
  for (int round = 0; round < 3; ++round) {
    std::vector<Engine::Id> ids;
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      ids.push_back(*engine->submit(answer_of(prompts[i])));
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

TEST_P(States, TheNextTurnGoesOnFromWhereThePromptEnded) {
  const auto engine = make(hybrid(512, true));
  std::vector<TokenId> prompt = some_tokens(300);
  ASSERT_TRUE(engine->run(answer_of(prompt, 150)).status.ok());
  // The template leaves out what was thought: the next turn agrees up to the end of the first one's prompt.
  for (const TokenId token : some_tokens(60, 0)) prompt.push_back(token);
  const Result next = engine->run(answer_of(prompt));
  EXPECT_EQ(next.cached_tokens, 256);
  EXPECT_EQ(next.tokens, make(hybrid())->run(answer_of(prompt)).tokens);
}

TEST_P(States, APreemptedRequestAnswersTheSame) {
  std::vector<std::vector<TokenId>> alone;
  {
    const auto plain = make(hybrid());
    for (std::int64_t i = 0; i < 3; ++i) alone.push_back(plain->run(answer_of(some_tokens(200, 10 * i), 150)).tokens);
  }
  EngineOptions options = hybrid();
  options.max_sequences = 3;
  options.kv_tokens = 640;
  const auto engine = make(options);
  std::vector<Engine::Id> ids;
  for (std::int64_t i = 0; i < 3; ++i) ids.push_back(*engine->submit(answer_of(some_tokens(200, 10 * i), 150)));
  drain(*engine);
  for (std::size_t i = 0; i < ids.size(); ++i) EXPECT_EQ(engine->take(ids[i]).tokens, alone[i]) << i;
  const bool grows = engine->model().program().layout.bytes_per_token() > 0;
  EXPECT_EQ(engine->load().preempted > 0, grows) << "states alone take no more with time";
}

TEST_P(States, ThePromptCacheGivesBackCheckpoints) {
  const std::string folder = testing::TempDir() + "/state-prompts-" + GetParam();
  std::filesystem::remove_all(folder);
  EngineOptions options = hybrid(64, true);
  options.prompt_cache = folder;
  options.prompt_cache_seconds = 0;
  const auto cold = make(hybrid());
  {
    const auto engine = make(options);
    ASSERT_TRUE(engine->run(answer_of(some_tokens(330), 2)).status.ok());
    while (engine->saving()) engine->step();
  }
  const auto engine = make(options);
  const std::vector<TokenId> longer = some_tokens(350);
  const Result result = engine->run(answer_of(longer));
  EXPECT_EQ(result.cached_tokens, 320);
  EXPECT_EQ(result.tokens, cold->run(answer_of(longer)).tokens);
  std::filesystem::remove_all(folder);
}

/// Experts are read as routers name them, behind what the layer has done to its state; these reads fail, in a prompt's
/// pass or an answer's. What was there before is still right.
class FailedReads : public testing::TestWithParam<const char*> {};

TEST_P(FailedReads, LeaveNoHalfUpdatedState) {
  EngineOptions options = options_of(GetParam(), 64, false);
  options.storage = storage::BackendKind::pread_buffered;
  const std::vector<TokenId> prompt = some_tokens(150);
  const std::vector<TokenId> expected = make(options)->run(answer_of(prompt)).tokens;
  options.expert_slots = 4;  // of 8 or 12 experts
  int struck = 0;
  for (const int after : {0, 4, 12, 20, 30, 40, 55, 70, 90, 120}) {
    SCOPED_TRACE(after);
    options.faults = {*storage::parse_fault("eio@" + std::to_string(after))};
    Expected<std::unique_ptr<Engine>> engine = Engine::create(options);
    if (!engine.ok()) continue;  // it struck while loading
    const auto session = (*engine)->new_session();
    const Result first = (*engine)->run(answer_of(prompt), session.get());
    struck += first.finish == Finish::error ? 1 : 0;
    EXPECT_TRUE(std::equal(first.tokens.begin(), first.tokens.end(), expected.begin()));
    const Result next = (*engine)->run(answer_of(prompt), session.get());
    EXPECT_EQ(next.tokens, expected) << next.status.message();
    if (!first.tokens.empty()) {
      EXPECT_GT(next.cached_tokens, 0) << "what was right is kept";
    }
  }
  EXPECT_GE(struck, 3);
}

std::string model_name(const testing::TestParamInfo<const char*>& info) {
  std::string name(info.param);
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}
INSTANTIATE_TEST_SUITE_P(Kinds, States, testing::Values("qwen35moe", "lfm2", "mamba2", "nemotron-h-moe"), model_name);
INSTANTIATE_TEST_SUITE_P(Kinds, FailedReads, testing::Values("qwen35moe", "nemotron-h-moe"), model_name);

TEST(StateCost, IsWhatPredictionsCount) {
  const auto engine = make(hybrid());
  ASSERT_NE(engine, nullptr);
  const exec::Program& program = engine->model().program();
  const auto cost = step_cost(program, kv_layout(engine->model(), DType::f16, kv::kOnHost));
  double heads = 0;  // floats of the states of heads
  std::int64_t rules = 0, mixtures = 0;
  for (const exec::Step& step : program.steps) {
    mixtures += step.kind == exec::Step::Kind::moe ? 1 : 0;
    if (step.kind != exec::Step::Kind::delta_rule) continue;
    ++rules;
    heads += static_cast<double>(step.delta_rule.value_heads * step.delta_rule.key_dim * step.delta_rule.value_dim);
  }
  ASSERT_GT(rules, 0);
  EXPECT_EQ(cost.state_macs, 4 * heads);
  EXPECT_GT(cost.state_bytes, 2 * 4 * heads) << "and the last inputs of the convolutions";
  EXPECT_LT(cost.state_bytes, 3 * 4 * heads);
  EXPECT_GE(cost.products, rules * 2 + mixtures * 3);
  EXPECT_LT(cost.products, cost.steps * 2);
}

// A latent is read once for all heads, which multiply all of it.
TEST(StateCost, LatentsAreReadOnceForAllHeads) {
  const auto engine = make(options_of("deepseek-v3", 512, false));
  ASSERT_NE(engine, nullptr);
  const kv::Layout layout = kv_layout(engine->model(), DType::f16, kv::kOnHost);
  const auto costs = attention_costs(engine->model().program(), layout);
  ASSERT_EQ(costs.size(), 1u);
  const kv::Group& group = layout.groups().at(0);
  ASSERT_EQ(group.keeps, kv::Keeps::latent);
  EXPECT_EQ(costs[0].kv_bytes, static_cast<double>(group.layers * group.v_dim * 2));
  EXPECT_GT(costs[0].macs, costs[0].kv_bytes / 2) << "by more than one head";
}

}  // namespace
}  // namespace millrace::engine
