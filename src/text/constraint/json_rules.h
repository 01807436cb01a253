// Grammar rules for the parts of JSON that schemas share. Source: RFC 8259. Models may write a subset of JSON: at most
// a line break and indentation between tokens, numbers of bounded length, no lone surrogates. Thread-safety: as
// GrammarBuilder.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "text/constraint/character_rules.h"

namespace millrace::text {

/// `one`: equal values have one spelling.
enum class JsonSpelling : std::uint8_t { any, one };

class JsonRules final : public CharacterRules {
 public:
  explicit JsonRules(GrammarBuilder& builder);

  /// Selects one spelling for equal values: without white space, and with escapes only where required. any_value() and
  /// any_object() do not change. Returns the previous setting.
  JsonSpelling set_spelling(JsonSpelling spelling) { return std::exchange(spelling_, spelling); }
  JsonSpelling spelling() const { return spelling_; }

  /// White space: nothing, a space, or a line break with up to 40 spaces or tabs.
  Fragment space();
  Fragment optional_blank();
  /// A string of `least` to `most` characters (UINT32_MAX: any number), with its quotes.
  Fragment string(std::uint32_t least, std::uint32_t most);
  /// A string that differs from all of these, with its quotes.
  Fragment string_except(const std::vector<std::string>& words);
  void add_characters(StateId from, const CharacterRanges& ranges, StateId to) override;
  std::string spelled(std::string_view utf8) const override;
  /// `text` as a JSON string, with its quotes.
  static std::string quoted(std::string_view text);

  RuleId any_value() const { return any_value_; }
  RuleId any_object() const { return any_object_; }

 private:
  Fragment escaped(char32_t code_point);
  Fragment characters(const CharacterRanges& ranges);
  Fragment plain_string();
  void define_characters();
  void define_values();
  void add_plain_bytes(StateId from, StateId to, const std::vector<std::uint8_t>& except);
  void add_others(StateId from, StateId to);
  void add_escapes(StateId from, StateId to);

  RuleId space_, multibyte_, escape_, string_, any_value_, any_object_;
  std::map<CharacterRanges, RuleId> sets_;  // of characters that take more than a byte
  JsonSpelling spelling_ = JsonSpelling::any;
};

/// Integers have no decimal point; fractions are the non-integers.
enum class Numbers : std::uint8_t { integers, fractions, all };

/// -?(0|[1-9][0-9]*), and for numbers a fraction and an exponent. In one spelling no exponent, and numbers of up to 15
/// digits: no two are the same double. Fractions have one spelling.
Fragment json_number(GrammarBuilder& builder, Numbers which, JsonSpelling spelling = JsonSpelling::any);

/// `digits` times 10^-places.
struct Decimal {
  std::uint64_t digits = 0;
  int places = 0;
};
/// Of a number as JSON has it, its sign aside. REQUIRES: at most 19 digits that count.
Decimal decimal_of(std::string_view number);

/// Bounds on a number, and what it is a multiple of. Bounds that need more than 15 digits are rounded to the inside.
/// NaN: no bound; no digits: a multiple of nothing.
struct NumberBounds {
  double low, high;
  bool low_open = false, high_open = false;
  Decimal multiple_of = {};
};
/// In one spelling numbers that may be no integers keep within 1e9, with 6 digits behind the point; so do fractions.
/// Of what is a multiple of much, the 2,000 nearest to zero (or to the bound on this side of it) are written.
/// Errors: unsupported (beyond these; bounds with too many digits), invalid_argument (nothing lies between).
Expected<Fragment> bounded_number(GrammarBuilder& builder, const NumberBounds& bounds, Numbers which,
                                  JsonSpelling spelling = JsonSpelling::any);

}  // namespace millrace::text
