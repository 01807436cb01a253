#include "residency/expert_meter.h"

#include <gtest/gtest.h>

namespace millrace::residency {
namespace {

/// Two layers of four experts behind an embedding: units 1 to 4 and 5 to 8.
UnitTable two_layers() {
  UnitTable units;
  (void)units.add({});
  for (int e = 0; e < 8; ++e) {
    Unit unit;
    unit.kind = UnitKind::expert;
    unit.layer = e / 4;
    unit.expert = e % 4;
    (void)units.add(unit);
  }
  return units;
}

TEST(ExpertMeter, ColdSteadyAndLargestMisses) {
  const UnitTable units = two_layers();
  ExpertMeter meter(units);
  const auto pass = [&](int misses, int hits) {
    meter.begin_pass();
    for (int i = 0; i < misses + hits; ++i) meter.used(1 + i % 8, i < misses);
  };
  meter.begin_pass();  // of a model without experts in it: nobody is cold yet
  pass(8, 0);
  pass(5, 3);
  for (int i = 0; i < 200; ++i) pass(2, 6);
  meter.begin_pass();
  EXPECT_EQ(meter.figures().cold_misses, 8u);
  EXPECT_EQ(meter.figures().most_misses, 5u);
  EXPECT_NEAR(meter.figures().steady_misses, 2, 0.01);
  EXPECT_EQ(meter.figures().total().misses, 8u + 5 + 400);
  EXPECT_EQ(meter.figures().total().hits, 3u + 1200);
}

TEST(ExpertMeter, WorkingSetsOfAPassAndOfManyOnEnd) {
  const UnitTable units = two_layers();
  ExpertMeter meter(units);
  for (int turn = 0; turn < 3 * ExpertFigures::kManyPasses; ++turn) {
    meter.begin_pass();
    const int third = turn / ExpertFigures::kManyPasses;
    meter.used(1 + (third == 1 ? turn % 4 : turn % 2), false);  // four in the middle, else two
    meter.used(1 + (third == 1 ? turn % 4 : turn % 2), false);  // twice is once
    meter.used(5, false);
  }
  const auto& layers = meter.figures().layers;
  EXPECT_EQ(layers[0].working_set, 1u);
  EXPECT_EQ(layers[0].long_working_set, 4u);
  EXPECT_EQ(layers[1].working_set, 1u);
  EXPECT_EQ(layers[1].long_working_set, 1u);
  EXPECT_EQ(meter.figures().total().long_working_set, 4u);
}

TEST(ExpertMeter, WhoIsThere) {
  const UnitTable units = two_layers();
  ExpertMeter meter(units);
  for (const int unit : {1, 2, 5}) meter.came(unit);
  meter.left(2);
  EXPECT_EQ(meter.figures().layers[0].resident, 1u);
  EXPECT_EQ(meter.figures().layers[0].evictions, 1u);
  EXPECT_EQ(meter.figures().total().resident, 2u);
}

}  // namespace
}  // namespace millrace::residency
