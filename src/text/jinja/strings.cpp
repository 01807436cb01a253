#include "text/jinja/strings.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstring>

#include "base/os/find.h"
#include "text/utf8.h"

namespace millrace::text::jinja {

namespace {

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

utf8proc_category_t category(char32_t c) { return utf8proc_category(static_cast<utf8proc_int32_t>(c)); }

/// The begin of the character that ends at `end`. REQUIRES: end > 0.
std::size_t last_character(std::string_view text, std::size_t end) {
  for (std::size_t back = std::min<std::size_t>(4, end); back > 1; --back) {
    if (next_character(text, end - back) == end) return end - back;
  }
  return end - 1;
}

void append_upper(char32_t c, bool title, std::string& out) {
  const auto code = static_cast<utf8proc_int32_t>(c);
  if (c == 0xDF) {
    out += title ? "Ss" : "SS";
  } else {
    append_utf8(static_cast<char32_t>(title ? utf8proc_totitle(code) : utf8proc_toupper(code)), out);
  }
}

}  // namespace

std::size_t next_character(std::string_view text, std::size_t at) {
  if (static_cast<unsigned char>(text[at]) < 0x80) return at + 1;
  const Utf8Step step = next_utf8(text.substr(at));
  return at + (step.kind == Utf8Kind::character ? step.bytes : 1);
}

std::size_t count_characters(std::string_view text) {
  std::size_t count = 0;
  for (std::size_t at = 0; at < text.size(); at = next_character(text, at)) ++count;
  return count;
}

std::size_t place_of_character(std::string_view text, std::size_t number) {
  std::size_t at = 0;
  for (; number > 0 && at < text.size(); --number) at = next_character(text, at);
  return at;
}

Vector<std::size_t> character_starts(Meter& meter, std::string_view text) {
  Vector<std::size_t> starts(meter);
  if (is_ascii(text)) return starts;
  starts.reserve(count_characters(text) + 1);
  for (std::size_t at = 0; at < text.size(); at = next_character(text, at)) starts.push_back(at);
  starts.push_back(text.size());
  return starts;
}

char32_t code_point(std::string_view text, std::size_t at) {
  const auto byte = static_cast<unsigned char>(text[at]);
  if (byte < 0x80) return byte;
  const Utf8Step step = next_utf8(text.substr(at));
  return step.kind == Utf8Kind::character ? decode_utf8(text.substr(at, step.bytes)) : 0xFFFD;
}

bool is_space(char32_t c) {
  if (c < 0x80) return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20);
  return c == 0x85 || category(c) == UTF8PROC_CATEGORY_ZS || c == 0x2028 || c == 0x2029;
}

bool is_letter(char32_t c) {
  const auto kind = category(c);
  return kind >= UTF8PROC_CATEGORY_LU && kind <= UTF8PROC_CATEGORY_LO;
}

bool is_digit(char32_t c) { return category(c) == UTF8PROC_CATEGORY_ND; }

bool is_printable(char32_t c) {
  if (c < 0x7F) return c >= 0x20;
  const auto kind = category(c);
  return kind != UTF8PROC_CATEGORY_CN && kind < UTF8PROC_CATEGORY_ZS;
}

bool is_upper(char32_t c) { return category(c) == UTF8PROC_CATEGORY_LU; }
bool is_lower(char32_t c) { return category(c) == UTF8PROC_CATEGORY_LL; }

std::size_t find_text(std::string_view text, std::string_view word, std::size_t from) {
  if (from > text.size()) return std::string_view::npos;
  if (word.empty()) return from;
  const std::size_t found = os::find_word(text.substr(from), word);
  return found == std::string_view::npos ? found : from + found;
}

Range strip(std::string_view text, std::optional<std::string_view> characters, bool left, bool right) {
  const auto goes = [&](std::size_t begin, std::size_t end) {
    if (!characters) return is_space(code_point(text, begin));
    const std::string_view one = text.substr(begin, end - begin);
    for (std::size_t at = 0; at < characters->size();) {
      const std::size_t next = next_character(*characters, at);
      if (characters->substr(at, next - at) == one) return true;
      at = next;
    }
    return false;
  };
  Range kept{0, text.size()};
  while (left && kept.begin < kept.end) {
    const std::size_t next = next_character(text, kept.begin);
    if (!goes(kept.begin, next)) break;
    kept.begin = next;
  }
  while (right && kept.begin < kept.end) {
    const std::size_t last = last_character(text, kept.end);
    if (!goes(last, kept.end)) break;
    kept.end = last;
  }
  return kept;
}

