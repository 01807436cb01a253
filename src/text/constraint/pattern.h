// Regular expressions, such as "pattern" of JSON schemas, as what a text or a JSON string has to hold: literals, .,
// classes, \d \w \s \p{...}, groups, |, * + ? {m,n}, ^ and $, \b, look-ahead, flags i and s.
// Not: look-behind, back references, [:classes:], && in classes. Source: ECMA-262. Thread-safety: as GrammarBuilder.
#pragma once

#include <string_view>

#include "base/status.h"
#include "text/constraint/pattern_parser.h"
#include "text/constraint/regular.h"

namespace millrace::text {

/// The strings that the pattern matches (anywhere, unless anchored), or, if `inverted`, those that it does not.
/// Errors: invalid_argument (no regular expression, or too long), unsupported (names what).
Expected<RegularSets::Set> pattern_set(RegularSets& sets, std::string_view pattern, bool inverted = false);

/// The texts that the pattern matches, as `rules` write characters (JsonRules: the inside of a JSON string, without
/// quotes). In proportion to the pattern where it looks at nothing but characters, and is anchored at its ends if
/// anywhere. Errors: as pattern_set().
Expected<Fragment> pattern_fragment(GrammarBuilder& builder, CharacterRules& rules, RegularSets& sets,
                                    std::string_view pattern);

/// The same of the texts that it matches from their beginning to their end.
Expected<Fragment> whole_pattern_fragment(GrammarBuilder& builder, CharacterRules& rules, RegularSets& sets,
                                          std::string_view pattern, const PatternReading& reading);

}  // namespace millrace::text
