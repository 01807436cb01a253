// What plans for a GPU foretell of models of real shapes, beside what was measured (docs/internals/benchmarks.md). On
// paper: no GPU, and no weights.
#include <gtest/gtest.h>

#include <algorithm>
#include <string_view>
#include <tuple>

#include "base/bytes.h"
#include "engine/paper.h"
#include "engine/setup.h"
#include "engine/synth_file.h"
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
  int gpus = 1;
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
  const auto parts = assemble_gpu_on_paper(options, 0, measured.gpus);
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
                                         Measured{"llama3-70b", DType::q4_k, {.context = 2048}, 93.9, 2},
                                         Measured{"llama3-70b", DType::q4_k, {.prompt_tokens = 2048}, 3250},
                                         Measured{"llama3-70b", DType::q4_k, {.prompt_tokens = 2048}, 5863, 2},
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
                           return fmt::format("{}_{}_{}_{}{}", name, work.prompt_tokens > 0 ? "prompt" : "decode",
                                              work.sequences, work.prompt_tokens + work.context,
                                              measured.param.gpus > 1 ? "_on_two" : "");
                         });

/// A PC by its data sheets: rates in GB/s.
struct Pc {
  const char* name;
  std::uint64_t vram_gb, ram_gb;
  double vram, link, ram, disk;
  int processors;
};

class PredictionsForPcs : public ::testing::TestWithParam<std::tuple<Pc, const char*>> {};

/// Each memory and link takes at least as long as its bytes take at its rate, and a token at least as long as the
/// slowest.
TEST_P(PredictionsForPcs, KeepToWhatTheRatesAllow) {
  const auto& [pc, preset] = GetParam();
  Machine machine;
  machine.name = pc.name;
  machine.ram_bytes = pc.ram_gb * 1'000'000'000;
  machine.vram_bytes = pc.vram_gb * 1'000'000'000;
  machine.processors = pc.processors;
  machine.rates = {.disk = pc.disk * 1e9,
                   .ram = pc.ram * 1e9,
                   .cpu_decode = pc.ram * 0.96e9,
                   .host_to_device = pc.link * 1e9,
                   .device_memory = pc.vram * 1e9,
                   .cpu_product = 4e-6,
                   .machine = "a test"};
  const bool oss = std::string_view(preset).starts_with("gpt-oss");
  const auto shape = synth::preset(preset);
  ASSERT_TRUE(shape.ok());
  const SynthFile file(*shape, {.matrices = oss ? DType::mxfp4 : DType::q4_k}, true);
  EngineOptions options;
  options.model.path = file.path();
  options.demand.context_tokens = 4096;
  const auto planned = plan_for(options, machine);
  ASSERT_TRUE(planned.ok()) << planned.status().message();
  const double speed = planned->plan.predicted_decode_tokens_per_second;
  double vram = 0, ram = 0, disk = 0;
  for (const residency::Plan::Row& row : planned->plan.rows)
    (row.tier == "vram" ? vram : row.tier == "ram" ? ram : disk) += row.bytes_per_token;
  const residency::Rates& rates = machine.rates;
  EXPECT_GT(speed, 0.05);
  EXPECT_LE(speed * vram, rates.device_memory);
  EXPECT_LE(speed * ram, rates.ram + rates.host_to_device);
  EXPECT_LE(speed * disk, rates.disk * 1.01);
  // And at least a fifth of that, were one thing done after the other: no plan leaves most of a machine idle.
  const double least = vram / rates.device_memory + ram / rates.cpu_decode + disk / rates.disk;
  EXPECT_GE(speed * least, 0.2) << speed << " tok/s";
}

INSTANTIATE_TEST_SUITE_P(OfDataSheets, PredictionsForPcs,
                         testing::Combine(testing::Values(Pc{"laptop8", 8, 13, 228, 13.7, 72, 4.3, 8},
                                                          Pc{"rtx3060", 12, 29, 320, 27.4, 41, 3, 6},
                                                          Pc{"rtx4090", 25, 64, 897, 27.4, 77, 6, 16},
                                                          Pc{"rtx5090", 33, 133, 1595, 54.8, 72, 12, 16}),
                                          testing::Values("llama3-8b", "gpt-oss-20b", "qwen3.6-27b", "qwen3.6-35b-a3b",
                                                          "llama3-70b", "gpt-oss-120b")),
                         [](const auto& planned) {
                           std::string name = std::string(std::get<0>(planned.param).name) + std::get<1>(planned.param);
                           std::erase_if(name, [](char c) { return c == '-' || c == '.'; });
                           return name;
                         });

}  // namespace
}  // namespace millrace::engine
