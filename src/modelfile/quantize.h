// Writes a GGUF model anew with its weights in another type. Pieces of a tensor are read, decoded, encoded and written
// by many threads with about 2 MiB each, whatever the model's size; the file appears under its name when it is whole.
// Thread-safety: functions without shared state; one call uses its own threads.
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
  /// By a tensor's whole name: its type, in place of what choose_dtype() says. Types divide its rows and can be
  /// encoded.
  std::map<std::string, DType, std::less<>> types = {};
  /// What errors count in each column of the matrices that it names; null: all alike. Outlives the call.
  const ImportanceMatrix* importance = nullptr;
  int threads = 0;  // 0: the processors this process may use
  /// Called on the calling thread with bytes of input worked off and in all; last with done == total.
  std::function<void(std::uint64_t done, std::uint64_t total)> progress = {};
  /// Whether those tensors alone are written that `types` names, without the model's metadata: a file to lay over it
  /// (modelfile/overlay.h).
  bool only_named = false;
  const std::atomic<bool>* cancel = nullptr;  // polled; the call then ends with `cancelled` and leaves no file
};

/// What each tensor of `model` becomes, in its order. Errors: invalid_argument (types for tensors that are not there,
/// or that they cannot have).
Expected<std::vector<DType>> planned_types(const Model& model, const QuantizeOptions& options);

/// Whether quantize() writes a number beside a matrix that becomes `dtype`, by which its products are multiplied (of
/// experts one each): for NVFP4. A model that has one already keeps it, and so do tensors that stay what they are.
bool gets_scale(const Model& model, const TensorInfo& tensor, DType dtype);

/// The file that quantize() would write, for plans alone: of weights there are holes, which take no disk. Errors: as
/// quantize().
Status quantize_hollow(const std::string& in, const std::string& out, const QuantizeOptions& options);

/// Reads `in` (any of its splits; float or quantized, which is decoded first) and writes `out` as one file, replacing a
/// file of that name. Tensors that have their type already are copied unchanged.
/// Errors: those of Model::open; invalid_argument (`out` is a file of the input; types for tensors that are not there);
/// invalid_argument (an importance matrix of another model); corrupt (a weight that is NaN or infinite, naming its
/// tensor); unsupported (weights beyond F16's range); io_error; cancelled. No error leaves a file.
Status quantize(const std::string& in, const std::string& out, const QuantizeOptions& options = {});

}  // namespace millrace::modelfile
