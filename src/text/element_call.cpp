#include "text/element_call.h"

#include <algorithm>

#include "base/words.h"
#include "text/answer_splitter.h"
#include "text/json_copy.h"

namespace millrace::text {

namespace {

constexpr std::size_t kLongestTag = 1024, kMostOpen = 64;
constexpr std::string_view kItem = "item";

/// What an element without text and elements is.
std::string nothing_of(JsonTypes types) {
  if (types.bits == 0 || types.has(JsonTypes::string)) return "\"\"";
  if (types.has(JsonTypes::array)) return "[]";
  return types.has(JsonTypes::object) ? "{}" : "null";
}

}  // namespace

CallReader::State ElementCall::read(std::string_view text, bool last, std::size_t& taken, CallSink& sink) {
  State state = State::more;
  std::size_t all = 0;
  while (state == State::more && all < text.size()) {
    const std::string_view rest = text.substr(all);
    const std::size_t one = open_.empty()                     ? in_name(rest, last, state, sink)
                            : open_.back().kind == Kind::text ? in_text(rest, last, sink)
                                                              : between(rest, last, state, sink);
    all += one;
    if (one == 0) break;
  }
  taken += all;
  if (!last || state != State::more) return state;
  if (open_.empty()) return State::none;
  cut(sink);
  return State::done;
}

std::size_t ElementCall::in_name(std::string_view text, bool last, State& state, CallSink& sink) {
  const std::size_t begin = spaces(text) + tags_.name_begin.size();
  if (text.size() < begin) return 0;
  const std::string_view rest = text.substr(begin);
  const std::size_t end = rest.find(tags_.name_end);
  if (end == std::string_view::npos || end > kLongestTag) {
    if (last || rest.size() > kLongestTag) state = State::none;
    return 0;
  }
  std::string_view name = rest.substr(0, end);
  name = trim(name.substr(0, name.find('"')));
  if (name.empty() || name.find_first_of(" \t\r\n<>{}'") != name.npos) {
    state = State::none;
    return 0;
  }
  name_ = name;
  open_.emplace_back().kind = Kind::object;
  sink.begin_call(name);
  return begin + end + tags_.name_end.size();
}

/// Where an element may begin or end: in the arguments, an object or a list, or at the beginning of a value.
std::size_t ElementCall::between(std::string_view text, bool last, State& state, CallSink& sink) {
  Element& inner = open_.back();
  if (inner.kind == Kind::unknown && inner.types.only_string()) {
    inner.kind = Kind::text;
    sink.arguments("\"");
    return in_text(text, last, sink);
  }
  const std::size_t space = spaces(text);
  const std::string_view rest = text.substr(space);
  if (rest.empty()) return inner.kind == Kind::unknown && !last ? 0 : space;
  for (const std::string_view mark : {tags_.value_end, tags_.key_begin}) {
    if (!last && rest.size() < mark.size() && mark.starts_with(rest)) return 0;
    if (!rest.starts_with(mark)) continue;
    const std::size_t end = rest.find(tags_.key_end, mark.size());
    if (end == std::string_view::npos && !last && rest.size() <= kLongestTag) return 0;
    if (end == std::string_view::npos) return text.size();
    const std::string_view tag = rest.substr(mark.size(), end - mark.size());
    const std::size_t behind = space + end + tags_.key_end.size();
    if (mark == tags_.key_begin) {
      begin_element(tag, sink);
      return behind;
    }
    // The end of the call, or of all calls, also ends what was left open.
    const bool ends_call = rest.starts_with(tags_.end) || (!section_end_.empty() && rest.starts_with(section_end_));
    if (!ends_call && open_.size() > 1) {
      end_element(sink);
      return behind;
    }
    if (!ends_call) return behind;
    while (!open_.empty()) end_element(sink);
    sink.end_call();
    state = State::done;
    return 0;  // the parser skips what closes calls
  }
  if (inner.kind == Kind::unknown) {
    inner.kind = Kind::text;
    value_.clear();
    return in_text(text, last, sink);
  }
  return space + 1;  // text beside elements: the call is malformed
}

std::size_t ElementCall::in_text(std::string_view text, bool last, CallSink& sink) {
  const std::size_t end = text.find(tags_.value_end);
  const std::size_t wait = end == std::string_view::npos && !last ? begun_mark(text, tags_.value_end) : 0;
  const std::string_view own = text.substr(0, end == std::string_view::npos ? text.size() - wait : end);
  if (!open_.back().types.only_string())
    value_ += own;
  else if (!own.empty())
    sink.arguments(json_escaped(own));
  if (end == std::string_view::npos) return own.size();
  const std::size_t close = text.find(tags_.key_end, end + tags_.value_end.size());
  if (close == std::string_view::npos && !last && text.size() - end <= kLongestTag) return own.size();
  end_text(sink);
  // Of a call's end no more is taken, because it closes what is around the text, too.
  const std::string_view rest = text.substr(end);
  const bool ends_call = rest.starts_with(tags_.end) || (!section_end_.empty() && rest.starts_with(section_end_));
  open_.pop_back();
  return ends_call || close == std::string_view::npos ? end : close + tags_.key_end.size();
}

/// Tags that are nested too deeply are left out.
void ElementCall::begin_element(std::string_view tag, CallSink& sink) {
  if (open_.size() >= kMostOpen) return;
  Element& outer = open_.back();
  if (outer.kind == Kind::unknown) {
    const bool only_object = outer.types.has(JsonTypes::object) && !outer.types.has(JsonTypes::array);
    outer.kind = tag == kItem && !only_object ? Kind::list : Kind::object;
  }
  const bool in_list = outer.kind == Kind::list;
  Element inner;
  inner.tag = tag;
  if (tools_ != nullptr)
    inner.place = open_.size() == 1 ? tools_->place(name_, tag)
                  : in_list         ? outer.place.item()
                                    : outer.place.member(tag);
  inner.types = inner.place.types();
  std::string begin = outer.count++ > 0 ? "," : in_list ? "[" : "{";
  if (!in_list) begin.append("\"").append(json_escaped(tag)).append("\":");
  sink.arguments(begin);
  open_.push_back(std::move(inner));
}

void ElementCall::end_element(CallSink& sink) {
  const Element& inner = open_.back();
  switch (inner.kind) {
    case Kind::unknown:
      sink.arguments(nothing_of(inner.types));
      break;
    case Kind::text:
      end_text(sink);
      break;
    case Kind::object:
      sink.arguments(inner.count == 0 ? "{}" : "}");
      break;
    case Kind::list:
      sink.arguments("]");
      break;
  }
  open_.pop_back();
}

void ElementCall::end_text(CallSink& sink) {
  const JsonTypes types = open_.back().types;
  sink.arguments(types.only_string() ? "\"" : typed_json(value_, types));
}

/// Handles an answer that ends inside the call.
void ElementCall::cut(CallSink& sink) {
  const Element& inner = open_.back();
  if (inner.kind == Kind::text && !inner.types.only_string() && !value_.empty()) {
    const std::string json = typed_json(value_, inner.types);
    sink.arguments(json[0] == '"' ? '"' + json_escaped(value_) : json);
  }
  sink.end_call();
}

}  // namespace millrace::text
