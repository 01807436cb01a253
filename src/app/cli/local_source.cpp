// Answers of an engine in this process.
#include <fmt/core.h>

#include <utility>

#include "app/cli/source.h"
#include "app/generate/form.h"
#include "app/generate/sight.h"
#include "base/bytes.h"
#include "base/say.h"
#include "text/conversation.h"

namespace millrace::cli {
namespace {

/// Messages on channels as a text that people can read: thoughts between <think> and </think>.
class Plain {
 public:
  /// Valid until the next call.
  std::string_view of(const std::vector<text::AnswerEvent>& events) {
    text_.clear();
    for (const text::AnswerEvent& event : events) {
      const bool thought = event.kind == text::AnswerEvent::Kind::reasoning;
      if (thought != thinks_) text_ += thought ? "<think>\n" : "\n</think>\n\n";
      thinks_ = thought;
      text_ += event.text;
    }
    return text_;
  }

 private:
  std::string text_;
  bool thinks_ = false;
};

class LocalSource final : public Source {
 public:
  LocalSource(engine::Engine& engine, ChatDefaults defaults, std::unique_ptr<text::ChatTemplate> own,
              generate::Job form)
      : engine_(engine),
        defaults_(std::move(defaults)),
        own_(std::move(own)),
        form_(std::move(form)),
        session_(engine.new_session()) {}

  Expected<Said> answer(const Ask& ask, const Listener& listener) override {
    MR_ASSIGN_OR_RETURN(generate::Prompt prompt, prompt_for(ask));
    text::AnswerForm form;
    form.in_thought = prompt.in_thought;
    form.may_call = false;
    if (!ask.is_raw) form.thoughts = prompt.format.thoughts;
    const bool channels = !ask.is_raw && prompt.format.calls != nullptr && prompt.format.calls->channels;
    if (channels) form.calls = prompt.format.calls;
    text::AnswerParser parser(form);
    Plain plain;
    Said said;
    engine::Request request;
    generate::Job form_job = form_;
    form_job.chat = !ask.is_raw;
    form_job.chat_template = defaults_.chat_template;
    form_job.thinking = ask.thinking;
    MR_ASSIGN_OR_RETURN(request.constraint, generate::make_constraint(engine_, form_job, prompt));
    generate::EngineMemory memory(engine_, [] { return interrupted().load(); });
    MR_ASSIGN_OR_RETURN(request.pictures, generate::see_pictures(engine_, ask.pictures, prompt, &memory));
    request.prompt = std::move(prompt.ids);
    request.sampler = sampler_options(ask.sampling);
    request.max_tokens = ask.sampling.max_tokens;
    request.stop = ask.sampling.stop;
    request.shown_tokens = text::mark_tokens(engine_.tokenizer(), {form.calls, form.thoughts});
    request.on_prompt = listener.on_prompt;
    request.on_text = [&](std::string_view text, std::span<const text::TokenId>) {
      Piece piece{text, parser.push(text)};
      if (channels) piece.text = plain.of(piece.events);
      said.keep(piece.events);
      // A reader that went away stops the answer as Ctrl-C does.
      if (!listener.on_piece(piece)) interrupted() = true;
    };
    engine::Result result = engine_.run(std::move(request), session_.get(), &interrupted());
    Piece last{"", parser.finish()};
    if (channels) last.text = plain.of(last.events);
    said.keep(last.events);
    if (!last.events.empty()) listener.on_piece(last);
    if (result.finish == engine::Finish::error) {
      session_->clear();
      return result.status;
    }
    said.text = std::move(result.text);
    said.finish = result.finish;
    said.prompt_tokens = result.prompt_tokens;
    said.answer_tokens = std::ssize(result.tokens);
    said.prompt_seconds = result.prompt_seconds;
    said.decode_seconds = result.decode_seconds;
    return said;
  }

  void forget() override { session_->clear(); }
  std::string name() const override { return engine_.model().hyperparameters().name; }
  std::int64_t context_tokens() const override { return engine_.context_tokens(); }
  Status sees() const override {
    if (generate::spec_of(engine_) != nullptr) return {};
    return error(Code::invalid_argument,
                 "this model reads text only; if it was published with an mmproj file, give that with --mmproj, or "
                 "'millrace pull' the model again");
  }

