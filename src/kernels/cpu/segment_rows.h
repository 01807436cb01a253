// What products straight from the blocks of the file (segments_blocks.h) share, whatever the vectors' width.
// Everything here has internal linkage, so that no code built for one instruction set can be linked into another.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/cpu/arranged_segments.h"
#include "kernels/kernels.h"

namespace millrace::kernels::segments {
namespace {

/// Rows of x by at most kMost, first [r0, r0 + count): arrange(row, r) puts row `row` of x at place r < count, unless
/// it lies there, and multiply(r0, count) follows.
template <int kMost, class Arrange, class Multiply>
void for_arranged(const MatmulArgs& args, std::int64_t arrangement, const Arrange& arrange, const Multiply& multiply) {
  auto& there = *reinterpret_cast<Arranged*>(args.workspace);
  const bool named = args.x_index == nullptr || args.x_rows == 1;  // others pick rows as they like
  const auto source = [&](std::int64_t r) { return args.x_index ? args.x_index[r] : r; };
  for (std::int64_t r0 = 0; r0 < args.x_rows; r0 += kMost) {
    const int count = args.x_rows - r0 < kMost ? static_cast<int>(args.x_rows - r0) : kMost;
    const Arranged wanted{named ? args.x_name : 0, arrangement, count, args.cols, source(r0)};
    if (wanted.name == 0 || std::memcmp(&there, &wanted, sizeof wanted) != 0) {
      for (int r = 0; r < count; ++r) arrange(source(r0 + r), r);
      there = wanted;
    }
    multiply(r0, count);
  }
}

/// y[n] = the sum of row n's segments, in ascending order; rows lie `period` apart.
inline void add_rows(const float* sums, std::int64_t segments, std::int64_t period, std::int64_t rows, float* y) {
  constexpr int kAtOnce = 4;  // a row's sum is one long chain
  std::int64_t n = 0;
  for (; n + kAtOnce <= rows; n += kAtOnce, sums += kAtOnce * period) {
    float total[kAtOnce] = {};
    for (std::int64_t s = 0; s < segments; ++s) {
      for (int i = 0; i < kAtOnce; ++i) total[i] += sums[i * period + s];
    }
    for (int i = 0; i < kAtOnce; ++i) y[n + i] = total[i];
  }
  for (; n < rows; ++n, sums += period) {
    float total = 0;
    for (std::int64_t s = 0; s < segments; ++s) total += sums[s];
    y[n] = total;
  }
}

}  // namespace
}  // namespace millrace::kernels::segments
