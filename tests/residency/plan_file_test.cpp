#include "residency/plan_file.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/bytes.h"
#include "residency/store_fixture.h"

namespace millrace::residency {
namespace {

using test::make_units;
using test::ModelShape;

const Rates kSavedRates{.disk = 3e9, .ram = 40e9, .cpu_decode = 25e9, .machine = "a test"};

SavedPlan saved_of(const UnitTable& units, const Plan& plan, std::uint64_t ram) {
  SavedPlan saved;
  saved.architecture = "llama";
  saved.name = "a \"test\"";
  saved.units = static_cast<std::int64_t>(units.units().size());
  saved.tiles = static_cast<std::int64_t>(units.tiles().size());
  saved.weight_bytes = units.total_bytes();
  saved.ram_bytes = ram;
  saved.tile_bytes = 32 << 10;
  saved.context_tokens = 100;
  saved.batch_tokens = 7;
  saved.rates = kSavedRates;
  saved.decisions = {plan.ring_slots, plan.expert_slots, plan.resident_tiles};
  saved.predicted_decode_tokens_per_second = plan.predicted_decode_tokens_per_second;
  saved.bound = plan.bound;
  return saved;
}

void expect_same(const Plan& a, const Plan& b) {
  EXPECT_EQ(a.resident_tiles, b.resident_tiles);
  EXPECT_EQ(a.resident_bytes, b.resident_bytes);
  EXPECT_EQ(a.ring_slots, b.ring_slots);
  EXPECT_EQ(a.ring_slot_bytes, b.ring_slot_bytes);
  EXPECT_EQ(a.expert_slots, b.expert_slots);
  EXPECT_EQ(a.weight_memory_bytes(), b.weight_memory_bytes());
  EXPECT_EQ(a.predicted_decode_tokens_per_second, b.predicted_decode_tokens_per_second);
  EXPECT_EQ(a.bound, b.bound);
  ASSERT_EQ(a.homes.size(), b.homes.size());
  for (std::size_t u = 0; u < a.homes.size(); ++u) EXPECT_EQ(a.homes[u], b.homes[u]);
}

const std::vector<ModelShape>& shapes() {
  static const std::vector<ModelShape> all = {{.layers = 6}, {.layers = 6, .tied = true}, {.layers = 4, .experts = 8}};
  return all;
}

TEST(PlanFile, APlanThatIsReadAgainIsThePlanThatWasMade) {
  for (const ModelShape& shape : shapes()) {
    std::uint64_t file_bytes = 0;
    const UnitTable units = make_units(shape, &file_bytes);
    for (const double share : {0.4, 0.7, 1.5}) {
      PlanOptions options{.fixed_bytes = 100'000};
      options.passes.top_k = shape.experts > 0 ? 2 : 0;
      options.ram_bytes = 300'000 + static_cast<std::uint64_t>(share * static_cast<double>(units.total_bytes()));
      const auto plan = make_plan(units, options, kSavedRates);
      ASSERT_TRUE(plan.ok()) << plan.status().message();
      const SavedPlan saved = saved_of(units, *plan, options.ram_bytes);
      const auto read = parse_plan_json(plan_to_json(saved));
      ASSERT_TRUE(read.ok()) << read.status().message();
      EXPECT_TRUE(check_model(*read, units).ok());
      EXPECT_EQ(read->name, saved.name);
      EXPECT_EQ(read->ram_bytes, saved.ram_bytes);
      EXPECT_EQ(read->context_tokens, saved.context_tokens);
      EXPECT_EQ(read->rates.disk, kSavedRates.disk);
      const auto followed = follow_plan(units, read->decisions, options, read->rates);
      ASSERT_TRUE(followed.ok()) << followed.status().message();
      EXPECT_EQ(followed->gave_way_bytes, 0u);
      expect_same(*plan, followed->plan);
    }
  }
}

TEST(PlanFile, WithLessMemoryThanThenHomesGiveWayAndTheCapHolds) {
  for (const ModelShape& shape : shapes()) {
    std::uint64_t file_bytes = 0;
    const UnitTable units = make_units(shape, &file_bytes);
    PlanOptions options{.ram_bytes = units.total_bytes() * 2};
    options.passes.top_k = shape.experts > 0 ? 2 : 0;
    const auto all = make_plan(units, options, kSavedRates);
    ASSERT_TRUE(all.ok());
    const Decisions decisions{all->ring_slots, all->expert_slots, all->resident_tiles};
    std::uint64_t gave_way = 0;
    for (options.ram_bytes = units.total_bytes(); options.ram_bytes > 50'000; options.ram_bytes -= 40'000) {
      const auto followed = follow_plan(units, decisions, options, kSavedRates);
      if (!followed.ok()) {
        EXPECT_EQ(followed.status().code(), Code::out_of_budget);
        EXPECT_FALSE(make_plan(units, options, kSavedRates).ok() && shape.experts == 0) << options.ram_bytes;
        break;
      }
      EXPECT_LE(followed->plan.weight_memory_bytes(), options.ram_bytes);
      EXPECT_GE(followed->gave_way_bytes, gave_way);
      gave_way = followed->gave_way_bytes;
      if (gave_way > 0 && shape.experts == 0 && !shape.tied) {
        EXPECT_TRUE(followed->plan.ring_slots >= 2 || followed->plan.homes.front() == Tier::disk);
      }
    }
    EXPECT_GT(gave_way, 0u);
  }
}

TEST(PlanFile, WhatIsOffIsNamed) {
  std::uint64_t file_bytes = 0;
  const UnitTable units = make_units({.layers = 3}, &file_bytes);
  PlanOptions options{.ram_bytes = units.total_bytes() * 2};
  const auto plan = make_plan(units, options, kSavedRates);
  ASSERT_TRUE(plan.ok());
  const SavedPlan saved = saved_of(units, *plan, options.ram_bytes);
  const std::string json = plan_to_json(saved);
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = json;
    const auto at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return parse_plan_json(text.replace(at, from.size(), to)).status().message();
  };
  EXPECT_NE(parse_plan_json("").status().message().find("not a plan"), std::string::npos);
  EXPECT_NE(parse_plan_json("{}").status().message().find("not a plan"), std::string::npos);
  for (const char* version : {"1", "3", "\"2\"", "null"})
    EXPECT_NE(with("\"millrace_plan\": 2", std::string("\"millrace_plan\": ") + version).find("reads version 2"),
              std::string::npos)
        << version;
  EXPECT_NE(with("\"batch_tokens\": 7", "\"batch_tokens\": -7").find("batch_tokens"), std::string::npos);
  EXPECT_NE(with("\"batch_tokens\": 7", "\"batch_tokens\": 1e3").find("batch_tokens"), std::string::npos);
  EXPECT_NE(with("\"tiles_in_ram\": \"0", "\"tiles_in_ram\": \"x").find("tiles_in_ram"), std::string::npos);
  EXPECT_NE(with("\"tiles_in_ram\": \"0", "\"tiles_in_ram\": \"9-1,0").find("tiles_in_ram"), std::string::npos);
  EXPECT_NE(with("\"tiles_in_ram\": \"0", "\"tiles_in_ram\": \"0-99999999999,0").find("tiles_in_ram"),
            std::string::npos);
  EXPECT_NE(with("\"device\": \"cpu\"", "\"device\": \"cuda\"").find("vram_bytes"), std::string::npos);
  EXPECT_NE(with("\"disk\": 3000000000.0", "\"disk\": -1").find("disk"), std::string::npos);

  std::uint64_t other_bytes = 0;
  EXPECT_NE(check_model(saved, make_units({.layers = 4}, &other_bytes)).message().find("another model"),
            std::string::npos);
  Decisions bad = saved.decisions;
  bad.resident_tiles.assign(bad.resident_tiles.size(), false);
  EXPECT_EQ(follow_plan(units, bad, options, kSavedRates).status().code(),
            Code::invalid_argument);  // no ring to stream by
  bad.resident_tiles.pop_back();
  EXPECT_EQ(follow_plan(units, bad, options, kSavedRates).status().code(), Code::invalid_argument);
  bad = saved.decisions;
  bad.expert_slots = 5;
  EXPECT_EQ(follow_plan(units, bad, options, kSavedRates).status().code(), Code::invalid_argument);
}

TEST(PlanFile, HomesOfAGpuPlanComeBack) {
  SavedPlan saved;
  saved.units = 6;
  saved.tiles = 9;
  saved.gpu = true;
  saved.ram_bytes = 5;
  saved.vram_bytes = 7;
  saved.decisions.cpu_permille = 661;
  saved.tile_bytes = saved.context_tokens = saved.batch_tokens = 1;
  saved.homes = {Tier::ram, Tier::vram, Tier::vram, Tier::disk, Tier::vram, Tier::ram};
  const std::string json = plan_to_json(saved);
  const auto read = parse_plan_json(json);
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(read->homes, saved.homes);
  EXPECT_EQ(read->vram_bytes, 7u);
  EXPECT_EQ(read->decisions.cpu_permille, 661);
  std::string twice = json;
  const std::string from = "\"disk\": \"3\"";
  const auto at = twice.find(from);
  ASSERT_NE(at, std::string::npos);
  EXPECT_NE(parse_plan_json(twice.replace(at, from.size(), "\"disk\": \"2-3\"")).status().message().find("unit 2"),
            std::string::npos);
}

TEST(PlanFile, AFileThatNestsDeeplyIsNoPlan) {
  const std::string deep = std::string(100'000, '[') + std::string(100'000, ']');
  EXPECT_EQ(parse_plan_json("{\"millrace_plan\":2,\"tiles\":" + deep + "}").status().code(), Code::invalid_argument);
}

TEST(PlanFile, FilesThatCannotBeReadOrWrittenAreNamed) {
  EXPECT_EQ(read_plan_file("/nowhere/plan.json").status().code(), Code::not_found);
  EXPECT_EQ(write_plan_file("/nowhere/plan.json", {}).code(), Code::io_error);
  const auto path = std::filesystem::temp_directory_path() / fmt::format("millrace-plan-{}.json", getpid());
  std::ofstream(path) << "[1";
  EXPECT_NE(read_plan_file(path.string()).status().message().find(path.string()), std::string::npos);
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace millrace::residency
