#include "text/jinja/library.h"

#include <algorithm>

#include "text/jinja/run.h"

namespace millrace::text::jinja {

Parameters::Parameters(std::string_view of, const Arguments& arguments, std::initializer_list<const char*> names)
    : of_(of), names_(names), given_(names.size(), nullptr) {
  if (arguments.positional.size() > names_.size()) fail("'{}' takes not more than {} arguments", of_, names_.size());
  for (std::size_t i = 0; i < arguments.positional.size(); ++i) given_[i] = &arguments.positional[i];
  for (const auto& [name, value] : arguments.named) {
    const auto own = std::find(names_.begin(), names_.end(), std::string_view(name.bytes()));
    if (own == names_.end()) fail("'{}' takes no argument '{}'", of_, name.bytes().substr(0, 80));
    const Value*& place = given_[static_cast<std::size_t>(own - names_.begin())];
    if (place != nullptr) fail("'{}' gets '{}' twice", of_, *own);
    place = &value;
  }
}

const Value& Parameters::required(std::size_t index) const {
  if (given_[index] == nullptr) fail("'{}' needs the argument '{}'", of_, names_[index]);
  return *given_[index];
}

const Value* Parameters::set(std::size_t index) const {
  return given_[index] != nullptr && !given_[index]->is_none() ? given_[index] : nullptr;
}

bool Parameters::flag(std::size_t index, bool otherwise) const {
  return given_[index] != nullptr ? given_[index]->truth() : otherwise;
}

std::int64_t Parameters::integer(std::size_t index, std::int64_t otherwise) const {
  const Value* value = set(index);
  if (value == nullptr) return otherwise;
  require_defined(*value);
  if (!value->is_integral()) fail("'{}' needs a whole number for '{}'", of_, names_[index]);
  return value->integer();
}

std::optional<std::string_view> Parameters::string(std::size_t index) const {
  const Value* value = set(index);
  if (value == nullptr) return std::nullopt;
  require_defined(*value);
  if (!value->is_string()) fail("'{}' needs a string for '{}', not {}", of_, names_[index], value->type_name());
  return value->bytes();
}

Filter find_filter(std::string_view name) {
  const Filter filter = find_text_filter(name);
  return filter != nullptr ? filter : find_list_filter(name);
}

Value apply_filter(Run& run, std::string_view name, const Value& input, const Arguments& arguments) {
  const Filter filter = find_filter(name);
  if (filter == nullptr) fail("there is no filter '{}'", name);
  const Meter::Level level(run.meter());
  return filter(run, input, arguments);
}

bool apply_test(Run& run, std::string_view name, const Value& input, const Arguments& arguments) {
  const Test test = find_test(name);
  if (test == nullptr) fail("there is no test '{}'", name);
  return test(run, input, arguments);
}

}  // namespace millrace::text::jinja
