#include "convert/work.h"

#include <algorithm>

#include "modelfile/escape.h"
#include "tensor/codec.h"

namespace millrace::convert {
namespace {

constexpr int kMostThreads = 32;  // more would only wait for the disk, each with memory of its own

Status check_range(const Target& target, DType dtype, std::span<const float> numbers) {
  const NumberRange range = range_of(numbers);
  if (!range.finite)
    return error(Code::corrupt, "tensor '{}' would hold a weight that is NaN or infinite; get the checkpoint again",
                 modelfile::escape(target.name, 120));
  if (dtype == DType::f16 && range.largest >= kBeyondHalf)
    return error(Code::unsupported, "tensor '{}' holds weights up to {}, beyond F16; choose bf16",
                 modelfile::escape(target.name, 120), range.largest);
  return {};
}

/// Row by row where columns have importance: each with that of its matrix.
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

}  // namespace

Work::Work(const WorkOptions& options, std::uint64_t total) : options_(options), total_(total) {
  const int threads = options.threads > 0 ? options.threads : ThreadPool::usable_processors();
  pool_ = std::make_unique<ThreadPool>(ThreadPool::Options{.threads = std::min(threads, kMostThreads), .pin = false});
  workers_.resize(static_cast<std::size_t>(pool_->threads()));
}

Status Work::make(const Target& target, std::span<const Source> sources, DType dtype, const Write& write,
                  std::span<const float> importance) {
  const std::int64_t rows = target.piece_rows, pieces = (target.rows + rows - 1) / rows;
  pool_->parallel_for(pieces, 1, [&](std::int64_t begin, std::int64_t end, int thread) {
    Worker& worker = workers_[static_cast<std::size_t>(thread)];
    for (std::int64_t piece = begin; piece < end && !failed_.load(std::memory_order_relaxed); ++piece) {
      worker.status = make_piece(target, sources, dtype, piece * rows, worker, write, importance);
      if (!worker.status.ok()) failed_ = true;
      if (thread == 0 && options_.progress) options_.progress(done_.load(), total_);
    }
  });
  for (const Worker& worker : workers_) MR_RETURN_IF_ERROR(worker.status);
  return {};
}

Status Work::make_piece(const Target& target, std::span<const Source> sources, DType dtype, std::int64_t first,
                        Worker& worker, const Write& write, std::span<const float> importance) {
  if (options_.cancel != nullptr && options_.cancel->load(std::memory_order_relaxed))
    return error(Code::cancelled, "it was cancelled; nothing was written");
  const std::int64_t count = std::min(target.piece_rows, target.rows - first), elements = count * target.cols;
  worker.output.resize(static_cast<std::size_t>(row_bytes(dtype, elements)));
  if (is_copy(target, sources, dtype)) {
    MR_RETURN_IF_ERROR(gather_bytes(target, sources, dtype, first, count, worker.scratch, worker.output.data()));
  } else {
    worker.floats.resize(static_cast<std::size_t>(elements));
    MR_RETURN_IF_ERROR(gather_floats(target, sources, first, count, worker.scratch, worker.floats.data()));
    MR_RETURN_IF_ERROR(check_range(target, dtype, worker.floats));
    encode_rows(target, dtype, first, worker.floats, importance, worker.output.data());
  }
  done_ += worker.output.size();
  return write(static_cast<std::uint64_t>(row_bytes(dtype, first * target.cols)), worker.output);
}

}  // namespace millrace::convert
