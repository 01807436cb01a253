// Layers that keep a state on the GPU: what tests/engine/states.h says of every device, and that a pass that fails in
// the middle of a layer leaves no half-updated state.
#include "engine/states.h"

#include "cuda_engine/on_gpu.h"

namespace millrace::engine {
namespace {

using namespace test;

EngineOptions on_gpu(const std::string& model, std::int64_t batch, bool share) {
  EngineOptions options = options_of(model, batch, share);
  options.device.choice = DeviceChoice::cuda;
  options.device.threads = 2;
  options.memory.ram_bytes = options.memory.vram_bytes = 0;
  return options;
}

class StatesOnGpu : public OnGpu, public testing::WithParamInterface<const char*> {
 protected:
  static MakeOptions maker() {
    return [model = GetParam()](std::int64_t batch, bool share) { return on_gpu(model, batch, share); };
  }
};

TEST_P(StatesOnGpu, ChunksGiveTheSameBits) { expect_chunks_to_give_the_same_bits(maker()); }
TEST_P(StatesOnGpu, ASessionGoesBackToACheckpointAndAnswersTheSame) {
  expect_a_session_to_go_back_to_a_checkpoint(maker());
}
TEST_P(StatesOnGpu, RequestsThatBeginAlikeShareWhatThereIs) { expect_requests_that_begin_alike_to_share(maker()); }
TEST_P(StatesOnGpu, TheNextTurnGoesOnFromWhereThePromptEnded) {
  expect_the_next_turn_to_go_on_from_the_prompt(maker());
}
TEST_P(StatesOnGpu, APreemptedRequestAnswersTheSame) { expect_a_preempted_request_to_answer_the_same(maker()); }
TEST_P(StatesOnGpu, ThePromptCacheGivesBackCheckpoints) {
  expect_the_prompt_cache_to_give_back_checkpoints(maker(), std::string(GetParam()) + "-gpu");
}

/// Layers or experts that come from RAM change no bit, nor do graphs and fused launches.
TEST_P(StatesOnGpu, WhereWeightsLieChangesNoBit) {
  const std::vector<TokenId> prompt = some_tokens(300);
  const std::vector<float> expected = logits_of(*make(maker()(512, false)), prompt);
  EngineOptions streamed = maker()(512, false);
  const std::string_view model = GetParam();
  if (model.ends_with("moe") || model == "kimi-linear")
    streamed.experts.vram_slots = 2;
  else
    streamed.memory.pins = *parse_pins("0-=ram");
  EXPECT_TRUE(logits_of(*make(streamed), prompt) == expected);
  EngineOptions plain = maker()(512, false);
  plain.device.fuse = plain.device.graphs = false;
  EXPECT_TRUE(logits_of(*make(plain), prompt) == expected);
}

class FailedReadsOnGpu : public OnGpu, public testing::WithParamInterface<const char*> {};

TEST_P(FailedReadsOnGpu, LeaveNoHalfUpdatedState) {
  const EngineOptions resident = on_gpu(GetParam(), 64, false);
  EngineOptions streamed = resident;
  streamed.experts.vram_slots = 0;
  streamed.experts.ram_slots = 4;  // of 8 or 12 experts
  expect_failed_reads_to_leave_no_half_updated_state(resident, streamed);
}

std::string model_name(const testing::TestParamInfo<const char*>& info) {
  std::string name(info.param);
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}
INSTANTIATE_TEST_SUITE_P(Kinds, StatesOnGpu,
                         testing::Values("qwen35moe", "lfm2", "mamba2", "nemotron-h-moe", "kimi-linear", "falcon-h1"),
                         model_name);
INSTANTIATE_TEST_SUITE_P(Kinds, FailedReadsOnGpu, testing::Values("qwen35moe", "nemotron-h-moe", "kimi-linear"),
                         model_name);

}  // namespace
}  // namespace millrace::engine
