// Parses a model's answer while it is generated, into thoughts, content and tool calls.
//
// The AnswerFormat (answer_format.h) gives the marks of thoughts and calls. A call is reported once its name and the
// beginning of its arguments have arrived, and its arguments as they arrive; a call cut by the end of the answer is
// reported up to there. Text that turns out not to be a call becomes content, unchanged. The boundaries of the input
// pieces affect only the boundaries of the output pieces. Thread-safety: one thread.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/answer_format.h"
#include "text/tool_types.h"

namespace millrace::text {

struct AnswerEvent {
  enum class Kind {
    content,
    reasoning,
    call_begin,      // text: the function's name
    call_arguments,  // text: a further part of a JSON object, without white space between its tokens
    call_end,
  };
  Kind kind = Kind::content;
  std::string text{};
  int call = 0;  // the call's number, from 0
  bool operator==(const AnswerEvent&) const = default;
};

struct AnswerForm {
  const CallFormat* calls = nullptr;       // null: the request has no tools (see may_call for harmony)
  bool may_call = true;                    // false: `calls` is only used to separate messages
  const ThoughtMarks* thoughts = nullptr;  // null: thoughts are not parsed
  bool in_thought = false;                 // the prompt already opened a thought (text::Prompt)
  std::shared_ptr<const ToolTypes> tools;  // null: their types are unknown
};

class AnswerParser {
 public:
  explicit AnswerParser(AnswerForm form);
  ~AnswerParser();
  AnswerParser(AnswerParser&&) noexcept;

  /// Parses more text. Text that may be part of a mark or a call is held back.
  std::vector<AnswerEvent> push(std::string_view text);
  /// Ends the answer and returns the text that was held back. No call may follow.
  std::vector<AnswerEvent> finish();
  int calls() const;

  class Splitter;

 private:
  std::unique_ptr<Splitter> splitter_;
};

}  // namespace millrace::text
