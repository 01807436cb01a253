// Answers in harmony, gpt-oss's format: messages, each with a header that names its channel and its recipient.
//   <|channel|>analysis<|message|>a thought<|end|><|start|>assistant<|channel|>final<|message|>the answer
//   <|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{arguments}
// The prompt ends with <|start|>assistant.
#include <algorithm>
#include <array>
#include <utility>

#include "base/words.h"
#include "text/answer_splitter.h"

namespace millrace::text {

namespace {

using Kind = AnswerEvent::Kind;
using Read = CallReader::State;

constexpr std::string_view kStart = "<|start|>", kChannel = "<|channel|>", kMessage = "<|message|>", kEnd = "<|end|>";
constexpr std::string_view kRecipient = "to=", kFunctions = "functions.";
constexpr std::array<std::string_view, 3> kBorders = {kStart, kChannel, kEnd};
constexpr std::size_t kLongestHeader = 4096;

/// Returns the word after the last `mark` of a header; empty without one.
std::string_view word_after(std::string_view header, std::string_view mark) {
  const std::size_t at = header.rfind(mark);
  if (at == std::string_view::npos) return {};
  header.remove_prefix(at + mark.size());
  header.remove_prefix(spaces(header));
  return header.substr(0, header.find_first_of(" \t\r\n<"));
}

class ChannelSplitter final : public AnswerParser::Splitter {
 public:
  explicit ChannelSplitter(AnswerForm form) : Splitter(std::move(form)) {}

 private:
  enum class State { between, header, body, call };

  bool advance(bool last) override {
    if (held_.empty() && !(last && state_ == State::call)) return false;
    switch (state_) {
      case State::between:
        return between(last);
      case State::header:
        return header(last);
      case State::body:
        return body(last);
      case State::call:
        return call(last);
    }
    return false;
  }

  /// Before a message. Text without a header is content.
  bool between(bool last) {
    const std::size_t space = spaces(held_);
    const std::string_view text = std::string_view(held_).substr(space);
    if (text.empty() && !last) return false;
    for (const std::string_view mark : {kStart, kChannel, kMessage, kEnd, kRecipient}) {
      if (!last && text.size() < mark.size() && may_become(text, mark)) return false;
      if (!text.starts_with(mark)) continue;
      held_.erase(0, space + (mark == kStart || mark == kEnd ? mark.size() : 0));
      if (mark != kEnd) state_ = State::header;
      return true;
    }
    begin_body(Kind::content);
    return true;
  }

  bool header(bool last) {
    const std::size_t end = std::string_view(held_).substr(0, kLongestHeader + kMessage.size()).find(kMessage);
    if (end == std::string_view::npos) {
      if (held_.size() >= kLongestHeader + kMessage.size()) return no_header();
      if (last) held_.clear();  // the answer was cut before any content
      return false;
    }
    const std::string_view header = std::string_view(held_).substr(0, end);
    const std::string_view channel = word_after(header, kChannel);
    const std::string_view recipient = word_after(header, kRecipient);
    std::string_view name = recipient;
    if (name.starts_with(kFunctions)) name.remove_prefix(kFunctions.size());
    const bool known = form_.tools != nullptr && form_.tools->knows(name);
    const bool calls = form_.may_call && !name.empty() && (known || recipient.starts_with(kFunctions));
    if (calls) {
      reader_ = make_argument_reader(std::string(name));
      state_ = State::call;
    } else {
      begin_body(channel == "analysis" ? Kind::reasoning : Kind::content);
    }
    held_.erase(0, end + kMessage.size());
    return true;
  }

  /// A header without a message is content, including the mark that opens it.
  bool no_header() {
    begin_body(Kind::content);
    for (const std::string_view mark : kBorders) {
      if (!held_.starts_with(mark)) continue;
      say(mark);
      held_.erase(0, mark.size());
      break;
    }
    return true;
  }

  void begin_body(Kind kind) {
    state_ = State::body;
    kind_ = kind;
    fresh_ = true;
  }

  bool body(bool last) {
    std::size_t border = std::string::npos, wait = 0;
    for (const std::string_view mark : kBorders) {
      border = std::min(border, held_.find(mark));
      wait = std::max(wait, begun_mark(held_, mark));
    }
    const bool ends = border != std::string::npos;
    say(std::string_view(held_).substr(0, ends ? border : held_.size() - (last ? 0 : wait)));
    held_.erase(0, ends ? border : held_.size() - (last ? 0 : wait));
    if (ends) state_ = State::between;
    return ends;
  }

  /// Appends to a message. A message that follows another of its kind starts a new paragraph.
  void say(std::string_view text) {
    if (text.empty()) return;
    bool& said = kind_ == Kind::content ? said_ : thought_;
    if (std::exchange(fresh_, false) && std::exchange(said, true)) emit(kind_, "\n\n");
    emit(kind_, text);
  }

  bool call(bool last) {
    std::size_t taken = 0;
    const Read read = reader_->read(held_, last, taken, *this);
    if (read == Read::none) {
      begin_body(Kind::content);
      return true;
    }
    held_.erase(0, taken);
    if (read == Read::more) return false;
    state_ = State::between;
    return true;
  }

  State state_ = State::between;
  Kind kind_ = Kind::content;
  bool fresh_ = false;                   // the message has no text yet
  bool said_ = false, thought_ = false;  // an earlier message of that kind has text
  std::unique_ptr<CallReader> reader_;
};

}  // namespace

std::unique_ptr<AnswerParser::Splitter> make_channel_splitter(AnswerForm form) {
  return std::make_unique<ChannelSplitter>(std::move(form));
}

}  // namespace millrace::text
