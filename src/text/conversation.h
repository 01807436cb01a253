// A conversation in the format of OpenAI's API, for chat templates.
// Thread-safety: a value.
#pragma once

#include <string>
#include <vector>

#include "base/json.h"
#include "base/status.h"
#include "text/chat_template.h"
#include "text/markers.h"
#include "text/thinking.h"

namespace millrace::text {

struct Conversation {
  using Json = nlohmann::ordered_json;

  /// Objects with "role" and "content" (a string, null, or parts [{"type": "text", "text"}]); an assistant's may have
  /// "reasoning_content" (or "thinking") and "tool_calls" [{"id", "type", "function": {"name", "arguments"}}],
  /// arguments as an object or as its JSON text; a tool's with "tool_call_id" or "name".
  Json messages = Json::array();
  Json tools = Json::array();     // [{"type": "function", "function": {"name", "description", "parameters"}}]
  Json options = Json::object();  // additional template variables: {"enable_thinking": false}
  Thinking thinking;
  bool add_generation_prompt = true;
  bool calls_in_words = false;  // render earlier calls and results as text, even if the template supports them
  // After rendering, markers in the messages' texts are replaced by these texts, which are trusted as the template is:
  // special tokens in them count.
  Markers markers;
  std::vector<std::string> inserts;              // by the marker's index; a marker without a text is kept
  std::vector<std::size_t>* inserted = nullptr;  // receives the indices in the order of the prompt
  std::string begun;                             // the beginning of the assistant's answer, which the model continues
};

/// True if the template is the fallback for files without one, which continues the text.
bool continues_text(const ChatTemplate& chat_template);

/// Errors: invalid_argument (messages are not an array, a message lacks a role, content is not text; each named).
Status check_messages(const Conversation::Json& messages);

Conversation::Json to_json(const std::vector<Message>& messages);

}  // namespace millrace::text
