#include "app/generate/prompt.h"

#include <algorithm>

#include "text/conversation.h"

namespace millrace::generate {
namespace {

/// The Hermes convention, for templates that know nothing of tools.
std::string tool_words(const Json& tools) {
  std::string words = "You may call functions. Their signatures stand between <tools></tools>:\n<tools>\n";
  for (const Json& tool : tools) words += tool.dump() + "\n";
  return words +
         "</tools>\nTo call one, answer with a JSON object of its name and arguments between <tool_call></tool_call>:\n"
         "<tool_call>\n{\"name\": \"...\", \"arguments\": {...}}\n</tool_call>";
}

/// The messages with the tools described in the system's: for templates without tools.
Json messages_with_tools(const Job& job) {
  Json out = job.messages;
  const std::string role = out.empty() ? "" : word(out[0], "role");
  const bool has_system = role == "system" || role == "developer";
  if (!has_system) out.insert(out.begin(), Json{{"role", "system"}, {"content", ""}});
  const std::string said = word(out[0], "content");
  out[0]["content"] = said + (said.empty() ? "" : "\n\n") + tool_words(job.tools);
  return out;
}

Expected<Prompt> render(const engine::Engine& engine, const Job& job, WorkGrant* grant) {
  std::unique_ptr<text::ChatTemplate> own;
  const text::ChatTemplate* chat_template = engine.chat_template();
  if (!job.chat_template.empty()) {
    MR_ASSIGN_OR_RETURN(own, text::ChatTemplate::from_text(job.chat_template));
    chat_template = own.get();
  }
  if (chat_template == nullptr) return engine.chat_template_status();
  text::Conversation conversation;
  const bool tools = !job.tools.empty() && job.tool_choice != ToolChoice::none;
  if (tools && chat_template->features().tools) conversation.tools = job.tools;
  conversation.calls_in_words = tools && !chat_template->features().tools;
  conversation.messages = conversation.calls_in_words ? messages_with_tools(job) : job.messages;
  conversation.thinking = job.thinking;
  conversation.options = job.template_variables;
  Seen seen;
  if (!job.pictures.empty()) {
    MR_ASSIGN_OR_RETURN(seen, settle_pictures(spec_of(engine), job.pictures, conversation.messages));
    conversation.markers = job.pictures.markers();
    conversation.inserts = std::move(seen.inserts);
  }
  std::vector<std::size_t> inserted;
  conversation.inserted = &inserted;
  conversation.begun = begun_answer(job);
  if (!conversation.begun.empty()) conversation.messages.erase(conversation.messages.size() - 1);
  MR_ASSIGN_OR_RETURN(text::Prompt made, chat_template->prompt(engine.tokenizer(), conversation, grant));
  if (tools && conversation.tools.empty()) made.format.calls = &text::default_call_format();
  Prompt prompt{std::move(made), std::move(seen.grids), std::move(inserted)};
  MR_RETURN_IF_ERROR(place_rows(engine, job.pictures, prompt));
  return prompt;
}

/// What stays whatever else is left out: the system's messages and the last one, with the question that it begins to
/// answer.
bool must_stay(const Json& messages, std::size_t i) {
  const std::string role = messages[i].value("role", std::string());
  const bool answers = messages.back().value("role", Json()) == "assistant";
  return i + (answers ? 2 : 1) >= messages.size() || role == "system" || role == "developer";
}

/// A conversation that loses its oldest messages until its prompt fits.
class Shortening {
 public:
  Shortening(const engine::Engine& engine, const Job& job, std::int64_t context, WorkGrant* grant)
      : engine_(engine), whole_(job.messages), job_(job), context_(context), grant_(grant) {
    for (std::size_t i = 0; i < whole_.size(); ++i) most_ += must_stay(whole_, i) ? 0 : 1;
  }

  /// The prompt that leaves out the fewest; the shortest there is where none fits. REQUIRES: the whole one does not
  /// fit.
  Expected<Prompt> prompt() {
    std::optional<Prompt> best;
    // `low` - 1 left out are too few, and with `high` left out it fits, or nothing more can be left out.
    std::size_t low = std::min<std::size_t>(1, most_), high = most_;
    while (low < high) {
      std::size_t count = low + (high - low) / 2;
      const std::size_t middle = count;
      MR_ASSIGN_OR_RETURN(Prompt made, without(count));
      if (std::ssize(made.ids) >= context_) {
        low = count + 1;
      } else {
        best = std::move(made);
        high = middle;
      }
    }
    if (best) return std::move(*best);
    std::size_t count = std::min(low, most_);
    MR_ASSIGN_OR_RETURN(Prompt shortest, without(count));
    return std::ssize(shortest.ids) < context_ ? std::move(shortest) : cut_last(std::move(shortest));
  }

