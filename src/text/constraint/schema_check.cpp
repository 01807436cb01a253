#include "text/constraint/schema_check.h"

#include <algorithm>
#include <cmath>

#include "text/constraint/pattern.h"
#include "text/constraint/schema_items.h"
#include "text/constraint/schema_merge.h"
#include "text/constraint/schema_strings.h"

namespace millrace::text {
namespace {

constexpr int kMostCheckDepth = 64;

bool is_among(const SchemaJson& value, const SchemaJson& list) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

bool number_holds(double value, const SchemaJson& plain) {
  const auto bound = [&](const char* keyword, double fallback) {
    return plain.contains(keyword) && plain[keyword].is_number() ? plain[keyword].get<double>() : fallback;
  };
  if (value < bound("minimum", value) || value > bound("maximum", value)) return false;
  if (plain.contains("exclusiveMinimum") && value <= bound("exclusiveMinimum", value)) return false;
  if (plain.contains("exclusiveMaximum") && value >= bound("exclusiveMaximum", value)) return false;
  const double times = value / bound("multipleOf", value == 0 ? 1 : value);
  return std::abs(times - std::round(times)) <= std::abs(times) * 1e-12;
}

bool counts_hold(std::size_t count, const SchemaJson& plain, const char* least, const char* most) {
  const auto limit = [&](const char* keyword, double fallback) {
    return plain.contains(keyword) && plain[keyword].is_number() ? plain[keyword].get<double>() : fallback;
  };
  const auto value = static_cast<double>(count);
  return value >= limit(least, value) && value <= limit(most, value);
}

}  // namespace

bool has_type(const SchemaJson& value, const std::string& type) {
  if (type == "object") return value.is_object();
  if (type == "array") return value.is_array();
  if (type == "string") return value.is_string();
  if (type == "boolean") return value.is_boolean();
  if (type == "null") return value.is_null();
  if (type == "number") return value.is_number();
  return value.is_number_integer() ||
         (value.is_number_float() && value.get<double>() == std::floor(value.get<double>()));
}

bool has_type_of(const SchemaJson& value, const SchemaJson& schema) {
  if (value.is_null() && schema.value("nullable", SchemaJson()) == true) return true;
  const SchemaJson types = as_list(schema["type"]);
  return std::any_of(types.begin(), types.end(), [&](const SchemaJson& type) {
    return type.is_string() && has_type(value, type.get<std::string>());
  });
}

Expected<bool> ValueChecker::holds(const SchemaJson& value, const SchemaJson& schema, int depth) {
  if (depth > kMostCheckDepth)
    return error(Code::unsupported, "the schema nests references and combinations too deeply");
  MR_ASSIGN_OR_RETURN(const std::vector<SchemaJson> plain, flattener_.flatten(schema));
  for (const SchemaJson& each : plain) {
    MR_ASSIGN_OR_RETURN(const bool fits, holds_plain(value, each, depth + 1));
    if (fits) return true;
  }
  return false;
}

Expected<bool> ValueChecker::holds_plain(const SchemaJson& value, const SchemaJson& plain, int depth) {
  if (plain.contains("$ref")) {
    MR_ASSIGN_OR_RETURN(const SchemaJson* const target, flattener_.resolve(plain["$ref"].get<std::string>()));
    return holds(value, *target, depth);
  }
  if (plain.contains("type") && !has_type_of(value, plain)) return false;
  if (plain.contains("const") && value != plain["const"]) return false;
  if (plain.contains("enum") && !is_among(value, plain["enum"])) return false;
  if (plain.contains(kNotInteger) && has_type(value, "integer")) return false;
  if (plain.contains(kNotValues) && is_among(value, plain[kNotValues])) return false;
  if (value.is_object()) return object_holds(value, plain, depth);
  if (value.is_array()) return array_holds(value, plain, depth);
  if (value.is_number()) return number_holds(value.get<double>(), plain);
  if (!value.is_string() || (!has_string_form(plain) && !plain.contains("minLength") && !plain.contains("maxLength")))
    return true;
  MR_ASSIGN_OR_RETURN(const RegularSets::Set set, string_set(sets_, plain));
  return sets_.contains(set, value.get<std::string>());
}

Expected<bool> ValueChecker::object_holds(const SchemaJson& value, const SchemaJson& plain, int depth) {
  for (const SchemaJson& name : plain.value("required", SchemaJson::array()))
    if (!name.is_string() || !value.contains(name.get<std::string>())) return false;
  if (!counts_hold(value.size(), plain, "minProperties", "maxProperties")) return false;
  const SchemaJson properties = plain.value("properties", SchemaJson::object());
  const SchemaJson patterns = plain.value("patternProperties", SchemaJson::object());
  for (const auto& [name, each] : value.items()) {
    if (plain.contains("propertyNames")) {
      MR_ASSIGN_OR_RETURN(const bool fits, holds(name, plain["propertyNames"], depth));
      if (!fits) return false;
    }
    std::vector<SchemaJson> rules;
    if (properties.contains(name)) rules.push_back(properties[name]);
    for (const auto& [pattern, rule] : patterns.items()) {
      MR_ASSIGN_OR_RETURN(const RegularSets::Set set, pattern_set(sets_, pattern));
      if (sets_.contains(set, name)) rules.push_back(rule);
    }
    if (rules.empty()) rules.push_back(plain.value("additionalProperties", SchemaJson(true)));
    for (const SchemaJson& rule : rules) {
      MR_ASSIGN_OR_RETURN(const bool fits, holds(each, rule, depth));
      if (!fits) return false;
    }
  }
  return true;
}

Expected<bool> ValueChecker::array_holds(const SchemaJson& value, const SchemaJson& plain, int depth) {
  if (!counts_hold(value.size(), plain, "minItems", "maxItems")) return false;
  MR_ASSIGN_OR_RETURN(const ItemSchemas items, item_schemas(plain));
  MR_ASSIGN_OR_RETURN(const std::vector<Contained> conditions, contained_of(plain));
  for (const Contained& each : conditions) {
    std::uint32_t found = 0;
    for (std::size_t i = each.first; i < std::min(value.size(), each.last); ++i) {
      MR_ASSIGN_OR_RETURN(const bool fits, holds(value[i], each.schema, depth));
      found += fits ? 1 : 0;
    }
    if (found < each.least || found > each.most) return false;
  }
  for (std::size_t i = 0; i < value.size(); ++i) {
    MR_ASSIGN_OR_RETURN(const bool fits, holds(value[i], items.at(i), depth));
    if (!fits) return false;
    const bool repeats = plain.value("uniqueItems", SchemaJson(false)) == true &&
                         std::find(value.begin(), value.begin() + static_cast<std::ptrdiff_t>(i), value[i]) !=
                             value.begin() + static_cast<std::ptrdiff_t>(i);
    if (repeats) return false;
  }
  return true;
}

}  // namespace millrace::text
