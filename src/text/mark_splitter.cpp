// Splits answers whose thoughts and calls are enclosed in marks.
#include <algorithm>
#include <optional>
#include <utility>

#include "base/words.h"
#include "text/answer_splitter.h"

namespace millrace::text {

namespace {

using Kind = AnswerEvent::Kind;
using Read = CallReader::State;

class MarkSplitter final : public AnswerParser::Splitter {
 public:
  explicit MarkSplitter(AnswerForm form);

 private:
  enum class State { begin, thought, content, opening, call, after_call };
  enum class Opens { section, call, tags, bare, thought, nothing };
  struct Mark {
    std::string_view text;
    Opens opens;
  };
  struct Found {
    Mark mark;
    std::size_t at;
  };

  bool advance(bool last) override;
  bool begin(bool last);
  bool thought(bool last);
  bool call_in_thought(bool last);
  bool content(bool last);
  bool opening(bool last);
  bool call(bool last);
  bool after_call(bool last);
  void no_call();
  /// Reports held_, except trailing white space and a possible beginning of one of `marks`.
  void emit_ready(Kind kind, const std::vector<Mark>& marks, bool last);
  static std::optional<Found> find(std::string_view text, const std::vector<Mark>& marks);
  std::optional<bool> opens_in_section(bool last);

  State state_ = State::begin;
  std::vector<Mark> marks_;       // of content
  std::vector<Mark> call_marks_;  // those that open calls
  Mark mark_{};                   // which opened the call
  std::size_t marked_ = 0;        // bytes of held_ up to the end of that mark
  std::size_t at_ = 0;            // bytes of held_ that the reader consumed
  std::unique_ptr<CallReader> reader_;
  bool told_ = false;  // the reader has reported a call
  bool may_think_ = true;
  bool trimming_ = false;                // drop white space at the beginning of held_
  std::unique_ptr<AnswerParser> inner_;  // parses possible calls in a thought that is never closed
  std::vector<AnswerEvent> inner_events_;
  std::size_t inner_at_ = 0, fed_ = 0;  // where its text begins in held_, and how much of it was parsed

