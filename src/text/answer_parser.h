// Takes a model's answer apart while it is written: what it thinks, what it says, which tools it calls.
//
// Thoughts stand between <think> and </think> at the beginning. Calls are JSON, marked the way the model's template
// asks for (CallStyle). A call is reported once its JSON is whole, so that nothing ever has to be taken back: what
// turns out not to be a call is content, letter by letter as it came. How the text is cut into pieces changes nothing.
// Thread-safety: one thread.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace millrace::text {

enum class CallStyle {
  none,    // the model calls no tools, or was given none
  tagged,  // <tool_call>{"name", "arguments"}</tool_call> (Hermes, Qwen), or Qwen3-Coder's <function=...> in it
  bare,    // the answer is JSON {"name", "parameters"} and nothing else (Llama 3), or a list of them (Mistral)
};

/// How a model with this chat template calls tools; `none` where the template tells nothing of tools.
CallStyle find_call_style(std::string_view jinja);

struct AnswerEvent {
  enum class Kind {
    content,
    reasoning,
    call_begin,      // text: the function's name
    call_arguments,  // text: more of a JSON object
    call_end,
  };
  Kind kind = Kind::content;
  std::string text{};
  int call = 0;  // which one, from 0
  bool operator==(const AnswerEvent&) const = default;
};

struct AnswerForm {
  CallStyle calls = CallStyle::none;
  bool in_thought = false;  // the prompt has opened a thought already (text::Prompt)
  bool thoughts = true;     // <think> is looked for
};

class AnswerParser {
 public:
  explicit AnswerParser(AnswerForm form);

  /// What more text brings. Text that may be part of a mark or of a call waits.
  std::vector<AnswerEvent> push(std::string_view text);
  /// The end of the answer: what waited. Nothing may follow.
  std::vector<AnswerEvent> finish();
  int calls() const { return calls_; }

 private:
  enum class State { begin, thought, content, tagged_call, bare_call, plain };

  bool advance(bool last);
  bool begin(bool last);
  bool thought(bool last);
  bool content(bool last);
  bool tagged_call(bool last);
  bool bare_call(bool last);
  /// Reports the calls that `json` holds; false, and nothing reported, if it holds none.
  bool report(std::string_view json);
  void report(const std::string& name, std::string arguments);
  void emit(AnswerEvent::Kind kind, std::string_view text);
  /// Reports all of held_ but white space at the end and what may begin one of the marks.
  void emit_ready(AnswerEvent::Kind kind, std::string_view mark, bool last);
  void drop_spaces();

  AnswerForm form_;
  State state_ = State::begin;
  std::string held_;         // not yet reported
  std::size_t scanned_ = 0;  // of a call: bytes whose brackets and quotes are counted
  int depth_ = 0;
  bool in_string_ = false, escaped_ = false;
  bool trimming_ = false;  // white space at the beginning of held_ is of no interest
  int calls_ = 0;
  std::vector<AnswerEvent> events_;
};

}  // namespace millrace::text
