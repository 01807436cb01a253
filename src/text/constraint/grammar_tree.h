// The syntax tree of a grammar: rules by name, each a tree. GBNF and Lark are parsed to it, and written_grammar.h
// compiles it. Used in text/constraint/ only. Thread-safety: plain values.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "text/constraint/pattern_parser.h"

namespace millrace::text {

/// A position in a text, counted from 1; columns count characters.
struct TextPlace {
  std::size_t line = 1, column = 1;
};
TextPlace place_of(std::string_view text, std::size_t byte);
/// "line 3, column 7: WHAT".
Status error_at(TextPlace place, std::string_view what, Code code = Code::invalid_argument);

struct GrammarNode {
  enum class Kind { characters, pattern, reference, sequence, either, repeat } kind = Kind::sequence;
  CharacterRanges ranges;               // characters
  std::string pattern;                  // a regular expression for the whole text
  bool any_case = false, dots = false;  // pattern: its flags i and s
  TextPlace place;                      // pattern
  std::uint32_t rule = 0;               // reference: index into GrammarTree::rules
  std::vector<GrammarNode> parts;       // elements of a sequence; options; the repeated node
  std::uint32_t least = 0, most = 0;    // repeat; UINT32_MAX: unbounded
};

struct GrammarRule {
  std::string name;
  TextPlace place;  // of its definition or first use
  bool defined = false;
  GrammarNode body;
};

struct GrammarTree {
  std::vector<GrammarRule> rules;
  std::uint32_t root = 0;
  std::size_t template_bytes = 0;  // of Lark's templates, expanded at each use

  /// The rule with that name, created if necessary.
  std::uint32_t rule(const std::string& name, TextPlace place);
  /// Errors: invalid_argument (no rule `root`; an undefined rule).
  Status check(const std::string& root_name);
  /// Rewrites "a: a x | y" as "a: y x*", which matches the same texts without left recursion.
  void unfold_left_recursion();

 private:
  std::map<std::string, std::uint32_t> names_;
};

GrammarNode characters_node(CharacterRanges ranges);
/// REQUIRES: valid UTF-8.
GrammarNode text_node(std::string_view utf8, bool any_case = false);
GrammarNode reference_node(std::uint32_t rule);
GrammarNode repeat_node(GrammarNode part, std::uint32_t least, std::uint32_t most);
GrammarNode either_node(std::vector<GrammarNode> options);  // a single option: that node
GrammarNode sequence_node(std::vector<GrammarNode> parts);  // a single part: that node
/// Equal for equal nodes.
std::string words_of(const GrammarNode& node);

constexpr std::uint32_t kMostGrammarRepeats = 10'000;
constexpr int kMostGrammarDepth = 100;                // nesting of groups
constexpr std::size_t kMostTemplateBytes = 16 << 10;  // of Lark's templates, expanded

/// Parses GBNF as llama.cpp's server does, except tokens as terminals. Source: grammars/README.md of llama.cpp. Errors:
/// invalid_argument, unsupported (both with line and column).
Expected<GrammarTree> parse_gbnf(std::string_view text);

/// Parses Lark grammars: rules, terminals, templates, %ignore, %override, %extend, %import of common terminals.
/// Unsupported: other imports, %declare. Priorities, aliases, ? and ! of rules only affect parse trees, and are
/// ignored. Source: lark-parser.readthedocs.io/en/stable/grammar.html. Errors: as parse_gbnf().
Expected<GrammarTree> parse_lark(std::string_view text);

}  // namespace millrace::text
