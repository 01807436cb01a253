#include "exec/gpu/split.h"

#include <algorithm>
#include <span>

#include "base/bytes.h"
#include "exec/host_rows.h"

namespace millrace::exec {

Expected<std::unique_ptr<HostShare>> HostShare::create(const Sizes& sizes, ThreadPool& pool,
                                                       const kernels::Table& table, residency::Budget& ram,
                                                       Trace* trace) {
  std::unique_ptr<HostShare> share(new HostShare(sizes, pool, table, trace));
  share->output_at_ =
      round_up(kPayload + static_cast<std::uint64_t>(sizes.rows * sizes.widest_input) * sizeof(float), 256);
  share->q8_bytes_ =
      round_up(static_cast<std::uint64_t>(kernels::q8_bytes(sizes.rows, sizes.widest_input)), device::kPageBytes);
  share->workspace_bytes_ =
      round_up(static_cast<std::uint64_t>(table.matmul_segments_workspace_bytes(sizes.widest_input)), 64);
  share->thread_bytes_ =
      round_up(share->workspace_bytes_ + static_cast<std::uint64_t>(sizes.rows * kMostTaskRows) * sizeof(float), 64);
  const std::uint64_t shared = share->output_at_ + static_cast<std::uint64_t>(share->output_floats()) * sizeof(float);
  const std::uint64_t work = share->q8_bytes_ + static_cast<std::uint64_t>(pool.threads()) * share->thread_bytes_;
  MR_ASSIGN_OR_RETURN(share->reservation_, ram.reserve("shared products", shared + work));
  MR_ASSIGN_OR_RETURN(share->work_, device::HostBuffer::reserve(work, device::Pages::normal));
  MR_RETURN_IF_ERROR(share->start(shared - kPayload));
  return share;
}

Status HostShare::compute(std::size_t place) {
  const Job& job = jobs_[place];
  const std::uint64_t begin_ns = Trace::now_ns();
  const std::span<const Matrix> matrices(job.matrices.data(), static_cast<std::size_t>(job.count));
  ++inputs_;
  bool quantized = false;
  std::array<std::int64_t, 3> rows_of_task{}, first_task{};
  std::int64_t tasks = 0;
  for (std::size_t i = 0; i < matrices.size(); ++i) {
    const Matrix& matrix = matrices[i];
    const bool swiglu = matrix.up != nullptr;
    quantized = quantized || kernels::uses_q8(matrix.dtype) || (swiglu && kernels::uses_q8(matrix.up_dtype));
    rows_of_task[i] = task_rows(matrix.dtype, job.cols);
    first_task[i] = tasks;
    tasks += (matrix.rows + rows_of_task[i] - 1) / rows_of_task[i];
    weight_bytes_ += static_cast<std::uint64_t>(
        matrix.rows * (row_bytes(matrix.dtype, job.cols) + (swiglu ? row_bytes(matrix.up_dtype, job.cols) : 0)));
  }
  if (quantized)
    quantize_rows(table_, pool_, host_at<float>(kPayload), job.rows, job.cols,
                  kernels::q8_rows_at(work_.data(), job.rows, job.cols));
  const auto work = [&](std::size_t, std::int64_t task, std::int64_t end, int thread) {
    while (task < end) {
      std::size_t m = matrices.size() - 1;
      while (task < first_task[m]) --m;
      const std::int64_t first = (task - first_task[m]) * rows_of_task[m];
      const std::int64_t last = std::min(first + (end - task) * rows_of_task[m], matrices[m].rows);
      multiply_rows(job, matrices[m], first, last, thread);
      task += (last - first + rows_of_task[m] - 1) / rows_of_task[m];
    }
  };
  pool_.parallel_runs(std::span(&tasks, 1), kTasksAtOnce, work);
  const std::uint64_t end_ns = Trace::now_ns();
  compute_ns_ += end_ns - begin_ns;
  if (trace_ != nullptr) trace_->add("CPU", "shared product", begin_ns, end_ns);
  return {};
}

/// Rows [begin, end) of the processor's rows of a matrix.
void HostShare::multiply_rows(const Job& job, const Matrix& matrix, std::int64_t begin, std::int64_t end, int thread) {
  kernels::MatmulArgs args = rows_of(matrix.dtype, matrix.weight, job.cols, begin, end);
  args.x = host_at<float>(kPayload);
  args.x_stride = job.cols;
  args.x_q8 = kernels::q8_rows_at(work_.data(), job.rows, job.cols);
  args.x_rows = job.rows;
  args.x_name = inputs_;
  args.workspace = thread_memory(thread);
  args.y = host_at<float>(output_at_) + matrix.first_output + begin;
  args.y_stride = matrix.rows;
  table_.matmul_segments(args);
  Gate gate{matrix.activation};
  gate.limit = matrix.limit;
  if (matrix.bias != nullptr) gate.bias = matrix.bias + begin;
  if (matrix.up == nullptr) return end_rows(table_, gate, args);
  args.dtype = matrix.up_dtype;
  args.weight = matrix.up + begin * row_bytes(matrix.up_dtype, job.cols);
  gate_rows(table_, table_.matmul_segments, gate, args,
            reinterpret_cast<float*>(thread_memory(thread) + workspace_bytes_));
}

}  // namespace millrace::exec
