// The regular expressions of JSON schemas ("pattern"), as what a JSON string has to hold: literals, ., classes,
// \d \w \s, groups, |, * + ? {m,n}, ^ and $ at the ends. Not: look-around, back references, \b, \p.
// Source: JSON Schema's recommended subset of ECMA-262. Thread-safety: as GrammarBuilder.
#pragma once

#include <string_view>

#include "base/status.h"
#include "text/constraint/json_rules.h"

namespace millrace::text {

/// The inside of a JSON string, without quotes, that the pattern matches (anywhere, unless anchored).
/// Errors: invalid_argument (no regular expression), unsupported (names what).
Expected<Fragment> pattern_fragment(GrammarBuilder& builder, JsonRules& rules, std::string_view pattern);

/// The pattern of a schema's "format". Errors: unsupported.
Expected<std::string_view> format_pattern(std::string_view format);

}  // namespace millrace::text
