// How families of models write thoughts and tool calls in their answers, one table row per family. The template that
// rendered the prompt determines which rows apply to an answer. Thread-safety: constants and pure functions.
#pragma once

#include <array>
#include <span>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace millrace::text {

/// The marks around a thought.
struct ThoughtMarks {
  std::string_view begin, end;
  bool anywhere = false;  // anywhere in an answer, not only at its beginning
};

/// A call as tags: name_begin NAME name_end (key_begin KEY key_end value_begin VALUE value_end)* end, with white space
/// between them. If a value begins with a line break, it ends with one; neither is part of the value.
struct TagStyle {
  std::string_view name_begin, name_end, key_begin, key_end, value_begin, value_end, end;
  /// key_begin KEY key_end VALUE value_end KEY key_end instead: a value is a text, members in such tags, or items.
  bool elements = false;
};

/// The syntax of calls. Empty or false members are not used.
struct CallFormat {
  enum class Body {
    json,    // {"name", "arguments"} or a list of them; or the name in tags or before name_end, followed by arguments
    python,  // [NAME(KEY=VALUE, ...), ...]
    loose,   // NAME{KEY: VALUE, ...}, strings between `quote`s
  };

  std::string_view name;                      // for messages
  std::array<std::string_view, 2> told_by{};  // texts that the template contains (all of them)
  std::string_view section{}, section_end{};  // around all calls; optional
  std::string_view call{}, call_end{};        // around one call; the end is optional
  const TagStyle* tags = nullptr;             // if `call` is empty, tags open a call by themselves
  bool tags_alone = false;                    // tags also open a call by themselves if they name a given tool
  std::string_view name_before{};             // before the name
  std::string_view name_end{};                // after the name; the arguments follow as JSON
  std::string_view name_end_then{};           // used instead after name_before; empty: name_end
  std::string_view id_begin{};                // after the name, before name_end: an id, which is discarded
  Body body = Body::json;
  std::string_view quote{};                   // for Body::loose
  bool name_is_key = false;                   // {NAME: arguments} instead of {"name", "arguments"}
  bool bare = false;                          // an answer that begins with such JSON is a call without marks
  bool opened = false;                        // the prompt already opened the first call
  std::string_view spoken{};                  // a call of this pseudo-function is content
  bool channels = false;                      // harmony: messages with headers, see channel_splitter.cpp
  std::array<std::string_view, 2> dropped{};  // marks around content
};

/// All known formats, the most specific first.
std::span<const CallFormat> call_formats();
std::span<const ThoughtMarks> thought_marks();
/// The format with this name. REQUIRES: it exists.
const CallFormat& call_format(std::string_view name);
/// The format given to models whose template has no tools: <tool_call>{"name", "arguments"}</tool_call>.
const CallFormat& default_call_format();
const ThoughtMarks& default_thoughts();

/// The format of a model's answers, derived from its template.
struct AnswerFormat {
  const CallFormat* calls = nullptr;  // null: the template describes no calls
  const ThoughtMarks* thoughts = nullptr;
};
AnswerFormat find_answer_format(std::string_view jinja);

/// The control tokens that separate the parts of an answer. Only the AnswerParser sees their text.
std::vector<TokenId> mark_tokens(const Tokenizer& tokenizer, const AnswerFormat& format);

}  // namespace millrace::text
