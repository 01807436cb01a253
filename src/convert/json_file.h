// Writes a checkpoint's JSON files.
// Thread-safety: pure functions.
#pragma once

#include <string>

#include "base/json.h"
#include "base/status.h"

namespace millrace::convert {

/// Invalid UTF-8 becomes U+FFFD. Errors: io_error.
Status write_json(const std::string& path, const nlohmann::json& value);

}  // namespace millrace::convert
