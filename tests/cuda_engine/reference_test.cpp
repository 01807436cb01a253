// Every architecture's tiny checkpoint on the GPU, beside transformers' logits: tests/data/reference/README.md.
#include "engine/reference.h"

#include "cuda_engine/on_gpu.h"

namespace millrace::engine {
namespace {

using namespace test;

class CheckpointsOnGpu : public OnGpu, public testing::WithParamInterface<Checkpoint> {
 protected:
  static EngineOptions on_gpu() {
    EngineOptions options;
    options.model_path = GetParam().model();
    options.device = DeviceChoice::cuda;
    options.threads = 2;
    return options;
  }
};

TEST_P(CheckpointsOnGpu, AnswerAsTransformersDoes) { expect_the_reference(on_gpu(), GetParam()); }

TEST_P(CheckpointsOnGpu, AnswerSoStepByStep) {
  EngineOptions options = on_gpu();
  options.cuda_fuse = options.cuda_graphs = false;
  expect_the_reference(options, GetParam());
}

TEST_P(CheckpointsOnGpu, AnswerSoWithTheirLayersInRam) {
  if (GetParam().mixture) GTEST_SKIP() << "mixtures do not stream to a GPU yet";
  EngineOptions options = on_gpu();
  options.pins = *parse_pins("0-=ram");
  expect_the_reference(options, GetParam());
}

INSTANTIATE_TEST_SUITE_P(Reference, CheckpointsOnGpu, testing::ValuesIn(kCheckpoints), test_name);

}  // namespace
}  // namespace millrace::engine
