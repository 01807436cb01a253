#include "residency/slot_table.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <set>

namespace millrace::residency {
namespace {

TEST(SlotTable, GivesSlotsAndTakesThemBack) {
  SlotTable table(5, 2, {CachePolicy::lfu, 8});
  EXPECT_EQ(table.put(3), 0);
  EXPECT_EQ(table.put(1), 1);
  EXPECT_EQ(table.free_slots(), 0u);
  EXPECT_EQ(table.slot_of(3), 0);
  EXPECT_EQ(table.key_of(1), 1);
  table.remove(3);
  EXPECT_EQ(table.slot_of(3), -1);
  EXPECT_EQ(table.key_of(0), -1);
  EXPECT_EQ(table.put(4), 0);
}

TEST(SlotTable, WhatWasUsedOftenAndLatelyStays) {
  SlotTable table(3, 3, {CachePolicy::lfu, 4});
  for (int key = 0; key < 3; ++key) (void)table.put(key);
  for (int i = 0; i < 4; ++i) table.use(0);  // often, long ago
  for (int i = 0; i < 8; ++i) table.turn();  // two half-lives
  EXPECT_NEAR(table.worth(0), 1, 1e-9);
  table.use(1);
  table.use(1);
  EXPECT_EQ(table.least_worth(), 2);
  table.remove(2);
  EXPECT_EQ(table.least_worth(), 0);
  table.pin(0);
  EXPECT_EQ(table.least_worth(), 1);
  table.unpin(0);
  EXPECT_EQ(table.least_worth(), 0);
}

TEST(SlotTable, WhatIsExpectedStaysUntilOtherThingsAreUsed) {
  for (const CachePolicy policy : {CachePolicy::lru, CachePolicy::lfu}) {
    SlotTable table(4, 3, {policy, 16});
    table.expect(std::vector<float>{0.5f, 0, 1, 0.25f});
    for (const int key : {0, 2, 3}) (void)table.put(key);
    EXPECT_EQ(table.least_worth(), 3) << "the least likely";
    table.remove(3);
    EXPECT_EQ(table.least_worth(), 0);
  }
  // One that is used in every turn has the worth it is expected to have, and fades like any other.
  SlotTable table(2, 2, {CachePolicy::lfu, 16});
  table.expect(std::vector<float>{1, 0.25f});
  const double expected = table.worth(0);
  for (int i = 0; i < 50; ++i) {
    table.turn();
    table.use(0);
  }
  EXPECT_NEAR(table.worth(0), expected, 1e-6 * expected);
  EXPECT_NEAR(table.worth(1), expected / 4 * std::exp2(-50 / 16.0), 1e-6 * expected);
}

TEST(SlotTable, WorthOutlivesManyTurns) {
  SlotTable table(2, 1, {CachePolicy::lfu, 1});
  for (int i = 0; i < 5000; ++i) {
    table.turn();
    table.use(0);
    if (i % 2 == 0) table.use(1);
  }
  EXPECT_NEAR(table.worth(0), 2, 1e-6);
  EXPECT_GT(table.worth(0), table.worth(1));
}

/// Favourites end in the slots, and stay there: the table's users take a key in only where it is worth more than one
/// that has a slot.
TEST(SlotTable, FavouritesFindTheirSlots) {
  constexpr int kKeys = 200, kSlots = 20, kFavourites = 20;
  SlotTable table(kKeys, kSlots, {CachePolicy::lfu, 500});
  std::mt19937 random(7);
  int late_hits = 0, late_uses = 0, changes = 0;
  for (int turn = 0; turn < 4000; ++turn) {
    table.turn();
    const bool favourite = random() % 10 != 0;
    const int key = static_cast<int>(favourite ? random() % kFavourites : random() % kKeys);
    table.use(key);
    if (turn >= 2000) {
      ++late_uses;
      late_hits += table.slot_of(key) >= 0 ? 1 : 0;
    }
    if (table.slot_of(key) >= 0) continue;
    if (table.free_slots() == 0) {
      const int least = table.least_worth();
      if (table.worth(least) >= table.worth(key)) continue;
      table.remove(least);
      changes += turn >= 2000 ? 1 : 0;
    }
    (void)table.put(key);
  }
  EXPECT_GT(late_hits, late_uses * 85 / 100);
  EXPECT_LT(changes, late_uses / 50);
}

}  // namespace
}  // namespace millrace::residency
