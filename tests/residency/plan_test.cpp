#include "residency/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "base/bytes.h"
#include "residency/store_fixture.h"

namespace millrace::residency {
namespace {

using test::expert_tiles;
using test::make_units;
using test::ModelShape;
using test::pass_order;

const Rates kPlanRates{.disk = 3e9, .ram = 40e9, .cpu_decode = 25e9, .machine = "a test"};

std::vector<ModelShape> shapes() {
  return {
      {.layers = 6, .tile_bytes = 32 << 10},
      {.layers = 6, .tied = true, .tile_bytes = 20 << 10},
      {.layers = 6, .tied = true, .layer_rows = 700, .tile_bytes = 20 << 10},
      {.layers = 4, .experts = 8, .tile_bytes = 64 << 10},
      {.layers = 4, .experts = 8, .tied = true, .tile_bytes = 16 << 10},
      {.layers = 5, .dim = 1024, .trunk_rows = 4096, .vocab = 4096, .tile_bytes = 4 << 20},  // 290 MB
      {.layers = 4, .experts = 16, .dim = 1024, .trunk_rows = 512, .expert_rows = 512, .tile_bytes = 8 << 20},
  };
}

int top_k_of(const ModelShape& shape) { return shape.experts > 0 ? 2 : 0; }

std::uint64_t smallest_named(const Status& status) {
  const std::string key = "--ram ";
  const auto at = status.message().rfind(key);
  if (at == std::string::npos) return 0;
  const auto parsed = parse_bytes(status.message().substr(at + key.size()));
  return parsed.ok() ? *parsed : 0;
}

/// What any plan must keep.
void check_plan(const UnitTable& units, const Plan& plan, const PlanOptions& options) {
  EXPECT_LE(plan.weight_memory_bytes() + options.fixed_bytes + options.kv_bytes, options.ram_bytes);
  ASSERT_EQ(plan.homes.size(), units.units().size());
  ASSERT_EQ(plan.resident_tiles.size(), units.tiles().size());
  std::uint64_t resident = 0;
  for (std::size_t t = 0; t < units.tiles().size(); ++t) {
    const Tile& tile = units.tiles()[t];
    const Unit& unit = units.units()[tile.unit];
    if (plan.resident_tiles[t]) {
      resident += tile.slot_bytes;
    } else if (unit.kind == UnitKind::expert) {
      EXPECT_GE(plan.expert_slots, 1);
      EXPECT_GE(plan.expert_slot_bytes, tile.slot_bytes);
    } else if (!unit.by_rows) {
      EXPECT_GE(plan.ring_slots, 2);
      EXPECT_GE(plan.ring_slot_bytes, tile.slot_bytes);
    } else {
      EXPECT_TRUE(plan.embedding_rows_from_disk);
      EXPECT_GT(plan.row_scratch_bytes, 0u);
    }
  }
  EXPECT_EQ(resident, plan.resident_bytes);
  std::uint64_t listed = 0;
  for (const Plan::Row& row : plan.rows)
    if (row.what != "experts, cache") listed += row.bytes;
  EXPECT_EQ(listed, units.total_bytes());
}

TEST(Plan, EveryBudgetFromLeastToAllIsKeptAndMoreIsNeverSlower) {
  for (const ModelShape& shape : shapes()) {
    std::uint64_t file_bytes = 0;
    const UnitTable units = make_units(shape, &file_bytes);
    PlanOptions options{.ram_bytes = 1, .fixed_bytes = 1234567, .kv_bytes = 51200, .context_tokens = 100};
    options.passes.top_k = top_k_of(shape);
    const auto refused = make_plan(units, options, kPlanRates);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.status().code(), Code::out_of_budget);
    const std::uint64_t least = smallest_named(refused.status());
    ASSERT_GT(least, 0u) << refused.status().message();
    const std::uint64_t most = units.total_bytes() + units.tiles().size() * 16384 + 10 * kMiB;
    double speed = 0;
    for (int step = 0; step <= 150; ++step) {
      options.ram_bytes = least + (most - least) * static_cast<std::uint64_t>(step) / 150;
      const auto plan = make_plan(units, options, kPlanRates);
      ASSERT_TRUE(plan.ok()) << plan.status().message();
      check_plan(units, *plan, options);
      EXPECT_GE(plan->predicted_decode_tokens_per_second, speed * (1 - 1e-12)) << "at " << options.ram_bytes;
      speed = plan->predicted_decode_tokens_per_second;
      EXPECT_NE(render_plan(*plan, options, kPlanRates), "");
    }
    // At the end nothing is left on disk.
    options.ram_bytes = most;
    const auto plan = make_plan(units, options, kPlanRates);
    for (const Tier home : plan->homes) EXPECT_EQ(home, Tier::ram);
    EXPECT_EQ(plan->ring_slots, 0);
    EXPECT_EQ(plan->expert_slots, static_cast<int>(expert_tiles(units).size()));
  }
}

/// What a drafter computes with is at home as a whole, and the rest is planned as well as ever; or there is none of it.
TEST(Plan, TheFrontIsAtHomeOrThereIsNone) {
  for (const ModelShape& shape : shapes()) {
    std::uint64_t file_bytes = 0;
    const UnitTable units = make_units(shape, &file_bytes);
    PlanOptions options{.ram_bytes = 1, .fixed_bytes = 300000};
    options.passes.top_k = top_k_of(shape);
    const std::uint64_t least = smallest_named(make_plan(units, options, kPlanRates).status());
    const std::uint64_t most = units.total_bytes() + units.tiles().size() * 16384 + 10 * kMiB;
    int before = 0, automatic_before = 0;
    for (int step = 0; step <= 40; ++step) {
      options.ram_bytes = least + (most - least) * static_cast<std::uint64_t>(step) / 40;
      for (const int wanted : {2, kFrontOfPlan}) {
        options.front_layers = wanted;
        const auto plan = make_plan(units, options, kPlanRates);
        ASSERT_TRUE(plan.ok()) << plan.status().message();
        check_plan(units, *plan, options);
        for (std::size_t u = 0; u < units.units().size(); ++u)
          if (in_front(units.units()[u], plan->front_layers)) {
            EXPECT_EQ(plan->homes[u], Tier::ram) << u;
          }
        EXPECT_LT(plan->front_layers, shape.layers);
        if (wanted > 0) {
          EXPECT_TRUE(plan->front_layers == 0 || plan->front_layers == wanted);
          EXPECT_GE(plan->front_layers, before) << "more memory takes no layer away";
          before = plan->front_layers;
        } else if (plan->front_layers > 0) {
          automatic_before = plan->front_layers;
        }
      }
    }
    EXPECT_EQ(before, 2);
    EXPECT_GT(automatic_before, 0) << "somewhere between";
    options.front_layers = kFrontOfPlan;
    EXPECT_EQ(make_plan(units, options, kPlanRates)->front_layers, 0) << "where nothing streams, nobody needs it";
  }
}

/// It stays there when all others give way.
TEST(Plan, TheFrontNeverGivesWay) {
  for (const ModelShape& shape :
       {ModelShape{.layers = 6, .experts = 3, .tile_bytes = 16 << 10}, ModelShape{.layers = 6, .tied = true}}) {
    test::Model model(shape);
    PlanOptions options{.ram_bytes = 1};
    options.passes.top_k = top_k_of(shape);
    options.ram_bytes = smallest_named(make_plan(model.units, options, {}).status()) + model.units.total_bytes() / 2;
    options.front_layers = 2;
    const auto plan = make_plan(model.units, options, {});
    ASSERT_TRUE(plan.ok());
    ASSERT_EQ(plan->front_layers, 2);
    Budget budget(options.ram_bytes);
    const auto store = WeightStore::create(model.units, *plan, *model.backend, budget, {.poison_evicted = true});
    ASSERT_TRUE(store.ok());
    const auto lease_front = [&] {
      for (std::size_t t = 0; t < model.units.tiles().size(); ++t) {
        if (!in_front(model.units.units()[static_cast<std::size_t>(model.units.tiles()[t].unit)], 2)) continue;
        auto lease = (*store)->lease(static_cast<std::int32_t>(t));
        ASSERT_TRUE(lease.ok() && lease->wait().ok());
      }
    };
    (*store)->begin_pass();
    lease_front();
    (*store)->end_pass();
    EXPECT_GT((*store)->give_way(model.units.total_bytes()), 0u);
    for (std::size_t t = 0; t < model.units.tiles().size(); ++t)
      if (in_front(model.units.units()[static_cast<std::size_t>(model.units.tiles()[t].unit)], 2)) {
        EXPECT_TRUE((*store)->present(static_cast<std::int32_t>(t))) << t;
      }
    lease_front();
  }
}

TEST(Plan, TheSmallestNamedIsTheSmallest) {
  for (const ModelShape& shape : shapes()) {
    std::uint64_t file_bytes = 0;
    const UnitTable units = make_units(shape, &file_bytes);
    PlanOptions options{.ram_bytes = 0, .fixed_bytes = 300000};
    options.passes.top_k = top_k_of(shape);
    const std::uint64_t named = smallest_named(make_plan(units, options, {}).status());
    options.ram_bytes = named;
    EXPECT_TRUE(make_plan(units, options, {}).ok());
    // Rounded up by less than a step of what people type (100 kB, from 100 MB on 1 MB).
    const std::uint64_t step = named >= 100000000 ? 1000000 : 100000;
    options.ram_bytes = named - step;
    const auto refused = make_plan(units, options, {});
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(smallest_named(refused.status()), named) << refused.status().message();
  }
}

TEST(Plan, TheLeastPlanRuns) {
  for (const ModelShape& shape :
       {ModelShape{.layers = 3, .experts = 3, .tile_bytes = 16 << 10}, ModelShape{.layers = 3}}) {
    test::Model model(shape);
    PlanOptions options{.ram_bytes = 0};
    options.passes.top_k = top_k_of(shape);
    options.ram_bytes = smallest_named(make_plan(model.units, options, {}).status());
    const auto plan = make_plan(model.units, options, {});
    ASSERT_TRUE(plan.ok());
    Budget budget(options.ram_bytes);
    auto store = WeightStore::create(model.units, *plan, *model.backend, budget, {.poison_evicted = true});
    ASSERT_TRUE(store.ok()) << store.status().message();
    for (int pass = 0; pass < 2; ++pass) {
      (*store)->begin_pass();
      for (std::size_t t = 0; t < model.units.tiles().size(); ++t) {
        const UnitKind kind = model.units.units()[model.units.tiles()[t].unit].kind;
        if (kind == UnitKind::embedding) continue;
        auto lease = (*store)->lease(static_cast<std::int32_t>(t));
        ASSERT_TRUE(lease.ok()) << lease.status().message();
        ASSERT_TRUE(lease->wait().ok());
        test::expect_exact(model.units, *lease);
      }
      (*store)->end_pass();
    }
  }
}

TEST(Plan, TheStoreTakesWhatThePlanSays) {
  const ModelShape shape{.layers = 5, .dim = 1024, .trunk_rows = 2048, .vocab = 2048, .tile_bytes = 2 << 20};
  test::Model model(shape);  // 150 MB: huge pages
  for (const std::uint64_t ram : {30000000ull, 70000000ull, 99999999ull, 141234567ull, 400000000ull}) {
    PlanOptions options{.ram_bytes = ram};
    const auto plan = make_plan(model.units, options, kPlanRates);
    ASSERT_TRUE(plan.ok());
    Budget budget(ram);
    auto store = WeightStore::create(model.units, *plan, *model.backend, budget, {});
    ASSERT_TRUE(store.ok()) << store.status().message();
    EXPECT_LE(budget.reserved_bytes(), plan->weight_memory_bytes());
    EXPECT_GE(budget.reserved_bytes() + 2 * kMiB, plan->weight_memory_bytes());
  }
}

TEST(Plan, TrunksComeBeforeExpertsAndTheEmbeddingLast) {
  std::uint64_t file_bytes = 0;
  const UnitTable units = make_units({.layers = 4, .experts = 8, .tile_bytes = 64 << 10}, &file_bytes);
  std::uint64_t ordered = 0, experts = 0;
  for (const std::int32_t t : pass_order(units)) ordered += units.tiles()[t].slot_bytes;
  for (const std::int32_t t : expert_tiles(units)) experts = std::max(experts, units.tiles()[t].slot_bytes);
  PlanOptions options{.ram_bytes = ordered + 12 * experts + 64 * kKiB};
  options.passes.top_k = 2;
  const auto plan = make_plan(units, options, kPlanRates);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->ring_slots, 0);
  EXPECT_EQ(plan->expert_slots, 12);
  EXPECT_TRUE(plan->embedding_rows_from_disk);
  EXPECT_EQ(plan->homes[0], Tier::disk);
  EXPECT_DOUBLE_EQ(plan->predicted_hit_rate, 12.0 / 32);
}

