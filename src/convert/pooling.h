// Reads how a sentence-transformers checkpoint pools states to an embedding, from the module folders beside its model.
// Thread-safety: pure functions.
#pragma once

#include <string>

#include "base/status.h"
#include "convert/header.h"

namespace millrace::convert {

/// Sets pooling_type and shortens context_length to max_seq_length, if the folder names them. Errors: unsupported (a
/// pooling for which GGUF has no number, or a later module that changes vectors; each named), those of read_json().
Status read_pooling(const std::string& folder, Header& header);

}  // namespace millrace::convert
