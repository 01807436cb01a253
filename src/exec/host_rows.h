// The CPU's work on rows of activations before and after products, for the CPU executor and for the CPU's share of a
// GPU's pass. Thread-safety: quantize_rows uses the pool; any thread may call the others with separate scratch.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/thread_pool.h"
#include "kernels/kernels.h"
#include "tensor/dtype.h"

namespace millrace::exec {

/// Quantizes x [rows, cols], dense, to int8 in `out`. Blocks are independent, so a long row is also divided among the
/// threads; a few floats are quantized without the pool.
void quantize_rows(const kernels::Table& table, ThreadPool& pool, const float* x, std::int64_t rows, std::int64_t cols,
                   kernels::Q8Rows out);

/// How the CPU's share of a product is divided among its threads: into tasks of 16 KiB of weights, which take a few
/// microseconds to read if many cores share the memory, in multiples of the kernels' rows; a thread takes kTasksAtOnce
/// of them while many are left.
constexpr std::int64_t kTasksAtOnce = 4;
constexpr std::int64_t kMostTaskRows = 256;  // of all that are computed at once
/// Weight rows of a task.
std::int64_t task_rows(DType dtype, std::int64_t cols);
/// Arguments of a product with rows [begin, end) of `weight`; the caller adds x and y.
kernels::MatmulArgs rows_of(DType dtype, const std::byte* weight, std::int64_t cols, std::int64_t begin,
                            std::int64_t end);

/// The activation, scales and biases of a gate's and an up's products. Biases are those of the current rows; null:
/// none.
struct Gate {
  kernels::Activation activation = kernels::Activation::silu;
  const float* bias = nullptr;
  const float* up_bias = nullptr;
  float scale = 1, up_scale = 1;  // of the gate's products, and of the up's
  float limit = 0;                // of Activation::limited and bounded
};
/// The scale of one expert from a vector with one per expert; 1 if there is no vector (null).
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