TEST(Plan, TheEmbeddingIsAtHomeAsFarAsThereIsRoom) {
  std::uint64_t file_bytes = 0;
  const UnitTable units = make_units({.layers = 4, .vocab = 1000, .tile_bytes = 32 << 10}, &file_bytes);
  std::uint64_t ordered = 0;
  for (const std::int32_t t : pass_order(units)) ordered += units.tiles()[static_cast<std::size_t>(t)].slot_bytes;
  const auto range = units.tiles_of(0);
  const std::int32_t tiles = range.last - range.first;
  ASSERT_GT(tiles, 6);
  std::uint64_t room = ordered + 64 * kKiB;
  for (std::int32_t there = 0; there <= tiles; ++there) {
    const auto plan = make_plan(units, {.ram_bytes = room + (there < tiles ? 4096 : 0)}, kPlanRates);
    ASSERT_TRUE(plan.ok());
    EXPECT_EQ(plan->ring_slots, 0) << there;
    EXPECT_EQ(plan->homes[0], there == tiles ? Tier::ram : Tier::disk) << there;
    EXPECT_EQ(std::count(plan->resident_tiles.begin() + range.first, plan->resident_tiles.begin() + range.last, true),
              there);
    double rows = 0;
    for (const Plan::Row& row : plan->rows)
      if (row.what.starts_with("embedding")) rows += row.bytes_per_token;
    EXPECT_NEAR(rows, 96 * 4, 1e-6) << "a token's row, here or there";
    if (there < tiles) room += units.tiles()[static_cast<std::size_t>(range.first + there)].slot_bytes;
  }
}

