#include "text/constraint/schema_merge.h"

#include <algorithm>
#include <numeric>
#include <unordered_map>

#include "text/constraint/json_rules.h"
#include "text/constraint/schema_items.h"

namespace millrace::text {
namespace {

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

/// What two values have in common if they are equal: 1 and 1.0 are, and so are objects in another order.
std::string key_of(const SchemaJson& value) {
  if (value.is_number()) return fmt::format("{}", value.get<double>());
  return value.is_structured() ? std::string(value.type_name()) : value.dump(-1, ' ', true);
}

/// What is a multiple of both, exact in decimals. Errors: unsupported (it has too many digits).
Expected<SchemaJson> common_multiple(const SchemaJson& a, const SchemaJson& b) {
  constexpr std::uint64_t most_digits = 1'000'000'000'000'000;  // what a double holds
  const auto units = [&](const Decimal& value, int places) {
    std::uint64_t digits = value.digits;
    for (int i = value.places; i < places && digits < most_digits; ++i) digits *= 10;
    return digits;
  };
  if (a.is_number() && b.is_number() && a > 0 && b > 0) {
    const Decimal x = decimal_of(a.dump()), y = decimal_of(b.dump());
    const int places = std::max({x.places, y.places, 0});
    const std::uint64_t one = units(x, places), other = units(y, places);
    if (one < most_digits && other < most_digits && one / std::gcd(one, other) < most_digits / other) {
      const std::uint64_t both = std::lcm(one, other);
      return places == 0 ? SchemaJson(both) : SchemaJson::parse(fmt::format("{}e-{}", both, places));
    }
  }
  return error(Code::unsupported, "two different values of 'multipleOf' have to hold at once; write them as one");
}

Status merge_keyword(SchemaJson& into, const std::string& keyword, const SchemaJson& value) {
  SchemaJson& held = into[keyword];
  if (held == value || is_annotation(keyword)) return {};
  const bool lists = held.is_array() && value.is_array(), objects = held.is_object() && value.is_object();
  const bool numbers = held.is_number() && value.is_number();
  if (keyword == "type") {
    held = common_types(held, value);
  } else if (is_one_of(keyword, {"properties", kUnseenProperties, "patternProperties", "dependentSchemas"}) &&
             objects) {
    for (const auto& [name, each] : value.items())
      held[name] = held.contains(name) ? both_schemas(held[name], each) : each;
  } else if (is_one_of(keyword,
                       {"required", "allOf", kMorePatterns, kNotPatterns, kMoreFormats, kNotValues, kContained}) &&
             lists) {
    for (const SchemaJson& each : value) held.push_back(each);
  } else if (is_one_of(keyword, {"minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"}) && numbers) {
    if (value > held) held = value;
  } else if (is_one_of(keyword, {"maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"}) && numbers) {
    if (value < held) held = value;
  } else if (keyword == "multipleOf") {
    MR_ASSIGN_OR_RETURN(held, common_multiple(held, value));
  } else if (keyword == "uniqueItems" && held.is_boolean() && value.is_boolean()) {
    held = true;  // they differ
  } else if (is_one_of(keyword, {"propertyNames", "additionalProperties"})) {
    held = both_schemas(held, value);
  } else if (keyword == "pattern" && held.is_string() && value.is_string()) {
    into[kMorePatterns].push_back(value);
  } else if (keyword == "format" && held.is_string() && value.is_string()) {
    into[kMoreFormats].push_back(value);
  } else if (is_one_of(keyword, {"anyOf", "oneOf", "not", "dependentRequired", "dependencies"})) {
    into["allOf"].push_back(SchemaJson{{keyword, value}});
  } else {
    return error(Code::unsupported, "two different values of '{}' have to hold at once; write them as one",
                 keyword.substr(0, 60));
  }
  return {};
}

/// What only the other side declares is additional to this side, too. Errors: unsupported (patterns of names).
Status bind_additional(const SchemaJson& one, const SchemaJson& other, SchemaJson& merged) {
  const SchemaJson others = one.value("additionalProperties", SchemaJson(true));
  if (others == true) return {};
  const SchemaJson own = one.value("properties", SchemaJson::object()),
                   patterns = one.value("patternProperties", SchemaJson::object());
  const SchemaJson foreign = other.value("properties", SchemaJson::object()),
                   foreign_patterns = other.value("patternProperties", SchemaJson::object());
  bool apart = false;
  for (const auto& [pattern, bound] : foreign_patterns.items()) apart = apart || !patterns.contains(pattern);
  for (const auto& [name, bound] : foreign.items()) {
    if (own.contains(name)) continue;
    apart = apart || !patterns.empty();
    merged["properties"][name] = both_schemas(bound, others);
  }
  if (!apart) return {};
  return error(
      Code::unsupported,
      "additionalProperties cannot be combined with other properties beside patternProperties; write one object");
}

/// Items of lists are told by their place: "items" of one side speaks of what the other lists.
Status merge_items(const SchemaJson& a, const SchemaJson& b, SchemaJson& merged, SchemaJson& other) {
  MR_ASSIGN_OR_RETURN(const ItemSchemas x, item_schemas(a));
  MR_ASSIGN_OR_RETURN(const ItemSchemas y, item_schemas(b));
  const auto says = [](const ItemSchemas& items) { return items.says_others || !items.first.empty(); };
  for (SchemaJson* const side : {&merged, &other})
    if (!side->value("items", SchemaJson()).is_array()) side->erase("additionalItems");  // it says nothing
  if (!says(x) || !says(y)) return {};
  for (const char* keyword : {"prefixItems", "items", "additionalItems"})
    for (SchemaJson* const side : {&merged, &other}) side->erase(keyword);
  const std::size_t most = std::max(x.first.size(), y.first.size());
  SchemaJson first = SchemaJson::array();
  for (std::size_t i = 0; i < most; ++i) first.push_back(both_schemas(x.at(i), y.at(i)));
  if (most > 0) merged["prefixItems"] = std::move(first);
  if (x.says_others || y.says_others) merged["items"] = both_schemas(x.others, y.others);
  return {};
}

/// minContains and maxContains bind to the contains beside them, and say nothing without one. A second one stands for
/// itself.
void place_contained(SchemaJson& from, SchemaJson& into) {
  constexpr const char* counts[] = {"minContains", "maxContains"};
  for (SchemaJson* const side : {&from, &into})
    for (const char* keyword : counts)
      if (!side->contains("contains")) side->erase(keyword);
  if (!from.contains("contains") || !into.contains("contains")) return;
  SchemaJson second;
  bool same = true;
  for (const char* keyword : {"contains", "minContains", "maxContains"}) {
    same = same && from.value(keyword, SchemaJson()) == into.value(keyword, SchemaJson());
    if (from.contains(keyword)) second[keyword] = from[keyword];
    from.erase(keyword);
  }
  if (!same) into[kContained].push_back(std::move(second));
}

/// "nullable" as one of the types beside it, which others may not have.
void name_null(SchemaJson& schema) {
  if (schema.value("nullable", SchemaJson()) != true) return;
  schema.erase("nullable");
  schema["type"] = as_list(schema["type"]);
  const SchemaJson& types = schema["type"];
  if (std::find(types.begin(), types.end(), "null") == types.end()) schema["type"].push_back("null");
}

/// then and else bind to the if beside them, and say nothing without one. A second condition stands for itself.
void place_conditions(SchemaJson& from, SchemaJson& into) {
  for (SchemaJson* const side : {&from, &into})
    for (const char* keyword : {"then", "else"})
      if (!side->contains("if")) side->erase(keyword);
  if (!from.contains("if") || !into.contains("if")) return;
  SchemaJson condition;
  for (const char* keyword : {"if", "then", "else"})
    if (from.contains(keyword)) {
      condition[keyword] = from[keyword];
      from.erase(keyword);
    }
  into["allOf"].push_back(std::move(condition));
}

}  // namespace

SchemaJson as_list(const SchemaJson& one_or_many) {
  return one_or_many.is_array() ? one_or_many : SchemaJson::array({one_or_many});
}

SchemaJson both_schemas(const SchemaJson& a, const SchemaJson& b) {
  if (a == false || b == true || a == b) return a;
  if (a == true || b == false) return b;
  // Once each: a schema that extends one that refers to itself comes back to the same words.
  constexpr std::size_t few = 64;
  SchemaJson all = SchemaJson::array();
  for (const SchemaJson* const side : {&a, &b}) {
    const bool list = side->is_object() && side->size() == 1 && side->contains("allOf") && (*side)["allOf"].is_array();
    for (const SchemaJson& each : list ? (*side)["allOf"] : SchemaJson::array({*side}))
      if (all.size() > few || std::find(all.begin(), all.end(), each) == all.end()) all.push_back(each);
  }
  return SchemaJson{{"allOf", std::move(all)}};
}

SchemaJson values_of(const SchemaJson& schema) {
  if (schema.contains("const")) return SchemaJson::array({schema["const"]});
  return schema.value("enum", SchemaJson());
}

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

Expected<SchemaJson> merge_schemas(const SchemaJson& a, const SchemaJson& b) {
  if (a == false || b == false) return SchemaJson(false);
  if (a == true) return b;
  if (b == true) return a;
  if (!a.is_object() || !b.is_object())
    return error(Code::invalid_argument, "a schema has to be an object or a boolean");
  SchemaJson merged = a, other = b;
  if (a.contains("type") && b.contains("type")) {
    name_null(merged);
    name_null(other);
  }
  place_conditions(other, merged);
  place_contained(other, merged);
  MR_RETURN_IF_ERROR(merge_items(a, b, merged, other));
  const SchemaJson values = values_of(a), others = values_of(b);
  if (values.is_array() && others.is_array()) {
    merged.erase("const");
    merged["enum"] = common_values(values, others);
    other.erase("const");
    other.erase("enum");
  }
  for (const auto& [keyword, value] : other.items()) {
    if (!merged.contains(keyword)) {
      merged[keyword] = value;
    } else {
      MR_RETURN_IF_ERROR(merge_keyword(merged, keyword, value));
    }
  }
  MR_RETURN_IF_ERROR(bind_additional(a, b, merged));
  MR_RETURN_IF_ERROR(bind_additional(b, a, merged));
  return merged;
}

}  // namespace millrace::text
