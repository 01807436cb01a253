// A conversation on a terminal or in a pipe: renders messages, streams the answer, keeps the history and its KV.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "app/cli/command.h"
#include "app/cli/progress.h"

namespace millrace::cli {

struct ChatOptions {
  std::string system;
  bool raw = false;  // the text goes to the model as it is, without a chat template
  bool quiet = false;
  SamplingFlags sampling;
  std::optional<bool> think;  // what the template's enable_thinking says; nullopt: nothing
};

class Chat {
 public:
  /// `engine` outlives the chat.
  Chat(engine::Engine& engine, ChatOptions options);

  /// Sends `text` as the user's turn and streams the answer to stdout; thoughts are dim on a terminal, and in a pipe
  /// stay as the model wrote them. Errors end the turn, not the chat: the turn is
  /// forgotten then. Code::cancelled when Ctrl-C stopped the answer (what was said so far is kept).
  Status say(const std::string& text);
  void clear();

  ChatOptions& options() { return options_; }
  const std::vector<text::Message>& messages() const { return messages_; }
  const engine::Result& last() const { return last_; }
  double total_seconds() const { return total_seconds_; }
  std::int64_t total_decoded() const { return total_decoded_; }

 private:
  Expected<text::Prompt> prompt_for(const std::string& text) const;

  engine::Engine& engine_;
  ChatOptions options_;
  std::unique_ptr<engine::Session> session_;
  std::vector<text::Message> messages_;
  std::string raw_history_;
  engine::Result last_;
  double total_seconds_ = 0;
  std::int64_t total_decoded_ = 0;
};

}  // namespace millrace::cli
