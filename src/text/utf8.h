// Decodes UTF-8 one step at a time, for text that may be invalid or end anywhere.
// Source: The Unicode Standard, table 3-7 (well-formed byte sequences) and section 3.9 (one U+FFFD per maximal
// subpart). Thread-safety: pure functions.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace millrace::text {

enum class Utf8Kind {
  character,   // a well-formed character
  invalid,     // invalid bytes: a maximal subpart, which one U+FFFD replaces
  incomplete,  // the text ends within a possible character
};

struct Utf8Step {
  Utf8Kind kind;
  std::size_t bytes;  // 1 to 4
};

/// Decodes the beginning of `text`. REQUIRES: not empty.
Utf8Step next_utf8(std::string_view text);

bool is_valid_utf8(std::string_view text);

/// U+FFFD in UTF-8.
inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

/// U+2581, SentencePiece's spelling of a space.
inline constexpr std::string_view kSpaceMark = "\xE2\x96\x81";

/// Appends `code_point` in UTF-8. REQUIRES: code_point <= 0x10FFFF.
void append_utf8(char32_t code_point, std::string& out);

/// The code point of the well-formed character `bytes`.
char32_t decode_utf8(std::string_view bytes);

}  // namespace millrace::text
