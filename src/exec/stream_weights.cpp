#include "exec/stream_weights.h"

#include <algorithm>
#include <cmath>

#include "kernels/kernels.h"

namespace millrace::exec {
namespace {

/// Divides by (their sum + eps) the numbers of each line; `step` leads from number to number of a line, `next` from
/// line to line.
void divide_by_sums(float* x, std::int64_t lines, std::int64_t step, std::int64_t next, float eps) {
  for (std::int64_t line = 0; line < lines; ++line) {
    float sum = 0;
    for (std::int64_t i = 0; i < lines; ++i) sum += x[line * next + i * step];
    sum += eps;
    for (std::int64_t i = 0; i < lines; ++i) x[line * next + i * step] /= sum;
  }
}

/// x [source, target] = softmax over the targets of (scale * x + bias).
void softmax_of_targets(std::int64_t streams, float scale, const float* bias, float* x) {
  for (std::int64_t source = 0; source < streams; ++source) {
    float* const row = x + source * streams;
    for (std::int64_t i = 0; i < streams; ++i) row[i] = row[i] * scale + bias[source * streams + i];
    const float most = *std::max_element(row, row + streams);
    float sum = 0;
    for (std::int64_t i = 0; i < streams; ++i) sum += row[i] = kernels::exp_f32(row[i] - most);
    for (std::int64_t i = 0; i < streams; ++i) row[i] /= sum;
  }
}

}  // namespace

void weigh_read_streams(const StreamWeighing& weighing, float scale, const float* bias, float* x) {
  for (std::int64_t i = 0; i < weighing.streams; ++i)
    x[i] = kernels::sigmoid_f32(x[i] * scale + bias[i]) + weighing.eps;
}

void weigh_streams(const StreamWeighing& weighing, const float* scales, const float* bias, float* x) {
  const std::int64_t streams = weighing.streams;
  weigh_read_streams(weighing, scales[0], bias, x);
  for (std::int64_t i = streams; i < 2 * streams; ++i) x[i] = 2 * kernels::sigmoid_f32(x[i] * scales[1] + bias[i]);
  float stays[kMostStreams * kMostStreams];  // [source, target]
  float* const out = x + 2 * streams;
  std::copy_n(out, streams * streams, stays);
  softmax_of_targets(streams, scales[2], bias + 2 * streams, stays);
  for (std::int64_t i = 0; i < streams * streams; ++i) stays[i] += weighing.eps;
  divide_by_sums(stays, streams, streams, 1, weighing.eps);
  for (std::int64_t i = 1; i < weighing.iterations; ++i) {
    divide_by_sums(stays, streams, 1, streams, weighing.eps);
    divide_by_sums(stays, streams, streams, 1, weighing.eps);
  }
  for (std::int64_t source = 0; source < streams; ++source)
    for (std::int64_t target = 0; target < streams; ++target)
      out[target * streams + source] = stays[source * streams + target];
}

void weigh_writes(std::int64_t streams, float* x) {
  for (std::int64_t i = 0; i < streams; ++i) x[i] = 2 * kernels::sigmoid_f32(x[i]);
}

float gate_of_stream(const float* x, const float* y, std::int64_t dim) {
  constexpr std::int64_t kLanes = 16;
  constexpr float kLeast = 1e-6f;  // whose root is taken
  float lanes[kLanes] = {};
  for (std::int64_t i = 0; i + kLanes <= dim; i += kLanes)
    for (std::int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] += x[i + lane] * y[i + lane];
  for (std::int64_t i = dim / kLanes * kLanes; i < dim; ++i) lanes[i % kLanes] += x[i] * y[i];
  float sum = 0;
  for (const float lane : lanes) sum += lane;
  sum /= std::sqrt(static_cast<float>(dim));
  const float root = std::sqrt(std::max(std::abs(sum), kLeast));
  return kernels::sigmoid_f32(sum > 0 ? root : sum < 0 ? -root : 0);
}

}  // namespace millrace::exec
