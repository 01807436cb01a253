// Compiles regular expressions, such as "pattern" of JSON schemas: literals, ., classes, \d \w \s \p{...}, groups, |, *
// + ? {m,n}, ^ and $, \b, look-ahead, flags i and s. Not: look-behind, back references, [:classes:], && in classes.
// Source: ECMA-262. Thread-safety: as GrammarBuilder.
#pragma once

#include <string_view>

#include "base/status.h"
#include "text/constraint/pattern_parser.h"
#include "text/constraint/regular.h"

namespace millrace::text {

/// The set of strings that the pattern matches (anywhere, unless anchored), or, if `inverted`, its complement. Errors:
/// invalid_argument (not a regular expression, or too long), unsupported (names the construct).
Expected<RegularSets::Set> pattern_set(RegularSets& sets, std::string_view pattern, bool inverted = false);

/// The texts that the pattern matches, as `rules` write characters (JsonRules: the inside of a JSON string, without
/// quotes). In proportion to the pattern where it looks at nothing but characters, and is anchored at its ends if
/// anywhere. Errors: as pattern_set().
Expected<Fragment> pattern_fragment(GrammarBuilder& builder, CharacterRules& rules, RegularSets& sets,
                                    std::string_view pattern);

/// The same for texts that it matches completely.
Expected<Fragment> whole_pattern_fragment(GrammarBuilder& builder, CharacterRules& rules, RegularSets& sets,
                                          std::string_view pattern, const PatternReading& reading);

}  // namespace millrace::text
