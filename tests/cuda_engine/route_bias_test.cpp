// Routers that prefer experts in slots, then those in RAM: the GPU chooses as exec/expert_choice.h says, and without a
// bias no bit changes.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "cuda/on_device.h"
#include "cuda_engine/on_gpu.h"
#include "engine/support.h"
#include "exec/expert_choice.h"
#include "kernels/cuda/gates.h"

namespace millrace::engine {
namespace {

using namespace test;

class RouteBiasOnGpu : public OnGpu {};

using Given = kernels::cuda::ChooseCall::Gating;

struct Router {
  exec::Gating gating;
  Given given;
  std::int32_t count, top_k, groups, groups_used;
  bool biased;
};

/// Rows of random scores, with experts in random tiers: what the CPU chooses, and what the GPU does.
void compare(const Router& router, std::int32_t tiers, float of_range, std::mt19937& random) {
  constexpr std::int32_t kRows = 37;
  const auto count = static_cast<std::size_t>(router.count), entries = static_cast<std::size_t>(kRows * router.top_k);
  const std::vector<float> scores = millrace::test::normal_floats(kRows * count, random);
  const std::vector<float> bias = millrace::test::normal_floats(count, random, 0.1f);
  std::vector<std::uint8_t> near(count);
  for (std::uint8_t& tier : near)
    tier = static_cast<std::uint8_t>(std::uniform_int_distribution<int>(0, tiers)(random));
  exec::Experts experts;
  experts.count = router.count;
  experts.top_k = router.top_k;
  experts.gating = router.gating;
  experts.groups = router.groups;
  experts.groups_used = router.groups_used;
  experts.group_best = 2;
  experts.scale = 1.5f;

  std::vector<std::int32_t> want(entries);
  std::vector<float> want_weights(entries), row(count), selection(count);
  for (std::int32_t r = 0; r < kRows; ++r) {
    std::copy_n(scores.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(r) * count), count, row.begin());
    exec::choose_experts(kernels::table(kernels::Isa::plain), experts, router.biased ? bias.data() : nullptr,
                         {of_range, near.data(), tiers}, row.data(), selection.data(), want.data() + r * router.top_k,
                         want_weights.data() + r * router.top_k);
  }

  const millrace::test::Array<float> scores_at(scores), bias_at(bias), weights(entries);
  const millrace::test::Array<std::uint8_t> near_at(near);
  const millrace::test::Array<std::int32_t> chosen(entries);
  const millrace::test::Entry entry(bias_at.at_bytes());
  kernels::cuda::ChooseCall call;
  call.scores = scores_at.get();
  call.rows = kRows;
  call.experts = router.count;
  call.top_k = router.top_k;
  call.gating = router.given;
  call.groups = router.groups;
  call.groups_used = router.groups_used;
  call.bias = router.biased ? entry.get() : nullptr;
  call.normalize = experts.normalize;
  call.scale = experts.scale;
  call.near = near_at.get();
  call.near_tiers = tiers;
  call.near_of_range = of_range;
  call.chosen = chosen.get();
  call.weights = weights.get();
  millrace::test::ok(kernels::cuda::choose(call, nullptr));
  EXPECT_EQ(chosen.host(), want);
  const std::vector<float> found = weights.host();
  for (std::size_t i = 0; i < entries; ++i) EXPECT_NEAR(found[i], want_weights[i], 1e-5f) << i;
}

TEST_F(RouteBiasOnGpu, ChoosesAsTheCpuDoes) {
  std::mt19937 random(14);
  for (const auto& [gating, given] :
       {std::pair(exec::Gating::softmax, Given::softmax), std::pair(exec::Gating::sigmoid, Given::sigmoid),
        std::pair(exec::Gating::softmax_chosen, Given::softmax_chosen)})
    for (const std::int32_t count : {8, 128, 300})
      for (const bool biased : {false, true})
        for (const bool grouped : {false, true})
          for (const std::int32_t tiers : {1, 2})
            for (const float of_range : {0.05f, 0.5f, 1.0f}) {
              SCOPED_TRACE(testing::Message() << "gating " << static_cast<int>(gating) << ", " << count << " experts"
                                              << (biased ? ", a bias" : "") << (grouped ? ", groups" : "") << ", "
                                              << tiers << " tiers, " << of_range);
              compare({gating, given, count, std::min(count / 2, 8), grouped ? 4 : 1, grouped ? 2 : 1, biased}, tiers,
                      of_range, random);
            }
}

EngineOptions on_gpu(double bias) {
  EngineOptions options;
  options.model_path = moe_path();
  options.device = DeviceChoice::cuda;
  options.threads = 3;
  options.route_bias = bias;
  return options;
}

std::vector<float> logits_of(Engine& engine, std::size_t prompt, std::int64_t decoded) {
  std::vector<float> logits;
  Request request = greedy(real_text(engine, prompt), decoded);
  keep_logits(request, logits);
  const Result result = engine.run(std::move(request));
  EXPECT_NE(result.finish, Finish::error) << result.status.message();
  return logits;
}

/// Uses of experts without a slot, of a hundred.
double missed(const Engine& engine) {
  const residency::StoreCounters counters = engine.store_counters();
  return 100.0 * static_cast<double>(counters.misses) / static_cast<double>(counters.hits + counters.misses);
}

TEST_F(RouteBiasOnGpu, CallsMoreOftenForWhatHasASlotAndSaysSo) {
  EngineOptions plain = on_gpu(0), biased = on_gpu(0.5);
  for (EngineOptions* options : {&plain, &biased}) {
    options->vram_experts = 60;
    options->expert_slots = 200;
  }
  const auto without = make(plain), with = make(biased);
  ASSERT_NE(without, nullptr);
  ASSERT_NE(with, nullptr);
  (void)logits_of(*without, 20, 200);
  (void)logits_of(*with, 20, 200);
  EXPECT_LT(missed(*with), 0.9 * missed(*without));
  EXPECT_NE(with->executor().describe().find("answers are changed"), std::string::npos);
  EXPECT_FLOAT_EQ(with->executor().route_bias(), 0.5f);
  EXPECT_NE(with->executor().numerics(), without->executor().numerics());
}

TEST_F(RouteBiasOnGpu, ChangesNothingWhereAllExpertsAreInVram) {
  const auto without = make(on_gpu(0)), with = make(on_gpu(0.5));
  ASSERT_NE(without, nullptr);
  ASSERT_NE(with, nullptr);
  expect_same_bits(logits_of(*with, 60, 12), logits_of(*without, 60, 12));
  EXPECT_EQ(with->executor().route_bias(), 0);
  EXPECT_EQ(with->executor().numerics(), without->executor().numerics());
}

}  // namespace
}  // namespace millrace::engine