TEST(Plan, HomesAreSpreadOverThePass) {
  std::uint64_t file_bytes = 0;
  const UnitTable units = make_units({.layers = 40, .trunk_rows = 500, .tile_bytes = 32 << 10}, &file_bytes);
  PlanOptions options{.ram_bytes = units.total_bytes() / 2};
  const auto plan = make_plan(units, options, kPlanRates);
  ASSERT_TRUE(plan.ok());
  // No long run of tiles at home, in which the disk would have nothing to do once the ring is full.
  std::size_t run = 0, longest = 0;
  std::uint64_t home = 0;
  for (const std::int32_t t : pass_order(units)) {
    run = plan->resident_tiles[t] ? run + 1 : 0;
    longest = std::max(longest, run);
    home += plan->resident_tiles[t] ? units.tiles()[t].bytes : 0;
  }
  EXPECT_LE(longest, 4u);
  EXPECT_GE(home, units.total_bytes() / 4);
}

TEST(Plan, PredictsFromTheRates) {
  std::uint64_t file_bytes = 0;
  const UnitTable units =
      make_units({.layers = 5, .dim = 1024, .trunk_rows = 4096, .vocab = 4096, .tile_bytes = 4 << 20}, &file_bytes);
  double ordered = 0;
  for (const std::int32_t t : pass_order(units)) ordered += static_cast<double>(units.tiles()[t].bytes);
  PlanOptions options{.ram_bytes = 1ull << 40};
  auto plan = make_plan(units, options, kPlanRates);
  EXPECT_NEAR(plan->predicted_decode_tokens_per_second, 25e9 / ordered, 1e-6);
  EXPECT_EQ(plan->bound, "compute");
  options.ram_bytes = 100000000;
  plan = make_plan(units, options, kPlanRates);
  EXPECT_EQ(plan->bound, "disk");
  double from_disk = 0;
  for (const Plan::Row& row : plan->rows)
    if (row.tier == "disk") from_disk += row.bytes_per_token;
  EXPECT_GT(from_disk, ordered - 100e6);
  EXPECT_NEAR(plan->predicted_decode_tokens_per_second, 3e9 / from_disk, 0.1 * 3e9 / from_disk);
  // Twice the disk, almost twice the speed; without rates no number at all.
  Rates faster = kPlanRates;
  faster.disk *= 2;
  EXPECT_GT(make_plan(units, options, faster)->predicted_decode_tokens_per_second,
            1.8 * plan->predicted_decode_tokens_per_second);
  plan = make_plan(units, options, {});
  EXPECT_EQ(plan->predicted_decode_tokens_per_second, 0);
  EXPECT_NE(render_plan(*plan, options, {}).find("millrace calibrate"), std::string::npos);
}

