// A grammar as somebody wrote it: rules by name, each a tree. GBNF and Lark are read into it; written_grammar.h makes
// an automaton of it. Inside of text/constraint/ only. Thread-safety: plain values.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "text/constraint/pattern_parser.h"

namespace millrace::text {

/// Where something stands in a text, from 1; a column is a character, not a byte.
struct TextPlace {
  std::size_t line = 1, column = 1;
};
TextPlace place_of(std::string_view text, std::size_t byte);
/// "line 3, column 7: WHAT".
Status error_at(TextPlace place, std::string_view what, Code code = Code::invalid_argument);

struct GrammarNode {
  enum class Kind { characters, pattern, reference, sequence, either, repeat } kind = Kind::sequence;
  CharacterRanges ranges;               // characters
  std::string pattern;                  // a regular expression that matches the whole
  bool any_case = false, dots = false;  // pattern: its flags i and s
  TextPlace place;                      // pattern
  std::uint32_t rule = 0;               // reference: index into GrammarTree::rules
  std::vector<GrammarNode> parts;       // sequence; options; what is repeated
  std::uint32_t least = 0, most = 0;    // repeat; UINT32_MAX: without end
};

struct GrammarRule {
  std::string name;
  TextPlace place;  // where it is defined, or named first
  bool defined = false;
  GrammarNode body;
};

struct GrammarTree {
  std::vector<GrammarRule> rules;
  std::uint32_t root = 0;
  std::size_t template_bytes = 0;  // of Lark's templates, written out for each of their uses

  /// The rule of that name; a new one where there is none yet.
  std::uint32_t rule(const std::string& name, TextPlace place);
  /// Errors: invalid_argument (no rule `root`; a rule that is named and not defined).
  Status check(const std::string& root_name);
  /// "a: a x | y" as "a: y x*": the same texts, which the automaton can follow.
  void unfold_left_recursion();

 private:
  std::map<std::string, std::uint32_t> names_;
};

GrammarNode characters_node(CharacterRanges ranges);
/// REQUIRES: valid UTF-8.
GrammarNode text_node(std::string_view utf8, bool any_case = false);
GrammarNode reference_node(std::uint32_t rule);
GrammarNode repeat_node(GrammarNode part, std::uint32_t least, std::uint32_t most);
GrammarNode either_node(std::vector<GrammarNode> options);  // of one option: that
GrammarNode sequence_node(std::vector<GrammarNode> parts);  // of one part: that
/// Equal for equal nodes.
std::string words_of(const GrammarNode& node);

constexpr std::uint32_t kMostGrammarRepeats = 10'000;
constexpr int kMostGrammarDepth = 100;                // of groups within groups
constexpr std::size_t kMostTemplateBytes = 16 << 10;  // of Lark's templates, once they are written out

/// GBNF, as llama.cpp's server takes it, but for tokens as terminals. Source: grammars/README.md of llama.cpp.
/// Errors: invalid_argument, unsupported (both with line and column).
Expected<GrammarTree> parse_gbnf(std::string_view text);

/// Lark's grammars: rules, terminals, templates, %ignore, %override, %extend, %import of its common terminals. Not:
/// other imports, %declare. Priorities, aliases, ? and ! of rules say something of the tree of a parse, and nothing
/// here. Source: lark-parser.readthedocs.io/en/stable/grammar.html. Errors: as parse_gbnf().
Expected<GrammarTree> parse_lark(std::string_view text);

}  // namespace millrace::text
