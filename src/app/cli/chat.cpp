#include "app/cli/chat.h"

#include <fmt/core.h>

#include <cstdio>

namespace millrace::cli {

Chat::Chat(engine::Engine& engine, ChatOptions options)
    : engine_(engine), options_(std::move(options)), session_(engine.new_session()) {
  clear();
}

void Chat::clear() {
  session_->clear();
  messages_.clear();
  raw_history_.clear();
}

Expected<std::vector<text::TokenId>> Chat::prompt_for(const std::string& text) const {
  const auto& tokenizer = engine_.tokenizer();
  std::vector<text::TokenId> ids;
  if (options_.raw) {
    if (tokenizer.adds_bos() && tokenizer.bos()) ids.push_back(*tokenizer.bos());
    const auto body = tokenizer.encode(raw_history_ + text, text::Specials::parse);
    ids.insert(ids.end(), body.begin(), body.end());
    if (ids.empty()) return error(Code::invalid_argument, "the prompt is empty; write something");
    return ids;
  }
  const auto* chat_template = engine_.chat_template();
  if (chat_template == nullptr) return engine_.chat_template_status();
  std::vector<text::Message> conversation;
  if (!options_.system.empty()) conversation.push_back({"system", options_.system});
  conversation.insert(conversation.end(), messages_.begin(), messages_.end());
  conversation.push_back({"user", text});
  return chat_template->render(tokenizer, conversation, true);
}

Status Chat::say(const std::string& text) {
  MR_ASSIGN_OR_RETURN(auto prompt, prompt_for(text));
  Progress progress("Reading the prompt", Unit::tokens, options_.quiet);
  engine::Request request;
  request.prompt = std::move(prompt);
  request.sampler = sampler_options(options_.sampling);
  request.max_tokens = options_.sampling.max_tokens;
  request.stop = options_.sampling.stop;
  request.on_prompt = [&](std::int64_t done, std::int64_t total) {
    progress.update(static_cast<std::uint64_t>(done), static_cast<std::uint64_t>(total));
  };
  request.on_text = [&](std::string_view piece, std::span<const text::TokenId>) {
    progress.finish();
    // A reader that went away stops the answer as Ctrl-C does.
    if (std::fwrite(piece.data(), 1, piece.size(), stdout) != piece.size() || std::fflush(stdout) != 0)
      interrupted() = true;
  };
  last_ = engine_.run(std::move(request), session_.get(), &interrupted());
  progress.finish();
  std::fputs("\n", stdout);
  std::fflush(stdout);
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
    messages_.push_back({"assistant", last_.text});
  }
  if (last_.finish == engine::Finish::cancelled) return error(Code::cancelled, "stopped");
  if (last_.finish == engine::Finish::length && options_.sampling.max_tokens < 0 && !options_.quiet) {
    fmt::print(stderr, "(the context of {} tokens is full; --ctx raises it, /clear starts anew)\n",
               engine_.context_tokens());
  }
  return {};
}

}  // namespace millrace::cli
