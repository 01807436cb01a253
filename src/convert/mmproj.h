// Converts a checkpoint's vision tower and projector to the mmproj file beside the model's, with llama.cpp's names for
// tensors and keys. Thread-safety: functions without shared state; one call uses its own threads.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "convert/convert.h"

namespace millrace::convert {

struct MmprojReport {
  std::string path;       // of the file; empty: the checkpoint has no vision tower, or one that is not supported
  std::string projector;  // clip.projector_type
  std::string type;       // "F16": that of most weights
  std::uint64_t tensors = 0, bytes = 0;
  std::string left_out;  // why the tower was not converted; empty: it was, or there is none
};

/// `in`: as convert() takes it. Writes mmproj-NAME-TYPE.gguf beside `model`, NAME.gguf. Matrices get the type
/// `options.type` if it is F32, F16, BF16 or Q8_0, F16 for any other type, and keep their own without one. The header
/// is checked against the tower's requirements before the first weight is read. Errors: not_found (config.json),
/// corrupt, io_error, cancelled; no error leaves a file. A tower that this version cannot compute is not an error:
/// left_out has the reason.
Expected<MmprojReport> convert_mmproj(const std::string& in, const std::string& model, const ConvertOptions& options);

}  // namespace millrace::convert
