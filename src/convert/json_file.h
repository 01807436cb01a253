// JSON files of a checkpoint, written.
// Thread-safety: pure functions.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "base/status.h"

namespace millrace::convert {

/// Bytes that are no UTF-8 become U+FFFD. Errors: io_error.
Status write_json(const std::string& path, const nlohmann::json& value);

}  // namespace millrace::convert
