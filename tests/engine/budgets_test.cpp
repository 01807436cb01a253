// Weights and experts give way to KV under --ram (engine/budgets.h).
#include "engine/budgets.h"

#include <gtest/gtest.h>

namespace millrace::engine {
namespace {

using namespace test;

class BudgetsInRam : public ::testing::TestWithParam<const char*> {};

TEST_P(BudgetsInRam, ServeTheirContextWhereThePlanAcceptsThem) {
  const SynthFile file(budget_shape(GetParam(), 256), {.matrices = DType::q8_0});
  EngineOptions options = roomy(file.path());
  options.device.choice = DeviceChoice::cpu;
  options.demand.context_tokens = 300;
  options.demand.batch_tokens = 128;
  expect_budgets_to_serve(options, &MemoryOptions::ram_bytes, "--ram", 32'000'000);
}

INSTANTIATE_TEST_SUITE_P(Architectures, BudgetsInRam, ::testing::ValuesIn(kBudgetArchitectures),
                         [](const auto& param) { return without_dashes(param.param); });

}  // namespace
}  // namespace millrace::engine
