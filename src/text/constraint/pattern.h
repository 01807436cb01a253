// The regular expressions of JSON schemas ("pattern"), as what a JSON string has to hold: literals, ., classes,
// \d \w \s \p{...}, groups, |, * + ? {m,n}, ^ and $, \b, look-ahead. Not: look-behind, back references.
// Source: ECMA-262. Thread-safety: as GrammarBuilder.
#pragma once

#include <string_view>

#include "base/status.h"
#include "text/constraint/json_rules.h"
#include "text/constraint/regular.h"

namespace millrace::text {

/// The strings that the pattern matches (anywhere, unless anchored), or, if `inverted`, those that it does not.
/// Errors: invalid_argument (no regular expression, or too long), unsupported (names what).
Expected<RegularSets::Set> pattern_set(RegularSets& sets, std::string_view pattern, bool inverted = false);

/// The inside of a JSON string, without quotes, that the pattern matches. In proportion to the pattern where it looks
/// at nothing but characters, and is anchored at its ends if anywhere. Errors: as pattern_set().
Expected<Fragment> pattern_fragment(GrammarBuilder& builder, JsonRules& rules, RegularSets& sets,
                                    std::string_view pattern);

}  // namespace millrace::text
