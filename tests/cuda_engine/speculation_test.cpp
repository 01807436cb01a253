// Drafts on the GPU: the same tokens, texts and logits as without, wherever weights lie and whoever computes.
#include "cuda_engine/on_gpu.h"
#include "engine/drafters.h"

namespace millrace::engine {
namespace {

using namespace test;

class SpeculationOnGpu : public OnGpu {
 protected:
  static EngineOptions on_gpu(const std::string& path) {
    EngineOptions options;
    options.model_path = path;
    options.device = DeviceChoice::cuda;
    options.threads = 3;
    options.max_sequences = 3;
    options.context_tokens = 256;
    options.share_prefixes = true;
    return options;
  }
  static std::string checkpoint(const char* name) {
    return std::string(MILLRACE_TEST_DATA "/reference/") + name + ".gguf";
  }
  static std::vector<Request> requests(const Engine& engine) {
    const std::int64_t vocab = engine.tokenizer().vocab_size();
    std::vector<Request> all;
    for (std::int64_t r = 0; r < 3; ++r) {
      std::vector<TokenId> prompt;
      for (std::int64_t i = 0; i < 20 + 37 * r; ++i)
        prompt.push_back(static_cast<TokenId>(3 + (i * i * 7 + i * 31 + r) % (vocab - 3)));
      if (vocab > 1000) prompt = real_text(engine, prompt.size(), static_cast<std::size_t>(300 * r));
      all.push_back(greedy(std::move(prompt), 80));
      all.back().ignore_end_tokens = true;
      if (r == 2) all.back().sampler.temperature = 0.9f;
    }
    return all;
  }
  /// With the logits that the GPU finds, and with all of them.
  static void expect_the_same(const EngineOptions& options) {
    for (const bool to_logits : {false, true}) {
      SCOPED_TRACE(to_logits ? "all logits" : "the largest logits");
      expect_drafts_to_change_nothing(options, requests, to_logits);
    }
  }
};

/// Attention over all keys, in windows and of latents, mixtures, states.
TEST_F(SpeculationOnGpu, ResidentModelsOfEveryKind) {
  for (const std::string& path :
       {draft_path(), moe_path(), checkpoint("gemma3"), checkpoint("gpt-oss"), checkpoint("deepseek-v3"),
        checkpoint("qwen3next"), checkpoint("mamba2"), checkpoint("lfm2"), checkpoint("granitehybrid")}) {
    SCOPED_TRACE(path);
    expect_the_same(on_gpu(path));
  }
}

TEST_F(SpeculationOnGpu, WithoutGraphs) {
  EngineOptions options = on_gpu(draft_path());
  options.cuda_graphs = false;
  expect_the_same(options);
}

TEST_F(SpeculationOnGpu, LayersThatStreamWithAndWithoutTheProcessorsShare) {
  for (const char* pins : {"0-=ram", "0-=disk", "0=ram,1-=disk"})
    for (const int share : {0, 50}) {
      SCOPED_TRACE(testing::Message() << pins << ", " << share << " % of the rows for the CPU");
      EngineOptions options = on_gpu(draft_path());
      options.pins = *parse_pins(pins);
      options.cpu_share_percent = share;
      expect_the_same(options);
    }
  EngineOptions options = on_gpu(draft_path());
  options.pins = *parse_pins("0-=ram");
  options.cpu_feed_forwards = 2;
  expect_the_same(options);
}

TEST_F(SpeculationOnGpu, ExpertsInRamWithTwoSlots) {
  for (const std::string& path : {moe_path(), checkpoint("gpt-oss")}) {
    SCOPED_TRACE(path);
    EngineOptions options = on_gpu(path);
    options.vram_experts = 2;
    expect_the_same(options);
  }
}

TEST_F(SpeculationOnGpu, WhoLosesItsKvSaysTheSame) {
  EngineOptions options = on_gpu(draft_path());
  options.kv_tokens = 256;
  expect_the_same(options);
}

/// The draft model computes on the CPU.
TEST_F(SpeculationOnGpu, ADraftModelBesideTheGpu) {
  const EngineOptions options = on_gpu(moe_path());
  EngineOptions with_model = drafting(options, nullptr, 4);
  with_model.speculate.draft_model = draft_path();
  const auto plain = make(options), engine = make(with_model);
  const std::vector<Told> expected = answers(*plain, requests(*plain)), told = answers(*engine, requests(*engine));
  for (std::size_t i = 0; i < told.size(); ++i) EXPECT_TRUE(told[i] == expected[i]) << i;
  EXPECT_GT(engine->load().drafts.front().right, 0u);
}

}  // namespace
}  // namespace millrace::engine
