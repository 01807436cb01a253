// Global functions: range, dict, namespace, and what chat templates get besides: raise_exception, strftime_now.
#include <array>
#include <ctime>

#include "base/os/calendar.h"
#include "text/jinja/library.h"
#include "text/jinja/run.h"

namespace millrace::text::jinja {

namespace {

constexpr std::int64_t kLongestRange = 100'000;  // as Jinja's sandbox

Value range(Run& run, const Arguments& arguments) {
  const Parameters given("range", arguments, {"start", "stop", "step"});
  const bool one = given[1] == nullptr;
  (void)given.required(0);
  const std::int64_t start = one ? 0 : given.integer(0, 0), stop = given.integer(one ? 0 : 1, 0);
  const std::int64_t step = given.integer(2, 1);
  if (step == 0) fail("range's step cannot be zero");
  Values numbers(run.meter());
  for (std::int64_t at = start; step > 0 ? at < stop : at > stop;) {
    if (static_cast<std::int64_t>(numbers.size()) >= kLongestRange) {
      fail("a range has more than {} numbers", kLongestRange);
    }
    numbers.push_back(Value::integer(at));
    if (__builtin_add_overflow(at, step, &at)) break;
  }
  run.meter().step(numbers.size());
  return Value::list(std::move(numbers));
}

/// A dict to begin with, and names.
Entries entries_of(Run& run, std::string_view of, const Arguments& arguments) {
  if (arguments.positional.size() > 1) fail("'{}' takes one dict and names", of);
  Entries entries(run.meter());
  const auto put = [&](Value key, const Value& value) {
    for (auto& [own, old] : entries) {
      if (equal(run.meter(), own, key)) {
        old = value;
        return;
      }
    }
    entries.emplace_back(std::move(key), value);
  };
  if (!arguments.positional.empty()) {
    const Value& first = arguments.positional[0];
    require_defined(first);
    if (first.kind() == Kind::dict) {
      run.meter().touch(first.dict().entries.size() * sizeof(Value));
      entries.assign(first.dict().entries.begin(), first.dict().entries.end());
    } else {
      const Value pairs = elements(run.meter(), first);
      for (const Value& pair : pairs.list().items) {
        if (pair.kind() != Kind::list || pair.list().items.size() != 2) fail("'{}' needs a dict or pairs", of);
        put(pair.list().items[0], pair.list().items[1]);
      }
    }
  }
  for (const auto& [name, value] : arguments.named) put(name, value);
  return entries;
}

Value make_dict(Run& run, const Arguments& arguments) { return Value::dict(entries_of(run, "dict", arguments)); }

Value make_namespace(Run& run, const Arguments& arguments) {
  const auto space = run.make_namespace();
  for (auto& [key, value] : entries_of(run, "namespace", arguments)) {
    if (!key.is_string()) fail("a namespace's attribute must be a string, not a {}", key.type_name());
    space->set(key, std::move(value));
  }
  return Value::object(space);
}

/// One line of at most 400 bytes.
std::string one_line(std::string text) {
  if (text.size() > 400) text = text.substr(0, 400) + "...";
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) c = ' ';
  }
  return text;
}

Value raise_exception(Run& run, const Arguments& arguments) {
  const Parameters given("raise_exception", arguments, {"message"});
  const Value message = apply_filter(run, "string", given.required(0), no_arguments());
  fail("it refuses the conversation: {}", one_line(message.bytes()));
}

Value strftime_now(Run& run, const Arguments& arguments) {
  const Parameters given("strftime_now", arguments, {"format"});
  (void)given.required(0);
  const std::string format(given.string(0).value_or(""));
  const std::optional<std::tm> local = os::local_time(run.now());
  if (!local) fail("the date is not known");
  std::array<char, 1024> text{};
  const std::size_t length = std::strftime(text.data(), text.size(), format.c_str(), &*local);
  return run.make_string(std::string(text.data(), length));
}

}  // namespace

Function find_function(std::string_view name) {
  if (name == "range") return range;
  if (name == "dict") return make_dict;
  if (name == "namespace") return make_namespace;
  if (name == "raise_exception") return raise_exception;
  if (name == "strftime_now") return strftime_now;
  return nullptr;
}

}  // namespace millrace::text::jinja
