// Words of plain text: what stands around them, and whether two are the same.
#pragma once

#include <string>
#include <string_view>

namespace millrace {

/// What JSON, HTTP and configuration take for space.
constexpr std::string_view kSpaces = " \t\r\n";

/// How many spaces `text` begins with.
std::size_t spaces(std::string_view text);

/// Without the spaces at both ends.
std::string_view trim(std::string_view text);

/// With `to` wherever `from`, which is not empty, stands.
std::string replaced(std::string_view text, std::string_view from, std::string_view to);

/// With A to Z as a to z; other bytes stay, whatever the locale is.
std::string lower(std::string_view text);

/// Equal but for the case of ASCII letters.
bool same_word(std::string_view a, std::string_view b);

}  // namespace millrace
