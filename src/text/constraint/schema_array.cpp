#include <algorithm>
#include <bit>
#include <cmath>
#include <span>

#include "text/constraint/schema_compiler.h"
#include "text/constraint/schema_items.h"
#include "text/constraint/schema_merge.h"
#include "text/constraint/schema_strings.h"

namespace millrace::text {
namespace {

constexpr std::uint32_t kMostItems = 5000;
constexpr std::size_t kMostConditions = 4;
constexpr std::size_t kMostSubsetValues = 8;
constexpr double kMostFiniteIntegers = 200;

}  // namespace

/// Items one after the other: each count has a state, from which the array may end or go on.
Expected<Fragment> SchemaCompiler::array(const SchemaJson& schema) {
  MR_ASSIGN_OR_RETURN(const std::uint32_t least, schema_count(schema, "minItems", 0, kMostItems));
  MR_ASSIGN_OR_RETURN(std::uint32_t most, schema_count(schema, "maxItems", UINT32_MAX, kMostItems));
  MR_ASSIGN_OR_RETURN(const ItemSchemas schemas, item_schemas(schema));
  MR_ASSIGN_OR_RETURN(const std::vector<Contained> conditions, contained_of(schema));
  // Where a schema lists its first items and says nothing of others, none are added that nothing asks for.
  const bool asks =
      std::any_of(conditions.begin(), conditions.end(), [](const Contained& each) { return each.least > 0; });
  const auto listed = static_cast<std::uint32_t>(schemas.first.size());
  if (listed > 0 && !schemas.says_others && !asks) most = std::min(most, std::max(least, listed));
  const bool unique = schema.value("uniqueItems", SchemaJson(false)) == true && most > 1;
  if (!conditions.empty()) return containing_array(schemas, conditions, {least, most}, unique);
  if (unique && listed == 0) return unique_array(schemas.others, least, most);
  const auto rule = [&](const SchemaJson& item) {
    const OneSpelling spelling(rules_, unique);
    return rule_of(item);
  };
  std::vector<RuleId> items;
  for (const SchemaJson& item : schemas.first) {
    MR_ASSIGN_OR_RETURN(const RuleId made, rule(item));
    items.push_back(made);
  }
  MR_ASSIGN_OR_RETURN(const RuleId others, rule(schemas.others));
  if (!unique) return item_list(items, others, {least, most}, std::nullopt);
  std::vector<std::uint32_t> wanted;
  for (std::size_t i = 0; i < listed; ++i)
    wanted.push_back(texts_wanted(schemas.first[i], std::span(schemas.first).first(i)));
  return item_list(items, others, {least, most}, std::move(wanted));
}

/// How many texts an item has to have, so that one is left to it which none of those before it took.
std::uint32_t SchemaCompiler::texts_wanted(const SchemaJson& item, std::span<const SchemaJson> before) {
  constexpr std::size_t most_compared = 64, most_values = 200;
  const auto all = static_cast<std::uint32_t>(before.size() + 1);
  if (before.size() > most_compared) return all;
  const auto values = finite_values(item);
  if (!values.ok() || values->size() > most_values) return all;
  const auto may_take = [&](const SchemaJson& other) {
    return std::any_of(values->begin(), values->end(), [&](const SchemaJson& value) {
      const auto holds = checker_.holds(value, other);
      return !holds.ok() || *holds;
    });
  };
  return 1 + static_cast<std::uint32_t>(std::count_if(before.begin(), before.end(), may_take));
}

/// `first`, then any number of others. `wanted`: all have to differ; how many texts each of `first` has to have.
Expected<Fragment> SchemaCompiler::item_list(const std::vector<RuleId>& first, RuleId others, Counts count,
                                             const std::optional<std::vector<std::uint32_t>>& wanted) {
  const auto [least, most] = count;
  const bool differ = wanted.has_value();
  const auto item = [&](RuleId rule) { return differ ? builder_.different(rule) : builder_.rule(rule); };
  const StateId end = builder_.new_state();
  Fragment whole = join({builder_.literal("["), rules_.space()});
  const std::uint32_t counted = most == UINT32_MAX ? std::max(least, static_cast<std::uint32_t>(first.size())) : most;
  for (std::uint32_t i = 0; i < counted && !builder_.full(); ++i) {
    if (i >= least) builder_.nothing(whole.end, end);
    if (i > 0) whole = builder_.sequence(whole, comma());
    whole = builder_.sequence(whole, item(i < first.size() ? first[i] : others));
  }
  if (counted >= least) builder_.nothing(whole.end, end);
  if (most == UINT32_MAX) {
    const auto more = [&] { return join({comma(), item(others)}); };
    const Fragment loop = builder_.repeat(0, UINT32_MAX, more);
    const Fragment tail = counted > 0 ? loop : builder_.sequence(item(others), loop);
    builder_.nothing(whole.end, tail.begin);
    builder_.nothing(tail.end, end);
  }
  // An item that has to come finds a text that none of those before it has.
  const auto want = [&](RuleId rule, std::uint32_t texts) {
    const StateId from = builder_.new_state();
    builder_.call_different(from, rule, end);
    builder_.want_different(from, texts);
  };
  const auto listed = static_cast<std::uint32_t>(first.size());
  for (std::uint32_t i = 0; differ && i < std::min(least, listed) && !builder_.full(); ++i)
    want(first[i], (*wanted)[i]);
  if (differ && least > listed) want(others, least);
  return join({{whole.begin, end}, rules_.space(), builder_.literal("]")});
}

/// The items at one place of an array that has to contain some, by which of the conditions they are counted for. An
/// item that is not counted where there is a most is certainly not what is counted there.
Expected<std::vector<SchemaCompiler::ItemKind>> SchemaCompiler::kinds_of_items(
    const SchemaJson& item, std::size_t place, const std::vector<Contained>& conditions) {
  std::vector<ItemKind> kinds;
  for (std::uint32_t counted = 0; counted < 1u << conditions.size(); ++counted) {
    SchemaJson all = SchemaJson::array();
    if (item != true) all.push_back(item);
    bool here = true;
    for (std::size_t c = 0; c < conditions.size(); ++c) {
      const bool counts = ((counted >> c) & 1u) != 0, speaks = conditions[c].speaks_of(place);
      if (counts) all.push_back(conditions[c].schema);
      if (!counts && speaks && conditions[c].binds_most()) all.push_back({{"not", conditions[c].schema}});
      here = here && (speaks || !counts);
    }
    if (!here) continue;
    // As where nothing at all is said of items that differ: lists and objects have many spellings.
    if (item == true && counted == 0 && one_spelling())
      all.push_back({{"type", {"string", "number", "boolean", "null"}}});
    SchemaJson schema = all.empty() ? SchemaJson(true) : SchemaJson{{"allOf", std::move(all)}};
    MR_ASSIGN_OR_RETURN(const RuleId rule, rule_of(schema));
    kinds.push_back({rule, counted, std::move(schema)});
  }
  return kinds;
}

/// A state for each count of items, and of those that each condition has found.
Expected<Fragment> SchemaCompiler::containing_array(const ItemSchemas& items, const std::vector<Contained>& conditions,
                                                    Counts count, bool differ) {
  if (conditions.size() > kMostConditions)
    return error(Code::unsupported, "more than {} conditions of what a list contains are not supported; leave some out",
                 kMostConditions);
  std::size_t places = items.first.size();  // at which items or conditions are others
  std::size_t combinations = 1;
  for (const Contained& each : conditions) {
    if (each.least > each.most) return builder_.either({});
    places = std::max(places, each.last != SIZE_MAX ? each.last : each.first);
    combinations *= each.counted() + 1;
  }
  if (places > kMostItems) return error(Code::unsupported, "lists of more than {} items are not supported", kMostItems);
  std::vector<std::vector<ItemKind>> kinds;  // of the first places, and of those behind them
  for (std::size_t i = 0; i <= places && !builder_.full(); ++i) {
    const OneSpelling spelling(rules_, differ);
    MR_ASSIGN_OR_RETURN(std::vector<ItemKind> here, kinds_of_items(items.at(i), i, conditions));
    kinds.push_back(std::move(here));
  }
  const auto listed = static_cast<std::uint32_t>(places);
  const std::uint32_t counted = count.most == UINT32_MAX ? std::max({count.least, listed, 1u}) : count.most;
  std::vector<std::vector<StateId>> states(counted + 1);
  for (auto& row : states)
    for (std::size_t found = 0; found < combinations && !builder_.full(); ++found) row.push_back(builder_.new_state());
  if (builder_.full()) return builder_.empty();
  const StateId end = builder_.new_state();
  for (std::uint32_t i = 0; i <= counted; ++i)
    for (std::size_t found = 0; found < combinations && !builder_.full(); ++found) {
      StateId from = states[i][found];
      if (i >= count.least && is_found(conditions, found)) builder_.nothing(from, end);
      if (i == counted && count.most != UINT32_MAX) continue;
      if (i > 0) {
        const Fragment separator = comma();
        builder_.nothing(from, separator.begin);
        from = separator.end;
      }
      for (const ItemKind& kind : kinds[std::min(i, listed)])
        if (const auto next = count_found(conditions, found, kind.counted))
          call(from, kind.rule, states[std::min(i + 1, counted)][*next], differ);
    }
  if (differ) want_items(items, conditions, count.least, kinds, end);
  return join({builder_.literal("["), rules_.space(), {states[0][0], end}, rules_.space(), builder_.literal("]")});
}

/// `found` counts each condition's items in the digits of one number: all have enough.
bool SchemaCompiler::is_found(const std::vector<Contained>& conditions, std::size_t found) {
  for (const Contained& each : conditions) {
    if (found % (each.counted() + 1) < each.least) return false;
    found /= each.counted() + 1;
  }
  return true;
}

/// After one more item, which counts for those whose bits are set; none: one of them has all that it counts.
std::optional<std::size_t> SchemaCompiler::count_found(const std::vector<Contained>& conditions, std::size_t found,
                                                       std::uint32_t counted) {
  std::size_t next = found, unit = 1;
  for (const Contained& each : conditions) {
    const std::size_t base = each.counted() + 1;
    const bool counts = (counted & 1u) != 0;
    if (counts && found / unit % base == each.counted()) return std::nullopt;
    if (counts) next += unit;
    unit *= base;
    counted >>= 1;
  }
  return next;
}

/// Items that differ, as many as have to come: each finds a text that none of those before it has. What is counted was
/// counted whenever one of its texts came, so that as many texts as its least are enough.
void SchemaCompiler::want_items(const ItemSchemas& items, const std::vector<Contained>& conditions, std::uint32_t least,
                                const std::vector<std::vector<ItemKind>>& kinds, StateId end) {
  const auto want = [&](std::initializer_list<RuleId> rules, std::uint32_t texts) {
    const StateId from = builder_.new_state();
    for (const RuleId rule : rules) builder_.call_different(from, rule, end);
    builder_.want_different(from, texts);
  };
  const bool any_most =
      std::any_of(conditions.begin(), conditions.end(), [](const Contained& each) { return each.binds_most(); });
  const bool one = conditions.size() == 1;
  std::vector<SchemaJson> before;
  for (std::size_t i = 0; i < kinds.size() && !builder_.full(); ++i) {
    const bool last = i + 1 == kinds.size();
    for (const ItemKind& kind : kinds[i]) {
      std::uint32_t fewest = UINT32_MAX, most = least;  // of what it is counted for
      for (std::size_t c = 0; c < conditions.size(); ++c) {
        if (((kind.counted >> c) & 1u) == 0) continue;
        fewest = std::min(fewest, conditions[c].least);
        most = std::max(most, conditions[c].least);
      }
      std::uint32_t texts = last ? least : texts_wanted(kind.schema, before);
      // With several conditions, some of which have a most, any kind may be all that is left.
      if (last && any_most && !one) texts = most;
      if (kind.counted != 0 && (one || !any_most)) texts = last ? fewest : std::min(texts, fewest);
      if (kind.counted == 0 && one && any_most && kinds[i].size() == 2) {
        // What is counted may come in place of what is not, up to its most; each listed place behind may need one.
        want({kind.rule, kinds[i][1].rule}, last ? least : texts_wanted(items.at(i), before));
        if (last) texts -= std::min(texts, conditions[0].most);
        if (!last && kinds.size() - 1 <= conditions[0].most) texts = 0;
      }
      want({kind.rule}, texts);
    }
    before.push_back(items.at(i));
  }
}

/// A few values have a state for each set of those that have come; others are kept while the text is written.
Expected<Fragment> SchemaCompiler::unique_array(const SchemaJson& items, std::uint32_t least, std::uint32_t most) {
  const auto values = finite_values(items);
  if (!values.ok()) {
    if (values.status().code() != Code::unsupported) return values.status();
    const auto item = [&] {
      const OneSpelling spelling(rules_);
      return rule_of(items);
    };
    MR_ASSIGN_OR_RETURN(const RuleId rule, item());
    return item_list({}, rule, {least, most}, std::vector<std::uint32_t>());
  }
  std::vector<std::string> texts;
  for (const SchemaJson& each : *values) {
    MR_ASSIGN_OR_RETURN(std::string text, spelled(each));
    texts.push_back(std::move(text));
  }
  if (least > texts.size()) return builder_.either({});
  most = std::min(most, static_cast<std::uint32_t>(texts.size()));
  if (texts.size() > kMostSubsetValues) {
    const RuleId rule = builder_.new_rule();
    builder_.define(rule, builder_.one_of(std::move(texts)));
    return item_list({}, rule, {least, most}, std::vector<std::uint32_t>());
  }
  std::vector<RuleId> rules;
  for (const std::string& text : texts) {
    rules.push_back(builder_.new_rule());
    builder_.define(rules.back(), builder_.literal(text));
  }
  const Fragment inside = subsets(rules, least, most);
  return join({builder_.literal("["), rules_.space(), inside, rules_.space(), builder_.literal("]")});
}

/// Values in any order, each at most once: a state for each set of those that have come.
Fragment SchemaCompiler::subsets(const std::vector<RuleId>& values, std::uint32_t least, std::uint32_t most) {
  std::vector<StateId> states;
  for (std::uint32_t taken = 0; taken < 1u << values.size(); ++taken) states.push_back(builder_.new_state());
  const StateId end = builder_.new_state();
  for (std::uint32_t taken = 0; taken < states.size() && !builder_.full(); ++taken) {
    const auto count = static_cast<std::uint32_t>(std::popcount(taken));
    if (count >= least && count <= most) builder_.nothing(states[taken], end);
    if (count >= most) continue;
    StateId from = states[taken];
    if (taken != 0) {
      const Fragment separator = comma();
      builder_.nothing(from, separator.begin);
      from = separator.end;
    }
    for (std::size_t i = 0; i < values.size(); ++i)
      if (((taken >> i) & 1u) == 0) builder_.call(from, values[i], states[taken | (1u << i)]);
  }
  return {states[0], end};
}

/// All values of a schema, each once. Errors: unsupported (they are too many, or without end).
Expected<std::vector<SchemaJson>> SchemaCompiler::finite_values(const SchemaJson& schema, int depth) {
  const auto endless = [] { return error(Code::unsupported, "the schema has too many values to list"); };
  if (depth > 16) return endless();
  std::vector<SchemaJson> values;
  const auto add = [&](const SchemaJson& value) {
    if (std::find(values.begin(), values.end(), value) == values.end()) values.push_back(value);
  };
  MR_ASSIGN_OR_RETURN(const std::vector<SchemaJson> plain, flattener_.flatten(schema));
  for (const SchemaJson& each : plain) {
    if (each.contains("$ref")) {
      MR_ASSIGN_OR_RETURN(const SchemaJson* const target, flattener_.resolve(each["$ref"].get<std::string>()));
      MR_ASSIGN_OR_RETURN(const std::vector<SchemaJson> more, finite_values(*target, depth + 1));
      std::for_each(more.begin(), more.end(), add);
      continue;
    }
    SchemaJson candidates = SchemaJson::array();
    const SchemaJson type = each.value("type", SchemaJson());
    if (each.contains("const") || each.contains("enum")) {
      MR_ASSIGN_OR_RETURN(candidates, values_that_hold(each));
      if (candidates.size() > kMostItems) return endless();
      std::for_each(candidates.begin(), candidates.end(), add);
      continue;
    } else if (type == "boolean") {
      candidates = {true, false};
    } else if (type == "null") {
      candidates.push_back(nullptr);
    } else if (type == "integer" && each.contains("minimum") && each.contains("maximum") &&
               each["minimum"].is_number() && each["maximum"].is_number()) {
      const double low = std::ceil(each["minimum"].get<double>()), high = std::floor(each["maximum"].get<double>());
      if (std::abs(low) > 1e15 || high - low >= kMostFiniteIntegers) return endless();
      const auto last = static_cast<std::int64_t>(high);
      for (auto value = static_cast<std::int64_t>(low); value <= last; ++value) candidates.push_back(value);
    } else {
      return endless();
    }
    for (const SchemaJson& value : candidates) {
      MR_ASSIGN_OR_RETURN(const bool fits, checker_.holds(value, each));
      if (fits) add(value);
    }
  }
  return values;
}

}  // namespace millrace::text
