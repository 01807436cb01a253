#include "text/call_reader.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/words.h"
#include "text/element_call.h"
#include "text/json_calls.h"
#include "text/json_copy.h"
#include "text/tag_call.h"

namespace millrace::text {

namespace {

using State = CallReader::State;

constexpr std::size_t kLongestName = 256;

bool is_name(std::string_view name) {
  return !name.empty() && name.size() <= kLongestName && name.find_first_of(" \t\r\n<>{}[]\"'()") == name.npos;
}

/// Reads { ... } of a call whose name is known, with or without a Markdown fence. Takes nothing before the bracket: if
/// there is no call after all, the text is content, leading white space included.
class Arguments final : public CallReader {
 public:
  explicit Arguments(std::string name) : name_(std::move(name)) {}

  State read(std::string_view text, bool last, std::size_t& taken, CallSink& sink) override {
    std::string out;
    std::size_t at = begun_ ? 0 : skipped_;
    State state = State::more;
    while (state == State::more && at < text.size()) {
      if (!begun_ && !skip_to_bracket(text, last, at, state)) break;
      if (at == text.size() || state != State::more) break;
      if (!std::exchange(begun_, true)) sink.begin_call(name_);
      const JsonCopy::Taken one = copy_.take(text[at], out);
      if (one != JsonCopy::Taken::none) ++at;
      if (one != JsonCopy::Taken::more) state = State::done;
    }
    if (!out.empty()) sink.arguments(out);
    if (begun_) taken += at;
    if (!begun_) skipped_ = at;
    if (begun_ && (last || state == State::done)) {
      sink.end_call();
      return State::done;
    }
    return last && state == State::more ? State::none : state;
  }

 private:
  /// False: more text is needed.
  bool skip_to_bracket(std::string_view text, bool last, std::size_t& at, State& state) {
    at = std::min(text.find_first_not_of(kSpaces, at), text.size());
    const std::string_view rest = text.substr(at);
    for (const std::string_view fence : {"```json", "```"}) {
      if (rest.empty() || (!last && rest.size() < fence.size() && fence.starts_with(rest))) return false;
      if (!rest.starts_with(fence)) continue;
      at += fence.size();
      return skip_to_bracket(text, last, at, state);
    }
    if (rest[0] != '{') state = State::none;
    return true;
  }

  const std::string name_;
  JsonCopy copy_;
  std::size_t skipped_ = 0;  // bytes before the bracket that have been looked at
  bool begun_ = false;
};

/// NAME name_end {...}
class NamedCall final : public CallReader {
 public:
  explicit NamedCall(const CallFormat& format) : format_(format) {}

  State read(std::string_view text, bool last, std::size_t& taken, CallSink& sink) override {
    if (arguments_ == nullptr) {
      const State named = read_name(text, last, taken);
      if (named != State::done || spoken_) return named;
    }
    std::size_t more = 0;
    const State state = arguments_->read(text.substr(taken), last, more, sink);
    taken += more;
    return state;
  }

 private:
  State read_name(std::string_view text, bool last, std::size_t& taken) {
    std::string_view rest = text, end = format_.name_end;
    rest.remove_prefix(spaces(rest));
    const std::string_view before = format_.name_before;
    if (!before.empty() && rest.size() < before.size() && before.starts_with(rest)) {
      return last ? State::none : State::more;
    }
    if (!before.empty() && rest.starts_with(before)) {
      rest.remove_prefix(before.size());
      if (!format_.name_end_then.empty()) end = format_.name_end_then;
    }
    const std::size_t found = rest.find(end);
    if (found == std::string_view::npos || found > 2 * kLongestName) {
      const bool hopeless = rest.size() >= 2 * kLongestName + end.size() || last;
      return hopeless ? State::none : State::more;
    }
    std::string_view name = rest.substr(0, found);
    if (!format_.id_begin.empty()) name = name.substr(0, name.find(format_.id_begin));
    name = trim(name);
    if (const std::size_t colon = name.rfind(':'); colon != name.npos) {  // NAME:3 is the third call of NAME
      if (name.find_first_not_of("0123456789", colon + 1) == name.npos) name = name.substr(0, colon);
    }
    if (!is_name(name)) return State::none;
    taken += static_cast<std::size_t>(rest.data() - text.data()) + found + end.size();
    spoken_ = name == format_.spoken;
    if (!spoken_) arguments_ = make_argument_reader(std::string(name));
    return State::done;
  }

