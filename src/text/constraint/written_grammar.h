// Grammars that somebody wrote, as the form of an answer: GBNF, Lark, or a regular expression. The answer is exactly a
// text of the grammar: a regular expression holds from its beginning to its end.
//
// A grammar says which texts there are. How a parser would cut such a text into tokens (greed, priorities, lazy
// repeats) is not looked at: two terminals without a border between them may be written in any way that the rules
// allow. Rules may refer to themselves anywhere but before a character was taken; Lark's rules also there, directly.
// Thread-safety: pure functions.
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

/// What stands around a text of the grammar.
struct GrammarPlace {
  bool in_json = false;  // characters as JSON writes them inside a string
  std::string begin, end;
  bool then_anything = false;  // any bytes may follow: for tokens that go on behind the end
};

/// A grammar has 128 KiB at most, and takes time and memory in proportion to its size (with its repeats written out),
/// within `limits`. Errors: invalid_argument (with line and column; or too large), unsupported (names what, with line
/// and column), cancelled (by the limits' grant).
Expected<std::shared_ptr<const Grammar>> written_grammar(GrammarSyntax syntax, std::string_view text,
                                                         const BuildLimits& limits = {},
                                                         const GrammarPlace& place = {});

/// The same as a part of a larger grammar, its characters as `rules` write them. What finish() would find wrong shows
/// there. Errors: as above.
Expected<Fragment> written_fragment(GrammarBuilder& builder, CharacterRules& rules, RegularSets& sets,
                                    GrammarSyntax syntax, std::string_view text);

}  // namespace millrace::text
