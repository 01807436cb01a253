#include "text/constraint/schema.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <unordered_map>

#include "text/constraint/json_rules.h"
#include "text/constraint/pattern.h"
#include "text/constraint/schema_flatten.h"

namespace millrace::text {
namespace {

constexpr std::size_t kMostSchemaBytes = 1 << 20;
constexpr int kMostDepth = 64;
constexpr std::uint32_t kMostItems = 5000, kMostCharacters = 50'000;

const std::vector<std::string> kTypes = {"object", "array", "string", "number", "integer", "boolean", "null"};

/// Keywords that bind, and the type that they bind; "" for every type.
const std::map<std::string, std::string>& keywords() {
  static const std::map<std::string, std::string> all = {{"type", ""},
                                                         {"nullable", ""},
                                                         {"enum", ""},
                                                         {"const", ""},
                                                         {"$ref", ""},
                                                         {"properties", "object"},
                                                         {"required", "object"},
                                                         {"additionalProperties", "object"},
                                                         {"items", "array"},
                                                         {"prefixItems", "array"},
                                                         {"additionalItems", "array"},
                                                         {"minItems", "array"},
                                                         {"maxItems", "array"},
                                                         {"minLength", "string"},
                                                         {"maxLength", "string"},
                                                         {"pattern", "string"},
                                                         {"format", "string"},
                                                         {"minimum", "number"},
                                                         {"maximum", "number"},
                                                         {"exclusiveMinimum", "number"},
                                                         {"exclusiveMaximum", "number"}};
  return all;
}

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

class Compiler {
 public:
  Compiler(const SchemaJson& root, const BuildLimits& limits) : flattener_(root), builder_(limits), rules_(builder_) {}

  Expected<std::shared_ptr<const Grammar>> compile() {
    MR_ASSIGN_OR_RETURN(const RuleId value, reference("#"));
    const RuleId whole = builder_.new_rule();
    // Vocabularies in the manner of SentencePiece begin a text with a space.
    builder_.define(whole, builder_.sequence(rules_.optional_blank(), builder_.rule(value)));
    return builder_.finish(whole);
  }

 private:
  /// A rule a reference, so that schemas may be recursive.
  Expected<RuleId> reference(const std::string& pointer) {
    if (const auto known = references_.find(pointer); known != references_.end()) return known->second;
    MR_ASSIGN_OR_RETURN(const SchemaJson* const schema, flattener_.resolve(pointer));
    const RuleId rule = references_[pointer] = builder_.new_rule();
    MR_ASSIGN_OR_RETURN(const Fragment body, value(*schema));
    builder_.define(rule, body);
    return rule;
  }

  Expected<Fragment> value(const SchemaJson& schema) {
    if (++depth_ > kMostDepth) return error(Code::unsupported, "the schema is nested more than {} deep", kMostDepth);
    MR_ASSIGN_OR_RETURN(const std::vector<SchemaJson> plain, flattener_.flatten(schema));
    std::vector<Fragment> options;
    for (const SchemaJson& each : plain) {
      MR_ASSIGN_OR_RETURN(const Fragment option, plain_value(each));
      options.push_back(option);
    }
    --depth_;
    return builder_.either(options);
  }

  Expected<Fragment> plain_value(const SchemaJson& schema) {
    if (schema.contains("$ref") && schema.size() == 1) {
      if (!schema["$ref"].is_string()) return error(Code::invalid_argument, "$ref has to be a string");
      MR_ASSIGN_OR_RETURN(const RuleId rule, reference(schema["$ref"].get<std::string>()));
      return builder_.rule(rule);
    }
    std::set<std::string> bound;  // types that keywords speak of
    bool binds = false;
    for (const auto& [keyword, unused] : schema.items()) {
      if (is_annotation(keyword)) continue;
      const auto known = keywords().find(keyword);
      const bool trivial = (keyword == "uniqueItems" && unused == false) || (keyword == "minProperties" && unused == 0);
      if (trivial) continue;
      if (known == keywords().end())
        return error(Code::unsupported, "the schema keyword '{}' is not supported; leave it out",
                     keyword.substr(0, 60));
      binds = true;
      if (!known->second.empty()) bound.insert(known->second);
    }
    if (!binds) return builder_.rule(rules_.any_value());
    MR_ASSIGN_OR_RETURN(const std::vector<std::string> types, types_of(schema, bound));
    if (schema.contains("const") || schema.contains("enum")) return one_of_values(schema, types, bound);
    std::vector<Fragment> options;
    for (const std::string& type : types) {
      MR_ASSIGN_OR_RETURN(const Fragment option, typed(schema, type));
      options.push_back(option);
    }
    return builder_.either(options);
  }