  const CallFormat& format_;
  std::unique_ptr<CallReader> arguments_;
  bool spoken_ = false;
};

/// [NAME(KEY=VALUE, ...), ...], or call:NAME{KEY:VALUE, ...}
class LooseCalls final : public CallReader {
 public:
  explicit LooseCalls(const CallFormat& format) : format_(format), python_(format.body == CallFormat::Body::python) {}

  State read(std::string_view text, bool last, std::size_t& taken, CallSink& sink) override {
    State state = State::more;
    std::size_t at = 0;
    while (state == State::more && at < text.size()) {
      if (copy_ != nullptr) {
        std::string out;
        at += copy_->take(text.substr(at), last, out);
        if (!out.empty()) sink.arguments(out);
        if (!copy_->done()) break;
        copy_ = nullptr;
        sink.end_call();
        if (!python_) state = State::done;
      } else if (!outside(text, last, at, state, sink)) {
        break;
      }
    }
    taken += at;
    if (last && copy_ != nullptr) sink.end_call();
    if (last && state == State::more) return called_ ? State::done : State::none;
    return state;
  }

 private:
  /// Up to the bracket that opens arguments. False: more text is needed.
  bool outside(std::string_view text, bool last, std::size_t& at, State& state, CallSink& sink) {
    const char c = text[at];
    const bool space = kSpaces.find(c) != std::string_view::npos;
    const State bad = called_ ? State::done : State::none;
    if (python_ && !list_) {
      if (c == '[') list_ = true;
      if (c != '[' && !space) state = bad;
      if (state == State::more) ++at;
      return true;
    }
    if (space || (python_ && c == ',')) {
      ++at;
      return true;
    }
    if (python_ && c == ']') {
      ++at;
      state = bad;
      return true;
    }
    std::string_view rest = text.substr(at);
    const std::string_view before = format_.name_before;
    if (!before.empty() && rest.size() < before.size() && before.starts_with(rest) && !last) return false;
    if (!before.empty() && rest.starts_with(before)) rest.remove_prefix(before.size());
    const std::size_t end = rest.find(python_ ? '(' : '{');
    if (end == std::string_view::npos && !last && rest.size() <= kLongestName) return false;
    const std::string_view name = end > kLongestName ? std::string_view() : trim(rest.substr(0, end));
    if (!is_name(name)) {
      state = bad;
      return true;
    }
    called_ = true;
    sink.begin_call(name);
    at = static_cast<std::size_t>(rest.data() - text.data()) + end;
    copy_ = std::make_unique<LooseCopy>(format_.quote);
    return true;
  }

  const CallFormat& format_;
  const bool python_;
  bool list_ = false, called_ = false;
  std::unique_ptr<LooseCopy> copy_;  // of the call that is open
};

}  // namespace

std::unique_ptr<CallReader> make_argument_reader(std::string name) {
  return std::make_unique<Arguments>(std::move(name));
}

std::unique_ptr<CallReader> make_call_reader(const CallFormat& format, const ToolTypes* tools, std::string_view text,
                                             bool bare, bool known, bool last, bool& none) {
  none = false;
  const std::string_view rest = text.substr(spaces(text));
  if (rest.empty()) {
    none = last;
    return nullptr;
  }
  if (bare) return std::make_unique<JsonCalls>(JsonCalls::Keys::known, tools);
  // Models that write calls in Python's syntax switch to JSON where their system message asks for it.
  bool json = format.body == CallFormat::Body::json && (rest[0] == '{' || rest[0] == '[');
  if (format.body == CallFormat::Body::python && rest[0] == '[') {
    const std::size_t first = rest.find_first_not_of(kSpaces, 1);
    if (first == std::string_view::npos && !last) return nullptr;
    json = first != std::string_view::npos && rest[first] == '{';
  }
  if (format.body != CallFormat::Body::json && !json) return std::make_unique<LooseCalls>(format);
  if (json) {
    return std::make_unique<JsonCalls>(format.name_is_key ? JsonCalls::Keys::names : JsonCalls::Keys::any, tools);
  }
  if (const TagStyle* const tags = format.tags; tags != nullptr) {
    if (rest.starts_with(tags->name_begin) && tags->elements) return std::make_unique<ElementCall>(format, tools);
    if (rest.starts_with(tags->name_begin)) return std::make_unique<TagCall>(format, tools, known);
    if (may_become(rest, tags->name_begin) && !last) return nullptr;
  }
  if (!format.name_end.empty()) return std::make_unique<NamedCall>(format);
  none = true;
  return nullptr;
}

}  // namespace millrace::text
