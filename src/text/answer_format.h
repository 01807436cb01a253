// How families of models write thoughts and tool calls into their answers: one row of a table each. Which rows hold for
// an answer is told by the template that rendered its prompt.
// Thread-safety: constants and pure functions.
#pragma once

#include <array>
#include <span>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace millrace::text {

/// What stands around a thought.
struct ThoughtMarks {
  std::string_view begin, end;
  bool anywhere = false;  // not only at the beginning of an answer
};

/// A call as tags: name_begin NAME name_end (key_begin KEY key_end value_begin VALUE value_end)* end, white space
/// between them. A value that begins with a line break ends with one; both are no part of it.
struct TagStyle {
  std::string_view name_begin, name_end, key_begin, key_end, value_begin, value_end, end;
};

/// How calls are written. What is empty or false is not there.
struct CallFormat {
  enum class Body {
    json,    // {"name", "arguments"} or a list of them; or the name in tags or before name_end, and then arguments
    python,  // [NAME(KEY=VALUE, ...), ...]
    loose,   // NAME{KEY: VALUE, ...}, strings between `quote`s
  };

  std::string_view name;                      // for people
  std::array<std::string_view, 2> told_by{};  // what the template holds, all of it
  std::string_view section{}, section_end{};  // around all calls; may be missing
  std::string_view call{}, call_end{};        // around one; the end may be missing
  const TagStyle* tags = nullptr;             // with `call` empty they open a call by themselves
  bool tags_alone = false;                    // they do so anyway, where they name a tool that was given
  std::string_view name_before{};             // before the name, no part of it
  std::string_view name_end{};                // after it; the arguments as JSON follow
  std::string_view name_end_then{};           // the same where name_before was there; empty: as name_end
  std::string_view id_begin{};                // after the name, before name_end: an id, which is dropped
  Body body = Body::json;
  std::string_view quote{};                   // of Body::loose
  bool name_is_key = false;                   // {NAME: arguments} instead of {"name", "arguments"}
  bool bare = false;                          // an answer that begins with such JSON is a call without any mark
  bool opened = false;                        // the prompt has opened the first call already
  std::string_view spoken{};                  // a call of this "function" is content
  bool channels = false;                      // harmony: messages with headers, see channel_splitter.cpp
  std::array<std::string_view, 2> dropped{};  // marks around content
};

/// Every format that is known, the most particular first.
std::span<const CallFormat> call_formats();
std::span<const ThoughtMarks> thought_marks();
/// The one of that name. REQUIRES: there is one.
const CallFormat& call_format(std::string_view name);
/// What a model is told that knows of no tools: <tool_call>{"name", "arguments"}</tool_call>.
const CallFormat& default_call_format();
const ThoughtMarks& default_thoughts();

/// What a template tells of its model's answers.
struct AnswerFormat {
  const CallFormat* calls = nullptr;  // null: it tells nothing of calls
  const ThoughtMarks* thoughts = nullptr;
};
AnswerFormat find_answer_format(std::string_view jinja);

/// The control tokens whose text the answer's parts are told apart by: they are shown to the AnswerParser alone.
std::vector<TokenId> mark_tokens(const Tokenizer& tokenizer, const AnswerFormat& format);

}  // namespace millrace::text
