// Memory that gives way to others and comes back, under use.
#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <thread>

#include "device/cpu.h"
#include "residency/store_fixture.h"
#include "residency/weight_store.h"

namespace millrace::residency {
namespace {

using test::expect_exact;
using test::expert_tiles;
using test::make_test_plan;
using test::Model;
using test::pass_order;

void run_pass(WeightStore& store, const std::vector<std::int32_t>& tiles) {
  store.begin_pass();
  for (const std::int32_t tile : tiles) {
    auto lease = store.lease(tile);
    ASSERT_TRUE(lease.ok()) << lease.status().message();
    ASSERT_TRUE(lease->wait().ok());
    expect_exact(store.units(), *lease);
  }
  store.end_pass();
}

std::vector<std::int32_t> all_used_tiles(const UnitTable& units) {
  std::vector<std::int32_t> tiles = pass_order(units);
  const auto experts = expert_tiles(units);
  tiles.insert(tiles.end(), experts.begin(), experts.end());
  return tiles;
}

struct Tight {
  Model model;
  Plan plan;
  Budget budget;
  std::unique_ptr<WeightStore> store;

  Tight(const test::ModelShape& shape, int ring, int experts, int every)
      : model(shape), plan(make_test_plan(model.units, ring, experts, every)), budget(plan.weight_memory_bytes()) {
    auto made = WeightStore::create(model.units, plan, *model.backend, budget, {.poison_evicted = true});
    EXPECT_TRUE(made.ok()) << made.status().message();
    store = std::move(made).value();
  }
};

TEST(Elastic, ExpertsGiveWayFirstAndComeBack) {
  Tight t({.layers = 2, .experts = 8, .tile_bytes = 64 << 10}, 4, 10, 2);
  const auto tiles = all_used_tiles(t.model.units);
  run_pass(*t.store, tiles);
  {
    auto kv = t.budget.reserve("kv", 3 * t.plan.expert_slot_bytes);
    ASSERT_TRUE(kv.ok()) << kv.status().message();
    EXPECT_EQ(t.store->expert_slots(), 7);
    run_pass(*t.store, tiles);
    EXPECT_EQ(t.store->expert_slots(), 7);
    EXPECT_LE(t.budget.reserved_bytes(), t.budget.cap_bytes());
  }
  // Some room is left free for a while, so that givers and takers do not swing: the last slots come later.
  run_pass(*t.store, tiles);
  EXPECT_EQ(t.store->expert_slots(), 7);
  for (int pass = 0; pass < 800; ++pass) t.store->begin_pass();
  EXPECT_EQ(t.store->expert_slots(), 10);
  EXPECT_EQ(t.budget.reserved_bytes(), t.plan.weight_memory_bytes());
  run_pass(*t.store, tiles);
}

TEST(Elastic, WhatIsTakenBackLeavesRoomToBreathe) {
  Tight t({.layers = 2, .experts = 8, .tile_bytes = 64 << 10}, 4, 12, 2);
  const auto tiles = all_used_tiles(t.model.units);
  std::vector<Reservation> blocks;
  for (int i = 0; i < 8; ++i) {  // a sequence grows block by block
    auto block = t.budget.reserve("kv", t.plan.expert_slot_bytes);
    ASSERT_TRUE(block.ok());
    blocks.push_back(std::move(block).value());
    run_pass(*t.store, tiles);
  }
  EXPECT_EQ(t.store->expert_slots(), 4);
  blocks.clear();
  run_pass(*t.store, tiles);
  EXPECT_EQ(t.store->expert_slots(), 10);  // all but the two slots kept free
}

TEST(Elastic, DownToTheLeastAndNoFurther) {
  for (const int every : {0, 1, 2}) {
    Tight t({.layers = 4, .experts = 4, .tile_bytes = 20 << 10}, 5, 6, every);
    const auto tiles = all_used_tiles(t.model.units);
    run_pass(*t.store, tiles);
    const std::uint64_t before = t.budget.reserved_bytes();
    const std::uint64_t given = t.store->give_way(1ull << 40);
    EXPECT_EQ(t.budget.reserved_bytes(), before - given);
    std::uint64_t ring_slot = 0;
    for (const std::int32_t tile : pass_order(t.model.units))
      ring_slot = std::max(ring_slot, t.model.units.tiles()[tile].slot_bytes);
    EXPECT_LE(t.budget.reserved_bytes(), t.plan.row_scratch_bytes + 2 * ring_slot + t.plan.expert_slot_bytes);
    EXPECT_EQ(t.store->expert_slots(), 1);
    run_pass(*t.store, tiles);  // takes back what is free, less the room to breathe
    EXPECT_EQ(t.store->give_way(1ull << 40) + t.budget.reserved_bytes() > 0, true);
    run_pass(*t.store, tiles);
  }
}

TEST(Elastic, EverythingAtHomeStreamsAndComesHome) {
  Tight t({.layers = 6, .tile_bytes = 20 << 10}, 0, 0, 1);
  const auto tiles = pass_order(t.model.units);
  run_pass(*t.store, tiles);
  t.model.backend->forget();
  {
    auto kv = t.budget.reserve("kv", t.plan.resident_bytes / 2);
    ASSERT_TRUE(kv.ok()) << kv.status().message();
    for (int pass = 0; pass < 3; ++pass) run_pass(*t.store, tiles);
    int streamed = 0;
    for (const std::int32_t tile : tiles)
      streamed += t.model.backend->reads_of(t.model.units.tiles()[tile]) > 0 ? 1 : 0;
    EXPECT_GE(streamed, static_cast<int>(tiles.size() / 2));
    EXPECT_LT(streamed, static_cast<int>(tiles.size()));
  }
  EXPECT_LE(t.budget.reserved_bytes(), t.budget.cap_bytes());
  for (int pass = 0; pass < 2; ++pass) run_pass(*t.store, tiles);
}

TEST(Elastic, WithRoomToSpareEverythingComesHomeAndTheRingCloses) {
  Model model({.layers = 6, .tile_bytes = 20 << 10});
  const Plan plan = make_test_plan(model.units, 0, 0, 1);
  Budget budget(plan.weight_memory_bytes() * 2);
  auto made = WeightStore::create(model.units, plan, *model.backend, budget, {.poison_evicted = true});
  ASSERT_TRUE(made.ok());
  WeightStore& store = **made;
  const auto tiles = pass_order(model.units);
  run_pass(store, tiles);
  EXPECT_GT(store.give_way(plan.resident_bytes / 4), 0u);
  EXPECT_LT(budget.reserved_bytes(), plan.weight_memory_bytes());
  run_pass(store, tiles);
  EXPECT_EQ(budget.reserved_bytes(), plan.weight_memory_bytes());
  model.backend->forget();
  run_pass(store, tiles);
  run_pass(store, tiles);
  for (const std::int32_t tile : tiles) EXPECT_LE(model.backend->reads_of(model.units.tiles()[tile]), 1);
}

TEST(Elastic, AnEmbeddingAtHomeGoesFirstAndItsRowsStillCome) {
  Model model({.layers = 3, .experts = 3, .tile_bytes = 64 << 10});
  Plan plan = make_test_plan(model.units, 0, 9, 1);
  const auto range = model.units.tiles_of(0);
  std::uint64_t embedding = 0;
  for (std::int32_t tile = range.first; tile < range.last; ++tile) {
    plan.resident_tiles[tile] = true;
    embedding += model.units.tiles()[tile].slot_bytes;
  }
  plan.resident_bytes += embedding;
  Budget budget(plan.weight_memory_bytes());
  auto made = WeightStore::create(model.units, plan, *model.backend, budget, {.poison_evicted = true});
  ASSERT_TRUE(made.ok());
  WeightStore& store = **made;
  const auto check_rows = [&] {
    const std::int64_t rows[] = {0, 299, 17, 151};
    std::vector<std::byte> out(4 * 96 * 4);
    ASSERT_TRUE(store.read_rows({0, 0}, rows, out.data()).ok());
    for (std::size_t i = 0; i < out.size(); ++i) {
      const std::uint64_t row = static_cast<std::uint64_t>(rows[i / 384]);
      ASSERT_EQ(std::to_integer<std::uint8_t>(out[i]),
                test::WeightFile::byte_at(model.units.part({0, 0}).offset + row * 384 + i % 384));
    }
  };
  run_pass(store, all_used_tiles(model.units));
  ASSERT_TRUE(store.lease(range.first).ok());
  check_rows();
  EXPECT_EQ(store.give_way(embedding), embedding);
  EXPECT_EQ(store.expert_slots(), 9);
  EXPECT_FALSE(store.lease(range.first).ok());
  check_rows();
  run_pass(store, all_used_tiles(model.units));
  check_rows();
}

TEST(Elastic, ReadsAheadDoNotKeepMemoryFromOthers) {
  // The end of a pass fetches the next one's first tiles: while they are on their way somebody needs all there is.
  Tight t({.layers = 8, .tile_bytes = 20 << 10}, 12, 0, 0);
  const auto tiles = pass_order(t.model.units);
  for (int pass = 0; pass < 20; ++pass) {
    run_pass(*t.store, tiles);
    auto kv = t.budget.reserve("kv", 10 * t.plan.ring_slot_bytes);
    ASSERT_TRUE(kv.ok()) << kv.status().message();
  }
}

TEST(Elastic, LeasedTilesStay) {
  Tight t({.layers = 3, .experts = 4, .tile_bytes = 64 << 10}, 3, 5, 2);
  const auto order = pass_order(t.model.units);
  const auto experts = expert_tiles(t.model.units);
  t.store->begin_pass();
  std::vector<Lease> held;
  for (std::size_t i = 0; i < 5; ++i) held.push_back(std::move(t.store->lease(experts[i])).value());
  held.push_back(std::move(t.store->lease(order[0])).value());
  held.push_back(std::move(t.store->lease(order.back())).value());
  for (Lease& lease : held) ASSERT_TRUE(lease.wait().ok());
  t.store->give_way(1ull << 40);
  for (const Lease& lease : held) expect_exact(t.model.units, lease);
  EXPECT_EQ(t.store->expert_slots(), 5);
  held.clear();
  t.store->give_way(1ull << 40);
  EXPECT_EQ(t.store->expert_slots(), 1);
  run_pass(*t.store, all_used_tiles(t.model.units));
}

TEST(Elastic, GivenPagesLeaveTheProcess) {
  if (!test::kMeasuresMemory) GTEST_SKIP();
  Tight t({.layers = 4, .experts = 8, .dim = 1024, .expert_rows = 256, .tile_bytes = 4 << 20}, 2, 32, 1);  // 100 MB
  const auto tiles = all_used_tiles(t.model.units);
  run_pass(*t.store, tiles);
  const std::uint64_t before = device::resident_bytes();
  const std::uint64_t given = t.store->give_way(40u << 20);
  EXPECT_GE(given, 40u << 20);
  EXPECT_NEAR(static_cast<double>(before - device::resident_bytes()), static_cast<double>(given), 1e6);
}

TEST(Elastic, AnyThreadMayTakeWhilePassesRun) {
  Tight t({.layers = 4, .experts = 6, .tile_bytes = 16 << 10}, 5, 20, 2);
  const auto tiles = all_used_tiles(t.model.units);
  std::atomic<bool> stop{false};
  std::thread taker([&] {
    std::mt19937 random(3);
    std::vector<Reservation> held;
    while (!stop) {
      if (held.size() < 6) {
        auto got = t.budget.reserve("kv", random() % 200000);
        if (got.ok()) held.push_back(std::move(got).value());
      } else {
        held.clear();
      }
      (void)t.store->counters();
      (void)t.store->expert_slots();
      EXPECT_LE(t.budget.reserved_bytes(), t.budget.cap_bytes());
      std::this_thread::yield();
    }
  });
  for (int pass = 0; pass < 30; ++pass) run_pass(*t.store, tiles);
  stop = true;
  taker.join();
}

}  // namespace
}  // namespace millrace::residency
