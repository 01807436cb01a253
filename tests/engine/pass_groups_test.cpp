// Sequences that decode are divided over passes where that is faster, by what passes were measured to take.
#include "engine/pass_groups.h"

#include <gtest/gtest.h>

#include <functional>

namespace millrace::engine {
namespace {

/// Ends so many passes, each taking what `seconds` says of its rows; returns the seconds of all.
double play(PassGroups& groups, std::int64_t sequences, std::int64_t passes,
            const std::function<double(std::int64_t groups, std::int64_t rows)>& seconds) {
  double all = 0;
  for (std::int64_t i = 0; i < passes; ++i) {
    const std::int64_t now = groups.groups(sequences), rows = sequences / now;
    const double took = seconds(now, rows);
    all += took;
    groups.passed(sequences, rows, took);
  }
  return all;
}

/// Two stages of equal work: one pass goes through both, of two a stage has one each.
double bound_by_rows(std::int64_t groups, std::int64_t rows) {
  return static_cast<double>(rows) * (groups == 1 ? 2.0 : 1.0);
}
/// A stage takes three times the other, however many rows there are.
double bound_by_bytes(std::int64_t groups, std::int64_t /*rows*/) { return groups == 1 ? 4.0 : 3.0; }

TEST(PassGroups, OneSequenceOrOnePassIsNeverDivided) {
  PassGroups several(4), one(1);
  EXPECT_EQ(several.groups(1), 1);
  EXPECT_EQ(several.groups(0), 1);
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(one.groups(8), 1);
    one.passed(8, 8, 1);
  }
}

TEST(PassGroups, TheFasterWayIsUsed) {
  PassGroups by_rows(2), by_bytes(2);
  EXPECT_EQ(by_rows.groups(8), 2) << "until it is known";
  play(by_rows, 8, 100, bound_by_rows);
  EXPECT_EQ(by_rows.groups(8), 2);
  play(by_bytes, 8, 100, bound_by_bytes);
  EXPECT_EQ(by_bytes.groups(8), 1);
  EXPECT_EQ(by_bytes.groups(2), 2) << "of two sequences nothing is known yet";
}

TEST(PassGroups, ItIsTriedAgainAndCostsLittle) {
  PassGroups groups(2);
  play(groups, 8, 100, bound_by_bytes);
  double seconds = 0;
  std::int64_t tokens = 0, divided = 0;
  for (int i = 0; i < 3000; ++i) {
    const std::int64_t now = groups.groups(8);
    tokens += 8 / now;
    divided += now > 1 ? 1 : 0;
    seconds += play(groups, 8, 1, bound_by_bytes);
  }
  EXPECT_GT(divided, 0);
  EXPECT_LT(seconds / static_cast<double>(tokens), 1.03 * 4.0 / 8);
  play(groups, 8, 800, bound_by_rows);  // the work has changed
  EXPECT_EQ(groups.groups(8), 2);
}

}  // namespace
}  // namespace millrace::engine
