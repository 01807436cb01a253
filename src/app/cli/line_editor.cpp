#include "app/cli/line_editor.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "app/cli/terminal.h"

namespace millrace::cli {
namespace {

constexpr char kEscape = '\x1b';
constexpr char control(char letter) { return static_cast<char>(letter & 0x1f); }
bool continues(char byte) { return (static_cast<unsigned char>(byte) & 0xc0u) == 0x80u; }
bool is_control(char byte) { return static_cast<unsigned char>(byte) < 0x20 || byte == '\x7f'; }

/// Bytes of the UTF-8 character that begins so; 0: none does.
std::size_t bytes_of(char lead) {
  const auto byte = static_cast<unsigned char>(lead);
  return byte < 0x80 ? 1 : byte < 0xc2 ? 0 : byte < 0xe0 ? 2 : byte < 0xf0 ? 3 : byte < 0xf5 ? 4 : 0;
}

/// Control characters as ^A, but for the ends of lines.
std::string shown(std::string_view text) {
  std::string out;
  for (const char byte : text) {
    if (byte == '\n' || !is_control(byte)) {
      out += byte;
    } else {
      out += '^';
      out += static_cast<char>(byte ^ 0x40);
    }
  }
  return out;
}

}  // namespace

LineEditor::LineEditor(std::string prompt, int columns, std::vector<std::string> history)
    : prompt_(std::move(prompt)), columns_(columns), lines_(std::move(history)), recalled_(lines_.size()) {
  lines_.emplace_back();
}

std::string LineEditor::start() {
  std::string out;
  draw(out);
  return out;
}

LineEditor::Outcome LineEditor::take(char byte, std::string& out) {
  if (!pending_.empty() && pending_[0] == kEscape) {
    pending_ += byte;
    const bool begins = pending_.size() == 2 && (byte == '[' || byte == 'O');
    const bool goes_on = pending_.size() > 2 && byte >= 0x20 && byte < 0x40 && pending_.size() < 16;
    if (!begins && !goes_on) {
      take_sequence(byte, out);
      pending_.clear();
    }
    return Outcome::goes_on;
  }
  if (!pending_.empty() && !continues(byte)) pending_.clear();  // a character that was cut short
  if (pending_.empty() && byte != kEscape && is_control(byte)) return take_control(byte, out);
  if (pending_.empty() && byte != kEscape && bytes_of(byte) == 0) return Outcome::goes_on;
  pending_ += byte;
  if (byte == kEscape || pending_.size() < bytes_of(pending_[0])) return Outcome::goes_on;
  insert(std::exchange(pending_, {}), out);
  return Outcome::goes_on;
}

LineEditor::Outcome LineEditor::take_control(char byte, std::string& out) {
  switch (byte) {
    case '\r':
    case '\n':
      move(text_.size(), out);
      out += "\r\n";
      return Outcome::line;
    case control('D'):
    case control('Z'):
      if (text_.empty()) return Outcome::end;
      if (byte == control('D')) erase(cursor_, behind(cursor_), out);
      break;
    case control('A'):
      move(0, out);
      break;
    case control('E'):
      move(text_.size(), out);
      break;
    case control('B'):
      move(before(cursor_), out);
      break;
    case control('F'):
      move(behind(cursor_), out);
      break;
    case control('H'):
    case '\x7f':
      erase(before(cursor_), cursor_, out);
      break;
    case control('K'):
      cut_ = text_.substr(cursor_);
      erase(cursor_, text_.size(), out);
      break;
    case control('U'):
      cut_ = text_.substr(0, cursor_);
      erase(0, cursor_, out);
      break;
    case control('W'): {
      const std::size_t begin = word_before(cursor_);
      cut_ = text_.substr(begin, cursor_ - begin);
      erase(begin, cursor_, out);
      break;
    }
    case control('Y'):
      insert(cut_, out);
      break;
    case control('L'):
      out += "\x1b[H\x1b[2J";
      place_ = {};
      draw(out);
      break;
    case control('P'):
      recall(recalled_ - 1, out);
      break;
    case control('N'):
      recall(recalled_ + 1, out);
      break;
    case '\t':
      insert("\t", out);
      break;
    default:
      break;
  }
  return Outcome::goes_on;
}

void LineEditor::take_sequence(char last, std::string& out) {
  const bool bracket = pending_[1] == '[' || pending_[1] == 'O';
  const std::string_view numbers = bracket ? std::string_view(pending_).substr(2, pending_.size() - 3) : "";
  const bool by_word = numbers.ends_with(";5") || numbers.ends_with(";3");
  if (!bracket) {  // a letter with Alt
    if (last == 'b') move(word_before(cursor_), out);
    if (last == 'f') move(word_behind(cursor_), out);
    if (last == 'd') erase(cursor_, word_behind(cursor_), out);
    if (last == '\x7f') erase(word_before(cursor_), cursor_, out);
    return;
  }
  if (last == '~') last = numbers == "1" || numbers == "7" ? 'H' : numbers == "4" || numbers == "8" ? 'F' : last;
  switch (last) {
    case 'A':
      recall(recalled_ - 1, out);
      break;
    case 'B':
      recall(recalled_ + 1, out);
      break;
    case 'C':
      move(by_word ? word_behind(cursor_) : behind(cursor_), out);
      break;
    case 'D':
      move(by_word ? word_before(cursor_) : before(cursor_), out);
      break;
    case 'H':
      move(0, out);
      break;
    case 'F':
      move(text_.size(), out);
      break;
    case '~':
      if (numbers == "3") erase(cursor_, behind(cursor_), out);
      break;
    default:
      break;
  }
}

void LineEditor::insert(std::string_view characters, std::string& out) {
  const bool at_end = cursor_ == text_.size();
  text_.insert(cursor_, characters);
  cursor_ += characters.size();
  const std::string drawn = shown(characters);
  const Place next = after(drawn, place_);
  if (!at_end || next.row != place_.row || next.column >= columns_) return draw(out);
  out += drawn;
  place_ = next;
}

void LineEditor::erase(std::size_t begin, std::size_t end, std::string& out) {
  if (begin == end) return;
  text_.erase(begin, end - begin);
  cursor_ = begin;
  draw(out);
}

void LineEditor::move(std::size_t cursor, std::string& out) {
  cursor_ = cursor;
  Place place = after(shown(std::string_view(text_).substr(0, cursor_)), after(prompt_, {}));
  // On the character that follows, which may begin a row.
  const std::string next = shown(std::string_view(text_).substr(cursor_, behind(cursor_) - cursor_));
  if (next != "\n" && after(next, place).row > place.row) place = {place.row + 1, 0};
  move_to(place, out);
}

void LineEditor::recall(std::size_t line, std::string& out) {
  if (line >= lines_.size()) return;  // before the first (which wraps around), or behind the last
  lines_[recalled_] = text_;
  recalled_ = line;
  text_ = lines_[line];
  cursor_ = text_.size();
  draw(out);
}

std::size_t LineEditor::before(std::size_t at) const {
  while (at > 0 && continues(text_[--at])) {
  }
  return at;
}

std::size_t LineEditor::behind(std::size_t at) const {
  if (at < text_.size()) ++at;
  while (at < text_.size() && continues(text_[at])) ++at;
  return at;
}

std::size_t LineEditor::word_before(std::size_t at) const {
  while (at > 0 && text_[at - 1] == ' ') --at;
  while (at > 0 && text_[at - 1] != ' ') --at;
  return at;
}

std::size_t LineEditor::word_behind(std::size_t at) const {
  while (at < text_.size() && text_[at] == ' ') ++at;
  while (at < text_.size() && text_[at] != ' ') ++at;
  return at;
}

/// Where the terminal's cursor is when the text is shown from `at` on. A full row leaves it in the column behind the
/// last, as terminals do, until the next character begins a row.
LineEditor::Place LineEditor::after(std::string_view text, Place at) const {
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t bytes = std::max<std::size_t>(bytes_of(text[i]), 1);
    const int width = display_width(text.substr(i, bytes));
    if (text[i] == '\n') {
      at = {at.row + 1, 0};
    } else {
      if (at.column + width > columns_) at = {at.row + 1, 0};
      at.column += width;
    }
    i += bytes;
  }
  return at;
}

void LineEditor::draw(std::string& out) {
  move_to({}, out);
  out += "\x1b[J";
  const std::string all = prompt_ + shown(text_);
  for (const char byte : all) {
    if (byte == '\n') out += '\r';
    out += byte;
  }
  place_ = after(all, {});
  if (place_.column >= columns_) {  // nobody sees a cursor behind the last column
    out += "\r\n";
    place_ = {place_.row + 1, 0};
  }
  move(cursor_, out);
}

void LineEditor::move_to(Place place, std::string& out) {
  if (place.column >= columns_) place = {place.row + 1, 0};
  if (place.row < place_.row) out += fmt::format("\x1b[{}A", place_.row - place.row);
  if (place.row > place_.row) out += fmt::format("\x1b[{}B", place.row - place_.row);
  if (place.column != place_.column || place.row != place_.row) {
    out += '\r';
    if (place.column > 0) out += fmt::format("\x1b[{}C", place.column);
  }
  place_ = place;
}

}  // namespace millrace::cli
