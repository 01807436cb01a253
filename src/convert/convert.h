// A checkpoint of Hugging Face's kind as a GGUF file: config.json, the tokenizer and the tensors, whose weights are
// kept as they are or encoded on the way. Nothing is held in memory but tables and some MiB a thread. Thread-safety:
// functions without shared state; one call uses its own threads.
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
  /// What matrices become; nullopt: what they are (BF16 of 8-bit floats, blocks of integers with scales). MXFP4 stays
  /// MXFP4 in any case.
  std::optional<modelfile::QuantizeType> type;
  /// What errors count in each column of the matrices that it names, where these are encoded; null: all alike. Outlives
  /// the call.
  const modelfile::ImportanceMatrix* importance = nullptr;
  std::string name;  // general.name; empty: the folder's
  /// Shown the file once its header stands and holds, without a weight: the call ends with what it returns, and no file
  /// is left. Of the checkpoint nothing but the tables is read, and of integers perhaps zeros and groups.
  std::function<Status(const std::string& path)> header_only = {};
  WorkOptions work;
};

struct ConvertReport {
  std::string architecture, model_type;
  std::string type;  // "BF16": what was asked for, or what most of the weights are
  std::uint64_t tensors = 0, bytes = 0;
  std::vector<std::string> left_out;  // lines that say what has not come along, beside what sees (convert/mmproj.h)
};

/// `in`: a folder, or a .safetensors file whose folder has the rest. `out`: the GGUF file, which is written beside its
/// name and appears when it is whole. Before the first weight is read, the file's header is held to what models of its
/// architecture need, so that a wrong shape costs no time.
/// Errors: those of Checkpoint::open; invalid_argument (an importance matrix of another model); unsupported (a model
/// type, a tensor, a tokenizer, named), corrupt (a shape, a missing tensor, NaN, named), not_found (config.json,
/// tokenizer.json), io_error, cancelled. No error leaves a file.
Expected<ConvertReport> convert(const std::string& in, const std::string& out, const ConvertOptions& options);

/// Whether this version knows models of the folder's config.json. Errors: those of convert() of it.
Status check_model_type(const std::string& folder);

}  // namespace millrace::convert
