// obj.name, obj[key] and obj[a:b:c], the way Jinja looks things up: a dot asks for a method first and an item second,
// brackets the other way round.
#include <algorithm>
#include <array>

#include "text/jinja/library.h"
#include "text/jinja/run.h"
#include "text/jinja/strings.h"
#include "text/jinja/write.h"

namespace millrace::text::jinja {

namespace {

/// A method taken off its object: {% set f = x.strip %}.
class BoundMethod final : public Object {
 public:
  BoundMethod(Value self, Method method, std::string name)
      : self_(std::move(self)), method_(method), name_(std::move(name)) {}
  std::string describe() const override { return fmt::format("<built-in method {}>", name_); }
  bool callable() const override { return true; }
  Value call(Run& run, const Arguments& arguments) override { return method_(run, self_, arguments); }

 private:
  Value self_;
  Method method_;
  std::string name_;
};

/// Methods that would change a list or a dict: the sandbox that chat templates run in forbids them.
bool changes(const Value& of, std::string_view name) {
  constexpr std::array<std::string_view, 7> kOfLists = {"append", "clear", "extend", "insert", "pop", "remove", "sort"};
  constexpr std::array<std::string_view, 5> kOfDicts = {"clear", "pop", "popitem", "setdefault", "update"};
  if (of.kind() == Kind::list && !of.is_tuple()) {
    return name == "reverse" || std::find(kOfLists.begin(), kOfLists.end(), name) != kOfLists.end();
  }
  return of.kind() == Kind::dict && std::find(kOfDicts.begin(), kOfDicts.end(), name) != kOfDicts.end();
}

std::optional<Value> member(Run& run, const Value& of, std::string_view name) {
  if (of.kind() == Kind::object) {
    if (auto found = of.object().attribute(run, name)) return found;
  }
  if (const Method method = find_method(of, name); method != nullptr) {
    return Value::object(make_object<BoundMethod>(run.meter(), of, method, std::string(name)));
  }
  if (changes(of, name)) {
    fail("'{}' would change a {}, which templates may not do (build a new one with +)", name, of.type_name());
  }
  return std::nullopt;
}

Value nothing(Run& run, const Value& of, std::string_view name) {
  const std::string owner = of.is_none() ? "None" : fmt::format("{} object", of.type_name());
  return Value::undefined(run.meter(), fmt::format("'{}' has no attribute '{}'", owner, name.substr(0, 80)));
}

std::int64_t from_end(std::int64_t index, std::int64_t size) { return index < 0 ? index + size : index; }

std::optional<Value> item(Run& run, const Value& of, const Value& index) {
  if (of.kind() == Kind::dict) {
    const Value* found = hashable(index) ? of.dict().find(run.meter(), index) : nullptr;
    return found != nullptr ? std::optional(*found) : std::nullopt;
  }
  if (!index.is_integral()) return std::nullopt;
  if (of.kind() == Kind::list) {
    const auto size = static_cast<std::int64_t>(of.list().items.size());
    const std::int64_t at = from_end(index.integer(), size);
    return at >= 0 && at < size ? std::optional(of.list().items[static_cast<std::size_t>(at)]) : std::nullopt;
  }
  if (!of.is_string()) return std::nullopt;
  run.meter().touch(of.text().size());
  const auto size = static_cast<std::int64_t>(count_characters(of.bytes()));
  const std::int64_t at = from_end(index.integer(), size);
  if (at < 0 || at >= size) return std::nullopt;
  const std::size_t begin = place_of_character(of.bytes(), static_cast<std::size_t>(at));
  return Value::cut(run.meter(), of.text(), begin, next_character(of.bytes(), begin));
}

/// The positions of a slice, as Python's slice.indices gives them.
struct Positions {
  std::int64_t start, step, count;
};

Positions positions(std::int64_t size, const Value& start, const Value& stop, const Value& step) {
  const auto number = [](const Value& value, const char* what) {
    require_defined(value);
    if (!value.is_integral()) fail("a slice's {} must be a whole number, not a {}", what, value.type_name());
    return value.integer();
  };
  const std::int64_t by = step.is_none() ? 1 : std::clamp<std::int64_t>(number(step, "step"), -INT32_MAX, INT32_MAX);
  if (by == 0) fail("a slice's step cannot be zero");
  const std::int64_t low = by > 0 ? 0 : -1, high = by > 0 ? size : size - 1;
  const auto bound = [&](const Value& value, const char* what, std::int64_t otherwise) {
    if (value.is_none()) return otherwise;
    const std::int64_t at = std::clamp<std::int64_t>(number(value, what), -INT64_MAX / 2, INT64_MAX / 2);
    return std::clamp(from_end(at, size), low, high);
  };
  const std::int64_t from = bound(start, "start", by > 0 ? low : high), to = bound(stop, "stop", by > 0 ? high : low);
  const std::int64_t distance = by > 0 ? to - from : from - to, stride = by > 0 ? by : -by;
  return {from, by, distance <= 0 ? 0 : (distance + stride - 1) / stride};
}

}  // namespace

Value get_attribute(Run& run, const Value& of, std::string_view name) {
  require_defined(of);
  if (auto found = member(run, of, name)) return *found;
  if (of.kind() == Kind::dict) {
    if (const Value* found = of.dict().find(name); found != nullptr) return *found;
  }
  return nothing(run, of, name);
}

Value get_item(Run& run, const Value& of, const Value& index) {
  require_defined(of);
  if (auto found = item(run, of, index)) return *found;
  if (!index.is_string()) {
    if (of.kind() == Kind::list) return Value::undefined(run.meter(), "a list has no item at that index");
    return nothing(run, of, index.is_integral() ? whole_text(index.whole()) : index.type_name());
  }
  if (auto found = member(run, of, index.bytes())) return *found;
  return nothing(run, of, index.bytes());
}

Value get_slice(Meter& meter, const Value& of, const Value& start, const Value& stop, const Value& step) {
  require_defined(of);
  if (of.kind() == Kind::list) {
    const auto& items = of.list().items;
    const Positions at = positions(static_cast<std::int64_t>(items.size()), start, stop, step);
    meter.touch(static_cast<std::size_t>(at.count) * sizeof(Value));
    Values taken(meter);
    taken.reserve(static_cast<std::size_t>(at.count));
    for (std::int64_t i = 0; i < at.count; ++i) {
      taken.push_back(items[static_cast<std::size_t>(at.start + i * at.step)]);
    }
    return Value::list(std::move(taken), of.is_tuple());
  }
  if (!of.is_string()) fail("a {} cannot be sliced", of.type_name());
  meter.touch(of.text().size());
  const std::string& bytes = of.bytes();
  const Positions at = positions(static_cast<std::int64_t>(count_characters(bytes)), start, stop, step);
  Builder out(meter);
  if (at.step == 1 && at.count > 0) {
    const std::size_t begin = place_of_character(bytes, static_cast<std::size_t>(at.start));
    const std::string_view rest = std::string_view(bytes).substr(begin);
    out.append(of.text(), begin, begin + place_of_character(rest, static_cast<std::size_t>(at.count)));
    return out.finish();
  }
  const Vector<std::size_t> starts = character_starts(meter, bytes);
  const auto place = [&](std::int64_t i) {
    const auto character = static_cast<std::size_t>(i);
    return starts.empty() ? character : starts[character];
  };
  for (std::int64_t i = 0; i < at.count; ++i) {
    const std::int64_t character = at.start + i * at.step;
    out.append(of.text(), place(character), place(character + 1));
  }
  return out.finish();
}

}  // namespace millrace::text::jinja
