// A model with adapters in its weights: W + scale * factor * B A in the place of W, as a GGUF file of its own. Its sums
// are others than those of an engine that computes adapters beside the weights (exec/adapters.h), and weights that are
// quantized are rounded once more. Thread-safety: functions without shared state; one call uses its own threads.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "tensor/dtype.h"

namespace millrace::model {

struct MergeOptions {
  struct Adapter {
    std::string path;
    float scale = 1;
  };
  std::vector<Adapter> adapters;
  std::optional<DType> dtype;  // of the matrices that change; nullopt: what they are
  int threads = 0;             // 0: the processors this process may use
  std::function<void(std::uint64_t done, std::uint64_t total)> progress = {};  // bytes of the model
  const std::atomic<bool>* cancel = nullptr;  // polled; the call then ends with `cancelled` and leaves no file
};

struct MergeReport {
  std::uint64_t tensors = 0, changed = 0, bytes = 0;
};

/// `in`: the model (any of its splits); `out`: one file, which appears when it is whole. Errors: those of Model::open
/// and AdapterFile; invalid_argument (an adapter of another model); unsupported (an adapted embedding that is the head,
/// too, and so would change it; a matrix with a scale beside it; a type that its rows cannot have); corrupt (sums that
/// are not finite); io_error; cancelled. No error leaves a file.
Expected<MergeReport> merge_adapters(const std::string& in, const std::string& out, const MergeOptions& options);

}  // namespace millrace::model
