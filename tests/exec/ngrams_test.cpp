#include "exec/ngrams.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

namespace millrace::exec {
namespace {

Ngrams some_ngrams() {
  Ngrams ngrams;
  ngrams.multipliers = {101, 10'007, 9'000'000'000'000'000'001u};
  ngrams.sizes = {11, 13, 17, 19};
  ngrams.offsets = {0, 11, 24, 41};
  ngrams.end = 2;
  return ngrams;
}

std::vector<std::int64_t> rows_of(const Ngrams& ngrams, std::array<std::int32_t, 3> newest_first) {
  std::vector<std::int64_t> rows(static_cast<std::size_t>(ngrams.rows()));
  ngrams.rows_of(newest_first, rows.data());
  return rows;
}

TEST(Ngrams, HashTokensByTheirDistance) {
  const Ngrams ngrams = some_ngrams();
  const std::uint64_t two = 7 * 101u ^ 5 * 10'007u, three = two ^ 3 * 9'000'000'000'000'000'001u;
  EXPECT_EQ(rows_of(ngrams, {7, 5, 3}),
            (std::vector<std::int64_t>{static_cast<std::int64_t>(two % 11), static_cast<std::int64_t>(11 + two % 13),
                                       static_cast<std::int64_t>(24 + three % 17),
                                       static_cast<std::int64_t>(41 + three % 19)}));
}

TEST(Ngrams, ReachNoFurtherThanTheEnd) {
  const Ngrams ngrams = some_ngrams();
  EXPECT_EQ(rows_of(ngrams, {7, 2, 3}), rows_of(ngrams, {7, 2, 2}));
  EXPECT_NE(rows_of(ngrams, {7, 5, 3}), rows_of(ngrams, {7, 5, 2}));
  // The end itself is a token like any other.
  EXPECT_NE(rows_of(ngrams, {2, 5, 3}), rows_of(ngrams, {2, 2, 2}));
}

}  // namespace
}  // namespace millrace::exec
