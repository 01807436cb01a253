// What tells one model from another for whoever keeps what it computed: KV of one must never be taken for another's.
// Thread-safety: pure function.
#pragma once

#include <string>

#include "base/status.h"
#include "modelfile/gguf.h"

namespace millrace::kv {

/// A hash of each file's size, time of change and head (metadata and tensor table), and of a page of every tensor.
/// Reads the head and a page a tensor. Errors: io_error, corrupt.
Expected<std::string> model_identity(const modelfile::Model& model);
/// The same without times: what copies of a model on several machines have in common.
Expected<std::string> copy_identity(const modelfile::Model& model);

}  // namespace millrace::kv
