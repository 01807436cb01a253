#include "base/shell_words.h"

#include "base/words.h"

namespace millrace {
namespace {

bool is_space(char c) { return kSpaces.find(c) != std::string_view::npos; }

/// Appends the quoted part that begins at `at` and moves `at` behind it. False if the quote is not closed.
bool take_quoted(std::string_view text, std::size_t& at, std::string& out) {
  const char quote = text[at];
  std::string part;
  for (std::size_t i = at + 1; i < text.size(); ++i) {
    if (text[i] == quote) {
      out += part;
      at = i + 1;
      return true;
    }
    const bool escapes = quote == '"' && text[i] == '\\' && i + 1 < text.size() &&
                         (text[i + 1] == '"' || text[i + 1] == '\\' || text[i + 1] == '$' || text[i + 1] == '`');
    if (escapes) ++i;
    part += text[i];
  }
  return false;
}

ShellWord take_word(std::string_view text, std::size_t at) {
  ShellWord word;
  word.begin = at;
  bool may_quote = true;
  while (at < text.size() && !is_space(text[at])) {
    const char c = text[at];
    if (may_quote && (c == '\'' || c == '"') && take_quoted(text, at, word.text)) {
      word.quoted = true;
      continue;
    }
    const bool escapes = c == '\\' && at + 1 < text.size();
    if (escapes) ++at;
    word.text += text[at++];
    may_quote = escapes && word.quoted;
  }
  word.end = at;
  return word;
}

}  // namespace

std::vector<ShellWord> shell_words(std::string_view text) {
  std::vector<ShellWord> words;
  for (std::size_t at = 0; at < text.size();) {
    if (is_space(text[at])) {
      ++at;
      continue;
    }
    words.push_back(take_word(text, at));
    at = words.back().end;
  }
  return words;
}

}  // namespace millrace
