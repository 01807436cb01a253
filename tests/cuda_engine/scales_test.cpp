// Files with a scale beside their matrices (NAME.scale) on the GPU: tests/engine/scales_test.cpp.
#include "cuda_engine/on_gpu.h"
#include "engine/reference.h"
#include "engine/scaled_file.h"

namespace millrace::engine {
namespace {

using namespace test;

class ScalesOnGpu : public OnGpu, public testing::WithParamInterface<Cell> {};

TEST_P(ScalesOnGpu, MultiplyTheirProducts) {
  const auto& [checkpoint, place] = GetParam();
  if (!checkpoint.runs(place.place)) GTEST_SKIP();
  for (const bool fuse : {true, false}) {
    const ScaledFile file(checkpoint.model(), {});
    EngineOptions options;
    options.model.path = file.path();
    options.device.choice = DeviceChoice::cuda;
    options.device.threads = 2;
    options.device.fuse = options.device.graphs = fuse;
    if (place.place == Place::gpu_ram && checkpoint.mixture) options.experts.vram_slots = 2;
    if (place.place == Place::gpu_ram && !checkpoint.mixture) options.memory.pins = *parse_pins("0-=ram");
    EngineOptions here = options;
    here.kv.dtype = checkpoint.kv;
    if (lacks_shared_memory(here)) GTEST_SKIP();
    expect_the_reference(options, checkpoint);
  }
}

TEST_P(ScalesOnGpu, OfNvfp4AreCloseToTheProcessors) {
  const auto& [checkpoint, place] = GetParam();
  if (!checkpoint.runs(place.place)) GTEST_SKIP();
  const ScaledFile file(checkpoint.model(), {DType::nvfp4});
  EngineOptions options;
  options.model.path = file.path();
  options.demand.context_tokens = checkpoint.context;
  options.kv.dtype = checkpoint.kv;
  options.device.threads = 2;
  const auto logits_on = [&](DeviceChoice device) {
    options.device.choice = device;
    std::vector<float> logits;
    const auto engine = make(options);
    if (engine == nullptr) return logits;
    Request request = greedy(read_references(checkpoint.logits()).front().tokens, 1);
    keep_logits(request, logits);
    EXPECT_TRUE(engine->submit(std::move(request)).ok());
    drain(*engine);
    return logits;
  };
  options.device.choice = DeviceChoice::cuda;
  if (lacks_shared_memory(options)) GTEST_SKIP();
  const std::vector<float> on_cpu = logits_on(DeviceChoice::cpu);
  if (place.place == Place::gpu_ram && checkpoint.mixture) options.experts.vram_slots = 2;
  if (place.place == Place::gpu_ram && !checkpoint.mixture) options.memory.pins = *parse_pins("0-=ram");
  const std::vector<float> on_gpu = logits_on(DeviceChoice::cuda);
  ASSERT_EQ(on_cpu.size(), on_gpu.size());
  ASSERT_FALSE(on_cpu.empty());
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < on_cpu.size(); ++i) {
    difference += std::pow(double{on_cpu[i]} - on_gpu[i], 2);
    norm += std::pow(double{on_cpu[i]}, 2);
  }
  // Activations are int8 here and there bfloat16: with floats they part by up to 0.05, and in Gemma 4 by 0.14.
  EXPECT_LE(std::sqrt(difference / norm), 0.2);
}

INSTANTIATE_TEST_SUITE_P(Reference, ScalesOnGpu,
                         testing::Combine(testing::ValuesIn(kCheckpoints), testing::Values(kPlaces[2], kPlaces[3])),
                         test_name);

}  // namespace
}  // namespace millrace::engine
