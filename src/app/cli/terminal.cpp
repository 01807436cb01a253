#include "app/cli/terminal.h"

#include <cstdint>

namespace millrace::cli {
namespace {

/// Bytes of the UTF-8 character that begins with `lead`.
std::size_t character_bytes(char lead) {
  const auto byte = static_cast<unsigned char>(lead);
  return byte < 0xc0 ? 1 : byte < 0xe0 ? 2 : byte < 0xf0 ? 3 : 4;
}

/// The code point at the beginning of `text`, as far as it is there.
std::uint32_t code_point(std::string_view text) {
  const std::size_t bytes = character_bytes(text[0]);
  std::uint32_t point = static_cast<unsigned char>(text[0]) & (bytes == 1 ? 0x7fU : 0x7fU >> bytes);
  for (std::size_t i = 1; i < bytes && i < text.size(); ++i)
    point = point << 6 | (static_cast<unsigned char>(text[i]) & 0x3fU);
  return point;
}

/// East Asian Wide and Fullwidth, and emoji, by blocks (Unicode's EastAsianWidth.txt).
bool is_wide(std::uint32_t point) {
  return (point >= 0x1100 && point <= 0x115f) || (point >= 0x2e80 && point <= 0xa4cf) ||
         (point >= 0xac00 && point <= 0xd7a3) || (point >= 0xf900 && point <= 0xfaff) ||
         (point >= 0xfe30 && point <= 0xfe6f) || (point >= 0xff00 && point <= 0xff60) ||
         (point >= 0x1f300 && point <= 0x1faff) || (point >= 0x20000 && point <= 0x3fffd);
}

}  // namespace

int display_width(std::string_view text) {
  int width = 0;
  for (std::size_t at = 0; at < text.size();) {
    width += is_wide(code_point(text.substr(at))) ? 2 : 1;
    at += character_bytes(text[at]);
  }
  return width;
}

std::string Wrapper::add(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (line_.size() < 3 && c != '\n') line_ += c;
    if (c == '\n') {
      end_word(out);
      end_line(out);
    } else if (c == ' ') {
      end_word(out);
      spaces_ += c;
    } else {
      // Between characters of East Asian scripts a line may break, too.
      if (!word_.empty() && character_bytes(c) >= 3 && is_wide(code_point(word_))) {
        end_word(out);
      }
      word_ += c;
      if (static_cast<int>(word_.size()) >= 4 * columns_) end_word(out);
    }
  }
  return out;
}

std::string Wrapper::finish() {
  std::string out;
  end_word(out);
  out += spaces_;
  spaces_.clear();
  return out;
}

void Wrapper::end_word(std::string& out) {
  if (word_.empty()) return;
  const int width = display_width(word_), gap = static_cast<int>(spaces_.size());
  if (!fenced_ && column_ > 0 && column_ + gap + width > columns_) {
    out += '\n';
    column_ = 0;
  } else {
    out += spaces_;
    column_ += gap;
  }
  out += word_;
  column_ = (column_ + width) % (columns_ + 1);
  spaces_.clear();
  word_.clear();
}

void Wrapper::end_line(std::string& out) {
  if (line_ == "```") fenced_ = !fenced_;
  out += spaces_;
  out += '\n';
  spaces_.clear();
  line_.clear();
  column_ = 0;
}

}  // namespace millrace::cli
