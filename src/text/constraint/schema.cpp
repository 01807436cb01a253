#include "text/constraint/schema.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "text/constraint/pattern.h"
#include "text/constraint/schema_compiler.h"
#include "text/constraint/schema_strings.h"
#include "text/constraint/written_grammar.h"

namespace millrace::text {
namespace {

constexpr std::size_t kMostSchemaBytes = 1 << 20;
constexpr int kMostNestedSchemas = 64;

const std::vector<std::string> kTypes = {"object", "array", "string", "number", "integer", "boolean", "null"};

/// Ranges of integers that OpenAPI and generators of Rust and Go name as formats.
void bind_by_format(const SchemaJson& schema, NumberBounds& bounds) {
  struct Width {
    std::string_view format;
    double low, high;
  };
  static constexpr Width widths[] = {
      {"int8", -128, 127}, {"int16", -32768, 32767}, {"int32", -2147483648.0, 2147483647.0},
      {"uint8", 0, 255},   {"uint16", 0, 65535},     {"uint32", 0, 4294967295.0},
      {"uint64", 0, 1e18}, {"uint", 0, 4294967295.0}};
  const SchemaJson format = schema.value("format", SchemaJson());
  for (const Width& width : widths) {
    if (format != width.format) continue;
    if (!(bounds.low >= width.low)) bounds.low = width.low, bounds.low_open = false;
    if (!(bounds.high <= width.high)) bounds.high = width.high, bounds.high_open = false;
  }
}

/// Errors: invalid_argument (no numbers).
Expected<NumberBounds> bounds_of(const SchemaJson& schema) {
  constexpr double none = std::numeric_limits<double>::quiet_NaN();
  NumberBounds bounds{none, none};
  for (const char* keyword : {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}) {
    if (!schema.contains(keyword)) continue;
    if (!schema[keyword].is_number()) return error(Code::invalid_argument, "{} has to be a number", keyword);
    const double bound = schema[keyword].get<double>();
    if (std::string_view(keyword) == "multipleOf") {
      if (bound <= 0) return error(Code::invalid_argument, "multipleOf has to be above 0");
      bounds.multiple_of = decimal_of(schema[keyword].dump());
      continue;
    }
    const bool open = std::string_view(keyword).starts_with("exclusive");
    const bool low = std::string_view(keyword).ends_with("inimum");
    double& held = low ? bounds.low : bounds.high;
    const bool tighter = std::isnan(held) || (low ? bound > held : bound < held) || (open && bound == held);
    if (!tighter) continue;
    held = bound;
    (low ? bounds.low_open : bounds.high_open) = open;
  }
  return bounds;
}

bool excludes(const SchemaJson& schema, const SchemaJson& value) {
  const SchemaJson excluded = schema.value(kNotValues, SchemaJson::array());
  return std::find(excluded.begin(), excluded.end(), value) != excluded.end();
}

}  // namespace

Expected<std::shared_ptr<const Grammar>> SchemaCompiler::compile() {
  builder_.charge(document_.bytes());
  MR_ASSIGN_OR_RETURN(const RuleId value, reference("#"));
  const RuleId whole = builder_.new_rule();
  // Vocabularies in the manner of SentencePiece begin a text with a space.
  builder_.define(whole, builder_.sequence(rules_.optional_blank(), builder_.rule(value)));
  auto grammar = builder_.finish(whole);
  const bool nothing_left = !grammar.ok() && grammar.status().message().starts_with("no finite text");
  if (nothing_left && !contradiction_.ok()) return contradiction_;
  return grammar;
}

/// A rule a reference, so that schemas may be recursive.
Expected<RuleId> SchemaCompiler::reference(const std::string& pointer) {
  const auto key = std::pair(pointer, rules_.spelling());
  if (const auto known = references_.find(key); known != references_.end()) return known->second;
  MR_ASSIGN_OR_RETURN(const SchemaJson* const schema, flattener_.resolve(pointer));
  const RuleId rule = references_[key] = builder_.new_rule();
  MR_ASSIGN_OR_RETURN(const Fragment body, value(*schema));
  builder_.define(rule, body);
  return rule;
}

Expected<Fragment> SchemaCompiler::value(const SchemaJson& schema) {
  const bool combines =
      schema.is_object() && (schema.contains("allOf") || schema.contains("anyOf") || schema.contains("oneOf") ||
                             (schema.contains("$ref") && schema.size() > 1));
  const std::string words = combines ? schema.dump(-1, ' ', false, SchemaJson::error_handler_t::replace) : "";
  // What is combined stands written out, references and all: it may come back to itself.
  if (words.find("\":\"\\u0001") == std::string::npos) return combined_value(schema);  // as references are settled
  const auto [known, fresh] = combined_.try_emplace({words, rules_.spelling()}, 0);
  if (!fresh) return builder_.rule(known->second);
  builder_.charge(words.size());
  const RuleId rule = known->second = builder_.new_rule();
  MR_ASSIGN_OR_RETURN(const Fragment body, combined_value(schema));
  builder_.define(rule, body);
  return builder_.rule(rule);
}

Expected<Fragment> SchemaCompiler::combined_value(const SchemaJson& schema) {
  if (++depth_ > kMostNestedSchemas)
    return error(Code::unsupported, "the schema is nested more than {} deep", kMostNestedSchemas);
  MR_ASSIGN_OR_RETURN(const std::vector<SchemaJson> plain, flattener_.flatten(schema));
  std::vector<Fragment> options;
  for (const SchemaJson& each : plain) {
    MR_ASSIGN_OR_RETURN(const Fragment option, plain_value(each));
    options.push_back(option);
  }
  --depth_;
  return builder_.either(options);
}

Expected<Fragment> SchemaCompiler::plain_value(const SchemaJson& schema) {
  if (schema.contains("$ref")) {
    MR_ASSIGN_OR_RETURN(const RuleId rule, reference(schema["$ref"].get<std::string>()));
    return builder_.rule(rule);
  }
  bool binds = false;
  MR_ASSIGN_OR_RETURN(const std::set<std::string> bound, bound_types(schema, binds));
  if (!binds && !one_spelling()) return builder_.rule(rules_.any_value());
  if (schema.contains("const") || schema.contains("enum")) return one_of_values(schema);
  MR_ASSIGN_OR_RETURN(std::vector<std::string> types, types_of(schema, bound));
  if (!binds) types = {"string", "number", "boolean", "null"};  // what else there is has many spellings
  std::vector<Fragment> options;
  for (const std::string& type : types) {
    MR_ASSIGN_OR_RETURN(const Fragment option, typed(schema, type));
    options.push_back(option);
  }
  return builder_.either(options);
}

/// The types that keywords speak of; `binds`: some keyword does. Errors: unsupported (a keyword, by name).
Expected<std::set<std::string>> SchemaCompiler::bound_types(const SchemaJson& schema, bool& binds) const {
  std::set<std::string> bound;
  for (const auto& [keyword, value] : schema.items()) {
    if (is_annotation(keyword)) continue;
    const SchemaKeyword* const known = schema_keyword(keyword);
    const bool trivial = (keyword == "uniqueItems" && value == false) || (keyword == "minProperties" && value == 0);
    if (trivial) continue;
    const std::string_view meant = meant_keyword(keyword);
    if (meant != keyword)
      return error(Code::unsupported, "the schema keyword '{}' is none; '{}' is", keyword.substr(0, 60), meant);
    if (known == nullptr || known->use != KeywordUse::plain)
      return error(Code::unsupported, "the schema keyword '{}' is not supported; leave it out", keyword.substr(0, 60));
    binds = true;
    if (!known->type.empty()) bound.emplace(known->type);
  }
  return bound;
}

/// Where no type is said, those that the keywords speak of: less than the schema allows, but useful.
Expected<std::vector<std::string>> SchemaCompiler::types_of(const SchemaJson& schema,
                                                            const std::set<std::string>& bound) const {
  std::vector<std::string> types;
  if (schema.contains("type")) {
    const SchemaJson& said = schema["type"];
    for (const SchemaJson& type : said.is_array() ? said : SchemaJson::array({said})) {
      if (!type.is_string() || std::find(kTypes.begin(), kTypes.end(), type.get<std::string>()) == kTypes.end())
        return error(Code::invalid_argument, "type {} is none of JSON schema's", type.dump().substr(0, 60));
      types.push_back(type.get<std::string>());
    }
  } else {
    types.assign(bound.begin(), bound.end());
  }
  if (schema.value("nullable", SchemaJson(false)) == true &&
      std::find(types.begin(), types.end(), "null") == types.end())
    types.emplace_back("null");
  if (types.empty() && !schema.contains("type")) types = kTypes;  // {"nullable": false}
  return types;
}

/// Those of its const or enum that hold by what else the schema says.
Expected<SchemaJson> SchemaCompiler::values_that_hold(const SchemaJson& schema) {
  SchemaJson values = schema.contains("const") ? SchemaJson::array({schema["const"]}) : schema["enum"];
  if (!values.is_array()) return error(Code::invalid_argument, "enum has to be a list");
  SchemaJson others = schema;
  others.erase("const");
  if (!schema.contains("const")) others.erase("enum");  // beside a const it says something
  MR_RETURN_IF_ERROR(types_of(schema, {}).status());
  if (others.empty()) return values;
  SchemaJson fitting = SchemaJson::array();
  for (SchemaJson& each : values) {
    if (!builder_.go_on()) break;
    MR_ASSIGN_OR_RETURN(const bool fits, checker_.holds(each, others));
    if (fits) fitting.push_back(std::move(each));
  }
  return fitting;
}

/// Errors: unsupported (that value has to have one spelling, and it is not told which).
Expected<std::string> SchemaCompiler::spelled(const SchemaJson& value) const {
  const std::string text = value.dump(-1, ' ', false, SchemaJson::error_handler_t::replace);
  if (!one_spelling()) return text;
  if (value.is_array()) {
    std::string whole;
    for (const SchemaJson& each : value) {
      MR_ASSIGN_OR_RETURN(const std::string item, spelled(each));
      whole += (whole.empty() ? "" : ",") + item;
    }
    return "[" + whole + "]";
  }
  const bool many = value.is_object() && value.size() > 1;
  if (many || (value.is_number_float() && text.find('e') != std::string::npos))
    return error(Code::unsupported, "uniqueItems over {} beside other items is not supported; leave it out",
                 text.substr(0, 60));
  if (value.is_object() && !value.empty()) {
    MR_ASSIGN_OR_RETURN(const std::string inner, spelled(value.front()));
    return "{" + JsonRules::quoted(value.begin().key()) + ":" + inner + "}";
  }
  if (value.is_number_float() && text.ends_with(".0")) return value == 0 ? "0" : text.substr(0, text.size() - 2);
  return text;
}

Expected<Fragment> SchemaCompiler::one_of_values(const SchemaJson& schema) {
  MR_ASSIGN_OR_RETURN(const SchemaJson values, values_that_hold(schema));
  std::vector<std::string> texts;
  std::uint64_t charged = 0;
  for (const SchemaJson& value : values) {
    MR_ASSIGN_OR_RETURN(std::string text, spelled(value));
    texts.push_back(std::move(text));
    if (!builder_.charge(texts.back().capacity() + 2 * sizeof(std::string))) break;
    charged += texts.back().capacity() + 2 * sizeof(std::string);
  }
  const Fragment whole = builder_.one_of(std::move(texts));
  builder_.discharge(charged);
  return whole;
}

Expected<Fragment> SchemaCompiler::typed(const SchemaJson& schema, const std::string& type) {
  if (type == "object") return object(schema);
  if (type == "array") return array(schema);
  if (type == "string") return string(schema);
  if (type == "boolean") return boolean(schema);
  if (type == "null") return excludes(schema, nullptr) ? builder_.either({}) : builder_.literal("null");
  if (!schema.contains(kNotInteger)) return number(schema, type == "integer" ? Numbers::integers : Numbers::all);
  return type == "integer" ? builder_.either({}) : number(schema, Numbers::fractions);
}

Expected<Fragment> SchemaCompiler::boolean(const SchemaJson& schema) {
  std::vector<Fragment> options;
  for (const bool value : {true, false})
    if (!excludes(schema, value)) options.push_back(builder_.literal(value ? "true" : "false"));
  return builder_.either(options);
}

Expected<Fragment> SchemaCompiler::string(const SchemaJson& schema) {
  if (schema.contains(kGrammarOfString)) {
    const SchemaJson& grammar = schema[kGrammarOfString];
    MR_ASSIGN_OR_RETURN(const GrammarSyntax syntax, grammar_syntax(grammar.at("syntax").get<std::string>()));
    const std::string definition = grammar.at("definition").get<std::string>();
    MR_ASSIGN_OR_RETURN(const Fragment inside, written_fragment(builder_, rules_, sets_, syntax, definition));
    return quoted(inside);
  }
  MR_ASSIGN_OR_RETURN(const Lengths lengths, lengths_of(schema));
  MR_ASSIGN_OR_RETURN(const std::vector<std::string> patterns, patterns_of(schema));
  const bool excludes_some = schema.contains(kNotPatterns) || schema.contains(kNotValues);
  if (patterns.empty() && !excludes_some) {
    if (lengths.least > lengths.most) return builder_.either({});
    return rules_.string(lengths.least, lengths.most);
  }
  if (patterns.size() == 1 && !lengths.bind() && !excludes_some) {
    MR_ASSIGN_OR_RETURN(const Fragment inside, pattern_fragment(builder_, rules_, sets_, patterns[0]));
    return quoted(inside);
  }
  MR_ASSIGN_OR_RETURN(const RegularSets::Set set, string_set(sets_, schema));
  MR_ASSIGN_OR_RETURN(const Fragment inside, sets_.fragment(rules_, set));
  return quoted(inside);
}

Expected<Fragment> SchemaCompiler::number(const SchemaJson& schema, Numbers which) {
  MR_ASSIGN_OR_RETURN(NumberBounds bounds, bounds_of(schema));
  bind_by_format(schema, bounds);
  std::set<double> excluded;
  for (const SchemaJson& value : schema.value(kNotValues, SchemaJson::array()))
    if (value.is_number()) excluded.insert(value.get<double>());
  if (excluded.empty()) {
    if (std::isnan(bounds.low) && std::isnan(bounds.high) && bounds.multiple_of.digits == 0)
      return json_number(builder_, which, rules_.spelling());
    return or_nothing(bounded_number(builder_, bounds, which, rules_.spelling()));
  }
  // What lies between two neighbours of those that are excluded.
  std::vector<Fragment> options;
  Status nothing;
  const auto add = [&](const NumberBounds& between) {
    auto option = bounded_number(builder_, between, which, rules_.spelling());
    if (option.ok()) options.push_back(*option);
    if (!option.ok() && option.status().code() != Code::invalid_argument) nothing = option.status();
  };
  NumberBounds between = bounds;
  for (const double value : excluded) {
    if (value < bounds.low || value > bounds.high) continue;
    between.high = value;
    between.high_open = true;
    add(between);
    between = bounds;
    between.low = value;
    between.low_open = true;
  }
  add(between);
  MR_RETURN_IF_ERROR(nothing);
  return builder_.either(options);
}

/// What no value fulfils is no error where something else may stand in its place.
Expected<Fragment> SchemaCompiler::or_nothing(Expected<Fragment> part) {
  if (part.ok() || part.status().code() != Code::invalid_argument) return part;
  if (contradiction_.ok()) contradiction_ = part.status();
  return builder_.either({});
}

Expected<RuleId> SchemaCompiler::rule_of(const SchemaJson& schema) {
  const RuleId rule = builder_.new_rule();
  MR_ASSIGN_OR_RETURN(const Fragment body, value(schema));
  builder_.define(rule, body);
  return rule;
}

Fragment SchemaCompiler::join(std::initializer_list<Fragment> parts) {
  Fragment whole = builder_.empty();
  for (const Fragment& part : parts) whole = builder_.sequence(whole, part);
  return whole;
}

namespace {

/// nlohmann-json 3.11 parses without recursion; what walks the value afterwards does not.
Expected<SchemaJson> parse_schema(std::string_view text) {
  if (text.size() > kMostSchemaBytes)
    return error(Code::invalid_argument, "the schema has {} bytes; 1 MiB is the most", text.size());
  bool too_deep = false;
  const auto watch = [&](int depth, SchemaJson::parse_event_t, SchemaJson&) {
    too_deep = too_deep || depth > 4 * kMostNestedSchemas;
    return !too_deep;
  };
  SchemaJson schema = SchemaJson::parse(text, watch, false);
  if (too_deep) return error(Code::unsupported, "the schema is nested too deeply");
  if (schema.is_discarded()) return error(Code::invalid_argument, "the schema is no JSON");
  return schema;
}

}  // namespace

Expected<std::shared_ptr<const Grammar>> schema_grammar(std::string_view json_schema, const BuildLimits& limits) {
  MR_ASSIGN_OR_RETURN(SchemaJson schema, parse_schema(json_schema));
  try {
    return SchemaCompiler(SchemaDocument(std::move(schema)), limits).compile();
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
