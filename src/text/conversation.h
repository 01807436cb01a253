// A conversation in the form that OpenAI's API gave its name to, for chat templates.
// Thread-safety: a value.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/status.h"
#include "text/chat_template.h"
#include "text/markers.h"
#include "text/thinking.h"

namespace millrace::text {

struct Conversation {
  using Json = nlohmann::ordered_json;

  /// Objects with "role" and "content" (a string, null, or parts [{"type": "text", "text"}]); an assistant's maybe with
  /// "reasoning_content" (or "thinking") and "tool_calls" [{"id", "type", "function": {"name", "arguments"}}],
  /// arguments as an object or as its JSON text; a tool's with "tool_call_id" or "name".
  Json messages = Json::array();
  Json tools = Json::array();     // [{"type": "function", "function": {"name", "description", "parameters"}}]
  Json options = Json::object();  // further variables of the template: {"enable_thinking": false}
  Thinking thinking;
  bool add_generation_prompt = true;
  bool calls_in_words = false;  // earlier calls and results become text, whatever the template knows of them
  // Markers in the messages' texts become these texts behind the template, as if the template had written them: special
  // tokens in them count.
  Markers markers;
  std::vector<std::string> inserts;              // by the marker's index; a marker without a text stays
  std::vector<std::size_t>* inserted = nullptr;  // gets the indices, in the order in which they stand in the prompt
  std::string begun;  // what the assistant has said of its answer already, which goes on from there
};

/// Whether a template is the one that takes the place of a file's that has none: texts go on as they stand.
bool continues_text(const ChatTemplate& chat_template);

/// Errors: invalid_argument (no array of messages, a message without a role, content that is not text: named).
Status check_messages(const Conversation::Json& messages);

Conversation::Json to_json(const std::vector<Message>& messages);

}  // namespace millrace::text
