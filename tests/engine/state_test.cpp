// Layers that keep a state: what their states take, and that nobody sees how a sequence was cut, taken back, thrown out
// or restored. Where one model is enough it is Qwen3.5's mixture: two layers of three keep a state.
#include <gtest/gtest.h>

#include <algorithm>

#include "engine/setup.h"
#include "engine/states.h"
#include "engine/step_cost.h"

namespace millrace::engine {
namespace {

using namespace test;

EngineOptions hybrid(std::int64_t batch = 512, bool share = false) { return options_of("qwen35moe", batch, share); }

/// Of each kind of state.
class States : public testing::TestWithParam<const char*> {
 protected:
  static MakeOptions maker() {
    return [model = GetParam()](std::int64_t batch, bool share) { return options_of(model, batch, share); };
  }
};

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

TEST_P(States, ChunksGiveTheSameBits) { expect_chunks_to_give_the_same_bits(maker()); }

TEST_P(States, ASessionGoesBackToACheckpointAndAnswersTheSame) { expect_a_session_to_go_back_to_a_checkpoint(maker()); }

TEST_P(States, RequestsThatBeginAlikeShareWhatThereIs) { expect_requests_that_begin_alike_to_share(maker()); }

TEST_P(States, TheNextTurnGoesOnFromWhereThePromptEnded) { expect_the_next_turn_to_go_on_from_the_prompt(maker()); }

TEST_P(States, APreemptedRequestAnswersTheSame) { expect_a_preempted_request_to_answer_the_same(maker()); }

TEST_P(States, ThePromptCacheGivesBackCheckpoints) {
  expect_the_prompt_cache_to_give_back_checkpoints(maker(), GetParam());
}

class FailedReads : public testing::TestWithParam<const char*> {};

TEST_P(FailedReads, LeaveNoHalfUpdatedState) {
  const EngineOptions resident = options_of(GetParam(), 64, false);
  EngineOptions streamed = resident;
  streamed.experts.ram_slots = 4;  // of 8 or 12 experts
  expect_failed_reads_to_leave_no_half_updated_state(resident, streamed);
}

std::string model_name(const testing::TestParamInfo<const char*>& info) {
  std::string name(info.param);
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}
INSTANTIATE_TEST_SUITE_P(Kinds, States,
                         testing::Values("qwen35moe", "qwen4exp", "lfm2", "mamba2", "nemotron-h-moe", "kimi-linear",
                                         "bailingmoe3", "falcon-h1"),
                         model_name);
INSTANTIATE_TEST_SUITE_P(Kinds, FailedReads, testing::Values("qwen35moe", "qwen4exp", "nemotron-h-moe", "kimi-linear"),
                         model_name);

TEST(StateCost, IsWhatPredictionsCount) {
  const auto engine = make(hybrid());
  ASSERT_NE(engine, nullptr);
  const exec::Program& program = engine->model().program();
  const auto cost = step_cost(program, kv_layout(engine->model(), {}));
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
  const kv::Layout layout = kv_layout(engine->model(), {});
  const auto costs = attention_costs(engine->model().program(), layout);
  ASSERT_EQ(costs.size(), 1u);
  const kv::Group& group = layout.groups().at(0);
  ASSERT_EQ(group.keeps, kv::Keeps::latent);
  EXPECT_EQ(costs[0].kv_bytes, static_cast<double>(group.layers * group.v_dim * 2));
  EXPECT_GT(costs[0].macs, costs[0].kv_bytes / 2) << "by more than one head";
}

// An indexer reads a short key of every token, attention the latents of those that it chose.
TEST(StateCost, ChosenKeysAreReadLikeAWindow) {
  const auto engine = make(options_of("glm-dsa", 512, false));
  ASSERT_NE(engine, nullptr);
  const auto costs = attention_costs(engine->model().program(), kv_layout(engine->model(), {}));
  ASSERT_EQ(costs.size(), 2u);
  const auto& all = costs[costs[0].window == 0 ? 0 : 1];
  const auto& chosen = costs[costs[0].window == 0 ? 1 : 0];
  EXPECT_EQ(all.kv_bytes, 2.0 * 64 * 2);  // two layers of three choose
  EXPECT_EQ(all.macs, 2.0 * 8 * 64);
  EXPECT_EQ(chosen.window, 24);
  EXPECT_EQ(chosen.kv_bytes, 3.0 * (64 + 32) * 2);
}

}  // namespace
}  // namespace millrace::engine
