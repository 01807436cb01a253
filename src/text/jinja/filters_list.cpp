// Filters of lists, dicts and whatever can be iterated.
#include <algorithm>
#include <array>
#include <numeric>

#include "text/jinja/library.h"
#include "text/jinja/nodes.h"
#include "text/jinja/run.h"
#include "text/jinja/strings.h"
#include "text/jinja/write.h"

namespace millrace::text::jinja {

namespace {

/// item.a.b.0, by the dotted name that attribute= and groupby() take.
Value attribute_of(Run& run, Value item, const Value& path) {
  if (path.is_integral()) return get_item(run, item, path);
  if (!path.is_string()) fail("an attribute must be a string, not a {}", path.type_name());
  for (const Range& part : split(run.meter(), path.bytes(), ".", -1)) {
    const std::string name = path.bytes().substr(part.begin, part.end - part.begin);
    if (item.is_undefined()) return item;
    const bool number = !name.empty() && name.size() < 10 && name.find_first_not_of("0123456789") == std::string::npos;
    item = get_item(run, item, number ? Value::integer(std::stoll(name)) : run.make_string(name));
  }
  return item;
}

Value folded(Run& run, const Value& value, bool case_sensitive) {
  if (case_sensitive || !value.is_string()) return value;
  Builder out(run.meter());
  append_case(out, value.text(), Case::lower);
  return out.finish();
}

/// What each item is ordered or told apart by.
Values keys_of(Run& run, const Values& items, const Value* attribute, bool case_sensitive) {
  Values keys(run.meter());
  keys.reserve(items.size());
  for (const Value& item : items) {
    run.meter().step();
    keys.push_back(folded(run, attribute != nullptr ? attribute_of(run, item, *attribute) : item, case_sensitive));
  }
  return keys;
}

Vector<std::size_t> order_by(Run& run, const Values& keys, bool reversed) {
  Vector<std::size_t> order(keys.size(), run.meter());
  const Held for_sorting(&run.meter(), keys.size() * sizeof(std::size_t));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    const int sign = compare(run.meter(), keys[a], keys[b]);
    return reversed ? sign > 0 : sign < 0;
  });
  return order;
}

Value sorted(Run& run, const Value& value, const Arguments& arguments) {
  const Parameters given("sort", arguments, {"reverse", "case_sensitive", "attribute"});
  const Value list = elements(run.meter(), value);
  const auto& items = list.list().items;
  Values made(run.meter());
  const Value* attribute = given.set(2);
  if (attribute != nullptr && attribute->is_string() && attribute->bytes().find(',') != std::string::npos) {
    fail("sort by several attributes is not supported");
  }
  for (const std::size_t i : order_by(run, keys_of(run, items, attribute, given.flag(1)), given.flag(0))) {
    made.push_back(items[i]);
  }
  return Value::list(std::move(made));
}

Value dict_sorted(Run& run, const Value& value, const Arguments& arguments) {
  const Parameters given("dictsort", arguments, {"case_sensitive", "by", "reverse"});
  require_defined(value);
  if (value.kind() != Kind::dict) fail("dictsort needs a dict, not a {}", value.type_name());
  const std::string_view by = given.string(1).value_or("key");
  if (by != "key" && by != "value") fail("dictsort sorts by 'key' or 'value'");
  Values keys(run.meter());
  for (const auto& [key, item] : value.dict().entries) {
    keys.push_back(folded(run, by == "key" ? key : item, given.flag(0)));
  }
  Values made(run.meter());
  for (const std::size_t i : order_by(run, keys, given.flag(2))) {
    const auto& entry = value.dict().entries[i];
    made.push_back(Value::pair(run.meter(), entry.first, entry.second));
  }
  return Value::list(std::move(made));
}

Value unique(Run& run, const Value& value, const Arguments& arguments) {
  const Parameters given("unique", arguments, {"case_sensitive", "attribute"});
  const Value list = elements(run.meter(), value);
  const auto& items = list.list().items;
  const Values keys = keys_of(run, items, given.set(1), given.flag(0));
  Values made(run.meter()), seen(run.meter());
  for (std::size_t i = 0; i < items.size(); ++i) {
    const bool known =
        std::any_of(seen.begin(), seen.end(), [&](const Value& key) { return equal(run.meter(), key, keys[i]); });
    if (known) continue;
    seen.push_back(keys[i]);
    made.push_back(items[i]);
  }
  return Value::list(std::move(made));
}

Value extreme(Run& run, const Value& value, const Arguments& arguments, bool largest) {
  const Parameters given(largest ? "max" : "min", arguments, {"case_sensitive", "attribute"});
  const Value list = elements(run.meter(), value);
  const auto& items = list.list().items;
  if (items.empty()) return Value::undefined(run.meter(), "an empty list has no least or greatest item");
  const Values keys = keys_of(run, items, given.set(1), given.flag(0));
  std::size_t best = 0;
  for (std::size_t i = 1; i < items.size(); ++i) {
    const int sign = compare(run.meter(), keys[i], keys[best]);
    if (largest ? sign > 0 : sign < 0) best = i;
  }
  return items[best];
}

