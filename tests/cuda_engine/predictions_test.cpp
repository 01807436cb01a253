// What plans for a GPU foretell of models of real shapes, beside what was measured (docs/internals/benchmarks.md). On
// paper: no GPU, and no weights.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/bytes.h"
#include "cuda_engine/synth_file.h"
#include "engine/setup.h"
#include "residency/predict.h"
#include "residency/rates.h"

namespace millrace::engine {
namespace {

using test::SynthFile;

const residency::Rates kH100 = residency::test::h100_rates();

/// All in VRAM.
struct Measured {
  const char* preset;
  DType dtype;
  residency::Work work;
  double tokens_per_second;
};

class PredictionsInVram : public ::testing::TestWithParam<Measured> {};

TEST_P(PredictionsInVram, AreNearWhatWasMeasured) {
  const Measured& measured = GetParam();
  const auto shape = synth::preset(measured.preset);
  ASSERT_TRUE(shape.ok());
  const SynthFile file(*shape, {.matrices = measured.dtype}, true);
  EngineOptions options;
  options.model.path = file.path();
  options.device.choice = DeviceChoice::cuda;
  options.planning.rates = kH100;
  options.memory.vram_bytes = 78'000'000'000;
  options.memory.ram_bytes = 100'000'000'000;
  options.demand.context_tokens = std::max<std::int64_t>(512, measured.work.context + measured.work.prompt_tokens);
  options.demand.max_sequences = measured.work.sequences;
  const auto parts = assemble_gpu_on_paper(options);
  ASSERT_TRUE(parts.ok()) << parts.status().message();
  const double predicted = residency::predict_tokens_per_second(parts->plan, kH100, measured.work);
  EXPECT_NEAR(predicted / measured.tokens_per_second, 1, 0.15) << predicted << " predicted";
}

INSTANTIATE_TEST_SUITE_P(OnH100, PredictionsInVram,
                         testing::Values(Measured{"llama3-8b", DType::q4_k, {.sequences = 32, .context = 96}, 5380},
                                         Measured{"llama3-8b", DType::q4_k, {.sequences = 64, .context = 96}, 6148},
                                         Measured{"llama3-8b", DType::q4_k, {.context = 30'000}, 253.9},
                                         Measured{"llama3-8b", DType::q4_k, {.prompt_tokens = 30'000}, 12'050},
                                         Measured{"llama3-70b", DType::q4_k, {.context = 2048}, 62.9},
                                         Measured{"llama3-70b", DType::q4_k, {.prompt_tokens = 2048}, 3250},
                                         Measured{"llama3-70b", DType::q4_k, {.sequences = 32, .context = 96}, 782},
                                         Measured{"qwen3-30b-a3b", DType::q4_k, {.context = 2048}, 349},
                                         Measured{"qwen3-30b-a3b", DType::q4_k, {.prompt_tokens = 2048}, 23'514},
                                         Measured{"qwen3-30b-a3b", DType::q4_k, {.sequences = 32, .context = 96}, 1627},
                                         Measured{"qwen3.6-35b-a3b", DType::q4_k, {.prompt_tokens = 2048}, 24'690},
                                         Measured{"glm-4.7-flash", DType::q4_k, {.context = 96}, 238},
                                         Measured{"glm-4.7-flash", DType::q4_k, {.context = 2112}, 222.5},
                                         Measured{"glm-4.7-flash", DType::q4_k, {.context = 16'032}, 177.8},
                                         Measured{"glm-4.7-flash", DType::q4_k, {.prompt_tokens = 2048}, 13'941},
                                         Measured{"glm-4.7-flash", DType::q4_k, {.prompt_tokens = 16'000}, 5953},
                                         Measured{"glm-4.7-flash", DType::q4_k, {.sequences = 8, .context = 64}, 882},
                                         Measured{
                                             "glm-4.7-flash", DType::q4_k, {.sequences = 32, .context = 64}, 1328}),
                         [](const auto& measured) {
                           std::string name = measured.param.preset;
                           std::erase_if(name, [](char c) { return c == '-' || c == '.'; });
                           const residency::Work& work = measured.param.work;
                           return fmt::format("{}_{}_{}_{}", name, work.prompt_tokens > 0 ? "prompt" : "decode",
                                              work.sequences, work.prompt_tokens + work.context);
                         });

}  // namespace
}  // namespace millrace::engine