Vector<Range> split(Meter& meter, std::string_view text, std::optional<std::string_view> separator, std::int64_t most) {
  Vector<Range> parts(meter);
  const auto full = [&] { return most >= 0 && parts.size() >= static_cast<std::size_t>(most); };
  if (separator) {
    std::size_t begin = 0;
    for (std::size_t at = 0; !full(); begin = at + separator->size()) {
      at = find_text(text, *separator, begin);
      if (at == std::string_view::npos) break;
      parts.push_back({begin, at});
    }
    parts.push_back({begin, text.size()});
    return parts;
  }
  std::size_t at = 0;
  while (true) {
    while (at < text.size() && is_space(code_point(text, at))) at = next_character(text, at);
    if (at == text.size()) return parts;
    if (full()) {
      parts.push_back({at, text.size()});
      return parts;
    }
    const std::size_t begin = at;
    while (at < text.size() && !is_space(code_point(text, at))) at = next_character(text, at);
    parts.push_back({begin, at});
  }
}

Vector<Range> split_from_right(Meter& meter, std::string_view text, std::optional<std::string_view> separator,
                               std::int64_t most) {
  Vector<Range> parts = split(meter, text, separator, -1);
  if (most < 0 || parts.size() <= static_cast<std::size_t>(most) + 1) return parts;
  // What is more than that stays together at the front, with its separators.
  const std::size_t first = parts.size() - 1 - static_cast<std::size_t>(most);
  parts[0] = {0, parts[first].end};
  parts.erase(parts.begin() + 1, parts.begin() + static_cast<std::ptrdiff_t>(first) + 1);
  return parts;
}

Vector<Range> split_lines(Meter& meter, std::string_view text, bool keep_ends) {
  Vector<Range> lines(meter);
  for (std::size_t begin = 0, at = 0; begin < text.size();) {
    const char32_t c = at < text.size() ? code_point(text, at) : 0;
    const bool ends = (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
    if (at < text.size() && !ends) {
      at = next_character(text, at);
      continue;
    }
    std::size_t next = at < text.size() ? next_character(text, at) : at;
    if (c == 0x0D && next < text.size() && text[next] == '\n') ++next;
    lines.push_back({begin, keep_ends ? next : at});
    begin = at = next;
  }
  return lines;
}

void append_case(Builder& out, const MarkedText& text, Case to) {
  const std::string& bytes = text.bytes();
  bool in_word = false;
  std::string changed;
  for (std::size_t at = 0; at < bytes.size();) {
    const std::size_t next = next_character(bytes, at);
    const char32_t c = code_point(bytes, at);
    changed.clear();
    const bool up = to == Case::upper || (to == Case::title && !in_word) || (to == Case::capital && at == 0) ||
                    (to == Case::swapped && is_lower(c));
    if (c == 0xFFFD) {
      changed.assign(bytes, at, next - at);  // may be a byte that is no UTF-8
    } else if (up) {
      append_upper(c, to == Case::title || to == Case::capital, changed);
    } else {
      append_utf8(static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))), changed);
    }
    in_word = is_letter(c);
    out.append(changed, text.trusted_at(at));
    at = next;
  }
}

void append_replaced(Builder& out, const MarkedText& text, const MarkedText& from, const MarkedText& to,
                     std::int64_t most) {
  std::size_t begin = 0, search = 0;
  const std::string& bytes = text.bytes();
  for (std::int64_t done = 0; most < 0 || done < most; ++done) {
    const std::size_t at = find_text(bytes, from.bytes(), search);
    if (at == std::string::npos) break;
    out.append(text, begin, at);
    out.append(to);
    begin = at + from.size();
    search = begin;
    if (from.empty()) {  // between all characters, and at both ends
      if (at == bytes.size()) break;
      search = next_character(bytes, at);
    }
    out.meter().step();
  }
  out.append(text, begin, text.size());
}

void append_padded(Builder& out, const MarkedText& text, std::int64_t width, char align, std::string_view fill) {
  const auto own = static_cast<std::int64_t>(count_characters(text.bytes()));
  const std::int64_t missing = std::max<std::int64_t>(0, width - own);
  // Where the two sides differ by one, str.center gives the odd one as CPython does.
  const std::int64_t left = align == '>' ? missing : align == '<' ? 0 : missing / 2 + (missing & width & 1);
  const auto pad = [&](std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) {
      out.meter().step();
      out.append(fill);
    }
  };
  pad(left);
  out.append(text);
  pad(missing - left);
}

}  // namespace millrace::text::jinja
