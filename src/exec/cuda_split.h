// The processor's half of products that GPU and processor share: the last rows of a matrix, computed where they lie in
// page-locked memory, while the first rows cross to the GPU and are computed there; or a whole feed-forward, while the
// layers behind it cross.
//
// For each job the GPU hands out its input (kernels/cuda/exchange.h), goes on with its own rows, and takes in the
// processor's when their flag says so. Jobs are queued as the launches are made; a thread of its own runs them with the
// pool, so that launches are made far ahead and nobody waits for one. Every queued job is run or abandoned: the stream
// waits for its flag.
// Numerics: the processor's rows have the GPU's bits (matmul_segments of kernels.h), so that it does not matter who
// computes a row. Thread-safety: one thread calls; between the first add() and the end of finish() or
// abandon() nobody else uses the pool.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <thread>

#include "base/thread_pool.h"
#include "base/trace.h"
#include "device/cuda_runtime.h"
#include "kernels/cuda/exchange.h"
#include "kernels/kernels.h"
#include "residency/budget.h"
#include "residency/plan.h"
#include "tensor/dtype.h"

namespace millrace::exec {

/// Passes of at most so many rows are shared; of more, the processor would be the slower way.
using residency::kSplitRows;

class HostShare {
 public:
  struct Sizes {
    std::int64_t rows = 0;           // of a pass, at most
    std::int64_t widest_input = 0;   // floats
    std::int64_t widest_output = 0;  // floats of the processor's rows of all products of one job, at most
    std::int64_t widest_hidden = 0;  // of a feed-forward: rows of its gate, at most; 0 where there is none
  };
  /// `pool`, `ram` and `trace` (may be null) outlive the object. Errors: out_of_budget, io_error.
  static Expected<std::unique_ptr<HostShare>> create(const Sizes& sizes, ThreadPool& pool, const kernels::Table& table,
                                                     residency::Budget& ram, Trace* trace);
  ~HostShare();

  /// Rows of a matrix.
  struct Matrix {
    const std::byte* weight = nullptr;  // the processor's first row
    const std::byte* up = nullptr;      // gated: likewise, of the up matrix
    const float* bias = nullptr;        // may be null; of the processor's first row
    DType dtype = DType::f32, up_dtype = DType::f32;
    std::int64_t rows = 0;
    std::int64_t first_output = 0;                               // in the outputs, floats
    kernels::Activation activation = kernels::Activation::silu;  // of a gate, before up
  };
  struct Job {
    std::uint32_t number = 0;
    std::int64_t rows = 0, cols = 0;  // of the input
    std::array<Matrix, 3> matrices;
    int count = 0;
    // A feed-forward: the one matrix above is its gate and up, whose rows stay here and are this one's input.
    Matrix down;
  };

  /// For the launches: number of the next job, and where the device sees inputs, outputs and flags.
  std::uint32_t next_number() { return ++last_number_; }
  float* device_input() const { return device_at<float>(input_at_); }
  const float* device_output() const { return device_at<float>(output_at_); }
  std::uint32_t* device_input_flag() const { return device_at<std::uint32_t>(0); }
  const std::uint32_t* device_output_flag() const { return device_at<std::uint32_t>(kFlagBytes); }
  std::uint32_t* arrived() const { return reinterpret_cast<std::uint32_t*>(words_.data()); }
  std::uint32_t* seen() const { return reinterpret_cast<std::uint32_t*>(words_.data() + kFlagBytes); }
  std::int64_t output_floats() const { return sizes_.rows * sizes_.widest_output; }

  /// Queues a job whose hand_out and take_in are on `stream`. Waits while many are queued: a thread that waits for the
  /// device's queue of launches would do so on a processor that is needed. REQUIRES: the job's weights lie in RAM.
  void add(const Job& job, cudaStream_t stream);
  /// Waits until all that were queued are done. Errors: io_error (the device is lost); then abandon() is due.
  Status finish();
  /// Sets the flags of all jobs that have numbers without computing more: the pass has failed.
  void abandon();

  /// Weight bytes that the processor has read, and the time that took. REQUIRES: nothing is queued.
  std::uint64_t weight_bytes() const { return weight_bytes_; }
  std::uint64_t compute_ns() const { return compute_ns_; }

 private:
  HostShare(const Sizes& sizes, ThreadPool& pool, const kernels::Table& table, Trace* trace)
      : sizes_(sizes), pool_(pool), table_(table), trace_(trace) {}

  static constexpr std::uint64_t kFlagBytes = 256;  // each flag on lines of its own
  template <typename T>
  T* host_at(std::uint64_t offset) const {
    return reinterpret_cast<T*>(shared_.data() + offset);
  }
  template <typename T>
  T* device_at(std::uint64_t offset) const {
    return reinterpret_cast<T*>(device_shared_ + offset);
  }
  void run_jobs();
  bool await_input(std::uint32_t number, cudaStream_t stream);
  /// Rows of activations in host memory, dense.
  struct Input {
    const float* x = nullptr;
    std::int64_t rows = 0, cols = 0;
  };
  void compute(const Job& job);
  /// Each matrix's products go to `out`, from its first_output on.
  void multiply(std::span<const Matrix> matrices, const Input& input, float* out);
  void multiply_rows(const Matrix& matrix, const Input& input, float* out, std::int64_t begin, std::int64_t end,
                     int thread);
  void done(std::uint32_t number);
  float* hidden() const { return reinterpret_cast<float*>(work_.data() + q8_bytes_); }
  std::byte* thread_memory(int thread) const {
    return work_.data() + q8_bytes_ + hidden_bytes_ + static_cast<std::uint64_t>(thread) * thread_bytes_;
  }

  const Sizes sizes_;
  ThreadPool& pool_;
  const kernels::Table& table_;
  Trace* const trace_;
  residency::Reservation reservation_;
  device::PinnedBuffer shared_;  // flags, input, outputs
  std::byte* device_shared_ = nullptr;
  std::uint64_t input_at_ = 0, output_at_ = 0;
  device::DeviceBuffer words_;
  device::HostBuffer work_;  // an input as int8, hidden rows, then each thread's workspace and its rows of up
  std::uint64_t q8_bytes_ = 0, hidden_bytes_ = 0, thread_bytes_ = 0, workspace_bytes_ = 0;
  std::uint32_t last_number_ = 0;
  std::uint64_t weight_bytes_ = 0, compute_ns_ = 0;
  std::uint64_t inputs_ = 0;  // names the present one

  struct Queued {
    Job job;
    cudaStream_t stream = nullptr;
  };
  std::mutex mutex_;
  std::condition_variable changed_;
  static constexpr std::size_t kMostQueued = 16, kFewQueued = 6;  // launches are made so far ahead
  std::array<Queued, kMostQueued> queue_;                         // GUARDED_BY mutex_: a ring of `queued_`
  std::size_t first_ = 0, queued_ = 0;                            // likewise; the first is being computed
  Status status_;        // GUARDED_BY mutex_: the first failure since the last finish() or abandon()
  bool ending_ = false;  // GUARDED_BY mutex_
  std::atomic<bool> abandoned_{false};
  std::thread thread_;
};

}  // namespace millrace::exec
