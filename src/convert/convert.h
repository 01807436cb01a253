// Converts a Hugging Face checkpoint to a GGUF file: config.json, the tokenizer and the tensors, whose weights are
// copied or encoded. Memory holds only the tables and a few MiB per thread. Thread-safety: functions without shared
// state; one call uses its own threads.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "convert/work.h"
#include "modelfile/quantize.h"

namespace millrace::convert {

struct ConvertOptions {
  /// The type of the matrices in the GGUF file; nullopt: as in the checkpoint (8-bit floats become BF16, integers with
  /// scales become blocks). MXFP4 always stays MXFP4.
  std::optional<modelfile::QuantizeType> type;
  /// Weighs the errors of each column when the matrices that it names are encoded; null: all columns equally. Outlives
  /// the call.
  const modelfile::ImportanceMatrix* importance = nullptr;
  std::string name;  // general.name; empty: the folder's
  /// If set, convert() calls it with the path of the file once the header is written and checked, before any weight;
  /// convert() then returns its status and leaves no file. Only the checkpoint's tables are read, and zeros and groups
  /// of integers where needed.
  std::function<Status(const std::string& path)> header_only = {};
  WorkOptions work;
};

struct ConvertReport {
  std::string architecture, model_type;
  std::string type;  // "BF16": the type asked for, or that of most weights
  std::uint64_t tensors = 0, bytes = 0;
  std::vector<std::string> left_out;  // one line per part that was not converted, apart from vision (convert/mmproj.h)
};

/// `in`: a folder, or a .safetensors file whose folder has the other files. `out`: the GGUF file, which is written
/// under a temporary name and renamed when it is complete. The header is checked against the architecture's
/// requirements before the first weight is read, so that a wrong shape fails at once. Errors: those of
/// Checkpoint::open; invalid_argument (an importance matrix of another model); unsupported (a model type, a tensor, a
/// tokenizer, named), corrupt (a shape, a missing tensor, NaN, named), not_found (config.json, tokenizer.json),
/// io_error, cancelled. No error leaves a file.
Expected<ConvertReport> convert(const std::string& in, const std::string& out, const ConvertOptions& options);

/// Ok if this version can convert the model type in the folder's config.json. Errors: those of convert().
Status check_model_type(const std::string& folder);

}  // namespace millrace::convert
