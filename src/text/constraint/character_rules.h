// Characters as edges of a grammar over bytes: in UTF-8, or (JsonRules) as JSON encodes them in a string. Patterns and
// written grammars are compiled through this class, so that the same form can constrain an answer or a string within
// one. Thread-safety: as GrammarBuilder.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/constraint/grammar.h"

namespace millrace::text {

using CharacterRange = std::pair<char32_t, char32_t>;  // first and last
using CharacterRanges = std::vector<CharacterRange>;

class CharacterRules {
 public:
  explicit CharacterRules(GrammarBuilder& builder) : builder_(builder) {}
  virtual ~CharacterRules() = default;
  CharacterRules(const CharacterRules&) = delete;
  CharacterRules& operator=(const CharacterRules&) = delete;

  /// A character of `ranges`, with as few edges as possible. REQUIRES: the ranges ascend, do not overlap and contain no
  /// surrogates.
  virtual void add_characters(StateId from, const CharacterRanges& ranges, StateId to) = 0;
  /// The encoding of a text; the plainest if there are several.
  virtual std::string spelled(std::string_view utf8) const = 0;
  /// The same, between two new states.
  Fragment any_of(const CharacterRanges& ranges);

 protected:
  /// In UTF-8. Encodings with a common prefix share its states, so that a Unicode class with hundreds of ranges has one
  /// initial state. REQUIRES: as add_characters().
  Fragment code_points(const CharacterRanges& ranges);

  GrammarBuilder& builder_;
};

/// Characters in UTF-8.
class PlainRules final : public CharacterRules {
 public:
  using CharacterRules::CharacterRules;
  void add_characters(StateId from, const CharacterRanges& ranges, StateId to) override;
  std::string spelled(std::string_view utf8) const override { return std::string(utf8); }

 private:
  std::map<CharacterRanges, RuleId> sets_;  // for characters of more than one byte
};

}  // namespace millrace::text
