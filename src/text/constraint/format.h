// The formats of strings in JSON schemas, as patterns. A pattern matches nothing that the format does not allow, in any
// validator's reading of it; not everything that it allows is matched. Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace millrace::text {

/// What else binds a string.
enum class Beside : std::uint8_t { nothing, lengths, patterns };

/// Anchored; nothing: no check that anybody agrees on goes by this name, so it binds nothing. Formats are those of JSON
/// Schema 2020-12, and those that Pydantic and OpenAPI write.
std::optional<std::string_view> format_pattern(std::string_view format, Beside beside);

}  // namespace millrace::text
