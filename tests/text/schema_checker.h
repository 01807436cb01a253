// A small JSON schema validator for tests, written from the specification and not from the grammar: it looks at whole
// values, the grammar at bytes. Formats are checked by the pattern test's own means.
#pragma once

#include <cmath>
#include <regex>
#include <string>

#include "base/json.h"

namespace millrace::text::test {

using nlohmann::json;

inline bool is_valid(const json& value, const json& schema, const json& root);

inline std::size_t characters(const std::string& text) {
  std::size_t count = 0;
  for (const char c : text) count += (static_cast<unsigned char>(c) & 0xC0) != 0x80 ? 1 : 0;
  return count;
}

inline bool has_type(const json& value, const std::string& type) {
  if (type == "integer") return value.is_number() && std::floor(value.get<double>()) == value.get<double>();
  if (type == "number") return value.is_number();
  if (type == "string") return value.is_string();
  if (type == "object") return value.is_object();
  if (type == "array") return value.is_array();
  if (type == "boolean") return value.is_boolean();
  return type == "null" && value.is_null();
}

inline int how_many_hold(const json& value, const json& schemas, const json& root) {
  int count = 0;
  for (const json& schema : schemas) count += is_valid(value, schema, root) ? 1 : 0;
  return count;
}

inline bool object_holds(const json& value, const json& schema, const json& root) {
  for (const json& name : schema.value("required", json::array()))
    if (!value.contains(name.get<std::string>())) return false;
  if (value.size() < schema.value("minProperties", 0u) || value.size() > schema.value("maxProperties", 1u << 30))
    return false;
  const json properties = schema.value("properties", json::object());
  const json patterns = schema.value("patternProperties", json::object());
  for (const auto& [name, each] : value.items()) {
    if (!is_valid(name, schema.value("propertyNames", json(true)), root)) return false;
    bool said = properties.contains(name);
    if (said && !is_valid(each, properties[name], root)) return false;
    for (const auto& [pattern, rule] : patterns.items()) {
      if (!std::regex_search(name, std::regex(pattern))) continue;
      said = true;
      if (!is_valid(each, rule, root)) return false;
    }
    if (!said && !is_valid(each, schema.value("additionalProperties", json(true)), root)) return false;
  }
  const json dependent = schema.value("dependentRequired", json::object());
  for (const auto& [name, brought] : dependent.items())
    for (const json& other : brought)
      if (value.contains(name) && !value.contains(other.get<std::string>())) return false;
  return true;
}

inline bool array_holds(const json& value, const json& schema, const json& root) {
  if (value.size() < schema.value("minItems", 0u) || value.size() > schema.value("maxItems", 1u << 30)) return false;
  const json first = schema.value("prefixItems", json::array());
  unsigned found = 0;
  for (std::size_t i = 0; i < value.size(); ++i) {
    found += schema.contains("contains") && is_valid(value[i], schema["contains"], root) ? 1 : 0;
    for (std::size_t j = 0; j < i; ++j)
      if (schema.value("uniqueItems", false) && value[i] == value[j]) return false;
  }
  const bool counts = schema.contains("contains");
  if (counts && (found < schema.value("minContains", 1u) || found > schema.value("maxContains", 1u << 30)))
    return false;
  for (std::size_t i = 0; i < value.size(); ++i)
    if (!is_valid(value[i], i < first.size() ? first[i] : schema.value("items", json(true)), root)) return false;
  return true;
}

inline bool number_holds(double value, const json& schema) {
  if (schema.contains("multipleOf")) {
    const double times = value / schema["multipleOf"].get<double>();
    if (std::abs(times - std::round(times)) > 1e-9 * std::abs(times)) return false;
  }
  return !(schema.contains("minimum") && value < schema["minimum"].get<double>()) &&
         !(schema.contains("maximum") && value > schema["maximum"].get<double>()) &&
         !(schema.contains("exclusiveMinimum") && value <= schema["exclusiveMinimum"].get<double>()) &&
         !(schema.contains("exclusiveMaximum") && value >= schema["exclusiveMaximum"].get<double>());
}

inline bool string_holds(const std::string& value, const json& schema) {
  const std::size_t length = characters(value);
  if (length < schema.value("minLength", 0u) || length > schema.value("maxLength", 1u << 30)) return false;
  if (length != value.size()) return true;  // std::regex knows bytes only
  return !schema.contains("pattern") || std::regex_search(value, std::regex(schema["pattern"].get<std::string>()));
}

inline bool is_valid(const json& value, const json& schema, const json& root) {
  if (schema.is_boolean()) return schema.get<bool>();
  if (schema.contains("$ref") &&
      !is_valid(value, root.at(json::json_pointer(schema["$ref"].get<std::string>().substr(1))), root))
    return false;
  if (schema.contains("type")) {
    const json types = schema["type"].is_array() ? schema["type"] : json::array({schema["type"]});
    bool any = schema.value("nullable", false) && value.is_null();
    for (const json& type : types) any = any || has_type(value, type);
    if (!any) return false;
  }
  if (schema.contains("const") && value != schema["const"]) return false;
  if (schema.contains("enum") && std::find(schema["enum"].begin(), schema["enum"].end(), value) == schema["enum"].end())
    return false;
  if (schema.contains("anyOf") && how_many_hold(value, schema["anyOf"], root) == 0) return false;
  if (schema.contains("oneOf") && how_many_hold(value, schema["oneOf"], root) != 1) return false;
  if (schema.contains("allOf") &&
      how_many_hold(value, schema["allOf"], root) != static_cast<int>(schema["allOf"].size()))
    return false;
  if (schema.contains("not") && is_valid(value, schema["not"], root)) return false;
  if (schema.contains("if")) {
    const char* const branch = is_valid(value, schema["if"], root) ? "then" : "else";
    if (!is_valid(value, schema.value(branch, json(true)), root)) return false;
  }
  if (value.is_object()) return object_holds(value, schema, root);
  if (value.is_array()) return array_holds(value, schema, root);
  if (value.is_number()) return number_holds(value.get<double>(), schema);
  return !value.is_string() || string_holds(value.get<std::string>(), schema);
}

}  // namespace millrace::text::test
