#include "residency/type_rates.h"

#include <gtest/gtest.h>

#include "residency/predict.h"

namespace millrace::residency {
namespace {

constexpr std::int64_t kCols = 1024;

Unit make_unit(UnitKind kind, std::vector<std::pair<DType, std::int64_t>> parts, int expert = -1) {
  Unit unit;
  unit.kind = kind;
  unit.layer = kind == UnitKind::trunk || kind == UnitKind::expert ? 0 : -1;
  unit.expert = expert;
  for (const auto& [dtype, rows] : parts)
    unit.parts.push_back({.name = "a weight", .dtype = dtype, .rows = rows, .cols = kCols});
  return unit;
}

/// An embedding of which rows are read, a trunk, four experts and a head.
UnitTable mixture() {
  UnitTable units;
  Unit embedding = make_unit(UnitKind::embedding, {{DType::f32, 5000}});
  embedding.by_rows = true;
  units.add(embedding);
  units.add(make_unit(UnitKind::trunk, {{DType::q8_0, 100}, {DType::f16, 10}}));
  for (int expert = 0; expert < 4; ++expert) units.add(make_unit(UnitKind::expert, {{DType::mxfp4, 60}}, expert));
  units.add(make_unit(UnitKind::head, {{DType::q8_0, 300}}));
  return units;
}

const Rates kMeasured{.ram = 60e9,
                      .cpu_decode = 40e9,
                      .cpu_decode_busy = 30e9,
                      .cpu_prefill_macs = 400e9,
                      .cpu_few_macs = 100e9,
                      .cpu_rows_macs = 200e9,
                      .machine = "a test",
                      .types = {{.dtype = DType::f16, .decode = 30e9, .rows_macs = 50e9, .prefill_macs = 100e9},
                                {.dtype = DType::q8_0, .decode = 60e9, .rows_macs = 100e9}}};

TEST(TypeRates, WeightsAreThoseThatATokenComputesWith) {
  const std::vector<TypeWeights> all = weights_by_type(mixture(), 2, false);
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(all[0].dtype, DType::f16);
  EXPECT_EQ(all[0].macs, 10.0 * kCols);
  EXPECT_EQ(all[0].bytes, 10.0 * kCols * 2);
  EXPECT_EQ(all[1].dtype, DType::q8_0);
  EXPECT_EQ(all[1].macs, 400.0 * kCols);
  EXPECT_EQ(all[2].dtype, DType::mxfp4);
  EXPECT_EQ(all[2].macs, 2.0 * 60 * kCols) << "two experts of four";
  const std::vector<TypeWeights> beside = weights_by_type(mixture(), 2, true);
  ASSERT_EQ(beside.size(), 1u) << "beside a GPU the processor computes with experts";
  EXPECT_EQ(beside[0].dtype, DType::mxfp4);
}

TEST(TypeRates, EachTypeTakesItsOwnTime) {
  const Rates f16 = rates_for({{DType::f16, 10, 5}}, kMeasured);
  EXPECT_DOUBLE_EQ(f16.cpu_decode, 30e9);
  EXPECT_DOUBLE_EQ(f16.cpu_prefill_macs, 100e9);
  EXPECT_DOUBLE_EQ(f16.cpu_rows_macs, 50e9);
  EXPECT_DOUBLE_EQ(f16.cpu_decode_busy, 30e9 * 30 / 40);
  EXPECT_DOUBLE_EQ(f16.cpu_few_macs, 100e9 * 50 / 200);
  EXPECT_EQ(f16.ram, kMeasured.ram);
  // 30 bytes at 30 and 60 at 60: two seconds of a billionth.
  const Rates both = rates_for({{DType::f16, 30, 1}, {DType::q8_0, 60, 1}}, kMeasured);
  EXPECT_DOUBLE_EQ(both.cpu_decode, 45e9);
  EXPECT_DOUBLE_EQ(both.cpu_prefill_macs, 2 / (1 / 100e9 + 1 / 400e9)) << "Q8_0 goes as Q4_K where it was not measured";
}

TEST(TypeRates, DoingItTwiceChangesNothing) {
  const std::vector<TypeWeights> weights = {{DType::f16, 30, 1}, {DType::q4_k, 60, 1}};
  const Rates once = rates_for(weights, kMeasured), twice = rates_for(weights, once);
  EXPECT_EQ(once.cpu_decode, twice.cpu_decode);
  EXPECT_EQ(once.cpu_rows_macs, twice.cpu_rows_macs);
  EXPECT_TRUE(once.types.empty());
}

TEST(TypeRates, WithoutThemAllGoesAsQ4K) {
  Rates old = kMeasured;
  old.types.clear();
  const Rates own = rates_for({{DType::f16, 30, 1}}, old);
  EXPECT_EQ(own.cpu_decode, old.cpu_decode);
  EXPECT_EQ(own.cpu_prefill_macs, old.cpu_prefill_macs);
  Rates unmeasured = kMeasured;
  unmeasured.cpu_decode = unmeasured.cpu_prefill_macs = unmeasured.cpu_rows_macs = 0;
  EXPECT_EQ(rates_for({{DType::f16, 30, 1}}, unmeasured).cpu_decode, 0) << "what is not known is not made up";
}

/// A dense model of a type: its plan foretells what that type was measured at.
TEST(TypeRates, PlansAreMadeFromThem) {
  const auto plan_of = [](DType dtype) {
    UnitTable units;
    Unit embedding = make_unit(UnitKind::embedding, {{dtype, 64}});
    embedding.by_rows = true;
    units.add(embedding);
    for (int layer = 0; layer < 4; ++layer) {
      Unit trunk = make_unit(UnitKind::trunk, {{dtype, 4096}});
      trunk.layer = layer;
      units.add(trunk);
    }
    units.add(make_unit(UnitKind::head, {{dtype, 4096}}));
    units.cut(1 << 20);
    return *make_plan(units, {}, kMeasured);
  };
  const Plan f16 = plan_of(DType::f16), q4_k = plan_of(DType::q4_k);
  const double f16_bytes = 5.0 * 4096 * kCols * 2, macs = 5.0 * 4096 * kCols;
  EXPECT_NEAR(f16.predicted_decode_tokens_per_second, 30e9 / f16_bytes, 1e-6 * 30e9 / f16_bytes);
  EXPECT_NEAR(predict_pass(f16, kMeasured, {.sequences = 8}, 8).seconds, 8 * macs / 50e9, 1e-9);
  EXPECT_NEAR(predict_pass(q4_k, kMeasured, {.sequences = 8}, 8).seconds, 8 * macs / 200e9, 1e-9);
  const double one = f16_bytes / 30e9, eight = 8 * macs / 50e9;
  EXPECT_NEAR(predict_pass(f16, kMeasured, {.sequences = 4}, 4).seconds, one + (eight - one) * 3 / 7, 1e-9)
      << "unpacked once, computed with four times";
  const double prompt = predict_pass(f16, kMeasured, {.prompt_tokens = 512}, 512).seconds;
  EXPECT_NEAR(prompt, (512 * 4 + 1) * 4096.0 * kCols / 100e9, 1e-9) << "of the head one row";
}

}  // namespace
}  // namespace millrace::residency
