// Regular sets of texts with union, intersection and complement, for combinations of patterns, formats and length
// limits. A set is a term; the set of continuations after a character is another term (its derivative), so that the
// automaton of any combination is built state by state, on demand. Source: Owens, Reppy and Turon 2009,
// "Regular-expression derivatives re-examined".
//
// Terms live as long as their RegularSets. Their memory is charged to the builder; once it is full, sets are
// meaningless and loops may end. Thread-safety: as GrammarBuilder.
#pragma once

#include <map>
#include <optional>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "text/constraint/character_rules.h"

namespace millrace::text {

/// Sorted, without overlaps, without surrogates.
CharacterRanges tidy(CharacterRanges ranges);
CharacterRanges complement(const CharacterRanges& ranges);

class RegularSets {
 public:
  using Set = std::uint32_t;
  static constexpr Set kNothing = 0, kEmptyText = 1, kAll = 2;

  explicit RegularSets(GrammarBuilder& builder);

  Set characters(CharacterRanges ranges);
  Set literal(std::string_view utf8);
  Set sequence(Set a, Set b);
  Set either(const std::vector<Set>& options);
  Set both(const std::vector<Set>& parts);
  Set inverse(Set a);
  /// most: UINT32_MAX is unbounded.
  Set repeat(Set a, std::uint32_t least, std::uint32_t most);

  bool has_empty_text(Set a) const { return terms_[a].has_empty; }
  bool contains(Set a, std::string_view utf8);
  /// Errors: unsupported (too many states to decide).
  Expected<bool> is_nothing(Set a);

  /// Its texts, as `rules` write characters: inside a JSON string (without its quotes), or as they are.
  /// Errors: unsupported (too many states).
  Expected<Fragment> fragment(CharacterRules& rules, Set a);

 private:
  enum class Kind : std::uint8_t { nothing, empty, characters, sequence, either, both, inverse, repeat };
  struct Term {
    Kind kind = Kind::nothing;
    std::uint32_t least = 0, most = 0;  // of a repeat
    std::vector<Set> parts;             // ascending in either and both
    CharacterRanges ranges;
    bool has_empty = false;
    auto key() const { return std::tie(kind, least, most, parts, ranges); }
    bool operator<(const Term& other) const { return key() < other.key(); }
  };
  /// After a character from this one up to the next step's, the rest is in `rest`. The first step begins at 0.
  struct Step {
    char32_t from;
    Set rest;
  };
  using Steps = std::vector<Step>;

  Set intern(Term term);
  Set combine(Kind kind, const std::vector<Set>& parts);
  const Steps& steps(Set a);
  Steps make_steps(Set a);
  Steps overlay(const std::vector<const Steps*>& all, Kind kind);
  template <typename Change>
  Steps changed(const Steps& steps, Change change);
  Set rest_after(Set a, char32_t character);

  GrammarBuilder& builder_;
  std::vector<Term> terms_;
  std::map<Term, Set> ids_;
  std::map<Set, Steps> steps_;
  int depth_ = 0;
};

}  // namespace millrace::text
