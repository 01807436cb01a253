// Pictures on a GPU: towers, and prompts with rows of their own in the embeddings' place, rotary places that pictures
// shift, columns that the first layers add, rows that see each other.
#include "engine/vision.h"

#include "cuda_engine/on_gpu.h"

namespace millrace::engine {
namespace {

using namespace test;

class VisionOnGpu : public OnGpu, public testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override {
    OnGpu::SetUp();
    if (!IsSkipped() && lacks_shared_memory(on_gpu())) GTEST_SKIP();
  }
  static EngineOptions on_gpu() {
    EngineOptions options = sees(GetParam());
    options.memory.ram_bytes = 0;
    options.memory.exact_budget = false;
    options.device.choice = DeviceChoice::cuda;
    return options;
  }
};

TEST_P(VisionOnGpu, TowersMakeTheRowsThatTransformersMakes) {
  const VisionReference reference = read_vision(GetParam());
  const auto engine = make(on_gpu());
  ASSERT_NE(engine, nullptr);
  for (std::size_t i = 0; i < reference.pictures.size(); ++i) {
    const auto made = encoded(*engine, reference, i);
    ASSERT_NE(made, nullptr);
    EXPECT_EQ(made->grid, reference.pictures[i].grid);
    EXPECT_LE(relative(made->states, reference.pictures[i].states), 2e-3) << i;
  }
  EXPECT_EQ(engine->pictures()->run_views(), std::ssize(reference.pictures));
}

/// In one pass, in chunks that cut pictures, row by row (as decoding, whose passes are graphs), and a launch a step.
TEST_P(VisionOnGpu, AnswersAsTransformersDoes) {
  const VisionReference reference = read_vision(GetParam());
  // Deltas of chunks are multiplied as halves, and a picture's rows are larger than a text's: 2.1e-3 on an H200, with
  // KV in f32, too. Without them f32 leaves 1e-6, and f16 6e-4.
  const double most = std::string_view(GetParam()) == "qwen35" ? 3e-3 : 2e-3;
  const std::string name = GetParam();
  const bool ahead = name.starts_with("gemma");  // its pictures' rows see each other, and go together
  for (const std::int64_t rows :
       ahead ? std::vector<std::int64_t>{0, name == "gemma3" ? 9 : 24, -1} : std::vector<std::int64_t>{0, 5, 1, -1}) {
    SCOPED_TRACE(rows);
    EngineOptions options = on_gpu();
    options.demand.batch_tokens = std::max<std::int64_t>(rows, 0);
    options.demand.max_sequences = 1;
    options.device.fuse = options.device.graphs = rows >= 0;
    const auto engine = make(options);
    ASSERT_NE(engine, nullptr);
    for (const VisionPrompt& prompt : reference.prompts) {
      Request request = with_pictures(*engine, reference, prompt.tokens, std::ssize(prompt.answer));
      std::vector<float> logits;
      const bool has_logits = name != "gemma3" && !name.starts_with("gemma4-moe");  // of whole pictures alone
      if (has_logits) keep_logits(request, logits);
      const Result result = engine->run(std::move(request));
      ASSERT_EQ(result.status.message(), "");
      EXPECT_EQ(result.tokens, prompt.answer);
      if (!has_logits) continue;
      ASSERT_GE(logits.size(), prompt.logits.size());
      EXPECT_LE(relative(std::span(logits).first(prompt.logits.size()), prompt.logits), most);
    }
  }
}

TEST_P(VisionOnGpu, ABatchWithTextsAnswersAsEachAlone) {
  const VisionReference reference = read_vision(GetParam());
  const auto engine = make(on_gpu());
  ASSERT_NE(engine, nullptr);
  const std::vector<TokenId> text = {10, 20, 30, 40, 50};
  const Result alone = engine->run(greedy(text, 12));
  std::vector<Engine::Id> ids;
  for (const VisionPrompt& prompt : reference.prompts)
    ids.push_back(engine->submit(with_pictures(*engine, reference, prompt.tokens, std::ssize(prompt.answer))).value());
  ids.push_back(engine->submit(greedy(text, 12)).value());
  drain(*engine);
  for (std::size_t i = 0; i < reference.prompts.size(); ++i)
    EXPECT_EQ(engine->take(ids[i]).tokens, reference.prompts[i].answer) << i;
  EXPECT_EQ(engine->take(ids.back()).tokens, alone.tokens);
}

INSTANTIATE_TEST_SUITE_P(Reference, VisionOnGpu,
                         testing::Values("qwen35", "qwen3vl", "qwen2vl", "qwen2vl-quick", "mistral-nemo", "glm4v",
                                         "qwen2-internvl", "qwen3-internvl", "llama-idefics3", "lfm2",
                                         "deepseek-v3-kimivl", "gemma3", "gemma4", "gemma4-moe", "gemma4-moe-unified"),
                         [](const testing::TestParamInfo<const char*>& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

class VisionPlacesOnGpu : public OnGpu {};

/// Where VRAM has no room for the tower beside the model, the processor computes pictures.
TEST_F(VisionPlacesOnGpu, ATowerWithoutRoomIsTheProcessors) {
  const VisionReference reference = read_vision("qwen3vl");
  EngineOptions options = sees("qwen3vl");
  options.memory.ram_bytes = 0;
  options.memory.exact_budget = false;
  options.device.choice = DeviceChoice::cuda;
  const auto planned = plan_only(options);
  ASSERT_TRUE(planned.ok()) << planned.status().message();
  ASSERT_GT(planned->plan.vram_tower_bytes, 0u);
  const residency::Plan& plan = planned->plan;
  options.memory.vram_bytes = plan.vram_weight_bytes + plan.vram_fixed_bytes + planned->options.kv_bytes + (1u << 20);
  const auto engine = make(options);
  ASSERT_NE(engine, nullptr);
  EXPECT_EQ(engine->plan().vram_tower_bytes, 0u);
  const auto made = encoded(*engine, reference, 0);
  ASSERT_NE(made, nullptr);
  EXPECT_LE(relative(made->states, reference.pictures[0].states), 2e-4);
  EXPECT_EQ(engine->pictures()->run_views(), 0);
}

}  // namespace
}  // namespace millrace::engine
