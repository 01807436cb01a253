// How wide text is on a terminal, and text broken to fit it. Thread-safety: pure functions; a Wrapper has one thread.
#pragma once

#include <string>
#include <string_view>

namespace millrace::cli {

/// Columns that UTF-8 text takes: two for each character of East Asian width and each emoji.
int display_width(std::string_view text);

/// Breaks lines between words, as text comes in pieces. Lines between ``` fences stay as they are.
class Wrapper {
 public:
  explicit Wrapper(int columns) : columns_(columns) {}
  /// What may be shown now of all that came: a word is held back until its end is known.
  std::string add(std::string_view text);
  /// What was held back.
  std::string finish();

 private:
  void end_word(std::string& out);
  void end_line(std::string& out);

  const int columns_;
  int column_ = 0;
  std::string word_, spaces_, line_;  // line_: its first three characters
  bool fenced_ = false;
};

}  // namespace millrace::cli
