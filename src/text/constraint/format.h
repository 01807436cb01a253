// The formats of strings in JSON schemas, as patterns. A pattern matches nothing that the format does not allow, in any
// validator's reading of it; not everything that it allows is matched. Thread-safety: pure functions.
#pragma once

#include <optional>
#include <string_view>

#include "base/status.h"

namespace millrace::text {

/// Anchored; nothing: no check that anybody agrees on goes by this name, so it binds nothing. Formats are those of JSON
/// Schema 2020-12, and those that Pydantic and OpenAPI write. `beside_others`: a pattern or lengths bind the string,
/// too. Errors: unsupported (a format of the standard).
Expected<std::optional<std::string_view>> format_pattern(std::string_view format, bool beside_others);

}  // namespace millrace::text
