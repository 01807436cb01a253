// Python's string operations on marked text. Positions are bytes here; what counts characters says so.
// Source: the Python 3 library reference, "Text Sequence Type". Thread-safety: pure functions.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/value.h"

namespace millrace::text::jinja {

/// The end of the character that begins at `at`; a byte that is no UTF-8 counts as a character. REQUIRES: at < size.
std::size_t next_character(std::string_view text, std::size_t at);
std::size_t count_characters(std::string_view text);
/// Where the character of that number begins; the text's end where there are not so many.
std::size_t place_of_character(std::string_view text, std::size_t number);
/// Where each character begins, and the text's end. For a text of ASCII alone: empty (position is byte).
Vector<std::size_t> character_starts(Meter& meter, std::string_view text);
/// The code point at `at`, U+FFFD for a byte that is no UTF-8.
char32_t code_point(std::string_view text, std::size_t at);

bool is_space(char32_t c);   // as str.isspace
bool is_letter(char32_t c);  // as str.isalpha
bool is_digit(char32_t c);
bool is_printable(char32_t c);
bool is_upper(char32_t c);
bool is_lower(char32_t c);

/// Like std::string_view::find, in linear time whatever the texts are.
std::size_t find_text(std::string_view text, std::string_view word, std::size_t from);

struct Range {
  std::size_t begin = 0, end = 0;
};
/// What str.strip leaves. `characters`: those to strip; nullopt: white space.
Range strip(std::string_view text, std::optional<std::string_view> characters, bool left, bool right);

/// str.split, str.rsplit. No separator: runs of white space. `most`: splits at most, negative for all.
Vector<Range> split(Meter& meter, std::string_view text, std::optional<std::string_view> separator, std::int64_t most);
Vector<Range> split_from_right(Meter& meter, std::string_view text, std::optional<std::string_view> separator,
                               std::int64_t most);
Vector<Range> split_lines(Meter& meter, std::string_view text, bool keep_ends);

/// How str.upper, lower, title, capitalize and swapcase change letters.
enum class Case { upper, lower, title, capital, swapped };
void append_case(Builder& out, const MarkedText& text, Case to);

/// str.replace: the first `most` places, negative for all.
void append_replaced(Builder& out, const MarkedText& text, const MarkedText& from, const MarkedText& to,
                     std::int64_t most);

/// `text` with `fill` (one character) so that it has `width` characters; align: '<', '>' or '^' (str.center).
void append_padded(Builder& out, const MarkedText& text, std::int64_t width, char align, std::string_view fill);

}  // namespace millrace::text::jinja
