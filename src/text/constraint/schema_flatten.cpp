#include "text/constraint/schema_flatten.h"

#include <algorithm>

#include "text/constraint/schema_apart.h"
#include "text/constraint/schema_merge.h"
#include "text/constraint/schema_negate.h"

namespace millrace::text {
namespace {

constexpr int kMostFlattenDepth = 200, kMostProduced = 50'000;
constexpr std::size_t kMostWork = 5'000'000, kMostBranches = 2000;

Status too_deep() { return error(Code::unsupported, "the schema nests references and combinations too deeply"); }

/// How much there is to copy: values in values, up to `most`.
std::size_t size_of(const SchemaJson& schema, std::size_t most) {
  std::size_t size = 1;
  if (schema.is_string()) size += schema.get_ref<const std::string&>().size() / 64;
  if (schema.is_structured())
    for (auto each = schema.begin(); each != schema.end() && size < most; ++each) size += size_of(*each, most - size);
  return size;
}

/// $dynamicRef and $recursiveRef mean what $ref does, once the document has settled what that is.
Expected<SchemaJson> with_plain_references(SchemaJson schema) {
  for (const char* keyword : {"$ref", "$dynamicRef", "$recursiveRef"}) {
    if (!schema.is_object() || !schema.contains(keyword)) continue;
    const SchemaJson said = schema[keyword];
    if (!said.is_string()) return error(Code::invalid_argument, "'{}' has to be a string", keyword);
    if (keyword == std::string_view("$ref")) continue;
    schema.erase(keyword);
    if (!schema.contains("$ref")) {
      schema["$ref"] = said;
    } else {
      schema["allOf"].push_back(SchemaJson{{"$ref", said}});
    }
  }
  return schema;
}

/// Nothing but annotations.
bool says_nothing(const SchemaJson& schema) {
  return std::all_of(schema.items().begin(), schema.items().end(),
                     [](const auto& item) { return is_annotation(item.key()); });
}

bool speaks_of_unevaluated(const SchemaJson& schema) {
  return schema.is_object() && (schema.contains("unevaluatedProperties") || schema.contains("unevaluatedItems"));
}

/// Whether it may say of properties or items that they are evaluated.
bool may_evaluate(const SchemaJson& schema) {
  if (!schema.is_object()) return false;
  for (const auto& [keyword, value] : schema.items()) {
    const SchemaKeyword* const known = schema_keyword(keyword);
    if (known != nullptr ? known->evaluates : !is_annotation(keyword)) return true;
  }
  return false;
}

/// Of a plain schema, beside which nothing more will stand: what unevaluatedProperties and unevaluatedItems mean in it,
/// and properties that they do not see. Items that `contains` speaks of are evaluated, or are not before 2020.
SchemaJson settled(SchemaJson plain, bool contains_evaluates) {
  const auto replace = [&](const char* keyword, const char* by) {
    if (!plain.contains(keyword)) return;
    SchemaJson said = plain[keyword];
    plain.erase(keyword);
    if (!plain.contains(by)) plain[by] = std::move(said);
  };
  if (contains_evaluates && plain.contains("unevaluatedItems")) {
    SchemaJson seen = SchemaJson::array({plain["unevaluatedItems"]});
    if (plain.contains("contains")) seen.push_back(plain["contains"]);
    for (const SchemaJson& more : plain.value(kContained, SchemaJson::array()))
      if (!more.contains("unseen")) seen.push_back(more.at("contains"));
    if (seen.size() > 1) plain["unevaluatedItems"] = SchemaJson{{"anyOf", std::move(seen)}};
  }
  replace("unevaluatedProperties", "additionalProperties");
  replace("unevaluatedItems", plain.value("items", SchemaJson()).is_array() ? "additionalItems" : "items");
  if (!plain.contains(kUnseenProperties)) return plain;
  const SchemaJson unseen = plain[kUnseenProperties], others = plain.value("additionalProperties", SchemaJson(true));
  plain.erase(kUnseenProperties);
  for (const auto& [name, bound] : unseen.items()) {
    SchemaJson& properties = plain["properties"];
    properties[name] = both_schemas(bound, properties.contains(name) ? properties[name] : others);
  }
  return plain;
}

}  // namespace

/// The schema with what its $ref means merged in.
Expected<SchemaJson> Flattener::without_reference(const SchemaJson& schema, int depth) const {
  MR_ASSIGN_OR_RETURN(SchemaJson current, with_plain_references(schema));
  for (; current.is_object() && current.contains("$ref"); ++depth) {
    if (depth > kMostFlattenDepth) return too_deep();
    MR_ASSIGN_OR_RETURN(const SchemaJson* const target, resolve(current["$ref"].get<std::string>()));
    SchemaJson reference{{"$ref", current["$ref"]}};
    current.erase("$ref");
    if (speaks_of_unevaluated(*target) && !says_nothing(current)) {
      if (!current.value("allOf", SchemaJson::array()).is_array())
        return error(Code::invalid_argument, "allOf has to be a list of schemas");
      current["allOf"].push_back(std::move(reference));
      break;
    }
    MR_ASSIGN_OR_RETURN(const SchemaJson meant, with_plain_references(*target));
    MR_ASSIGN_OR_RETURN(current, merge_schemas(meant, current));
  }
  return current;
}

Expected<std::vector<SchemaJson>> Flattener::negated(const SchemaJson& schema, int depth) const {
  MR_ASSIGN_OR_RETURN(const SchemaJson whole, without_reference(schema, depth));
  return negated_schemas(whole);
}

Expected<std::vector<SchemaJson>> Flattener::on_its_own(const SchemaJson& schema, const SchemaJson& beside, int depth) {
  if (!speaks_of_unevaluated(schema)) return std::vector<SchemaJson>{schema};
  if (beside.contains("unevaluatedProperties") && !schema.contains("unevaluatedProperties"))
    return error(Code::unsupported, "unevaluatedItems beneath unevaluatedProperties is not supported; use items");
  MR_ASSIGN_OR_RETURN(const std::vector<SchemaJson> flat, flatten(schema, depth + 1));
  std::vector<SchemaJson> whole;
  for (const SchemaJson& each : flat) {
    MR_ASSIGN_OR_RETURN(SchemaJson plain, without_reference(each, depth));
    whole.push_back(std::move(plain));
  }
  return whole;
}

/// One of the options, and what the schema says beside them.
Expected<std::vector<SchemaJson>> Flattener::any_of(const SchemaJson& beside, const std::vector<SchemaJson>& options,
                                                    int depth) {
  const bool alone = says_nothing(beside);
  std::vector<SchemaJson> result;
  const auto add = [&](const SchemaJson& whole) -> Status {
    MR_ASSIGN_OR_RETURN(std::vector<SchemaJson> flat, flatten(whole, depth + 1));
    std::move(flat.begin(), flat.end(), std::back_inserter(result));
    return {};
  };
  for (const SchemaJson& option : options) {
    if (alone) {
      MR_RETURN_IF_ERROR(add(option));
      continue;
    }
    MR_ASSIGN_OR_RETURN(const SchemaJson plain, without_reference(option, depth));
    MR_ASSIGN_OR_RETURN(const std::vector<SchemaJson> parts, on_its_own(plain, beside, depth));
    for (const SchemaJson& part : parts) {
      MR_ASSIGN_OR_RETURN(const SchemaJson whole, merge_schemas(beside, part));
      MR_RETURN_IF_ERROR(add(whole));
    }
  }
  return result;
}

/// Properties whose values tell the schemas (plain) apart, once they have to be there; none: there are not enough of
/// them. `a` and `b` may hold at once.
Expected<std::set<std::string>> Flattener::tags_between(const std::vector<SchemaJson>& a,
                                                        const std::vector<SchemaJson>& b) const {
  std::set<std::string> tags;
  for (const SchemaJson& x : a)
    for (const SchemaJson& y : b) {
      if (is_disjoint(x, y)) continue;
      const SchemaJson own = x.value("properties", SchemaJson::object()),
                       others = y.value("properties", SchemaJson::object());
      bool found = false;
      for (auto each = own.items().begin(); each != own.items().end() && !found; ++each) {
        if (!others.contains(each.key())) continue;
        MR_ASSIGN_OR_RETURN(const SchemaJson one, without_reference(each.value(), 0));
        MR_ASSIGN_OR_RETURN(const SchemaJson other, without_reference(others[each.key()], 0));
        found = no_common_value(limits_of(one), limits_of(other));
        if (found) tags.insert(each.key());
      }
      if (!found) return std::set<std::string>();
    }
  return tags;
}

/// Of branches that may both hold: one, with properties that tell it from the others, or else none of the others.
Expected<std::vector<SchemaJson>> Flattener::one_of(const SchemaJson& schema, int depth) {
  SchemaJson beside = schema;
  beside.erase("oneOf");
  const std::vector<SchemaJson> branches(schema["oneOf"].begin(), schema["oneOf"].end());
  if (branches.size() > kMostBranches)
    return error(Code::unsupported, "oneOf has {} branches; {} are the most; use anyOf, or an enum", branches.size(),
                 kMostBranches);
  std::vector<std::vector<SchemaJson>> flats, whole;
  for (const SchemaJson& branch : branches) {
    MR_ASSIGN_OR_RETURN(std::vector<SchemaJson> flat, any_of(beside, {branch}, depth));
    whole.emplace_back();
    for (const SchemaJson& each : flat) {
      MR_ASSIGN_OR_RETURN(SchemaJson plain, without_reference(each, 0));
      whole.back().push_back(std::move(plain));
    }
    flats.push_back(std::move(flat));
  }
  std::vector<SchemaJson> result;
  for (std::size_t i = 0; i < branches.size(); ++i) {
    SchemaJson others = SchemaJson::array();
    std::set<std::string> tags;
    for (std::size_t j = 0; j < branches.size(); ++j) {
      if (i == j || are_disjoint(whole[i], whole[j])) continue;
      MR_ASSIGN_OR_RETURN(const std::set<std::string> between, tags_between(whole[i], whole[j]));
      if (between.empty()) others.push_back(negation(branches[j]));
      tags.insert(between.begin(), between.end());
    }
    if (others.empty() && tags.empty()) {
      result.insert(result.end(), flats[i].begin(), flats[i].end());
      continue;
    }
    if (!tags.empty()) others.insert(others.begin(), SchemaJson{{"type", "object"}, {"required", tags}});
    others.insert(others.begin(), branches[i]);
    auto exactly = any_of(beside, {SchemaJson{{"allOf", others}}}, depth + 1);
    if (!exactly.ok())
      return error(Code::unsupported,
                   "oneOf with branches that may both hold ({}); give them different types, or a property of "
                   "different constants, or use anyOf",
                   exactly.status().message());
    std::move(exactly->begin(), exactly->end(), std::back_inserter(result));
  }
  return result;
}

/// Properties and items count as evaluated where a schema holds, not where it does not: not even in `not` of `not`, or
/// in what else has to hold where `denied` does not.
Status Flattener::check_nots(const SchemaJson& beside, const SchemaJson& denied, int depth) const {
  if (!speaks_of_unevaluated(beside)) return {};
  MR_ASSIGN_OR_RETURN(const SchemaJson whole, without_reference(denied, depth));
  if (!whole.is_object()) return {};
  for (const char* keyword : {"not", "if", "oneOf"}) {
    const SchemaJson holding = as_list(whole.value(keyword, SchemaJson::array()));
    if (std::any_of(holding.begin(), holding.end(), may_evaluate))
      return error(Code::unsupported, "'{}' in 'not' beside unevaluatedProperties or unevaluatedItems is not supported",
                   keyword);
  }
  return {};
}

/// False: certainly not.
bool Flattener::may_hold(const SchemaJson& beside, const SchemaJson& option, int depth) const {
  const auto plain = without_reference(option, depth);
  const auto whole = plain.ok() ? merge_schemas(beside, *plain) : plain;
  return !whole.ok() || (*whole != false && !is_hopeless(*whole));
}

Expected<std::vector<SchemaJson>> Flattener::conditional(const SchemaJson& schema, int depth) {
  SchemaJson beside = schema;
  for (const char* keyword : {"if", "then", "else"}) beside.erase(keyword);
  if (!schema.contains("if")) return flatten(beside, depth + 1);  // without if the others say nothing
  const SchemaJson then = schema.value("then", SchemaJson(true)), otherwise = schema.value("else", SchemaJson(true));
  if (then == true && otherwise == true) return flatten(beside, depth + 1);
  MR_RETURN_IF_ERROR(check_nots(beside, schema["if"], depth));
  std::vector<SchemaJson> options;
  if (!may_hold(beside, schema["if"], depth)) return any_of(beside, {otherwise}, depth);
  options.push_back(both_schemas(schema["if"], then));
  MR_ASSIGN_OR_RETURN(const std::vector<SchemaJson> others, negated(schema["if"], depth));
  for (const SchemaJson& other : others)
    if (may_hold(beside, other, depth)) options.push_back(both_schemas(other, otherwise));
  return any_of(beside, options, depth);
}

/// dependentRequired, dependentSchemas, and dependencies, which was both before 2019: a property is not there, or what
/// it brings along is.
Expected<std::vector<SchemaJson>> Flattener::dependent(const SchemaJson& schema, const char* keyword, int depth) {
  if (!schema[keyword].is_object()) return error(Code::invalid_argument, "{} has to be an object", keyword);
  SchemaJson beside = schema;
  beside.erase(keyword);
  if (schema[keyword].empty()) return flatten(beside, depth + 1);
  const auto first = schema[keyword].items().begin();
  const std::string& name = first.key();
  SchemaJson brought = first.value();
  if (brought.is_string()) brought = SchemaJson::array({brought});  // as draft 3 has it
  if (brought.is_array()) brought = SchemaJson{{"required", brought}};
  SchemaJson rest = schema[keyword];
  rest.erase(name);
  if (!rest.empty()) beside[keyword] = rest;
  const SchemaJson there{{"required", SchemaJson::array({name})}};
  return any_of(beside, {negation(there), SchemaJson{{"allOf", SchemaJson::array({there, brought})}}}, depth);
}

Expected<std::vector<SchemaJson>> Flattener::all_of(const SchemaJson& schema, int depth) {
  SchemaJson whole = schema;
  whole.erase("allOf");
  for (const SchemaJson& part : schema["allOf"]) {
    MR_ASSIGN_OR_RETURN(const SchemaJson plain, without_reference(part, depth));
    MR_ASSIGN_OR_RETURN(const std::vector<SchemaJson> options, on_its_own(plain, schema, depth));
    const SchemaJson option = options.empty() ? SchemaJson(false) : SchemaJson{{"anyOf", options}};
    MR_ASSIGN_OR_RETURN(whole, merge_schemas(whole, options.size() == 1 ? options[0] : option));
  }
  return flatten(whole, depth + 1);
}

Expected<std::vector<SchemaJson>> Flattener::flatten(const SchemaJson& schema, int depth) {
  if (depth > kMostFlattenDepth) return too_deep();
  work_ += size_of(schema, kMostWork);
  if ((depth > 0 && ++produced_ > kMostProduced) || work_ > kMostWork)
    return error(Code::unsupported,
                 "the schema's combinations come to too many once they are written out; use fewer or smaller ones");
  if (schema == false) return std::vector<SchemaJson>();
  if (schema == true) return std::vector<SchemaJson>{SchemaJson::object()};
  if (!schema.is_object()) return error(Code::invalid_argument, "a schema has to be an object or a boolean");
  if (schema.value("type", SchemaJson()) == SchemaJson::array()) return std::vector<SchemaJson>();
  if (schema.contains("$dynamicRef") || schema.contains("$recursiveRef")) {
    MR_ASSIGN_OR_RETURN(const SchemaJson plain, with_plain_references(schema));
    return flatten(plain, depth + 1);
  }
  if (schema.contains("$ref")) {
    const bool alone = std::all_of(schema.items().begin(), schema.items().end(),
                                   [](const auto& item) { return item.key() == "$ref" || is_annotation(item.key()); });
    if (alone) return std::vector<SchemaJson>{SchemaJson{{"$ref", schema["$ref"]}}};
    MR_ASSIGN_OR_RETURN(const SchemaJson whole, without_reference(schema, depth));
    return flatten(whole, depth + 1);
  }
  // An empty list is none by the draft, but Zod writes such an anyOf, which nothing fulfils.
  for (const char* keyword : {"allOf", "anyOf", "oneOf"})
    if (schema.contains(keyword) && !schema[keyword].is_array())
      return error(Code::invalid_argument, "{} has to be a list of schemas", keyword);
  // allOf last: what stands in it then meets a schema without combinations.
  if (schema.contains("if") || schema.contains("then") || schema.contains("else")) return conditional(schema, depth);
  for (const char* keyword : {"dependentRequired", "dependentSchemas", "dependencies"})
    if (schema.contains(keyword)) return dependent(schema, keyword, depth);
  if (schema.contains("not")) {
    MR_RETURN_IF_ERROR(check_nots(schema, schema["not"], depth));
    MR_ASSIGN_OR_RETURN(const std::vector<SchemaJson> options, negated(schema["not"], depth));
    SchemaJson beside = schema;
    beside.erase("not");
    return any_of(beside, options, depth);
  }
  if (schema.contains("anyOf")) {
    SchemaJson beside = schema;
    beside.erase("anyOf");
    return any_of(beside, {schema["anyOf"].begin(), schema["anyOf"].end()}, depth);
  }
  if (schema.contains("oneOf")) return one_of(schema, depth);
  if (schema.contains("allOf")) return all_of(schema, depth);
  return std::vector<SchemaJson>{settled(schema, !document_.is_old())};
}

}  // namespace millrace::text
