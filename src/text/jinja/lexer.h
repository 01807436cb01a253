// A template's source as tokens, white space controlled the way chat templates are rendered everywhere: trim_blocks and
// lstrip_blocks on, one newline at the end dropped, all line ends made '\n'. Source: the Jinja 3.1 documentation.
// Thread-safety: a pure function.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace millrace::text::jinja {

enum class TokenKind {
  data,  // text between tags
  variable_begin,
  variable_end,
  block_begin,
  block_end,
  name,
  string,  // text: the characters meant
  integer,
  real,
  op,
  end
};

struct Token {
  TokenKind kind = TokenKind::end;
  std::string text;
  int line = 1;
};

/// Fails (Trouble, with the line) for what is no template. The last token is `end`.
std::vector<Token> tokenize(std::string_view source);

}  // namespace millrace::text::jinja
