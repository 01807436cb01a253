// Rewrites a GGUF model with its weights in another type. Many threads read, decode, encode and write pieces of a
// tensor, with about 2 MiB each, whatever the model's size; the file gets its name when it is complete. Thread-safety:
// functions without shared state; each call starts its own threads.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "modelfile/gguf.h"
#include "modelfile/imatrix.h"
#include "modelfile/mixtures.h"
#include "tensor/dtype.h"

namespace millrace::modelfile {

struct QuantizeOptions {
  QuantizeType type = QuantizeType::q4_k_m;
  /// Types by full tensor name, which replace those of choose_dtype(). A type's block size must divide the tensor's
  /// rows, and the type must have an encoder.
  std::map<std::string, DType, std::less<>> types = {};
  /// The weight of errors in each column of the matrices that it names; null: all columns alike. Outlives the call.
  const ImportanceMatrix* importance = nullptr;
  int threads = 0;  // 0: the processors this process may use
  /// Called on the calling thread with the input bytes processed so far and in total; at the end with done == total.
  std::function<void(std::uint64_t done, std::uint64_t total)> progress = {};
  /// Whether to write only the tensors that `types` names, without the model's metadata: an overlay for the model
  /// (modelfile/overlay.h).
  bool only_named = false;
  const std::atomic<bool>* cancel = nullptr;  // polled; the call then ends with `cancelled` and leaves no file
};

/// The new type of each tensor of `model`, in the model's order. Errors: invalid_argument (types for tensors that do
/// not exist, or that these tensors cannot have).
Expected<std::vector<DType>> planned_types(const Model& model, const QuantizeOptions& options);

/// Whether quantize() stores a scale beside a matrix of type `dtype`, by which its products are multiplied (one scale
/// per expert): for NVFP4. A model's existing scales are kept, also for tensors that are copied unchanged.
bool gets_scale(const Model& model, const TensorInfo& tensor, DType dtype);

/// Writes the file that quantize() would write, with holes in place of the weights, for plans only. Errors: those of
/// quantize().
Status quantize_hollow(const std::string& in, const std::string& out, const QuantizeOptions& options);

/// Reads `in` (any of its splits; float or quantized, which is decoded first) and writes `out` as one file, replacing a
/// file of that name. Tensors that have their type already are copied unchanged.
/// Errors: those of Model::open; invalid_argument (`out` is a file of the input; types for tensors that are not there);
/// invalid_argument (an importance matrix of another model); corrupt (a weight that is NaN or infinite, naming its
/// tensor); unsupported (weights beyond F16's range); io_error; cancelled. No error leaves a file.
Status quantize(const std::string& in, const std::string& out, const QuantizeOptions& options = {});

}  // namespace millrace::modelfile
