// A line while it is typed at a terminal: what each key does to it, and what the terminal has to show. It calls no
// system; read_line_editor.cpp gives it keys where there is no libedit. Keys are those of emacs and of readline.
// Thread-safety: one thread.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace millrace::cli {

class LineEditor {
 public:
  enum class Outcome { goes_on, line, end };  // end: Ctrl-D (or Ctrl-Z) on an empty line

  /// `history`: earlier lines, oldest first, for the arrow keys. `columns`: of the terminal.
  LineEditor(std::string prompt, int columns, std::vector<std::string> history);

  /// What shows the line for the first time.
  std::string start();
  /// Takes a byte as terminals send them: UTF-8, control characters, and sequences as xterm has them (ESC [ A). Adds to
  /// `out` what the terminal is to show.
  Outcome take(char byte, std::string& out);
  /// The line as it is now.
  const std::string& text() const { return text_; }

 private:
  struct Place {
    int row = 0, column = 0;  // row: below the prompt's first
  };

  Outcome take_control(char byte, std::string& out);
  void take_sequence(char last, std::string& out);
  void insert(std::string_view character, std::string& out);
  void erase(std::size_t begin, std::size_t end, std::string& out);
  void move(std::size_t cursor, std::string& out);
  void recall(std::size_t line, std::string& out);
  std::size_t before(std::size_t at) const;
  std::size_t behind(std::size_t at) const;
  std::size_t word_before(std::size_t at) const;
  std::size_t word_behind(std::size_t at) const;
  Place after(std::string_view shown, Place at) const;
  void draw(std::string& out);
  void move_to(Place place, std::string& out);

  const std::string prompt_;
  const int columns_;
  std::vector<std::string> lines_;  // history, then this line as it was before the arrow keys left it
  std::size_t recalled_;            // which of them is shown
  std::string text_, cut_;          // cut_: what Ctrl-K, U or W took last
  std::size_t cursor_ = 0;          // a byte of text_
  Place place_;                     // the terminal's cursor
  std::string pending_;             // the bytes that came of a character or a sequence
};

}  // namespace millrace::cli
