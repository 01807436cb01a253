// What lies for now in the memory of KV gives way as sequences grow (engine/budgets.h).
#include "engine/budgets.h"

#include <gtest/gtest.h>

#include "cuda_engine/on_gpu.h"

namespace millrace::engine {
namespace {

using namespace test;

class BudgetsOnGpu : public OnGpu, public ::testing::WithParamInterface<const char*> {};

TEST_P(BudgetsOnGpu, ServeTheirContextWhereThePlanAcceptsThem) {
  const SynthFile file(budget_shape(GetParam(), 512), {.matrices = DType::q8_0});
  EngineOptions options;
  options.model.path = file.path();
  options.device.choice = DeviceChoice::cuda;
  options.device.threads = 2;
  options.demand.context_tokens = 1500;
  options.demand.batch_tokens = 512;
  if (lacks_shared_memory(options)) options.kv.dtype = DType::q8_0;
  expect_budgets_to_serve(options, &MemoryOptions::vram_bytes, "--vram", 8'000'000);
}

INSTANTIATE_TEST_SUITE_P(Architectures, BudgetsOnGpu, ::testing::ValuesIn(kBudgetArchitectures),
                         [](const auto& param) { return without_dashes(param.param); });

}  // namespace
}  // namespace millrace::engine
