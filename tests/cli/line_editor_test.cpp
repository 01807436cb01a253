// Our own line editor, by keys and by what a terminal shows of them.
#include "app/cli/line_editor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "app/cli/terminal.h"

namespace millrace::cli {
namespace {

constexpr std::string_view kUp = "\x1b[A", kDown = "\x1b[B", kRight = "\x1b[C", kLeft = "\x1b[D", kHome = "\x1b[H",
                           kEnd = "\x1b[F", kDelete = "\x1b[3~", kWordLeft = "\x1b[1;5D", kWordRight = "\x1b[1;5C";

/// A terminal that knows the few sequences that the editor uses.
class Screen {
 public:
  explicit Screen(int columns) : columns_(columns) {}

  void show(std::string_view text) {
    for (std::size_t i = 0; i < text.size();) {
      if (text[i] == '\x1b') {
        const std::size_t end = text.find_first_not_of("[0123456789", i + 1);
        sequence(text.substr(i + 2, end - i - 2), text[end]);
        i = end + 1;
      } else if (text[i] == '\r' || text[i] == '\n') {
        text[i] == '\r' ? column_ = 0 : ++row_;
        ++i;
      } else {
        std::size_t end = i + 1;
        while (end < text.size() && (static_cast<unsigned char>(text[end]) & 0xc0u) == 0x80u) ++end;
        put(std::string(text.substr(i, end - i)));
        i = end;
      }
    }
  }

  /// Its rows up to the last that has characters, with | where the cursor is.
  std::string shown() {
    std::string out;
    for (int row = 0; row <= std::max(static_cast<int>(rows_.size()) - 1, row_); ++row) {
      if (row > 0) out += '/';
      const auto& cells = at(row);
      for (int column = 0; column <= std::max(static_cast<int>(cells.size()), row == row_ ? column_ : 0); ++column) {
        if (row == row_ && column == column_) out += '|';
        if (column < static_cast<int>(cells.size())) out += cells[static_cast<std::size_t>(column)];
      }
    }
    while (out.ends_with('/')) out.pop_back();
    return out;
  }

 private:
  std::vector<std::string>& at(int row) {
    if (row >= static_cast<int>(rows_.size())) rows_.resize(static_cast<std::size_t>(row) + 1);
    return rows_[static_cast<std::size_t>(row)];
  }
  void put(const std::string& character) {
    const int width = display_width(character);
    if (column_ + width > columns_) {
      ++row_;
      column_ = 0;
    }
    auto& cells = at(row_);
    cells.resize(std::max(cells.size(), static_cast<std::size_t>(column_ + width)), " ");
    cells[static_cast<std::size_t>(column_)] = character;
    if (width == 2) cells[static_cast<std::size_t>(column_) + 1] = "";
    column_ += width;
  }
  void sequence(std::string_view number, char kind) {
    const int count = number.empty() ? 1 : std::stoi(std::string(number));
    if (kind == 'A') row_ -= count;
    if (kind == 'B') row_ += count;
    if (kind == 'C') column_ = std::min(column_ + count, columns_ - 1);
    if (kind == 'H') row_ = column_ = 0;
    if (kind == 'J' && count == 2) rows_.clear();
    if (kind == 'J' && count == 1) {
      auto& cells = at(row_);
      cells.resize(std::min(cells.size(), static_cast<std::size_t>(column_)));
      rows_.resize(static_cast<std::size_t>(row_) + 1);
    }
    ASSERT_GE(row_, 0) << "the cursor left the terminal";
  }

  const int columns_;
  int row_ = 0, column_ = 0;
  std::vector<std::vector<std::string>> rows_;
};

class Typing {
 public:
  explicit Typing(std::vector<std::string> history = {}, int columns = 40)
      : screen_(columns), editor_("> ", columns, std::move(history)) {
    screen_.show(editor_.start());
  }
  Typing& operator<<(std::string_view keys) {
    for (const char byte : keys) {
      std::string out;
      outcome_ = editor_.take(byte, out);
      screen_.show(out);
    }
    return *this;
  }
  std::string text() const { return editor_.text(); }
  std::string shown() { return screen_.shown(); }
  LineEditor::Outcome outcome() const { return outcome_; }

