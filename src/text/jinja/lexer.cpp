#include "text/jinja/lexer.h"

#include <algorithm>
#include <array>
#include <cctype>

#include "text/jinja/meter.h"
#include "text/jinja/strings.h"
#include "text/utf8.h"

namespace millrace::text::jinja {

namespace {

constexpr std::size_t kMaxSourceBytes = 1u << 20, kMaxTokens = 200'000;
// Longest first.
constexpr std::array<std::string_view, 27> kOperators = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/",
                                                         "*",  "%",  "~",  "[",  "]",  "(",  ")", "{", "}",
                                                         ">",  "<",  "=",  ".",  ":",  "|",  ",", ";", "!"};

std::string with_newlines(std::string_view source) {
  std::string text;
  text.reserve(source.size());
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      text += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      text += source[i];
    }
  }
  if (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

bool begins_name(char c) { return std::isalpha(static_cast<unsigned char>(c)) || c == '_' || (c & 0x80) != 0; }
bool in_name(char c) { return begins_name(c) || std::isdigit(static_cast<unsigned char>(c)); }
bool digit(char c) { return c >= '0' && c <= '9'; }

class Lexer {
 public:
  explicit Lexer(std::string source) : source_(std::move(source)) {}

  std::vector<Token> run() {
    try {
      while (at_ < source_.size()) data();
      add(TokenKind::end, {});
    } catch (const Trouble& trouble) {
      fail("line {}: {}", line_, trouble.message);
    }
    return std::move(tokens_);
  }

 private:
  bool starts(std::string_view word, std::size_t at) const { return source_.compare(at, word.size(), word) == 0; }
  char peek(std::size_t ahead = 0) const { return at_ + ahead < source_.size() ? source_[at_ + ahead] : '\0'; }

  void add(TokenKind kind, std::string text) {
    if (tokens_.size() >= kMaxTokens) fail("it has more than {} words", kMaxTokens);
    tokens_.push_back({kind, std::move(text), line_});
  }

  void advance_to(std::size_t next) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<std::ptrdiff_t>(at_),
                                         source_.begin() + static_cast<std::ptrdiff_t>(next), '\n'));
    at_ = next;
  }

  std::size_t skip_spaces(std::size_t at) const {
    while (at < source_.size() && is_space(code_point(source_, at))) at = next_character(source_, at);
    return at;
  }

  /// Text up to the next tag, then the tag.
  void data() {
    std::size_t tag = at_;
    while (true) {
      tag = source_.find('{', tag);
      if (tag == std::string::npos || tag + 1 >= source_.size()) {
        emit_text(source_.size());
        return advance_to(source_.size());
      }
      const char next = source_[tag + 1];
      if (next == '{' || next == '%' || next == '#') break;
      ++tag;
    }
    const char kind = source_[tag + 1];
    const std::size_t sign = tag + 2;
    const char mark = sign < source_.size() && (source_[sign] == '-' || source_[sign] == '+') ? source_[sign] : '\0';
    emit_text(stripped_end(at_, tag, mark, kind == '{'));
    advance_to(tag);
    const std::size_t inner = sign + (mark != '\0' ? 1 : 0);
    if (kind == '#') return comment(inner);
    if (kind == '%' && raw_begin(inner)) return;
    add(kind == '{' ? TokenKind::variable_begin : TokenKind::block_begin, {});
    advance_to(inner);
    inside(kind == '{' ? "}}" : "%}", kind == '{');
  }

  void emit_text(std::size_t end) {
    if (end > at_) add(TokenKind::data, source_.substr(at_, end - at_));
  }

  /// Where the text [begin, tag) ends once a tag with `mark` has taken its white space.
  std::size_t stripped_end(std::size_t begin, std::size_t tag, char mark, bool variable) const {
    const std::string_view text = std::string_view(source_).substr(begin, tag - begin);
    if (mark == '-') return begin + strip(text, std::nullopt, false, true).end;
    if (mark == '+' || variable) return tag;
    const std::size_t newline = text.rfind('\n');
    if (newline == std::string_view::npos && !line_starting_) return tag;
    const std::size_t line = newline == std::string_view::npos ? 0 : newline + 1;
    return strip(text.substr(line), std::nullopt, true, false).begin == text.size() - line ? begin + line : tag;
  }

  /// After "%}" or "#}" at `end` (its first byte), with what stands before it: where the text goes on.
  std::size_t after_end(std::size_t end, char mark, bool trims) {
    std::size_t next = end + 2;
    if (mark == '-') {
      next = skip_spaces(next);
    } else if (trims && mark != '+' && next < source_.size() && source_[next] == '\n') {
      ++next;
    }
    line_starting_ = next > end + 2 && source_[next - 1] == '\n';
    return next;
  }

  void comment(std::size_t inner) {
    const std::size_t end = source_.find("#}", inner);
    if (end == std::string::npos) fail("a comment has no end '#}}'");
    const char before = end > inner ? source_[end - 1] : '\0';
    advance_to(after_end(end, before == '-' || before == '+' ? before : '\0', true));
  }

  /// {% raw %} ... {% endraw %}, all of it text.
  bool raw_begin(std::size_t inner) {
    std::size_t at = skip_spaces(inner);
    if (!starts("raw", at)) return false;
    at = skip_spaces(at + 3);
    const bool strips = starts("-%}", at);
    if (!strips && !starts("%}", at)) return false;
    const std::size_t begin = after_end(at + (strips ? 1 : 0), strips ? '-' : '\0', false);
    advance_to(begin);
    for (std::size_t tag = source_.find("{%", begin); tag != std::string::npos; tag = source_.find("{%", tag + 2)) {
      std::size_t word = tag + 2;
      const char mark = word < source_.size() && (source_[word] == '-' || source_[word] == '+') ? source_[word] : '\0';
      word = skip_spaces(word + (mark != '\0' ? 1 : 0));
      if (!starts("endraw", word)) continue;
      std::size_t end = skip_spaces(word + 6);
      const char last = end < source_.size() && (source_[end] == '-' || source_[end] == '+') ? source_[end] : '\0';
      if (last != '\0') ++end;
      if (!starts("%}", end)) continue;
      emit_text(stripped_end(begin, tag, mark, false));
      advance_to(after_end(end, last, true));
      return true;
    }
    fail("a 'raw' block has no end");
  }

  /// The words of a tag, up to its end.
  void inside(std::string_view close, bool variable) {
    std::string open_brackets;
    while (true) {
      advance_to(skip_spaces(at_));
      if (at_ >= source_.size()) fail("a tag has no end '{}'", close);
      if (open_brackets.empty()) {
        const char mark = peek() == '-' || (!variable && peek() == '+') ? peek() : '\0';
        const std::size_t end = at_ + (mark != '\0' ? 1 : 0);
        if (starts(close, end)) {
          add(variable ? TokenKind::variable_end : TokenKind::block_end, {});
          return advance_to(after_end(end, mark, !variable));
        }
      }
      const char c = peek();
      if (c == '\'' || c == '"') {
        string(c);
      } else if (digit(c)) {
        number();
      } else if (begins_name(c)) {
        std::size_t end = at_;
        while (end < source_.size() && in_name(source_[end])) ++end;
        add(TokenKind::name, source_.substr(at_, end - at_));
        at_ = end;
      } else {
        punctuation(open_brackets);
      }
    }
  }

  void punctuation(std::string& open_brackets) {
    const auto found =
        std::find_if(kOperators.begin(), kOperators.end(), [&](std::string_view op) { return starts(op, at_); });
    if (found == kOperators.end() || *found == "!") fail("the character '{}' does not belong here", peek());
    const char c = (*found)[0];
    if (c == '(' || c == '[' || c == '{') open_brackets += c == '(' ? ')' : c == '[' ? ']' : '}';
    if (c == ')' || c == ']' || c == '}') {
      if (open_brackets.empty() || open_brackets.back() != c) fail("'{}' closes nothing", c);
      open_brackets.pop_back();
    }
    add(TokenKind::op, std::string(*found));
    at_ += found->size();
  }

  void number() {
    std::size_t end = at_;
    const auto digits = [&] {
      while (end < source_.size() &&
             (digit(source_[end]) || (source_[end] == '_' && end + 1 < source_.size() && digit(source_[end + 1])))) {
        ++end;
      }
    };
    digits();
    bool real = false;
    const bool after_dot = !tokens_.empty() && tokens_.back().kind == TokenKind::op && tokens_.back().text == ".";
    if (!after_dot) {
      if (end + 1 < source_.size() && source_[end] == '.' && digit(source_[end + 1])) {
        real = true;
        ++end;
        digits();
      }
      if (end < source_.size() && (source_[end] == 'e' || source_[end] == 'E')) {
        std::size_t power = end + 1;
        if (power < source_.size() && (source_[power] == '+' || source_[power] == '-')) ++power;
        if (power < source_.size() && digit(source_[power])) {
          real = true;
          end = power;
          digits();
        }
      }
    }
    std::string text = source_.substr(at_, end - at_);
    text.erase(std::remove(text.begin(), text.end(), '_'), text.end());
    add(real ? TokenKind::real : TokenKind::integer, std::move(text));
    at_ = end;
  }

  void string(char quote) {
    std::string text;
    std::size_t at = at_ + 1;
    for (; at < source_.size() && source_[at] != quote; ++at) {
      if (source_[at] != '\\') {
        text += source_[at];
      } else {
        if (++at == source_.size()) break;
        escape(at, text);
      }
    }
    if (at >= source_.size()) fail("a string has no end");
    add(TokenKind::string, std::move(text));
    advance_to(at + 1);
  }

  /// Python's escapes; `at` is on the letter after the backslash, and on the escape's last one afterwards.
  void escape(std::size_t& at, std::string& text) const {
    constexpr std::string_view kLetters = "ntrabfv\\'\"", kMeant = "\n\t\r\a\b\f\v\\'\"";
    const char c = source_[at];
    if (const auto i = kLetters.find(c); i != std::string_view::npos) {
      text += kMeant[i];
    } else if (c >= '0' && c <= '7') {
      unsigned value = 0;
      std::size_t end = at;
      for (; end < std::min(at + 3, source_.size()) && source_[end] >= '0' && source_[end] <= '7'; ++end) {
        value = value * 8 + static_cast<unsigned>(source_[end] - '0');
      }
      append_utf8(value, text);
      at = end - 1;
    } else if (c == 'x' || c == 'u' || c == 'U') {
      const std::size_t count = c == 'x' ? 2 : c == 'u' ? 4 : 8;
      unsigned long value = 0;
      for (std::size_t i = 1; i <= count; ++i) {
        const char h = at + i < source_.size() ? source_[at + i] : '\0';
        if (std::isxdigit(static_cast<unsigned char>(h)) == 0) fail("a string has a broken '\\{}'", c);
        value = value * 16 + static_cast<unsigned long>(digit(h) ? h - '0' : (h | 0x20) - 'a' + 10);
      }
      if (value > 0x10FFFF || (value >= 0xD800 && value < 0xE000)) fail("a string has a broken '\\{}'", c);
      append_utf8(static_cast<char32_t>(value), text);
      at += count;
    } else if (c != '\n') {  // a line end after a backslash is no part of the string
      text += '\\';
      text += c;
    }
  }

  std::string source_;
  std::size_t at_ = 0;
  int line_ = 1;
  bool line_starting_ = true;  // what stands before at_ ended a line
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source) {
  if (source.size() > kMaxSourceBytes) fail("it is larger than {} KiB", kMaxSourceBytes >> 10);
  return Lexer(with_newlines(source)).run();
}

}  // namespace millrace::text::jinja