Value sum(Run& run, const Value& value, const Arguments& arguments) {
  const Parameters given("sum", arguments, {"attribute", "start"});
  const Value list = elements(run.meter(), value);
  Value total = given[1] != nullptr ? *given[1] : Value::integer(0);
  for (const Value& item : list.list().items) {
    run.meter().step();
    total = calculate(run, Operator::add, total, given.set(0) ? attribute_of(run, item, *given.set(0)) : item);
  }
  return total;
}

Value group_by(Run& run, const Value& value, const Arguments& arguments) {
  const Parameters given("groupby", arguments, {"attribute", "default", "case_sensitive"});
  const Value list = elements(run.meter(), value);
  const auto& items = list.list().items;
  Values labels(run.meter()), keys(run.meter());
  for (const Value& item : items) {
    Value label = attribute_of(run, item, given.required(0));
    if (label.is_undefined() && given.set(1) != nullptr) label = *given.set(1);
    keys.push_back(folded(run, label, given.flag(2)));
    labels.push_back(std::move(label));
  }
  const Vector<std::size_t> order = order_by(run, keys, false);
  Values groups(run.meter());
  for (std::size_t begin = 0; begin < order.size();) {
    Values members(run.meter());
    std::size_t end = begin;
    for (; end < order.size() && equal(run.meter(), keys[order[begin]], keys[order[end]]); ++end) {
      members.push_back(items[order[end]]);
    }
    groups.push_back(Value::pair(run.meter(), labels[order[begin]], Value::list(std::move(members))));
    begin = end;
  }
  return Value::list(std::move(groups));
}

Value batch(Run& run, const Value& value, const Arguments& arguments) {
  const Parameters given("batch", arguments, {"linecount", "fill_with"});
  (void)given.required(0);
  const std::int64_t size = given.integer(0, 1);
  if (size <= 0) fail("batch needs a size of 1 or more");
  const Value list = elements(run.meter(), value);
  const auto& items = list.list().items;
  Values rows(run.meter()), row(run.meter());
  for (const Value& item : items) {
    row.push_back(item);
    if (static_cast<std::int64_t>(row.size()) == size) {
      rows.push_back(Value::list(std::exchange(row, Values(run.meter()))));
    }
  }
  if (!row.empty()) {
    while (given.set(1) != nullptr && static_cast<std::int64_t>(row.size()) < size) {
      run.meter().step();
      row.push_back(*given.set(1));
    }
    rows.push_back(Value::list(std::move(row)));
  }
  return Value::list(std::move(rows));
}

Value slice(Run& run, const Value& value, const Arguments& arguments) {
  const Parameters given("slice", arguments, {"slices", "fill_with"});
  (void)given.required(0);
  const std::int64_t count = given.integer(0, 1);
  if (count <= 0) fail("slice needs a count of 1 or more");
  const Value list = elements(run.meter(), value);
  const auto& items = list.list().items;
  const auto size = static_cast<std::int64_t>(items.size()), each = size / count, larger = size % count;
  Values columns(run.meter());
  std::int64_t at = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    run.meter().step();
    const std::int64_t end = at + each + (i < larger ? 1 : 0);
    Values column(items.begin() + at, items.begin() + end, run.meter());
    if (given.set(1) != nullptr && i >= larger && larger > 0) column.push_back(*given.set(1));
    columns.push_back(Value::list(std::move(column)));
    at = end;
  }
  return Value::list(std::move(columns));
}

Value join(Run& run, const Value& value, const Arguments& arguments) {
  const Parameters given("join", arguments, {"d", "attribute"});
  const Value list = elements(run.meter(), value);
  const Value between = given[0] != nullptr ? to_str(run.meter(), *given[0]) : run.make_string("");
  Builder out(run.meter());
  bool first = true;
  for (const Value& item : list.list().items) {
    run.meter().step();
    if (!std::exchange(first, false)) out.append(between.text());
    write_str(out, given.set(1) != nullptr ? attribute_of(run, item, *given.set(1)) : item);
  }
  return out.finish();
}

Value reversed(Run& run, const Value& value, const Arguments&) {
  require_defined(value);
  const Value& of = value.is_string() ? value : elements(run.meter(), value);
  return get_slice(run.meter(), of, Value::none(), Value::none(), Value::integer(-1));
}

Value first_or_last(Run& run, const Value& value, bool first) {
  const Value list = elements(run.meter(), value);
  const auto& items = list.list().items;
  if (items.empty()) return Value::undefined(run.meter(), "an empty list has no first or last item");
  return first ? items.front() : items.back();
}

/// The arguments after the first `count`.
Arguments rest(Run& run, const Arguments& arguments, std::size_t count) {
  Arguments made(&run.meter());
  for (std::size_t i = count; i < arguments.positional.size(); ++i) made.positional.push_back(arguments.positional[i]);
  made.named = arguments.named;
  return made;
}

