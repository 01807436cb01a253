#include "text/constraint/schema_strings.h"

#include <algorithm>
#include <cmath>

#include "text/constraint/format.h"
#include "text/constraint/pattern.h"

namespace millrace::text {
namespace {

constexpr std::uint32_t kMostCharacters = 50'000;

/// The strings of a list, or of one string.
Expected<std::vector<std::string>> texts_of(const SchemaJson& schema, const char* keyword) {
  std::vector<std::string> texts;
  if (!schema.contains(keyword)) return texts;
  const SchemaJson& said = schema[keyword];
  for (const SchemaJson& each : said.is_array() && keyword[0] == '\x01' ? said : SchemaJson::array({said})) {
    if (!each.is_string()) return error(Code::invalid_argument, "pattern and format have to be strings");
    texts.push_back(each.get<std::string>());
  }
  return texts;
}

}  // namespace

Expected<std::uint32_t> schema_count(const SchemaJson& schema, const char* keyword, std::uint32_t fallback,
                                     std::uint32_t most) {
  if (!schema.contains(keyword)) return fallback;
  const SchemaJson& value = schema[keyword];
  if (!value.is_number() || value.get<double>() < 0 || value.get<double>() != std::floor(value.get<double>()))
    return error(Code::invalid_argument, "{} has to be a whole number", keyword);
  if (value.get<double>() > most) return error(Code::unsupported, "{} is limited to {}", keyword, most);
  return static_cast<std::uint32_t>(value.get<double>());
}

Expected<Lengths> lengths_of(const SchemaJson& schema) {
  Lengths lengths;
  MR_ASSIGN_OR_RETURN(lengths.least, schema_count(schema, "minLength", 0, kMostCharacters));
  MR_ASSIGN_OR_RETURN(lengths.most, schema_count(schema, "maxLength", UINT32_MAX, kMostCharacters));
  return lengths;
}

bool has_string_form(const SchemaJson& schema) {
  for (const char* keyword : {"pattern", "format", kMorePatterns, kMoreFormats, kNotPatterns, kNotValues})
    if (schema.contains(keyword)) return true;
  return false;
}

Expected<std::vector<std::string>> patterns_of(const SchemaJson& schema) {
  Beside beside = Beside::nothing;
  for (const char* keyword : {"minLength", "maxLength", kNotPatterns})
    if (schema.contains(keyword)) beside = Beside::lengths;
  for (const char* keyword : {"pattern", kMorePatterns})
    if (schema.contains(keyword)) beside = Beside::patterns;
  std::vector<std::string> patterns;
  for (const char* keyword : {"pattern", kMorePatterns}) {
    MR_ASSIGN_OR_RETURN(const std::vector<std::string> texts, texts_of(schema, keyword));
    patterns.insert(patterns.end(), texts.begin(), texts.end());
  }
  for (const char* keyword : {"format", kMoreFormats}) {
    MR_ASSIGN_OR_RETURN(const std::vector<std::string> names, texts_of(schema, keyword));
    for (const std::string& name : names)
      if (const auto pattern = format_pattern(name, beside)) patterns.emplace_back(*pattern);
  }
  return patterns;
}

Expected<RegularSets::Set> string_set(RegularSets& sets, const SchemaJson& schema) {
  MR_ASSIGN_OR_RETURN(const Lengths lengths, lengths_of(schema));
  MR_ASSIGN_OR_RETURN(const std::vector<std::string> patterns, patterns_of(schema));
  MR_ASSIGN_OR_RETURN(const std::vector<std::string> not_patterns, texts_of(schema, kNotPatterns));
  std::vector<RegularSets::Set> parts;
  for (const std::string& pattern : patterns) {
    MR_ASSIGN_OR_RETURN(const RegularSets::Set set, pattern_set(sets, pattern));
    parts.push_back(set);
  }
  for (const std::string& pattern : not_patterns) {
    MR_ASSIGN_OR_RETURN(const RegularSets::Set set, pattern_set(sets, pattern, true));
    parts.push_back(set);
  }
  std::vector<RegularSets::Set> excluded;
  for (const SchemaJson& value : schema.value(kNotValues, SchemaJson::array()))
    if (value.is_string()) excluded.push_back(sets.literal(value.get<std::string>()));
  parts.push_back(sets.inverse(sets.either(excluded)));
  if (lengths.least > lengths.most) return RegularSets::kNothing;
  const RegularSets::Set any = sets.characters(complement({}));
  if (lengths.bind()) parts.push_back(sets.repeat(any, lengths.least, lengths.most));
  return sets.both(parts);
}

}  // namespace millrace::text
