// Grammars from anywhere, in GBNF, in Lark or as a regular expression: compiling one and walking its masks ends soon,
// in a grammar or in an error that tells the place. The input is a byte that picks the syntax, a grammar, a zero byte,
// and the walk's choices.
#include "form_walk.h"
#include "text/constraint/written_grammar.h"

using namespace millrace::text;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const auto syntax = static_cast<GrammarSyntax>(data[0] % 3);
  const std::string_view input(reinterpret_cast<const char*>(data) + 1, size - 1);
  const auto cut = input.find('\0');
  const std::string_view choices = cut == std::string_view::npos ? "" : input.substr(cut + 1);
  const auto grammar = written_grammar(syntax, input.substr(0, cut));
  if (grammar.ok()) walk_masks(*grammar, choices);
  const GrammarPlace in_json{true, "", "\"", true};
  const auto within = written_grammar(syntax, input.substr(0, cut), {}, in_json);
  if (within.ok()) walk_masks(*within, choices);
  return 0;
}