TEST(Plan, ExpertSlotsCanBeLimited) {
  std::uint64_t file_bytes = 0;
  const UnitTable units = make_units({.layers = 4, .experts = 8, .tile_bytes = 64 << 10}, &file_bytes);
  PlanOptions options{.ram_bytes = 1ull << 40};
  options.passes.top_k = 2;
  const int all = make_plan(units, options, kPlanRates)->expert_slots;
  for (const int limit : {1, 3, all - 1, all + 5}) {
    options.experts.most_slots = limit;
    const auto plan = make_plan(units, options, kPlanRates);
    EXPECT_EQ(plan->expert_slots, std::min(limit, all));
    EXPECT_EQ(plan->predicted_hit_rate < 1, limit < all);
    for (std::size_t u = 0; u < units.units().size(); ++u) {
      if (units.units()[u].kind != UnitKind::expert) continue;
      EXPECT_EQ(plan->homes[u], limit < all ? Tier::disk : Tier::ram);
    }
  }
}

TEST(Plan, FavouritesAreFoundMoreOften) {
  std::uint64_t file_bytes = 0;
  const UnitTable units = make_units({.layers = 4, .experts = 32, .tile_bytes = 64 << 10}, &file_bytes);
  PlanOptions options{.ram_bytes = 1ull << 40};
  options.passes.top_k = 4;
  double before = 0, speed = 0;
  for (const double skew : {0.0, 0.5, 1.0, 2.0, 8.0}) {
    options.experts.most_slots = 64;
    options.experts.routing.skew = skew;
    const auto plan = make_plan(units, options, kPlanRates);
    EXPECT_EQ(plan->predicted_hit_rate == 0.5, skew == 0) << plan->predicted_hit_rate;
    EXPECT_GT(plan->predicted_hit_rate, before);
    EXPECT_GT(plan->predicted_decode_tokens_per_second, speed);
    EXPECT_LT(plan->predicted_hit_rate, 1) << "half of them have no slot";
    EXPECT_NE(render_plan(*plan, options, kPlanRates).find(skew > 0 ? "zipf" : "uniform"), std::string::npos);
    before = plan->predicted_hit_rate;
    speed = plan->predicted_decode_tokens_per_second;
  }
}

