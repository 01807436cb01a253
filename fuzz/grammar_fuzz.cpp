// Grammars from anywhere, in GBNF, in Lark or as a regular expression: compiling one and walking its masks ends soon,
// in a grammar or in an error that tells the place. The input is a byte that picks the syntax and whether the text
// stands in a JSON string, a grammar, a zero byte, and the walk's choices.
#include <algorithm>

#include "form_walk.h"
#include "text/constraint/written_grammar.h"

using namespace millrace::text;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const auto syntax = static_cast<GrammarSyntax>(data[0] % 3);
  const bool in_json = (data[0] / 3) % 2 == 1;
  const std::string_view input(reinterpret_cast<const char*>(data) + 1, size - 1);
  const auto cut = input.find('\0');
  // A part of what requests may take: sanitizers are slow, and all fuzzers run at once.
  if (syntax == GrammarSyntax::regex && std::min(cut, input.size()) > 64) return 0;
  BuildLimits limits;
  limits.states /= 40;
  limits.bytes /= 100;
  const GrammarPlace place = in_json ? GrammarPlace{true, "", "\"", true} : GrammarPlace{};
  const auto grammar = written_grammar(syntax, input.substr(0, cut), limits, place);
  if (grammar.ok()) walk_masks(*grammar, cut == std::string_view::npos ? "" : input.substr(cut + 1), 4);
  return 0;
}
