#include "text/constraint/schema_negate.h"

#include <algorithm>
#include <string>

#include "text/constraint/schema_items.h"
#include "text/constraint/schema_keywords.h"
#include "text/constraint/schema_merge.h"

namespace millrace::text {
namespace {

using Options = std::vector<SchemaJson>;

constexpr std::size_t kMostBranches = 16;  // of a oneOf: each pair of them becomes an option

SchemaJson of_type(const char* type, std::initializer_list<std::pair<const char*, SchemaJson>> more) {
  SchemaJson schema{{"type", type}};
  for (const auto& [keyword, value] : more) schema[keyword] = value;
  return schema;
}

SchemaJson all_of(std::vector<SchemaJson> schemas) { return SchemaJson{{"allOf", std::move(schemas)}}; }

Status has_to_be(const std::string& keyword, const char* what) {
  return error(Code::invalid_argument, "{} has to be {}", keyword, what);
}

Status cannot_negate(const std::string& keyword) {
  return error(Code::unsupported, "'not' (or if, or oneOf with branches that may both hold) of '{}' is not supported",
               keyword.substr(0, 60));
}

/// A bound the other way round: what is one less than a least, or one more than a most. `edge` 0: open becomes closed.
struct Opposite {
  std::string_view keyword;
  const char* type;
  const char* opposite;
  int edge;
};
constexpr Opposite kOpposites[] = {{"minimum", "number", "exclusiveMaximum", 0},
                                   {"maximum", "number", "exclusiveMinimum", 0},
                                   {"exclusiveMinimum", "number", "maximum", 0},
                                   {"exclusiveMaximum", "number", "minimum", 0},
                                   {"minLength", "string", "maxLength", -1},
                                   {"maxLength", "string", "minLength", 1},
                                   {"minItems", "array", "maxItems", -1},
                                   {"maxItems", "array", "minItems", 1},
                                   {"minProperties", "object", "maxProperties", -1},
                                   {"maxProperties", "object", "minProperties", 1}};

Status negate_bound(const Opposite& bound, const SchemaJson& value, Options& options) {
  if (!value.is_number()) return has_to_be(std::string(bound.keyword), "a number");
  if (bound.edge < 0 && value.get<double>() < 1) return {};  // always holds
  const SchemaJson opposite = bound.edge == 0 ? value : SchemaJson(value.get<double>() + bound.edge);
  options.push_back(of_type(bound.type, {{bound.opposite, opposite}}));
  return {};
}

/// What has the types that are not listed: numbers that are no integers among them.
void negate_types(const SchemaJson& schema, Options& options) {
  SchemaJson listed = as_list(schema["type"]);
  if (schema.value("nullable", SchemaJson()) == true) listed.push_back("null");
  const auto lists = [&](const char* type) { return std::find(listed.begin(), listed.end(), type) != listed.end(); };
  SchemaJson others = SchemaJson::array();
  for (const char* type : {"object", "array", "string", "number", "boolean", "null"})
    if (!lists(type) && (type != std::string_view("number") || !lists("integer"))) others.push_back(type);
  options.push_back({{"type", others}});
  if (lists("integer") && !lists("number")) options.push_back(of_type("number", {{kNotInteger, true}}));
}

/// A list or an object as a schema of it alone, of which there is an opposite.
SchemaJson only(const SchemaJson& value) {
  const auto constant = [](const SchemaJson& each) { return SchemaJson{{"const", each}}; };
  if (value.is_array()) {
    SchemaJson schema = of_type("array", {{"minItems", value.size()}, {"maxItems", value.size()}});
    for (const SchemaJson& each : value) schema["prefixItems"].push_back(constant(each));
    return schema;
  }
  SchemaJson schema = of_type("object", {{"maxProperties", value.size()}, {"required", SchemaJson::array()}});
  for (const auto& [name, each] : value.items()) {
    schema["required"].push_back(name);
    schema["properties"][name] = constant(each);
  }
  return schema;
}

void negate_values(const SchemaJson& values, Options& options) {
  SchemaJson plain = SchemaJson::array();
  std::vector<SchemaJson> none;
  for (const SchemaJson& value : values) {
    if (value.is_structured()) {
      none.push_back(negation(only(value)));
    } else {
      plain.push_back(value);
    }
  }
  if (!plain.empty() || none.empty()) none.push_back({{kNotValues, std::move(plain)}});
  options.push_back(none.size() == 1 ? std::move(none[0]) : all_of(std::move(none)));
}

/// An object with this property, which does not hold `schema`.
SchemaJson with_property(const std::string& name, const SchemaJson& schema) {
  return of_type("object",
                 {{"required", SchemaJson::array({name})}, {kUnseenProperties, SchemaJson{{name, negation(schema)}}}});
}

/// An object with this property that is not what the property brings along.
Status negate_dependent(const SchemaJson& dependent, Options& options) {
  for (const auto& [name, brought] : dependent.items()) {
    const SchemaJson there = of_type("object", {{"required", SchemaJson::array({name})}});
    const bool names = brought.is_string() || brought.is_array();
    options.push_back(all_of({there, negation(names ? SchemaJson{{"required", as_list(brought)}} : brought)}));
  }
  return {};
}

/// So many items in [first, last) hold `schema`. Where there has to be one, the list is as long as that.
SchemaJson containing(const SchemaJson& schema, std::uint32_t least, std::uint32_t most, std::size_t first = 0,
                      std::size_t last = SIZE_MAX) {
  SchemaJson group{{"contains", schema}, {"minContains", least}, {"first", first}, {"unseen", true}};
  if (most != UINT32_MAX) group["maxContains"] = most;
  if (last != SIZE_MAX) group["last"] = last;
  return of_type("array", {{kContained, SchemaJson::array({group})}});
}

/// Some item is not what stands at its place.
Status negate_items(const SchemaJson& schema, Options& options) {
  MR_ASSIGN_OR_RETURN(const ItemSchemas items, item_schemas(schema));
  for (std::size_t i = 0; i < items.first.size(); ++i)
    if (items.first[i] != true) options.push_back(containing(negation(items.first[i]), 1, UINT32_MAX, i, i + 1));
  if (items.others != true) options.push_back(containing(negation(items.others), 1, UINT32_MAX, items.first.size()));
  return {};
}

Status negate_contains(const SchemaJson& schema, Options& options) {
  MR_ASSIGN_OR_RETURN(const std::vector<Contained> all, contained_of(schema));
  for (const Contained& each : all) {
    if (each.least > 0) options.push_back(containing(each.schema, 0, each.least - 1, each.first, each.last));
    if (each.binds_most()) options.push_back(containing(each.schema, each.most + 1, UINT32_MAX, each.first, each.last));
  }
  return {};
}

Status negate_condition(const SchemaJson& schema, Options& options) {
  if (schema.contains("then")) options.push_back(all_of({schema["if"], negation(schema["then"])}));
  if (schema.contains("else")) options.push_back(all_of({negation(schema["if"]), negation(schema["else"])}));
  return {};
}

/// None of the branches holds, or two of them do.
Status negate_one_of(const SchemaJson& branches, Options& options) {
  if (branches.size() > kMostBranches) return cannot_negate("oneOf");
  std::vector<SchemaJson> none;
  for (const SchemaJson& branch : branches) none.push_back(negation(branch));
  options.push_back(all_of(std::move(none)));
  for (std::size_t i = 0; i < branches.size(); ++i)
    for (std::size_t j = 0; j < i; ++j) options.push_back(all_of({branches[j], branches[i]}));
  return {};
}

/// It holds for every value.
bool says_nothing(const std::string& keyword, const SchemaJson& value) {
  if (keyword == "uniqueItems") return value == false;
  if (keyword == "patternProperties")
    return std::all_of(value.begin(), value.end(), [](const SchemaJson& each) { return each == true; });
  constexpr std::string_view of_schemas[] = {"additionalProperties", "propertyNames", "unevaluatedProperties",
                                             "unevaluatedItems"};
  return value == true && std::find(std::begin(of_schemas), std::end(of_schemas), keyword) != std::end(of_schemas);
}

/// Appends what does not hold `schema` because of this keyword alone. Some keywords speak through others beside them:
/// minContains through contains, then through if.
Status negate_keyword(const SchemaJson& schema, const std::string& keyword, Options& options) {
  const SchemaJson& value = schema[keyword];
  for (const Opposite& each : kOpposites)
    if (keyword == each.keyword) return negate_bound(each, value, options);
  const auto is = [&](std::string_view one) { return keyword == one; };
  const bool list = value.is_array(), object = value.is_object();
  if (is("minContains") || is("maxContains") || is("then") || is("else") || is("additionalItems")) return {};
  if (is("format") || is("nullable")) return {};
  if (is("contains")) return negate_contains(schema, options);
  if (is("if")) return negate_condition(schema, options);
  if (is("prefixItems") && schema.contains("items")) return {};
  if (is("items") || is("prefixItems")) return negate_items(schema, options);
  if (is("dependentRequired") || is("dependentSchemas") || is("dependencies"))
    return object ? negate_dependent(value, options) : has_to_be(keyword, "an object");
  if (is("oneOf") && list) return negate_one_of(value, options);
  if (is("type")) {
    negate_types(schema, options);
  } else if (is("const")) {
    negate_values(SchemaJson::array({value}), options);
  } else if (is("enum") && list) {
    negate_values(value, options);
  } else if (is("pattern")) {
    options.push_back(of_type("string", {{kNotPatterns, SchemaJson::array({value})}}));
  } else if (is("required") && list) {
    for (const SchemaJson& name : value) {
      if (!name.is_string()) return error(Code::invalid_argument, "required has to list names");
      options.push_back(of_type("object", {{kUnseenProperties, SchemaJson{{name.get<std::string>(), false}}}}));
    }
  } else if (is("properties") && object) {
    for (const auto& [name, property] : value.items()) options.push_back(with_property(name, property));
  } else if (is("not")) {
    options.push_back(value);
  } else if (is("allOf") && list) {
    for (const SchemaJson& each : value) options.push_back(negation(each));
  } else if (is("anyOf") && list) {
    std::vector<SchemaJson> none;
    for (const SchemaJson& each : value) none.push_back(negation(each));
    options.push_back(all_of(std::move(none)));
  } else if (!says_nothing(keyword, value)) {
    return cannot_negate(keyword);
  }
  return {};
}

}  // namespace

SchemaJson negation(const SchemaJson& schema) { return SchemaJson{{"not", schema}}; }

Expected<std::vector<SchemaJson>> negated_schemas(const SchemaJson& schema) {
  if (schema == true) return Options();
  if (schema == false) return Options{SchemaJson::object()};
  if (!schema.is_object()) return error(Code::invalid_argument, "a schema has to be an object or a boolean");
  Options options;
  for (const auto& [keyword, unused] : schema.items())
    if (!is_annotation(keyword)) MR_RETURN_IF_ERROR(negate_keyword(schema, keyword, options));
  if (options.empty() && schema.contains("format")) return cannot_negate("format");
  return options;
}

}  // namespace millrace::text