  /// Where no type is said, those that the keywords speak of: less than the schema allows, but useful.
  Expected<std::vector<std::string>> types_of(const SchemaJson& schema, const std::set<std::string>& bound) const {
    std::vector<std::string> types;
    if (schema.contains("type")) {
      const SchemaJson& said = schema["type"];
      for (const SchemaJson& type : said.is_array() ? said : SchemaJson::array({said})) {
        if (!type.is_string() || std::find(kTypes.begin(), kTypes.end(), type.get<std::string>()) == kTypes.end())
          return error(Code::invalid_argument, "type {} is none of JSON schema's", type.dump().substr(0, 60));
        types.push_back(type.get<std::string>());
      }
    } else if (schema.contains("const") || schema.contains("enum")) {
      types = kTypes;
    } else {
      types.assign(bound.begin(), bound.end());
    }
    if (schema.value("nullable", SchemaJson(false)) == true &&
        std::find(types.begin(), types.end(), "null") == types.end())
      types.emplace_back("null");
    if (types.empty() && !schema.contains("type")) types = kTypes;  // {"nullable": false}
    return types;
  }

  Expected<Fragment> one_of_values(const SchemaJson& schema, const std::vector<std::string>& types,
                                   const std::set<std::string>& bound) {
    if (!bound.empty())
      return error(Code::unsupported, "enum or const beside other limits on the value; leave the others out");
    SchemaJson values = schema.contains("const") ? SchemaJson::array({schema["const"]}) : schema["enum"];
    if (!values.is_array()) return error(Code::invalid_argument, "enum has to be a list");
    const SchemaJson* const listed = schema.contains("enum") ? &schema["enum"] : nullptr;
    std::vector<std::string> texts;
    std::uint64_t charged = 0;
    for (const SchemaJson& value : values) {
      const bool fits =
          std::any_of(types.begin(), types.end(), [&](const auto& type) { return has_type(value, type); }) &&
          (listed == nullptr || !schema.contains("const") ||
           std::find(listed->begin(), listed->end(), value) != listed->end());
      if (!fits) continue;
      texts.push_back(value.dump(-1, ' ', false, SchemaJson::error_handler_t::replace));
      if (!builder_.charge(texts.back().capacity() + 2 * sizeof(std::string))) break;
      charged += texts.back().capacity() + 2 * sizeof(std::string);
    }
    const Fragment whole = builder_.one_of(std::move(texts));
    builder_.discharge(charged);
    return whole;
  }

  Expected<Fragment> typed(const SchemaJson& schema, const std::string& type) {
    if (type == "object") return object(schema);
    if (type == "array") return array(schema);
    if (type == "string") return string(schema);
    if (type == "boolean") return builder_.either({builder_.literal("true"), builder_.literal("false")});
    if (type == "null") return builder_.literal("null");
    return number(schema, type == "integer");
  }

  Expected<std::uint32_t> count(const SchemaJson& schema, const char* keyword, std::uint32_t fallback,
                                std::uint32_t most) const {
    if (!schema.contains(keyword)) return fallback;
    const SchemaJson& value = schema[keyword];
    if (!value.is_number() || value.get<double>() < 0 || value.get<double>() != std::floor(value.get<double>()))
      return error(Code::invalid_argument, "{} has to be a whole number", keyword);
    if (value.get<double>() > most) return error(Code::unsupported, "{} is limited to {}", keyword, most);
    return static_cast<std::uint32_t>(value.get<double>());
  }

  Expected<Fragment> string(const SchemaJson& schema) {
    MR_ASSIGN_OR_RETURN(const std::uint32_t least, count(schema, "minLength", 0, kMostCharacters));
    MR_ASSIGN_OR_RETURN(const std::uint32_t most, count(schema, "maxLength", UINT32_MAX, kMostCharacters));
    const bool pattern = schema.contains("pattern"), format = schema.contains("format");
    if (!pattern && !format) return least > most ? builder_.either({}) : rules_.string(least, most);
    if ((pattern && format) || least > 0 || most != UINT32_MAX)
      return error(Code::unsupported,
                   "of pattern, format and limits of length, a string can have one; put the length into "
                   "the pattern");
    const SchemaJson& text = schema[pattern ? "pattern" : "format"];
    if (!text.is_string()) return error(Code::invalid_argument, "pattern and format have to be strings");
    std::string expression = text.get<std::string>();
    if (format) {
      MR_ASSIGN_OR_RETURN(expression, format_pattern(expression));
    }
    MR_ASSIGN_OR_RETURN(const Fragment inside, pattern_fragment(builder_, rules_, expression));
    return builder_.sequence(builder_.sequence(builder_.literal("\""), inside), builder_.literal("\""));
  }

