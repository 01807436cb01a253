// Characters as edges of a grammar over bytes: as UTF-8 has them, or (JsonRules) as JSON writes them inside a string.
// Whoever turns a pattern or a written grammar into an automaton asks for characters here, so that the same form can
// bind an answer and a string within one. Thread-safety: as GrammarBuilder.
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

  /// One character of `ranges` as an edge, or as few as will do. REQUIRES: they ascend, do not overlap and hold no
  /// surrogates.
  virtual void add_characters(StateId from, const CharacterRanges& ranges, StateId to) = 0;
  /// The bytes that stand for a text, where there are several the plainest.
  virtual std::string spelled(std::string_view utf8) const = 0;
  /// The same between two new states.
  Fragment any_of(const CharacterRanges& ranges);

 protected:
  /// As UTF-8 has them; what begins with the same bytes shares their states, so that a class of Unicode with hundreds
  /// of ranges is one place to stand at. REQUIRES: as add_characters().
  Fragment code_points(const CharacterRanges& ranges);

  GrammarBuilder& builder_;
};

/// Characters as they are.
class PlainRules final : public CharacterRules {
 public:
  using CharacterRules::CharacterRules;
  void add_characters(StateId from, const CharacterRanges& ranges, StateId to) override;
  std::string spelled(std::string_view utf8) const override { return std::string(utf8); }

 private:
  std::map<CharacterRanges, RuleId> sets_;  // of characters that take more than a byte
};

}  // namespace millrace::text