TEST(Plan, CountsWhatStepsTake) {
  std::uint64_t file_bytes = 0;
  const UnitTable units = make_units({.layers = 4}, &file_bytes);
  PlanOptions options;
  Rates rates = kPlanRates;
  const double bare = 1 / make_plan(units, options, rates)->predicted_decode_tokens_per_second;
  options.passes.steps = {.steps = 60, .products = 25};
  rates.cpu_product = 3e-6;
  const double whole = 1 / make_plan(units, options, rates)->predicted_decode_tokens_per_second;
  EXPECT_NEAR(whole - bare, 60e-6 + 25 * 3e-6, 1e-9);
}

TEST(Plan, ReadsLikeATable) {
  std::uint64_t file_bytes = 0;
  const UnitTable units = make_units({.layers = 4, .experts = 8, .tile_bytes = 64 << 10}, &file_bytes);
  PlanOptions options{.ram_bytes = 1500000, .fixed_bytes = 300000, .kv_bytes = 12800, .context_tokens = 128};
  options.passes.top_k = 2;
  const auto plan = make_plan(units, options, kPlanRates);
  ASSERT_TRUE(plan.ok());
  const std::string text = render_plan(*plan, options, kPlanRates);
  EXPECT_NE(text.find("tier  what"), std::string::npos) << text;
  for (const char* word :
       {"trunks", "experts, cache", "experts, misses", "head", "tok/s", "KV 12.8 kB", "1.50 MB free"})
    EXPECT_NE(text.find(word), std::string::npos) << word << "\n" << text;
  std::size_t begin = 0;
  for (std::size_t end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1)
    EXPECT_LE(end - begin, 160u) << text;
}

