// A conversation on a terminal or in a pipe: asks a source for answers, shows them while they come, keeps the history.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "app/cli/command.h"
#include "app/cli/picture_file.h"
#include "app/cli/progress.h"
#include "app/cli/source.h"
#include "app/cli/state.h"

namespace millrace::cli {

struct ChatOptions {
  std::string system;
  bool raw = false;  // the text goes to the model as it is, without a chat template
  bool quiet = false;
  SamplingFlags sampling;
  text::Thinking thinking{};  // empty: as the template has it
};

class Chat {
 public:
  /// `source` outlives the chat.
  Chat(Source& source, ChatOptions options) : source_(source), options_(std::move(options)) {}

  /// Has the next turn begin with the picture in this file, which the conversation keeps. Errors: those of
  /// read_picture() and Source::sees(); invalid_argument (the chat has no template, or too many pictures).
  Status show(const std::string& path);
  /// Pictures that wait for the next turn.
  std::span<const ShownPicture> waiting() const { return std::span(shown_).subspan(first_waiting_); }

  /// Sends `text` as the user's turn and streams the answer to stdout; thoughts are dim on a terminal, and in a pipe
  /// stay as the model wrote them. Errors end the turn, not the chat: the turn is
  /// forgotten then, with the pictures that waited for it. Code::cancelled when Ctrl-C stopped the answer (what was
  /// said so far is kept).
  Status say(const std::string& text);
  /// Forgets the conversation, and pictures that wait.
  void clear();
  /// The conversation so far, to be kept, and one that was. Of pictures whose files are not what they were, or that the
  /// model does not see, a note stays; a line of the result for each.
  SavedChat saved() const;
  std::vector<std::string> resume(SavedChat saved);
  /// A message's text, with the names of its pictures.
  std::string text_of(const text::Message& message) const;
  bool is_empty() const { return messages_.empty() && raw_history_.empty(); }

  Source& source() { return source_; }
  ChatOptions& options() { return options_; }
  const std::vector<text::Message>& messages() const { return messages_; }
  const Said& last() const { return last_; }
  double total_seconds() const { return total_seconds_; }
  std::int64_t total_decoded() const { return total_decoded_; }

 private:
  Expected<std::string> show_again(const SavedPicture& saved);

  Source& source_;
  ChatOptions options_;
  std::vector<text::Message> messages_;
  std::string raw_history_;
  generate::Pictures pictures_;      // of the conversation; messages have their markers
  std::vector<ShownPicture> shown_;  // by their index
  std::size_t first_waiting_ = 0;    // of those
  Said last_;
  double total_seconds_ = 0;
  std::int64_t total_decoded_ = 0;
};

}  // namespace millrace::cli
