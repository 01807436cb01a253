#include "text/answer_parser.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

namespace millrace::text {

namespace {

using Json = nlohmann::ordered_json;
using Kind = AnswerEvent::Kind;

constexpr std::string_view kThink = "<think>", kThinkEnd = "</think>", kCall = "<tool_call>", kCallEnd = "</tool_call>";
constexpr std::array<std::string_view, 2> kBareMarks = {"<|python_tag|>", "[TOOL_CALLS]"};
constexpr std::string_view kSpaces = " \t\r\n";
constexpr int kMaxNesting = 100;

std::string_view trim(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(kSpaces);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpaces) - begin + 1);
}

/// Bytes at the end of `text` with which `mark` begins, the whole of it excepted.
std::size_t begun(std::string_view text, std::string_view mark) {
  for (std::size_t n = std::min(mark.size() - 1, text.size()); n > 0; --n) {
    if (text.ends_with(mark.substr(0, n))) return n;
  }
  return 0;
}

bool nests_too_deep(std::string_view json) {
  int depth = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (in_string && c == '\\') {
      ++i;
    } else if (c == '"') {
      in_string = !in_string;
    } else if (!in_string && (c == '{' || c == '[') && ++depth > kMaxNesting) {
      return true;
    } else if (!in_string && (c == '}' || c == ']')) {
      --depth;
    }
  }
  return false;
}

struct ReadCall {
  std::string name, arguments;
};

/// {"name": ..., "arguments" or "parameters": ...}, maybe inside of {"function": ...}.
bool read_call(const Json& json, std::vector<ReadCall>& calls) {
  if (!json.is_object()) return false;
  const auto inner = json.find("function");
  const Json& call = inner != json.end() && inner->is_object() ? *inner : json;
  const auto name = call.find("name");
  if (name == call.end() || !name->is_string() || name->get_ref<const std::string&>().empty()) return false;
  auto arguments = call.find("arguments");
  if (arguments == call.end()) arguments = call.find("parameters");
  Json given = arguments == call.end() || arguments->is_null() ? Json::object() : *arguments;
  if (given.is_string()) {
    const std::string text = given.get<std::string>();
    given = nests_too_deep(text) ? Json() : Json::parse(text, nullptr, false);
  }
  if (!given.is_object()) return false;
  calls.push_back({name->get<std::string>(), given.dump(-1, ' ', false, Json::error_handler_t::replace)});
  return true;
}

/// <function=NAME> <parameter=KEY> VALUE </parameter> ... </function>. Values that read as JSON are that, others text.
bool read_function_tags(std::string_view body, ReadCall& call) {
  const auto take = [&](std::string_view mark) {
    const std::size_t at = body.find_first_not_of(kSpaces);
    if (at == std::string_view::npos || body.substr(at, mark.size()) != mark) return false;
    body.remove_prefix(at + mark.size());
    return true;
  };
  const auto until = [&](std::string_view mark, std::string_view& text) {
    const std::size_t at = body.find(mark);
    if (at == std::string_view::npos) return false;
    text = body.substr(0, at);
    body.remove_prefix(at + mark.size());
    return true;
  };
  std::string_view name, key, value;
  if (!take("<function=") || !until(">", name)) return false;
  Json arguments = Json::object();
  while (take("<parameter=")) {
    if (!until(">", key) || !until("</parameter>", value)) return false;
    if (value.starts_with('\n')) value.remove_prefix(1);
    if (value.ends_with('\n')) value.remove_suffix(1);
    const Json read = nests_too_deep(value) ? Json("") : Json::parse(value, nullptr, false);
    const bool text = read.is_discarded() || read.is_string();
    arguments[std::string(trim(key))] = text ? Json(std::string(value)) : read;
  }
  if (!take("</function>") || trim(name).empty()) return false;
  call = {std::string(trim(name)), arguments.dump(-1, ' ', false, Json::error_handler_t::replace)};
  return true;
}

/// Whether what a bare answer begins with can still become a call: an object's first key tells.
bool may_be_call(std::string_view text) {
  text = trim(text);
  if (text.starts_with('[')) {
    text = trim(text.substr(1));
    if (text.empty()) return true;
  }
  if (!text.starts_with('{')) return false;
  text = trim(text.substr(1));
  if (text.empty()) return true;
  if (text[0] != '"') return false;
  const std::size_t end = text.find('"', 1);
  const std::string_view key = text.substr(1, end == std::string_view::npos ? end : end - 1);
  constexpr std::array<std::string_view, 6> kKeys = {"name", "type", "function", "parameters", "arguments", "id"};
  return std::any_of(kKeys.begin(), kKeys.end(), [&](std::string_view known) {
    return end == std::string_view::npos ? known.starts_with(key) : known == key;
  });
}

}  // namespace

