// Bytes spelled in base64. Thread-safety: pure functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace millrace {

/// Decodes RFC 4648, section 4; nullopt if the text is not base64. Padding is optional, and line breaks are allowed, as
/// in MIME.
std::optional<std::string> from_base64(std::string_view text);

/// Encodes with padding, in one line.
std::string to_base64(std::string_view bytes);

}  // namespace millrace
