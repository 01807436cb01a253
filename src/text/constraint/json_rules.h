// The parts of JSON that every schema shares, as rules of a grammar. Source: RFC 8259. What a model may write is a part
// of what JSON allows: at most a line break and its indentation between tokens, numbers of bounded length, no lone
// surrogates. Thread-safety: as GrammarBuilder.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "text/constraint/character_rules.h"

namespace millrace::text {

class JsonRules final : public CharacterRules {
 public:
  explicit JsonRules(GrammarBuilder& builder);

  /// White space: nothing, a space, or a line break with up to 40 spaces or tabs.
  Fragment space();
  Fragment optional_blank();
  /// A string of `least` to `most` characters (UINT32_MAX: any number), with its quotes.
  Fragment string(std::uint32_t least, std::uint32_t most);
  /// A string that is none of these, with its quotes.
  Fragment string_except(const std::vector<std::string>& words);
  void add_characters(StateId from, const CharacterRanges& ranges, StateId to) override;
  /// What `text` is as a JSON string, with its quotes.
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

  RuleId space_, multibyte_, escape_, string_, any_value_, any_object_;
  std::map<CharacterRanges, RuleId> sets_;  // of characters that take more than a byte
};

/// -?(0|[1-9][0-9]*), and for numbers a fraction and an exponent.
Fragment json_number(GrammarBuilder& builder, bool integer);

/// Bounds on a number, and what it is a multiple of. Bounds of more than 6 digits behind the point are rounded to the
/// inside. NaN: no bound; 0: a multiple of nothing.
struct NumberBounds {
  double low, high;
  bool low_open = false, high_open = false;
  double multiple_of = 0;
};
/// Errors: unsupported (beyond 1e18; more digits in multiple_of), invalid_argument (nothing lies between).
Expected<Fragment> bounded_number(GrammarBuilder& builder, const NumberBounds& bounds, bool integer);

}  // namespace millrace::text
