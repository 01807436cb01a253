// Converts a GGUF file to a Hugging Face checkpoint: config.json, tokenizer.json and the tensors under the family's
// names. Programs that read checkpoints can read it, and convert() restores the same tensors. Thread-safety: functions
// without shared state; one call uses its own threads.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "convert/work.h"
#include "tensor/dtype.h"

namespace millrace::convert {

struct ExportOptions {
  /// The type that quantized weights are decoded to, bf16 or f16. Floats, MXFP4 in gpt-oss and NVFP4 are kept.
  DType quantized = DType::bf16;
  std::uint64_t max_shard_bytes = 5'000'000'000;
  WorkOptions work;
};

struct ExportReport {
  std::string architecture, model_type;
  std::uint64_t tensors = 0, bytes = 0, shards = 0;
  std::uint64_t decoded = 0;  // quantized tensors that were decoded
};

/// `in`: a GGUF file, or any of its splits. `out`: a folder that does not exist or is empty; it is written under a
/// temporary name and renamed when it is complete. Errors: those of Model::open; unsupported (an architecture, a tensor
/// or a tokenizer, named), invalid_argument (`out` is not empty), corrupt, io_error, cancelled. No error
/// leaves a folder.
Expected<ExportReport> export_checkpoint(const std::string& in, const std::string& out, const ExportOptions& options);

}  // namespace millrace::convert
