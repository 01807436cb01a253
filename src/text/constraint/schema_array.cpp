#include <algorithm>
#include <bit>
#include <cmath>

#include "text/constraint/schema_compiler.h"
#include "text/constraint/schema_merge.h"
#include "text/constraint/schema_strings.h"

namespace millrace::text {
namespace {

constexpr std::uint32_t kMostItems = 5000, kMostContained = 100;
constexpr std::size_t kMostSubsetValues = 8;
constexpr double kMostFiniteIntegers = 200;

}  // namespace

/// Items one after the other: each count has a state, from which the array may end or go on.
Expected<Fragment> SchemaCompiler::array(const SchemaJson& schema) {
  MR_ASSIGN_OR_RETURN(const std::uint32_t least, schema_count(schema, "minItems", 0, kMostItems));
  MR_ASSIGN_OR_RETURN(std::uint32_t most, schema_count(schema, "maxItems", UINT32_MAX, kMostItems));
  SchemaJson first = schema.value("prefixItems", SchemaJson::array());
  SchemaJson rest = schema.value("items", schema.value("unevaluatedItems", SchemaJson(true)));
  if (rest.is_array()) {  // as drafts before 2020 wrote it
    first = rest;
    rest = schema.value("additionalItems", SchemaJson(true));
  }
  if (!first.is_array()) return error(Code::invalid_argument, "prefixItems has to be a list of schemas");
  // Where a schema lists its first items and says nothing of others, none are added.
  const bool said = (schema.contains("items") && !schema["items"].is_array()) || schema.contains("additionalItems");
  if (!first.empty() && !said) most = std::min(most, std::max(least, static_cast<std::uint32_t>(first.size())));
  const bool unique = schema.value("uniqueItems", SchemaJson(false)) == true && most > 1;
  const bool contains = schema.contains("contains") &&
                        (schema.value("minContains", SchemaJson(1)) != 0 || schema.contains("maxContains"));
  if (unique && contains && !first.empty())
    return error(Code::unsupported, "uniqueItems, contains and prefixItems together are not supported; leave one out");
  if (contains) return containing_array(schema, {std::move(first), rest}, {least, most}, unique);
  if (unique && first.empty()) return unique_array(rest, least, most);
  const auto rule = [&](const SchemaJson& item) {
    const OneSpelling spelling(rules_, unique);
    return rule_of(item);
  };
  std::vector<RuleId> items;
  for (const SchemaJson& item : first) {
    MR_ASSIGN_OR_RETURN(const RuleId listed, rule(item));
    items.push_back(listed);
  }
  MR_ASSIGN_OR_RETURN(const RuleId others, rule(rest));
  return item_list(items, others, {least, most}, unique ? std::optional(texts_wanted(first)) : std::nullopt);
}

/// How many texts each of these items has to have, so that one is left to it which none before it took.
std::vector<std::uint32_t> SchemaCompiler::texts_wanted(const SchemaJson& items) {
  constexpr std::size_t most_compared = 64;
  std::vector<SchemaJson> values;  // of each item, null where there are too many to list
  std::vector<std::uint32_t> wanted;
  for (const SchemaJson& item : items) {
    const auto listed = values.size() < most_compared ? finite_values(item) : std::vector<SchemaJson>();
    values.push_back(listed.ok() && !listed->empty() ? SchemaJson(*listed) : SchemaJson());
    const auto may_take = [&](const SchemaJson& other) {
      return !other.is_array() || !values.back().is_array() || !common_values(other, values.back()).empty();
    };
    wanted.push_back(1 + static_cast<std::uint32_t>(std::count_if(values.begin(), values.end() - 1, may_take)));
  }
  return wanted;
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

/// The items at one place of an array that has to contain some, and those that are what it has to contain.
Expected<SchemaCompiler::Containing> SchemaCompiler::containing(const SchemaJson& items, const SchemaJson& contained,
                                                                bool counts_all, bool differ) {
  const OneSpelling spelling(rules_, differ);
  const SchemaJson others = {{"allOf", SchemaJson::array({items, {{"not", contained}}})}};
  MR_ASSIGN_OR_RETURN(const RuleId item, rule_of(counts_all ? others : items));
  MR_ASSIGN_OR_RETURN(const RuleId match, rule_of({{"allOf", SchemaJson::array({items, contained})}}));
  return Containing{item, match};
}

/// A state for each count of items and of those that are what the array has to contain. Where these have a most, other
/// items are certainly none of them.
Expected<Fragment> SchemaCompiler::containing_array(const SchemaJson& schema, const Items& items, Counts count,
                                                    bool differ) {
  MR_ASSIGN_OR_RETURN(const std::uint32_t wanted, schema_count(schema, "minContains", 1, kMostContained));
  MR_ASSIGN_OR_RETURN(const std::uint32_t allowed, schema_count(schema, "maxContains", UINT32_MAX, kMostContained));
  if (wanted > allowed) return builder_.either({});
  std::vector<Containing> rules;  // of the first places, and of those behind them
  for (std::size_t i = 0; i <= items.first.size(); ++i) {
    const SchemaJson& here = i < items.first.size() ? items.first[i] : items.others;
    MR_ASSIGN_OR_RETURN(const Containing both, containing(here, schema["contains"], allowed != UINT32_MAX, differ));
    rules.push_back(both);
  }
  const auto call = [&](StateId from, RuleId called, StateId to) {
    if (differ) {
      builder_.call_different(from, called, to);
    } else {
      builder_.call(from, called, to);
    }
  };
  const auto listed = static_cast<std::uint32_t>(items.first.size());
  const std::uint32_t counted = count.most == UINT32_MAX ? std::max({count.least, listed, 1u}) : count.most;
  const std::uint32_t last = allowed == UINT32_MAX ? wanted : allowed;
  std::vector<std::vector<StateId>> states(counted + 1);
  for (auto& row : states)
    for (std::uint32_t found = 0; found <= last && !builder_.full(); ++found) row.push_back(builder_.new_state());
  if (builder_.full()) return builder_.empty();
  const StateId end = builder_.new_state();
  for (std::uint32_t i = 0; i <= counted; ++i)
    for (std::uint32_t found = 0; found <= last && !builder_.full(); ++found) {
      StateId from = states[i][found];
      if (i >= count.least && found >= wanted) builder_.nothing(from, end);
      if (i == counted && count.most != UINT32_MAX) continue;
      if (i > 0) {
        const Fragment separator = comma();
        builder_.nothing(from, separator.begin);
        from = separator.end;
      }
      const std::uint32_t next = std::min(i + 1, counted);
      const Containing& here = rules[std::min(i, listed)];
      call(from, here.item, states[next][found]);
      if (found < last) call(from, here.match, states[next][found + 1]);
    }
  for (const auto& [rule, least] : {std::pair(rules[0].item, count.least), std::pair(rules[0].match, wanted)}) {
    if (!differ) break;
    const StateId from = builder_.new_state();
    call(from, rule, end);
    builder_.want_different(from, least);
  }
  return join({builder_.literal("["), rules_.space(), {states[0][0], end}, rules_.space(), builder_.literal("]")});
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
