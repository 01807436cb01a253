#include "residency/budget.h"

#include <gtest/gtest.h>

#include <thread>

#include "base/bytes.h"

namespace millrace::residency {
namespace {

TEST(Budget, GrantsUpToTheCapAndNamesWhoHoldsIt) {
  Budget budget(1000000);
  auto weights = budget.reserve("weights", 600000);
  ASSERT_TRUE(weights.ok());
  auto kv = budget.reserve("kv", 400000);
  ASSERT_TRUE(kv.ok());
  EXPECT_EQ(budget.available_bytes(), 0u);
  auto more = budget.reserve("activations", 1);
  ASSERT_FALSE(more.ok());
  EXPECT_EQ(more.status().code(), Code::out_of_budget);
  EXPECT_NE(more.status().message().find("weights 600 kB, kv 400 kB"), std::string::npos) << more.status().message();
  EXPECT_NE(more.status().message().find("--ram 1.1M"), std::string::npos) << more.status().message();
  kv->resize(0).ok();
  EXPECT_EQ(budget.available_bytes(), 400000u);
  ASSERT_EQ(budget.entries().size(), 1u);
}

TEST(Budget, ItsCapFallsToWhatIsHeldAtMost) {
  Budget budget(100);
  auto a = budget.reserve("a", 60);
  EXPECT_FALSE(budget.set_cap(59));
  EXPECT_EQ(budget.cap_bytes(), 100u);
  EXPECT_TRUE(budget.set_cap(70));
  EXPECT_FALSE(a->try_grow(11));
  EXPECT_TRUE(a->try_grow(10));
  EXPECT_TRUE(budget.set_cap(100));
  EXPECT_EQ(budget.available_bytes(), 30u);
}

TEST(Budget, NothingChangesOnError) {
  Budget budget(100);
  auto a = budget.reserve("a", 60);
  EXPECT_FALSE(a->resize(101).ok());
  EXPECT_EQ(a->bytes(), 60u);
  EXPECT_EQ(budget.reserved_bytes(), 60u);
  EXPECT_FALSE(a->try_grow(41));
  EXPECT_TRUE(a->try_grow(40));
  EXPECT_EQ(budget.reserved_bytes(), 100u);
  EXPECT_FALSE(budget.reserve("absurd", UINT64_MAX).ok());
}

TEST(Budget, MovesGiveBackOnce) {
  Budget budget(100);
  {
    auto a = budget.reserve("a", 60);
    Reservation b = std::move(a).value();
    Reservation c;
    c = std::move(b);
    EXPECT_EQ(budget.reserved_bytes(), 60u);
    auto d = budget.reserve("d", 40);
    c = std::move(d).value();
    EXPECT_EQ(budget.reserved_bytes(), 40u);
  }
  EXPECT_EQ(budget.reserved_bytes(), 0u);
}

TEST(Budget, TheReclaimerGivesWay) {
  Budget budget(100);
  auto weights = budget.reserve("weights", 90);
  std::uint64_t asked = 0;
  budget.set_reclaimer(GivesWay::weights, [&](std::uint64_t bytes) {
    asked = bytes;
    const std::uint64_t give = std::min<std::uint64_t>(bytes, weights->bytes() - 50);
    EXPECT_TRUE(weights->resize(weights->bytes() - give).ok());
    return give;
  });
  auto kv = budget.reserve("kv", 30);
  ASSERT_TRUE(kv.ok()) << kv.status().message();
  EXPECT_EQ(asked, 20u);
  EXPECT_EQ(weights->bytes(), 70u);
  EXPECT_FALSE(kv->resize(51).ok());
  EXPECT_EQ(kv->bytes(), 30u);
  budget.set_reclaimer(GivesWay::weights, nullptr);
}

TEST(Budget, ReclaimersGiveWayInTheirOrder) {
  Budget budget(100);
  auto weights = budget.reserve("weights", 70), copies = budget.reserve("copies", 30);
  std::vector<std::string> asked;
  const auto gives = [&](Expected<Reservation>& from, const char* name) {
    return [&, name](std::uint64_t bytes) {
      asked.push_back(fmt::format("{} {}", name, bytes));
      const std::uint64_t give = std::min(bytes, from->bytes());
      EXPECT_TRUE(from->resize(from->bytes() - give).ok());
      return give;
    };
  };
  // In whatever order they come.
  budget.set_reclaimer(GivesWay::weights, gives(weights, "weights"));
  budget.set_reclaimer(GivesWay::copies, gives(copies, "copies"));
  auto kv = budget.reserve("kv", 20);
  ASSERT_TRUE(kv.ok());
  EXPECT_EQ(asked, (std::vector<std::string>{"copies 20"}));
  asked.clear();
  ASSERT_TRUE(kv->resize(65).ok());
  EXPECT_EQ(asked, (std::vector<std::string>{"copies 45", "weights 35"}));
  EXPECT_EQ(weights->bytes(), 35u);
  asked.clear();
  EXPECT_FALSE(kv->resize(101).ok()) << "more than there is";
  EXPECT_EQ(asked.size(), 2u);
  for (const GivesWay kind : {GivesWay::copies, GivesWay::weights}) budget.set_reclaimer(kind, nullptr);
}

TEST(Budget, ManyThreadsNeverPassTheCap) {
  Budget budget(1000);
  auto weights = budget.reserve("weights", 800);
  budget.set_reclaimer(GivesWay::weights, [&](std::uint64_t bytes) {
    const std::uint64_t give = std::min(bytes, weights->bytes() - 100);
    EXPECT_TRUE(weights->resize(weights->bytes() - give).ok());
    return give;
  });
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 2000; ++i) {
        auto r = budget.reserve(fmt::format("t{}", t), static_cast<std::uint64_t>(i % 300));
        EXPECT_LE(budget.reserved_bytes(), 1000u);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(budget.reserved_bytes(), weights->bytes());
  budget.set_reclaimer(GivesWay::weights, nullptr);
}

TEST(RamArgument, RoundsUpAndParsesBack) {
  for (const std::uint64_t bytes : {1ull, 99999ull, 100000ull, 4213456ull, 99999999ull, 100000001ull, 811999999ull,
                                    9999999999ull, 12400000001ull, 137000000000ull}) {
    const auto parsed = parse_bytes(ram_argument(bytes));
    ASSERT_TRUE(parsed.ok()) << ram_argument(bytes);
    EXPECT_GE(*parsed, bytes) << ram_argument(bytes);
    EXPECT_LE(static_cast<double>(*parsed), static_cast<double>(bytes) * 1.02 + 100000) << ram_argument(bytes);
  }
  EXPECT_EQ(ram_argument(4213456), "4.3M");
}

}  // namespace
}  // namespace millrace::residency
