// Renders a conversation to a prompt with the Jinja template in the model's file (text/jinja).
//
// Text of the template itself may contain special tokens; text from messages, tools and options never becomes one.
// Templates differ in what they accept (a system role or none, arguments of tool calls as an object or as text, null or
// empty content beside tool calls). A ChatTemplate finds this out when it is created and adapts conversations to it.
// Thread-safety: immutable once made.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "base/work_grant.h"
#include "modelfile/gguf.h"
#include "text/answer_format.h"
#include "text/tokenizer.h"

namespace millrace::text {

struct Message {
  std::string role{};  // "system", "user", "assistant", "tool"
  std::string content{};
  std::string reasoning{};  // the assistant's thought before the content; may be empty
};

struct Conversation;  // messages with tool calls, tools, options: text/conversation.h

/// Capabilities of a template.
struct ChatFeatures {
  bool tools = false;     // it renders `tools`
  bool thinking = false;  // it reads `enable_thinking`
};

/// A prompt ready for the assistant's answer.
struct Prompt {
  std::vector<TokenId> ids;
  bool in_thought = false;  // the template opened a thought, so the answer begins within it
  AnswerFormat format;      // the answer's syntax of thoughts and calls, derived from the template
};

class ChatTemplate {
 public:
  /// Loads tokenizer.chat_template, and tokenizer.chat_template.tool_use if there is one; of files without one the
  /// architecture's own (default_template.h), or one that continues texts. Errors: unsupported (it cannot be parsed).
  static Expected<std::unique_ptr<ChatTemplate>> from_model(const modelfile::Model& model);
  /// Parses Jinja text. `tool_use` replaces it in conversations with tools; empty: none.
  static Expected<std::unique_ptr<ChatTemplate>> from_text(std::string jinja, std::string tool_use = {});
  ~ChatTemplate();

  /// The token ids of the conversation, with one BOS first if the tokenizer adds one. Errors: invalid_argument (the
  /// template refuses the conversation), unsupported (the conversation has tools, and the template none).
  Expected<std::vector<TokenId>> render(const Tokenizer& tokenizer, const std::vector<Message>& messages,
                                        bool add_generation_prompt) const;
  /// `grant`, if not null, must grant the memory for rendering (out_of_budget), and cancels rendering if the prompt is
  /// no longer wanted (cancelled).
  Expected<Prompt> prompt(const Tokenizer& tokenizer, const Conversation& conversation,
                          WorkGrant* grant = nullptr) const;
  /// The same as text, with special tokens spelled out.
  Expected<std::string> text(const Tokenizer& tokenizer, const Conversation& conversation,
                             WorkGrant* grant = nullptr) const;

  const std::string& source() const;  // the Jinja text
  /// The format of answers; `tools`: the conversation has tools.
  const AnswerFormat& answer_format(bool tools) const;
  const ChatFeatures& features() const;

 private:
  struct Parts;
  explicit ChatTemplate(std::unique_ptr<const Parts> parts);
  std::unique_ptr<const Parts> parts_;
};

}  // namespace millrace::text
