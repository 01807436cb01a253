// Takes a model's answer apart while it is written: what it thinks, what it says, which tools it calls.
//
// How thoughts and calls are marked is the AnswerFormat's (answer_format.h). A call is told once its name and the
// beginning of its arguments are there, and its arguments as they come: one that the answer's end cuts is told as far
// as it came. What turns out to be no call before that is content, letter by letter as it came. How the text is cut
// into pieces changes nothing but the pieces.
// Thread-safety: one thread.
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
    call_arguments,  // text: more of a JSON object, without white space between its tokens
    call_end,
  };
  Kind kind = Kind::content;
  std::string text{};
  int call = 0;  // which one, from 0
  bool operator==(const AnswerEvent&) const = default;
};

struct AnswerForm {
  const CallFormat* calls = nullptr;       // null: the model was given no tools (see may_call for harmony)
  bool may_call = true;                    // false: of `calls` only how messages are told apart counts
  const ThoughtMarks* thoughts = nullptr;  // null: they are not looked for
  bool in_thought = false;                 // the prompt has opened a thought already (text::Prompt)
  std::shared_ptr<const ToolTypes> tools;  // null: nothing is known of them
};

class AnswerParser {
 public:
  explicit AnswerParser(AnswerForm form);
  ~AnswerParser();
  AnswerParser(AnswerParser&&) noexcept;

  /// What more text brings. Text that may be part of a mark or of a call waits.
  std::vector<AnswerEvent> push(std::string_view text);
  /// The end of the answer: what waited. Nothing may follow.
  std::vector<AnswerEvent> finish();
  int calls() const;

  class Splitter;

 private:
  std::unique_ptr<Splitter> splitter_;
};

}  // namespace millrace::text
