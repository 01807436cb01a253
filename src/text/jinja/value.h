// The values of templates: a subset of Python's. Strings, lists and dicts are immutable and shared; only namespaces are
// mutable. Thread-safety: one thread for the values of one rendering; constants of a parsed template are shared and
// never change.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "text/jinja/meter.h"
#include "text/marked_text.h"

namespace millrace::text::jinja {

class Run;  // one rendering, see run.h
class Value;

using Values = Vector<Value>;
using Entries = Vector<std::pair<Value, Value>>;

/// Python's integers up to 128 bits. Larger ones fail; they are never rounded.
__extension__ typedef __int128 Whole;

enum class Kind : std::uint8_t { undefined, none, boolean, integer, real, string, list, dict, object };

struct StringBody {
  Held held;
  MarkedText text;
};
struct List;
struct Dict;
struct Arguments;

/// A value with its own behaviour: namespace, loop, macro, function, bound method.
class Object {
 public:
  Object() = default;
  Held held;  // its own memory, see make_object
  Object(const Object&) = delete;
  Object& operator=(const Object&) = delete;
  virtual ~Object() = default;
  virtual std::string describe() const = 0;  // its printed form
  virtual std::optional<Value> attribute(Run& run, std::string_view name);
  virtual bool callable() const { return false; }
  virtual Value call(Run& run, const Arguments& arguments);
};

class Value {
 public:
  Value() = default;  // undefined
  static Value undefined(Meter& meter, std::string why);
  static Value none() { return Value(Data(None{})); }
  static Value boolean(bool value) { return Value(Data(value)); }
  static Value integer(Whole value) {
    return Value(Data(Integer{static_cast<std::uint64_t>(value), static_cast<std::int64_t>(value >> 64)}));
  }
  static Value real(double value) { return Value(Data(value)); }
  /// A null meter makes a constant that outlives renderings.
  static Value string(Meter* meter, MarkedText text);
  static Value string(Meter* meter, std::string bytes, bool trusted = false) {
    return string(meter, MarkedText(std::move(bytes), trusted));
  }
  /// Characters [begin, end) of a text.
  static Value cut(Meter& meter, const MarkedText& text, std::size_t begin, std::size_t end);
  static Value list(Values items, bool tuple = false);
  static Value pair(Meter& meter, const Value& a, const Value& b);  // a tuple
  static Value dict(Entries entries);                               // keys differ
  static Value object(std::shared_ptr<Object> object) { return Value(Data(std::move(object))); }
  /// All strings in it are untrusted.
  static Value from_json(Meter& meter, const nlohmann::ordered_json& json, int depth = 0);

  Kind kind() const { return static_cast<Kind>(data_.index()); }
  bool is_undefined() const { return kind() == Kind::undefined; }
  bool is_none() const { return kind() == Kind::none; }
  bool is_string() const { return kind() == Kind::string; }
  bool is_number() const { return kind() == Kind::boolean || kind() == Kind::integer || kind() == Kind::real; }
  bool is_integral() const { return kind() == Kind::boolean || kind() == Kind::integer; }
  bool truth() const;

  // REQUIRES: the kind named.
  const MarkedText& text() const { return std::get<StringPtr>(data_)->text; }
  const std::string& bytes() const { return text().bytes(); }
  const List& list() const { return *std::get<ListPtr>(data_); }
  const Dict& dict() const { return *std::get<DictPtr>(data_); }
  Object& object() const { return *std::get<std::shared_ptr<Object>>(data_); }
  Whole whole() const;           // of an integer or boolean
  std::int64_t integer() const;  // the same; fails past 64 bits
  double real() const;           // of any number
  /// Why it is undefined, for the error that using it brings.
  std::string why_undefined() const;

  bool is_tuple() const;
  bool same_as(const Value& other) const;  // Python's `is`
  /// "str", "int", "NoneType" ..., as Python names it.
  std::string type_name() const;
  int nesting() const;  // containers within containers

 private:
  struct Why {
    Held held;
    std::string text;
  };
  struct Undefined {
    std::shared_ptr<const Why> why;
  };
  struct None {};
  struct Integer {
    std::uint64_t low;
    std::int64_t high;
  };
  using StringPtr = std::shared_ptr<const StringBody>;
  using ListPtr = std::shared_ptr<const List>;
  using DictPtr = std::shared_ptr<const Dict>;
  // In the order of Kind.
  using Data =
      std::variant<Undefined, None, bool, Integer, double, StringPtr, ListPtr, DictPtr, std::shared_ptr<Object>>;
  explicit Value(Data data) : data_(std::move(data)) {}

  Data data_;
};

// Types with containers of values are defined after Value, because they need its size.

/// The arguments of a call, in the order written.
struct Arguments {
  explicit Arguments(Meter* meter) : positional(meter), named(meter) {}
  Values positional;
  Entries named;  // by strings
};
/// Of a call without any.
const Arguments& no_arguments();

struct List {
  Held held;
  Values items;
  bool tuple = false;
  int nesting = 0;
};

struct Dict {
  Held held;
  Entries entries;
  int nesting = 0;
  const Value* find(Meter& meter, const Value& key) const;  // nullptr if absent
  const Value* find(std::string_view key) const;
};

/// Creates a T whose memory is counted for its lifetime.
template <typename T, typename... Args>
std::shared_ptr<T> make_object(Meter& meter, Args&&... args) {
  Held held(&meter, sizeof(T) + 2 * sizeof(void*));
  auto made = std::make_shared<T>(std::forward<Args>(args)...);
  made->held = std::move(held);
  return made;
}

/// Builds a string with counted memory: it is counted before it is allocated, and both buffers while the string moves.
class Builder {
 public:
  explicit Builder(Meter& meter) : meter_(meter) {}
  ~Builder() { meter_.shrink(charged_); }
  Builder(const Builder&) = delete;
  Builder& operator=(const Builder&) = delete;

  void append(std::string_view bytes, bool trusted = false) {
    make_room(bytes.size(), text_.would_flip(trusted) ? 1 : 0);
    text_.append(bytes, trusted);
  }
  void append(const MarkedText& text, std::size_t begin, std::size_t end) {
    if (begin == end) return;
    make_room(end - begin, text.flips_between(begin, end) + (text_.would_flip(text.trusted_at(begin)) ? 1 : 0));
    text_.append(text, begin, end);
  }
  void append(const MarkedText& text) { append(text, 0, text.size()); }
  const MarkedText& text() const { return text_; }
  Meter& meter() { return meter_; }
  /// The string; the builder is empty again.
  Value finish();
  MarkedText take();

 private:
  void make_room(std::size_t bytes, std::size_t flips);

  Meter& meter_;
  MarkedText text_;
  std::size_t charged_ = 0;  // the memory of text_
};

// Python's ==, < and `in`. compare: negative, 0 or positive; fails where Python has no order.
bool equal(Meter& meter, const Value& a, const Value& b);
int compare(Meter& meter, const Value& a, const Value& b);
bool contains(Meter& meter, const Value& container, const Value& item);
bool hashable(const Value& value);

/// The result of iteration as a list: items, keys, characters; empty for undefined. Fails for values that Python cannot
/// iterate.
Value elements(Meter& meter, const Value& value);
/// len(); fails for what has none.
std::int64_t length(Meter& meter, const Value& value);

/// Fails with the reason if the value is undefined, as jinja2 does when an undefined value is used.
void require_defined(const Value& value);

}  // namespace millrace::text::jinja
