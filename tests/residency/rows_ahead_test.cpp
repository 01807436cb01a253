// Rows of a table of which a token reads several: read while weights are leased, kept in a cache, and planned for.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "residency/plan.h"
#include "residency/store_fixture.h"
#include "storage/fault_injection.h"

namespace millrace::residency {
namespace {

using test::Model;

constexpr WeightRef kTable{1, 0};
constexpr std::uint64_t kRowBytes = 96 * 4;

test::ModelShape shape() { return {.layers = 3, .layer_rows = 4000, .rows_of_token = 16}; }

Plan plan_of(const UnitTable& units, std::uint64_t cache_bytes) {
  Plan plan = test::make_test_plan(units, 2, 0, 0);
  plan.rows_ahead_bytes = 64 << 10;  // fewer rows than are asked for
  plan.row_cache_bytes = cache_bytes;
  return plan;
}

std::vector<std::int64_t> some_rows(std::int64_t count, std::int64_t step) {
  std::vector<std::int64_t> rows;
  for (std::int64_t i = 0; i < count; ++i) rows.push_back(i * step % 4000);
  std::sort(rows.begin(), rows.end());
  rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
  return rows;
}

void expect_rows(const UnitTable& units, const std::vector<std::int64_t>& rows, const std::vector<std::byte>& read) {
  for (std::size_t i = 0; i < read.size(); ++i) {
    const std::uint64_t offset =
        units.part(kTable).offset + static_cast<std::uint64_t>(rows[i / kRowBytes]) * kRowBytes + i % kRowBytes;
    ASSERT_EQ(std::to_integer<std::uint8_t>(read[i]), test::WeightFile::byte_at(offset)) << i;
  }
}

TEST(RowsAhead, ComeWhileWeightsAreLeasedAndStay) {
  for (const std::uint64_t cache : {0, 1 << 20}) {
    Model model(shape(), storage::BackendKind::pread_buffered);
    const auto store = model.store(plan_of(model.units, cache));
    const auto order = test::pass_order(model.units);
    for (int pass = 0; pass < 3; ++pass) {
      const std::vector<std::int64_t> rows = some_rows(300, 37 + pass % 2);
      std::vector<std::byte> read(rows.size() * kRowBytes);
      store->begin_pass();
      ASSERT_TRUE(store->begin_rows(kTable, rows, read.data()).ok());
      EXPECT_EQ(store->begin_rows(kTable, rows, read.data()).code(), Code::internal) << "one at a time";
      for (const std::int32_t tile : order) {
        auto lease = store->lease(tile);
        ASSERT_TRUE(lease.ok());
        ASSERT_TRUE(lease->wait().ok());
      }
      ASSERT_TRUE(store->finish_rows().ok());
      store->end_pass();
      expect_rows(model.units, rows, read);
    }
    const StoreCounters counters = store->counters();
    EXPECT_EQ(counters.row_hits == 0, cache == 0);
    EXPECT_GE(counters.row_hits, cache > 0 ? 290u : 0u) << "the third pass reads the rows of the first";
    EXPECT_EQ(counters.row_hits + counters.row_misses, 900u);
  }
}

TEST(RowsAhead, AFailedReadIsReportedAndTheNextPassGoesOn) {
  Model model(shape());
  auto inner = storage::open_backend({model.file->path()}, {.kind = storage::BackendKind::pread_buffered});
  ASSERT_TRUE(inner.ok());
  storage::Fault fault;
  fault.after_reads = 20;
  fault.count = 1;
  const auto backend = storage::inject_faults(std::move(inner).value(), {fault});
  auto store = WeightStore::create(model.units, plan_of(model.units, 1 << 20), *backend, model.budget, {});
  ASSERT_TRUE(store.ok());
  const std::vector<std::int64_t> rows = some_rows(200, 19);
  std::vector<std::byte> read(rows.size() * kRowBytes);
  int failures = 0;
  for (int pass = 0; pass < 3; ++pass) {
    ASSERT_TRUE((*store)->begin_rows(kTable, rows, read.data()).ok());
    const Status status = (*store)->finish_rows();
    failures += status.ok() ? 0 : 1;
    if (!status.ok()) {
      EXPECT_EQ(status.code(), Code::io_error);
      EXPECT_NE(status.message().find("reading rows of per_layer_token_embd.weight"), std::string::npos)
          << status.message();
    } else {
      expect_rows(model.units, rows, read);
    }
  }
  EXPECT_EQ(failures, 1);
  const std::int64_t none[] = {4000};
  EXPECT_EQ((*store)->begin_rows(kTable, none, read.data()).code(), Code::invalid_argument);
}

TEST(RowsAhead, ThePlanKeepsNoTileOfTheTableAndLittleMemoryForItsRows) {
  const Model model(shape());
  const Plan roomy = *make_plan(model.units, {.ram_bytes = 256 << 20}, {});
  for (std::int32_t t = model.units.tiles_of(1).first; t < model.units.tiles_of(1).last; ++t)
    EXPECT_FALSE(roomy.resident_tiles[static_cast<std::size_t>(t)]);
  EXPECT_EQ(roomy.homes[1], Tier::disk);
  EXPECT_GT(roomy.rows_ahead_bytes, 0u);
  EXPECT_GT(roomy.row_cache_bytes, 0u);
  EXPECT_LE(roomy.row_cache_bytes, 4 * model.units.units()[1].bytes());
  for (const std::uint64_t ram : {3 << 20, 1 << 20}) {
    const Expected<Plan> plan = make_plan(model.units, {.ram_bytes = ram}, {});
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    EXPECT_LE(plan->weight_memory_bytes(), ram);
    EXPECT_LE(plan->row_cache_bytes, ram / 64);
  }
}

}  // namespace
}  // namespace millrace::residency
