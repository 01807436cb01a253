#include <unordered_map>

#include "text/constraint/pattern.h"
#include "text/constraint/schema_compiler.h"
#include "text/constraint/schema_strings.h"

namespace millrace::text {
namespace {

constexpr std::uint32_t kMostProperties = 5000;
constexpr std::size_t kMostNameClasses = 64;

SchemaJson all_of_schemas(std::vector<SchemaJson> schemas) {
  return schemas.size() == 1 ? std::move(schemas[0]) : SchemaJson{{"allOf", std::move(schemas)}};
}

}  // namespace

/// Declared properties in the schema's order, then those that are only required.
Expected<std::vector<SchemaCompiler::Property>> SchemaCompiler::properties_of(const SchemaJson& schema) const {
  const SchemaJson declared = schema.value("properties", SchemaJson::object());
  const SchemaJson required = schema.value("required", SchemaJson::array());
  if (!declared.is_object() || !required.is_array())
    return error(Code::invalid_argument, "properties has to be an object and required a list");
  const SchemaJson others = schema.value("additionalProperties", SchemaJson(true));
  std::vector<Property> properties;
  std::unordered_map<std::string, std::size_t> places;
  for (const auto& [name, property] : declared.items()) {
    places.try_emplace(name, properties.size());
    properties.push_back({name, property, false, true});
  }
  for (const SchemaJson& name : required) {
    if (!name.is_string()) return error(Code::invalid_argument, "required has to list names");
    const auto [found, fresh] = places.try_emplace(name.get<std::string>(), properties.size());
    if (!fresh) {
      properties[found->second].required = true;
    } else {
      properties.push_back({name.get<std::string>(), others, true, false});
    }
  }
  return properties;
}

/// What names have to be that are not declared. Where nothing is said of them, none are added to those declared.
SchemaJson SchemaCompiler::others_of(const SchemaJson& schema, const std::vector<Property>& properties) const {
  if (schema.contains("additionalProperties")) return schema["additionalProperties"];
  if (schema.contains("patternProperties")) return false;
  const bool only_forbids = std::all_of(properties.begin(), properties.end(),
                                        [](const Property& each) { return each.schema == false && !each.required; });
  return only_forbids && (!schema.contains("properties") || !properties.empty());
}

/// The names that a schema of names allows.
Expected<RegularSets::Set> SchemaCompiler::names_of(const SchemaJson& schema, int depth) {
  if (depth > 16) return error(Code::unsupported, "propertyNames nests references too deeply");
  MR_ASSIGN_OR_RETURN(const std::vector<SchemaJson> plain, flattener_.flatten(schema));
  std::vector<RegularSets::Set> options;
  for (const SchemaJson& each : plain) {
    if (each.contains("$ref")) {
      MR_ASSIGN_OR_RETURN(const SchemaJson* const target, flattener_.resolve(each["$ref"].get<std::string>()));
      MR_ASSIGN_OR_RETURN(const RegularSets::Set names, names_of(*target, depth + 1));
      options.push_back(names);
      continue;
    }
    bool binds = false;
    MR_RETURN_IF_ERROR(bound_types(each, binds).status());
    MR_ASSIGN_OR_RETURN(const std::vector<std::string> types, types_of(each, {"string"}));
    if (std::find(types.begin(), types.end(), "string") == types.end()) continue;
    if (!each.contains("const") && !each.contains("enum")) {
      MR_ASSIGN_OR_RETURN(const RegularSets::Set names, string_set(sets_, each));
      options.push_back(names);
      continue;
    }
    MR_ASSIGN_OR_RETURN(const SchemaJson values, values_that_hold(each));
    for (const SchemaJson& value : values)
      if (value.is_string()) options.push_back(sets_.literal(value.get<std::string>()));
  }
  return sets_.either(options);
}

/// propertyNames: leaves out what may not be there, and declares all names where they are few.
Status SchemaCompiler::bind_names(const SchemaJson& schema, std::vector<Property>& properties, SchemaJson& others) {
  MR_ASSIGN_OR_RETURN(const RegularSets::Set names, names_of(schema["propertyNames"]));
  for (Property& property : properties)
    if (!sets_.contains(names, property.name)) property = {property.name, false, property.required, true};
  const auto few = finite_values(schema["propertyNames"]);
  if (!few.ok() || others == false) return {};
  for (const SchemaJson& name : *few) {
    const auto is_it = [&](const Property& property) { return name == property.name; };
    if (name.is_string() && std::none_of(properties.begin(), properties.end(), is_it))
      properties.push_back({name.get<std::string>(), others, false, false});
  }
  others = false;
  return {};
}

/// patternProperties of the names that are known.
Status SchemaCompiler::bind_by_patterns(const SchemaJson& schema, std::vector<Property>& properties) {
  const SchemaJson patterns = schema.value("patternProperties", SchemaJson::object());
  if (!patterns.is_object()) return error(Code::invalid_argument, "patternProperties has to be an object");
  std::vector<std::pair<RegularSets::Set, const SchemaJson*>> sets;
  for (const auto& [pattern, bound] : patterns.items()) {
    MR_ASSIGN_OR_RETURN(const RegularSets::Set set, pattern_set(sets_, pattern));
    sets.emplace_back(set, &bound);
  }
  for (Property& property : properties) {
    std::vector<SchemaJson> all;
    if (property.declared) all.push_back(property.schema);
    for (const auto& [set, bound] : sets)
      if (sets_.contains(set, property.name)) all.push_back(*bound);
    if (!all.empty()) property.schema = all_of_schemas(std::move(all));
  }
  return {};
}

Expected<SchemaCompiler::Places> SchemaCompiler::first_places(const SchemaJson& schema,
                                                              const std::vector<Property>& properties, bool open) {
  MR_ASSIGN_OR_RETURN(const std::uint32_t least, schema_count(schema, "minProperties", 0, kMostProperties));
  MR_ASSIGN_OR_RETURN(const std::uint32_t most, schema_count(schema, "maxProperties", UINT32_MAX, kMostProperties));
  Places places;
  // A free name that is written twice counts once: where more than one has to come they are kept apart.
  places.differ = open && least > 1 && (most != UINT32_MAX || least > properties.size() + 1);
  // What all properties together cannot pass is no bound.
  places.bounded = most != UINT32_MAX && (open || most < properties.size());
  const std::uint32_t counted = places.bounded ? most : std::max(least, 1u);
  for (std::uint32_t i = 0; i <= counted && !builder_.full(); ++i) places.states.push_back(builder_.new_state());
  places.pending = builder_.new_state();
  return places;
}

SchemaCompiler::Places SchemaCompiler::next_places(const Places& places) {
  Places next = places;
  for (StateId& state : next.states) state = builder_.new_state();
  return next;
}

/// Behind the comma, if one is needed.
StateId SchemaCompiler::before_member(const Places& places, std::uint32_t count) {
  if (count == 0) return places.states[0];
  const Fragment separator = comma();
  builder_.nothing(places.states[count], separator.begin);
  return separator.end;
}

Status SchemaCompiler::add_member(const Property& property, Places& places) {
  const Fragment key =
      builder_.sequence(builder_.literal(JsonRules::quoted(property.name) + ":"), rules_.optional_blank());
  MR_ASSIGN_OR_RETURN(const Fragment inner, value(property.schema));
  const Fragment member = builder_.sequence(key, inner);
  Places next = next_places(places);
  if (!places.bounded && places.states.size() == 2) {
    add_uncounted(member, property.required, places, next);
    places = next;
    return {};
  }
  const RuleId rule = builder_.new_rule();
  builder_.define(rule, member);
  for (std::uint32_t count = 0; count < places.states.size() && !builder_.full(); ++count) {
    if (!property.required) builder_.nothing(places.states[count], next.states[count]);
    if (places.full(count)) continue;
    builder_.call(before_member(places, count), rule, next.states[places.after(count)]);
  }
  places = next;
  return {};
}

/// One comma for all members that may come next, behind the one before them: optional ones are many, and each has a
/// place of the matcher's while any of them may come.
void SchemaCompiler::add_uncounted(Fragment member, bool required, const Places& places, Places& next) {
  next.pending = builder_.new_state();
  const Fragment separator = comma();
  builder_.nothing(member.end, next.states[1]);
  builder_.nothing(member.end, separator.begin);
  builder_.nothing(separator.end, next.pending);
  for (const StateId from : {places.states[0], places.pending}) builder_.nothing(from, member.begin);
  if (required) return;
  builder_.nothing(places.pending, next.pending);
  for (std::size_t i = 0; i < places.states.size(); ++i) builder_.nothing(places.states[i], next.states[i]);
}

/// Any number of members of free names. Where a name may come twice, only the first counts towards the least.
void SchemaCompiler::add_others(Fragment member, Places& places, std::uint32_t least, StateId end) {
  const RuleId rule = builder_.new_rule();
  builder_.define(rule, member);
  const Places some = next_places(places);
  for (std::uint32_t count = 0; count < places.states.size() && !builder_.full(); ++count) {
    if (!places.full(count)) builder_.call(before_member(places, count), rule, some.states[places.after(count)]);
    if (count > 0 && !some.full(count))
      builder_.call(before_member(some, count), rule,
                    some.states[places.bounded || places.differ ? places.after(count) : count]);
    if (count >= least) builder_.nothing(some.states[count], end);
  }
}

/// Names that are not declared, by which patterns they match.
Expected<std::vector<SchemaCompiler::FreeNames>> SchemaCompiler::free_names(const SchemaJson& schema,
                                                                            const std::vector<Property>& properties) {
  std::vector<RegularSets::Set> declared;
  for (const Property& property : properties) declared.push_back(sets_.literal(property.name));
  RegularSets::Set names = sets_.inverse(sets_.either(declared));
  if (schema.contains("propertyNames")) {
    MR_ASSIGN_OR_RETURN(const RegularSets::Set allowed, names_of(schema["propertyNames"]));
    names = sets_.both({names, allowed});
  }
  std::vector<FreeNames> classes{{names, {}}};
  const SchemaJson patterns = schema.value("patternProperties", SchemaJson::object());
  for (const auto& [pattern, bound] : patterns.items()) {
    MR_ASSIGN_OR_RETURN(const RegularSets::Set match, pattern_set(sets_, pattern));
    MR_ASSIGN_OR_RETURN(const RegularSets::Set no_match, pattern_set(sets_, pattern, true));
    std::vector<FreeNames> split;
    for (const FreeNames& each : classes)
      for (const bool matches : {true, false}) {
        FreeNames part = each;
        part.names = sets_.both({each.names, matches ? match : no_match});
        if (matches) part.schemas.push_back(bound);
        MR_ASSIGN_OR_RETURN(const bool none, sets_.is_nothing(part.names));
        if (!none) split.push_back(std::move(part));
      }
    classes = std::move(split);
    if (classes.size() > kMostNameClasses)
      return error(Code::unsupported, "patternProperties has too many patterns that match the same names");
  }
  return classes;
}

/// One of these names, with its quotes. Names that `differ` have one spelling each.
Expected<Fragment> SchemaCompiler::free_name(const SchemaJson& schema, const FreeNames& names,
                                             const std::vector<Property>& properties, bool differ) {
  const auto name = [&]() -> Expected<Fragment> {
    if (schema.contains("patternProperties") || schema.contains("propertyNames")) {
      MR_ASSIGN_OR_RETURN(const Fragment inside, sets_.fragment(rules_, names.names));
      return quoted(inside);
    }
    std::vector<std::string> declared;
    for (const Property& property : properties) declared.push_back(property.name);
    return declared.empty() ? rules_.string(0, UINT32_MAX) : rules_.string_except(declared);
  };
  if (!differ) return name();
  const OneSpelling spelling(rules_);
  MR_ASSIGN_OR_RETURN(const Fragment text, name());
  const RuleId rule = builder_.new_rule();
  builder_.define(rule, text);
  return builder_.different(rule);
}

/// A member whose name is not declared.
Expected<Fragment> SchemaCompiler::free_member(const SchemaJson& schema, const SchemaJson& others,
                                               const std::vector<Property>& properties, bool differ) {
  std::vector<FreeNames> classes(1);
  if (schema.contains("patternProperties") || schema.contains("propertyNames")) {
    MR_ASSIGN_OR_RETURN(classes, free_names(schema, properties));
  }
  std::vector<Fragment> options;
  for (const FreeNames& each : classes) {
    const SchemaJson bound = each.schemas.empty() ? others : all_of_schemas(each.schemas);
    if (bound == false) continue;
    MR_ASSIGN_OR_RETURN(const Fragment inner, value(bound));
    MR_ASSIGN_OR_RETURN(const Fragment name, free_name(schema, each, properties, differ));
    options.push_back(join({name, builder_.literal(":"), rules_.optional_blank(), inner}));
  }
  return builder_.either(options);
}

/// The matcher follows all optional properties that may come next, and not more than it has places for.
Status SchemaCompiler::check_optional(const std::vector<Property>& properties) {
  constexpr std::size_t most_optional = 2000;
  std::size_t in_a_row = 0;
  for (const Property& property : properties) {
    in_a_row = property.required ? 0 : in_a_row + 1;
    if (in_a_row > most_optional)
      return error(Code::unsupported, "more than {} optional properties stand one after the other; make some required",
                   most_optional);
  }
  return {};
}

Expected<Fragment> SchemaCompiler::object(const SchemaJson& schema) {
  MR_ASSIGN_OR_RETURN(std::vector<Property> properties, properties_of(schema));
  SchemaJson others = others_of(schema, properties);
  bool binds = !properties.empty();
  for (const char* keyword : {"patternProperties", "propertyNames", "minProperties", "maxProperties"})
    binds = binds || schema.contains(keyword);
  if (!binds && others == true && !one_spelling()) return builder_.rule(rules_.any_object());
  if (schema.contains("propertyNames")) MR_RETURN_IF_ERROR(bind_names(schema, properties, others));
  if (schema.contains("patternProperties")) MR_RETURN_IF_ERROR(bind_by_patterns(schema, properties));
  const bool open = others != false || schema.contains("patternProperties");
  if (open && one_spelling())
    return error(Code::unsupported,
                 "uniqueItems over objects whose names are free is not supported; declare their properties, and set "
                 "additionalProperties to false");
  MR_RETURN_IF_ERROR(check_optional(properties));
  const Fragment head = join({builder_.literal("{"), rules_.space()});
  MR_ASSIGN_OR_RETURN(Places places, first_places(schema, properties, open));
  if (builder_.full()) return builder_.empty();
  builder_.nothing(head.end, places.states[0]);
  for (const Property& property : properties) MR_RETURN_IF_ERROR(add_member(property, places));
  MR_ASSIGN_OR_RETURN(const std::uint32_t least, schema_count(schema, "minProperties", 0, kMostProperties));
  const StateId end = builder_.new_state();
  for (std::uint32_t count = least; count < places.states.size(); ++count) builder_.nothing(places.states[count], end);
  if (open) {
    MR_ASSIGN_OR_RETURN(const Fragment member, free_member(schema, others, properties, places.differ));
    const auto required = static_cast<std::uint32_t>(
        std::count_if(properties.begin(), properties.end(), [](const Property& each) { return each.required; }));
    if (places.differ) builder_.want_different(member.begin, least - std::min(least, required));
    add_others(member, places, least, end);
  }
  return join({{head.begin, end}, rules_.space(), builder_.literal("}")});
}

}  // namespace millrace::text
