#include "text/json_copy.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "base/json.h"
#include "base/json_nesting.h"
#include "base/words.h"

namespace millrace::text {

namespace {

bool is_space(char c) { return kSpaces.find(c) != std::string_view::npos; }

void append_escaped(char c, std::string& out) {
  const auto byte = static_cast<unsigned char>(c);
  if (c == '"' || c == '\\') {
    out += '\\';
    out += c;
  } else if (c == '\n') {
    out += "\\n";
  } else if (c == '\r') {
    out += "\\r";
  } else if (c == '\t') {
    out += "\\t";
  } else if (byte < 0x20) {
    out += fmt::format("\\u{:04x}", byte);
  } else {
    out += c;
  }
}

/// Converts a word outside strings to a JSON value.
std::string literal(std::string_view word) {
  if (word == "True" || word == "true") return "true";
  if (word == "False" || word == "false") return "false";
  if (word == "None" || word == "null" || word == "nil") return "null";
  const auto value = nlohmann::ordered_json::parse(word, nullptr, false);
  if (value.is_number()) return std::string(word);
  return '"' + json_escaped(word) + '"';
}

}  // namespace

std::string json_escaped(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (const char c : text) append_escaped(c, out);
  return out;
}

JsonCopy::Taken JsonCopy::take(char c, std::string& out) {
  if (string_) {
    in_string(c, out);
    return string_ || depth_ > 0 ? Taken::more : Taken::last;
  }
  if (scalar_) {
    if (is_space(c) || c == ',' || c == '}' || c == ']') return Taken::none;
    out += c;
    return Taken::more;
  }
  if (is_space(c)) return Taken::more;
  if (c == '"') {
    begun_ = string_ = true;
    out += c;
    return Taken::more;
  }
  if (c == '{' || c == '[') {
    begun_ = true;
    if (++depth_ > kMostNesting) return Taken::none;
    out += c;
    return Taken::more;
  }
  if (depth_ == 0) {
    if (c == '}' || c == ']' || c == ',' || c == ':') return Taken::none;
    begun_ = scalar_ = true;
    out += c;
    return Taken::more;
  }
  out += c;
  return (c == '}' || c == ']') && --depth_ == 0 ? Taken::last : Taken::more;
}

void JsonCopy::in_string(char c, std::string& out) {
  if (escaped_) {
    escaped_ = false;
    constexpr std::string_view kEscapes = "\"\\/bfnrtu";
    if (kEscapes.find(c) != std::string_view::npos) {
      out += '\\';
      out += c;
    } else if (c == '\'') {
      out += c;
    } else {
      out += "\\\\";
      append_escaped(c, out);
    }
  } else if (c == '\\') {
    escaped_ = true;
  } else if (c == '"') {
    string_ = false;
    out += c;
  } else {
    append_escaped(c, out);
  }
}

std::size_t LooseCopy::take(std::string_view text, bool last, std::string& out) {
  std::size_t all = 0;
  while (!done_ && all < text.size()) {
    std::size_t taken = 0;
    if (!take_one(text.substr(all), last, taken, out)) break;
    all += taken;
  }
  return all;
}

/// Returns false if more text is needed to decide.
bool LooseCopy::take_one(std::string_view text, bool last, std::size_t& taken, std::string& out) {
  if (delimiter_ != 0) {
    taken = in_string(text, last, out);
    return taken > 0;
  }
  const char c = text[0];
  taken = 1;
  if (!quote_.empty() && text.starts_with(quote_.substr(0, text.size()))) {
    if (text.size() < quote_.size() && !last) return false;
    if (text.starts_with(quote_)) {
      end_word(false, out);
      delimiter_ = 'q';
      out += '"';
      taken = quote_.size();
      return true;
    }
  }
  const bool python = quote_.empty();
  if (c == '"' || (python && c == '\'')) {
    raw_ = python && (word_ == "r" || word_ == "R");
    if (python) word_.clear();  // r"", f"", b""
    end_word(false, out);
    delimiter_ = c;
    out += '"';
  } else if (c == '(' || c == '{') {
    end_word(false, out);
    open(c == '(' && !closers_.empty() ? '[' : '{', c == '(' ? ')' : '}', out);
  } else if (c == '[') {
    end_word(false, out);
    open('[', ']', out);
  } else if (c == ')' || c == '}' || c == ']') {
    end_word(false, out);
    const bool object = closers_.size() == 1 || closers_.back() == '}';
    out += object ? '}' : ']';
    closers_.pop_back();
    done_ = closers_.empty();
  } else if (c == ':' || (c == '=' && closers_.size() == 1)) {
    end_word(true, out);
    out += ':';
  } else if (c == ',') {
    end_word(false, out);
    out += c;
  } else if (!is_space(c) || !word_.empty()) {
    word_ += c;
  }
  return true;
}

void LooseCopy::open(char bracket, char closing, std::string& out) {
  if (closers_.size() >= static_cast<std::size_t>(kMostNesting)) {
    done_ = true;
    return;
  }
  closers_.push_back(closing);
  out += bracket;
}

void LooseCopy::end_word(bool key, std::string& out) {
  const std::string word = std::exchange(word_, {});
  const std::string_view bare = trim(word);
  if (bare.empty()) return;
  out += key ? '"' + json_escaped(bare) + '"' : literal(bare);
}

/// Copies from an open string; returns the bytes taken, 0 if more text is needed.
std::size_t LooseCopy::in_string(std::string_view text, bool last, std::string& out) {
  const char c = text[0];
  if (delimiter_ == 'q') {
    if (text.starts_with(quote_)) {
      delimiter_ = 0;
      out += '"';
      return quote_.size();
    }
    if (quote_.starts_with(text) && !last) return 0;
    append_escaped(c, out);
    return 1;
  }
  if (c == delimiter_) {
    delimiter_ = 0;
    out += '"';
    return 1;
  }
  if (c == '\\') return escape(text, last, out);
  append_escaped(c, out);
  return 1;
}

/// Copies an escape sequence.
std::size_t LooseCopy::escape(std::string_view text, bool last, std::string& out) {
  if (text.size() < 2) {
    if (!last) return 0;
    out += "\\\\";
    return 1;
  }
  const char c = text[1];
  if (raw_) {
    out += "\\\\";
    append_escaped(c, out);
    return 2;
  }
  const auto hex = [&](std::size_t digits, const char* before) -> std::size_t {
    const std::string_view value = text.substr(2, digits);
    const bool good = std::all_of(value.begin(), value.end(), [](unsigned char h) { return std::isxdigit(h) != 0; });
    if (value.size() < digits && good && !last) return 0;
    if (value.size() == digits && good) {
      out.append(before).append(value);
      return 2 + digits;
    }
    out += "\\\\";
    return 1;
  };
  if (c == 'x') return hex(2, "\\u00");
  if (c == 'u') return hex(4, "\\u");
  constexpr std::string_view kEscapes = "\"\\/bfnrt";
  if (kEscapes.find(c) != std::string_view::npos) {
    out += '\\';
    out += c;
  } else if (c == '\'') {
    out += c;
  } else if (c == '0') {
    out += "\\u0000";
  } else if (c != '\n') {
    out += "\\\\";
    append_escaped(c, out);
  }
  return 2;
}

}  // namespace millrace::text
