// The processor's half of products that GPU and processor share: the last rows of a matrix, computed where they lie in
// page-locked memory, while the first rows cross to the GPU and are computed there.
//
// For each job the GPU hands out its input, goes on with its own rows, and takes in the processor's (exchange.h),
// which the exchange's thread computes with the pool.
// Numerics: the processor's rows have the GPU's bits (matmul_segments of kernels.h), so that it does not matter who
// computes a row. Thread-safety: one thread calls; between the first add() and the end of finish() or
// abandon() nobody else uses the pool.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "base/thread_pool.h"
#include "base/trace.h"
#include "device/device.h"
#include "exec/gpu/exchange.h"
#include "kernels/gpu/exchange.h"
#include "kernels/kernels.h"
#include "residency/budget.h"
#include "residency/plan.h"
#include "tensor/dtype.h"

namespace millrace::exec {

/// Passes of at most so many rows are shared; of more, the processor would be the slower way.
using residency::kSplitRows;

class HostShare final : public HostExchange {
 public:
  struct Sizes {
    std::int64_t rows = 0;           // of a pass, at most
    std::int64_t widest_input = 0;   // floats
    std::int64_t widest_output = 0;  // floats of the processor's rows of all products of one job, at most
  };
  /// `pool`, `ram` and `trace` (may be null) outlive the object. Errors: out_of_budget, io_error.
  static Expected<std::unique_ptr<HostShare>> create(const Sizes& sizes, ThreadPool& pool, const kernels::Table& table,
                                                     residency::Budget& ram, Trace* trace);
  ~HostShare() override { stop(); }

  /// Rows of a matrix.
  struct Matrix {
    const std::byte* weight = nullptr;  // the processor's first row
    const std::byte* up = nullptr;      // gated: likewise, of the up matrix
    const float* bias = nullptr;        // may be null; of the processor's first row
    DType dtype = DType::f32, up_dtype = DType::f32;
    std::int64_t rows = 0;
    std::int64_t first_output = 0;                               // in the outputs, floats
    kernels::Activation activation = kernels::Activation::silu;  // of a gate, before up
    float limit = 0;                                             // of Activation::limited and bounded
  };
  struct Job {
    std::uint32_t number = 0;
    std::int64_t rows = 0, cols = 0;  // of the input
    std::array<Matrix, 3> matrices;
    int count = 0;
  };

  /// For the launches: where the device sees inputs and outputs.
  float* device_input() const { return device_at<float>(kPayload); }
  const float* device_output() const { return device_at<float>(output_at_); }
  std::int64_t output_floats() const { return sizes_.rows * sizes_.widest_output; }

  /// Queues a job whose hand_out and take_in are on `stream`; waits while many are queued. REQUIRES: the job's weights
  /// lie in RAM.
  void add(const Job& job, device::StreamRef stream) { enqueue(jobs_, job, stream); }

  /// Weight bytes that the processor has read, and the time that took. REQUIRES: nothing is queued.
  std::uint64_t weight_bytes() const { return weight_bytes_; }
  std::uint64_t compute_ns() const { return compute_ns_; }

 private:
  HostShare(const Sizes& sizes, ThreadPool& pool, const kernels::Table& table, Trace* trace)
      : sizes_(sizes), pool_(pool), table_(table), trace_(trace) {}

  Status compute(std::size_t place) override;
  void multiply_rows(const Job& job, const Matrix& matrix, std::int64_t begin, std::int64_t end, int thread);
  std::byte* thread_memory(int thread) const {
    return work_.data() + q8_bytes_ + static_cast<std::uint64_t>(thread) * thread_bytes_;
  }

  const Sizes sizes_;
  ThreadPool& pool_;
  const kernels::Table& table_;
  Trace* const trace_;
  residency::Reservation reservation_;
  std::uint64_t output_at_ = 0;  // in the exchange's memory, behind the input
  device::HostBuffer work_;      // an input as int8, then each thread's workspace and its rows of up
  std::uint64_t q8_bytes_ = 0, thread_bytes_ = 0, workspace_bytes_ = 0;
  std::uint64_t weight_bytes_ = 0, compute_ns_ = 0;
  std::uint64_t inputs_ = 0;  // names the present one
  std::array<Job, kMostQueued> jobs_;
};

}  // namespace millrace::exec
