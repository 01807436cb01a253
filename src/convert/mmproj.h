// What sees in a checkpoint, as the mmproj file that goes beside the model's: a tower and its projector by the names
// that llama.cpp gives their tensors and keys.
// Thread-safety: functions without shared state; one call uses its own threads.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "convert/convert.h"

namespace millrace::convert {

struct MmprojReport {
  std::string path;       // of the file; empty: the checkpoint has nothing that sees, or nothing that is converted
  std::string projector;  // clip.projector_type
  std::string type;       // "F16": what most of the weights are
  std::uint64_t tensors = 0, bytes = 0;
  std::string left_out;  // why what sees has not come along; empty: it has, or there is none
};

/// `in`: as convert() takes it. Writes mmproj-NAME-TYPE.gguf beside `model`, NAME.gguf. Matrices become what
/// `options.type` says if that is F32, F16, BF16 or Q8_0; with another they become F16, without one they stay what they
/// are. Before the first weight is read, the header is held to what such a tower needs.
/// Errors: not_found (config.json), corrupt, io_error, cancelled; no error leaves a file. What this version does not
/// compute is no error: left_out says so.
Expected<MmprojReport> convert_mmproj(const std::string& in, const std::string& model, const ConvertOptions& options);

}  // namespace millrace::convert
