// Helpers for plain text: trimming, replacing, and comparing without case.
#pragma once

#include <string>
#include <string_view>

namespace millrace {

/// The characters that JSON, HTTP and configuration files treat as white space.
constexpr std::string_view kSpaces = " \t\r\n";

/// The number of leading spaces of `text`.
std::size_t spaces(std::string_view text);

/// `text` without white space at both ends.
std::string_view trim(std::string_view text);

/// `text` with every `from` replaced by `to`. REQUIRES: `from` is not empty.
std::string replaced(std::string_view text, std::string_view from, std::string_view to);

/// ASCII letters in lower case, independent of the locale; other bytes are unchanged.
std::string lower(std::string_view text);

/// Whether both are equal when the case of ASCII letters is ignored.
bool same_word(std::string_view a, std::string_view b);

}  // namespace millrace
