// What the processor does to rows of activations around its products, for the CPU executor and for its share beside a
// GPU. Thread-safety: quantize_rows uses the pool; gate_rows is for any thread, with scratch of its own.
#pragma once

#include <cstdint>

#include "base/thread_pool.h"
#include "kernels/kernels.h"

namespace millrace::exec {

/// x [rows, cols], dense, as int8 in `out`. Blocks are independent, so that a long row is cut for the threads, too; few
/// floats are not worth waking them.
void quantize_rows(const kernels::Table& table, ThreadPool& pool, const float* x, std::int64_t rows, std::int64_t cols,
                   kernels::Q8Rows out);

/// y = activation(y) * (x up^T): `up` is that product, whose y holds the gate's products; `matmul` is one of the
/// table's. scratch: float [x_rows, weight_rows].
void gate_rows(const kernels::Table& table, void (*matmul)(const kernels::MatmulArgs&), kernels::Activation activation,
               const kernels::MatmulArgs& up, float* scratch);

}  // namespace millrace::exec
