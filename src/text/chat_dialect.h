// What a chat template expects of the messages it is given, found by trying.
// Thread-safety: pure functions.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

#include "text/conversation.h"
#include "text/jinja/template.h"

namespace millrace::text {

struct ChatDialect {
  bool system = true;          // false: a system message becomes the beginning of the first user's
  bool developer = false;      // the role is known; else it is "system"
  bool parts = false;          // content is a list of parts, never a string
  bool null_content = false;   // of an assistant's message that is nothing but tool calls; else an empty string
  bool argument_text = false;  // arguments of tool calls as JSON text; else as an object
};

/// Renders small conversations to see which of them come through.
ChatDialect find_dialect(const jinja::Template& jinja, std::string_view source);

/// The messages as the template wants them.
Conversation::Json adapt_messages(const ChatDialect& dialect, Conversation::Json messages);

}  // namespace millrace::text
