#include "app/cli/chat.h"

#include <fmt/core.h>
#include <unistd.h>

#include <cstdio>

#include "text/answer_parser.h"
#include "text/conversation.h"

namespace millrace::cli {
namespace {

/// Prints an answer while it comes and keeps it, thoughts and words apart.
class Answer {
 public:
  /// `splits`: thoughts are looked for.
  Answer(bool splits, bool in_thought)
      : dims_(splits && isatty(STDOUT_FILENO) != 0), parser_({text::CallStyle::none, splits && in_thought, splits}) {}

  /// False when nobody reads on.
  bool add(std::string_view piece) {
    keep(parser_.push(piece));
    if (!dims_) show(piece);
    return std::fflush(stdout) == 0 && alive_;
  }
  text::Message finish() {
    keep(parser_.finish());
    if (dim_) show("\x1b[0m");
    show("\n");
    std::fflush(stdout);
    return std::move(message_);
  }

 private:
  void keep(const std::vector<text::AnswerEvent>& events) {
    for (const text::AnswerEvent& event : events) {
      const bool thought = event.kind == text::AnswerEvent::Kind::reasoning;
      (thought ? message_.reasoning : message_.content) += event.text;
      if (!dims_) continue;
      if (thought != dim_) show(thought ? "\x1b[2m" : "\x1b[0m\n\n");
      dim_ = thought;
      show(event.text);
    }
  }
  void show(std::string_view text) {
    alive_ = alive_ && std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
  }

  bool dims_, dim_ = false, alive_ = true;
  text::AnswerParser parser_;
  text::Message message_{"assistant"};
};

}  // namespace

Chat::Chat(engine::Engine& engine, ChatOptions options)
    : engine_(engine), options_(std::move(options)), session_(engine.new_session()) {
  clear();
}

void Chat::clear() {
  session_->clear();
  messages_.clear();
  raw_history_.clear();
}

Expected<text::Prompt> Chat::prompt_for(const std::string& text) const {
  const auto& tokenizer = engine_.tokenizer();
  std::vector<text::TokenId> ids;
  if (options_.raw) {
    if (tokenizer.adds_bos() && tokenizer.bos()) ids.push_back(*tokenizer.bos());
    const auto body = tokenizer.encode(raw_history_ + text, text::Specials::parse);
    ids.insert(ids.end(), body.begin(), body.end());
    if (ids.empty()) return error(Code::invalid_argument, "the prompt is empty; write something");
    return text::Prompt{std::move(ids)};
  }
  const auto* chat_template = engine_.chat_template();
  if (chat_template == nullptr) return engine_.chat_template_status();
  std::vector<text::Message> messages;
  if (!options_.system.empty()) messages.push_back({"system", options_.system});
  messages.insert(messages.end(), messages_.begin(), messages_.end());
  messages.push_back({"user", text});
  text::Conversation conversation;
  conversation.messages = text::to_json(messages);
  if (options_.think) conversation.options["enable_thinking"] = *options_.think;
  return chat_template->prompt(tokenizer, conversation);
}

Status Chat::say(const std::string& text) {
  MR_ASSIGN_OR_RETURN(auto prompt, prompt_for(text));
  Progress progress("Reading the prompt", Unit::tokens, options_.quiet);
  Answer answer(!options_.raw, prompt.in_thought);
  engine::Request request;
  request.prompt = std::move(prompt.ids);
  request.sampler = sampler_options(options_.sampling);
  request.max_tokens = options_.sampling.max_tokens;
  request.stop = options_.sampling.stop;
  request.on_prompt = [&](std::int64_t done, std::int64_t total) {
    progress.update(static_cast<std::uint64_t>(done), static_cast<std::uint64_t>(total));
  };
  request.on_text = [&](std::string_view piece, std::span<const text::TokenId>) {
    progress.finish();
    // A reader that went away stops the answer as Ctrl-C does.
    if (!answer.add(piece)) interrupted() = true;
  };
  last_ = engine_.run(std::move(request), session_.get(), &interrupted());
  progress.finish();
  text::Message said = answer.finish();
  total_seconds_ += last_.prompt_seconds + last_.decode_seconds;
  total_decoded_ += static_cast<std::int64_t>(last_.tokens.size());
  if (last_.finish == engine::Finish::error) {
    session_->clear();
    return last_.status;
  }
  if (options_.raw) {
    raw_history_ += text + last_.text;
  } else {
    messages_.push_back({"user", text});
    messages_.push_back(std::move(said));
  }
  if (last_.finish == engine::Finish::cancelled) return error(Code::cancelled, "stopped");
  if (last_.finish == engine::Finish::length && options_.sampling.max_tokens < 0 && !options_.quiet) {
    fmt::print(stderr, "(the context of {} tokens is full; --ctx raises it, /clear starts anew)\n",
               engine_.context_tokens());
  }
  return {};
}

}  // namespace millrace::cli
