// What gives way first where memory is short of a little: rows of a pass, before weights that would be read in each.
#include "engine/cpu_plan.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "engine/support.h"

namespace millrace::engine {
namespace {

/// Whether passes read weights anew, but for single rows.
bool reads(const Planned& planned) {
  return std::any_of(planned.plan.rows.begin(), planned.plan.rows.end(), [](const residency::Plan::Row& row) {
    return row.tier == "disk" && !row.what.ends_with("by rows");
  });
}

TEST(CpuPlan, RowsGiveWayBeforeWeightsAreReadInEveryPass) {
  EngineOptions options = test::roomy(test::moe_path());
  options.demand.context_tokens = 512;
  options.demand.batch_tokens = 512;
  const auto roomy = plan_only(options);
  ASSERT_TRUE(roomy.ok()) << roomy.status().message();
  EXPECT_FALSE(reads(*roomy));
  const std::uint64_t weights = roomy->plan.weight_memory_bytes();
  int helped = 0;
  for (std::uint64_t ram = weights; ram < 2 * weights; ram += weights / 64) {
    options.memory.ram_bytes = ram;
    options.demand.batch_tokens = 512;
    const auto asked = plan_only(options);
    options.demand.batch_tokens = 0;
    const auto open = plan_only(options);
    ASSERT_EQ(open.ok(), asked.ok()) << ram;
    if (!open.ok()) continue;
    if (!reads(*asked)) {
      EXPECT_FALSE(reads(*open)) << ram;
    }
    if (open->batch_tokens < asked->batch_tokens) {
      EXPECT_FALSE(reads(*open)) << ram << ": rows went, and nothing was gained";
      EXPECT_GE(open->batch_tokens, 32);
    }
    helped += reads(*asked) && !reads(*open) ? 1 : 0;
  }
  EXPECT_GT(helped, 0);
}

}  // namespace
}  // namespace millrace::engine
