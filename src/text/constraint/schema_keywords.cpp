// Source: JSON Schema, drafts 3 to 2020-12, and OpenAPI: a word that none of them knows is an annotation.
#include "text/constraint/schema_keywords.h"

#include <algorithm>
#include <unordered_map>

#include "text/constraint/schema.h"

namespace millrace::text {
namespace {

using Use = KeywordUse;

constexpr SchemaKeyword kKeywords[] = {
    {"type"},
    {"nullable"},
    {"enum"},
    {"const"},
    {"$ref", Use::combined, "", true},
    {"$dynamicRef", Use::combined, "", true},
    {"$recursiveRef", Use::combined, "", true},
    {"allOf", Use::combined, "", true},
    {"anyOf", Use::combined, "", true},
    {"oneOf", Use::combined, "", true},
    {"not", Use::combined, "", true},
    {"if", Use::combined, "", true},
    {"then", Use::combined, "", true},
    {"else", Use::combined, "", true},
    {"dependentSchemas", Use::combined, "", true},
    {"dependencies", Use::combined, "", true},
    {"dependentRequired", Use::combined},
    {"properties", Use::plain, "object", true},
    {"additionalProperties", Use::plain, "object", true},
    {"patternProperties", Use::plain, "object", true},
    {"unevaluatedProperties", Use::plain, "object", true},
    {"required", Use::plain, "object"},
    {"propertyNames", Use::plain, "object"},
    {"minProperties", Use::plain, "object"},
    {"maxProperties", Use::plain, "object"},
    {"items", Use::plain, "array", true},
    {"prefixItems", Use::plain, "array", true},
    {"additionalItems", Use::plain, "array", true},
    {"unevaluatedItems", Use::plain, "array", true},
    {"contains", Use::plain, "array", true},
    {"minContains", Use::plain, "array"},
    {"maxContains", Use::plain, "array"},
    {"minItems", Use::plain, "array"},
    {"maxItems", Use::plain, "array"},
    {"uniqueItems", Use::plain, "array"},
    {"minLength", Use::plain, "string"},
    {"maxLength", Use::plain, "string"},
    {"pattern", Use::plain, "string"},
    {"format", Use::plain, "string"},
    {"minimum", Use::plain, "number"},
    {"maximum", Use::plain, "number"},
    {"exclusiveMinimum", Use::plain, "number"},
    {"exclusiveMaximum", Use::plain, "number"},
    {"multipleOf", Use::plain, "number"},
    {"extends", Use::refused, "", true},
    {"disallow", Use::refused, "", true},
    {"divisibleBy", Use::refused, "", true},
    {"formatMinimum", Use::refused, "", true},
    {"formatMaximum", Use::refused, "", true},
    {"formatExclusiveMinimum", Use::refused, "", true},
    {"formatExclusiveMaximum", Use::refused, "", true},
    {"title", Use::annotation},
    {"description", Use::annotation},
    {"default", Use::annotation},
    {"examples", Use::annotation},
    {"example", Use::annotation},
    {"$schema", Use::annotation},
    {"$id", Use::annotation},
    {"id", Use::annotation},
    {"$anchor", Use::annotation},
    {"$dynamicAnchor", Use::annotation},
    {"$recursiveAnchor", Use::annotation},
    {"$vocabulary", Use::annotation},
    {"$comment", Use::annotation},
    {"$defs", Use::annotation},
    {"definitions", Use::annotation},
    {"deprecated", Use::annotation},
    {"readOnly", Use::annotation},
    {"writeOnly", Use::annotation},
    {"discriminator", Use::annotation},
    {"contentEncoding", Use::annotation},
    {"contentMediaType", Use::annotation},
    {"contentSchema", Use::annotation},
    {kMorePatterns, Use::plain, "string"},
    {kNotPatterns, Use::plain, "string"},
    {kMoreFormats, Use::plain, "string"},
    {kGrammarOfString, Use::plain, "string"},
    {kContained, Use::plain, "array", true},
    {kNotValues},
    {kNotInteger, Use::plain, "number"},
    {kUnseenProperties, Use::plain, "object", true},
};

bool binds(const SchemaKeyword& keyword) { return keyword.use != Use::annotation; }
bool is_made_here(std::string_view word) { return word.starts_with('\x01'); }

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

const SchemaKeyword* schema_keyword(std::string_view word) {
  static const std::unordered_map<std::string_view, const SchemaKeyword*> all = [] {
    std::unordered_map<std::string_view, const SchemaKeyword*> made;
    for (const SchemaKeyword& each : kKeywords) made.emplace(each.word, &each);
    return made;
  }();
  const auto found = all.find(word);
  return found == all.end() ? nullptr : found->second;
}

std::string_view meant_keyword(std::string_view word) {
  if (const SchemaKeyword* const known = schema_keyword(word)) return binds(*known) ? word : std::string_view();
  if (is_made_here(word)) return word;
  constexpr std::size_t least_letters = 5, most_letters = 40;  // shorter words are near to too many
  if (word.size() > most_letters || word.starts_with("x-")) return {};
  const std::string letters = letters_of(word);
  for (const SchemaKeyword& known : kKeywords) {
    if (!binds(known) || is_made_here(known.word)) continue;
    const std::string others = letters_of(known.word);
    if (letters == others || (others.size() >= least_letters && nearly_same(letters, others))) return known.word;
  }
  return {};
}

bool is_annotation(const std::string& word) { return meant_keyword(word).empty(); }

}  // namespace millrace::text
