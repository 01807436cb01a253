// Who computes a draft model beside a model on a GPU, by what is predicted of each way.
#include "engine/draft_place.h"

#include <gtest/gtest.h>

#include "engine/drafter.h"
#include "residency/predict.h"
#include "residency/rates.h"

namespace millrace::engine {
namespace {

using residency::Plan;
using residency::Rates;

const Rates kRates = [] {
  Rates rates = residency::test::server_rates();
  rates.cpu_prefill_macs = 2e12;
  return rates;
}();
constexpr double kLayer = 0.5e9;  // bytes
constexpr DraftHabits kUsual{.acceptance = 0.7};

/// 80 layers, so many of them crossing to the GPU in each pass.
Plan large(int crossing, int on_disk = 0) {
  Plan plan;
  plan.cost.gpu = true;
  plan.cost.layers = 80;
  plan.cost.home = (80 - crossing) * kLayer;
  plan.cost.crossing = crossing * kLayer;
  plan.cost.read = on_disk * kLayer;
  plan.cost.macs = 70e9;
  plan.cost.head_macs = 1e9;
  return plan;
}
/// 0.7 GB, at home as a whole.
Plan small(bool gpu) {
  Plan plan;
  plan.cost.gpu = gpu;
  plan.cost.layers = 16;
  plan.cost.home = 0.7e9;
  plan.cost.macs = 1.2e9;
  return plan;
}
double on_gpu() { return guess_seconds(small(true), kRates); }
double on_cpu() { return guess_seconds(small(false), kRates); }

/// With a draft model that takes so many layers' room in VRAM.
DraftWays ways(int crossing, int taken, const DraftHabits& habits = kUsual) {
  DraftWays all;
  all[static_cast<std::size_t>(DraftPlace::none)].forecast = {
      1 / residency::predict_pass(large(crossing), kRates, {}, 1).seconds, 0};
  all[static_cast<std::size_t>(DraftPlace::cpu)].forecast = forecast_drafts(large(crossing), kRates, on_cpu(), habits);
  all[static_cast<std::size_t>(DraftPlace::gpu)].forecast =
      forecast_drafts(large(crossing + taken), kRates, on_gpu(), habits);
  return all;
}

TEST(DraftPlace, AGuessTakesAPassAndAGpusTurn) {
  EXPECT_NEAR(on_cpu(), 0.7e9 / 120e9, 1e-3);
  EXPECT_GT(on_gpu(), 0.3e-3);
  EXPECT_LT(on_gpu(), 1e-3);
  EXPECT_EQ(guess_seconds(small(true), {}), 0) << "without rates nothing is known";
}

TEST(DraftPlace, TokensOfAPassFollowFromTheAcceptance) {
  const double alone = residency::predict_pass(large(40), kRates, {}, 1).seconds;
  // 1 + 0.7 + 0.49 + 0.343, of a pass that takes as long for four rows as for one.
  const DraftForecast three = forecast_drafts(large(40), kRates, on_gpu(), {.acceptance = 0.7, .drafts = 3});
  EXPECT_EQ(three.drafts, 3);
  EXPECT_NEAR(three.tokens_per_second, 2.533 / (alone + 3 * on_gpu()), 0.01 / alone);
  const DraftForecast certain = forecast_drafts(large(40), kRates, on_gpu(), {.acceptance = 1, .drafts = 7});
  EXPECT_NEAR(certain.tokens_per_second, 8 / (alone + 7 * on_gpu()), 0.05 / alone);
  const DraftForecast never = forecast_drafts(large(40), kRates, on_gpu(), {.acceptance = 0});
  EXPECT_EQ(never.drafts, 1);
  EXPECT_LT(never.tokens_per_second, 1 / alone);
}

TEST(DraftPlace, GoesByThePlannersOwnFigureOfASingleRow) {
  Plan slower = large(40);
  const DraftForecast usual = forecast_drafts(slower, kRates, 1e-9, {.acceptance = 0.7, .drafts = 3});
  slower.predicted_decode_tokens_per_second = 0.5 / residency::predict_pass(slower, kRates, {}, 1).seconds;
  const DraftForecast half = forecast_drafts(slower, kRates, 1e-9, {.acceptance = 0.7, .drafts = 3});
  EXPECT_NEAR(half.tokens_per_second, usual.tokens_per_second / 2, 1e-3);
}

TEST(DraftPlace, SlowGuessesAreFewer) {
  const std::int64_t fast = forecast_drafts(large(40), kRates, on_gpu(), kUsual).drafts;
  const std::int64_t slow = forecast_drafts(large(40), kRates, 0.1, kUsual).drafts;
  EXPECT_GE(fast, 7);
  EXPECT_LT(slow, fast);
  EXPECT_LE(fast, kMostDrafts);
}

TEST(DraftPlace, NoMoreGuessesThanGoTheirWay) {
  Plan shared = large(40);
  shared.cpu_permille = 500;
  EXPECT_EQ(cheap_rows(shared), residency::kSplitRows);
  EXPECT_LT(forecast_drafts(shared, kRates, 1e-6, {.acceptance = 1}).drafts, residency::kSplitRows);
  Plan experts = large(0);
  experts.cost.experts_in_vram = 0.5;
  EXPECT_EQ(cheap_rows(experts), residency::kExpertShareRows);
  EXPECT_EQ(cheap_rows(large(0)), 64);
}

TEST(DraftPlace, OfALargeModelTwoLayersAreWorthFastGuesses) {
  EXPECT_EQ(choose_draft_place(ways(40, 2), false), DraftPlace::gpu);
  // As many layers as make every pass half as long again are not: the CPU guesses in 6 ms, beside passes of 0.4 s.
  EXPECT_EQ(choose_draft_place(ways(40, 20), false), DraftPlace::cpu);
}

TEST(DraftPlace, WhereGuessesAreNeverRightThereAreNone) {
  const DraftHabits never{.acceptance = 0};
  EXPECT_EQ(choose_draft_place(ways(40, 2, never), false), DraftPlace::none);
  EXPECT_NE(choose_draft_place(ways(40, 2, never), true), DraftPlace::none) << "--speculate N asks for them";
}

TEST(DraftPlace, WhatDoesNotFitIsNoWay) {
  DraftWays all = ways(40, 2);
  all[static_cast<std::size_t>(DraftPlace::gpu)] = {"too large", {}};
  EXPECT_EQ(choose_draft_place(all, false), DraftPlace::cpu);
  all[static_cast<std::size_t>(DraftPlace::cpu)] = {"too large, too", {}};
  EXPECT_EQ(choose_draft_place(all, false), DraftPlace::none);
  EXPECT_EQ(choose_draft_place(all, true), DraftPlace::none);
}

TEST(DraftPlace, WithoutRatesTheGpuGuessesWhereThereIsRoom) {
  DraftWays unknown;
  EXPECT_EQ(choose_draft_place(unknown, false), DraftPlace::gpu);
  unknown[static_cast<std::size_t>(DraftPlace::gpu)].refusal = "too large";
  EXPECT_EQ(choose_draft_place(unknown, false), DraftPlace::cpu);
}

/// A part that was planned for few rows makes many dear, and the other way round: the best of both is further away than
/// the best of either.
TEST(DraftPlace, EachNumberOfGuessesHasAPlanOfItsOwn) {
  const double speeds[] = {8, 9.5, 9.3, 9.1, 9.2, 9.4, 9.9, 12};  // by guesses planned for
  std::vector<std::int64_t> planned;
  const auto plan = [&](std::int64_t guesses) {
    planned.push_back(guesses);
    return DraftForecast{speeds[guesses], guesses};
  };
  const PlannedGuesses best = plan_guesses({8, 2}, kUsual, plan);
  EXPECT_EQ(best.guesses, 7);
  EXPECT_EQ(best.forecast.tokens_per_second, 12);
  EXPECT_EQ(planned, (std::vector<std::int64_t>{1, 2, 3, 4, 5, 6, 7}));
  planned.clear();
  EXPECT_EQ(plan_guesses({8, 3}, {.acceptance = 0.7, .drafts = 3}, plan).guesses, 3) << "so many are asked for";
  EXPECT_EQ(planned, (std::vector<std::int64_t>{3}));
  EXPECT_EQ(plan_guesses({20, 3}, kUsual, plan).guesses, 0) << "the part that was planned for a single row is better";
  EXPECT_EQ(plan_guesses({8, 2}, kUsual, [](std::int64_t) { return DraftForecast(); }).guesses, 0) << "no plan";
}

/// 40 GB for the processor, so much of them read from the disk.
Plan on_processor(double read) {
  Plan plan;
  plan.cost.layers = 80;
  plan.cost.home = 40e9 - read;
  plan.cost.read = read;
  plan.cost.macs = 70e9;
  plan.predicted_decode_tokens_per_second = 1 / residency::predict_pass(plan, kRates, {}, 1).seconds;
  return plan;
}

TEST(DraftPlace, ASupposedDraftPaysWhereWeightsStream) {
  for (const Plan& target : {on_processor(20e9), large(40), large(40, 20)}) {
    const double alone = 1 / residency::predict_pass(target, kRates, {}, 1).seconds;
    const SupposedDraft draft = suppose_draft(target, kRates, 0.7);
    EXPECT_EQ(draft.bytes, 2'500'000'000u);
    EXPECT_GT(draft.forecast.tokens_per_second, 1.5 * alone);
    EXPECT_LT(draft.forecast.tokens_per_second, 1 / (1 - 0.7) * alone) << "more tokens than a pass can bring";
    EXPECT_LT(suppose_draft(target, kRates, 0).forecast.tokens_per_second, alone)
        << "it takes room, and brings nothing";
  }
  EXPECT_EQ(suppose_draft(on_processor(20e9), {}, 0.7).forecast.tokens_per_second, 0)
      << "without rates nothing is known";
}

TEST(DraftPlace, TheRoomOfASupposedDraftIsTheWeights) {
  // Its bytes are read for each token from then on: 2.5 GB more than 5.
  const Plan target = on_processor(5e9);
  const double alone = 1 / residency::predict_pass(target, kRates, {}, 1).seconds;
  const DraftForecast free = forecast_drafts(target, kRates, 2.5e9 / kRates.cpu_decode, kUsual);
  EXPECT_NEAR(suppose_draft(target, kRates, 0.7).forecast.tokens_per_second, free.tokens_per_second * 5 / 7.5,
              0.1 * alone);
  Plan mixture;  // a third of whose experts are met in memory
  mixture.cost.expert_bytes = 60e9;
  mixture.cost.expert_share = 1.0 / 16;
  mixture.cost.experts = 128;
  mixture.cost.top_k = 8;
  mixture.cost.layers = 48;
  mixture.cost.home = 2e9;
  mixture.predicted_hit_rate = 1.0 / 3;
  const SupposedDraft draft = suppose_draft(mixture, kRates, 0.7);
  EXPECT_EQ(draft.bytes, static_cast<std::uint64_t>((2e9 + 60e9 / 16) / 16));
  EXPECT_LT(draft.forecast.tokens_per_second, 1.3 / residency::predict_pass(mixture, kRates, {}, 1).seconds)
      << "each further row reads experts of its own";
}

TEST(DraftPlace, IsSaidInALine) {
  DraftWays all = ways(40, 2);
  const DraftSeat seat{DraftPlace::gpu, 812'000'000, 43'000'000, {}};
  const std::string words = describe_seat(seat, all, kUsual);
  for (const char* word :
       {"on the GPU, 812 MB of VRAM and 43.0 MB of RAM", "if 70 % of guesses are right", "guesses a pass", "without"})
    EXPECT_NE(words.find(word), std::string::npos) << words;
  all[static_cast<std::size_t>(DraftPlace::gpu)] = {"it has no room", {}};
  all[static_cast<std::size_t>(DraftPlace::cpu)] = {"nor here", {}};
  const std::string none = describe_seat({}, all, kUsual);
  EXPECT_NE(none.find("not on the GPU: it has no room; not on the CPU: nor here"), std::string::npos) << none;
}

}  // namespace
}  // namespace millrace::engine
