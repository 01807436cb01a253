// Once warm, a pass allocates nothing: this program counts what its own thread asks operator new for.
// Not with sanitizers, which have operators of their own.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#include <gtest/gtest.h>

#include <cstdlib>
#include <new>

#include "residency/store_fixture.h"
#include "residency/weight_store.h"

namespace {
thread_local std::uint64_t allocations = 0;
}

// Not inlined: the compiler would see free() meet a new.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  ++allocations;
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace millrace::residency {
namespace {

/// Every read is done at once.
class InstantBackend : public storage::Backend {
 public:
  const storage::BackendTraits& traits() const override { return traits_; }
  void submit(std::span<const storage::Read> reads, storage::Completion& completion) override {
    completion.expect(static_cast<std::uint32_t>(reads.size()));
    for (std::size_t i = 0; i < reads.size(); ++i) completion.finish_one({});
  }
  Status health() const override { return {}; }
  storage::Counters counters() const override { return {}; }

 private:
  storage::BackendTraits traits_{"instant", 1, false};
};

TEST(Allocation, AWarmPassAllocatesNothing) {
  std::uint64_t file_bytes = 0;
  const UnitTable units = test::make_units({.layers = 5, .experts = 6, .tile_bytes = 16 << 10}, &file_bytes);
  InstantBackend backend;
  for (const auto policy : {CachePolicy::lru, CachePolicy::lfu}) {
    for (const int every : {0, 1, 3}) {
      Budget budget(1ull << 30);
      auto store =
          WeightStore::create(units, test::make_test_plan(units, 4, 7, every), backend, budget, {.policy = policy});
      ASSERT_TRUE(store.ok());
      const auto ordered = test::pass_order(units), experts = test::expert_tiles(units);
      std::vector<std::byte> rows(4 * 96 * 4);
      const auto pass = [&] {
        (*store)->begin_pass();
        const std::int64_t ids[] = {1, 200, 30, 299};
        bool ok = (*store)->read_rows({0, 0}, ids, rows.data()).ok();
        for (const auto* tiles : {&ordered, &experts}) {
          for (const std::int32_t tile : *tiles) {
            auto ahead = (*store)->try_lease(tile);
            auto lease = (*store)->lease(tile);
            ok = ok && lease.ok() && lease->wait().ok();
          }
        }
        (*store)->end_pass();
        return ok;
      };
      ASSERT_TRUE(pass());
      const std::uint64_t before = allocations;
      const bool ok = pass() && pass();
      EXPECT_EQ(allocations, before);
      ASSERT_TRUE(ok);
    }
  }
}

}  // namespace
}  // namespace millrace::residency

#endif