TEST(Rates, SurviveTheirJson) {
  const Rates rates{.disk = 3.25e9,
                    .disk_latency = 8e-5,
                    .directstorage = 3.25e9,
                    .ram = 41e9,
                    .cpu_decode = 24.5e9,
                    .host_to_device = 55e9,
                    .host_to_device_busy = 44e9,
                    .cpu_decode_busy = 20e9,
                    .device_memory = 4.1e12,
                    .cpu_prefill_macs = 1.5e11,
                    .device_prefill_macs = 2.5e14,
                    .cpu_product = 4e-6,
                    .cpu_few_macs = 4e11,
                    .cpu_rows_macs = 3e11,
                    .machine = "a CPU \"quoted\" \xff",
                    .types = {{DType::f16, 1e9, 2e9, 3e9}, {DType::iq2_xxs, 4e9, 5e9, 0}}};
  const auto parsed = parse_rates_json(rates_to_json(rates));
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  EXPECT_EQ(parsed->disk, rates.disk);
  EXPECT_EQ(parsed->disk_latency, rates.disk_latency);
  EXPECT_EQ(parsed->directstorage, rates.directstorage);
  Rates elsewhere = rates;
  elsewhere.directstorage = 0;
  EXPECT_EQ(rates_to_json(elsewhere).find("directstorage"), std::string::npos);
  EXPECT_EQ(parsed->cpu_prefill_macs, rates.cpu_prefill_macs);
  EXPECT_EQ(parsed->cpu_product, rates.cpu_product);
  EXPECT_EQ(parsed->cpu_few_macs, rates.cpu_few_macs);
  EXPECT_EQ(parsed->cpu_rows_macs, rates.cpu_rows_macs);
  EXPECT_EQ(parsed->types, rates.types);
  EXPECT_EQ(parsed->machine.rfind("a CPU \"quoted\"", 0), 0u);
  const auto partial = parse_rates_json(R"({"disk": 7e9, "unknown": 1})");
  ASSERT_TRUE(partial.ok());
  EXPECT_EQ(partial->disk, 7e9);
  EXPECT_EQ(partial->ram, 0);
  const auto newer = parse_rates_json(R"({"types": {"Q9_9": {"decode": "?"}, "F16": {"decode": 5, "later": "x"}}})");
  ASSERT_TRUE(newer.ok()) << "a later version may know more types, and more of each";
  ASSERT_EQ(newer->types.size(), 1u);
  EXPECT_EQ(newer->types.front().decode, 5);
  for (const char* bad : {"", "[]", "{", R"({"disk": -1})", R"({"disk": "fast"})", R"({"ram": 1e999})",
                          R"({"types": []})", R"({"types": {"F16": {"decode": -1}}})"})
    EXPECT_FALSE(parse_rates_json(bad).ok()) << bad;
}

}  // namespace
}  // namespace millrace::residency
