// Words as a shell would split them: people paste paths, and terminals write files that are dropped on them, quoted or
// with escaped spaces. Thread-safety: pure functions.
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

/// A quote counts at a word's beginning alone, behind another quoted part, or behind an escaped character there
/// ('it'\''s'); one that nothing closes, and an apostrophe within a word, are letters.
std::vector<ShellWord> shell_words(std::string_view text);

}  // namespace millrace
