#include "text/constraint/schema_apart.h"

#include <algorithm>
#include <set>
#include <string>

#include "text/constraint/schema_check.h"
#include "text/constraint/schema_keywords.h"
#include "text/constraint/schema_merge.h"

namespace millrace::text {
namespace {

/// The types a plain schema may have; empty: unknown.
std::set<std::string> types_of(const SchemaJson& schema) {
  std::set<std::string> types;
  if (schema.contains("type"))
    for (const SchemaJson& type : as_list(schema["type"]))
      if (type.is_string()) types.insert(type == "integer" ? "number" : type.get<std::string>());
  if (!types.empty() && schema.value("nullable", SchemaJson()) == true) types.insert("null");
  return types;
}

bool requires_property(const SchemaJson& schema, const std::string& name) {
  const SchemaJson required = schema.value("required", SchemaJson::array());
  return std::find(required.begin(), required.end(), name) != required.end();
}

bool forbids_property(const SchemaJson& schema, const std::string& name) {
  const SchemaJson properties = schema.value("properties", SchemaJson::object());
  if (properties.contains(name)) return properties[name] == false;
  return schema.value("additionalProperties", SchemaJson(true)) == false && !schema.contains("patternProperties");
}

}  // namespace

bool no_common_value(const SchemaJson& a, const SchemaJson& b) {
  return a.is_array() && b.is_array() && common_values(a, b).empty();
}

bool is_disjoint(const SchemaJson& a, const SchemaJson& b, int depth) {
  if (a == false || b == false) return true;
  if (!a.is_object() || !b.is_object() || depth > 8) return false;
  const auto x = types_of(a), y = types_of(b);
  const bool share_type = std::any_of(x.begin(), x.end(), [&](const std::string& type) { return y.contains(type); });
  if (!x.empty() && !y.empty() && !share_type) return true;
  if (no_common_value(values_of(a), values_of(b))) return true;
  // Both are objects for certain: a property that one requires tells them apart where the other has it otherwise.
  const std::set<std::string> object{"object"};
  if (x != object || y != object) return false;
  const SchemaJson own = a.value("properties", SchemaJson::object()),
                   others = b.value("properties", SchemaJson::object());
  for (const SchemaJson* const side : {&a, &b})
    for (const SchemaJson& name : side->value("required", SchemaJson::array())) {
      if (!name.is_string()) continue;
      const std::string text = name.get<std::string>();
      if (forbids_property(side == &a ? b : a, text)) return true;
      const bool both = requires_property(a, text) && requires_property(b, text);
      if (both && own.contains(text) && others.contains(text) && is_disjoint(own[text], others[text], depth + 1))
        return true;
    }
  return false;
}

bool are_disjoint(const std::vector<SchemaJson>& a, const std::vector<SchemaJson>& b) {
  return std::all_of(a.begin(), a.end(), [&](const SchemaJson& x) {
    return std::all_of(b.begin(), b.end(), [&](const SchemaJson& y) { return is_disjoint(x, y); });
  });
}

SchemaJson limits_of(const SchemaJson& schema, int depth) {
  if (!schema.is_object() || depth > 8) return {};
  std::vector<SchemaJson> parts;
  const SchemaJson all = schema.value("allOf", SchemaJson::array());
  if (all.is_array()) parts.assign(all.begin(), all.end());
  SchemaJson values = values_of(schema);
  if (values.is_array() && schema.contains("type")) {
    SchemaJson typed = SchemaJson::array();
    for (const SchemaJson& value : values)
      if (has_type_of(value, schema)) typed.push_back(value);
    values = std::move(typed);
  }
  for (const SchemaJson& part : parts) {
    const SchemaJson more = limits_of(part, depth + 1);
    if (more.is_array()) values = values.is_array() ? common_values(values, more) : more;
  }
  if (!values.is_array()) return values;
  parts.push_back(schema);
  for (const SchemaJson& part : parts) {
    const SchemaJson denied = part.is_object() ? part.value("not", SchemaJson()) : SchemaJson();
    const bool plain =
        denied.is_object() && std::all_of(denied.items().begin(), denied.items().end(), [](const auto& item) {
          return item.key() == "const" || item.key() == "enum" || item.key() == "type" || is_annotation(item.key());
        });
    const SchemaJson without = plain ? limits_of(denied, depth + 1) : SchemaJson();
    if (!without.is_array()) continue;
    SchemaJson left = SchemaJson::array();
    for (const SchemaJson& value : values)
      if (std::find(without.begin(), without.end(), value) == without.end()) left.push_back(value);
    values = std::move(left);
  }
  return values;
}

bool is_hopeless(const SchemaJson& schema) {
  const SchemaJson required = schema.value("required", SchemaJson::array());
  if (!required.is_array() || required.empty()) return false;
  const SchemaJson properties = schema.value("properties", SchemaJson::object()),
                   unseen = schema.value(kUnseenProperties, SchemaJson::object());
  const auto limited = [&](const std::string& name) {
    const SchemaJson bound =
        both_schemas(properties.value(name, SchemaJson(true)), unseen.value(name, SchemaJson(true)));
    return bound == false || limits_of(bound) == SchemaJson::array();
  };
  return std::any_of(required.begin(), required.end(),
                     [&](const SchemaJson& name) { return name.is_string() && limited(name.get<std::string>()); });
}

}  // namespace millrace::text
