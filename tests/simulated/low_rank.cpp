// What adapters add, by plain loops in the contract's order.
#include "kernels/gpu/low_rank.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "kernels.h"

namespace millrace::kernels::gpu {

namespace {

/// Of kLowRankSums partial sums: a tree in each 32, then those in ascending order.
float whole_sum(std::array<float, kLowRankSums>& sums) {
  for (int step = 16; step > 0; step /= 2)
    for (int i = 0; i < kLowRankSums; ++i)
      if (i % 32 < step) sums[static_cast<std::size_t>(i)] += sums[static_cast<std::size_t>(i + step)];
  float sum = sums[0];
  for (std::size_t i = 32; i < kLowRankSums; i += 32) sum += sums[i];
  return sum;
}

void add_part(const LowRankCall& call, const LowRankCall::Part& part) {
  std::vector<float> a(static_cast<std::size_t>(call.cols)), low(static_cast<std::size_t>(part.rank));
  for (std::int64_t r = 0; r < call.x_rows; ++r) {
    if (call.scales[r] == 0) {
      if (call.apart) std::fill_n(part.y + r * part.y_stride, part.rows, -0.0f);
      continue;
    }
    const float* const x = call.x + r * call.cols;
    for (std::int64_t j = 0; j < part.rank; ++j) {
      decode_row(part.a_dtype, part.a + j * row_bytes(part.a_dtype, call.cols), call.cols, a.data());
      std::array<float, kLowRankSums> sums{};
      for (std::int64_t k = 0; k < call.cols; ++k) {
        float& sum = sums[static_cast<std::size_t>(k / kLowRankChunk % kLowRankSums)];
        sum = std::fma(a[static_cast<std::size_t>(k)], x[k], sum);
      }
      low[static_cast<std::size_t>(j)] = whole_sum(sums) * (part.factor * call.scales[r]);
    }
    for (std::int64_t n = 0; n < part.rows; ++n) {
      float sum = 0;
      for (std::int64_t j = 0; j < part.rank; ++j)
        sum = std::fma(part.b[j * part.b_stride + n], low[static_cast<std::size_t>(j)], sum);
      float& y = part.y[r * part.y_stride + n];
      y = call.apart ? sum : y + sum;
    }
  }
}

}  // namespace

Status add_low_rank(const LowRankCall& call, device::StreamRef stream) {
  for (int i = 0; i < call.count; ++i)
    if (call.parts[i].rank <= 0 || call.parts[i].rows <= 0) return simulated::refused();
  return simulated::launch(stream, call, [](const LowRankCall& c) {
    for (int i = 0; i < c.count; ++i) add_part(c, c.parts[i]);
  });
}

}  // namespace millrace::kernels::gpu
