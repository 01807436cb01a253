#include "text/tool_types.h"

#include <cmath>

#include "base/json_nesting.h"
#include "text/json_copy.h"

namespace millrace::text {

namespace {

using Json = nlohmann::ordered_json;

constexpr int kMaxReferences = 32;  // followed in a row

std::uint8_t bit_named(std::string_view type) {
  if (type == "null") return JsonTypes::null;
  if (type == "boolean") return JsonTypes::boolean;
  if (type == "integer") return JsonTypes::integer;
  if (type == "number") return JsonTypes::number;
  if (type == "string") return JsonTypes::string;
  if (type == "array") return JsonTypes::array;
  if (type == "object") return JsonTypes::object;
  return 0;
}

std::uint8_t bit_of(const Json& value) {
  switch (value.type()) {
    case Json::value_t::null:
      return JsonTypes::null;
    case Json::value_t::boolean:
      return JsonTypes::boolean;
    case Json::value_t::number_integer:
    case Json::value_t::number_unsigned:
      return JsonTypes::integer;
    case Json::value_t::number_float:
      return JsonTypes::number;
    case Json::value_t::string:
      return JsonTypes::string;
    case Json::value_t::array:
      return JsonTypes::array;
    case Json::value_t::object:
      return JsonTypes::object;
    default:
      return 0;
  }
}

/// Resolves `reference` ("#/$defs/x") in `root`; null if there is no such schema.
const Json* resolve(const Json& root, const Json& reference) {
  if (!reference.is_string()) return nullptr;
  const std::string& text = reference.get_ref<const std::string&>();
  if (!text.starts_with("#/")) return nullptr;
  const Json* at = &root;
  for (std::size_t begin = 2; begin <= text.size();) {
    const std::size_t end = std::min(text.find('/', begin), text.size());
    const auto found = at->is_object() ? at->find(text.substr(begin, end - begin)) : at->end();
    if (!at->is_object() || found == at->end()) return nullptr;
    at = &*found;
    begin = end + 1;
  }
  return at;
}

/// `left`: how many more schemas may be visited, which bounds recursive schemas.
std::uint8_t types_of(const Json& root, const Json& schema, int& left) {
  if (!schema.is_object() || --left < 0) return 0;
  const auto find = [&](const char* key) {
    const auto found = schema.find(key);
    return found == schema.end() ? nullptr : &*found;
  };
  std::uint8_t bits = 0;
  if (const Json* const type = find("type"); type != nullptr) {
    if (type->is_string()) bits |= bit_named(type->get_ref<const std::string&>());
    if (type->is_array())
      for (const Json& one : *type)
        if (one.is_string()) bits |= bit_named(one.get_ref<const std::string&>());
    return bits;
  }
  if (const Json* const reference = find("$ref"); reference != nullptr) {
    const Json* const target = resolve(root, *reference);
    return target == nullptr ? 0 : types_of(root, *target, left);
  }
  if (const Json* const value = find("const"); value != nullptr) return bit_of(*value);
  if (const Json* const values = find("enum"); values != nullptr && values->is_array()) {
    for (const Json& value : *values) bits |= bit_of(value);
    return bits;
  }
  for (const char* key : {"anyOf", "oneOf", "allOf"}) {
    const Json* const branches = find(key);
    if (branches == nullptr || !branches->is_array()) continue;
    for (const Json& branch : *branches) {
      const std::uint8_t of_branch = types_of(root, branch, left);
      if (of_branch == 0) return 0;  // a branch accepts anything
      bits |= of_branch;
    }
  }
  return bits;
}

/// The schema of what `key` names in a value of `schema`, or of its items (null); null if there is none.
const Json* schema_within(const Json& root, const Json& schema, const std::string* key, int& left) {
  if (!schema.is_object() || --left < 0) return nullptr;
  const auto find = [](const Json& in, const std::string& name) {
    const auto found = in.find(name);
    return found == in.end() || !found->is_object() ? nullptr : &*found;
  };
  if (const auto reference = schema.find("$ref"); reference != schema.end()) {
    const Json* const target = resolve(root, *reference);
    return target == nullptr ? nullptr : schema_within(root, *target, key, left);
  }
  const Json* const properties = key == nullptr ? nullptr : find(schema, "properties");
  const Json* found = properties == nullptr ? nullptr : find(*properties, *key);
  if (found == nullptr) found = find(schema, key == nullptr ? "items" : "additionalProperties");
  for (const char* const branches : {"anyOf", "oneOf", "allOf"}) {
    if (found != nullptr || !schema.contains(branches) || !schema[branches].is_array()) continue;
    for (const Json& branch : schema[branches])
      if (found == nullptr) found = schema_within(root, branch, key, left);
  }
  return found;
}

}  // namespace

JsonTypes ToolTypes::Place::types() const {
  int left = kMaxReferences;
  return schema_ == nullptr ? JsonTypes{} : JsonTypes{types_of(*root_, *schema_, left)};
}

ToolTypes::Place ToolTypes::Place::member(std::string_view key) const {
  int left = kMaxReferences;
  const std::string name(key);
  return schema_ == nullptr ? Place() : Place(root_, schema_within(*root_, *schema_, &name, left));
}

ToolTypes::Place ToolTypes::Place::item() const {
  int left = kMaxReferences;
  return schema_ == nullptr ? Place() : Place(root_, schema_within(*root_, *schema_, nullptr, left));
}

bool JsonTypes::take(const Json& value) const {
  const std::uint8_t bit = bit_of(value);
  return (bits & bit) != 0 || (bit == integer && has(number)) ||
         (bit == number && has(integer) && std::trunc(value.get<double>()) == value.get<double>());
}

ToolTypes::ToolTypes(const Json& tools) {
  if (!tools.is_array()) return;
  for (const Json& tool : tools) {
    const auto function = tool.is_object() ? tool.find("function") : tool.end();
    if (!tool.is_object() || function == tool.end() || !function->is_object()) continue;
    const auto name = function->find("name");
    if (name == function->end() || !name->is_string()) continue;
    auto& [kept, types] = tools_[name->get<std::string>()];
    const auto parameters = function->find("parameters");
    if (parameters == function->end() || !parameters->is_object()) continue;
    kept = *parameters;
    const auto properties = parameters->find("properties");
    if (properties == parameters->end() || !properties->is_object()) continue;
    for (const auto& [key, schema] : properties->items()) {
      int left = kMaxReferences;
      types[key].bits = types_of(*parameters, schema, left);
    }
  }
}

JsonTypes ToolTypes::of(std::string_view tool, std::string_view parameter) const {
  const auto found = tools_.find(tool);
  if (found == tools_.end()) return {};
  const auto types = found->second.types.find(parameter);
  return types == found->second.types.end() ? JsonTypes{} : types->second;
}

ToolTypes::Place ToolTypes::place(std::string_view tool, std::string_view parameter) const {
  const auto found = tools_.find(tool);
  return found == tools_.end() ? Place()
                               : Place(&found->second.parameters, &found->second.parameters).member(parameter);
}

std::string typed_json(std::string_view text, JsonTypes types) {
  const auto quoted = [&] { return '"' + json_escaped(text) + '"'; };
  if (types.only_string() || nests_too_deep(text)) return quoted();
  // Python's spelling.
  if (types.has(JsonTypes::boolean) && (text == "True" || text == "False")) return text == "True" ? "true" : "false";
  if (types.has(JsonTypes::null) && text == "None") return "null";
  const Json value = Json::parse(text, nullptr, false);
  const bool known = types.bits != 0;
  if (value.is_discarded() || (value.is_string() && (!known || types.has(JsonTypes::string)))) return quoted();
  if (known && types.has(JsonTypes::string) && !types.take(value)) return quoted();
  // Keep the spelling: a double would lose digits of large numbers.
  JsonCopy copy;
  std::string out;
  for (const char c : text) {
    if (copy.take(c, out) != JsonCopy::Taken::more) break;
  }
  return out;
}

}  // namespace millrace::text
