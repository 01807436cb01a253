// A budget that the plan accepts serves its context, to the last token: what lies for now in the memory of KV gives way
// as sequences grow.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "cuda_engine/on_gpu.h"
#include "cuda_engine/synth_file.h"
#include "engine/support.h"

namespace millrace::engine {
namespace {

using namespace test;

class BudgetsOnGpu : public OnGpu, public ::testing::WithParamInterface<const char*> {
 protected:
  static constexpr std::int64_t kContext = 1500;

  static synth::Shape shape() {
    const std::string architecture = GetParam();
    synth::Shape shape;
    shape.architecture = architecture;
    shape.layers = 8, shape.dim = 512, shape.ff = 1408, shape.heads = 8, shape.kv_heads = 4, shape.head_dim = 128;
    shape.vocab = 8003;
    if (architecture != "llama" && architecture != "gemma3") shape.experts = 24, shape.top_k = 3, shape.expert_ff = 352;
    if (architecture == "deepseek2") shape.latent = {64, 256, 64, 128}, shape.head_dim = 192, shape.kv_heads = 1;
    if (architecture == "gpt-oss") shape.head_dim = 64, shape.kv_heads = 8;
    if (architecture == "qwen35moe") shape.state_heads = 32, shape.head_dim = 256;
    return shape;
  }
  /// As many tokens as the context has, eight of them generated.
  static Result fill(Engine& engine) {
    std::vector<TokenId> prompt;
    for (std::int64_t i = 0; i < kContext - 8; ++i)
      prompt.push_back(static_cast<TokenId>((i * 37 + i * i % 11) % 8000));
    Request request = greedy(std::move(prompt), 8);
    request.ignore_end_tokens = true;
    return engine.run(std::move(request));
  }
};

TEST_P(BudgetsOnGpu, ServeTheirContextWhereThePlanAcceptsThem) {
  constexpr int kBudgets = 50;
  const SynthFile file(shape(), {.matrices = DType::q8_0});
  EngineOptions options;
  options.model.path = file.path();
  options.device.choice = DeviceChoice::cuda;
  options.device.threads = 2;
  options.demand.context_tokens = kContext;
  options.demand.batch_tokens = 512;
  std::uint64_t whole = 0, weights = std::filesystem::file_size(file.path());
  {
    const auto resident = make(options);
    ASSERT_NE(resident, nullptr);
    whole = resident->vram_budget()->reserved_bytes();
    ASSERT_NE(fill(*resident).finish, Finish::error);
  }
  int accepted = 0;
  for (int i = 0; i < kBudgets; ++i) {
    // From nearly no weight to a little more than the whole model, by steps that no page divides.
    options.memory.vram_bytes =
        whole - weights + (weights + 8'000'000) / kBudgets * static_cast<std::uint64_t>(i) + 1234 * 17;
    SCOPED_TRACE(testing::Message() << options.memory.vram_bytes << " bytes");
    const Expected<std::unique_ptr<Engine>> engine = Engine::create(options);
    if (!engine.ok()) {
      EXPECT_EQ(engine.status().code(), Code::out_of_budget) << engine.status().message();
      EXPECT_NE(engine.status().message().find("--vram"), std::string::npos) << engine.status().message();
      continue;
    }
    ++accepted;
    const Result result = fill(**engine);
    EXPECT_NE(result.finish, Finish::error) << result.status.message();
    EXPECT_LE((*engine)->vram_budget()->reserved_bytes(), options.memory.vram_bytes);
  }
  EXPECT_GE(accepted, kBudgets / 2);
}

INSTANTIATE_TEST_SUITE_P(Architectures, BudgetsOnGpu,
                         ::testing::Values("llama", "gemma3", "gpt-oss", "qwen3moe", "qwen35moe", "deepseek2"),
                         [](const auto& param) {
                           std::string name = param.param;
                           std::erase(name, '-');
                           return name;
                         });

}  // namespace
}  // namespace millrace::engine
