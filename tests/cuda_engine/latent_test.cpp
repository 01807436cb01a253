// Layers that keep latents and index keys on the GPU: what tests/engine/latents.h says of every device, and that where
// weights lie, graphs and fused launches change no bit. GLM-5's checkpoint, whose indexer chooses 24 of the tokens for
// two layers of three; DeepSeek V3.2's, 48 for every layer.
#include "cuda_engine/on_gpu.h"
#include "engine/latents.h"

namespace millrace::engine {
namespace {

using namespace test;

EngineOptions latents_on_gpu(const std::string& file, std::int64_t batch, DType dtype) {
  EngineOptions options = latent_options(file, batch, dtype);
  options.device.choice = DeviceChoice::cuda;
  options.memory.ram_bytes = options.memory.vram_bytes = 0;
  return options;
}

class LatentsOnGpu : public OnGpu, public testing::WithParamInterface<DType> {
 protected:
  static MakeLatentOptions maker() {
    return [](const std::string& of, std::int64_t batch) { return latents_on_gpu(of, batch, GetParam()); };
  }
  static std::string file() { return latent_file("glm-dsa"); }
};

TEST_P(LatentsOnGpu, ChunksOfAnyLengthGiveTheSameBits) {
  expect_chunks_of_any_length_to_give_the_same_bits(maker(), file());
}
TEST_P(LatentsOnGpu, ChosenKeysAreAllUpToTheirNumber) { expect_all_keys_up_to_their_number(maker()); }
TEST_P(LatentsOnGpu, ASessionGoesBackAndAnswersTheSame) { expect_a_session_to_go_back(maker(), file()); }
TEST_P(LatentsOnGpu, RequestsThatBeginAlikeShareBlocksAndPasses) {
  expect_requests_that_begin_alike_to_share_blocks(maker(), file());
}
TEST_P(LatentsOnGpu, ARestartTakesThePromptFromTheDisk) {
  expect_a_restart_to_take_the_prompt_from_the_disk(maker(), file(), "gpu-" + std::string(info(GetParam()).name));
}

/// A context of several hundred tokens, of which rows see a few, beyond the bound at which passes begin to choose.
TEST_P(LatentsOnGpu, WhereWeightsLieChangesNoBit) {
  for (const std::string& model : {file(), latent_file("deepseek-v3.2"), choosing(300)}) {
    SCOPED_TRACE(model);
    const std::vector<TokenId> prompt = latent_tokens(470);
    const std::vector<float> expected = latent_logits(*make(maker()(model, 512)), prompt);
    EngineOptions streamed = maker()(model, 100);
    streamed.experts.vram_slots = 2;
    EXPECT_TRUE(latent_logits(*make(streamed), prompt) == expected);
    EngineOptions plain = maker()(model, 64);
    plain.device.fuse = plain.device.graphs = false;
    EXPECT_TRUE(latent_logits(*make(plain), prompt) == expected);
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, LatentsOnGpu, testing::Values(DType::f16, DType::f32, DType::q8_0),
                         [](const auto& of) { return std::string(millrace::info(of.param).name); });

}  // namespace
}  // namespace millrace::engine
