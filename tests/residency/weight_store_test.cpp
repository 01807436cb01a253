#include "residency/weight_store.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <set>
#include <thread>

#include "device/cpu.h"
#include "residency/store_fixture.h"
#include "storage/fault_injection.h"

namespace millrace::residency {
namespace {

using test::expect_exact;
using test::expert_tiles;
using test::GatedBackend;
using test::make_test_plan;
using test::Model;
using test::ModelShape;
using test::pass_order;

/// A pass as a dense model makes it: each ordered tile once.
void run_pass(WeightStore& store, const std::vector<std::int32_t>& order, bool check_bytes = true) {
  store.begin_pass();
  for (const std::int32_t tile : order) {
    auto lease = store.lease(tile);
    ASSERT_TRUE(lease.ok()) << lease.status().message();
    const Status status = lease->wait();
    ASSERT_TRUE(status.ok()) << status.message();
    if (check_bytes) expect_exact(store.units(), *lease);
  }
  store.end_pass();
}

TEST(WeightStore, ExactBytesForEveryPlan) {
  for (const bool tied : {false, true}) {
    Model model({.layers = 3, .tied = tied, .tile_bytes = 20 << 10});
    const auto order = pass_order(model.units);
    for (const int ring : {2, 3, 7}) {
      for (const int every : {0, 1, 2, 5}) {
        const auto store = model.store(make_test_plan(model.units, ring, 0, every), {.poison_evicted = true});
        for (int pass = 0; pass < 3; ++pass) run_pass(*store, order);
      }
    }
  }
}

TEST(WeightStore, ExactBytesFromEveryBackend) {
  for (const auto kind : {storage::BackendKind::pread_buffered, storage::BackendKind::pread_direct,
                          storage::BackendKind::io_uring, storage::BackendKind::mmap}) {
    SCOPED_TRACE(storage::backend_name(kind));
    Model model({.layers = 3, .experts = 5, .tile_bytes = 64 << 10}, kind);
    if (model.backend == nullptr) continue;  // this machine does not have it, and said so
    const auto store = model.store(make_test_plan(model.units, 2, 3, 0));
    const auto order = pass_order(model.units);
    for (int pass = 0; pass < 2; ++pass) run_pass(*store, order);
    for (const std::int32_t tile : expert_tiles(model.units)) {
      auto lease = store->lease(tile);
      ASSERT_TRUE(lease.ok());
      ASSERT_TRUE(lease->wait().ok());
      expect_exact(model.units, *lease);
    }
    const bool mapped = kind == storage::BackendKind::mmap;
    EXPECT_EQ(model.budget.reserved_bytes() == 0, mapped);
    EXPECT_EQ(store->counters().bytes_from_disk == 0, mapped);
  }
}

TEST(WeightStore, NothingIsReadTwiceInAPassAndNoPassStartsByWaiting) {
  Model model({.layers = 6});
  const auto order = pass_order(model.units);
  for (const int ring : {2, 4, 9}) {
    const auto store = model.store(make_test_plan(model.units, ring, 0, 3));
    model.backend->forget();
    run_pass(*store, order, false);
    for (int pass = 2; pass <= 5; ++pass) {
      // The first streamed tiles were fetched at the end of the pass before.
      int streamed = 0;
      for (const std::int32_t tile : order) {
        const bool resident = (std::find(order.begin(), order.end(), tile) - order.begin()) % 3 == 0;
        if (!resident) ++streamed;
        if (resident || streamed > ring - 1) continue;
        EXPECT_GE(model.backend->reads_of(model.units.tiles()[tile]), pass);
      }
      run_pass(*store, order, false);
      for (std::size_t i = 0; i < order.size(); ++i) {
        const int reads = model.backend->reads_of(model.units.tiles()[order[i]]);
        if (i % 3 == 0) {
          EXPECT_EQ(reads, 1) << i;
        } else {
          EXPECT_GE(reads, std::min(pass, 2)) << i;
          EXPECT_LE(reads, pass + 1) << i;
        }
      }
    }
  }
}

TEST(WeightStore, AWholeModelIsReadOnce) {
  Model model({.layers = 3, .experts = 4, .tile_bytes = 64 << 10});
  const auto experts = expert_tiles(model.units);
  const auto store = model.store(make_test_plan(model.units, 0, static_cast<int>(experts.size()), 1));
  for (int pass = 0; pass < 4; ++pass) {
    run_pass(*store, pass_order(model.units), false);
    for (const std::int32_t tile : experts) {
      auto lease = store->lease(tile);
      ASSERT_TRUE(lease->wait().ok());
    }
  }
  for (const Tile& tile : model.units.tiles()) EXPECT_LE(model.backend->reads_of(tile), 1);
  EXPECT_EQ(store->counters().evictions, 0u);
}

TEST(WeightStore, TheRingRunsAheadInPassOrder) {
  Model model({.layers = 4});
  const auto order = pass_order(model.units);
  GatedBackend gated(model.file->path());
  auto made = WeightStore::create(model.units, make_test_plan(model.units, 4, 0, 0), gated, model.budget, {});
  ASSERT_TRUE(made.ok());
  WeightStore& store = **made;
  const auto offsets = [&](std::size_t from, std::size_t count) {
    std::vector<std::uint64_t> out;
    for (std::size_t i = from; i < from + count; ++i)
      for (const Span& span : model.units.tiles()[order[i]].spans) out.push_back(span.file_offset);
    return out;
  };
  store.begin_pass();
  EXPECT_EQ(gated.held_offsets(), offsets(0, 4));
  gated.let_go();
  {
    auto first = store.lease(order[0]);
    ASSERT_TRUE(first->wait().ok());
    EXPECT_EQ(gated.held(), 0u);  // all slots are ahead of the cursor or leased
  }
  // Another part of the same tile may be leased again: it is still there.
  auto again = store.lease(order[0]);
  EXPECT_TRUE(again->ready());
  auto second = store.lease(order[1]);
  EXPECT_EQ(gated.held(), 0u);  // order[0] is still leased
  *again = Lease();
  EXPECT_EQ(gated.held_offsets(), offsets(4, 1));  // its slot goes to the next tile
  gated.open_gate(true);
}

TEST(WeightStore, ALeaseBeyondTheSlotsIsRefusedNotDeadlocked) {
  Model model({.layers = 4, .experts = 4, .tile_bytes = 64 << 10});
  const auto store = model.store(make_test_plan(model.units, 2, 1, 0));
  const auto order = pass_order(model.units);
  store->begin_pass();
  auto a = store->lease(order[0]);
  auto b = store->lease(order[1]);
  auto c = store->lease(order[2]);
  ASSERT_FALSE(c.ok());
  EXPECT_EQ(c.status().code(), Code::internal);
  *a = Lease();
  EXPECT_TRUE(store->lease(order[2]).ok());

  const auto experts = expert_tiles(model.units);
  auto expert = store->try_lease(experts[0]);
  ASSERT_TRUE(expert.has_value());
  EXPECT_FALSE(store->try_lease(experts[1]).has_value());
  EXPECT_FALSE(store->lease(experts[1]).ok());
  expert.reset();
  auto other = store->lease(experts[1]);  // waits for the read under way, then takes its slot
  ASSERT_TRUE(other.ok()) << other.status().message();
  EXPECT_TRUE(other->wait().ok());
  expect_exact(model.units, *other);
}

std::vector<bool> hits_of(WeightStore& store, const std::vector<std::int32_t>& tiles, const std::vector<int>& uses) {
  std::vector<bool> hits;
  for (const int use : uses) {
    const auto before = store.counters();
    store.begin_pass();
    auto lease = store.lease(tiles[use]);
    EXPECT_TRUE(lease.ok() && lease->wait().ok());
    *lease = Lease();
    store.end_pass();
    hits.push_back(store.counters().hits > before.hits);
    EXPECT_EQ(store.counters().hits + store.counters().misses, before.hits + before.misses + 1);
  }
  return hits;
}

TEST(WeightStore, LruAndLfuKeepWhatTheyShould) {
  Model model({.layers = 1, .experts = 6, .tile_bytes = 64 << 10});
  const auto tiles = expert_tiles(model.units);
  const std::vector<int> uses = {0, 0, 0, 1, 2, 0, 3, 1, 0};
  {
    const auto lru = model.store(make_test_plan(model.units, 2, 2, 1), {.policy = CachePolicy::lru});
    EXPECT_EQ(hits_of(*lru, tiles, uses),
              (std::vector<bool>{false, true, true, false, false, false, false, false, false}));
    EXPECT_EQ(lru->counters().experts.layers[0].misses, 7u);
  }
  {
    const auto lfu = model.store(make_test_plan(model.units, 2, 2, 1), {.policy = CachePolicy::lfu});
    EXPECT_EQ(hits_of(*lfu, tiles, uses),
              (std::vector<bool>{false, true, true, false, false, true, false, false, true}));
    EXPECT_EQ(lfu->counters().experts.layers[0].misses, 5u);
    // What was used much long ago gives way at last: 0 fades, 4 and 5 take over.
    std::vector<int> later;
    for (int i = 0; i < 150; ++i) later.push_back(4 + i % 2);
    const auto hits = hits_of(*lfu, tiles, later);
    EXPECT_FALSE(hits[1]);
    EXPECT_TRUE(hits[148] && hits[149]);
  }
}

TEST(WeightStore, WorkingSetsAndTrafficAreCounted) {
  Model model({.layers = 2, .experts = 6, .tile_bytes = 64 << 10});
  const auto tiles = expert_tiles(model.units);
  const auto store = model.store(make_test_plan(model.units, 2, 4, 1));
  for (const auto& pass : std::vector<std::vector<int>>{{0, 1, 1, 6}, {2, 0, 1, 0}, {7}}) {
    store->begin_pass();
    for (const int use : pass) {
      auto lease = store->lease(tiles[use]);
      ASSERT_TRUE(lease->wait().ok());
    }
    store->end_pass();
  }
  const StoreCounters counters = store->counters();
  EXPECT_EQ(counters.passes, 3u);
  EXPECT_EQ(counters.experts.layers[0].working_set, 3u);
  EXPECT_EQ(counters.experts.layers[1].working_set, 1u);
  EXPECT_EQ(counters.experts.layers[0].long_working_set, 3u);
  EXPECT_EQ(counters.experts.layers[1].long_working_set, 2u);
  EXPECT_EQ(counters.experts.total().misses, 5u);
  EXPECT_EQ(counters.experts.total().resident, 4u) << "slots";
  EXPECT_EQ(counters.experts.total().evictions, 1u);
  EXPECT_EQ(counters.hits + counters.misses, 9u);
  std::uint64_t used = 0;
  for (const int use : {0, 1, 1, 6, 2, 0, 1, 0, 7}) used += model.units.tiles()[tiles[use]].bytes;
  EXPECT_EQ(counters.bytes_used, used);
}

TEST(WeightStore, LearnedExpertsComeFirstAndLeaveLast) {
  Model model({.layers = 2, .experts = 6, .tile_bytes = 64 << 10});
  const auto tiles = expert_tiles(model.units);
  StoreOptions options;
  options.expected.assign(model.units.units().size(), 0.0f);
  const auto expect_use = [&](int tile, float rate) {
    options.expected[static_cast<std::size_t>(
        model.units.tiles()[static_cast<std::size_t>(tiles[static_cast<std::size_t>(tile)])].unit)] = rate;
  };
  for (const auto& [tile, rate] : std::vector<std::pair<int, float>>{{1, 0.9f}, {3, 0.5f}, {8, 0.7f}, {10, 0.1f}})
    expect_use(tile, rate);
  for (const CachePolicy policy : {CachePolicy::lru, CachePolicy::lfu, CachePolicy::automatic}) {
    options.policy = policy;
    const auto store = model.store(make_test_plan(model.units, 0, 3, 1), options);
    const auto all_there = [&] {
      return store->present(tiles[1]) && store->present(tiles[3]) && store->present(tiles[8]);
    };
    for (int pass = 0; pass < 20'000 && !all_there(); ++pass) {
      run_pass(*store, pass_order(model.units), false);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    ASSERT_TRUE(all_there());
    EXPECT_EQ(store->counters().experts.learned, 3u) << "as many as there are slots";
    EXPECT_EQ(hits_of(*store, tiles, {1, 8}), (std::vector<bool>{true, true}));
    EXPECT_EQ(store->counters().experts.learned_used, 2u);
    EXPECT_EQ(hits_of(*store, tiles, {0, 1, 8}), (std::vector<bool>{false, true, true})) << "in the place of 3";
    // Other favourites win in time.
    std::vector<int> later;
    for (int i = 0; i < 3000; ++i) later.push_back(4 + i % 3);
    const auto hits = hits_of(*store, tiles, later);
    EXPECT_TRUE(hits[2997] && hits[2998] && hits[2999]);
    const ExpertUsage usage = store->expert_usage();
    EXPECT_EQ(usage.passes, 5 + 3000);
    EXPECT_EQ(usage.uses[0][1], 2);
    EXPECT_EQ(usage.uses[0][4], 1000);
    EXPECT_EQ(usage.uses[1][0], 1000);
    EXPECT_EQ(usage.uses[1][2], 2);
  }
}

TEST(WeightStore, ReadsAheadAreMadeWhileTheDiskIdles) {
  Model model({.layers = 3, .experts = 4, .tile_bytes = 64 << 10});
  const auto store = model.store(make_test_plan(model.units, 0, 3, 1), {.poison_evicted = true});
  const auto experts = expert_tiles(model.units);
  const auto use = [&](std::int32_t tile) {
    auto lease = store->lease(tile);
    ASSERT_TRUE(lease.ok() && lease->wait().ok());
    expect_exact(model.units, *lease);
  };
  run_pass(*store, pass_order(model.units), false);  // the trunk is there
  store->begin_pass();
  use(experts[0]);
  EXPECT_TRUE(store->prefetch(experts[4]));
  EXPECT_TRUE(store->prefetch(experts[4]));  // it is there, or comes: nothing to do
  EXPECT_TRUE(store->prefetch(experts[5]));
  EXPECT_FALSE(store->prefetch(experts[6]));  // the slots have what this pass used and what it waits for
  use(experts[4]);
  StoreCounters counters = store->counters();
  EXPECT_EQ(counters.guesses.read_ahead, 2u);
  EXPECT_EQ(counters.guesses.read_ahead_used, 1u);
  EXPECT_EQ(counters.misses, 1u);
  EXPECT_EQ(counters.hits, 1u);
  for (int pass = 0; pass < 2; ++pass) {
    store->end_pass();
    store->begin_pass();
  }
  EXPECT_TRUE(store->prefetch(experts[8]));  // in the slot of one that two passes have not used
  const auto before = store->counters();
  EXPECT_FALSE(store->borrow(experts[9]).has_value());
  use(experts[8]);
  EXPECT_TRUE(store->borrow(experts[8]).has_value());
  counters = store->counters();
  EXPECT_EQ(counters.hits, before.hits + 1);  // borrowing is no use
  EXPECT_EQ(counters.guesses.read_ahead_used, 2u);
}

TEST(WeightStore, NothingIsReadAheadWhileSomethingIsNeeded) {
  Model model({.layers = 2, .experts = 4, .tile_bytes = 64 << 10});
  GatedBackend gate(model.file->path());
  auto made = WeightStore::create(model.units, make_test_plan(model.units, 0, 6, 1), gate, model.budget, {});
  ASSERT_TRUE(made.ok()) << made.status().message();
  const auto experts = expert_tiles(model.units);
  gate.open_gate(true);
  run_pass(**made, pass_order(model.units), false);
  gate.open_gate(false);
  (*made)->begin_pass();
  auto needed = (*made)->lease(experts[0]);
  ASSERT_TRUE(needed.ok());
  EXPECT_FALSE((*made)->prefetch(experts[4]));
  gate.open_gate(true);
  ASSERT_TRUE(needed->wait().ok());
  EXPECT_TRUE((*made)->prefetch(experts[4]));
}

TEST(WeightStore, EvictionNeverTouchesALeasedTile) {
  Model model({.layers = 2, .experts = 8, .tile_bytes = 16 << 10});
  const auto tiles = expert_tiles(model.units);
  for (const auto policy : {CachePolicy::lru, CachePolicy::lfu}) {
    for (const int slots : {1, 2, 5}) {
      const auto store =
          model.store(make_test_plan(model.units, 2, slots, 1), {.policy = policy, .poison_evicted = true});
      std::mt19937 random(slots);
      std::vector<Lease> held;
      store->begin_pass();
      for (int i = 0; i < 400; ++i) {
        if (!held.empty() && (held.size() == static_cast<std::size_t>(slots) || random() % 3 == 0)) {
          std::swap(held[random() % held.size()], held.back());
          ASSERT_TRUE(held.back().wait().ok());
          expect_exact(model.units, held.back());
          held.pop_back();
        }
        if (random() % 50 == 0) {
          store->end_pass();
          store->begin_pass();
        }
        const std::int32_t tile = tiles[random() % tiles.size()];
        if (random() % 2 == 0) {
          if (auto lease = store->try_lease(tile)) held.push_back(std::move(*lease));
        } else if (auto lease = store->lease(tile); lease.ok()) {
          held.push_back(std::move(*lease));
        }
      }
      for (Lease& lease : held) {
        ASSERT_TRUE(lease.wait().ok());
        expect_exact(model.units, lease);
      }
    }
  }
}

TEST(WeightStore, RandomLeasesInTinyBudgets) {
  Model model({.layers = 3, .experts = 4, .tied = true, .tile_bytes = 12 << 10});
  std::mt19937 random(7);
  for (const int ring : {2, 5}) {
    for (const int every : {0, 2, 1}) {
      const auto store = model.store(make_test_plan(model.units, ring, 2, every), {.poison_evicted = true});
      for (int pass = 0; pass < 6; ++pass) {
        store->begin_pass();
        for (int i = 0; i < 60; ++i) {  // any order, passes cut short: slow, never wrong
          auto lease = store->lease(static_cast<std::int32_t>(random() % model.units.tiles().size()));
          ASSERT_TRUE(lease.ok()) << lease.status().message();
          ASSERT_TRUE(lease->wait().ok());
          expect_exact(model.units, *lease);
        }
        if (pass % 2 == 0) store->end_pass();
      }
    }
  }
}

TEST(WeightStore, RowsComeFromMemoryOrFile) {
  for (const bool resident : {false, true}) {
    Model model({.layers = 2, .vocab = 900, .tied = true}, storage::BackendKind::pread_buffered);
    const auto store = model.store(make_test_plan(model.units, 2, 0, resident ? 1 : 0));
    if (resident) run_pass(*store, pass_order(model.units), false);
    std::vector<std::int64_t> rows;
    for (std::int64_t i = 0; i < 70; ++i) rows.push_back((i * 389) % 900);
    const std::uint64_t row_bytes = 96 * 4;
    std::vector<std::byte> out(rows.size() * row_bytes);
    const std::uint64_t before = store->counters().bytes_from_disk;
    ASSERT_TRUE(store->read_rows({0, 0}, rows, out.data()).ok());
    const Part& part = model.units.part({0, 0});
    for (std::size_t i = 0; i < out.size(); ++i) {
      const std::uint64_t offset =
          part.offset + static_cast<std::uint64_t>(rows[i / row_bytes]) * row_bytes + i % row_bytes;
      ASSERT_EQ(std::to_integer<std::uint8_t>(out[i]), test::WeightFile::byte_at(offset)) << i;
    }
    EXPECT_EQ(store->counters().bytes_from_disk - before, resident ? 0 : out.size());
    const std::int64_t bad[] = {900};
    EXPECT_EQ(store->read_rows({0, 0}, bad, out.data()).code(), Code::invalid_argument);
  }
}

TEST(WeightStore, AFailedReadIsReportedAndTheStoreLivesOn) {
  Model model({.layers = 3, .experts = 3, .tile_bytes = 64 << 10});
  const auto order = pass_order(model.units);
  for (const std::uint64_t after : {0, 1, 3, 5}) {
    auto inner = storage::open_backend({model.file->path()}, {.kind = storage::BackendKind::pread_buffered});
    ASSERT_TRUE(inner.ok());
    storage::Fault fault;
    fault.after_reads = after;
    fault.count = 1;
    const auto backend = storage::inject_faults(std::move(inner).value(), {fault});
    auto made = WeightStore::create(model.units, make_test_plan(model.units, 3, 1, 2), *backend, model.budget, {});
    ASSERT_TRUE(made.ok());
    WeightStore& store = **made;
    for (int pass = 0; pass < 3; ++pass) {
      store.begin_pass();
      for (const std::int32_t tile : order) {
        auto lease = store.lease(tile);
        ASSERT_TRUE(lease.ok());
        const Status status = lease->wait();
        if (status.ok()) {
          expect_exact(model.units, *lease);
          continue;
        }
        EXPECT_EQ(status.code(), Code::io_error);
        EXPECT_EQ(status.message().rfind("reading blk.", 0), 0u) << status.message();
        break;  // a model gives the pass up
      }
      store.end_pass();
    }
    run_pass(store, order);
  }
}

TEST(WeightStore, AFailedLeaseCanBeTakenAgain) {
  Model model({.layers = 1, .experts = 3, .tile_bytes = 64 << 10});
  const auto tiles = expert_tiles(model.units);
  GatedBackend gated(model.file->path());
  auto made = WeightStore::create(model.units, make_test_plan(model.units, 2, 1, 1), gated, model.budget, {});
  ASSERT_TRUE(made.ok());
  WeightStore& store = **made;
  auto first = store.lease(tiles[0]);
  gated.let_go(error(Code::io_error, "the disk said no"));
  auto second = store.lease(tiles[0]);  // starts anew: the slot was freed
  EXPECT_EQ(gated.held(), model.units.tiles()[tiles[0]].spans.size());
  gated.let_go(error(Code::io_error, "the disk said no"));
  const Status status = second->wait();
  EXPECT_EQ(status.message(), "reading blk.0.ffn_gate_exps.weight of expert 0 and 2 more: the disk said no");
  EXPECT_EQ(first->wait().code(), Code::io_error);
  *first = Lease();
  *second = Lease();
  auto third = store.lease(tiles[1]);
  gated.let_go();
  ASSERT_TRUE(third->wait().ok());
  expect_exact(model.units, *third);
}

TEST(WeightStore, TheBudgetIsWhatTheMemoryTakes) {
  if (!test::kMeasuresMemory) GTEST_SKIP();
  ModelShape shape{.layers = 6, .dim = 1024, .trunk_rows = 1024, .vocab = 512, .tile_bytes = 1 << 20};
  Model model(shape);  // 80 MB
  for (const int every : {1, 3}) {
    const Plan plan = make_test_plan(model.units, 4, 0, every);
    const std::uint64_t before = device::resident_bytes();
    const auto store = model.store(plan);
    EXPECT_EQ(model.budget.reserved_bytes(), plan.weight_memory_bytes());
    for (int pass = 0; pass < 2; ++pass) run_pass(*store, pass_order(model.units), false);
    const std::uint64_t grown = device::resident_bytes() - before;
    EXPECT_LE(grown, plan.weight_memory_bytes() + 1 * kMiB);  // the table and the allocator's own
    EXPECT_GE(grown, plan.weight_memory_bytes() * 9 / 10);
  }
  EXPECT_EQ(model.budget.reserved_bytes(), 0u);
}

TEST(WeightStore, ABudgetTooSmallIsRefused) {
  Model model({.layers = 2});
  const Plan plan = make_test_plan(model.units, 2, 0, 1);
  Budget budget(plan.weight_memory_bytes() - 1);
  const auto store = WeightStore::create(model.units, plan, *model.backend, budget, {});
  ASSERT_FALSE(store.ok());
  EXPECT_EQ(store.status().code(), Code::out_of_budget);
}

TEST(WeightStore, APlanForAnotherModelIsRefused) {
  Model model({.layers = 2, .experts = 2});
  Plan plan = make_test_plan(model.units, 2, 1, 0);
  plan.expert_slots = 0;
  EXPECT_FALSE(WeightStore::create(model.units, plan, *model.backend, model.budget, {}).ok());
  plan = make_test_plan(model.units, 1, 1, 0);
  EXPECT_FALSE(WeightStore::create(model.units, plan, *model.backend, model.budget, {}).ok());
  plan = make_test_plan(model.units, 2, 1, 0);
  plan.resident_tiles.pop_back();
  EXPECT_FALSE(WeightStore::create(model.units, plan, *model.backend, model.budget, {}).ok());
}

/// A first run: experts that all have a place are read before they are asked for, in the order in which layers use
/// them.
TEST(WeightStore, ExpertsThatAllFitComeInTheOrderOfUse) {
  Model model({.layers = 3, .experts = 6, .tile_bytes = 64 << 10});
  const auto experts = expert_tiles(model.units);
  GatedBackend gated(model.file->path());
  const Plan plan = expert_store_plan(model.units, static_cast<int>(experts.size()));
  auto made = WeightStore::create(model.units, plan, gated, model.budget, {.experts_only = true});
  ASSERT_TRUE(made.ok()) << made.status().message();
  WeightStore& store = **made;
  std::vector<std::uint64_t> expected, asked;
  for (const std::int32_t tile : experts)
    for (const Span& span : model.units.tiles()[static_cast<std::size_t>(tile)].spans)
      expected.push_back(span.file_offset);
  for (std::size_t pass = 0; pass < experts.size(); ++pass) {
    store.begin_pass();
    const std::vector<std::uint64_t> held = gated.held_offsets();
    asked.insert(asked.end(), held.begin(), held.end());
    gated.let_go();
    store.end_pass();
  }
  gated.open_gate(true);
  EXPECT_EQ(asked, expected);
  store.begin_pass();
  for (const std::int32_t tile : experts) EXPECT_TRUE(store.present(tile));
  store.end_pass();
}

/// Beside a GPU the store keeps experts alone, in page-locked memory that somebody else has paid for.
TEST(WeightStore, ExpertsAloneInMemoryThatIsGiven) {
  Model model({.layers = 3, .experts = 5, .tile_bytes = 64 << 10});
  const auto experts = expert_tiles(model.units);
  const Plan plan = expert_store_plan(model.units, 4);
  auto buffer = device::HostBuffer::reserve(64u << 20, device::Pages::huge);
  ASSERT_TRUE(buffer.ok());
  std::uint64_t asked = 0;
  const auto store = model.store(
      plan, {.poison_evicted = true, .experts_only = true, .memory = [&](std::uint64_t bytes) -> Expected<std::byte*> {
               asked = bytes;
               return buffer->data();
             }});
  EXPECT_EQ(asked, 4 * expert_slot_bytes(model.units));
  const std::uint64_t reserved = model.budget.reserved_bytes();
  for (int pass = 0; pass < 3; ++pass) {
    store->begin_pass();
    for (const std::int32_t tile : experts) {
      auto lease = store->lease(tile);
      ASSERT_TRUE(lease.ok()) << lease.status().message();
      ASSERT_TRUE(lease->wait().ok());
      expect_exact(model.units, *lease);
      const std::byte* const at = lease->segment(0);
      EXPECT_TRUE(at >= buffer->data() && at < buffer->data() + asked);
    }
    store->end_pass();
  }
  EXPECT_GT(store->counters().evictions, 0u);
  EXPECT_EQ(store->give_way(1 << 20), 0u);
  EXPECT_EQ(store->expert_slots(), 4);
  EXPECT_EQ(model.budget.reserved_bytes(), reserved);
  EXPECT_EQ(store->lease(pass_order(model.units)[0]).status().code(), Code::internal);  // not this store's
}

}  // namespace
}  // namespace millrace::residency
