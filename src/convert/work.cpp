#include "convert/work.h"

#include <algorithm>

#include "modelfile/escape.h"
#include "tensor/codec.h"
#include "tensor/matrices.h"

namespace millrace::convert {
namespace {

constexpr int kMostThreads = 32;  // more would wait for the disk, each with its own memory

Status check_range(const Target& target, DType dtype, std::span<const float> numbers) {
  const NumberRange range = range_of(numbers);
  if (!range.finite)
    return error(Code::corrupt,
                 "tensor '{}' would hold a weight that is NaN or infinite; download the checkpoint again",
                 modelfile::escape(target.name, 120));
  if (dtype == DType::f16 && range.largest >= kBeyondHalf)
    return error(Code::unsupported, "tensor '{}' holds weights up to {}, beyond F16; choose bf16",
                 modelfile::escape(target.name, 120), range.largest);
  return {};
}

/// Encodes row by row if columns have importance, with that of the row's matrix.
void encode_rows(const Target& target, DType dtype, std::int64_t first, std::span<const float> floats,
                 std::span<const float> importance, std::byte* out) {
  const auto elements = static_cast<std::int64_t>(floats.size());
  if (importance.empty()) return encode_row(dtype, floats.data(), elements, out);
  const std::int64_t cols = target.shape.front(), rows = target.rows * target.cols / cols;
  const std::int64_t rows_each = rows / (static_cast<std::int64_t>(importance.size()) / cols);
  for (std::int64_t at = 0; at < elements; at += cols) {
    const std::int64_t matrix = (first * target.cols + at) / cols / rows_each;
    encode_row(dtype, floats.data() + at, cols, out + row_bytes(dtype, at), importance.data() + matrix * cols);
  }
}

/// Calls part(matrix, weights) for each matrix's part of the rows from `first`.
template <typename Part>
void each_matrix_of(const Target& target, std::size_t matrices, std::int64_t first, std::span<float> rows,
                    const Part& part) {
  each_matrix(target.rows * target.cols, matrices, first * target.cols, std::ssize(rows),
              [&](std::size_t matrix, std::int64_t begin, std::int64_t end) {
                part(matrix, rows.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin)));
              });
}

}  // namespace

Work::Work(const WorkOptions& options, std::uint64_t total) : options_(options), total_(total) {
  const int threads = options.threads > 0 ? options.threads : ThreadPool::usable_processors();
  pool_ = std::make_unique<ThreadPool>(ThreadPool::Options{.threads = std::min(threads, kMostThreads), .pin = false});
  workers_.resize(static_cast<std::size_t>(pool_->threads()));
}

Status Work::each_piece(const Target& target, FunctionRef<Status(std::int64_t first, Worker& worker)> work) {
  const std::int64_t rows = target.piece_rows, pieces = (target.rows + rows - 1) / rows;
  pool_->parallel_for(pieces, 1, [&](std::int64_t begin, std::int64_t end, int thread) {
    Worker& worker = workers_[static_cast<std::size_t>(thread)];
    for (std::int64_t piece = begin; piece < end && !failed_.load(std::memory_order_relaxed); ++piece) {
      const bool cancelled = options_.cancel != nullptr && options_.cancel->load(std::memory_order_relaxed);
      worker.status =
          cancelled ? error(Code::cancelled, "it was cancelled; nothing was written") : work(piece * rows, worker);
      if (!worker.status.ok()) failed_ = true;
      if (thread == 0 && options_.progress) options_.progress(done_.load(), total_);
    }
  });
  for (const Worker& worker : workers_) MR_RETURN_IF_ERROR(worker.status);
  return {};
}

Status Work::make(const Target& target, std::span<const Source> sources, DType dtype, const Write& write,
                  std::span<const float> importance, std::span<const float> factors) {
  const Making making{target, sources, dtype, importance, factors};
  return each_piece(target,
                    [&](std::int64_t first, Worker& worker) { return make_piece(making, first, worker, write); });
}

Expected<std::vector<float>> Work::largest(const Target& target, std::span<const Source> sources,
                                           std::size_t matrices) {
  for (Worker& worker : workers_) worker.largest.assign(matrices, 0);
  MR_RETURN_IF_ERROR(each_piece(target, [&](std::int64_t first, Worker& worker) -> Status {
    MR_RETURN_IF_ERROR(read_floats(target, sources, DType::f32, first, worker));
    each_matrix_of(target, matrices, first, worker.floats, [&](std::size_t matrix, std::span<float> weights) {
      worker.largest[matrix] = std::max(worker.largest[matrix], range_of(weights).largest);
    });
    return {};
  }));
  std::vector<float> largest(matrices, 0);
  for (const Worker& worker : workers_)
    for (std::size_t m = 0; m < matrices; ++m) largest[m] = std::max(largest[m], worker.largest[m]);
  return largest;
}

Status Work::read_floats(const Target& target, std::span<const Source> sources, DType dtype, std::int64_t first,
                         Worker& worker) const {
  const std::int64_t count = std::min(target.piece_rows, target.rows - first);
  worker.floats.resize(static_cast<std::size_t>(count * target.cols));
  MR_RETURN_IF_ERROR(gather_floats(target, sources, first, count, worker.scratch, worker.floats.data()));
  return check_range(target, dtype, worker.floats);
}

Status Work::make_piece(const Making& making, std::int64_t first, Worker& worker, const Write& write) {
  const Target& target = making.target;
  const std::int64_t count = std::min(target.piece_rows, target.rows - first);
  worker.output.resize(static_cast<std::size_t>(row_bytes(making.dtype, count * target.cols)));
  if (is_copy(target, making.sources, making.dtype)) {
    MR_RETURN_IF_ERROR(
        gather_bytes(target, making.sources, making.dtype, first, count, worker.scratch, worker.output.data()));
  } else {
    MR_RETURN_IF_ERROR(read_floats(target, making.sources, making.dtype, first, worker));
    if (!making.factors.empty())
      each_matrix_of(target, making.factors.size(), first, worker.floats,
                     [&](std::size_t matrix, std::span<float> weights) {
                       for (float& weight : weights) weight /= making.factors[matrix];
                     });
    encode_rows(target, making.dtype, first, worker.floats, making.importance, worker.output.data());
  }
  done_ += worker.output.size();
  return write(static_cast<std::uint64_t>(row_bytes(making.dtype, first * target.cols)), worker.output);
}

}  // namespace millrace::convert
