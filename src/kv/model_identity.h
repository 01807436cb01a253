// Identifies a model for caches of its results: KV of one model must never be used for another.
// Thread-safety: pure function.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"
#include "modelfile/gguf.h"

namespace millrace::kv {

/// A hash of each file's size, time of change and head (metadata and tensor table), and of a page of every tensor.
/// Reads the head and a page a tensor. `made`: the one of the files, maybe, that each run makes anew, whose age does
/// not count. Errors: io_error, corrupt.
Expected<std::string> model_identity(const modelfile::Model& model, std::string_view made = {});
/// The same without times: equal for copies of a model on several machines.
Expected<std::string> copy_identity(const modelfile::Model& model);

}  // namespace millrace::kv
