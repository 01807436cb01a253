#include "text/json_calls.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/json.h"
#include "base/json_nesting.h"
#include "base/words.h"
namespace millrace::text {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 8> kKeys = {"name",      "type", "function",  "parameters",
                                                   "arguments", "id",   "tool_name", "tool_call_id"};

/// Returns the text of a JSON string; empty for other values.
std::string unquoted(const std::string& json) {
  const Json value = Json::parse(json, nullptr, false);
  return value.is_string() ? value.get<std::string>() : std::string();
}

/// Returns as an object arguments that preceded their name or arrived as JSON text; empty if they are not one.
std::string object_of(const std::string& json) {
  if (json.empty() || json == "null") return "{}";
  const std::string inner = json[0] == '"' ? unquoted(json) : json;
  if (nests_too_deep(inner)) return {};
  const Json value = Json::parse(inner, nullptr, false);
  if (!value.is_object()) return {};
  JsonCopy copy;
  std::string out;
  for (const char c : inner) {
    if (copy.take(c, out) != JsonCopy::Taken::more && copy.begun()) break;
  }
  return out;
}

}  // namespace

CallReader::State JsonCalls::read(std::string_view text, bool last, std::size_t& taken, CallSink& sink) {
  State state = State::more;
  for (const char c : text) {
    do {
      again_ = false;
      state = step(c, sink);
    } while (again_ && state == State::more);
    if (state == State::none) break;
    if (!again_) ++taken;
    again_ = false;
    if (state != State::more) break;
  }
  flush(sink);
  return last && state == State::more ? cut(sink) : state;
}

void JsonCalls::flush(CallSink& sink) {
  if (streaming_ && !ready_.empty()) sink.arguments(ready_);
  ready_.clear();
}

/// Handles an answer that ends inside the calls.
CallReader::State JsonCalls::cut(CallSink& sink) {
  if (streaming_) {
    sink.end_call();
    return State::done;
  }
  const bool named = keys_ == Keys::any && !name_.empty() && at_ != At::element;
  if (named) {
    sink.begin_call(name_);
    sink.end_call();
  }
  return named || calls_ > 0 ? State::done : State::none;
}

bool JsonCalls::may_name(std::string_view name) const {
  return !name.empty() && (keys_ != Keys::known || tools_ == nullptr || tools_->knows(name));
}

CallReader::State JsonCalls::step(char c, CallSink& sink) {
  const bool space = kSpaces.find(c) != std::string_view::npos;
  switch (at_) {
    case At::begin:
      if (space) return State::more;
      list_ = c == '[';
      at_ = At::element;
      again_ = !list_;
      return list_ || c == '{' ? State::more : bad();
    case At::element:
      if (space || (c == ',' && calls_ > 0)) return State::more;
      if (c == ']' && list_ && calls_ > 0) return State::done;
      if (c != '{') return bad();
      name_.clear();
      arguments_.clear();
      reported_ = false;
      at_ = At::key_or_end;
      return State::more;
    case At::key_or_end:
      if (space || c == ',') return State::more;
      if (c == '}') return object_ends(sink);
      if (c != '"') return bad();
      key_.clear();
      at_ = At::key;
      return State::more;
    case At::key:
      return in_key(c);
    case At::colon:
      if (space) return State::more;
      if (c != ':') return bad();
      copy_ = JsonCopy();
      value_.clear();
      at_ = At::value;
      return State::more;
    case At::value:
      return in_value(c, sink);
  }
  return bad();
}

CallReader::State JsonCalls::in_key(char c) {
  const bool ends = c == '"' && !escaped_;
  escaped_ = c == '\\' && !escaped_;
  if (!ends) key_ += c;
  if (keys_ == Keys::known && calls_ == 0) {
    const bool known = std::any_of(kKeys.begin(), kKeys.end(),
                                   [&](std::string_view key) { return ends ? key == key_ : key.starts_with(key_); });
    if (!known) return bad();
  }
  if (!ends) return State::more;
  at_ = At::colon;
  role_ = Role::none;
  if (keys_ == Keys::names) {
    role_ = Role::arguments;
    name_ = key_;
  } else if (key_ == "name" || key_ == "tool_name") {
    role_ = Role::name;
  } else if (key_ == "arguments" || key_ == "parameters") {
    role_ = Role::arguments;
  } else if (key_ == "function") {
    role_ = Role::wrapper;
  }
  return State::more;
}

CallReader::State JsonCalls::in_value(char c, CallSink& sink) {
  if (!copy_.begun() && kSpaces.find(c) == std::string_view::npos) {
    if (role_ == Role::wrapper && c == '{') {
      ++wrapped_;
      at_ = At::key_or_end;
      return wrapped_ == 1 ? State::more : bad();
    }
    if (role_ == Role::wrapper) role_ = c == '"' ? Role::name : Role::none;
    if (role_ == Role::name && c != '"') return bad();
    if (role_ == Role::arguments && c != '{' && c != '"' && c != 'n') return bad();
    if (role_ == Role::arguments && c == '{' && !name_.empty()) {
      if (!may_name(name_)) return bad();
      sink.begin_call(name_);
      streaming_ = true;
    }
  }
  const JsonCopy::Taken taken = copy_.take(c, streaming_ ? ready_ : value_);
  if (taken == JsonCopy::Taken::more) return State::more;
  again_ = taken == JsonCopy::Taken::none;
  if (again_ && streaming_) {  // it nests too deep: end the call here
    flush(sink);
    sink.end_call();
    streaming_ = false;
    return State::done;
  }
  if (again_ && !copy_.begun()) return bad();
  return value_ends(sink);
}

CallReader::State JsonCalls::value_ends(CallSink& sink) {
  at_ = At::key_or_end;
  if (streaming_) {
    flush(sink);
    sink.end_call();
    streaming_ = false;
    ++calls_;
    name_.clear();
    role_ = Role::none;
    reported_ = true;
    return State::more;
  }
  if (role_ == Role::name) {
    name_ = unquoted(value_);
    if (name_.empty()) return bad();
  }
  if (role_ == Role::arguments) arguments_ = value_;
  return State::more;
}

CallReader::State JsonCalls::object_ends(CallSink& sink) {
  if (wrapped_ > 0) {
    --wrapped_;
    return State::more;
  }
  if (!std::exchange(reported_, false)) {
    const std::string arguments = object_of(arguments_);
    if (arguments.empty() || !may_name(name_)) return bad();
    sink.begin_call(name_);
    sink.arguments(arguments);
    sink.end_call();
    ++calls_;
  }
  name_.clear();
  at_ = At::element;
  return list_ ? State::more : State::done;
}

}  // namespace millrace::text