  void begin_call(std::string_view name) override {
    told_ = true;
    Splitter::begin_call(name);
  }
};

MarkSplitter::MarkSplitter(AnswerForm form) : Splitter(std::move(form)) {
  if (form_.in_thought && form_.thoughts != nullptr) {
    state_ = State::thought;
    trimming_ = true;
  }
  if (const CallFormat* const calls = form_.calls; calls != nullptr) {
    if (!calls->section.empty()) call_marks_.push_back({calls->section, Opens::section});
    if (!calls->call.empty()) call_marks_.push_back({calls->call, Opens::call});
    if (calls->tags != nullptr && (calls->call.empty() || calls->tags_alone)) {
      call_marks_.push_back({calls->tags->name_begin, Opens::tags});
    }
    for (const std::string_view mark : calls->dropped) {
      if (!mark.empty()) marks_.push_back({mark, Opens::nothing});
    }
  }
  marks_.insert(marks_.end(), call_marks_.begin(), call_marks_.end());
  if (form_.thoughts != nullptr && form_.thoughts->anywhere) {
    marks_.push_back({form_.thoughts->begin, Opens::thought});
    marks_.push_back({form_.thoughts->end, Opens::nothing});
  }
}

bool MarkSplitter::advance(bool last) {
  if (trimming_) {
    held_.erase(0, spaces(held_));
    if (!held_.empty()) trimming_ = false;
  }
  if (held_.empty() && !(last && state_ == State::call)) return false;
  switch (state_) {
    case State::begin:
      return begin(last);
    case State::thought:
      return thought(last);
    case State::content:
      return content(last);
    case State::opening:
      return opening(last);
    case State::call:
      return call(last);
    case State::after_call:
      return after_call(last);
  }
  return false;
}

bool MarkSplitter::begin(bool last) {
  const std::string_view text = trim(held_);
  if (text.empty() && !last) return false;
  if (form_.thoughts != nullptr && may_think_) {
    for (const std::string_view mark : {form_.thoughts->begin, form_.thoughts->end}) {
      if (!last && text.size() < mark.size() && may_become(text, mark)) return false;
      if (!text.starts_with(mark)) continue;
      held_.erase(0, spaces(held_) + mark.size());
      trimming_ = true;
      may_think_ = false;
      if (mark == form_.thoughts->begin) state_ = State::thought;
      return true;
    }
  }
  state_ = State::content;
  const bool json = !text.empty() && (text[0] == '{' || text[0] == '[');
  if (form_.calls != nullptr && (form_.calls->opened || (form_.calls->bare && json))) {
    const bool marked = find(text, call_marks_).value_or(Found{{}, 1}).at == 0;
    mark_ = {"", form_.calls->opened ? Opens::call : Opens::bare};
    marked_ = at_ = 0;
    if (!marked) state_ = State::opening;
  }
  return true;
}

std::optional<MarkSplitter::Found> MarkSplitter::find(std::string_view text, const std::vector<Mark>& marks) {
  std::optional<Found> first;
  for (const Mark& mark : marks) {
    const std::size_t at = text.find(mark.text);
    if (at != std::string_view::npos && (!first || at < first->at)) first = Found{mark, at};
  }
  return first;
}

void MarkSplitter::emit_ready(Kind kind, const std::vector<Mark>& marks, bool last) {
  std::size_t ready = held_.size();
  if (!last && !marks.empty()) {
    std::size_t wait = 0;
    for (const Mark& mark : marks) wait = std::max(wait, begun_mark(held_, mark.text));
    ready = std::string_view(held_).substr(0, held_.size() - wait).find_last_not_of(kSpaces) + 1;  // npos + 1 is 0
  }
  emit(kind, std::string_view(held_).substr(0, ready));
  held_.erase(0, ready);
}

bool MarkSplitter::thought(bool last) {
  const std::string_view mark = form_.thoughts->end;
  const std::size_t end = held_.find(mark);
  if (end != std::string::npos) {
    inner_ = nullptr;
    const std::string_view text = std::string_view(held_).substr(0, end);
    emit(Kind::reasoning, text.substr(0, text.find_last_not_of(kSpaces) + 1));
    held_.erase(0, end + mark.size());
    may_think_ = false;  // only one thought per answer; a later <think> is content
    state_ = State::begin;
    trimming_ = true;
    return true;
  }
  if (inner_ != nullptr) return call_in_thought(last);
  std::vector<Mark> marks = call_marks_;
  marks.push_back({mark, Opens::nothing});
  const auto found = find(std::string_view(held_).substr(inner_at_), call_marks_);
  if (found) {
    inner_at_ += found->at;
    fed_ = inner_at_;
    AnswerForm form = form_;
    form.in_thought = false;
    form.thoughts = nullptr;
    inner_ = std::make_unique<AnswerParser>(std::move(form));
    inner_events_.clear();
    return true;
  }
  inner_at_ = 0;
  if (last) {
    emit(Kind::reasoning, std::string_view(held_).substr(0, held_.find_last_not_of(kSpaces) + 1));
    held_.clear();
  } else {
    emit_ready(Kind::reasoning, marks, false);
  }
  return false;
}

/// The text from inner_at_ on counts as calls if only calls follow until the answer ends: the model forgot to close its
/// thought. Until then the text is held back.
bool MarkSplitter::call_in_thought(bool last) {
  std::vector<AnswerEvent> events = inner_->push(std::string_view(held_).substr(fed_));
  fed_ = held_.size();
  if (last) {
    auto more = inner_->finish();
    std::move(more.begin(), more.end(), std::back_inserter(events));
  }
  const bool said = std::any_of(events.begin(), events.end(), [](const AnswerEvent& event) {
    return event.kind == Kind::content && !trim(event.text).empty();
  });
  std::erase_if(events, [](const AnswerEvent& event) { return event.kind == Kind::content; });
  std::move(events.begin(), events.end(), std::back_inserter(inner_events_));
  if (!said && !last) return false;
  if (!said && inner_->calls() > 0) {
    const std::string_view text = std::string_view(held_).substr(0, inner_at_);
    emit(Kind::reasoning, text.substr(0, text.find_last_not_of(kSpaces) + 1));
    splice(std::move(inner_events_));
    held_.clear();
    inner_ = nullptr;
    return false;
  }
  inner_ = nullptr;
  ++inner_at_;
  return true;
}

bool MarkSplitter::content(bool last) {
  const auto found = find(held_, marks_);
  if (!found) {
    emit_ready(Kind::content, marks_, last);
    return false;
  }
  const std::string_view before = std::string_view(held_).substr(0, found->at);
  if (found->mark.opens == Opens::nothing) {
    emit(Kind::content, before);
    held_.erase(0, found->at + found->mark.text.size());
    return true;
  }
  // White space before a call does not belong to the content; hold it until a call is certain.
  const std::size_t said = before.find_last_not_of(kSpaces) + 1;
  emit(Kind::content, before.substr(0, said));
  held_.erase(0, said);
  mark_ = found->mark;
  marked_ = found->at - said + mark_.text.size();
  if (mark_.opens == Opens::thought) {
    held_.erase(0, marked_);
    state_ = State::thought;
    trimming_ = true;
    return true;
  }
  at_ = mark_.opens == Opens::tags ? marked_ - mark_.text.size() : marked_;
  state_ = State::opening;
  return true;
}

/// Returns whether a call follows the section's mark, and consumes the mark if so; nullopt if more text is needed.
std::optional<bool> MarkSplitter::opens_in_section(bool last) {
  const std::string_view rest = trim(std::string_view(held_).substr(at_));
  const auto begin = static_cast<std::size_t>(rest.data() - held_.data());
  bool may = rest.empty();
  const auto tags = form_.calls->tags;
  for (const std::string_view mark : {form_.calls->call, tags != nullptr ? tags->name_begin : std::string_view()}) {
    if (mark.empty()) continue;
    may = may || may_become(rest, mark);
    if (!rest.starts_with(mark)) continue;
    at_ = mark == form_.calls->call ? begin + mark.size() : begin;
    return true;
  }
  if (may && !last) return std::nullopt;
  return false;
}

bool MarkSplitter::opening(bool last) {
  if (mark_.opens == Opens::section) {
    const auto opens = opens_in_section(last);
    if (!opens) return false;
    if (!*opens) {
      no_call();
      return true;
    }
    mark_.opens = Opens::call;
  }
  bool none = false;
  const bool known_only = mark_.opens == Opens::tags && !form_.calls->call.empty();
  reader_ = make_call_reader(*form_.calls, form_.tools.get(), std::string_view(held_).substr(at_),
                             mark_.opens == Opens::bare, known_only, last, none);
  if (none) no_call();
  if (reader_ == nullptr) return none;
  told_ = false;
  state_ = State::call;
  return true;
}

bool MarkSplitter::call(bool last) {
  std::size_t taken = 0;
  const Read read = reader_->read(std::string_view(held_).substr(at_), last, taken, *this);
  if (read == Read::none) {
    no_call();
    return true;
  }
  at_ += taken;
  if (told_) {
    held_.erase(0, at_);
    at_ = 0;
  }
  if (read == Read::more) return false;
  held_.erase(0, at_);
  at_ = 0;
  reader_ = nullptr;
  state_ = State::after_call;
  return true;
}

/// Treats the mark as ordinary text.
void MarkSplitter::no_call() {
  reader_ = nullptr;
  emit(Kind::content, std::string_view(held_).substr(0, marked_));
  held_.erase(0, marked_);
  state_ = State::content;
}

bool MarkSplitter::after_call(bool last) {
  const bool bare = mark_.opens == Opens::bare || form_.calls->bare;
  held_.erase(0, std::min(held_.find_first_not_of(bare ? " \t\r\n;" : kSpaces), held_.size()));
  if (held_.empty()) return false;
  const auto tags = form_.calls->tags;
  const std::string_view fence = form_.calls->name_end_then.empty() ? "" : "```";
  for (const std::string_view mark :
       {form_.calls->call_end, form_.calls->section_end, fence, tags != nullptr ? tags->end : std::string_view()}) {
    if (mark.empty()) continue;
    if (!last && held_.size() < mark.size() && may_become(held_, mark)) return false;
    if (!held_.starts_with(mark)) continue;
    held_.erase(0, mark.size());
    return true;
  }
  state_ = State::content;
  if (bare && held_[0] == '{') {
    mark_ = {"", Opens::bare};
    marked_ = at_ = 0;
    state_ = State::opening;
  }
  return true;
}

}  // namespace

std::unique_ptr<AnswerParser::Splitter> make_mark_splitter(AnswerForm form) {
  return std::make_unique<MarkSplitter>(std::move(form));
}

}  // namespace millrace::text
