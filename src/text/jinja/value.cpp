#include "text/jinja/value.h"

#include <algorithm>
#include <cmath>

#include "base/json.h"
#include "text/jinja/strings.h"

namespace millrace::text::jinja {

namespace {

constexpr int kMaxNesting = 200;  // deeper values could exhaust the stack where they are walked or freed

int nesting_over(int inner) {
  if (inner >= kMaxNesting) fail("a value nests deeper than {} levels", kMaxNesting);
  return inner + 1;
}

Value copied(Meter& meter, std::string_view text) {
  Builder out(meter);
  out.append(text);
  return out.finish();
}

int sign(double difference) { return difference < 0 ? -1 : difference > 0 ? 1 : 0; }

int compare_whole(Whole a, Whole b) { return a < b ? -1 : a > b ? 1 : 0; }

/// As the numbers are, not as a double rounds them. Not a number is equal to all here; equal() knows better.
int compare_numbers(const Value& a, const Value& b) {
  if (a.is_integral() && b.is_integral()) return compare_whole(a.whole(), b.whole());
  if (a.is_integral()) return -compare_numbers(b, a);
  const double x = a.real();
  if (!b.is_integral()) return sign(x - b.real());
  constexpr double kWhole = 0x1p126;
  if (!(std::fabs(x) < kWhole)) return sign(x);
  const int whole = compare_whole(static_cast<Whole>(x), b.whole());
  return whole != 0 ? whole : sign(x - std::trunc(x));
}

}  // namespace

std::optional<Value> Object::attribute(Run&, std::string_view) { return std::nullopt; }
Value Object::call(Run&, const Arguments&) { fail("{} is not callable", describe()); }

const Arguments& no_arguments() {
  static const Arguments none(nullptr);
  return none;
}

Value Value::undefined(Meter& meter, std::string why) {
  Held held(&meter, sizeof(Why) + why.capacity());
  return Value(Data(Undefined{std::make_shared<const Why>(Why{std::move(held), std::move(why)})}));
}

Value Value::string(Meter* meter, MarkedText text) {
  Held held(meter, sizeof(StringBody) + text.memory_bytes());
  return Value(Data(std::make_shared<const StringBody>(StringBody{std::move(held), std::move(text)})));
}

Value Value::cut(Meter& meter, const MarkedText& text, std::size_t begin, std::size_t end) {
  Builder out(meter);
  out.append(text, begin, end);
  return out.finish();
}

Value Value::pair(Meter& meter, const Value& a, const Value& b) {
  Values both(meter);
  both.reserve(2);
  both.push_back(a);
  both.push_back(b);
  return list(std::move(both), true);
}

Value Value::list(Values items, bool tuple) {
  int inner = 0;
  for (const Value& item : items) inner = std::max(inner, item.nesting());
  Held held(items.get_allocator().meter(), sizeof(List));
  return Value(Data(std::make_shared<const List>(List{std::move(held), std::move(items), tuple, nesting_over(inner)})));
}

Value Value::dict(Entries entries) {
  int inner = 0;
  for (const auto& [key, value] : entries) inner = std::max({inner, key.nesting(), value.nesting()});
  Held held(entries.get_allocator().meter(), sizeof(Dict));
  return Value(Data(std::make_shared<const Dict>(Dict{std::move(held), std::move(entries), nesting_over(inner)})));
}

Value Value::from_json(Meter& meter, const nlohmann::ordered_json& json, int depth) {
  if (depth > kMaxNesting) fail("the input nests deeper than {} levels", kMaxNesting);
  meter.step();
  switch (json.type()) {
    case nlohmann::ordered_json::value_t::boolean:
      return boolean(json.get<bool>());
    case nlohmann::ordered_json::value_t::number_integer:
      return integer(json.get<std::int64_t>());
    case nlohmann::ordered_json::value_t::number_unsigned:
      return integer(json.get<std::uint64_t>());
    case nlohmann::ordered_json::value_t::number_float:
      return real(json.get<double>());
    case nlohmann::ordered_json::value_t::string:
      return copied(meter, json.get_ref<const std::string&>());
    case nlohmann::ordered_json::value_t::array: {
      Values items(meter);
      items.reserve(json.size());
      for (const auto& item : json) items.push_back(from_json(meter, item, depth + 1));
      return list(std::move(items));
    }
    case nlohmann::ordered_json::value_t::object: {
      Entries entries(meter);
      entries.reserve(json.size());
      for (const auto& [key, item] : json.items()) {
        entries.emplace_back(copied(meter, key), from_json(meter, item, depth + 1));
      }
      return dict(std::move(entries));
    }
    default:
      return none();
  }
}

bool Value::truth() const {
  switch (kind()) {
    case Kind::undefined:
    case Kind::none:
      return false;
    case Kind::boolean:
      return std::get<bool>(data_);
    case Kind::integer:
      return whole() != 0;
    case Kind::real:
      return std::get<double>(data_) != 0;
    case Kind::string:
      return !text().empty();
    case Kind::list:
      return !list().items.empty();
    case Kind::dict:
      return !dict().entries.empty();
    case Kind::object:
      return true;
  }
  return false;
}

Whole Value::whole() const {
  if (kind() == Kind::boolean) return std::get<bool>(data_) ? 1 : 0;
  const Integer& parts = std::get<Integer>(data_);
  return static_cast<Whole>(parts.high) * (Whole{1} << 64) + parts.low;
}

std::int64_t Value::integer() const {
  const Whole value = whole();
  if (value < INT64_MIN || value > INT64_MAX) fail("a number is too large");
  return static_cast<std::int64_t>(value);
}

double Value::real() const { return kind() == Kind::real ? std::get<double>(data_) : static_cast<double>(whole()); }

std::string Value::why_undefined() const {
  const auto& why = std::get<Undefined>(data_).why;
  return why ? why->text : "a value is undefined";
}

bool Value::is_tuple() const { return kind() == Kind::list && list().tuple; }

bool Value::same_as(const Value& other) const {
  if (kind() != other.kind()) return false;
  switch (kind()) {
    case Kind::boolean:
    case Kind::integer:
      return whole() == other.whole();
    case Kind::real:
      return real() == other.real();
    case Kind::string:
      return bytes() == other.bytes();
    case Kind::list:
      return &list() == &other.list();
    case Kind::dict:
      return &dict() == &other.dict();
    case Kind::object:
      return &object() == &other.object();
    default:
      return true;
  }
}

std::string Value::type_name() const {
  switch (kind()) {
    case Kind::undefined:
      return "Undefined";
    case Kind::none:
      return "NoneType";
    case Kind::boolean:
      return "bool";
    case Kind::integer:
      return "int";
    case Kind::real:
      return "float";
    case Kind::string:
      return "str";
    case Kind::list:
      return list().tuple ? "tuple" : "list";
    case Kind::dict:
      return "dict";
    case Kind::object:
      return object().describe();
  }
  return {};
}

int Value::nesting() const { return kind() == Kind::list ? list().nesting : kind() == Kind::dict ? dict().nesting : 0; }

const Value* Dict::find(Meter& meter, const Value& key) const {
  if (key.is_string()) {
    meter.step(entries.size() / 16);
    return find(key.bytes());
  }
  for (const auto& [own, value] : entries) {
    if (equal(meter, own, key)) return &value;
  }
  return nullptr;
}

const Value* Dict::find(std::string_view key) const {
  for (const auto& [own, value] : entries) {
    if (own.is_string() && own.bytes() == key) return &value;
  }
  return nullptr;
}

Value Builder::finish() { return Value::string(&meter_, take()); }

void Builder::make_room(std::size_t bytes, std::size_t flips) {
  meter_.step(bytes / 256);
  if (text_.has_room(bytes, flips)) return;
  const std::size_t more = text_.bytes_of_reserve(bytes, flips);
  meter_.grow(more);
  charged_ += more;
  text_.reserve_more(bytes, flips);
  const std::size_t now = text_.memory_bytes();
  if (now > charged_) {  // the library took more than it was asked for
    const std::size_t rest = now - charged_;
    meter_.grow(rest);
    charged_ += rest;
  }
  meter_.shrink(charged_ - now);
  charged_ = now;
}

MarkedText Builder::take() {
  meter_.shrink(std::exchange(charged_, 0));
  return std::exchange(text_, {});
}

bool equal(Meter& meter, const Value& a, const Value& b) {
  meter.step();
  if (a.is_number() && b.is_number()) {
    if (a.kind() == Kind::real && b.kind() == Kind::real) return a.real() == b.real();
    if (std::isnan(a.real()) || std::isnan(b.real())) return false;
    return compare_numbers(a, b) == 0;
  }
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Kind::string:
      return a.bytes() == b.bytes();
    case Kind::list: {
      const auto &x = a.list().items, &y = b.list().items;
      if (a.is_tuple() != b.is_tuple() || x.size() != y.size()) return false;
      for (std::size_t i = 0; i < x.size(); ++i) {
        if (!equal(meter, x[i], y[i])) return false;
      }
      return true;
    }
    case Kind::dict: {
      if (a.dict().entries.size() != b.dict().entries.size()) return false;
      for (const auto& [key, value] : a.dict().entries) {
        const Value* other = b.dict().find(meter, key);
        if (other == nullptr || !equal(meter, value, *other)) return false;
      }
      return true;
    }
    default:
      return a.same_as(b);
  }
}