  std::string describe(std::string_view what) const override {
    if (what == "plan") return residency::render_plan(engine_.plan(), engine_.plan_options(), engine_.rates());
    std::string out;
    if (what == "budget") {
      for (const auto& entry : engine_.budget().entries())
        out += fmt::format("  {:<12} {:>10}\n", entry.tag, format_bytes(entry.bytes));
      return out + fmt::format("  {:<12} {:>10} of {}\n", "granted", format_bytes(engine_.budget().reserved_bytes()),
                               format_bytes(engine_.budget().cap_bytes()));
    }
    const auto& hp = engine_.model().hyperparameters();
    out = fmt::format("  {} ({}), {} layers, model_dim {}, {} heads, {} kv_heads, vocabulary {}, context {}\n", hp.name,
                      hp.architecture, hp.layers, hp.model_dim, hp.heads, hp.kv_heads, hp.vocab,
                      engine_.context_tokens());
    if (hp.experts > 0) out += fmt::format("  {} experts a layer, {} used by a token\n", hp.experts, hp.top_k);
    return out;
  }

 private:
  Expected<generate::Prompt> prompt_for(const Ask& ask) const {
    const text::Tokenizer& tokenizer = engine_.tokenizer();
    std::vector<text::TokenId> ids;
    if (ask.is_raw) {
      if (tokenizer.adds_bos() && tokenizer.bos()) ids.push_back(*tokenizer.bos());
      const auto body = tokenizer.encode(ask.raw, text::Specials::parse);
      ids.insert(ids.end(), body.begin(), body.end());
      if (ids.empty()) return error(Code::invalid_argument, "the prompt is empty; write something");
      generate::Prompt prompt;
      prompt.ids = std::move(ids);
      return prompt;
    }
    std::vector<text::Message> messages;
    if (!ask.system.empty()) messages.push_back({"system", ask.system});
    messages.insert(messages.end(), defaults_.messages.begin(), defaults_.messages.end());
    messages.insert(messages.end(), ask.messages.begin(), ask.messages.end());
    text::Conversation conversation;
    conversation.messages = text::to_json(messages);
    conversation.thinking = ask.thinking;
    generate::Seen seen;
    if (!ask.pictures.empty()) {
      MR_ASSIGN_OR_RETURN(seen,
                          generate::settle_pictures(generate::spec_of(engine_), ask.pictures, conversation.messages));
      conversation.markers = ask.pictures.markers();
      conversation.inserts = std::move(seen.inserts);
    }
    std::vector<std::size_t> inserted;
    conversation.inserted = &inserted;
    const text::ChatTemplate& chat_template = own_ != nullptr ? *own_ : *engine_.chat_template();
    MR_ASSIGN_OR_RETURN(text::Prompt made, chat_template.prompt(tokenizer, conversation));
    generate::Prompt prompt{std::move(made), std::move(seen.grids), std::move(inserted)};
    MR_RETURN_IF_ERROR(generate::place_rows(engine_, ask.pictures, prompt));
    return prompt;
  }

  engine::Engine& engine_;
  const ChatDefaults defaults_;
  const std::unique_ptr<text::ChatTemplate> own_;
  const generate::Job form_;
  const std::unique_ptr<engine::Session> session_;
};

}  // namespace

void note_without_template() {
  say(stderr, "note: the file has no chat template (a base model?); it continues the text\n");
}

Expected<ChatDefaults> chat_defaults(const store::Manifest& manifest) {
  ChatDefaults defaults;
  defaults.chat_template = manifest.chat_template;
  for (const auto& message : manifest.messages) {
    const bool good = message.is_object() && message.contains("role") && message["role"].is_string() &&
                      message.contains("content") && message["content"].is_string();
    if (!good)
      return error(Code::corrupt, "model '{}': its MESSAGEs are damaged; create it again", manifest.name.text());
    defaults.messages.push_back({message["role"], message["content"]});
  }
  return defaults;
}

Expected<std::unique_ptr<Source>> local_source(engine::Engine& engine, const ChatDefaults& defaults, bool raw,
                                               generate::Job form) {
  std::unique_ptr<text::ChatTemplate> own;
  if (!raw && !defaults.chat_template.empty()) {
    MR_ASSIGN_OR_RETURN(own, text::ChatTemplate::from_text(defaults.chat_template));
  }
  if (!raw && own == nullptr && engine.chat_template() == nullptr) return engine.chat_template_status();
  const text::ChatTemplate* const chat_template = own != nullptr ? own.get() : engine.chat_template();
  if (!raw && text::continues_text(*chat_template)) note_without_template();
  return std::unique_ptr<Source>(std::make_unique<LocalSource>(engine, defaults, std::move(own), std::move(form)));
}

}  // namespace millrace::cli
