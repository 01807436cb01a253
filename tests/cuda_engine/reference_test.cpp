// Every architecture's tiny checkpoint on the GPU, beside transformers' logits: tests/data/reference/README.md.
#include "engine/reference.h"

#include "cuda_engine/on_gpu.h"

namespace millrace::engine {
namespace {

using namespace test;

class CheckpointsOnGpu : public OnGpu, public testing::WithParamInterface<Cell> {
 protected:
  static EngineOptions on_gpu() {
    EngineOptions options;
    options.model.path = std::get<Checkpoint>(GetParam()).model();
    options.device.choice = DeviceChoice::cuda;
    options.device.threads = 2;
    if (std::get<PlaceName>(GetParam()).place != Place::gpu_ram) return options;
    if (std::get<Checkpoint>(GetParam()).mixture)
      options.experts.vram_slots = 2;
    else
      options.memory.pins = *parse_pins("0-=ram");
    return options;
  }
  static bool is_refused_here() {
    EngineOptions options = on_gpu();
    options.kv.dtype = std::get<Checkpoint>(GetParam()).kv;
    return lacks_shared_memory(options);
  }
};

TEST_P(CheckpointsOnGpu, AnswerAsTransformersDoes) {
  if (is_refused_here()) GTEST_SKIP();
  expect_the_cell(on_gpu(), GetParam());
}

TEST_P(CheckpointsOnGpu, AnswerSoStepByStep) {
  if (is_refused_here()) GTEST_SKIP();
  EngineOptions options = on_gpu();
  options.device.fuse = options.device.graphs = false;
  expect_the_cell(options, GetParam());
}

TEST_P(CheckpointsOnGpu, StayNearWithRotatedKv) {
  const auto& [checkpoint, place] = GetParam();
  if (place.place != Place::gpu_vram || !checkpoint.runs(place.place)) GTEST_SKIP();
  expect_near_with_rotated_kv(on_gpu(), checkpoint);
}

INSTANTIATE_TEST_SUITE_P(Reference, CheckpointsOnGpu,
                         testing::Combine(testing::ValuesIn(kCheckpoints), testing::Values(kPlaces[2], kPlaces[3])),
                         test_name);

}  // namespace
}  // namespace millrace::engine
