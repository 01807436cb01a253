// What the processor does to rows of activations around its products, for the CPU executor and for its share beside a
// GPU. Thread-safety: quantize_rows uses the pool; the others are for any thread, with scratch of its own.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/thread_pool.h"
#include "kernels/kernels.h"
#include "tensor/dtype.h"

namespace millrace::exec {

/// x [rows, cols], dense, as int8 in `out`. Blocks are independent, so that a long row is cut for the threads, too; few
/// floats are not worth waking them.
void quantize_rows(const kernels::Table& table, ThreadPool& pool, const float* x, std::int64_t rows, std::int64_t cols,
                   kernels::Q8Rows out);

/// How the processor's share of a product is cut for its threads: tasks of 16 KiB of weights, some microseconds of
/// reading where many cores share the memory, in whole steps of the kernels' rows; kTasksAtOnce of them while many are
/// left.
constexpr std::int64_t kTasksAtOnce = 4;
constexpr std::int64_t kMostTaskRows = 256;  // of all that are computed at once
/// Weight rows of a task.
std::int64_t task_rows(DType dtype, std::int64_t cols);
/// Arguments of a product with rows [begin, end) of `weight`; the caller adds x and y.
kernels::MatmulArgs rows_of(DType dtype, const std::byte* weight, std::int64_t cols, std::int64_t begin,
                            std::int64_t end);

/// What the products of a gate and an up go through; biases are of the rows at hand, null: none.
struct Gate {
  kernels::Activation activation = kernels::Activation::silu;
  const float* bias = nullptr;
  const float* up_bias = nullptr;
  float scale = 1, up_scale = 1;  // of the gate's products, and of the up's
  float limit = 0;                // of Activation::limited
};
/// An expert's number among those of all; 1 where there are none (null).
inline float scale_of(const float* scales, std::int32_t expert = 0) { return scales == nullptr ? 1 : scales[expert]; }
/// y = y * scale + bias: `product` is what made y.
void end_rows(const kernels::Table& table, const Gate& gate, const kernels::MatmulArgs& product);
/// y = gated(y * scale + bias, x up^T * up_scale + up_bias): `up` is that product, whose y holds the gate's products;
/// `matmul` is one of the table's. scratch: float [x_rows, weight_rows].
void gate_rows(const kernels::Table& table, void (*matmul)(const kernels::MatmulArgs&), const Gate& gate,
               const kernels::MatmulArgs& up, float* scratch);
/// y = gated(y * scale + bias, 1): `up` is the product that made y. scratch: float [weight_rows].
void activate_rows(const kernels::Table& table, const Gate& gate, const kernels::MatmulArgs& up, float* scratch);

}  // namespace millrace::exec
