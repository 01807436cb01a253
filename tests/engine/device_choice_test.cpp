#include "engine/device_choice.h"

#include <gtest/gtest.h>

#include "residency/store_fixture.h"

namespace millrace::engine {
namespace {

using residency::Plan;
using residency::Rates;
using residency::Tier;

/// Every other of eight layers at home in VRAM, or all of them.
Plan on_gpu(const residency::UnitTable& units, const Rates& rates, bool all = false) {
  std::vector<Tier> homes;
  for (std::size_t u = 0; u < units.units().size(); ++u) {
    const bool layer = units.units()[u].kind == residency::UnitKind::trunk;
    homes.push_back(layer && !all && u % 2 == 0 ? Tier::ram : Tier::vram);
    if (units.units()[u].by_rows) homes.back() = Tier::ram;
  }
  return make_vram_plan(units, homes, {}, rates);
}
Plan on_cpu(const residency::UnitTable& units, const Rates& rates, std::uint64_t ram = UINT64_MAX) {
  auto plan = make_plan(units, {.ram_bytes = ram}, rates);
  EXPECT_TRUE(plan.ok()) << plan.status().message();
  return plan.ok() ? std::move(*plan) : Plan();
}

class DeviceChoiceTest : public ::testing::Test {
 protected:
  std::uint64_t file_bytes_ = 0;
  const residency::UnitTable units_ = residency::test::make_units({.layers = 8, .trunk_rows = 4000}, &file_bytes_);
  // As of a server: both plans are bound by what moves, for the layers are of 1.5 MB.
  const Rates fast_{
      .disk = 3e9, .ram = 1e9, .cpu_decode = 1e9, .host_to_device = 5e8, .device_memory = 3e10, .machine = "a test"};
};

TEST_F(DeviceChoiceTest, ASlowLinkLeavesItToTheCpu) {
  EXPECT_FALSE(cpu_decodes_faster(on_gpu(units_, fast_), on_cpu(units_, fast_)));
  Rates slow = fast_;
  slow.host_to_device = 1e7;
  EXPECT_TRUE(cpu_decodes_faster(on_gpu(units_, slow), on_cpu(units_, slow)));
  slow.disk = 2e6;  // too slow for a CPU that has to read half of the model
  EXPECT_FALSE(cpu_decodes_faster(on_gpu(units_, slow), on_cpu(units_, slow, units_.total_bytes() / 2)));
}

TEST_F(DeviceChoiceTest, WithoutBothPredictionsItStaysWithTheGpu) {
  Rates no_link = fast_, no_cpu = fast_;
  no_link.host_to_device = 0;
  no_cpu.cpu_decode = no_cpu.ram = 0;
  EXPECT_FALSE(cpu_decodes_faster(on_gpu(units_, no_link), on_cpu(units_, no_link)));
  EXPECT_FALSE(cpu_decodes_faster(on_gpu(units_, no_cpu), on_cpu(units_, no_cpu)));
  EXPECT_FALSE(cpu_decodes_faster(on_gpu(units_, {}), on_cpu(units_, {})));
}

TEST_F(DeviceChoiceTest, AlikeIsTheGpus) {
  Plan one, other;
  one.predicted_decode_tokens_per_second = other.predicted_decode_tokens_per_second = 2;
  EXPECT_FALSE(cpu_decodes_faster(one, other));
}

TEST_F(DeviceChoiceTest, OnlyWhatEveryTokenNeedsStreams) {
  EXPECT_TRUE(streams_to_gpu(units_, on_gpu(units_, fast_)));
  EXPECT_FALSE(streams_to_gpu(units_, on_gpu(units_, fast_, true))) << "an embedding in RAM is read by rows";
  const residency::UnitTable tied = residency::test::make_units({.layers = 2, .tied = true}, &file_bytes_);
  Plan plan = on_gpu(tied, fast_, true);
  EXPECT_FALSE(streams_to_gpu(tied, plan));
  plan.homes.front() = Tier::ram;  // the embedding, which is the head
  EXPECT_TRUE(streams_to_gpu(tied, plan));
}

}  // namespace
}  // namespace millrace::engine
