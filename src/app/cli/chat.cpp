#include "app/cli/chat.h"

#include <fmt/core.h>

#include <cstdio>
#include <optional>

#include "app/cli/terminal.h"
#include "base/os/terminal.h"
#include "base/say.h"

namespace millrace::cli {
namespace {

/// Shows an answer while it comes, thoughts dim where there is a terminal.
class Screen {
 public:
  explicit Screen(bool splits) : dims_(splits && os::is_terminal(os::Stream::output)) {
    if (os::is_terminal(os::Stream::output)) wrapper_.emplace(os::terminal_columns(os::Stream::output));
  }

  /// False when nobody reads on.
  bool add(const Piece& piece) {
    if (!dims_) show(piece.text);
    for (const text::AnswerEvent& event : piece.events) {
      if (!dims_) break;
      const bool thought = event.kind == text::AnswerEvent::Kind::reasoning;
      if (thought != dim_) {
        if (wrapper_) write(wrapper_->finish());
        write(thought ? "\x1b[2m" : "\x1b[0m");  // takes no column
        if (!thought) show("\n\n");
      }
      dim_ = thought;
      show(event.text);
    }
    return std::fflush(stdout) == 0 && alive_;
  }
  void finish() {
    if (wrapper_) write(wrapper_->finish());
    write(dim_ ? "\x1b[0m\n" : "\n");
    std::fflush(stdout);
  }

 private:
  void show(std::string_view text) {
    if (wrapper_)
      write(wrapper_->add(text));
    else
      write(text);
  }
  void write(std::string_view text) {
    alive_ = alive_ && std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
  }

  bool dims_, dim_ = false, alive_ = true;
  std::optional<Wrapper> wrapper_;  // on a terminal
};

}  // namespace

void Chat::clear() {
  source_.forget();
  messages_.clear();
  raw_history_.clear();
}

SavedChat Chat::saved() const {
  SavedChat chat{source_.name(), options_.system, messages_, raw_history_};
  for (text::Message& message : chat.messages)
    while (const auto found = options_.pictures.markers().find(message.content))
      message.content.replace(found->begin, found->end - found->begin, "[image]");
  return chat;
}

void Chat::resume(SavedChat saved) {
  clear();
  options_.system = std::move(saved.system);
  messages_ = std::move(saved.messages);
  raw_history_ = std::move(saved.raw);
}

Status Chat::say(const std::string& text) {
  Ask ask;
  ask.system = options_.system;
  ask.messages = messages_;
  const std::string said_now = (messages_.empty() ? options_.shown : std::string()) + text;
  ask.messages.push_back({"user", said_now});
  ask.pictures = options_.pictures;
  ask.is_raw = options_.raw;
  ask.raw = raw_history_ + text;
  ask.think = options_.think;
  ask.sampling = options_.sampling;
  Progress progress("Reading the prompt", Unit::tokens, options_.quiet);
  Screen screen(!options_.raw);
  Listener listener;
  listener.on_prompt = [&](std::int64_t done, std::int64_t total) {
    progress.update(static_cast<std::uint64_t>(done), static_cast<std::uint64_t>(total));
  };
  listener.on_piece = [&](const Piece& piece) {
    progress.finish();
    return screen.add(piece);
  };
  auto said = source_.answer(ask, listener);
  progress.finish();
  screen.finish();
  if (!said.ok()) return said.status();
  last_ = std::move(*said);
  total_seconds_ += last_.prompt_seconds + last_.decode_seconds;
  total_decoded_ += last_.answer_tokens;
  if (options_.raw) {
    raw_history_ += text + last_.text;
  } else {
    messages_.push_back({"user", said_now});
    messages_.push_back(last_.message);
  }
  if (last_.finish == engine::Finish::cancelled) return error(Code::cancelled, "stopped");
  if (last_.finish == engine::Finish::length && options_.sampling.max_tokens < 0 && !options_.quiet)
    millrace::say(stderr, "(the context of {} tokens is full; --ctx raises it, /clear starts anew)\n",
                  source_.context_tokens());
  return {};
}

}  // namespace millrace::cli
