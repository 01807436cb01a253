// A GGUF file as a checkpoint of Hugging Face's kind: config.json, tokenizer.json and the tensors under the names that
// its family gives them, so that what reads checkpoints reads it, and convert() gives the same tensors again.
// Thread-safety: functions without shared state; one call uses its own threads.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "convert/work.h"
#include "tensor/dtype.h"

namespace millrace::convert {

struct ExportOptions {
  /// What quantized weights become, bf16 or f16; floats stay what they are, and so do MXFP4 in gpt-oss and NVFP4.
  DType quantized = DType::bf16;
  std::uint64_t max_shard_bytes = 5'000'000'000;
  WorkOptions work;
};

struct ExportReport {
  std::string architecture, model_type;
  std::uint64_t tensors = 0, bytes = 0, shards = 0;
  std::uint64_t decoded = 0;  // tensors that were quantized
};

/// `in`: a GGUF file, any of its splits. `out`: a folder that does not exist or is empty; it is written beside its name
/// and appears when it is whole. Errors: those of Model::open; unsupported (an architecture, a tensor or a tokenizer,
/// named), invalid_argument (a folder that holds something), corrupt, io_error, cancelled. No error leaves a folder.
Expected<ExportReport> export_checkpoint(const std::string& in, const std::string& out, const ExportOptions& options);

}  // namespace millrace::convert
