// Bytes spelled in base64. Thread-safety: pure functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace millrace {

/// RFC 4648, section 4; none where the text is something else. Padding may be left out, and lines may be broken, as
/// MIME has them.
std::optional<std::string> from_base64(std::string_view text);

/// The same way back, padded, in one line.
std::string to_base64(std::string_view bytes);

}  // namespace millrace
