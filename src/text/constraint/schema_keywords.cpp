// Which keywords of a schema bind a value, and which are annotations. Source: JSON Schema, drafts 3 to 2020-12: a word
// that no draft knows is an annotation.
#include <algorithm>
#include <set>

#include "text/constraint/schema_flatten.h"

namespace millrace::text {
namespace {

/// Of all drafts, and OpenAPI's.
const std::set<std::string_view>& constraints() {
  static const std::set<std::string_view> all = {"type",
                                                 "nullable",
                                                 "enum",
                                                 "const",
                                                 "$ref",
                                                 "$dynamicRef",
                                                 "$recursiveRef",
                                                 "allOf",
                                                 "anyOf",
                                                 "oneOf",
                                                 "not",
                                                 "if",
                                                 "then",
                                                 "else",
                                                 "extends",
                                                 "disallow",
                                                 "properties",
                                                 "required",
                                                 "additionalProperties",
                                                 "patternProperties",
                                                 "propertyNames",
                                                 "minProperties",
                                                 "maxProperties",
                                                 "unevaluatedProperties",
                                                 "dependencies",
                                                 "dependentRequired",
                                                 "dependentSchemas",
                                                 "items",
                                                 "prefixItems",
                                                 "additionalItems",
                                                 "unevaluatedItems",
                                                 "contains",
                                                 "minContains",
                                                 "maxContains",
                                                 "minItems",
                                                 "maxItems",
                                                 "uniqueItems",
                                                 "minLength",
                                                 "maxLength",
                                                 "pattern",
                                                 "format",
                                                 "formatMinimum",
                                                 "formatMaximum",
                                                 "formatExclusiveMinimum",
                                                 "formatExclusiveMaximum",
                                                 "minimum",
                                                 "maximum",
                                                 "exclusiveMinimum",
                                                 "exclusiveMaximum",
                                                 "multipleOf",
                                                 "divisibleBy"};
  return all;
}

/// As people spell it elsewhere: min_length is minLength.
std::string letters_of(std::string_view word) {
  std::string letters;
  for (const char c : word)
    if (c != '_' && c != '-' && c != '$') letters += static_cast<char>(c >= 'A' && c <= 'Z' ? c + ('a' - 'A') : c);
  return letters;
}

/// One letter added, left out, changed, or two that changed places.
bool nearly_same(std::string_view a, std::string_view b) {
  if (a.size() > b.size()) std::swap(a, b);
  if (b.size() - a.size() > 1) return false;
  const auto [x, y] = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  const std::string_view rest_a(x, a.end()), rest_b(y, b.end());
  if (a.size() < b.size()) return rest_a == rest_b.substr(1);
  if (rest_a.size() < 2) return true;
  const bool changed_places = rest_a[0] == rest_b[1] && rest_a[1] == rest_b[0];
  return rest_a.substr(1) == rest_b.substr(1) || (changed_places && rest_a.substr(2) == rest_b.substr(2));
}

}  // namespace

std::string_view meant_keyword(std::string_view keyword) {
  if (constraints().contains(keyword)) return keyword;
  if (keyword.starts_with('\x01')) return keyword;
  constexpr std::size_t least_letters = 5, most_letters = 40;  // shorter words are near to too many
  if (keyword.size() > most_letters || keyword.starts_with("x-")) return {};
  const std::string letters = letters_of(keyword);
  for (const std::string_view known : constraints()) {
    const std::string others = letters_of(known);
    if (letters == others || (others.size() >= least_letters && nearly_same(letters, others))) return known;
  }
  return {};
}

bool is_annotation(const std::string& keyword) {
  static const std::set<std::string_view> known = {
      "title",      "description", "default",  "examples",  "example", "$schema",     "$id",     "$comment",
      "deprecated", "id",          "readOnly", "writeOnly", "$defs",   "definitions", "$anchor", "discriminator"};
  return known.contains(keyword) || meant_keyword(keyword).empty();
}

}  // namespace millrace::text
