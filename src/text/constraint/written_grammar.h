// Compiles grammars of requests: GBNF, Lark, or regular expressions. The whole answer must match; a regular expression
// is anchored at both ends.
//
// A grammar defines a set of texts. How a parser would tokenize them (greediness, priorities, lazy repeats) is ignored:
// adjacent terminals may be written in any way that the rules allow. Left recursion is only supported directly, and in
// Lark. Thread-safety: pure functions.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"
#include "text/constraint/grammar.h"
#include "text/constraint/regular.h"

namespace millrace::text {

enum class GrammarSyntax { gbnf, lark, regex };
/// By name. Errors: unsupported.
Expected<GrammarSyntax> grammar_syntax(std::string_view name);

/// The context of a text of the grammar.
struct GrammarPlace {
  bool in_json = false;  // characters are encoded as in a JSON string
  std::string begin, end;
  bool then_anything = false;  // any bytes may follow, for tokens that extend past the end
};

/// A grammar has 128 KiB at most, and takes time and memory in proportion to its size (with its repeats written out),
/// within `limits`. Errors: invalid_argument (with line and column; or too large), unsupported (names what, with line
/// and column), cancelled (by the limits' grant).
Expected<std::shared_ptr<const Grammar>> written_grammar(GrammarSyntax syntax, std::string_view text,
                                                         const BuildLimits& limits = {},
                                                         const GrammarPlace& place = {});

/// Adds it to a larger grammar, with characters encoded by `rules`. Errors that only finish() can detect are reported
/// there. Errors: as above.
Expected<Fragment> written_fragment(GrammarBuilder& builder, CharacterRules& rules, RegularSets& sets,
                                    GrammarSyntax syntax, std::string_view text);

}  // namespace millrace::text
