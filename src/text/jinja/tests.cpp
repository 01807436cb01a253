// `x is NAME`.
#include <array>
#include <utility>

#include "text/jinja/library.h"
#include "text/jinja/run.h"
#include "text/jinja/strings.h"

namespace millrace::text::jinja {

namespace {

const Value& operand(const Arguments& arguments) {
  if (arguments.positional.size() != 1 || !arguments.named.empty()) fail("a test needs one value to compare with");
  return arguments.positional[0];
}

std::int64_t whole(const Value& value) {
  require_defined(value);
  if (!value.is_integral()) fail("a test needs a whole number, not a {}", value.type_name());
  return value.integer();
}

/// Every letter of the case asked for, and one at least.
bool has_case(Run& run, const Value& value, bool upper) {
  const Value text = value.is_string() ? value : apply_filter(run, "string", value, no_arguments());
  bool any = false;
  for (std::size_t at = 0; at < text.bytes().size(); at = next_character(text.bytes(), at)) {
    const char32_t c = code_point(text.bytes(), at);
    if (upper ? is_lower(c) : is_upper(c)) return false;
    any = any || (upper ? is_upper(c) : is_lower(c));
  }
  return any;
}

#define MR_TEST [](Run & run, const Value& value, const Arguments& given) -> bool
#define MR_UNUSED (void)run, (void)value, (void)given

constexpr std::array<std::pair<std::string_view, Test>, 39> kTests = {
    {{"defined", MR_TEST{return MR_UNUSED, !value.is_undefined();
}  // namespace
}  // namespace millrace::text::jinja
, {"undefined", MR_TEST{return MR_UNUSED, value.is_undefined();
}
}
, {"none", MR_TEST{return MR_UNUSED, value.is_none();
}
}
, {"boolean", MR_TEST{return MR_UNUSED, value.kind() == Kind::boolean;
}
}
, {"true", MR_TEST{return MR_UNUSED, value.kind() == Kind::boolean&& value.truth();
}
}
, {"false", MR_TEST{return MR_UNUSED, value.kind() == Kind::boolean && !value.truth();
}
}
, {"integer", MR_TEST{return MR_UNUSED, value.kind() == Kind::integer;
}
}
, {"float", MR_TEST{return MR_UNUSED, value.kind() == Kind::real;
}
}
, {"number", MR_TEST{return MR_UNUSED, value.is_number();
}
}
, {"string", MR_TEST{return MR_UNUSED, value.is_string();
}
}
, {"mapping", MR_TEST{return MR_UNUSED, value.kind() == Kind::dict;
}
}
,
    // Python's test: whatever has a length and items. That is true of strings, dicts and the undefined, too.
    {"sequence", MR_TEST{return MR_UNUSED, value.is_undefined() || value.is_string() || value.kind() == Kind::list ||
                                               value.kind() == Kind::dict;
}
}
, {"iterable", MR_TEST{return MR_UNUSED, value.is_undefined() || value.is_string() || value.kind() == Kind::list ||
                                             value.kind() == Kind::dict;
}
}
, {"callable", MR_TEST{return MR_UNUSED, value.kind() == Kind::object&& value.object().callable();
}
}
, {"odd", MR_TEST{return MR_UNUSED, whole(value) % 2 != 0;
}
}
, {"even", MR_TEST{return MR_UNUSED, whole(value) % 2 == 0;
}
}
, {"divisibleby", MR_TEST{const std::int64_t by = whole(operand(given));
if (by == 0) fail("division by zero");
return MR_UNUSED, by == -1 || whole(value) % by == 0;
}
}
, {"lower", MR_TEST{return MR_UNUSED, has_case(run, value, false);
}
}
, {"upper", MR_TEST{return MR_UNUSED, has_case(run, value, true);
}
}
, {"sameas", MR_TEST{return MR_UNUSED, value.same_as(operand(given));
}
}
, {"escaped", MR_TEST{return MR_UNUSED, false;
}
}
, {"filter", MR_TEST{return MR_UNUSED, value.is_string() && find_filter(value.bytes()) != nullptr;
}
}
, {"test", MR_TEST{return MR_UNUSED, value.is_string() && find_test(value.bytes()) != nullptr;
}
}
, {"in", MR_TEST{return MR_UNUSED, contains(run.meter(), operand(given), value);
}
}
, {"==", MR_TEST{return MR_UNUSED, equal(run.meter(), value, operand(given));
}
}
, {"eq", MR_TEST{return MR_UNUSED, equal(run.meter(), value, operand(given));
}
}
, {"equalto", MR_TEST{return MR_UNUSED, equal(run.meter(), value, operand(given));
}
}
, {"!=", MR_TEST{return MR_UNUSED, !equal(run.meter(), value, operand(given));
}
}
, {"ne", MR_TEST{return MR_UNUSED, !equal(run.meter(), value, operand(given));
}
}
, {">", MR_TEST{return MR_UNUSED, compare(run.meter(), value, operand(given)) > 0;
}
}
, {"gt", MR_TEST{return MR_UNUSED, compare(run.meter(), value, operand(given)) > 0;
}
}
, {"greaterthan", MR_TEST{return MR_UNUSED, compare(run.meter(), value, operand(given)) > 0;
}
}
, {">=", MR_TEST{return MR_UNUSED, compare(run.meter(), value, operand(given)) >= 0;
}
}
, {"ge", MR_TEST{return MR_UNUSED, compare(run.meter(), value, operand(given)) >= 0;
}
}
, {"<", MR_TEST{return MR_UNUSED, compare(run.meter(), value, operand(given)) < 0;
}
}
, {"lt", MR_TEST{return MR_UNUSED, compare(run.meter(), value, operand(given)) < 0;
}
}
, {"lessthan", MR_TEST{return MR_UNUSED, compare(run.meter(), value, operand(given)) < 0;
}
}
, {"<=", MR_TEST{return MR_UNUSED, compare(run.meter(), value, operand(given)) <= 0;
}
}
, {"le", MR_TEST{return MR_UNUSED, compare(run.meter(), value, operand(given)) <= 0;
}
}
,
}
}
;

#undef MR_TEST
#undef MR_UNUSED

}  // namespace

Test find_test(std::string_view name) {
  for (const auto& [own, test] : kTests) {
    if (own == name) return test;
  }
  return nullptr;
}

}  // namespace millrace::text::jinja