CallStyle find_call_style(std::string_view jinja) {
  const auto has = [&](std::string_view word) { return jinja.find(word) != std::string_view::npos; };
  if (has(kCall)) return CallStyle::tagged;
  if (has(kBareMarks[0]) || has(kBareMarks[1])) return CallStyle::bare;
  if (has("tools") && has("\"name\"") && has("\"parameters\"")) return CallStyle::bare;
  return CallStyle::none;
}

AnswerParser::AnswerParser(AnswerForm form) : form_(form) {
  if (form_.in_thought) {
    state_ = State::thought;
    trimming_ = true;
  }
}

std::vector<AnswerEvent> AnswerParser::push(std::string_view text) {
  held_ += text;
  while (advance(false)) {
  }
  return std::exchange(events_, {});
}

std::vector<AnswerEvent> AnswerParser::finish() {
  while (advance(true)) {
  }
  return std::exchange(events_, {});
}

void AnswerParser::emit(Kind kind, std::string_view text) {
  if (text.empty()) return;
  if (!events_.empty() && events_.back().kind == kind && (kind == Kind::content || kind == Kind::reasoning)) {
    events_.back().text += text;
  } else {
    events_.push_back({kind, std::string(text), 0});
  }
}

void AnswerParser::drop_spaces() {
  held_.erase(0, std::min(held_.find_first_not_of(kSpaces), held_.size()));
  if (!held_.empty()) trimming_ = false;
}

/// One step; false when it needs more text.
bool AnswerParser::advance(bool last) {
  if (trimming_) drop_spaces();
  if (held_.empty()) return false;
  switch (state_) {
    case State::begin:
      return begin(last);
    case State::thought:
      return thought(last);
    case State::content:
      return content(last);
    case State::tagged_call:
      return tagged_call(last);
    case State::bare_call:
      return bare_call(last);
    case State::plain:
      emit(Kind::content, std::exchange(held_, {}));
      return false;
  }
  return false;
}

bool AnswerParser::begin(bool last) {
  const std::string_view text = trim(held_);
  if (text.empty() && !last) return false;
  if (form_.thoughts && !last && kThink.starts_with(text) && text != kThink) return false;
  if (form_.thoughts && text.starts_with(kThink)) {
    held_.erase(0, held_.find(kThink) + kThink.size());
    state_ = State::thought;
    trimming_ = true;
    return true;
  }
  state_ = form_.calls == CallStyle::tagged ? State::content : State::plain;
  if (form_.calls == CallStyle::bare) {
    const bool marked = std::any_of(kBareMarks.begin(), kBareMarks.end(), [&](std::string_view mark) {
      return text.starts_with(mark) || (!last && mark.starts_with(text));
    });
    if (marked || may_be_call(text)) state_ = State::bare_call;
  }
  return true;
}

void AnswerParser::emit_ready(Kind kind, std::string_view mark, bool last) {
  std::size_t ready = held_.size();
  if (!last) {
    ready -= begun(held_, mark);
    ready = held_.find_last_not_of(kSpaces, ready == 0 ? 0 : ready - 1) + 1;  // npos + 1 is 0
    if (ready > held_.size() - begun(held_, mark)) ready = 0;
  }
  emit(kind, std::string_view(held_).substr(0, ready));
  held_.erase(0, ready);
}

bool AnswerParser::thought(bool last) {
  const std::size_t end = held_.find(kThinkEnd);
  if (end == std::string::npos) {
    emit_ready(Kind::reasoning, kThinkEnd, false);
    if (last) emit(Kind::reasoning, std::string_view(held_).substr(0, held_.find_last_not_of(kSpaces) + 1));
    if (last) held_.clear();
    return false;
  }
  emit(Kind::reasoning,
       std::string_view(held_).substr(0, held_.find_last_not_of(kSpaces, end == 0 ? 0 : end - 1) + 1).substr(0, end));
  held_.erase(0, end + kThinkEnd.size());
  form_.thoughts = false;  // one thought an answer; a later <think> is the model's to show
  state_ = State::begin;
  trimming_ = true;
  return true;
}

