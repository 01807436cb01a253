// Builds tensors from sources: many threads process pieces of rows, with a few MiB each, whatever the model's size.
// Thread-safety: make() is called by one thread at a time and uses the object's own.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "base/thread_pool.h"
#include "convert/gather.h"
#include "tensor/dtype.h"

namespace millrace::convert {

struct WorkOptions {
  int threads = 0;  // 0: the processors this process may use
  /// Called on the calling thread with the bytes written and the total.
  std::function<void(std::uint64_t done, std::uint64_t total)> progress = {};
  const std::atomic<bool>* cancel = nullptr;  // polled; if it is true, the call ends with Code::cancelled
};

/// Receives bytes of a tensor and their offset in it. Called by several threads at once.
using Write = std::function<Status(std::uint64_t offset, std::span<const std::byte> bytes)>;

class Work {
 public:
  /// `total`: bytes of all tensors, for progress reports. `options` outlives the object.
  Work(const WorkOptions& options, std::uint64_t total);

  /// Writes the target's rows in `dtype`. REQUIRES: check_target() was ok; rows are whole blocks of a dtype that can be
  /// encoded, or is_copy(). Errors: corrupt (NaN, infinities), unsupported (beyond F16), io_error, cancelled; each
  /// names the tensor. `importance`: the weight of errors by column, [matrices, cols], for the matrices that make up
  /// the target's rows; empty: all columns equally. `factors`: each matrix's weights are divided by its factor first;
  /// empty: no factors.
  Status make(const Target& target, std::span<const Source> sources, DType dtype, const Write& write,
              std::span<const float> importance = {}, std::span<const float> factors = {});
  /// The largest magnitude in each of the matrices that make up the target's rows. Errors: as make().
  Expected<std::vector<float>> largest(const Target& target, std::span<const Source> sources, std::size_t matrices);

 private:
  struct Worker {
    Status status;
    Scratch scratch;
    std::vector<float> floats;
    std::vector<std::byte> output;
    std::vector<float> largest;  // by matrix, among the rows that this worker read
  };
  /// The arguments of make(), for each piece.
  struct Making {
    const Target& target;
    std::span<const Source> sources;
    DType dtype = DType::f32;
    std::span<const float> importance, factors;
  };
  Status each_piece(const Target& target, FunctionRef<Status(std::int64_t first, Worker& worker)> work);
  /// Reads a piece's rows, from `first`, to worker.floats.
  Status read_floats(const Target& target, std::span<const Source> sources, DType dtype, std::int64_t first,
                     Worker& worker) const;
  Status make_piece(const Making& making, std::int64_t first, Worker& worker, const Write& write);

  const WorkOptions& options_;
  const std::uint64_t total_;
  std::unique_ptr<ThreadPool> pool_;
  std::vector<Worker> workers_;
  std::atomic<bool> failed_ = false;
  std::atomic<std::uint64_t> done_ = 0;
};

}  // namespace millrace::convert