 private:
  /// The last question without its beginning, so that a quarter of the context is for the answer. As it was where that
  /// does not help.
  Expected<Prompt> cut_last(Prompt whole) {
    const text::Tokenizer& tokenizer = engine_.tokenizer();
    constexpr int kTries = 3;  // a text may have more tokens without its beginning
    Prompt made = std::move(whole);
    for (int i = 0; i < kTries && std::ssize(made.ids) >= context_; ++i) {
      const auto last = std::find_if(job_.messages.rbegin(), job_.messages.rend(),
                                     [](const Json& message) { return message.value("role", Json()) == "user"; });
      if (last == job_.messages.rend() || !last->contains("content") || !(*last)["content"].is_string()) break;
      if (job_.pictures.markers().find((*last)["content"].get_ref<const std::string&>())) break;
      const auto ids = tokenizer.encode((*last)["content"].get<std::string>(), text::Specials::as_text);
      const std::int64_t beyond = std::ssize(made.ids) - (context_ - context_ / 4);
      if (beyond >= std::ssize(ids)) break;
      std::string rest = tokenizer.decode({ids.begin() + std::max<std::int64_t>(beyond, 0), ids.end()}, true);
      while (!rest.empty() && (static_cast<unsigned char>(rest.front()) & 0xc0u) == 0x80u) rest.erase(0, 1);
      (*last)["content"] = rest;
      MR_ASSIGN_OR_RETURN(made, render(engine_, job_, grant_));
    }
    return made;
  }

  /// Leaves out `count`, or one more where the template refuses that: some want a question first.
  Expected<Prompt> without(std::size_t& count) {
    auto made = render_without(count);
    if (made.ok() || made.status().code() != Code::invalid_argument || count == most_) return made;
    return render_without(++count);
  }
  Expected<Prompt> render_without(std::size_t count) {
    if (grant_ != nullptr && grant_->cancelled()) return error(Code::cancelled, "the client went away");
    job_.messages = Json::array();
    for (std::size_t i = 0, left_out = 0; i < whole_.size(); ++i) {
      const bool goes = left_out < count && !must_stay(whole_, i);
      left_out += goes ? 1 : 0;
      if (!goes) job_.messages.push_back(whole_[i]);
    }
    return render(engine_, job_, grant_);
  }

