// A conversation on a terminal or in a pipe: asks a source for answers, shows them while they come, keeps the history.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "app/cli/command.h"
#include "app/cli/progress.h"
#include "app/cli/source.h"
#include "app/cli/state.h"

namespace millrace::cli {

struct ChatOptions {
  std::string system;
  bool raw = false;  // the text goes to the model as it is, without a chat template
  bool quiet = false;
  SamplingFlags sampling;
  generate::Pictures pictures = {};  // what the first turn of a conversation shows
  std::string shown = {};            // their markers
  std::optional<bool> think;         // what the template's enable_thinking says; nullopt: nothing
};

class Chat {
 public:
  /// `source` outlives the chat.
  Chat(Source& source, ChatOptions options) : source_(source), options_(std::move(options)) {}

  /// Sends `text` as the user's turn and streams the answer to stdout; thoughts are dim on a terminal, and in a pipe
  /// stay as the model wrote them. Errors end the turn, not the chat: the turn is
  /// forgotten then. Code::cancelled when Ctrl-C stopped the answer (what was said so far is kept).
  Status say(const std::string& text);
  void clear();
  /// The conversation so far, to be kept, and one that was.
  SavedChat saved() const;
  void resume(SavedChat saved);
  bool is_empty() const { return messages_.empty() && raw_history_.empty(); }

  Source& source() { return source_; }
  ChatOptions& options() { return options_; }
  const std::vector<text::Message>& messages() const { return messages_; }
  const Said& last() const { return last_; }
  double total_seconds() const { return total_seconds_; }
  std::int64_t total_decoded() const { return total_decoded_; }

 private:
  Source& source_;
  ChatOptions options_;
  std::vector<text::Message> messages_;
  std::string raw_history_;
  Said last_;
  double total_seconds_ = 0;
  std::int64_t total_decoded_ = 0;
};

}  // namespace millrace::cli
