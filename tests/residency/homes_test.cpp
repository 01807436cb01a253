// Homes beside a GPU, chosen without one: what fits, what is refused with the smallest cap that works, and that nothing
// of the same kind is predicted to be faster.
#include "residency/homes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <regex>

#include "base/bytes.h"
#include "residency/predict.h"
#include "residency/store_fixture.h"

namespace millrace::residency {
namespace {

using test::make_units;

const Rates kRates{.disk = 3e8,
                   .cpu_decode = 12e8,
                   .host_to_device = 60e8,
                   .host_to_device_busy = 50e8,
                   .cpu_decode_busy = 10e8,
                   .device_memory = 4e11,
                   .machine = "a test"};
constexpr std::uint64_t kOthers = 3 << 20;  // of either memory: context, activations and KV; program and threads

/// Layers of 25 MB, several times the ring in front of the disk.
UnitTable dense(int layers) {
  std::uint64_t file_bytes = 0;
  return make_units({.layers = layers, .dim = 1024, .trunk_rows = 2000, .tile_bytes = 256 << 20}, &file_bytes);
}
/// Three layers of sixteen experts.
UnitTable mixture(int layers = 3, int experts = 16) {
  std::uint64_t file_bytes = 0;
  return make_units({.layers = layers, .experts = experts, .tile_bytes = 256 << 20}, &file_bytes);
}

HomesInput input_of(std::uint64_t vram, std::uint64_t ram) {
  HomesInput input;
  input.vram_bytes = vram;
  input.ram_bytes = ram;
  input.vram_taken_bytes = input.ram_taken_bytes = kOthers;
  input.context_tokens = 4096;
  return input;
}
std::uint64_t whole_bytes(const UnitTable& units) {
  return vram_bytes(units, homes_in_vram(units), input_of(UINT64_MAX, UINT64_MAX));
}
std::int64_t count(const UnitTable& units, const Homes& homes, UnitKind kind, Tier tier) {
  std::int64_t found = 0;
  for (std::size_t u = 0; u < units.units().size(); ++u)
    if (units.units()[u].kind == kind && homes.placement.homes[u] == tier) ++found;
  return found;
}
double predicted(const UnitTable& units, Homes homes, int top_k = 0) {
  PlanOptions options;
  options.passes.top_k = top_k;
  return plan_homes(units, homes, options, kRates).predicted_decode_tokens_per_second;
}
/// The smallest cap that a refusal names.
std::uint64_t least_of(const Status& status, const char* flag) {
  std::smatch found;
  const std::string& text = status.message();
  EXPECT_TRUE(std::regex_search(text, found, std::regex(std::string(flag) + " ([0-9.]+[A-Z]*) is the least"))) << text;
  return found.empty() ? 0 : parse_bytes(found[1].str()).value();
}

TEST(Homes, EachLayerThatFitsStaysInVram) {
  const UnitTable units = dense(8);
  const std::uint64_t all = whole_bytes(units);
  std::int64_t before = 9;
  for (std::uint64_t vram = all * 2 / 3; vram < all; vram += all / 40) {
    const HomesInput input = input_of(vram, UINT64_MAX);
    const auto homes = choose_homes(units, input, kRates);
    ASSERT_TRUE(homes.ok()) << homes.status().message();
    EXPECT_LE(vram_bytes(units, *homes, input), vram);
    EXPECT_LE(homes->movers, before) << "more room, fewer layers that move";
    before = homes->movers;
    EXPECT_EQ(homes->on_disk, 0);
    EXPECT_EQ(count(units, *homes, UnitKind::trunk, Tier::ram), homes->movers);
    EXPECT_EQ(count(units, *homes, UnitKind::head, Tier::vram), 1);
    EXPECT_EQ(count(units, *homes, UnitKind::embedding, Tier::ram), 1) << "read by rows";
    EXPECT_EQ(homes->placement.ring_units, 1);
  }
  EXPECT_LE(before, 2);
}

TEST(Homes, LayersThatMoveAreSpreadOverThePass) {
  const UnitTable units = dense(12);
  const auto homes = choose_homes(units, input_of(whole_bytes(units) - (90 << 20), UINT64_MAX), kRates);
  ASSERT_TRUE(homes.ok());
  ASSERT_GE(homes->movers, 2);
  ASSERT_LE(homes->movers, 6);
  int last = -1, least_gap = 99;
  for (std::size_t u = 0; u < units.units().size(); ++u) {
    if (!homes->placement.moves(units, u)) continue;
    if (last >= 0) least_gap = std::min(least_gap, units.units()[u].layer - last);
    last = units.units()[u].layer;
  }
  EXPECT_GE(least_gap, 12 / homes->movers);
}

TEST(Homes, WhatRamHasNoRoomForIsOnTheDisk) {
  const UnitTable units = dense(8);
  const std::uint64_t vram = whole_bytes(units) - 4 * device_room(units.units()[1]);
  const auto roomy = choose_homes(units, input_of(vram, UINT64_MAX), kRates);
  ASSERT_TRUE(roomy.ok());
  const std::uint64_t all = ram_bytes(units, *roomy, input_of(vram, UINT64_MAX));
  const std::uint64_t layer = pinned_room(units.units()[1]);
  for (int missing = 1; missing <= 3; ++missing) {
    // The ring in front of the disk takes its part.
    HomesInput input = input_of(vram, all + kChunkRingBytes - static_cast<std::uint64_t>(missing) * layer);
    auto homes = choose_homes(units, input, kRates);
    ASSERT_TRUE(homes.ok()) << homes.status().message();
    EXPECT_EQ(homes->on_disk, missing);
    EXPECT_EQ(homes->movers, roomy->movers);
    EXPECT_LE(ram_bytes(units, *homes, input), input.ram_bytes);
    // The next run, in which others may take more, fits into the same.
    input.ram_spread_bytes = 2 * layer;
    homes = choose_homes(units, input, kRates);
    ASSERT_TRUE(homes.ok());
    EXPECT_GE(homes->on_disk, missing + 1);
    EXPECT_LE(ram_bytes(units, *homes, input) + input.ram_spread_bytes, input.ram_bytes);
  }
  HomesInput straight = input_of(vram, all - 1);
  straight.straight = true;
  const auto homes = choose_homes(units, straight, kRates);
  ASSERT_TRUE(homes.ok());
  EXPECT_EQ(homes->on_disk, 1) << "no ring, where the disk is read into VRAM";
}

TEST(Homes, TheRingIsLargerWhereTheDiskIsReadBehindPartsOfAPrompt) {
  const UnitTable units = dense(8);
  const std::uint64_t vram = whole_bytes(units) - 3 * device_room(units.units()[1]);
  HomesInput input = input_of(vram, kOthers + kChunkRingBytes + (3 << 20));
  input.parted_prompts = true;
  const auto disk = choose_homes(units, input, kRates);
  ASSERT_TRUE(disk.ok()) << disk.status().message();
  EXPECT_GT(disk->on_disk, 0);
  EXPECT_EQ(disk->placement.ring_units, 2);
  input.ram_bytes = UINT64_MAX;
  const auto ram = choose_homes(units, input, kRates);
  ASSERT_TRUE(ram.ok());
  EXPECT_EQ(ram->placement.ring_units, 1);
  EXPECT_LT(ram->movers, disk->movers) << "the ring takes a layer's room";
}

/// All homes that spread layers over the tiers and fit: none is predicted to be faster than the one that was chosen.
TEST(Homes, NothingThatFitsIsPredictedToBeFaster) {
  const UnitTable units = dense(6);
  const std::uint64_t all = whole_bytes(units), layer = pinned_room(units.units()[1]);
  for (std::uint64_t vram = all - 4 * layer; vram < all; vram += layer / 2) {
    for (std::uint64_t in_ram = 0; in_ram <= 6; in_ram += 2) {
      const HomesInput input = input_of(vram, kOthers + kChunkRingBytes + (2 << 20) + in_ram * layer);
      const auto chosen = choose_homes(units, input, kRates);
      ASSERT_TRUE(chosen.ok()) << chosen.status().message();
      const double speed = predicted(units, *chosen);
      Homes other = *chosen;
      for (int homes = 0; homes < 729; ++homes) {  // three tiers, six layers
        int rest = homes;
        for (std::size_t u = 0; u < units.units().size(); ++u) {
          if (units.units()[u].kind != UnitKind::trunk) continue;
          other.placement.homes[u] = static_cast<Tier>(rest % 3);
          rest /= 3;
        }
        other.placement.ring_units = 1;
        if (vram_bytes(units, other, input) > input.vram_bytes || ram_bytes(units, other, input) > input.ram_bytes)
          continue;
        EXPECT_LE(predicted(units, other), speed * 1.0001) << vram << " " << in_ram << " " << homes;
      }
    }
  }
}

/// Layers that guess come first; the others move as they would, and where there is no room for the first ones, as
/// without.
TEST(Homes, TheFirstLayersComeFirst) {
  for (const bool tied : {false, true}) {
    std::uint64_t file_bytes = 0;
    const UnitTable units =
        make_units({.layers = 9, .dim = 1024, .trunk_rows = 2000, .tied = tied, .tile_bytes = 256 << 20}, &file_bytes);
    const std::uint64_t whole = whole_bytes(units), layer = units.units()[1].bytes();
    for (const std::uint64_t ram : {std::uint64_t{1} << 40, std::uint64_t{200} << 20}) {
      HomesInput input = input_of(whole - layer * 9 / 2, ram);
      const auto plain = choose_homes(units, input, kRates);
      ASSERT_TRUE(plain.ok()) << plain.status().message();
      EXPECT_LT(leading_layers(units, plain->placement.homes), 3);
      for (const int front : {1, 3, kFrontOfPlan}) {
        input.front_layers = front;
        const auto homes = choose_homes(units, input, kRates);
        ASSERT_TRUE(homes.ok());
        EXPECT_EQ(homes->movers, plain->movers - (tied ? 1 : 0)) << "the last norm of a tied model stays, too";
        const int leading = leading_layers(units, homes->placement.homes);
        EXPECT_GE(leading, front);
        if (front == kFrontOfPlan) {
          EXPECT_EQ(leading, 9 - homes->movers);
        }
        for (std::size_t u = 0; u < units.units().size(); ++u)
          if (in_front(units.units()[u], leading)) {
            EXPECT_EQ(homes->placement.homes[u], Tier::vram) << u;
          }
        EXPECT_LE(vram_bytes(units, *homes, input), input.vram_bytes);
        EXPECT_LE(ram_bytes(units, *homes, input), input.ram_bytes);
      }
      input.front_layers = 9;  // no room
      const auto without = choose_homes(units, input, kRates);
      ASSERT_TRUE(without.ok());
      EXPECT_EQ(without->placement.homes, plain->placement.homes);
    }
  }
}

TEST(Homes, PinnedLayersStay) {
  const UnitTable units = dense(8);
  HomesInput input = input_of(UINT64_MAX, UINT64_MAX);
  input.pins = {{0, 1, Tier::ram}, {3, 3, Tier::disk}};
  const auto homes = choose_homes(units, input, kRates);
  ASSERT_TRUE(homes.ok());
  EXPECT_EQ(homes->movers, 3);
  EXPECT_EQ(homes->on_disk, 1);
  for (std::size_t u = 0; u < units.units().size(); ++u) {
    const Unit& unit = units.units()[u];
    if (unit.kind != UnitKind::trunk) continue;
    const Tier wanted = unit.layer <= 1 ? Tier::ram : unit.layer == 3 ? Tier::disk : Tier::vram;
    EXPECT_EQ(homes->placement.homes[u], wanted) << unit.layer;
  }
  EXPECT_EQ(choose_homes(mixture(), input, kRates).status().code(), Code::unsupported);
}

TEST(Homes, RefusalsNameTheSmallestCapsThatWork) {
  const UnitTable models[] = {dense(8), mixture()};
  for (const UnitTable& units : models) {
    const auto no_vram = choose_homes(units, input_of(kOthers + 1000, UINT64_MAX), kRates);
    ASSERT_EQ(no_vram.status().code(), Code::out_of_budget);
    const std::uint64_t vram = least_of(no_vram.status(), "--vram");
    EXPECT_TRUE(choose_homes(units, input_of(vram, UINT64_MAX), kRates).ok());
    EXPECT_FALSE(choose_homes(units, input_of(vram / 100 * 98, UINT64_MAX), kRates).ok());
    EXPECT_EQ(choose_homes(units, input_of(UINT64_MAX, kOthers), kRates).status().code(), Code::out_of_budget);
  }
  const auto no_ram = choose_homes(models[1], input_of(UINT64_MAX, kOthers), kRates);
  const std::uint64_t ram = least_of(no_ram.status(), "--ram");
  EXPECT_TRUE(choose_homes(models[1], input_of(UINT64_MAX, ram), kRates).ok());
  EXPECT_FALSE(choose_homes(models[1], input_of(UINT64_MAX, ram / 100 * 98), kRates).ok());
}

TEST(Homes, OthersBytesCount) {
  const UnitTable units = dense(8);
  HomesInput input = input_of(whole_bytes(units) - 3 * device_room(units.units()[1]), UINT64_MAX);
  const auto few = choose_homes(units, input, kRates);
  input.vram_taken_bytes += 2 * device_room(units.units()[1]);  // KV of a longer context
  const auto more = choose_homes(units, input, kRates);
  ASSERT_TRUE(few.ok() && more.ok());
  EXPECT_EQ(more->movers, few->movers + 2);
}

TEST(Homes, ExpertsTakeWhatTheTrunkLeaves) {
  const UnitTable units = mixture();
  const std::uint64_t slot = device_slot_bytes(units);
  HomesInput input = input_of(0, UINT64_MAX);
  input.vram_bytes = least_of(choose_homes(units, input_of(kOthers, UINT64_MAX), kRates).status(), "--vram");
  std::int64_t before = -1;
  double speed = 0;
  for (int step = 0; step < 20; ++step, input.vram_bytes += 5 * slot) {
    const auto homes = choose_homes(units, input, kRates);
    ASSERT_TRUE(homes.ok()) << homes.status().message();
    EXPECT_LE(vram_bytes(units, *homes, input), input.vram_bytes);
    EXPECT_EQ(count(units, *homes, UnitKind::trunk, Tier::vram), 3) << "a token reads all of it";
    EXPECT_EQ(count(units, *homes, UnitKind::expert, Tier::ram), 48);
    EXPECT_EQ(homes->experts.ram_slots, 48);
    EXPECT_EQ(homes->experts.link, link_share(kRates));
    EXPECT_GE(homes->experts.wave_experts, 1);
    // Waves come first, up to the largest; from there on every byte is a slot's.
    if (homes->experts.wave_experts == 16) {
      EXPECT_GE(homes->experts.vram_slots, before);
      const bool full = vram_bytes(units, *homes, input) + slot > input.vram_bytes;
      EXPECT_TRUE(full || homes->experts.vram_slots == 48) << "room for one more";
      EXPECT_GE(predicted(units, *homes, 2), speed);
      before = homes->experts.vram_slots;
      speed = predicted(units, *homes, 2);
    }
  }
  EXPECT_EQ(before, 48);
}

TEST(Homes, ExpertsThatRamHasNoRoomForAreReadAgain) {
  const UnitTable units = mixture();
  HomesInput input = input_of(UINT64_MAX, 0);
  input.most_vram_experts = 4;
  input.ram_beside_experts_bytes = 1 << 20;
  input.ram_bytes = least_of(choose_homes(units, input, kRates).status(), "--ram");
  int before = 0;
  for (int step = 0; step < 10; ++step, input.ram_bytes += 3 * expert_slot_bytes(units)) {
    const auto homes = choose_homes(units, input, kRates);
    ASSERT_TRUE(homes.ok()) << homes.status().message();
    EXPECT_LE(ram_bytes(units, *homes, input), input.ram_bytes);
    EXPECT_GE(homes->experts.ram_slots, before);
    before = homes->experts.ram_slots;
    EXPECT_EQ(homes->experts.vram_slots, 4);
    const bool all = before == 48;
    EXPECT_EQ(count(units, *homes, UnitKind::expert, all ? Tier::ram : Tier::disk), 48);
    EXPECT_EQ(homes->experts.link.any(), all) << "the GPU reads what lies in RAM for good";
  }
  EXPECT_EQ(before, 48);
}

TEST(Homes, TheUsersNumbersOfExpertsHold) {
  const UnitTable units = mixture();
  HomesInput input = input_of(UINT64_MAX, UINT64_MAX);
  input.most_vram_experts = 0;
  input.most_ram_experts = 20;
  input.cpu_share_percent = 100;
  const auto homes = choose_homes(units, input, kRates);
  ASSERT_TRUE(homes.ok());
  EXPECT_EQ(homes->experts.vram_slots, 0);
  EXPECT_EQ(homes->experts.ram_slots, 20);
  EXPECT_LE(least_ram_experts(homes->experts.wave_experts), 20);
  input.most_ram_experts = 3;
  const auto few = choose_homes(units, input, kRates);
  ASSERT_EQ(few.status().code(), Code::out_of_budget);
  EXPECT_NE(few.status().message().find("4 are the least"), std::string::npos) << few.status().message();
  input.most_ram_experts = 0;
  EXPECT_FALSE(choose_homes(units, input, kRates)->experts.link.any()) << "all is the processor's";
}

TEST(Homes, ASavedPlanIsFollowedOrRefused) {
  const UnitTable units = dense(8);
  HomesInput input = input_of(whole_bytes(units) - 2 * device_room(units.units()[1]), UINT64_MAX);
  const auto homes = choose_homes(units, input, kRates);
  ASSERT_TRUE(homes.ok());
  const auto again = follow_homes(units, homes->placement.homes, homes->placement.ring_units, input);
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_EQ(again->placement.homes, homes->placement.homes);
  EXPECT_EQ(again->movers, homes->movers);
  EXPECT_TRUE(layers_move(units, homes->placement.homes));
  EXPECT_FALSE(experts_flow(units, homes->placement.homes));
  input.vram_taken_bytes += 1 << 28;
  const auto refused = follow_homes(units, homes->placement.homes, homes->placement.ring_units, input);
  ASSERT_EQ(refused.status().code(), Code::out_of_budget);
  input.vram_bytes = least_of(refused.status(), "--vram");
  EXPECT_TRUE(follow_homes(units, homes->placement.homes, homes->placement.ring_units, input).ok());
  std::vector<Tier> head_outside = homes->placement.homes;
  head_outside.back() = Tier::ram;
  EXPECT_EQ(follow_homes(units, head_outside, 1, input).status().code(), Code::unsupported);
}

TEST(Homes, ThePlanSaysWhatTheProcessorTakes) {
  const UnitTable units = dense(8);
  HomesInput input = input_of(whole_bytes(units) - 5 * device_room(units.units()[1]), UINT64_MAX);
  auto homes = choose_homes(units, input, kRates);
  ASSERT_TRUE(homes.ok());
  PlanOptions options;
  options.cpu_permille = 300;
  const Plan plan = plan_homes(units, *homes, options, kRates);
  EXPECT_EQ(homes->placement.host_permille, 300);
  EXPECT_EQ(plan.ring_slots, homes->placement.ring_units);
  EXPECT_EQ(plan.vram_weight_bytes + kOthers, vram_bytes(units, *homes, input));
  auto experts = choose_homes(mixture(), input_of(UINT64_MAX, UINT64_MAX), kRates);
  ASSERT_TRUE(experts.ok());
  options = {};
  options.passes.top_k = 2;
  const UnitTable of_experts = mixture();
  (void)plan_homes(of_experts, *experts, options, kRates);
  EXPECT_EQ(options.experts.vram_slots, 48);
  EXPECT_EQ(options.experts.ram_slots, 48);
}

}  // namespace
}  // namespace millrace::residency