const std::string& name_of(const Arguments& arguments, std::size_t index, const char* filter) {
  if (index >= arguments.positional.size() || !arguments.positional[index].is_string()) {
    fail("{} needs the name of what to use", filter);
  }
  return arguments.positional[index].bytes();
}

Value map(Run& run, const Value& value, const Arguments& arguments) {
  Values made(run.meter());
  // jinja2 asks `if value` before it iterates: none and 0 give nothing, too.
  if (!value.truth()) return Value::list(std::move(made));
  const Value list = elements(run.meter(), value);
  if (arguments.positional.empty()) {
    const Parameters given("map", arguments, {"attribute", "default"});
    for (const Value& item : list.list().items) {
      Value found = attribute_of(run, item, given.required(0));
      if (found.is_undefined() && given[1] != nullptr) found = *given[1];
      made.push_back(std::move(found));
    }
    return Value::list(std::move(made));
  }
  const std::string& filter = name_of(arguments, 0, "map");
  const Arguments more = rest(run, arguments, 1);
  for (const Value& item : list.list().items) {
    run.meter().step();
    made.push_back(apply_filter(run, filter, item, more));
  }
  return Value::list(std::move(made));
}

/// select, reject, selectattr, rejectattr.
Value selected(Run& run, const Value& value, const Arguments& arguments, bool keep, bool by_attribute) {
  if (!value.truth()) return Value::list(Values(run.meter()));
  const Value list = elements(run.meter(), value);
  const std::size_t skip = by_attribute ? 1 : 0;
  if (by_attribute && arguments.positional.empty()) fail("selectattr and rejectattr need an attribute's name");
  const Arguments more = rest(run, arguments, skip + 1);
  Values made(run.meter());
  for (const Value& item : list.list().items) {
    run.meter().step();
    const Value tested = by_attribute ? attribute_of(run, item, arguments.positional[0]) : item;
    const bool holds = arguments.positional.size() > skip
                           ? apply_test(run, name_of(arguments, skip, "select"), tested, more)
                           : tested.truth();
    if (holds == keep) made.push_back(item);
  }
  return Value::list(std::move(made));
}

Value with_default(Run&, const Value& value, const Arguments& arguments) {
  const Parameters given("default", arguments, {"default_value", "boolean"});
  if (!value.is_undefined() && (!given.flag(1) || value.truth())) return value;
  return given[0] != nullptr ? *given[0] : Value::string(nullptr, "", true);
}

Value attr(Run& run, const Value& value, const Arguments& arguments) {
  const Parameters given("attr", arguments, {"name"});
  require_defined(value);
  if (value.kind() == Kind::dict) return Value::undefined(run.meter(), "a dict's items are no attributes");
  (void)given.required(0);
  return get_attribute(run, value, given.string(0).value_or(""));
}

Value items_of(Run& run, const Value& value, const Arguments&) {
  if (value.is_undefined()) return Value::list(Values(run.meter()));
  if (value.kind() != Kind::dict) fail("items needs a dict, not a {}", value.type_name());
  return find_method(value, "items")(run, value, no_arguments());
}

#define MR_FILTER [](Run & run, const Value& value, const Arguments& given) -> Value

constexpr std::array<std::pair<std::string_view, Filter>, 25> kListFilters = {
    {{"length", MR_FILTER{return (void)given, Value::integer(length(run.meter(), value));
}  // namespace
}  // namespace millrace::text::jinja
, {"count", MR_FILTER{return (void)given, Value::integer(length(run.meter(), value));
}
}
, {"first", MR_FILTER{return (void)given, first_or_last(run, value, true);
}
}
, {"last", MR_FILTER{return (void)given, first_or_last(run, value, false);
}
}
, {"list", MR_FILTER{(void)given;
const Value list = elements(run.meter(), value);
return list.is_tuple() ? Value::list(list.list().items) : list;
}
}
, {"join", join}, {"sort", sorted}, {"dictsort", dict_sorted}, {"unique", unique},
    {"min", MR_FILTER{return extreme(run, value, given, false);
}
}
, {"max", MR_FILTER{return extreme(run, value, given, true);
}
}
, {"sum", sum}, {"groupby", group_by}, {"batch", batch}, {"slice", slice}, {"reverse", reversed}, {"map", map},
    {"select", MR_FILTER{return selected(run, value, given, true, false);
}
}
, {"reject", MR_FILTER{return selected(run, value, given, false, false);
}
}
, {"selectattr", MR_FILTER{return selected(run, value, given, true, true);
}
}
, {"rejectattr", MR_FILTER{return selected(run, value, given, false, true);
}
}
, {"default", with_default}, {"d", with_default}, {"attr", attr}, {"items", items_of},
}
}
;

#undef MR_FILTER

}  // namespace

Filter find_list_filter(std::string_view name) {
  for (const auto& [own, filter] : kListFilters) {
    if (own == name) return filter;
  }
  return nullptr;
}

}  // namespace millrace::text::jinja
