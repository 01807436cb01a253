// How a launcher is timed. A file of this folder has the rows of a kind of launchers, each a call of Suite::time():
//
//   suite.time("softcap", "Gemma 27B, logits", rows, [=](Case& c) {
//     float* x = c.changes<float>(std::int64_t{rows} * 262144);
//     return [=](cudaStream_t stream) { return softcap(x, 30, std::int64_t{rows} * 262144, stream); };
//   });
//
// A case gets its memory from the Case, which so knows what must be read and written at least; it says itself how much
// is multiplied. What a launch takes stands beside the least that the device could: the larger of bytes over the rate
// of a copy and operations over the rate of the tensor cores (over the link: of a copy across it). The caches are
// emptied before every launch. tests/e2e/test_docs.py holds that every launcher has a row.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/cuda/launchers.h"
#include "tensor/dtype.h"

namespace millrace::bench {

/// Ends the program where a call of the runtime fails.
void check(cudaError_t error, std::string_view what);

/// What the device does in a second, measured when the bench starts.
struct Rates {
  double copy_gb = 0;                   // read and written by a copy in its memory
  double to_host_gb = 0;                // across the link, from page-locked memory and into it
  double from_host_gb = 0;              //
  double bf16_tera = 0, int8_tera = 0;  // operations of the tensor cores
  double least_us = 0;                  // between two events with the smallest kernel between them
};

/// Device memory that cases take their arrays from, one after the other, and page-locked memory likewise.
class Pool {
 public:
  Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;
  ~Pool();

  std::byte* take(std::int64_t bytes);       // null: there is no more
  std::byte* take_host(std::int64_t bytes);  // likewise; zeros
  void start_over() { used_ = 0, host_used_ = 0; }

 private:
  std::byte *memory_ = nullptr, *host_ = nullptr;
  std::size_t bytes_ = 0, used_ = 0, host_used_ = 0;
};

/// What one launch works on.
class Case {
 public:
  explicit Case(Pool& pool) : pool_(pool) {}

  // Arrays in device memory of so many elements, 256 bytes apart, that the launch reads, writes, or both; floats are
  // filled with random numbers, bytes as weights are.
  template <typename T>
  T* reads(std::int64_t count) {
    return array<T>(count, 1);
  }
  template <typename T>
  T* writes(std::int64_t count) {
    return array<T>(count, 1);
  }
  template <typename T>
  T* changes(std::int64_t count) {
    return array<T>(count, 2);
  }
  /// What need not be read and written: scratch, and arrays whose used part moves() counts.
  template <typename T>
  T* room(std::int64_t count) {
    return array<T>(count, 0);
  }
  /// Read from memory, with these values.
  template <typename T>
  T* holds(const std::vector<T>& values) {
    return static_cast<T*>(put(values.data(), static_cast<std::int64_t>(values.size() * sizeof(T)), 1));
  }

  /// The entry of a matrix.
  kernels::cuda::Matrix matrix(DType dtype, int rows, int cols);
  /// The entry of float32 [count], of which so many are read; -1: all.
  const std::byte* const* vector(std::int64_t count, std::int64_t read = -1);
  /// Entries of matrices that lie one behind the other, which count nothing: moves() says what of them is used.
  const std::byte* const* matrices(DType dtype, int rows, int cols, int count);
  /// Int8 activations, with what quantize_q8() makes of random numbers, or room for them.
  kernels::cuda::Q8 q8(int rows, int cols);
  kernels::cuda::Q8 q8_room(int rows, int cols);

  /// Page-locked memory as the device sees it, zeros; counts nothing.
  template <typename T>
  T* host(std::int64_t count) {
    return reinterpret_cast<T*>(pool_host(count * static_cast<std::int64_t>(sizeof(T))));
  }

  void moves(double bytes) { bytes_ += bytes; }
  void sends(double bytes) { to_host_ += bytes; }  // across the link
  void receives(double bytes) { from_host_ += bytes; }
  void multiplies_bf16(double macs) { bf16_ += 2 * macs; }  // or float16
  void multiplies_int8(double macs) { int8_ += 2 * macs; }

  double bytes() const { return bytes_; }
  double operations() const { return bf16_ + int8_; }
  /// Microseconds that the device needs at least, and what it needs them for.
  std::pair<double, std::string_view> least(const Rates& rates) const;
  /// There was not enough memory.
  bool too_large() const { return too_large_; }

 private:
  template <typename T>
  T* array(std::int64_t count, int times) {
    return reinterpret_cast<T*>(
        allocate(count * static_cast<std::int64_t>(sizeof(T)), times, std::is_same_v<T, float>));
  }
  std::byte* allocate(std::int64_t bytes, int times, bool floats);
  void* put(const void* from, std::int64_t bytes, int times);
  std::byte* pool_host(std::int64_t bytes);

  Pool& pool_;
  double bytes_ = 0, to_host_ = 0, from_host_ = 0, bf16_ = 0, int8_ = 0;
  bool too_large_ = false;
};

struct Row {
  std::string launcher, shape;
  int rows = 0;
  double us = 0, bytes = 0, operations = 0, least_us = 0;
  std::string bound;
};

class Suite {
 public:
  using Launch = std::function<cudaError_t(cudaStream_t)>;

  /// filter: those alone that have it in "launcher shape"; empty: all. list: names them and needs no device.
  Suite(std::string filter, bool list);
  Suite(const Suite&) = delete;
  Suite& operator=(const Suite&) = delete;
  ~Suite();

  /// Times what `make` returns for the case, and prints a line. The launch must be one that can be repeated.
  void time(std::string_view launcher, std::string_view shape, int rows, const std::function<Launch(Case&)>& make);

  const Rates& rates() const { return rates_; }
  const std::vector<Row>& rows() const { return rows_; }
  int failures() const { return failures_; }
  bool lists() const { return list_; }

 private:
  void measure_rates();
  double median_us(const Launch& launch, int times);

  std::string filter_;
  bool list_;
  std::string timed_ = "the rates";  // what an error is of
  std::unique_ptr<Pool> pool_;
  std::byte* flushed_ = nullptr;
  std::size_t flushed_bytes_ = 0;
  cudaStream_t stream_ = nullptr;
  std::vector<cudaEvent_t> events_;
  Rates rates_;
  std::vector<Row> rows_;
  int failures_ = 0;
};

// The files of this folder.
void time_products(Suite& suite);
void time_experts(Suite& suite);
void time_attention(Suite& suite);
void time_latents(Suite& suite);
void time_rows(Suite& suite);
void time_states(Suite& suite);
void time_exchange(Suite& suite);
void time_towers(Suite& suite);

}  // namespace millrace::bench
