#include "exec/host_rows.h"

#include <algorithm>

namespace millrace::exec {

void quantize_rows(const kernels::Table& table, ThreadPool& pool, const float* x, std::int64_t rows, std::int64_t cols,
                   kernels::Q8Rows out) {
  constexpr std::int64_t kFewFloats = 16 * 1024;
  constexpr std::int64_t kPiece = 4096;  // floats of a row, whole blocks
  const std::int64_t pieces = (cols + kPiece - 1) / kPiece;
  const auto work = [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t p = begin; p < end; ++p) {
      const std::int64_t first = p % pieces * kPiece, at = p / pieces * cols + first;
      const std::int64_t count = std::min(kPiece, cols - first);
      table.quantize_q8(x + at, count, 1, count, {out.q + at, out.d + at / 32, out.sum16 + at / 16});
    }
  };
  if (rows * cols <= kFewFloats)
    work(0, rows * pieces, 0);
  else
    pool.parallel_for(rows * pieces, std::max<std::int64_t>(1, kPiece / cols), work);
}

std::int64_t task_rows(DType dtype, std::int64_t cols) {
  constexpr std::int64_t kTaskBytes = 16 * 1024, kRowStep = 4;
  return std::clamp(kTaskBytes / row_bytes(dtype, cols) / kRowStep * kRowStep, kRowStep, kMostTaskRows / kTasksAtOnce);
}

kernels::MatmulArgs rows_of(DType dtype, const std::byte* weight, std::int64_t cols, std::int64_t begin,
                            std::int64_t end) {
  kernels::MatmulArgs args;
  args.dtype = dtype;
  args.weight = weight + begin * row_bytes(dtype, cols);
  args.weight_rows = end - begin;
  args.cols = cols;
  return args;
}

static void scale_row(float* row, std::int64_t cols, float factor) {
  if (factor == 1) return;
  for (std::int64_t i = 0; i < cols; ++i) row[i] *= factor;
}

void end_rows(const kernels::Table& table, const Gate& gate, const kernels::MatmulArgs& product) {
  for (std::int64_t r = 0; r < product.x_rows; ++r) {
    float* const row = product.y + r * product.y_stride;
    scale_row(row, product.weight_rows, gate.scale);
    if (gate.bias != nullptr) table.add(row, gate.bias, product.weight_rows);
  }
}

void gate_rows(const kernels::Table& table, void (*matmul)(const kernels::MatmulArgs&), const Gate& gate,
               const kernels::MatmulArgs& up, float* scratch) {
  kernels::MatmulArgs args = up;
  args.y = scratch;
  args.y_stride = up.weight_rows;
  matmul(args);
  end_rows(table, gate, up);
  for (std::int64_t r = 0; r < up.x_rows; ++r) {
    float *const row = up.y + r * up.y_stride, *const factors = scratch + r * up.weight_rows;
    scale_row(factors, up.weight_rows, gate.up_scale);
    if (gate.up_bias != nullptr) table.add(factors, gate.up_bias, up.weight_rows);
    table.gate_mul(gate.activation, gate.limit, row, factors, up.weight_rows);
  }
}

void activate_rows(const kernels::Table& table, const Gate& gate, const kernels::MatmulArgs& up, float* scratch) {
  std::fill_n(scratch, up.weight_rows, 1.0f);
  end_rows(table, gate, up);
  for (std::int64_t r = 0; r < up.x_rows; ++r)
    table.gate_mul(gate.activation, gate.limit, up.y + r * up.y_stride, scratch, up.weight_rows);
}

}  // namespace millrace::exec
