// Predictions of prompts, of sequences side by side and of long contexts, on plans whose slowest way is plain to see.
#include "residency/predict.h"

#include <gtest/gtest.h>

namespace millrace::residency {
namespace {

/// The 70B of docs/benchmarks.md in 16 GB of VRAM and 40 GB of RAM, or 16 and 8.
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
const Rates kRates{.disk = 2.2e9,
                   .ram = 130e9,
                   .cpu_decode = 120e9,
                   .host_to_device = 55e9,
                   .host_to_device_busy = 44e9,
                   .cpu_decode_busy = 90e9,
                   .device_memory = 4.2e12,
                   .device_prefill_macs = 2.5e14,
                   .machine = "a test"};

double speed(const Plan& plan, const Rates& rates, const Work& work) {
  return predict_tokens_per_second(plan, rates, work);
}

TEST(Predict, APromptIsBoundByTheLinkThenByProducts) {
  const Plan plan = gpu_plan(25.6e9, 0);
  // 25.6 GB cross once for either; the products of 2,048 tokens take longer than that. (Measured: 1,079 and 2,738.)
  EXPECT_NEAR(speed(plan, kRates, {.prompt_tokens = 512}), 512 / (25.6e9 / 55e9), 1);
  EXPECT_STREQ(predict_pass(plan, kRates, {.prompt_tokens = 512}, 512).bound, "pcie");
  EXPECT_STREQ(predict_pass(plan, kRates, {.prompt_tokens = 2048}, 2048).bound, "compute");
  EXPECT_NEAR(speed(plan, kRates, {.prompt_tokens = 2048}), 2738, 0.15 * 2738);
}

TEST(Predict, APromptInSeveralPassesBringsTheLayersAgain) {
  Plan plan = gpu_plan(25.6e9, 0);
  plan.cost.pass_tokens = 256;
  EXPECT_NEAR(speed(plan, kRates, {.prompt_tokens = 512}), 512 / (2 * 25.6e9 / 55e9), 1);
}

TEST(Predict, WhatTheDiskGivesIsSharedBySequences) {
  const Plan plan = gpu_plan(6e9, 19.7e9);
  const double one = speed(plan, kRates, {});
  EXPECT_NEAR(one, 2.2e9 / 19.7e9, 1e-6);
  EXPECT_NEAR(speed(plan, kRates, {.sequences = 16}), 16 * one, 1e-4);
  EXPECT_NEAR(speed(plan, kRates, {.prompt_tokens = 2048}), 2048 * one, 1);
  EXPECT_NEAR(speed(plan, kRates, {.prompt_tokens = 128, .sequences = 16}), 2048 * one, 1);
}

TEST(Predict, TheProcessorHasItsShareInSmallPassesOnly) {
  Plan plan = gpu_plan(25.6e9, 0);
  plan.cpu.permille = 650;
  EXPECT_NEAR(speed(plan, kRates, {}), 4.6, 0.5);
  EXPECT_STREQ(predict_pass(plan, kRates, {.sequences = kSplitRows + 1}, kSplitRows + 1).bound, "pcie");
  EXPECT_LT(speed(plan, kRates, {.sequences = kSplitRows + 1}) / (kSplitRows + 1), 55e9 / 25.6e9 + 0.01);
}

TEST(Predict, KeysThatAreReadTakeTheirTime) {
  Plan plan = gpu_plan(0, 0);
  plan.cost.home = 40e9;
  const double empty = 1 / speed(plan, kRates, {}), full = 1 / speed(plan, kRates, {.context = 16000});
  EXPECT_NEAR(full - empty, 16000.0 * 327680 / (0.8 * 4.2e12), 1e-6);
  EXPECT_LT(speed(plan, kRates, {.prompt_tokens = 16000}), speed(plan, kRates, {.prompt_tokens = 2000}));
}

TEST(Predict, AWindowIsSeenAndNoMore) {
  Plan plan = gpu_plan(0, 0), windowed = plan;
  plan.cost.home = windowed.cost.home = 40e9;
  const AttentionCost all = plan.cost.attention[0];
  windowed.cost.attention = {{.macs = all.macs / 2, .kv_bytes = all.kv_bytes / 2},
                             {.window = 1000, .macs = all.macs / 2, .kv_bytes = all.kv_bytes / 2}};
  // Decoding: half of the layers read 1,000 keys.
  const double empty = 1 / speed(windowed, kRates, {}), full = 1 / speed(windowed, kRates, {.context = 16000});
  EXPECT_NEAR(full - empty, (16000.0 + 1000) / 2 * 327680 / (0.8 * 4.2e12), 1e-6);
  EXPECT_EQ(speed(windowed, kRates, {.context = 900}), speed(plan, kRates, {.context = 900}));
  // A prompt of 4,000 tokens: half of the layers see 2,000 keys of a token, half 500 of the first 1,000 and then 1,000.
  const auto seconds = [](const Plan& of, const Work& work) { return predict_pass(of, kRates, work, 4000).seconds; };
  const double one = all.macs * 4000 / (kRates.device_prefill_macs * 0.3);
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

TEST(Predict, NothingWithoutTheRatesItNeeds) {
  Rates rates = kRates;
  rates.device_prefill_macs = 0;
  EXPECT_EQ(speed(gpu_plan(25.6e9, 0), rates, {.prompt_tokens = 512}), 0);
  EXPECT_GT(speed(gpu_plan(25.6e9, 0), rates, {}), 0);
  rates = kRates;
  rates.disk = 0;
  EXPECT_EQ(speed(gpu_plan(0, 1e9), rates, {.sequences = 4}), 0);
}

}  // namespace
}  // namespace millrace::residency
