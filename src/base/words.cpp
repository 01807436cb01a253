#include "base/words.h"

#include <algorithm>

namespace millrace {
namespace {

char lower_letter(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

}  // namespace

std::size_t spaces(std::string_view text) { return std::min(text.find_first_not_of(kSpaces), text.size()); }

std::string_view trim(std::string_view text) {
  text.remove_prefix(spaces(text));
  return text.substr(0, text.find_last_not_of(kSpaces) + 1);  // npos + 1 is 0
}

std::string replaced(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  while (true) {
    const std::size_t at = text.find(from);
    out.append(text.substr(0, at));
    if (at == std::string_view::npos) return out;
    out.append(to);
    text.remove_prefix(at + from.size());
  }
}

std::string lower(std::string_view text) {
  std::string lowered(text);
  for (char& c : lowered) c = lower_letter(c);
  return lowered;
}

bool same_word(std::string_view a, std::string_view b) {
  return std::ranges::equal(a, b, [](char x, char y) { return lower_letter(x) == lower_letter(y); });
}

}  // namespace millrace
