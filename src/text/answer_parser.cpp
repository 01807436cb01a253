#include "text/answer_parser.h"

#include <algorithm>
#include <utility>

#include "text/answer_splitter.h"

namespace millrace::text {

using Kind = AnswerEvent::Kind;

AnswerParser::AnswerParser(AnswerForm form) {
  const bool channels = form.calls != nullptr && form.calls->channels;
  splitter_ = channels ? make_channel_splitter(std::move(form)) : make_mark_splitter(std::move(form));
}
AnswerParser::~AnswerParser() = default;
AnswerParser::AnswerParser(AnswerParser&&) noexcept = default;

std::vector<AnswerEvent> AnswerParser::push(std::string_view text) { return splitter_->push(text); }
std::vector<AnswerEvent> AnswerParser::finish() { return splitter_->finish(); }
int AnswerParser::calls() const { return splitter_->calls(); }

std::vector<AnswerEvent> AnswerParser::Splitter::push(std::string_view text) {
  held_ += text;
  while (advance(false)) {
  }
  return std::exchange(events_, {});
}

std::vector<AnswerEvent> AnswerParser::Splitter::finish() {
  while (advance(true)) {
  }
  return std::exchange(events_, {});
}

void AnswerParser::Splitter::emit(Kind kind, std::string_view text) {
  if (text.empty()) return;
  if (!events_.empty() && events_.back().kind == kind) {
    events_.back().text += text;
  } else {
    events_.push_back({kind, std::string(text), 0});
  }
}

void AnswerParser::Splitter::splice(std::vector<AnswerEvent> events) {
  int most = calls_;
  for (AnswerEvent& event : events) {
    event.call += event.kind == Kind::content || event.kind == Kind::reasoning ? 0 : calls_;
    most = std::max(most, event.kind == Kind::call_end ? event.call + 1 : most);
    events_.push_back(std::move(event));
  }
  calls_ = most;
}

void AnswerParser::Splitter::begin_call(std::string_view name) {
  events_.push_back({Kind::call_begin, std::string(name), calls_});
}

void AnswerParser::Splitter::arguments(std::string_view json) {
  if (json.empty()) return;
  if (!events_.empty() && events_.back().kind == Kind::call_arguments && events_.back().call == calls_) {
    events_.back().text += json;
  } else {
    events_.push_back({Kind::call_arguments, std::string(json), calls_});
  }
}

void AnswerParser::Splitter::end_call() { events_.push_back({Kind::call_end, {}, calls_++}); }

std::size_t begun_mark(std::string_view text, std::string_view mark) {
  if (mark.empty()) return 0;
  for (std::size_t n = std::min(mark.size() - 1, text.size()); n > 0; --n) {
    if (text.ends_with(mark.substr(0, n))) return n;
  }
  return 0;
}

}  // namespace millrace::text
