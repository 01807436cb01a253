// Finds what a chat template accepts by rendering small conversations when it is loaded, and adapts any conversation to
// that. Thread-safety: pure functions.
#pragma once

#include <string_view>

#include "base/json.h"
#include "text/conversation.h"
#include "text/jinja/template.h"

namespace millrace::text {

/// A flag is true if the template renders such a conversation completely: it raises no exception and omits no message.
struct ChatDialect {
  bool system = true;                              // a system message at the beginning
  bool systems = true;                             // several system messages at the beginning
  bool late_system = true;                         // a system message after other messages
  bool no_user = true;                             // no user message at all
  bool user_twice = true, assistant_twice = true;  // consecutive messages of one role
  bool assistant_first = true;                     // before any user message
  bool developer = false;                          // the role, besides "system"

  bool calls = true;                 // an assistant's tool calls, with the results after them
  bool parallel_calls = true;        // several in one message
  bool lone_result = true;           // a result without its call
  bool any_call_id = true;           // not only those of nine letters and digits, as Mistral's templates
  bool user_after_result = true;     // a user message directly after a result
  bool answer_before_user = true;    // an empty answer between the two
  bool words_beside_calls = true;    // content in a message with calls
  bool words_before_calls = true;    // content in a separate message before it
  bool thought_beside_words = true;  // a thought and content in a message with calls

  bool parts = false;          // content is a list of parts, never a string
  bool null_content = false;   // content of an assistant's message with only tool calls; otherwise an empty string
  bool argument_text = false;  // arguments of tool calls are JSON text; otherwise an object
};

/// Renders small conversations to find the flags.
ChatDialect find_dialect(const jinja::Template& jinja, std::string_view source);

/// A dialect that any template accepts: the system role as in `dialect`, then alternating users and assistants, with
/// calls and results as text.
ChatDialect strictest(ChatDialect dialect);

/// Adapts the conversation to the template. Messages are merged, moved or given another role; no text is lost.
Conversation::Json adapt_messages(const ChatDialect& dialect, Conversation::Json messages);

}  // namespace millrace::text