 private:
  Screen screen_;
  LineEditor editor_;
  LineEditor::Outcome outcome_ = LineEditor::Outcome::goes_on;
};

TEST(LineEditor, TakesALine) {
  Typing typing;
  typing << "Grüße, 水車";
  EXPECT_EQ(typing.shown(), "> Grüße, 水車|");
  EXPECT_EQ(typing.outcome(), LineEditor::Outcome::goes_on);
  typing << "\r";
  EXPECT_EQ(typing.outcome(), LineEditor::Outcome::line);
  EXPECT_EQ(typing.text(), "Grüße, 水車");
}

TEST(LineEditor, EndsOnAnEmptyLineOnly) {
  Typing typing;
  typing << "a\x04";
  EXPECT_EQ(typing.outcome(), LineEditor::Outcome::goes_on);
  EXPECT_EQ((typing << kLeft << "\x04").text(), "") << "on a line that is not empty, Ctrl-D deletes";
  EXPECT_EQ((typing << "\x04").outcome(), LineEditor::Outcome::end);
  EXPECT_EQ((Typing() << "\x1a").outcome(), LineEditor::Outcome::end);
}

TEST(LineEditor, MovesAndDeletesByCharacters) {
  Typing typing;
  typing << "aü水b" << kLeft << kLeft << "X";
  EXPECT_EQ(typing.text(), "aüX水b");
  EXPECT_EQ(typing.shown(), "> aüX|水b");
  typing << kDelete << "\x7f\x7f";
  EXPECT_EQ(typing.shown(), "> a|b");
  typing << kHome << kLeft << "\x7f" << kEnd << kRight << kDelete;
  EXPECT_EQ(typing.shown(), "> ab|") << "at the ends of the line nothing happens";
  typing << "\x01!\x05?";
  EXPECT_EQ(typing.text(), "!ab?");
}

TEST(LineEditor, MovesAndCutsByWords) {
  Typing typing;
  typing << "one two  three" << kWordLeft << kWordLeft;
  EXPECT_EQ(typing.shown(), "> one |two  three");
  typing << kWordRight << "\x17";
  EXPECT_EQ(typing.shown(), "> one |  three");
  EXPECT_EQ((typing << "\x19").text(), "one two  three") << "Ctrl-Y brings back what was cut";
  typing << "\x0b";
  EXPECT_EQ(typing.text(), "one two");
  typing << "\x15";
  EXPECT_EQ(typing.shown(), "> |");
  EXPECT_EQ((typing << "\x19").text(), "one two");
}

TEST(LineEditor, RecallsEarlierLines) {
  Typing typing({"first", "two\nrows"});
  typing << "draft" << kUp;
  EXPECT_EQ(typing.shown(), "> two/rows|");
  typing << kUp << kUp << kUp;
  EXPECT_EQ(typing.shown(), "> first|") << "nothing is before the first";
  typing << "!" << kDown << kDown << kDown;
  EXPECT_EQ(typing.shown(), "> draft|") << "what was typed is kept";
  EXPECT_EQ((typing << kUp << kUp << "\r").text(), "first!");
}

TEST(LineEditor, DrawsLinesLongerThanTheTerminal) {
  Typing typing({}, 10);
  typing << "12345678";
  EXPECT_EQ(typing.shown(), "> 12345678/|") << "a full row: the cursor is in the next one";
  typing << "9水" << kHome << "0";
  EXPECT_EQ(typing.shown(), "> 0|1234567/89水");
  typing << kEnd << "abcd水";
  EXPECT_EQ(typing.shown(), "> 01234567/89水abcd水/|");
  typing << kLeft << "x";
  EXPECT_EQ(typing.shown(), "> 01234567/89水abcdx/|水") << "a wide character begins the row that has room for it";
  typing << "\x15";
  EXPECT_EQ(typing.shown(), "> |水");
}

TEST(LineEditor, ShowsControlCharactersAndDropsWhatIsNone) {
  Typing typing;
  typing << "a\tb\xc3"
         << "c\xff\x80";
  EXPECT_EQ(typing.text(), "a\tbc");
  EXPECT_EQ(typing.shown(), "> a^Ibc|");
  typing << "\x1b[15~\x1b[99;99q\x1bOP\x1bz";
  EXPECT_EQ(typing.text(), "a\tbc") << "keys that do nothing here";
  typing << "\x0c";
  EXPECT_EQ(typing.shown(), "> a^Ibc|");
}

}  // namespace
}  // namespace millrace::cli
