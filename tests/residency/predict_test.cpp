// Predictions of prompts, of sequences side by side and of long contexts, on plans whose slowest way is plain to see.
#include "residency/predict.h"

#include <gtest/gtest.h>

#include "kernels/claimed.h"
#include "residency/rates.h"

namespace millrace::residency {
namespace {

/// The 70B of docs/internals/benchmarks.md in 16 GB of VRAM and 40 GB of RAM, or 16 and 8.
Plan gpu_plan(double shared, double read) {
  Plan plan;
  plan.cost = {.gpu = true,
               .home = 14.4e9,
               .shared = shared,
               .crossing = read,
               .read = read,
               .layers = 80,
               .shared_layers = shared > 0 ? 50 : 0,
               .macs = 68.5e9,
               .head_macs = 1.05e9,
               .attention = {{.macs = 2.0 * 80 * 64 * 128, .kv_bytes = 327680}},
               .pass_tokens = 16384};
  return plan;
}
const Rates kServerRates = test::server_rates();

double speed(const Plan& plan, const Rates& rates, const Work& work) {
  return predict_tokens_per_second(plan, rates, work);
}

TEST(Predict, APromptIsBoundByTheLinkThenByProducts) {
  const Plan plan = gpu_plan(25.6e9, 0);
  // 25.6 GB cross once for either; the products of 2,048 tokens take longer than that. (Measured: 1,079 and 2,738.)
  EXPECT_NEAR(speed(plan, kServerRates, {.prompt_tokens = 512}), 512 / (25.6e9 / 55e9), 1);
  EXPECT_STREQ(predict_pass(plan, kServerRates, {.prompt_tokens = 512}, 512).bound, "pcie");
  EXPECT_STREQ(predict_pass(plan, kServerRates, {.prompt_tokens = 2048}, 2048).bound, "compute");
  EXPECT_NEAR(speed(plan, kServerRates, {.prompt_tokens = 2048}), 2738, 0.15 * 2738);
}

TEST(Predict, APromptInSeveralPassesBringsTheLayersAgain) {
  Plan plan = gpu_plan(25.6e9, 0);
  plan.cost.pass_tokens = 256;
  EXPECT_NEAR(speed(plan, kServerRates, {.prompt_tokens = 512}), 512 / (2 * 25.6e9 / 55e9), 1);
}

TEST(Predict, WhatTheDiskGivesIsSharedBySequences) {
  const Plan plan = gpu_plan(6e9, 19.7e9);
  const double one = speed(plan, kServerRates, {});
  EXPECT_NEAR(one, 2.2e9 / 19.7e9, 1e-6);
  EXPECT_NEAR(speed(plan, kServerRates, {.sequences = 16}), 16 * one, 1e-4);
  EXPECT_NEAR(speed(plan, kServerRates, {.prompt_tokens = 2048}), 2048 * one, 1);
  EXPECT_NEAR(speed(plan, kServerRates, {.prompt_tokens = 128, .sequences = 16}), 2048 * one, 1);
}

TEST(Predict, TheProcessorHasItsShareInSmallPassesOnly) {
  Plan plan = gpu_plan(25.6e9, 0);
  plan.cpu_permille = 650;
  EXPECT_NEAR(speed(plan, kServerRates, {}), 4.6, 0.5);
  EXPECT_STREQ(predict_pass(plan, kServerRates, {.sequences = kSplitRows + 1}, kSplitRows + 1).bound, "pcie");
  EXPECT_LT(speed(plan, kServerRates, {.sequences = kSplitRows + 1}) / (kSplitRows + 1), 55e9 / 25.6e9 + 0.01);
}

TEST(Predict, KeysThatAreReadTakeTheirTime) {
  Plan plan = gpu_plan(0, 0);
  plan.cost.home = 40e9;
  const double empty = 1 / speed(plan, kServerRates, {}), full = 1 / speed(plan, kServerRates, {.context = 16000});
  EXPECT_NEAR(full - empty, 16000.0 * 327680 / (0.8 * 4.2e12), 1e-6);
  EXPECT_LT(speed(plan, kServerRates, {.prompt_tokens = 16000}), speed(plan, kServerRates, {.prompt_tokens = 2000}));
}

TEST(Predict, AWindowIsSeenAndNoMore) {
  Plan plan = gpu_plan(0, 0), windowed = plan;
  plan.cost.home = windowed.cost.home = 40e9;
  const AttentionCost all = plan.cost.attention[0];
  windowed.cost.attention = {{.macs = all.macs / 2, .kv_bytes = all.kv_bytes / 2},
                             {.window = 1000, .macs = all.macs / 2, .kv_bytes = all.kv_bytes / 2}};
  // Decoding: half of the layers read 1,000 keys.
  const double empty = 1 / speed(windowed, kServerRates, {}),
               full = 1 / speed(windowed, kServerRates, {.context = 16000});
  EXPECT_NEAR(full - empty, (16000.0 + 1000) / 2 * 327680 / (0.8 * 4.2e12), 1e-6);
  EXPECT_EQ(speed(windowed, kServerRates, {.context = 900}), speed(plan, kServerRates, {.context = 900}));
  // A prompt of 4,000 tokens: half of the layers see 2,000 keys of a token, half 500 of the first 1,000 and then 1,000.
  const auto seconds = [](const Plan& of, const Work& work) {
    return predict_pass(of, kServerRates, work, 4000).seconds;
  };
  const double one = all.macs * 4000 / (kServerRates.device_prefill_macs * 0.3);
  EXPECT_NEAR(seconds(plan, {.prompt_tokens = 4000}) - seconds(windowed, {.prompt_tokens = 4000}),
              one * (2000 - 875) / 2, 1e-6);
  EXPECT_NEAR(seconds(plan, {.prompt_tokens = 4000, .context = 500}) -
                  seconds(windowed, {.prompt_tokens = 4000, .context = 500}),
              one * (2500 - (500 * 750 + 3500 * 1000.0) / 4000) / 2, 1e-6);
}

TEST(Predict, MoreRowsTouchMoreExperts) {
  Plan plan;
  plan.cost = {
      .gpu = false, .home = 1e9, .expert_bytes = 10e9, .expert_share = 0.125, .macs = 1e9, .expert_macs = 1e10};
  plan.predicted_hit_rate = 0.5;
  const Rates rates{.disk = 1e9, .cpu_decode = 1e12, .cpu_prefill_macs = 1e15, .machine = "a test"};
  // Of a layer's experts two tokens touch 1 - (7/8)^2, and half of those come from the disk.
  EXPECT_NEAR(speed(plan, rates, {.sequences = 2}), 2 / (10 * (1 - 0.875 * 0.875) / 2), 1e-6);
  EXPECT_NEAR(speed(plan, rates, {.prompt_tokens = 1000}), 1000 / 5.0, 1e-6);
}

TEST(Predict, FavouritesAreMetMoreOften) {
  // Qwen3-30B-A3B in 6 GB of VRAM: 36 of 128 experts of a layer have slots, the others lie in RAM.
  Plan plan;
  plan.cost = {.gpu = true,
               .home = 1.1e9,
               .layers = 48,
               .expert_bytes = 16.3e9,
               .expert_share = 8.0 / 128,
               .experts = 128,
               .top_k = 8,
               .vram_slots = 36,
               .experts_in_vram = 36.0 / 128};
  Rates rates = kServerRates;
  rates.cpu_decode_busy = 40e9;  // slow, so that misses decide
  const auto missed_seconds = [&](double sequences) {
    Plan all = plan;
    all.cost.experts_in_vram = 1;
    return predict_pass(plan, rates, {}, sequences).seconds - predict_pass(all, rates, {}, sequences).seconds;
  };
  const double uniform = missed_seconds(1);
  plan.cost.routing.skew = 1;
  // 28 % are met where all are alike, 70 % where the favourites have slots.
  EXPECT_NEAR((uniform - missed_seconds(1)) / uniform, 1 - 0.30 / 0.72, 0.12);
  EXPECT_GT(missed_seconds(8), 2 * missed_seconds(1)) << "eight rows call for others, too";
}

TEST(Predict, SmallModelsTakeTheTimeOfTheirSteps) {
  // The demo model: 2.7 MB a token, which memory gives in a seventh of the time that a pass takes.
  Plan plan;
  plan.cost = {.home = 2.7e6, .steps = {.steps = 90, .products = 44}};
  const Rates rates{.cpu_decode = 22e9, .cpu_product = 2e-6, .machine = "a test"};
  const double steps = step_seconds(plan.cost.steps, rates, 1);
  EXPECT_NEAR(steps, 90 * 1e-6 + 44 * 2e-6, 1e-9);
  EXPECT_NEAR(predict_pass(plan, rates, {}, 1).seconds, 2.7e6 / 22e9 + steps, 1e-9);
  // A prompt has each step once.
  EXPECT_NEAR(predict_pass(plan, rates, {.prompt_tokens = 64}, 1).seconds, 2.7e6 / 22e9 + steps, 1e-9);
}

TEST(Predict, OneSequenceOnTheProcessorReadsItsKeys) {
  Plan plan;
  plan.predicted_decode_tokens_per_second = 40;
  plan.cost = {.home = 0.6e9, .attention = {{.macs = 1e5, .kv_bytes = 45e3}}};
  Rates rates{.cpu_decode = 24e9, .machine = "a test"};
  EXPECT_EQ(speed(plan, rates, {}), 40);
  EXPECT_NEAR(1 / speed(plan, rates, {.context = 8000}), 1.0 / 40 + 8000 * 45e3 / 24e9, 1e-9);
  rates.cpu_prefill_macs = 1e11;  // it multiplies more slowly than it reads
  EXPECT_NEAR(1 / speed(plan, rates, {.context = 8000}), 1.0 / 40 + 8000 * 1e5 / (1e11 * 0.25), 1e-9);
}

TEST(Predict, StatesAreReadAndWrittenBySequence) {
  // Qwen3.5's 35B: 30 layers of 32 heads of 128 x 128.
  constexpr double kState = 30 * 32 * 128 * 128;
  Plan plan;
  plan.cost = {.home = 1e9, .steps = {.state_bytes = 2 * 4 * kState, .state_macs = 4 * kState}};
  Rates rates{.cpu_decode = 24e9, .machine = "a test"};
  EXPECT_NEAR(predict_pass(plan, rates, {}, 1).seconds, (1e9 + 2 * 4 * kState) / 24e9, 1e-9);
  rates.cpu_prefill_macs = 1e11;
  const double one = predict_pass(plan, rates, {.prompt_tokens = 100}, 100).seconds,
               two = predict_pass(plan, rates, {.prompt_tokens = 200}, 200).seconds;
  EXPECT_NEAR(two - one, 100 * 4 * kState / (1e11 * 0.25), 1e-9) << "no longer prompt has more of states to read";
  Plan gpu = gpu_plan(0, 0), with_states = gpu;
  with_states.cost.steps = plan.cost.steps;
  EXPECT_NEAR(1 / speed(with_states, kServerRates, {}) - 1 / speed(gpu, kServerRates, {}),
              2 * 4 * kState / (0.8 * 4.2e12), 1e-9);
}

TEST(Predict, ExpertsOfAShortPromptHaveFewRows) {
  Plan plan;
  plan.cost = {.home = 1e6, .expert_bytes = 1e6, .expert_share = 1.0 / 16, .expert_macs = 16e9};
  plan.predicted_hit_rate = 1;
  const Rates rates{.cpu_decode = 1e12, .cpu_prefill_macs = 1e12, .machine = "a test"};
  const auto a_row = [&](std::int64_t rows) {
    return predict_pass(plan, rates, {.prompt_tokens = rows}, static_cast<double>(rows)).seconds /
           static_cast<double>(rows);
  };
  EXPECT_NEAR(a_row(512), 1e-3, 1e-9) << "32 rows an expert";
  EXPECT_NEAR(a_row(128), 2e-3, 1e-9) << "8 rows an expert";
  EXPECT_NEAR(a_row(16), 1e-3 / 0.37, 1e-9);
}

TEST(Claimed, LinkAndProcessorEndAsSoonAsWholeExpertsLet) {
  for (std::int32_t permille = 0; permille <= 1000; permille += 7) {
    for (std::int32_t missed = 0; missed <= 40; ++missed) {
      const auto end = [&](std::int32_t claimed) {
        return std::max(claimed * (1000 - permille), (missed - claimed) * permille);
      };
      const std::int32_t claimed = kernels::claimed_of(missed, permille);
      ASSERT_GE(claimed, 0);
      ASSERT_LE(claimed, missed);
      for (std::int32_t other = 0; other <= missed; ++other)
        ASSERT_LE(end(claimed), end(other)) << missed << " of " << permille << ": " << other;
    }
  }
}

TEST(Predict, ExpertsAreSharedOutWhole) {
  Plan plan;
  plan.cost = {.gpu = true,
               .layers = 10,
               .expert_bytes = 10 * 16 * 1e6,
               .expert_share = 4.0 / 16,
               .experts = 16,
               .top_k = 4,
               .experts_in_vram = 0,
               .expert_link = {.single = 250, .several = 250}};
  Rates rates = kServerRates;
  rates.host_to_device_busy = 10e9;
  rates.cpu_decode_busy = 30e9;
  const double cpu = rates.shared_decode() * 0.7, link = rates.shared_link() * 0.7;
  ASSERT_NEAR(cpu, 3 * link, 1e-3);
  const auto seconds = [&] { return predict_pass(plan, rates, {}, 1).seconds; };
  plan.cost.expert_link = {};
  const double alone = seconds();
  plan.cost.expert_link = {.single = 250, .several = 250};
  EXPECT_NEAR(alone - seconds(), 10 * 1e6 / cpu, 1e-6) << "of four experts one crosses, and three take as long";
  // Of two it would take longer than both; half of all are missed, so that 0 to 4 are, 1, 4, 6, 4 and 1 times of 16.
  plan.cost.experts_in_vram = 0.5;
  plan.cost.expert_link = {};
  const double half = seconds();
  plan.cost.expert_link = {.single = 250, .several = 250};
  EXPECT_NEAR(half - seconds(), 10 * (1.0 / 16) * 1e6 / cpu, 1e-6);
}

TEST(Predict, NothingWithoutTheRatesItNeeds) {
  Rates rates = kServerRates;
  rates.device_prefill_macs = 0;
  EXPECT_EQ(speed(gpu_plan(25.6e9, 0), rates, {.prompt_tokens = 512}), 0);
  EXPECT_GT(speed(gpu_plan(25.6e9, 0), rates, {}), 0);
  rates = kServerRates;
  rates.disk = 0;
  EXPECT_EQ(speed(gpu_plan(0, 1e9), rates, {.sequences = 4}), 0);
}

}  // namespace
}  // namespace millrace::residency
