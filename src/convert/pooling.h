// How a checkpoint's states become a text's vector: the folders that sentence-transformers puts beside its model.
// Thread-safety: pure functions.
#pragma once

#include <string>

#include "base/status.h"
#include "convert/header.h"

namespace millrace::convert {

/// Sets pooling_type where the folder says how its model pools, and shortens context_length to what it is given at
/// most; else nothing. Errors: unsupported (a pooling that GGUF has no number for, or a module behind it that changes
/// vectors, named), those of reading.
Status read_pooling(const std::string& folder, Header& header);

}  // namespace millrace::convert
