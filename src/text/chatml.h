// ChatML: <|im_start|>ROLE, a newline, the text, <|im_end|>, a newline; what Qwen, Yi, SmolLM, the demo model and many
// others speak, with small differences that are read from the file's own template.
// Thread-safety: immutable once made.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "text/chat_template.h"

namespace millrace::text {

/// How one model's ChatML differs from the plain form.
struct ChatMlForm {
  std::string default_system;   // spoken where a conversation has no system message of its own; empty: nothing
  std::string answer_opening;   // what follows "assistant\n" in the prompt for an answer ("<think>\n" in some)
  bool drops_thoughts = false;  // earlier answers lose what stands before </think>
  bool trims = false;           // white space around a message's text goes
};

/// What a Jinja template in ChatML does. Errors: unsupported (it does more than a ChatMlForm can say, named).
Expected<ChatMlForm> read_chatml(std::string_view jinja);

class ChatMl final : public ChatTemplate {
 public:
  explicit ChatMl(ChatMlForm form) : form_(std::move(form)) {}
  std::string name() const override { return "chatml"; }
  Expected<std::vector<TokenId>> render(const Tokenizer& tokenizer, const std::vector<Message>& messages,
                                        bool add_generation_prompt) const override;

 private:
  std::string content(const Message& message, bool answered) const;

  ChatMlForm form_;
};

}  // namespace millrace::text
