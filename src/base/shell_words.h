// Splits text into words as a shell does: pasted paths, and files dropped on a terminal, are quoted or have escaped
// spaces. Thread-safety: pure functions.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace millrace {

struct ShellWord {
  std::size_t begin = 0, end = 0;  // in the text, with its quotes
  std::string text;                // without them, and without backslashes that escape
  bool quoted = false;
};

/// A quote is special only at the beginning of a word, after another quoted part, or after an escaped character there
/// ('it'\''s'). An unclosed quote, and an apostrophe within a word, are ordinary characters.
std::vector<ShellWord> shell_words(std::string_view text);

}  // namespace millrace
