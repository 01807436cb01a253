#include "text/constraint/schema_flatten.h"

#include <algorithm>
#include <array>
#include <set>
#include <unordered_map>

namespace millrace::text {
namespace {

constexpr int kMostDepth = 64, kMostProduced = 2000;

Status too_deep() { return error(Code::unsupported, "the schema nests references and combinations too deeply"); }

SchemaJson as_list(const SchemaJson& types) { return types.is_array() ? types : SchemaJson::array({types}); }

/// "integer" is the narrower of integer and number.
SchemaJson common_types(const SchemaJson& a, const SchemaJson& b) {
  SchemaJson common = SchemaJson::array();
  const SchemaJson others = as_list(b);
  for (const SchemaJson& type : as_list(a)) {
    const auto has = [&](const char* name) { return std::find(others.begin(), others.end(), name) != others.end(); };
    if (std::find(others.begin(), others.end(), type) != others.end() || (type == "integer" && has("number")))
      common.push_back(type);
    else if (type == "number" && has("integer"))
      common.push_back("integer");
  }
  return common;
}

/// The types a plain schema may have; empty: unknown.
std::set<std::string> types_of(const SchemaJson& schema) {
  std::set<std::string> types;
  if (schema.contains("type"))
    for (const SchemaJson& type : as_list(schema["type"]))
      if (type.is_string()) types.insert(type == "integer" ? "number" : type.get<std::string>());
  return types;
}

/// The values a plain schema is limited to; null where it is not.
SchemaJson values_of(const SchemaJson& schema) {
  if (schema.contains("const")) return SchemaJson::array({schema["const"]});
  return schema.value("enum", SchemaJson());
}

/// What two values have in common if they are equal: 1 and 1.0 are, and so are objects in another order.
std::string key_of(const SchemaJson& value) {
  if (value.is_number()) return fmt::format("{}", value.get<double>());
  return value.is_structured() ? std::string(value.type_name()) : value.dump(-1, ' ', true);
}

/// The values of `a` that `b` has, too, in n log n steps.
SchemaJson common_values(const SchemaJson& a, const SchemaJson& b) {
  std::unordered_multimap<std::string, const SchemaJson*> places;
  for (const SchemaJson& value : b) places.emplace(key_of(value), &value);
  SchemaJson common = SchemaJson::array();
  for (const SchemaJson& value : a) {
    const auto [first, last] = places.equal_range(key_of(value));
    if (std::any_of(first, last, [&](const auto& place) { return *place.second == value; })) common.push_back(value);
  }
  return common;
}

bool no_common_value(const SchemaJson& a, const SchemaJson& b) {
  return a.is_array() && b.is_array() && common_values(a, b).empty();
}

bool requires_property(const SchemaJson& schema, const std::string& name) {
  const SchemaJson required = schema.value("required", SchemaJson::array());
  return std::find(required.begin(), required.end(), name) != required.end();
}

bool is_disjoint(const SchemaJson& a, const SchemaJson& b) {
  const auto x = types_of(a), y = types_of(b);
  const bool share_type = std::any_of(x.begin(), x.end(), [&](const std::string& type) { return y.contains(type); });
  if (!x.empty() && !y.empty() && !share_type) return true;
  if (no_common_value(values_of(a), values_of(b))) return true;
  // Both are objects for certain: a property that both require tells them apart.
  const std::set<std::string> object{"object"};
  if (x != object || y != object || !a.contains("properties") || !b.contains("properties")) return false;
  for (const auto& [name, property] : a["properties"].items()) {
    if (!requires_property(a, name) || !requires_property(b, name) || !b["properties"].contains(name)) continue;
    if (no_common_value(values_of(property), values_of(b["properties"][name]))) return true;
  }
  return false;
}

}  // namespace

bool is_annotation(const std::string& keyword) {
  static const std::set<std::string> all = {"title",     "description", "default",     "examples",   "example",
                                            "$schema",   "$id",         "$comment",    "deprecated", "readOnly",
                                            "writeOnly", "$defs",       "definitions", "$anchor"};
  return all.contains(keyword);
}

Expected<const SchemaJson*> Flattener::resolve(const std::string& reference) const {
  if (!reference.starts_with('#'))
    return error(Code::unsupported, "$ref '{}' leads out of the schema; copy what it means into $defs",
                 reference.substr(0, 100));
  try {
    const SchemaJson::json_pointer pointer(reference.substr(1));
    if (root_.contains(pointer)) return &root_.at(pointer);
  } catch (const nlohmann::json::exception&) {
  }
  return error(Code::invalid_argument, "$ref '{}' points to nothing", reference.substr(0, 100));
}

/// The schema with what its $ref means merged in.
Expected<SchemaJson> Flattener::without_reference(const SchemaJson& schema, int depth) const {
  SchemaJson current = schema;
  for (; current.is_object() && current.contains("$ref"); ++depth) {
    if (depth > kMostDepth) return too_deep();
    if (!current["$ref"].is_string()) return error(Code::invalid_argument, "$ref has to be a string");
    MR_ASSIGN_OR_RETURN(const SchemaJson* const target, resolve(current["$ref"].get<std::string>()));
    current.erase("$ref");
    MR_ASSIGN_OR_RETURN(current, merge(*target, current));
  }
  return current;
}

Status Flattener::merge_keyword(SchemaJson& into, const std::string& keyword, const SchemaJson& value) const {
  SchemaJson& held = into[keyword];
  const auto one_of = [&](std::initializer_list<const char*> names) {
    return std::find(names.begin(), names.end(), keyword) != names.end();
  };
  if (held == value || is_annotation(keyword)) return {};
  if (keyword == "type") {
    held = common_types(held, value);
  } else if (keyword == "properties" && held.is_object() && value.is_object()) {
    for (const auto& [name, property] : value.items()) {
      const bool differs = held.contains(name) && held[name] != property;
      held[name] = differs ? SchemaJson{{"allOf", SchemaJson::array({held[name], property})}} : property;
    }
  } else if (keyword == "required" && held.is_array() && value.is_array()) {
    for (const SchemaJson& name : value) held.push_back(name);
  } else if (keyword == "enum" && held.is_array() && value.is_array()) {
    held = common_values(held, value);
  } else if (one_of({"minimum", "exclusiveMinimum", "minLength", "minItems"}) && held.is_number() &&
             value.is_number()) {
    if (value > held) held = value;
  } else if (one_of({"maximum", "exclusiveMaximum", "maxLength", "maxItems"}) && held.is_number() &&
             value.is_number()) {
    if (value < held) held = value;
  } else if (keyword == "allOf" && held.is_array() && value.is_array()) {
    for (const SchemaJson& each : value) held.push_back(each);
  } else {
    return error(Code::unsupported, "two different values of '{}' have to hold at once; write them as one", keyword);
  }
  return {};
}

Expected<SchemaJson> Flattener::merge(const SchemaJson& a, const SchemaJson& b) const {
  if (a == false || b == false) return SchemaJson(false);
  if (a == true) return b;
  if (b == true) return a;
  if (!a.is_object() || !b.is_object())
    return error(Code::invalid_argument, "a schema has to be an object or a boolean");
  // What one side closes, the other side's properties would break.
  const auto closes = [](const SchemaJson& one, const SchemaJson& other) {
    if (!one.contains("additionalProperties") || one["additionalProperties"] == true) return false;
    if (!other.contains("properties") && !other.contains("required")) return false;
    return one.value("properties", SchemaJson::object()) != other.value("properties", SchemaJson::object());
  };
  if (closes(a, b) || closes(b, a))
    return error(Code::unsupported, "additionalProperties cannot be combined with other properties; write one object");
  SchemaJson merged = a;
  for (const auto& [keyword, value] : b.items()) {
    if (!merged.contains(keyword)) {
      merged[keyword] = value;
    } else {
      MR_RETURN_IF_ERROR(merge_keyword(merged, keyword, value));
    }
  }
  return merged;
}

Status Flattener::check_disjoint(const std::vector<std::vector<SchemaJson>>& branches) const {
  for (std::size_t i = 0; i < branches.size(); ++i)
    for (std::size_t j = i + 1; j < branches.size(); ++j)
      for (const SchemaJson& a : branches[i])
        for (const SchemaJson& b : branches[j]) {
          MR_ASSIGN_OR_RETURN(const SchemaJson x, without_reference(a, 0));
          MR_ASSIGN_OR_RETURN(const SchemaJson y, without_reference(b, 0));
          if (!is_disjoint(x, y))
            return error(Code::unsupported,
                         "oneOf with branches that may both hold; give them different types, or a required property of "
                         "different constants, or use anyOf");
        }
  return {};
}

/// Of anyOf or oneOf: what the schema says beside them holds for every branch.
Expected<std::vector<SchemaJson>> Flattener::branches(const SchemaJson& schema, const char* keyword, int depth) {
  if (!schema[keyword].is_array() || schema[keyword].empty())
    return error(Code::invalid_argument, "{} has to be a list of schemas", keyword);
  SchemaJson beside = schema;
  beside.erase(keyword);
  const bool alone = std::all_of(beside.items().begin(), beside.items().end(),
                                 [](const auto& item) { return is_annotation(item.key()); });
  std::vector<std::vector<SchemaJson>> all;
  for (const SchemaJson& branch : schema[keyword]) {
    SchemaJson whole = branch;
    if (!alone) {
      MR_ASSIGN_OR_RETURN(const SchemaJson plain, without_reference(branch, depth));
      MR_ASSIGN_OR_RETURN(whole, merge(beside, plain));
    }
    MR_ASSIGN_OR_RETURN(std::vector<SchemaJson> flat, flatten(whole, depth + 1));
    all.push_back(std::move(flat));
  }
  if (std::string_view(keyword) == "oneOf") MR_RETURN_IF_ERROR(check_disjoint(all));
  std::vector<SchemaJson> result;
  for (auto& flat : all) std::move(flat.begin(), flat.end(), std::back_inserter(result));
  return result;
}

Expected<std::vector<SchemaJson>> Flattener::flatten(const SchemaJson& schema, int depth) {
  if (depth > kMostDepth || ++produced_ > kMostProduced) return too_deep();
  if (schema == false) return std::vector<SchemaJson>();
  if (schema == true) return std::vector<SchemaJson>{SchemaJson::object()};
  if (!schema.is_object()) return error(Code::invalid_argument, "a schema has to be an object or a boolean");
  if (schema.contains("$ref")) {
    const bool alone = std::all_of(schema.items().begin(), schema.items().end(),
                                   [](const auto& item) { return item.key() == "$ref" || is_annotation(item.key()); });
    if (alone) return std::vector<SchemaJson>{SchemaJson{{"$ref", schema["$ref"]}}};
    MR_ASSIGN_OR_RETURN(const SchemaJson whole, without_reference(schema, depth));
    return flatten(whole, depth + 1);
  }
  if (schema.contains("allOf")) {
    if (!schema["allOf"].is_array()) return error(Code::invalid_argument, "allOf has to be a list of schemas");
    const SchemaJson& parts = schema["allOf"];
    SchemaJson whole = schema;
    whole.erase("allOf");
    for (const SchemaJson& part : parts) {
      MR_ASSIGN_OR_RETURN(const SchemaJson plain, without_reference(part, depth));
      MR_ASSIGN_OR_RETURN(whole, merge(whole, plain));
    }
    return flatten(whole, depth + 1);
  }
  if (schema.contains("anyOf")) return branches(schema, "anyOf", depth);
  if (schema.contains("oneOf")) return branches(schema, "oneOf", depth);
  return std::vector<SchemaJson>{schema};
}

}  // namespace millrace::text
