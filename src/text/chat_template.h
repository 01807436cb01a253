// Turns a conversation into a prompt, by the Jinja template in the model's file (text/jinja).
//
// What the template itself wrote may hold special tokens; what came from messages, tools and options never becomes one.
// Templates differ in what they expect (a system role or none, arguments of tool calls as an object or as text, null or
// empty content beside tool calls): a ChatTemplate finds out when it is made, and gives each template what it takes.
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
  std::string reasoning{};  // what an assistant thought before it said that; empty: nothing
};

struct Conversation;  // messages with tool calls, tools, options: text/conversation.h

/// What a template can do, for those who choose by it.
struct ChatFeatures {
  bool tools = false;     // it tells the model of `tools`
  bool thinking = false;  // it listens to `enable_thinking`
};

/// A prompt ready for the assistant's answer.
struct Prompt {
  std::vector<TokenId> ids;
  bool in_thought = false;  // the template has opened a thought, with which the answer begins
  AnswerFormat format;      // how the model writes thoughts and calls, as the template that rendered this tells
};

class ChatTemplate {
 public:
  /// From tokenizer.chat_template, and tokenizer.chat_template.tool_use where there is one. Errors: not_found (the file
  /// has none: the message says to use --raw), unsupported (it cannot be read).
  static Expected<std::unique_ptr<ChatTemplate>> from_model(const modelfile::Model& model);
  /// From Jinja text. `tool_use` takes its place in conversations with tools; empty: there is none.
  static Expected<std::unique_ptr<ChatTemplate>> from_text(std::string jinja, std::string tool_use = {});
  ~ChatTemplate();

  /// Token ids of the conversation; BOS first where the tokenizer adds one, and never twice. Errors: invalid_argument
  /// (the template refuses the conversation), unsupported (tools, for a template that knows of none).
  Expected<std::vector<TokenId>> render(const Tokenizer& tokenizer, const std::vector<Message>& messages,
                                        bool add_generation_prompt) const;
  /// `grant`, where there is one, is asked for the memory that rendering takes (out_of_budget) and whether the prompt
  /// is still wanted (cancelled).
  Expected<Prompt> prompt(const Tokenizer& tokenizer, const Conversation& conversation,
                          WorkGrant* grant = nullptr) const;
  /// The same as text, special tokens spelled out.
  Expected<std::string> text(const Tokenizer& tokenizer, const Conversation& conversation,
                             WorkGrant* grant = nullptr) const;

  const std::string& source() const;  // the Jinja text
  /// How a model of this template answers; `tools`: where it is given some.
  const AnswerFormat& answer_format(bool tools) const;
  const ChatFeatures& features() const;

 private:
  struct Parts;
  explicit ChatTemplate(std::unique_ptr<const Parts> parts);
  std::unique_ptr<const Parts> parts_;
};

}  // namespace millrace::text
