// A GPU that is lost in the middle of a pass, as one is that fell off its bus: requests end with what the driver says,
// nobody waits for it, what was open closes, and once it is there again a new engine is right. No machine loses its GPU
// at will, so this is a test of simulated ones alone.
#ifdef MILLRACE_SIMULATED

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <string>

#include "cuda_engine/on_gpu.h"
#include "engine/support.h"
#include "simulated/device.h"

namespace millrace::engine {
namespace {

using namespace test;

struct Case {
  std::string name;
  bool mixture = false;
  std::function<void(EngineOptions&)> set = [](EngineOptions&) {};
};

class LostGpu : public OnGpu, public testing::WithParamInterface<Case> {
 protected:
  void TearDown() override { simulated::restore(0); }

  static EngineOptions options() {
    EngineOptions options;
    options.model.path = GetParam().mixture ? moe_path() : draft_path();
    options.device.choice = DeviceChoice::cuda;
    options.device.threads = 2;
    options.memory.vram_bytes = 4'000'000'000;
    options.demand.context_tokens = 1024;
    GetParam().set(options);
    return options;
  }
};

TEST_P(LostGpu, EndsRequestsAndNotTheProcess) {
  const std::vector<float> right = logits_of(options(), 90, 8);
  bool failed_once = false;
  // From the first thing of a pass on, in the middle of a prompt, and while tokens are generated.
  for (const std::uint64_t launches : {1, 2, 30, 71, 152, 333, 700}) {
    SCOPED_TRACE(launches);
    auto engine = make(options());
    ASSERT_NE(engine, nullptr);
    ASSERT_NE(engine->run(greedy(real_text(*engine, 20), 2)).finish, Finish::error);
    simulated::lose_after(0, launches);
    const auto begin = std::chrono::steady_clock::now();
    const Result result = engine->run(greedy(real_text(*engine, 90), 8));
    if (simulated::is_lost(0)) {
      failed_once = true;
      EXPECT_EQ(result.finish, Finish::error);
      EXPECT_EQ(result.status.code(), Code::io_error) << result.status.message();
      EXPECT_NE(result.status.message().find("lost"), std::string::npos) << result.status.message();
      for (int i = 0; i < 2; ++i) {
        const Result next = engine->run(greedy(real_text(*engine, 30 + static_cast<std::size_t>(i)), 2));
        EXPECT_EQ(next.finish, Finish::error);
        EXPECT_FALSE(next.status.message().empty());
      }
    }
    engine.reset();
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(60));
    simulated::restore(0);
  }
  EXPECT_TRUE(failed_once);
  expect_same_bits(logits_of(options(), 90, 8), right);
}

INSTANTIATE_TEST_SUITE_P(
    , LostGpu,
    testing::Values(Case{"resident"},
                    Case{"streamed", false, [](EngineOptions& o) { o.memory.pins = *parse_pins("0-=ram"); }},
                    Case{"from_disk", false, [](EngineOptions& o) { o.memory.pins = *parse_pins("0-=disk"); }},
                    Case{"mixture", true},
                    Case{"expert_slots", true, [](EngineOptions& o) { o.experts.vram_slots = 7; }},
                    Case{"two_gpus", false, [](EngineOptions& o) { o.device.gpus_beside = {0}; }}),
    [](const testing::TestParamInfo<Case>& info) { return info.param.name; });

}  // namespace
}  // namespace millrace::engine

#endif
