// Turns a conversation into a prompt. ChatML here; the whole of Jinja takes this place later, behind the same
// interface.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "modelfile/gguf.h"
#include "text/tokenizer.h"

namespace millrace::text {

struct Message {
  std::string role;  // "system", "user", "assistant"
  std::string content;
};

class ChatTemplate {
 public:
  /// Recognises what the file's tokenizer.chat_template does. Errors: unsupported (a template this version cannot
  /// render; the message says to use `--raw`), not_found where the file has none.
  static Expected<std::unique_ptr<ChatTemplate>> from_model(const modelfile::Model& model);
  virtual ~ChatTemplate() = default;
  virtual std::string name() const = 0;  // "chatml"

  /// Token ids of the conversation, ready for the assistant's answer; BOS first where the tokenizer adds one. Message
  /// text is encoded as plain text: it cannot inject special tokens. Errors: invalid_argument (a role the template does
  /// not know).
  virtual Expected<std::vector<TokenId>> render(const Tokenizer& tokenizer, const std::vector<Message>& messages,
                                                bool add_generation_prompt) const = 0;
};

}  // namespace millrace::text