  Expected<Fragment> number(const SchemaJson& schema, bool integer) {
    constexpr double none = std::numeric_limits<double>::quiet_NaN();
    NumberBounds bounds{none, none};
    for (const char* keyword : {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}) {
      if (!schema.contains(keyword)) continue;
      if (!schema[keyword].is_number()) return error(Code::invalid_argument, "{} has to be a number", keyword);
      const double bound = schema[keyword].get<double>();
      const bool open = std::string_view(keyword).starts_with("exclusive");
      const bool low = std::string_view(keyword).ends_with("inimum");
      double& held = low ? bounds.low : bounds.high;
      const bool tighter = std::isnan(held) || (low ? bound > held : bound < held) || (open && bound == held);
      if (!tighter) continue;
      held = bound;
      (low ? bounds.low_open : bounds.high_open) = open;
    }
    if (std::isnan(bounds.low) && std::isnan(bounds.high)) return json_number(builder_, integer);
    return bounded_number(builder_, bounds, integer);
  }

  Fragment join(std::initializer_list<Fragment> parts) {
    Fragment whole = builder_.empty();
    for (const Fragment& part : parts) whole = builder_.sequence(whole, part);
    return whole;
  }

  /// Items one after the other: each count has a state, from which the array may end or go on.
  Expected<Fragment> array(const SchemaJson& schema) {
    MR_ASSIGN_OR_RETURN(const std::uint32_t least, count(schema, "minItems", 0, kMostItems));
    MR_ASSIGN_OR_RETURN(std::uint32_t most, count(schema, "maxItems", UINT32_MAX, kMostItems));
    SchemaJson first = schema.value("prefixItems", SchemaJson::array()), rest = schema.value("items", SchemaJson(true));
    if (rest.is_array()) {  // as drafts before 2020 wrote it
      first = rest;
      rest = schema.value("additionalItems", SchemaJson(true));
    }
    if (!first.is_array()) return error(Code::invalid_argument, "prefixItems has to be a list of schemas");
    // Where a schema lists its first items and says nothing of others, none are added.
    const bool said = (schema.contains("items") && !schema["items"].is_array()) || schema.contains("additionalItems");
    if (!first.empty() && !said) most = std::min(most, std::max(least, static_cast<std::uint32_t>(first.size())));
    std::vector<RuleId> items;
    for (const SchemaJson& item : first) {
      MR_ASSIGN_OR_RETURN(const RuleId rule, rule_of(item));
      items.push_back(rule);
    }
    MR_ASSIGN_OR_RETURN(const RuleId others, rule_of(rest));
    const auto comma = [&] { return join({builder_.literal(","), rules_.space()}); };
    const StateId end = builder_.new_state();
    Fragment whole = join({builder_.literal("["), rules_.space()});
    const std::uint32_t counted = most == UINT32_MAX ? std::max(least, static_cast<std::uint32_t>(items.size())) : most;
    for (std::uint32_t i = 0; i < counted && !builder_.full(); ++i) {
      if (i >= least) builder_.nothing(whole.end, end);
      if (i > 0) whole = builder_.sequence(whole, comma());
      whole = builder_.sequence(whole, builder_.rule(i < items.size() ? items[i] : others));
    }
    if (counted >= least) builder_.nothing(whole.end, end);
    if (most == UINT32_MAX) {
      const auto more = [&] { return join({comma(), builder_.rule(others)}); };
      const Fragment loop = builder_.repeat(0, UINT32_MAX, more);
      const Fragment tail = counted > 0 ? loop : builder_.sequence(builder_.rule(others), loop);
      builder_.nothing(whole.end, tail.begin);
      builder_.nothing(tail.end, end);
    }
    return join({{whole.begin, end}, rules_.space(), builder_.literal("]")});
  }

  Expected<RuleId> rule_of(const SchemaJson& schema) {
    const RuleId rule = builder_.new_rule();
    MR_ASSIGN_OR_RETURN(const Fragment body, value(schema));
    builder_.define(rule, body);
    return rule;
  }

  struct Property {
    std::string name;
    SchemaJson schema;
    bool required = false;
  };

  /// Declared properties in the schema's order, then those that are only required.
  Expected<std::vector<Property>> properties_of(const SchemaJson& schema) const {
    const SchemaJson declared = schema.value("properties", SchemaJson::object());
    const SchemaJson required = schema.value("required", SchemaJson::array());
    if (!declared.is_object() || !required.is_array())
      return error(Code::invalid_argument, "properties has to be an object and required a list");
    std::vector<Property> properties;
    std::unordered_map<std::string, std::size_t> places;
    for (const auto& [name, property] : declared.items()) {
      places.try_emplace(name, properties.size());
      properties.push_back({name, property, false});
    }
    for (const SchemaJson& name : required) {
      if (!name.is_string()) return error(Code::invalid_argument, "required has to list names");
      const auto [found, fresh] = places.try_emplace(name.get<std::string>(), properties.size());
      if (!fresh) {
        properties[found->second].required = true;
      } else {
        properties.push_back({name.get<std::string>(), schema.value("additionalProperties", SchemaJson(true)), true});
      }
    }
    return properties;
  }

