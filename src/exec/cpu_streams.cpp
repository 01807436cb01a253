// Models of several residual streams: what mixes them, and the ops of their layers that others do not have.
#include <algorithm>

#include "exec/cpu_executor.h"
#include "exec/stream_weights.h"

namespace millrace::exec {

void CpuExecutor::cap(Act x, float most) {
  if (!ready()) return;
  const std::int64_t cols = cols_of(x);
  for_rows(rows_of(x), cols, [&](std::int64_t begin, std::int64_t end) {
    table_.softcap(data(x) + begin * cols, most, (end - begin) * cols);
  });
}

void CpuExecutor::statistical_top_k(Act x, float deviations) {
  if (!ready()) return;
  const std::int64_t cols = cols_of(x);
  for_rows(rows_of(x), cols, [&](std::int64_t begin, std::int64_t end) {
    table_.statistical_top_k(data(x) + begin * cols, end - begin, cols, deviations);
  });
}

void CpuExecutor::match_rms(Act x, Act like, float least) {
  if (!ready()) return;
  const std::int64_t cols = cols_of(x), part = cols_of(like);
  for_rows(rows_of(x), cols, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r)
      for (float* own = data(x) + r * cols; own != data(x) + (r + 1) * cols; own += part)
        table_.match_rms(own, data(like) + r * part, 1, part, least);
  });
}

void CpuExecutor::add_streams(const Step& step) {
  if (!ready()) return;
  const std::int64_t dim = step.head_dim, streams = cols_of(step.b) / dim;
  const std::int64_t cols = cols_of(step.out), targets = cols / dim - step.first;
  for_rows(rows_of(step.out), cols, [&](std::int64_t begin, std::int64_t end) {
    if (step.from_zero) std::fill(data(step.out) + begin * cols, data(step.out) + end * cols, 0.0f);
    for (std::int64_t r = begin; r < end; ++r) {
      const float* const weights = step.c.buffer < 0 ? nullptr : data(step.c) + r * targets * streams;
      for (std::int64_t i = 0; i < targets; ++i)
        for (std::int64_t j = 0; j < streams; ++j) {
          const float weight = (weights == nullptr ? 0 : weights[i * streams + j]) + step.factor;
          table_.add_scaled(data(step.out) + r * cols + (step.first + i) * dim, data(step.b) + (r * streams + j) * dim,
                            weight, dim);
        }
    }
  });
}

void CpuExecutor::weigh_streams(const Step& step) {
  if (!ready()) return;
  const std::int64_t cols = cols_of(step.a), scaled = cols == step.weighing.streams ? 1 : 3;
  if (step.weight.none()) {
    for (std::int64_t r = 0; r < rows_of(step.a); ++r) weigh_writes(cols, data(step.a) + r * cols);
    return;
  }
  const float* const scales = kept_vector_of(step.weight, scaled, 0);
  if (scales == nullptr) return;
  const float* const bias = vector_of(step.weight2, cols, 1);
  if (bias == nullptr) return;
  for_rows(rows_of(step.a), cols * step.weighing.iterations, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      float* const x = data(step.a) + r * cols;
      if (scaled == 1)
        weigh_read_streams(step.weighing, scales[0], bias, x);
      else
        exec::weigh_streams(step.weighing, scales, bias, x);
    }
  });
}

void CpuExecutor::gate_streams(const Step& step) {
  if (!ready()) return;
  const std::int64_t dim = step.head_dim, streams = cols_of(step.out);
  for_rows(rows_of(step.out), streams * dim, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin * streams; i < end * streams; ++i)
      data(step.out)[i] = gate_of_stream(data(step.a) + i * dim, data(step.b) + i * dim, dim);
  });
}

}  // namespace millrace::exec