  const engine::Engine& engine_;
  const Json& whole_;
  Job job_;
  const std::int64_t context_;
  WorkGrant* const grant_;
  std::size_t most_ = 0;  // messages that may be left out
};

std::vector<text::TokenId> raw_prompt(const engine::Engine& engine, const Job& job) {
  const text::Tokenizer& tokenizer = engine.tokenizer();
  if (!job.prompt_tokens.empty()) return job.prompt_tokens;
  std::vector<text::TokenId> ids;
  if (tokenizer.adds_bos() && tokenizer.bos()) ids.push_back(*tokenizer.bos());
  const auto body = tokenizer.encode(job.prompt, text::Specials::parse);
  ids.insert(ids.end(), body.begin(), body.end());
  if (ids.empty() && tokenizer.bos()) ids.push_back(*tokenizer.bos());
  if (ids.empty() && tokenizer.eos()) ids.push_back(*tokenizer.eos());
  return ids;
}

using Ids = std::vector<text::TokenId>;

/// Puts an earlier conversation before this one. Where both are too long its beginning goes, so that a quarter of the
/// context is for the answer.
void lay_before(const engine::Engine& engine, const Job& job, std::int64_t context, Ids& ids) {
  const text::Tokenizer& tokenizer = engine.tokenizer();
  const std::optional<text::TokenId> bos = tokenizer.adds_bos() ? tokenizer.bos() : std::nullopt;
  if (bos && !ids.empty() && ids.front() == *bos) ids.erase(ids.begin());
  auto first = job.before.begin();
  const bool begins = bos && *first == *bos;
  if (begins) ++first;
  const std::int64_t room = std::max<std::int64_t>(0, context - context / 4 - std::ssize(ids) - (begins ? 1 : 0));
  if (job.truncate && job.before.end() - first + std::ssize(ids) + 1 >= context)
    first = job.before.end() - std::min<std::int64_t>(room, job.before.end() - first);
  ids.insert(ids.begin(), first, job.before.end());
  if (begins) ids.insert(ids.begin(), *bos);
}

/// `pictures`: ids below 0 are theirs.
Status check_ids(const engine::Engine& engine, const Ids& ids, const char* field, bool pictures = false) {
  const std::int64_t vocab = engine.model().hyperparameters().vocab;
  for (const text::TokenId id : ids)
    if ((id < 0 && !pictures) || id >= vocab)
      return error(Code::invalid_argument, "{}: token id {} is outside the vocabulary of {}", field, id, vocab);
  return {};
}

void add(Ids& to, const Ids& more) { to.insert(to.end(), more.begin(), more.end()); }

/// What is told of other files before a gap; nothing where there are none.
Ids files_before_gap(const text::Tokenizer& tokenizer, const std::vector<Job::Fill::File>& files) {
  const text::FillTokens& fill = *tokenizer.fill();
  const auto encode = [&](const std::string& text) { return tokenizer.encode(text, text::Specials::as_text); };
  Ids ids;
  if (files.empty()) return ids;
  if (fill.file && fill.repository) {
    ids.push_back(*fill.repository);
    add(ids, encode("myproject\n"));
  }
  for (const Job::Fill::File& file : files) {
    if (fill.file) ids.push_back(*fill.file);
    add(ids, encode((fill.file ? file.name + "\n" : "\n\n--- snippet ---\n\n") + file.text));
  }
  if (fill.file) {
    ids.push_back(*fill.file);
    add(ids, encode("filename\n"));
  }
  return ids;
}

/// Leaves `room` of what stands around a gap: what is nearest to it, three quarters of it before.
void cut_far_ends(std::int64_t room, Ids& before, Ids& behind) {
  room = std::max<std::int64_t>(room, 0);
  const std::int64_t all_before = std::ssize(before), all_behind = std::ssize(behind);
  if (all_before + all_behind <= room) return;
  const std::int64_t kept_behind = std::min(all_behind, std::max(room / 4, room - std::min(all_before, room)));
  behind.resize(static_cast<std::size_t>(kept_behind));
  before.erase(before.begin(), before.end() - std::min(all_before, room - kept_behind));
}

/// The texts around a gap, and between them what the model was taught to expect there. Where all is too long, other
/// files go, then the far ends: a quarter of the context is for the answer.
Expected<Ids> fill_prompt(const engine::Engine& engine, const Job& job, std::int64_t context) {
  const text::Tokenizer& tokenizer = engine.tokenizer();
  const text::FillTokens* const fill = tokenizer.fill();
  if (fill == nullptr)
    return error(Code::unsupported,
                 "suffix: this model does not fill in gaps: its vocabulary has no tokens for it; leave out the suffix");
  const auto encode = [&](const std::string& text) { return tokenizer.encode(text, text::Specials::as_text); };
  Ids before = encode(job.prompt), behind = encode(job.fill->suffix);
  Ids files = files_before_gap(tokenizer, job.fill->files);
  const Ids begun = encode(job.fill->begun);
  if (job.truncate) {
    const std::int64_t room = context - context / 4 - std::ssize(begun) - 4;
    if (std::ssize(before) + std::ssize(behind) + std::ssize(files) > room) files.clear();
    cut_far_ends(room, before, behind);
  }
  Ids ids;
  if (tokenizer.adds_bos() && tokenizer.bos()) ids.push_back(*tokenizer.bos());
  add(ids, files);
  ids.push_back(fill->prefix);
  add(ids, before);
  ids.push_back(fill->suffix);
  add(ids, behind);
  ids.push_back(fill->middle);
  add(ids, begun);
  return ids;
}

/// What of a prompt that is too long its author may not know of: clients send tools that nobody typed.
std::string share_of_tools(const engine::Engine& engine, const Job& job) {
  if (!job.chat || job.tools.empty() || job.tool_choice == ToolChoice::none) return "";
  const std::size_t tokens = engine.tokenizer().encode(job.tools.dump(), text::Specials::as_text).size();
  return fmt::format(" ({} tool{} about {} of them: send fewer)", job.tools.size(),
                     job.tools.size() == 1 ? " takes" : "s take", tokens);
}

/// In the words that each API's clients look for.
Status too_long_error(const engine::Engine& engine, const Job& job, std::int64_t tokens, std::int64_t context) {
  const std::string tools = share_of_tools(engine, job);
  const std::string all = fmt::format(
      "This model's maximum context length is {} tokens, but the prompt has {}{}; shorten it, or serve with a larger "
      "--ctx",
      context, tokens, tools);
  switch (job.words) {
    case Job::Words::anthropic:
      return error(Code::invalid_argument, "prompt is too long: {} tokens > {} maximum{}", tokens, context - 1, tools);
    case Job::Words::responses:
      return error(Code::invalid_argument, "Your input exceeds the context window of this model. {}", all);
    case Job::Words::ollama:
      return error(Code::invalid_argument, "the input length exceeds the context length. {}", all);
    case Job::Words::openai:
      break;
  }
  return error(Code::invalid_argument, "{}", all);
}

}  // namespace

std::string begun_answer(const Job& job) {
  if (!job.chat || job.messages.size() < 2) return "";
  const Json& last = job.messages.back();
  const bool said = last.value("role", Json()) == "assistant" && !last.contains("tool_calls") &&
                    last.contains("content") && last["content"].is_string();
  return said ? last["content"].get<std::string>() : std::string();
}

Expected<Prompt> make_prompt(const engine::Engine& engine, const Job& job, WorkGrant* grant) {
  MR_RETURN_IF_ERROR(model::check_writes(engine.model().hyperparameters()));
  if (grant != nullptr && !grant->take(work_on_texts_bytes(job)))
    return error(Code::out_of_budget, "the prompt takes more memory than requests may hold together; send less");
  std::int64_t context = engine.context_tokens();
  if (job.context > 0) context = std::min(context, job.context);
  const auto too_long = [&](const std::vector<text::TokenId>& ids) { return std::ssize(ids) >= context; };
  Prompt prompt;
  std::vector<text::TokenId>& ids = prompt.ids;
  if (job.chat) {
    MR_ASSIGN_OR_RETURN(prompt, render(engine, job, grant));
    if (job.truncate && too_long(ids)) {
      MR_ASSIGN_OR_RETURN(prompt, Shortening(engine, job, context, grant).prompt());
    }
    MR_RETURN_IF_ERROR(check_ids(engine, job.before, "context"));
    if (!job.before.empty()) lay_before(engine, job, context, ids);
  } else if (job.fill) {
    MR_ASSIGN_OR_RETURN(ids, fill_prompt(engine, job, context));
  } else {
    ids = raw_prompt(engine, job);
    if (job.truncate && too_long(ids))
      ids.erase(ids.begin() + 1, ids.begin() + 1 + (std::ssize(ids) - context + context / 4));
  }
  if (ids.empty()) return error(Code::invalid_argument, "prompt: it is empty; write something");
  if (too_long(ids) && !job.any_length) return too_long_error(engine, job, std::ssize(ids), context);
  const bool pictures = !prompt.inserted.empty();
  if (pictures && job.prompt_logprobs >= 0)
    return error(Code::unsupported, "prompt_logprobs: they are not told of a prompt with pictures; leave them out");
  MR_RETURN_IF_ERROR(check_ids(engine, ids, "prompt", pictures));
  return prompt;
}

bool must_call_tool(const Job& job) {
  return !job.tools.empty() && (job.tool_choice == ToolChoice::required || job.tool_choice == ToolChoice::named);
}

text::AnswerForm answer_form(const Job& job, const text::Prompt& prompt) {
  text::AnswerForm form;
  if (!job.chat) return form;
  form.in_thought = prompt.in_thought;
  form.thoughts = prompt.format.thoughts;
  const bool channels = prompt.format.calls != nullptr && prompt.format.calls->channels;
  form.may_call = !job.tools.empty() && job.tool_choice != ToolChoice::none;
  if (!form.may_call) {
    if (channels) form.calls = prompt.format.calls;
    return form;
  }
  form.calls = must_call_tool(job) ? &text::call_format("bare") : prompt.format.calls;
  // Models whose template tells nothing of tools were told of them in the system's words.
  if (form.calls == nullptr) form.calls = &text::default_call_format();
  form.tools = std::make_shared<const text::ToolTypes>(job.tools);
  return form;
}

text::AnswerForm message_form(const text::Prompt& prompt) {
  text::AnswerForm form;
  form.calls = prompt.format.calls;
  form.may_call = false;
  form.thoughts = prompt.format.thoughts;
  return form;
}

}  // namespace millrace::generate