  Expected<Fragment> object(const SchemaJson& schema) {
    MR_ASSIGN_OR_RETURN(const std::vector<Property> properties, properties_of(schema));
    const bool said = schema.contains("additionalProperties");
    if (!said && properties.empty() && !schema.contains("properties")) return builder_.rule(rules_.any_object());
    const auto comma = [&] { return join({builder_.literal(","), rules_.space()}); };
    const Fragment head = join({builder_.literal("{"), rules_.space()});
    StateId none = head.end, some = builder_.new_state();  // before the next property, with or without one before
    for (const Property& property : properties) {
      const Fragment member = join({builder_.literal(JsonRules::quoted(property.name) + ":"), rules_.optional_blank()});
      MR_ASSIGN_OR_RETURN(const Fragment inner, value(property.schema));
      builder_.nothing(member.end, inner.begin);
      const Fragment separator = comma();
      builder_.nothing(none, member.begin);
      builder_.nothing(some, separator.begin);
      builder_.nothing(separator.end, member.begin);
      const StateId next_none = builder_.new_state(), next_some = builder_.new_state();
      builder_.nothing(inner.end, next_some);
      if (!property.required) {
        builder_.nothing(none, next_none);
        builder_.nothing(some, next_some);
      }
      none = next_none;
      some = next_some;
    }
    const SchemaJson more = schema.value("additionalProperties", SchemaJson(false));
    const StateId end = builder_.new_state();
    builder_.nothing(none, end);
    builder_.nothing(some, end);
    if (more != false) MR_RETURN_IF_ERROR(add_others(more, properties, none, some, end));
    return join({{head.begin, end}, rules_.space(), builder_.literal("}")});
  }

  /// Any number of properties whose names are none of the declared.
  Status add_others(const SchemaJson& schema, const std::vector<Property>& properties, StateId none, StateId some,
                    StateId end) {
    std::vector<std::string> names;
    for (const Property& property : properties) names.push_back(property.name);
    const RuleId member = builder_.new_rule();
    MR_ASSIGN_OR_RETURN(const Fragment inner, value(schema));
    const Fragment key = names.empty() ? rules_.string(0, UINT32_MAX) : rules_.string_except(names);
    builder_.define(member, join({key, builder_.literal(":"), rules_.optional_blank(), inner}));
    const auto next = [&] { return join({builder_.literal(","), rules_.space(), builder_.rule(member)}); };
    const Fragment first = builder_.rule(member), others = builder_.repeat(0, UINT32_MAX, next);
    builder_.nothing(none, first.begin);
    builder_.nothing(first.end, others.begin);
    builder_.nothing(some, others.begin);
    builder_.nothing(others.end, end);
    return {};
  }

  Flattener flattener_;
  GrammarBuilder builder_;
  JsonRules rules_;
  std::map<std::string, RuleId> references_;
  int depth_ = 0;
};

/// nlohmann-json 3.11 parses without recursion; what walks the value afterwards does not.
Expected<SchemaJson> parse_schema(std::string_view text) {
  if (text.size() > kMostSchemaBytes)
    return error(Code::invalid_argument, "the schema has {} bytes; 1 MiB is the most", text.size());
  bool too_deep = false;
  const auto watch = [&](int depth, SchemaJson::parse_event_t, SchemaJson&) {
    too_deep = too_deep || depth > 4 * kMostDepth;
    return !too_deep;
  };
  SchemaJson schema = SchemaJson::parse(text, watch, false);
  if (too_deep) return error(Code::unsupported, "the schema is nested too deeply");
  if (schema.is_discarded()) return error(Code::invalid_argument, "the schema is no JSON");
  return schema;
}

}  // namespace

Expected<std::shared_ptr<const Grammar>> schema_grammar(std::string_view json_schema, const BuildLimits& limits) {
  MR_ASSIGN_OR_RETURN(const SchemaJson schema, parse_schema(json_schema));
  try {
    return Compiler(schema, limits).compile();
  } catch (const nlohmann::json::exception& wrong) {
    return error(Code::invalid_argument, "the schema has a value of a wrong kind ({})", wrong.what());
  }
}

std::shared_ptr<const Grammar> json_object_grammar() {
  const auto grammar = schema_grammar(R"({"type":"object"})");
  MR_ASSERT(grammar.ok());
  return *grammar;
}

}  // namespace millrace::text
