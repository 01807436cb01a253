// Methods of strings, lists and dicts: "obj.name(...)".
#include <algorithm>
#include <array>

#include "text/jinja/library.h"
#include "text/jinja/run.h"
#include "text/jinja/strings.h"
#include "text/jinja/write.h"

namespace millrace::text::jinja {

namespace {

Value cut(Run& run, const Value& self, Range range) {
  if (range.begin == 0 && range.end == self.text().size()) return self;
  return Value::cut(run.meter(), self.text(), range.begin, range.end);
}

Value cut_all(Run& run, const Value& self, const Vector<Range>& ranges) {
  run.meter().step(ranges.size());
  Values parts(run.meter());
  parts.reserve(ranges.size());
  for (const Range& range : ranges) parts.push_back(cut(run, self, range));
  return Value::list(std::move(parts));
}

Value stripped(Run& run, const Value& self, const Arguments& arguments, bool left, bool right) {
  const Parameters given("strip", arguments, {"chars"});
  run.meter().touch(self.text().size());
  return cut(run, self, strip(self.bytes(), given.string(0), left, right));
}

Value split_method(Run& run, const Value& self, const Arguments& arguments, bool from_right) {
  const Parameters given("split", arguments, {"sep", "maxsplit"});
  const auto separator = given.string(0);
  if (separator && separator->empty()) fail("split needs a separator that is not empty");
  run.meter().touch(self.text().size());
  const std::int64_t most = given.integer(1, -1);
  return cut_all(run, self,
                 from_right ? split_from_right(run.meter(), self.bytes(), separator, most)
                            : split(run.meter(), self.bytes(), separator, most));
}

Value with_case(Run& run, const Value& self, Case to) {
  Builder out(run.meter());
  append_case(out, self.text(), to);
  return out.finish();
}

/// startswith, endswith: a string, or a tuple of them.
Value begins_or_ends(Run& run, const Value& self, const Arguments& arguments, bool begins) {
  const Parameters given(begins ? "startswith" : "endswith", arguments, {"prefix"});
  const auto matches = [&](const Value& value) {
    require_defined(value);
    if (!value.is_string()) fail("startswith and endswith need a string, not a {}", value.type_name());
    const std::string_view text = self.bytes();
    return begins ? text.starts_with(value.bytes()) : text.ends_with(value.bytes());
  };
  const Value& wanted = given.required(0);
  run.meter().step();
  if (!wanted.is_tuple()) return Value::boolean(matches(wanted));
  return Value::boolean(std::any_of(wanted.list().items.begin(), wanted.list().items.end(), matches));
}

Value replace_method(Run& run, const Value& self, const Arguments& arguments) {
  const Parameters given("replace", arguments, {"old", "new", "count"});
  (void)given.required(0), (void)given.required(1);
  (void)given.string(0), (void)given.string(1);
  if (given.set(0) == nullptr || given.set(1) == nullptr) fail("replace needs two strings");
  Builder out(run.meter());
  append_replaced(out, self.text(), given[0]->text(), given[1]->text(), given.integer(2, -1));
  return out.finish();
}

Value join_method(Run& run, const Value& self, const Arguments& arguments) {
  const Parameters given("join", arguments, {"iterable"});
  const Value items = elements(run.meter(), given.required(0));
  Builder out(run.meter());
  bool first = true;
  for (const Value& item : items.list().items) {
    run.meter().step();
    if (!item.is_string()) fail("join needs strings, not a {}", item.type_name());
    if (!std::exchange(first, false)) out.append(self.text());
    out.append(item.text());
  }
  return out.finish();
}

/// find, rfind, index, rindex: the character at which `sub` begins.
Value find_method_of(Run& run, const Value& self, const Arguments& arguments, bool last, bool must) {
  const Parameters given("find", arguments, {"sub"});
  const std::string& text = self.bytes();
  const std::string_view word = given.string(0).value_or("");
  run.meter().touch(text.size());
  std::size_t at = find_text(text, word, 0);
  if (last && word.empty()) at = text.size();
  for (std::size_t next = at; last && !word.empty() && next != std::string::npos;
       next = find_text(text, word, next + 1)) {
    run.meter().step();
    at = next;
  }
  if (at == std::string::npos) {
    if (must) fail("a text does not hold what index() looks for");
    return Value::integer(-1);
  }
  return Value::integer(static_cast<std::int64_t>(count_characters(std::string_view(text).substr(0, at))));
}

Value count_method(Run& run, const Value& self, const Arguments& arguments) {
  const Parameters given("count", arguments, {"sub"});
  const Value& wanted = given.required(0);
  std::int64_t count = 0;
  if (!self.is_string()) {
    for (const Value& item : self.list().items) count += equal(run.meter(), item, wanted) ? 1 : 0;
    return Value::integer(count);
  }
  const std::string_view word = given.string(0).value_or("");
  if (word.empty()) return Value::integer(static_cast<std::int64_t>(count_characters(self.bytes())) + 1);
  run.meter().touch(self.text().size());
  for (auto at = find_text(self.bytes(), word, 0); at != std::string::npos;
       at = find_text(self.bytes(), word, at + word.size())) {
    ++count;
  }
  return Value::integer(count);
}

Value partition(Run& run, const Value& self, const Arguments& arguments, bool last) {
  const Parameters given("partition", arguments, {"sep"});
  const std::string_view word = given.string(0).value_or("");
  if (word.empty()) fail("partition needs a separator");
  const Vector<Range> parts =
      last ? split_from_right(run.meter(), self.bytes(), word, 1) : split(run.meter(), self.bytes(), word, 1);
  const Value nothing = run.make_string("");
  Values three(run.meter());
  if (parts.size() == 2) {
    three = {cut(run, self, parts[0]), *given[0], cut(run, self, parts[1])};
  } else if (last) {
    three = {nothing, nothing, self};
  } else {
    three = {self, nothing, nothing};
  }
  return Value::list(std::move(three), true);
}

Value remove_end(Run& run, const Value& self, const Arguments& arguments, bool front) {
  const Parameters given("removeprefix", arguments, {"affix"});
  const std::string_view word = given.string(0).value_or(""), text = self.bytes();
  if (front ? !text.starts_with(word) : !text.ends_with(word)) return self;
  return cut(run, self, front ? Range{word.size(), text.size()} : Range{0, text.size() - word.size()});
}

template <typename Holds>
Value every_character(const Value& self, const Holds& holds) {
  const std::string& text = self.bytes();
  for (std::size_t at = 0; at < text.size(); at = next_character(text, at)) {
    if (!holds(code_point(text, at))) return Value::boolean(false);
  }
  return Value::boolean(!text.empty());
}

Value padded(Run& run, const Value& self, const Arguments& arguments, char align) {
  const Parameters given("ljust", arguments, {"width", "fillchar"});
  Builder out(run.meter());
  append_padded(out, self.text(), given.integer(0, 0), align, given.string(1).value_or(" "));
  return out.finish();
}

Value zero_filled(Run& run, const Value& self, const Arguments& arguments) {
  const Parameters given("zfill", arguments, {"width"});
  const MarkedText& text = self.text();
  const std::size_t sign = !text.empty() && (text.bytes()[0] == '-' || text.bytes()[0] == '+') ? 1 : 0;
  Builder out(run.meter());
  out.append(text, 0, sign);
  append_padded(out, text.cut(sign, text.size()), given.integer(0, 0) - static_cast<std::int64_t>(sign), '>', "0");
  return out.finish();
}

Value format_method(Run& run, const Value& self, const Arguments& arguments) {
  Builder out(run.meter());
  write_format(run, out, self.text(), arguments);
  return out.finish();
}

Value lines_method(Run& run, const Value& self, const Arguments& arguments) {
  const Parameters given("splitlines", arguments, {"keepends"});
  run.meter().touch(self.text().size());
  return cut_all(run, self, split_lines(run.meter(), self.bytes(), given.flag(0)));
}

Value case_test(Run& run, const Value& self, const char* test) {
  return Value::boolean(apply_test(run, test, self, no_arguments()));
}

#define MR_METHOD [](Run & run, const Value& self, const Arguments& given) -> Value
#define MR_UNUSED (void)run, (void)self, (void)given

constexpr std::array<std::pair<std::string_view, Method>, 38> kOfStrings = {
    {{"strip", MR_METHOD{return stripped(run, self, given, true, true);
}  // namespace
}  // namespace millrace::text::jinja
, {"lstrip", MR_METHOD{return stripped(run, self, given, true, false);
}
}
, {"rstrip", MR_METHOD{return stripped(run, self, given, false, true);
}
}
, {"split", MR_METHOD{return split_method(run, self, given, false);
}
}
, {"rsplit", MR_METHOD{return split_method(run, self, given, true);
}
}
, {"splitlines", lines_method}, {"upper", MR_METHOD{return MR_UNUSED, with_case(run, self, Case::upper);
}
}
, {"lower", MR_METHOD{return MR_UNUSED, with_case(run, self, Case::lower);
}
}
, {"casefold", MR_METHOD{return MR_UNUSED, with_case(run, self, Case::lower);
}
}
, {"title", MR_METHOD{return MR_UNUSED, with_case(run, self, Case::title);
}
}
, {"capitalize", MR_METHOD{return MR_UNUSED, with_case(run, self, Case::capital);
}
}
, {"swapcase", MR_METHOD{return MR_UNUSED, with_case(run, self, Case::swapped);
}
}
, {"startswith", MR_METHOD{return begins_or_ends(run, self, given, true);
}
}
, {"endswith", MR_METHOD{return begins_or_ends(run, self, given, false);
}
}
, {"replace", replace_method}, {"join", join_method},
    {"find", MR_METHOD{return find_method_of(run, self, given, false, false);
}
}
, {"rfind", MR_METHOD{return find_method_of(run, self, given, true, false);
}
}
, {"index", MR_METHOD{return find_method_of(run, self, given, false, true);
}
}
, {"rindex", MR_METHOD{return find_method_of(run, self, given, true, true);
}
}
, {"count", count_method}, {"partition", MR_METHOD{return partition(run, self, given, false);
}
}
, {"rpartition", MR_METHOD{return partition(run, self, given, true);
}
}
, {"removeprefix", MR_METHOD{return remove_end(run, self, given, true);
}
}
, {"removesuffix", MR_METHOD{return remove_end(run, self, given, false);
}
}
, {"isdigit", MR_METHOD{return MR_UNUSED, every_character(self, is_digit);
}
}
, {"isdecimal", MR_METHOD{return MR_UNUSED, every_character(self, is_digit);
}
}
, {"isnumeric", MR_METHOD{return MR_UNUSED, every_character(self, is_digit);
}
}
, {"isalpha", MR_METHOD{return MR_UNUSED, every_character(self, is_letter);
}
}
, {"isalnum", MR_METHOD{return MR_UNUSED, every_character(self, [](char32_t c) { return is_letter(c) || is_digit(c); });
}
}
, {"isspace", MR_METHOD{return MR_UNUSED, every_character(self, is_space);
}
}
, {"isupper", MR_METHOD{return MR_UNUSED, case_test(run, self, "upper");
}
}
, {"islower", MR_METHOD{return MR_UNUSED, case_test(run, self, "lower");
}
}
, {"zfill", zero_filled}, {"format", format_method}, {"center", MR_METHOD{return padded(run, self, given, '^');
}
}
, {"ljust", MR_METHOD{return padded(run, self, given, '<');
}
}
, {"rjust", MR_METHOD{return padded(run, self, given, '>');
}
}
,
}
}
;

Value dict_get(Run& run, const Value& self, const Arguments& arguments) {
  const Parameters given("get", arguments, {"key", "default"});
  const Value& key = given.required(0);
  if (!hashable(key)) fail("a {} cannot be a key", key.type_name());
  const Value* found = self.dict().find(run.meter(), key);
  return found != nullptr ? *found : given[1] != nullptr ? *given[1] : Value::none();
}

enum class Part { keys, values, items };
Value dict_parts(Run& run, const Value& self, const Arguments& arguments, Part part) {
  const Parameters none("items", arguments, {});
  Values parts(run.meter());
  parts.reserve(self.dict().entries.size());
  for (const auto& [key, value] : self.dict().entries) {
    run.meter().step();
    parts.push_back(part == Part::keys ? key : part == Part::values ? value : Value::pair(run.meter(), key, value));
  }
  return Value::list(std::move(parts));
}

Value list_index(Run& run, const Value& self, const Arguments& arguments) {
  const Parameters given("index", arguments, {"value"});
  const auto& items = self.list().items;
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (equal(run.meter(), items[i], given.required(0))) return Value::integer(static_cast<std::int64_t>(i));
  }
  fail("a list does not hold what index() looks for");
}

constexpr std::array<std::pair<std::string_view, Method>, 5> kOfDicts = {
    {{"get", dict_get}, {"keys", MR_METHOD{return dict_parts(run, self, given, Part::keys);
}
}
, {"values", MR_METHOD{return dict_parts(run, self, given, Part::values);
}
}
, {"items", MR_METHOD{return dict_parts(run, self, given, Part::items);
}
}
, {"copy", MR_METHOD{return MR_UNUSED, self;
}
}
,
}
}
;

constexpr std::array<std::pair<std::string_view, Method>, 3> kOfLists = {
    {{"count", count_method}, {"index", list_index}, {"copy", MR_METHOD{return MR_UNUSED, self;
}
}
,
}
}
;

#undef MR_METHOD
#undef MR_UNUSED

template <typename Table>
Method look_up(const Table& table, std::string_view name) {
  for (const auto& [own, method] : table) {
    if (own == name) return method;
  }
  return nullptr;
}

}  // namespace

Method find_method(const Value& self, std::string_view name) {
  switch (self.kind()) {
    case Kind::string:
      return look_up(kOfStrings, name);
    case Kind::dict:
      return look_up(kOfDicts, name);
    case Kind::list:
      return look_up(kOfLists, name);
    case Kind::object:
      return find_loop_method(self, name);
    default:
      return nullptr;
  }
}

}  // namespace millrace::text::jinja
