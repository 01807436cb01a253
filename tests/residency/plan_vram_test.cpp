#include <gtest/gtest.h>

#include <algorithm>

#include "residency/plan.h"
#include "residency/predict.h"
#include "residency/store_fixture.h"

namespace millrace::residency {
namespace {

using test::make_units;

// So slow that launches take next to nothing beside the layers' bytes.
const Rates kVramRates{.disk = 3e5, .host_to_device = 5e6, .device_memory = 4e8, .machine = "a test"};

/// A dense model of six layers whose layers are at home by turns in `tiers`.
struct Planned {
  UnitTable units;
  std::vector<Tier> homes;
  std::uint64_t bytes[3] = {};  // of layers, by tier
};
Planned layers_in(const std::vector<Tier>& tiers) {
  std::uint64_t file_bytes = 0;
  Planned planned{make_units({.layers = 6, .tile_bytes = 32 << 10}, &file_bytes), {}, {}};
  std::size_t layer = 0;
  for (const Unit& unit : planned.units.units()) {
    planned.homes.push_back(unit.kind == UnitKind::trunk ? tiers[layer++ % tiers.size()] : Tier::vram);
    if (unit.kind == UnitKind::trunk) planned.bytes[static_cast<int>(planned.homes.back())] += unit.bytes();
  }
  return planned;
}

TEST(VramPlan, IsBoundByTheSlowestWay) {
  const Planned all = layers_in({Tier::vram});
  const Plan resident = make_vram_plan(all.units, all.homes, {}, kVramRates);
  EXPECT_EQ(resident.bound, "vram");

  const Planned ram = layers_in({Tier::vram, Tier::ram});
  const Plan over_pcie = make_vram_plan(ram.units, ram.homes, {}, kVramRates);
  EXPECT_EQ(over_pcie.bound, "pcie");
  EXPECT_NEAR(over_pcie.predicted_decode_tokens_per_second, 5e6 / static_cast<double>(ram.bytes[1]), 1e-3);

  const Planned disk = layers_in({Tier::vram, Tier::ram, Tier::disk});
  const Plan from_disk = make_vram_plan(disk.units, disk.homes, {}, kVramRates);
  EXPECT_EQ(from_disk.bound, "disk");
  EXPECT_NEAR(from_disk.predicted_decode_tokens_per_second, 3e5 / static_cast<double>(disk.bytes[2]), 1e-3);
  EXPECT_LT(from_disk.predicted_decode_tokens_per_second, over_pcie.predicted_decode_tokens_per_second);
}

// The same with a processor that takes part.
const Rates kSlow{.disk = 3e5,
                  .cpu_decode = 12e6,
                  .host_to_device = 6e6,
                  .host_to_device_busy = 5e6,
                  .cpu_decode_busy = 10e6,
                  .device_memory = 4e8,
                  .machine = ""};

TEST(VramPlan, SharesRowsSoThatLinkAndProcessorEndTogether) {
  const Planned ram = layers_in({Tier::vram, Tier::ram});
  const auto bytes = static_cast<double>(ram.bytes[1]);
  const Plan alone = make_vram_plan(ram.units, ram.homes, {.cpu_permille = 0}, kSlow);
  EXPECT_EQ(alone.bound, "pcie");
  EXPECT_EQ(alone.cpu_permille, 0);
  EXPECT_NEAR(alone.predicted_decode_tokens_per_second, 6e6 / bytes, 1e-3);
  const Plan shared = make_vram_plan(ram.units, ram.homes, {}, kSlow);
  // 10 to 5, less what the processor rests while the GPU computes its own layers.
  EXPECT_NEAR(shared.cpu_permille, 667, 20);
  EXPECT_NEAR(shared.predicted_decode_tokens_per_second, 15e6 / bytes, 0.06 * 15e6 / bytes);
  // Both ways are as long: a little more for either is slower.
  for (const int other : {shared.cpu_permille - 20, shared.cpu_permille + 20})
    EXPECT_LT(make_vram_plan(ram.units, ram.homes, {.cpu_permille = other}, kSlow).predicted_decode_tokens_per_second,
              shared.predicted_decode_tokens_per_second);
}

TEST(VramPlan, SharesLessWhereThePassesHaveSeveralRows) {
  const Planned ram = layers_in({Tier::vram, Tier::ram});
  const auto decode = [&](const PlanOptions& options, const Rates& rates, double rows) {
    const Plan plan = make_vram_plan(ram.units, ram.homes, options, rates);
    return std::pair(plan.cpu_permille, predict_pass(plan, rates, {}, rows).seconds);
  };
  Rates rates = kSlow;
  const PlanOptions one = {}, four{.passes = {.decode_rows = 4}};
  EXPECT_EQ(decode(one, rates, 1).first, decode(four, rates, 1).first) << "it is not known that rows cost anything";
  // As many products a second as one row's bytes take: four rows take four times as long.
  const Plan plan = make_vram_plan(ram.units, ram.homes, {}, rates);
  rates.cpu_few_macs = rates.cpu_decode_busy * plan.cost.shared_macs / plan.cost.shared;
  EXPECT_EQ(decode(one, rates, 1), decode(one, kSlow, 1));
  const auto [permille, seconds] = decode(four, rates, 4);
  EXPECT_NEAR(permille, 333, 20) << "2.5 to 5";
  EXPECT_LT(seconds, 0.6 * decode(one, rates, 4).second);
  EXPECT_GT(decode(four, rates, 1).second, decode(one, rates, 1).second);
}

TEST(VramPlan, SharesNothingWhereThatDoesNotPay) {
  const Planned disk = layers_in({Tier::vram, Tier::ram, Tier::disk});
  EXPECT_EQ(make_vram_plan(disk.units, disk.homes, {}, kSlow).cpu_permille, 0) << "the disk is waited for";
  const Planned all = layers_in({Tier::vram});
  EXPECT_EQ(make_vram_plan(all.units, all.homes, {.cpu_permille = 500}, kSlow).cpu_permille, 0) << "nothing in RAM";
  const Planned ram = layers_in({Tier::vram, Tier::ram});
  const Rates fast{
      .disk = 3e9, .cpu_decode = 100e9, .host_to_device = 50e9, .device_memory = 4e12, .machine = "a test"};
  EXPECT_EQ(make_vram_plan(ram.units, ram.homes, {}, fast).cpu_permille, 0) << "handing over takes longer";
}

TEST(VramPlan, PredictsNothingWithoutTheRatesItNeeds) {
  const Planned disk = layers_in({Tier::disk});
  const Rates no_disk{.host_to_device = 50e9, .device_memory = 4e12, .machine = "a test"};
  const Plan plan = make_vram_plan(disk.units, disk.homes, {}, no_disk);
  EXPECT_EQ(plan.predicted_decode_tokens_per_second, 0);
  EXPECT_EQ(plan.bound, "");
}

TEST(VramPlan, HasARowForEachTierAndKind) {
  const Planned mixed = layers_in({Tier::vram, Tier::ram, Tier::disk});
  const Plan plan = make_vram_plan(mixed.units, mixed.homes, {}, kVramRates);
  std::uint64_t bytes = 0;
  std::int64_t units = 0;
  for (const Plan::Row& row : plan.rows) {
    bytes += row.bytes;
    units += row.units;
  }
  EXPECT_EQ(bytes, mixed.units.total_bytes());
  EXPECT_EQ(units, static_cast<std::int64_t>(mixed.units.units().size()));
  EXPECT_EQ(plan.homes.size(), mixed.homes.size());
}

/// A mixture of two layers of eight experts, two of them a token's.
struct Mixture {
  UnitTable units;
  std::vector<Tier> homes;
  double expert_bytes = 0;  // all
};
Mixture mixture_outside_vram() {
  std::uint64_t file_bytes = 0;
  Mixture mixture{make_units({.layers = 2, .experts = 8, .tile_bytes = 64 << 10}, &file_bytes), {}};
  for (const Unit& unit : mixture.units.units()) {
    const bool expert = unit.kind == UnitKind::expert;
    mixture.homes.push_back(expert ? Tier::ram : Tier::vram);
    if (expert) mixture.expert_bytes += static_cast<double>(unit.bytes());
  }
  return mixture;
}

TEST(VramPlan, ExpertsWithoutSlotsAreTheProcessorsAndTheLinks) {
  const Mixture mixture = mixture_outside_vram();
  PlanOptions options;
  options.passes.top_k = 2;
  options.experts.ram_slots = 16;
  options.experts.vram_slots = 4;
  Rates rates = kSlow;
  rates.host_to_device_busy = rates.cpu_decode_busy;
  const auto plan_of = [&] { return make_vram_plan(mixture.units, mixture.homes, options, rates); };
  const Plan alone = plan_of();
  const double missed = mixture.expert_bytes * 2 / 8 * 0.75;  // a quarter of them has slots
  EXPECT_DOUBLE_EQ(alone.predicted_hit_rate, 0.25);
  EXPECT_NEAR(host_expert_bytes(alone), missed, 1);
  EXPECT_EQ(alone.bound, "ram");

  // Link and processor end together, and so a token comes sooner: where both of a token's experts are missed, 9 times
  // of 16, each takes one; the processor takes the one that is missed alone, 6 times of 16.
  EXPECT_NEAR(link_share(kSlow).single, 333, 1);  // 5 of 5 + 10
  options.experts.link = link_share(rates);
  EXPECT_LT(options.experts.link.several, options.experts.link.single) << "the GPU reads slower for several rows";
  const Plan both = plan_of();
  EXPECT_NEAR(host_expert_bytes(both), missed * 0.625, missed * 0.01);
  EXPECT_NEAR(alone.predicted_decode_tokens_per_second / both.predicted_decode_tokens_per_second, 0.625, 0.03);

  // More slots, more speed; fewer in RAM than there are, and the disk is waited for.
  options.experts.vram_slots = 12;
  EXPECT_GT(plan_of().predicted_decode_tokens_per_second, 2.7 * alone.predicted_decode_tokens_per_second);
  options.experts.vram_slots = 4;
  options.experts.ram_slots = 6;
  const Plan from_disk = plan_of();
  EXPECT_EQ(from_disk.bound, "disk");
  const double share_read = 1 - 6.0 / 16 / 0.75;
  // A layer's experts are few bytes in flight at once, and what comes behind them waits.
  const auto layers = static_cast<double>(from_disk.cost.layers);
  const double one = mixture.expert_bytes / (static_cast<double>(from_disk.cost.experts) * layers);
  const double read = missed * share_read;
  const double reading = read / kSlow.disk * (1 + kHalfRateInFlight / std::max(one, read / layers));
  EXPECT_NEAR(1 / from_disk.predicted_decode_tokens_per_second, reading + 1 / both.predicted_decode_tokens_per_second,
              1e-3);
  rates.disk = 0;
  EXPECT_EQ(plan_of().predicted_decode_tokens_per_second, 0) << "a rate is missing";
  rates.disk = kSlow.disk;
  const auto tiers = [](const Plan& plan) {
    std::vector<std::string> found;
    for (const Plan::Row& row : plan.rows)
      if (row.what.starts_with("experts")) found.push_back(row.tier);
    return found;
  };
  EXPECT_EQ(tiers(both), (std::vector<std::string>{"vram", "ram"}));
  EXPECT_EQ(tiers(from_disk), (std::vector<std::string>{"vram", "ram", "disk"}));
}

TEST(VramPlan, PromptsOfMixturesCross) {
  const Mixture mixture = mixture_outside_vram();
  PlanOptions options;
  options.passes.top_k = 2;
  options.experts.ram_slots = 16;
  options.experts.vram_slots = 4;
  Rates rates = kSlow;
  rates.device_prefill_macs = 1e12;
  const Plan plan = make_vram_plan(mixture.units, mixture.homes, options, rates);
  const double seconds = 512 / predict_tokens_per_second(plan, rates, {.prompt_tokens = 512});
  EXPECT_NEAR(seconds, mixture.expert_bytes * 0.75 / rates.host_to_device, seconds * 0.02);
}

}  // namespace
}  // namespace millrace::residency