int compare(Meter& meter, const Value& a, const Value& b) {
  meter.step();
  require_defined(a);
  require_defined(b);
  if (a.is_number() && b.is_number()) return compare_numbers(a, b);
  if (a.is_string() && b.is_string()) return a.bytes().compare(b.bytes());  // UTF-8 sorts as its code points do
  if (a.kind() == Kind::list && b.kind() == Kind::list && a.is_tuple() == b.is_tuple()) {
    const auto &x = a.list().items, &y = b.list().items;
    for (std::size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
      if (!equal(meter, x[i], y[i])) return compare(meter, x[i], y[i]);
    }
    return x.size() < y.size() ? -1 : x.size() > y.size() ? 1 : 0;
  }
  fail("'{}' and '{}' have no order", a.type_name(), b.type_name());
}

bool contains(Meter& meter, const Value& container, const Value& item) {
  switch (container.kind()) {
    case Kind::undefined:
      return false;
    case Kind::string:
      require_defined(item);
      if (!item.is_string()) fail("'in' with a string needs a string on its left, not {}", item.type_name());
      meter.touch(container.text().size());
      return find_text(container.bytes(), item.bytes(), 0) != std::string::npos;
    case Kind::list:
      return std::any_of(container.list().items.begin(), container.list().items.end(),
                         [&](const Value& own) { return equal(meter, own, item); });
    case Kind::dict:
      if (!hashable(item)) fail("a {} cannot be a key", item.type_name());
      return container.dict().find(meter, item) != nullptr;
    default:
      fail("a {} holds nothing to look for", container.type_name());
  }
}

