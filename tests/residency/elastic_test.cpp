// Memory that gives way to others and comes back, under use.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <random>
#include <thread>

#include "base/bytes.h"
#include "device/cpu.h"
#include "device/host_memory.h"
#include "device/range.h"
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

/// Host memory that has to be backed, of which there is only so much.
class ScarceRange final : public device::Range {
 public:
  ScarceRange(std::uint64_t bytes, std::size_t most_granules)
      : bytes_(round_up(bytes, kGranule)), backed_(bytes_ / kGranule), most_(most_granules) {
    auto memory = device::HostBuffer::reserve(bytes_, device::Pages::normal);
    EXPECT_TRUE(memory.ok());
    memory_ = std::move(*memory);
  }
  std::byte* data() const override { return memory_.data(); }
  std::uint64_t bytes() const override { return bytes_; }
  std::uint64_t granule_bytes() const override { return kGranule; }
  std::uint64_t backed_bytes() const override { return count_ * kGranule; }
  Status back(std::uint64_t offset, std::uint64_t bytes) override {
    for (std::size_t g = offset / kGranule; g <= (offset + bytes - 1) / kGranule; ++g) {
      if (backed_[g]) continue;
      if (count_ == most_) return error(Code::out_of_budget, "the device is full");
      backed_[g] = true;
      ++count_;
    }
    return {};
  }
  void release(std::uint64_t offset, std::uint64_t bytes) override {
    ASSERT_EQ(offset % kGranule + bytes % kGranule, 0u);
    for (std::size_t g = offset / kGranule; g < (offset + bytes) / kGranule; ++g) {
      count_ -= backed_[g] ? 1 : 0;
      backed_[g] = false;
      std::fill_n(memory_.data() + g * kGranule, kGranule, std::byte{0xee});
    }
  }
  void set_most(std::size_t most) { most_ = most; }

  static constexpr std::uint64_t kGranule = 16 << 10;

 private:
  const std::uint64_t bytes_;
  device::HostBuffer memory_;
  std::vector<bool> backed_;  // by granule
  std::size_t count_ = 0, most_;
};

/// A store of experts alone over a range with room for `slots`, of which `most_granules` can be backed.
struct Ranged {
  Model model{{.layers = 2, .experts = 8, .tile_bytes = 64 << 10}};
  ScarceRange* range = nullptr;
  std::unique_ptr<WeightStore> store;

  Ranged(int slots, std::size_t most_granules) {
    StoreOptions options;
    options.experts_only = true;
    options.range = [&](std::uint64_t bytes) -> Expected<std::unique_ptr<device::Range>> {
      auto made = std::make_unique<ScarceRange>(bytes, most_granules);
      range = made.get();
      return std::unique_ptr<device::Range>(std::move(made));
    };
    store = model.store(expert_store_plan(model.units, slots), options);
  }
  std::vector<std::int32_t> tiles() const { return expert_tiles(model.units); }
};

TEST(ElasticRange, IsBackedAsSlotsAreUsedAndGivenBack) {
  Ranged t(6, SIZE_MAX);
  EXPECT_EQ(t.store->backed_bytes(), 0u);
  run_pass(*t.store, {t.tiles()[0]});
  const std::uint64_t of_one = t.store->backed_bytes();
  EXPECT_GT(of_one, 0u);
  EXPECT_LE(of_one, round_up(expert_slot_bytes(t.model.units), ScarceRange::kGranule) + ScarceRange::kGranule);
  run_pass(*t.store, t.tiles());
  const std::uint64_t of_all = t.store->backed_bytes();
  EXPECT_GE(of_all, 6 * expert_slot_bytes(t.model.units));
  auto held = t.store->lease(t.tiles()[0]);
  ASSERT_TRUE(held.ok() && held->wait().ok());
  EXPECT_GT(t.store->give_way(of_all), 0u);
  EXPECT_EQ(t.store->expert_slots(), 1);
  EXPECT_LT(t.store->backed_bytes(), of_all);
  expect_exact(t.model.units, *held);
  *held = Lease();
  ASSERT_TRUE(t.store->grow(0).ok());
  EXPECT_EQ(t.store->expert_slots(), 6);
  EXPECT_LT(t.store->backed_bytes(), of_all);
  ASSERT_TRUE(t.store->grow(of_all).ok());
  EXPECT_EQ(t.store->backed_bytes(), of_all);
  run_pass(*t.store, t.tiles());
}

TEST(ElasticRange, SlotsWithoutMemoryAreGivenUp) {
  const std::uint64_t slot = expert_slot_bytes(Model({.layers = 2, .experts = 8, .tile_bytes = 64 << 10}).units);
  const std::size_t of_three = (3 * slot + ScarceRange::kGranule - 1) / ScarceRange::kGranule;
  Ranged t(6, of_three);
  run_pass(*t.store, t.tiles());
  EXPECT_EQ(t.store->expert_slots(), 3);
  EXPECT_EQ(t.store->grow(6 * slot).code(), Code::out_of_budget);
  run_pass(*t.store, t.tiles());
  t.range->set_most(SIZE_MAX);
  ASSERT_TRUE(t.store->grow(6 * slot).ok());
  EXPECT_EQ(t.store->expert_slots(), 6);
  run_pass(*t.store, t.tiles());
}

TEST(ElasticRange, WithoutAnyMemoryTheErrorSaysSo) {
  Ranged t(4, 0);
  t.store->begin_pass();
  const auto lease = t.store->lease(t.tiles()[0]);
  ASSERT_FALSE(lease.ok());
  EXPECT_EQ(lease.status().code(), Code::out_of_budget);
  EXPECT_NE(lease.status().message().find("the device is full"), std::string::npos) << lease.status().message();
  t.range->set_most(SIZE_MAX);
  ASSERT_TRUE(t.store->grow(0).ok());
  run_pass(*t.store, t.tiles());
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
