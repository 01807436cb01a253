#include "text/tag_call.h"

#include <utility>

#include "base/words.h"
#include "text/json_copy.h"

namespace millrace::text {

namespace {

constexpr std::size_t kLongestName = 1024;

}  // namespace

CallReader::State TagCall::read(std::string_view text, bool last, std::size_t& taken, CallSink& sink) {
  State state = State::more;
  std::size_t all = 0;
  while (state == State::more && json_ == nullptr && all < text.size()) {
    const std::string_view rest = text.substr(all);
    std::size_t one = 0;
    switch (at_) {
      case At::name:
        one = in_name(rest, last, state, sink);
        break;
      case At::between:
        one = between(rest, last, state, sink);
        break;
      case At::key:
        one = in_key(rest, sink);
        break;
      case At::value_begin:
        one = before_value(rest, last, sink);
        break;
      case At::value:
        one = in_value(rest, last, sink);
        break;
    }
    all += one;
    if (one == 0) break;
  }
  taken += all;
  if (json_ != nullptr) return json_->read(text.substr(all), last, taken, sink);
  if (!last || state != State::more) return state;
  if (!begun_) return State::none;
  cut(sink);
  return State::done;
}

std::size_t TagCall::in_name(std::string_view text, bool last, State& state, CallSink& sink) {
  const std::size_t begin = spaces(text) + tags_.name_begin.size();
  if (text.size() < begin) return 0;
  const std::string_view rest = text.substr(begin);
  std::size_t end = rest.find(tags_.name_end), next = end + tags_.name_end.size();
  // If the name ends at a line end, the arguments may also follow on the same line.
  if (tags_.name_end == "\n") {
    for (const std::string_view mark : {tags_.key_begin, tags_.end}) {
      if (const std::size_t found = rest.find(mark); found < end) end = next = found;
    }
  }
  if (end == std::string_view::npos || end > kLongestName) {
    if (last || rest.size() >= kLongestName + tags_.name_end.size()) state = State::none;
    return 0;
  }
  std::string_view name = rest.substr(0, end);
  name = trim(name.substr(0, name.find('"')));
  const bool good = !name.empty() && name.find_first_of(" \t\r\n<>{}\"'") == name.npos &&
                    (!known_ || tools_ == nullptr || tools_->knows(name));
  if (!good) {
    state = State::none;
    return 0;
  }
  name_ = name;
  if (text.substr(begin + next).empty() && !last) return 0;
  at_ = At::between;
  // JSON arguments are recognised by their opening bracket.
  const std::string_view after = text.substr(begin + next);
  if (const std::size_t space = spaces(after); space < after.size() && after[space] == '{') {
    json_ = make_argument_reader(name_);
    return begin + next;
  } else if (space == after.size() && !last) {
    at_ = At::name;
    return 0;
  }
  begun_ = true;
  sink.begin_call(name_);
  return begin + next;
}

std::size_t TagCall::between(std::string_view text, bool last, State& state, CallSink& sink) {
  if (const std::size_t space = spaces(text); space > 0) return space;
  for (const std::string_view mark : {tags_.key_begin, tags_.end, format_.call_end, format_.section_end}) {
    if (mark.empty()) continue;
    if (!last && text.size() < mark.size() && mark.starts_with(text)) return 0;
    if (!text.starts_with(mark)) continue;
    if (mark == tags_.key_begin) {
      at_ = At::key;
      return mark.size();
    }
    sink.arguments(arguments_ == 0 ? "{}" : "}");
    sink.end_call();
    state = State::done;
    return 0;  // the parser skips what closes calls
  }
  return 1;  // no tag follows: the call is malformed
}

std::size_t TagCall::in_key(std::string_view text, CallSink& sink) {
  const std::size_t end = text.find(tags_.key_end);
  if (end == std::string_view::npos) return 0;
  const std::string_view tag = text.substr(0, end);
  // <parameter name="city" string="true">
  const std::size_t quote = tag.find('"');
  key_ = trim(tag.substr(0, quote));
  types_ = tools_ == nullptr ? JsonTypes{} : tools_->of(name_, key_);
  if (quote != std::string_view::npos && tag.find("string=\"true\"") != tag.npos) types_ = {JsonTypes::string};
  value_.clear();
  fresh_ = true;
  line_ = newline_ = false;
  at_ = tags_.value_begin.empty() ? At::value : At::value_begin;
  if (at_ == At::value) {
    sink.arguments((arguments_++ == 0 ? "{\"" : ",\"") + json_escaped(key_) + "\":");
    if (types_.only_string()) sink.arguments("\"");
  }
  return end + tags_.key_end.size();
}

std::size_t TagCall::before_value(std::string_view text, bool last, CallSink& sink) {
  if (const std::size_t space = spaces(text); space > 0) return space;
  const std::string_view mark = tags_.value_begin;
  if (!last && text.size() < mark.size() && mark.starts_with(text)) return 0;
  at_ = At::value;
  sink.arguments((arguments_++ == 0 ? "{\"" : ",\"") + json_escaped(key_) + "\":");
  if (types_.only_string()) sink.arguments("\"");
  return text.starts_with(mark) ? mark.size() : 1;
}

/// A closing tag counts only if another parameter or the end of the call follows; otherwise it is part of the value.
TagCall::Follows TagCall::value_may_end_before(std::string_view rest, bool last) const {
  rest.remove_prefix(spaces(rest));
  bool may = rest.empty();
  for (const std::string_view mark : {tags_.key_begin, tags_.end, format_.call_end, format_.section_end}) {
    if (mark.empty()) continue;
    if (rest.starts_with(mark)) return Follows::yes;
    may = may || mark.starts_with(rest);
  }
  if (!may) return Follows::no;
  return last ? Follows::yes : Follows::unknown;
}

std::size_t TagCall::in_value(std::string_view text, bool last, CallSink& sink) {
  if (std::exchange(fresh_, false) && text[0] == '\n') {
    line_ = true;
    return 1;
  }
  const std::string_view mark = tags_.value_end;
  for (std::size_t at = text.find(mark[0]); at != std::string_view::npos; at = text.find(mark[0], at + 1)) {
    const std::string_view rest = text.substr(at);
    if (rest.size() < mark.size() && mark.starts_with(rest) && !last) {
      value_text(text.substr(0, at), sink);
      return at;
    }
    if (!rest.starts_with(mark)) continue;
    const Follows follows = value_may_end_before(rest.substr(mark.size()), last);
    if (follows == Follows::no) continue;
    value_text(text.substr(0, at), sink);
    if (follows == Follows::unknown) return at;
    end_value(sink);
    return at + mark.size();
  }
  value_text(text, sink);
  return text.size();
}

void TagCall::value_text(std::string_view text, CallSink& sink) {
  if (text.empty()) return;
  if (!types_.only_string()) {
    value_ += text;
    return;
  }
  std::string out;
  if (std::exchange(newline_, false)) out = "\\n";
  if (line_ && text.ends_with('\n')) {
    newline_ = true;
    text.remove_suffix(1);
  }
  out += json_escaped(text);
  if (!out.empty()) sink.arguments(out);
}

void TagCall::end_value(CallSink& sink) {
  at_ = At::between;
  if (types_.only_string()) {
    newline_ = false;
    return sink.arguments("\"");
  }
  std::string_view value = value_;
  if (line_ && value.ends_with('\n')) value.remove_suffix(1);
  sink.arguments(typed_json(value, types_));
}

/// Handles an answer that ends inside the call.
void TagCall::cut(CallSink& sink) {
  if (at_ == At::value && !types_.only_string() && !value_.empty()) {
    const std::string json = typed_json(value_, types_);
    if (json[0] != '"') {
      sink.arguments(json);
    } else if (types_.bits == 0 || types_.has(JsonTypes::string)) {
      sink.arguments('"' + json_escaped(value_));
    } else {  // the beginning of a list or an object
      JsonCopy copy;
      std::string out;
      for (const char c : value_) (void)copy.take(c, out);
      sink.arguments(out);
    }
  }
  sink.end_call();
}

}  // namespace millrace::text
