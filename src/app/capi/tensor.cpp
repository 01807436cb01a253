// The tensors' half of the C API: blocks by themselves, decoded or multiplied as the engine does it.
#include <algorithm>
#include <span>

#include "app/capi/common.h"
#include "base/thread_pool.h"
#include "device/cpu.h"
#include "device/host_memory.h"
#include "exec/host_rows.h"
#include "kernels/kernels.h"
#include "tensor/codec.h"
#include "tensor/dtype.h"

using namespace millrace;  // NOLINT: the whole file is the border to C

namespace {

constexpr int kMostThreads = 1024;
// Of weights or of results: below that, a thread costs more to start than it saves.
constexpr std::uint64_t kBytesOfThread = 128 * 1024;

struct Matrix {
  DType dtype;
  const std::byte* data;  // [rows] of row_bytes
  std::int64_t rows, cols, row_bytes;
};

/// Sizes are compared by division, so that none overflows. Errors: unsupported, invalid_argument.
Expected<Matrix> check_matrix(std::uint32_t type, const void* data, std::size_t bytes, std::int64_t rows,
                              std::int64_t cols) {
  MR_ASSIGN_OR_RETURN(const DType dtype, dtype_from_id(type));
  const DTypeInfo& known = info(dtype);
  if (!known.computable)
    return error(Code::unsupported, "{} holds numbers for others: it is not computed with", known.name);
  if (rows <= 0 || cols <= 0) return error(Code::invalid_argument, "a matrix of {} x {}", rows, cols);
  if (cols % known.block_elements != 0) {
    return error(Code::invalid_argument, "{} columns are no multiple of {}, the elements of a block of {}", cols,
                 known.block_elements, known.name);
  }
  const auto blocks = static_cast<std::uint64_t>(cols / known.block_elements);
  const auto block_bytes = static_cast<std::uint64_t>(known.block_bytes);
  const bool fits = blocks <= bytes / block_bytes && bytes % (blocks * block_bytes) == 0 &&
                    bytes / (blocks * block_bytes) == static_cast<std::uint64_t>(rows);
  if (!fits) {
    return error(Code::invalid_argument, "{} bytes are not {} rows of {} blocks of {} bytes", bytes, rows, blocks,
                 block_bytes);
  }
  return Matrix{dtype, static_cast<const std::byte*>(data), rows, cols,
                static_cast<std::int64_t>(blocks * block_bytes)};
}

/// As many as were asked for, and as the work is worth. They are not bound: an engine may have the same processors.
Expected<ThreadPool::Options> threads_for(int asked, std::uint64_t bytes) {
  if (asked < 0 || asked > kMostThreads) {
    return error(Code::invalid_argument, "threads: from 1 to {}, or 0 for all processors", kMostThreads);
  }
  const auto most = static_cast<std::uint64_t>(asked == 0 ? ThreadPool::usable_processors() : asked);
  return ThreadPool::Options{.threads = static_cast<int>(std::clamp<std::uint64_t>(bytes / kBytesOfThread, 1, most)),
                             .pin = false};
}

Status dequantize(const Matrix& matrix, float* out, int threads) {
  const auto row_floats = static_cast<std::uint64_t>(matrix.cols);
  MR_ASSIGN_OR_RETURN(const auto options,
                      threads_for(threads, static_cast<std::uint64_t>(matrix.rows) * row_floats * sizeof(float)));
  // Rows may be few and long: pieces are of blocks.
  const std::int64_t block = info(matrix.dtype).block_elements, blocks = matrix.cols / block * matrix.rows;
  const std::int64_t block_bytes = info(matrix.dtype).block_bytes;
  const auto work = [&](std::int64_t begin, std::int64_t end, int) {
    decode_row(matrix.dtype, matrix.data + begin * block_bytes, (end - begin) * block, out + begin * block);
  };
  ThreadPool pool(options);
  pool.parallel_for(blocks, 16 * 1024 / block, work);
  return {};
}

/// The engine's product of one token: NUMERICS in kernels/kernels.h. x: [cols], y: [rows].
Status gemv(const Matrix& matrix, const float* x, float* y, int threads) {
  MR_ASSIGN_OR_RETURN(const auto options,
                      threads_for(threads, static_cast<std::uint64_t>(matrix.rows * matrix.row_bytes)));
  const kernels::Table& table = kernels::table(device::best_isa());
  ThreadPool pool(options);
  const auto aligned = [](std::int64_t bytes) { return static_cast<std::size_t>((bytes + 63) / 64 * 64); };
  const std::size_t workspace_bytes = aligned(table.matmul_workspace_bytes(matrix.cols));
  const std::size_t x_bytes = aligned(kernels::q8_bytes(1, matrix.cols));
  MR_ASSIGN_OR_RETURN(const auto memory,
                      device::HostBuffer::reserve(x_bytes + workspace_bytes * static_cast<std::size_t>(pool.threads()),
                                                  device::Pages::normal));
  const kernels::Q8Rows x_q8 = kernels::q8_rows_at(memory.data(), 1, matrix.cols);
  if (kernels::uses_q8(matrix.dtype)) exec::quantize_rows(table, pool, x, 1, matrix.cols, x_q8);

  const std::int64_t task_rows = exec::task_rows(matrix.dtype, matrix.cols);
  const auto work = [&](std::size_t, std::int64_t begin, std::int64_t end, int thread) {
    const std::int64_t first = begin * task_rows, last = std::min(end * task_rows, matrix.rows);
    kernels::MatmulArgs args = exec::rows_of(matrix.dtype, matrix.data, matrix.cols, first, last);
    args.x = x;
    args.x_stride = matrix.cols;
    args.x_q8 = x_q8;
    args.x_rows = 1;
    args.x_name = 1;
    args.y = y + first;
    args.y_stride = matrix.rows;
    args.workspace = memory.data() + x_bytes + workspace_bytes * static_cast<std::size_t>(thread);
    table.matmul(args);
  };
  const std::int64_t tasks = (matrix.rows + task_rows - 1) / task_rows;
  pool.parallel_runs(std::span(&tasks, 1), exec::kTasksAtOnce, work);
  return {};
}

}  // namespace

extern "C" {

millrace_status millrace_dequantize(uint32_t type, const void* data, size_t data_bytes, int64_t rows, int64_t cols,
                                    float* out, int threads) {
  return capi::guarded([&]() -> Status {
    if (data == nullptr || out == nullptr) return capi::refuse_null("data and out");
    MR_ASSIGN_OR_RETURN(const Matrix matrix, check_matrix(type, data, data_bytes, rows, cols));
    return dequantize(matrix, out, threads);
  });
}

millrace_status millrace_gemv(uint32_t type, const void* weight, size_t weight_bytes, int64_t rows, int64_t cols,
                              const float* x, float* y, int threads) {
  return capi::guarded([&]() -> Status {
    if (weight == nullptr || x == nullptr || y == nullptr) return capi::refuse_null("weight, x and y");
    MR_ASSIGN_OR_RETURN(const Matrix matrix, check_matrix(type, weight, weight_bytes, rows, cols));
    return gemv(matrix, x, y, threads);
  });
}

}  // extern "C"
