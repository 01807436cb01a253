// How fast the processor computes with weights: a model's products over memory that all threads share. Used by
// calibrate() and measure_briefly(). Thread-safety: one thread, which is the pool's caller.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "base/thread_pool.h"
#include "device/host_memory.h"
#include "kernels/kernels.h"
#include "residency/calibrate.h"

namespace millrace::residency {

/// Which of the calls of a work counts: so many of them are faster. Others' work only ever makes a call slower, so that
/// a fifth finds what the machine can do, and a half what it does now.
constexpr double kUndisturbed = 0.2, kTypical = 0.5;

/// Calls all works by turns until `seconds` have passed, at least three times; the time that each takes, in seconds.
template <typename... Work>
std::array<double, sizeof...(Work)> call_seconds(double seconds, double faster, Work... works) {
  using Clock = std::chrono::steady_clock;
  std::array<std::vector<double>, sizeof...(Work)> times;
  const auto call = [](std::vector<double>& of_work, const auto& work) {
    const auto start = Clock::now();
    work();
    of_work.push_back(seconds_since(start));
  };
  for (const auto begin = Clock::now(); times[0].size() < 3 || seconds_since(begin) < seconds;) {
    std::size_t i = 0;
    (call(times[i++], works), ...);
  }
  std::array<double, sizeof...(Work)> result;
  for (std::size_t i = 0; i < times.size(); ++i) {
    const auto place = static_cast<std::size_t>(static_cast<double>(times[i].size()) * faster);
    std::nth_element(times[i].begin(), times[i].begin() + static_cast<std::ptrdiff_t>(place), times[i].end());
    result[i] = times[i][place];
  }
  return result;
}

/// Bytes a second of all threads reading `memory`.
double measure_ram(ThreadPool& pool, std::span<const std::byte> memory, double seconds, double faster);

class KernelProbe {
 public:
  /// What prepare() takes beside the memory, at most, for so many threads.
  static std::uint64_t beside_bytes(const kernels::Table& table, int threads, std::uint64_t memory_bytes);

  /// memory: at least kHugePageBytes; it, the table and the pool outlive the object. faster: as in call_seconds().
  KernelProbe(const kernels::Table& table, ThreadPool& pool, std::span<std::byte> memory, double faster);

  /// Fills all of the memory with weights, and quantizes the activations. Errors: out_of_budget.
  Status prepare();

  /// One activation row, once: the weight bytes read.
  std::uint64_t decode();
  /// Weight bytes per second with one activation row: every weight is read once from memory.
  double decode_rate(double seconds);
  /// What a product of few weights takes beside their bytes at that rate: its input is rounded, threads begin together,
  /// find their rows, and end together. Each time other weights, so that no cache has them, and elsewhere, so that the
  /// product before has not asked for them.
  double product_seconds(double seconds, double rate);
  /// A few activation rows, once, in the GPU's order of sums: the multiply-accumulates.
  std::uint64_t few_rows();
  HostWork work();
  /// Multiply-accumulates per second with many activation rows.
  double prompt_rate(double seconds);
  /// Multiply-accumulates per second of a few activation rows with weights from memory.
  double rows_rate(double seconds);
  /// The rates of a type, by what it takes beside Q4_K, whose rates are known: both by turns over parts of the memory,
  /// so that what others do meanwhile counts for neither. Three measurements of `seconds`; a rate that is not known of
  /// Q4_K stays 0.
  TypeRates of_type(DType dtype, const Rates& known, double seconds);

 private:
  static constexpr std::int64_t kCols = 4096;
  static constexpr std::int64_t kPromptRows = 256;
  static constexpr std::int64_t kFewRows = kSplitRows;
  static constexpr std::int64_t kPanelRows = 1024;  // weight rows of the prompt's product
  static constexpr std::int64_t kGrain = 32;        // weight rows a thread takes at once
  class Parts;
  /// Weights of a product.
  struct From {
    DType dtype = DType::q4_k;
    std::int64_t first = 0;  // row
  };

  template <typename Work>
  double one_call(double seconds, Work work) const {
    return call_seconds(seconds, faster_, work)[0];
  }
  static std::int64_t rows_in(std::uint64_t memory_bytes, DType dtype);
  static std::int64_t most_rows(std::uint64_t memory_bytes);
  static std::uint64_t workspace_bytes(const kernels::Table& table);
  void fill_weights();
  void round_row();
  void product(std::int64_t rows, std::int64_t x_rows) { product(rows, x_rows, From{}); }
  void product(std::int64_t rows, std::int64_t x_rows, From from, void (*matmul)(const kernels::MatmulArgs&) = nullptr);

  const kernels::Table& table_;
  ThreadPool& pool_;
  const std::span<std::byte> memory_;
  const double faster_;
  const std::int64_t row_bytes_, rows_, workspace_bytes_;
  device::HostBuffer x_, q_, d_, sums_, y_, workspace_;
  kernels::Q8Rows x_q8_;
};

}  // namespace millrace::residency
