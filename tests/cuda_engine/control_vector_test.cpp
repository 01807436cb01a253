// Control vectors on a GPU: weights like others, in VRAM or on their way there.
#include "cuda_engine/on_gpu.h"
#include "engine/adapted_files.h"
#include "engine/control_files.h"
#include "engine/reference.h"

namespace millrace::engine {
namespace {

using namespace test;

using Floats = std::vector<float>;

class SteeredOnGpu : public OnGpu, public testing::WithParamInterface<const char*> {
 protected:
  static EngineOptions on(DeviceChoice device, const std::string& model, const std::string& control) {
    EngineOptions options;
    options.model.path = model;
    options.model.control = control;
    options.device.choice = device;
    options.device.threads = 2;
    options.demand.context_tokens = 256;
    return options;
  }
  static Floats logits_of(const EngineOptions& options, const std::vector<TokenId>& prompt) {
    Floats logits;
    const auto engine = make(options);
    if (engine == nullptr) return logits;
    Request request = greedy(prompt, 4);
    request.ignore_end_tokens = true;
    keep_logits(request, logits);
    EXPECT_TRUE(engine->submit(std::move(request)).ok());
    drain(*engine);
    return logits;
  }
};

TEST_P(SteeredOnGpu, AnswersAsTheProcessor) {
  const std::string model = reference(GetParam());
  const ControlFile vector(model);
  const Steering control(model, {{{vector.path()}}});
  const std::vector<TokenId> prompt =
      read_references(MILLRACE_TEST_DATA "/reference/" + std::string(GetParam()) + ".bin").front().tokens;
  const Floats bare = logits_of(on(DeviceChoice::cuda, model, ""), prompt);
  const Floats on_cpu = logits_of(on(DeviceChoice::cpu, model, control.path()), prompt);
  EngineOptions options = on(DeviceChoice::cuda, model, control.path());
  const Floats with = logits_of(options, prompt);
  std::printf("relative L2 %.2e of the processor's, %.2e of none\n", distance(with, on_cpu), distance(with, bare));
  EXPECT_LE(distance(with, on_cpu), 5e-3);
  EXPECT_GE(distance(with, bare), 2e-2);
  options.device.fuse = options.device.graphs = false;
  expect_same_bits(logits_of(options, prompt), with);
}

INSTANTIATE_TEST_SUITE_P(Reference, SteeredOnGpu,
                         testing::Values("llama3", "qwen3moe", "gemma4", "qwen35", "granitehybrid"));

}  // namespace
}  // namespace millrace::engine
