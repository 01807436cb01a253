// The string formats of JSON schemas as patterns. A pattern matches only strings that every validator accepts for the
// format, but not all of them. Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace millrace::text {

/// Other constraints on a string.
enum class Beside : std::uint8_t { nothing, lengths, patterns };

/// An anchored pattern; nullopt: validators agree on no check for this name, so it does not constrain. Formats are
/// those of JSON Schema 2020-12, Pydantic and OpenAPI.
std::optional<std::string_view> format_pattern(std::string_view format, Beside beside);

}  // namespace millrace::text