bool AnswerParser::content(bool last) {
  const std::size_t call = held_.find(kCall);
  if (call == std::string::npos) {
    emit_ready(Kind::content, kCall, last);
    return false;
  }
  const std::string_view before = std::string_view(held_).substr(0, call);
  emit(Kind::content, before.substr(0, before.find_last_not_of(kSpaces) + 1));
  held_.erase(0, call);
  state_ = State::tagged_call;
  scanned_ = kCall.size();
  in_string_ = escaped_ = false;
  return true;
}

bool AnswerParser::tagged_call(bool last) {
  // A closing tag inside of a JSON string is part of the string.
  std::size_t end = std::string::npos;
  const bool tags = trim(std::string_view(held_).substr(kCall.size())).starts_with('<');
  for (; scanned_ < held_.size(); ++scanned_) {
    const char c = held_[scanned_];
    if (escaped_) {
      escaped_ = false;
    } else if (in_string_ && c == '\\') {
      escaped_ = true;
    } else if (c == '"' && !tags) {
      in_string_ = !in_string_;
    } else if (c == '<' && !in_string_) {
      if (held_.size() - scanned_ < kCallEnd.size() && !last) return false;
      if (held_.compare(scanned_, kCallEnd.size(), kCallEnd) != 0) continue;
      end = scanned_;
      break;
    }
  }
  if (end == std::string::npos && !last) return false;
  const std::size_t stop = std::min(end, held_.size());
  const std::size_t next = end == std::string::npos ? held_.size() : end + kCallEnd.size();
  const bool called = report(std::string_view(held_).substr(kCall.size(), stop - kCall.size()));
  if (!called) emit(Kind::content, std::string_view(held_).substr(0, next));
  held_.erase(0, next);
  trimming_ = called;
  state_ = State::content;
  return true;
}

bool AnswerParser::bare_call(bool last) {
  if (calls_ > 0 && scanned_ == 0) {  // more calls may follow, parted by white space or semicolons
    held_.erase(0, std::min(held_.find_first_not_of(" \t\r\n;"), held_.size()));
    if (held_.empty()) return false;
  }
  std::size_t start = held_.find_first_not_of(kSpaces);
  for (const std::string_view mark : kBareMarks) {
    if (start != std::string::npos && held_.compare(start, mark.size(), mark) == 0) start += mark.size();
  }
  const std::string_view rest = trim(std::string_view(held_).substr(std::min(start, held_.size())));
  const bool cut_mark = !last && std::any_of(kBareMarks.begin(), kBareMarks.end(),
                                             [&](std::string_view mark) { return mark.starts_with(rest); });
  if (cut_mark) return false;
  std::size_t end = std::string::npos;
  if (may_be_call(rest)) {
    for (scanned_ = std::max(scanned_, static_cast<std::size_t>(rest.data() - held_.data())); scanned_ < held_.size();
         ++scanned_) {
      const char c = held_[scanned_];
      if (escaped_) {
        escaped_ = false;
      } else if (in_string_ && c == '\\') {
        escaped_ = true;
      } else if (c == '"') {
        in_string_ = !in_string_;
      } else if (!in_string_ && (c == '{' || c == '[')) {
        ++depth_;
      } else if (!in_string_ && (c == '}' || c == ']') && --depth_ == 0) {
        end = scanned_ + 1;
        break;
      }
    }
    if (end == std::string::npos && !last) return false;
  }
  const auto begin = static_cast<std::size_t>(rest.data() - held_.data());
  if (end == std::string::npos || !report(std::string_view(held_).substr(begin, end - begin))) {
    state_ = State::plain;
    return true;
  }
  held_.erase(0, end);
  scanned_ = 0;
  depth_ = 0;
  in_string_ = escaped_ = false;
  return true;
}

bool AnswerParser::report(std::string_view json) {
  std::vector<ReadCall> calls;
  json = trim(json);
  if (json.starts_with('<')) {
    ReadCall call;
    if (!read_function_tags(json, call)) return false;
    calls.push_back(std::move(call));
  } else {
    if (nests_too_deep(json)) return false;
    const Json read = Json::parse(json, nullptr, false);
    if (read.is_array()) {
      for (const Json& one : read) {
        if (!read_call(one, calls)) return false;
      }
    } else if (!read_call(read, calls)) {
      return false;
    }
  }
  for (ReadCall& call : calls) report(call.name, std::move(call.arguments));
  return !calls.empty();
}

void AnswerParser::report(const std::string& name, std::string arguments) {
  events_.push_back({Kind::call_begin, name, calls_});
  events_.push_back({Kind::call_arguments, std::move(arguments), calls_});
  events_.push_back({Kind::call_end, {}, calls_});
  ++calls_;
}

}  // namespace millrace::text
