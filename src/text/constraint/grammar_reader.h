// Shared by the parsers of GBNF and Lark: a text, a position in it, and errors with the position. Used in
// text/constraint/ only. Thread-safety: one thread.
#pragma once

#include <string>
#include <string_view>

#include "text/constraint/grammar_tree.h"
#include "text/utf8.h"

namespace millrace::text {

class GrammarReader {
 public:
  explicit GrammarReader(std::string_view text) : text_(text) {}

 protected:
  bool at_end() const { return at_ >= text_.size(); }
  char peek(std::size_t ahead = 0) const { return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0'; }
  bool eat(std::string_view word) {
    if (!text_.substr(at_).starts_with(word)) return false;
    at_ += word.size();
    return true;
  }
  TextPlace here() const { return place_of(text_, at_); }
  Status bad(std::string_view what) const { return error_at(here(), what); }
  Status cannot(std::string_view what) const {
    return error_at(here(), fmt::format("{} are not supported", what), Code::unsupported);
  }

  static bool is_digit(char c) { return c >= '0' && c <= '9'; }
  static bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

  /// A repeat count in digits.
  Expected<std::uint32_t> count() {
    if (!is_digit(peek())) return bad("a count is missing here");
    std::uint32_t value = 0;
    while (is_digit(peek())) {
      value = value * 10 + static_cast<std::uint32_t>(peek() - '0');
      if (value > kMostGrammarRepeats) return bad(fmt::format("{} repeats are the most", kMostGrammarRepeats));
      ++at_;
    }
    return value;
  }

  /// The next character.
  Expected<char32_t> character() {
    if (at_end()) return bad("the grammar ends too early");
    const Utf8Step step = next_utf8(text_.substr(at_));
    if (step.kind != Utf8Kind::character) return bad("bytes that are no UTF-8");
    const char32_t code_point = decode_utf8(text_.substr(at_, step.bytes));
    at_ += step.bytes;
    return code_point;
  }

  /// A character given by this many hexadecimal digits.
  Expected<char32_t> hex(int digits) {
    char32_t value = 0;
    for (int i = 0; i < digits; ++i, ++at_) {
      const char c = peek();
      const auto digit =
          std::string_view("0123456789abcdef").find(c >= 'A' && c <= 'F' ? static_cast<char>(c + 32) : c);
      if (at_end() || digit == std::string_view::npos) return bad("too few hexadecimal digits");
      value = value * 16 + static_cast<char32_t>(digit);
    }
    if (value > 0x10FFFF || (value >= 0xD800 && value <= 0xDFFF)) return bad("this is no character of Unicode");
    return value;
  }

  /// The rest of an escape: t, r, n, x, u, U, a backslash, or one of `others` for itself.
  Expected<char32_t> escaped(std::string_view others) {
    if (eat("t")) return U'\t';
    if (eat("r")) return U'\r';
    if (eat("n")) return U'\n';
    if (eat("x")) return hex(2);
    if (eat("u")) return hex(4);
    if (eat("U")) return hex(8);
    if (!at_end() && (peek() == '\\' || others.find(peek()) != std::string_view::npos)) return character();
    return bad("a backslash before what needs none; write \\\\ for one");
  }

  const std::string_view text_;
  std::size_t at_ = 0;
};

}  // namespace millrace::text
