// What a chat template accepts, found by rendering small conversations when the template is loaded, and how any
// conversation becomes one that it accepts.
// Thread-safety: pure functions.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

#include "text/conversation.h"
#include "text/jinja/template.h"

namespace millrace::text {

/// Each flag says that the template renders all of such a conversation. A template that raises an exception does not,
/// and neither does one that leaves a message out.
struct ChatDialect {
  bool system = true;                              // a system message at the beginning
  bool systems = true;                             // several of them there
  bool late_system = true;                         // one after other messages
  bool no_user = true;                             // no user's message at all
  bool user_twice = true, assistant_twice = true;  // one after the other
  bool assistant_first = true;                     // before any user's message
  bool developer = false;                          // the role, besides "system"

  bool calls = true;                 // an assistant's tool calls, with the results after them
  bool parallel_calls = true;        // several in one message
  bool lone_result = true;           // a result without its call
  bool any_call_id = true;           // not only those of nine letters and digits, as Mistral's templates
  bool user_after_result = true;     // a user's message straight after a result
  bool answer_before_user = true;    // an empty answer may stand between the two
  bool words_beside_calls = true;    // content in a message with calls
  bool words_before_calls = true;    // content in a message of its own before that
  bool thought_beside_words = true;  // a thought and content in a message with calls

  bool parts = false;          // content is a list of parts, never a string
  bool null_content = false;   // of an assistant's message that is nothing but tool calls; else an empty string
  bool argument_text = false;  // arguments of tool calls as JSON text; else as an object
};

/// Renders small conversations to see which of them come through.
ChatDialect find_dialect(const jinja::Template& jinja, std::string_view source);

/// The least that any template accepts: what `dialect` leaves of the system's role, then users and assistants in turn,
/// with calls and results in words.
ChatDialect strictest(ChatDialect dialect);

/// The conversation as the template takes it. Messages are merged, moved or given another role; no text is lost.
Conversation::Json adapt_messages(const ChatDialect& dialect, Conversation::Json messages);

}  // namespace millrace::text