bool hashable(const Value& value) {
  if (value.kind() == Kind::dict) return false;
  if (value.kind() != Kind::list) return true;
  return value.is_tuple() && std::all_of(value.list().items.begin(), value.list().items.end(), hashable);
}

Value elements(Meter& meter, const Value& value) {
  Values items(meter);
  switch (value.kind()) {
    case Kind::undefined:
      break;
    case Kind::list:
      return value;
    case Kind::dict:
      meter.step(value.dict().entries.size());
      items.reserve(value.dict().entries.size());
      for (const auto& [key, item] : value.dict().entries) items.push_back(key);
      break;
    case Kind::string: {
      const MarkedText& text = value.text();
      for (std::size_t at = 0; at < text.size();) {
        const std::size_t next = next_character(text.bytes(), at);
        meter.step();
        items.push_back(Value::cut(meter, text, at, next));
        at = next;
      }
      break;
    }
    default:
      fail("a {} cannot be iterated over", value.type_name());
  }
  return Value::list(std::move(items));
}

std::int64_t length(Meter& meter, const Value& value) {
  switch (value.kind()) {
    case Kind::undefined:
      return 0;
    case Kind::string:
      meter.touch(value.text().size());
      return static_cast<std::int64_t>(count_characters(value.bytes()));
    case Kind::list:
      return static_cast<std::int64_t>(value.list().items.size());
    case Kind::dict:
      return static_cast<std::int64_t>(value.dict().entries.size());
    default:
      fail("a {} has no length", value.type_name());
  }
}

void require_defined(const Value& value) {
  if (value.is_undefined()) fail("{}", value.why_undefined());
}

}  // namespace millrace::text::jinja
