#include "exec/router_ahead.h"

#include <gtest/gtest.h>

#include "exec/small_model.h"

namespace millrace::exec {
namespace {

using test::SmallModel;

TEST(RouterAhead, AMixturesRouterIsAskedOnWhatItsNormReads) {
  const SmallModel model({.layers = 3, .experts = 6});
  const Program program = model.program();
  const auto routers = routers_ahead(program);
  ASSERT_EQ(routers.size(), 3u);
  for (std::size_t i = 0; i < routers.size(); ++i) {
    EXPECT_EQ(routers[i].layer, static_cast<std::int64_t>(i));
    ASSERT_TRUE(routers[i].known());
    EXPECT_EQ(program.buffer(routers[i].state).name, "x");
    EXPECT_EQ(model.units().part(routers[i].norm).name, "ffn_norm");
    EXPECT_EQ(model.units().part(routers[i].router).name, "router");
    EXPECT_EQ(routers[i].experts.count, 6);
  }
  EXPECT_TRUE(routers_ahead(SmallModel({.layers = 3}).program()).empty());
}

/// Passes that take so long by nature, some longer, until a trial was made; whether it was for reading ahead.
bool decides(PrefetchTrial& trial, double without, double with, int& passes) {
  const auto passed = [&] {
    const double noise = passes % 7 == 0 ? 3 : 1 + 0.002 * (passes % 5);
    trial.passed((trial.on() ? with : without) * noise);
    ++passes;
  };
  constexpr int kMost = 100'000;
  while (!trial.trying() && passes < kMost) passed();
  while (trial.trying() && passes < kMost) passed();
  EXPECT_LT(passes, kMost);
  return trial.on();
}

TEST(PrefetchTrial, KeepsWhatIsFasterAndTriesAgain) {
  PrefetchTrial trial;
  int passes = 0;
  EXPECT_TRUE(decides(trial, 1.0, 0.8, passes));
  EXPECT_EQ(passes, PrefetchTrial::kFirst + PrefetchTrial::kTurn * PrefetchTrial::kTurns);
  EXPECT_FALSE(decides(trial, 1.0, 1.1, passes));
  EXPECT_TRUE(decides(trial, 1.0, 0.8, passes));
}

TEST(PrefetchTrial, WhatGainsNothingIsNotKeptAndTriedMoreRarely) {
  PrefetchTrial trial;
  int passes = 0, before = 0, last = 0;
  for (int turn = 0; turn < 4; ++turn) {
    before = passes;
    EXPECT_FALSE(decides(trial, 1.0, 0.995, passes));
    EXPECT_GT(passes - before, last);
    last = passes - before;
  }
}

}  // namespace
}  // namespace millrace::exec
