#include "text/chat_template.h"

#include <optional>

#include "base/log.h"
#include "text/chat_dialect.h"
#include "text/conversation.h"
#include "text/default_template.h"
#include "text/go_template.h"
#include "text/jinja/template.h"
#include "text/thinking.h"

namespace millrace::text {

namespace {

using Json = Conversation::Json;

/// A template and its dialect.
struct Form {
  std::string source;
  jinja::Template jinja;
  ChatDialect dialect;
  ThinkingControls thinking;
  AnswerFormat answers;
};

/// The prompt of a model without a template: the messages' texts, concatenated.
constexpr std::string_view kContinue =
    "{%- for m in messages -%}{%- if not loop.first and m.role != 'assistant' -%}{{- '\n\n' -}}{%- endif -%}"
    "{{- m.content -}}{%- endfor -%}";

Expected<Form> read_form(std::string source) {
  if (is_go_template(source)) {
    MR_ASSIGN_OR_RETURN(source, jinja_of_go(source));
  }
  auto made = jinja::Template::parse(source);
  if (!made.ok())
    return Status(made.status().code(), made.status().message() + "; raw prompts (--raw, \"raw\": true) do without it");
  const ChatDialect dialect = find_dialect(*made, source);
  ThinkingControls thinking = find_thinking(*made, source);
  const AnswerFormat answers = find_answer_format(source);
  return Form{std::move(source), std::move(*made), dialect, std::move(thinking), answers};
}

bool is_text(const Json& content) {
  if (content.is_string() || content.is_null()) return true;
  if (!content.is_array()) return false;
  for (const Json& part : content) {
    if (!part.is_object() || part.value("type", Json()) != "text" || !part.value("text", Json()).is_string())
      return false;
  }
  return true;
}

/// Replaces each marker by its insert and records the inserts' indices in `order`.
MarkedText with_inserts(MarkedText text, const Conversation& conversation, std::vector<std::size_t>& order) {
  const std::vector<std::string>& inserts = conversation.inserts;
  MarkedText out;
  std::size_t done = 0, from = 0;
  while (const auto found = conversation.markers.find(text.bytes(), from)) {
    from = found->end;
    if (found->index >= inserts.size()) continue;
    if (found->begin > done) out.append(text, done, found->begin);
    out.append(inserts[found->index], true);
    order.push_back(found->index);
    done = found->end;
  }
  if (order.empty()) return text;
  if (done < text.size()) out.append(text, done, text.size());
  return out;
}

/// Returns true if the prompt leaves a thought open, so that the answer begins inside it.
bool ends_in_thought(std::string_view text, const ThoughtMarks& thoughts) {
  const auto trim = [](std::string_view all) { return all.substr(0, all.find_last_not_of(" \t\r\n") + 1); };
  return trim(text).ends_with(trim(thoughts.begin));
}

}  // namespace

struct ChatTemplate::Parts {
  Form plain;
  std::optional<Form> with_tools;
  ChatFeatures features;

  static bool has_tools(const Conversation& conversation) {
    return conversation.tools.is_array() && !conversation.tools.empty();
  }
  const Form& form_for(bool tools) const { return tools && with_tools ? *with_tools : plain; }

  Expected<MarkedText> render(const Tokenizer& tokenizer, const Conversation& conversation, WorkGrant* grant) const {
    MR_RETURN_IF_ERROR(check_messages(conversation.messages));
    const bool tools = has_tools(conversation);
    if (tools && !features.tools) {
      return error(Code::unsupported, "the model's chat template knows of no tools; ask without them");
    }
    const Form& form = form_for(tools);
    ChatDialect dialect = form.dialect;
    if (conversation.calls_in_words) dialect.calls = false;
    auto text = render_as(form, dialect, tokenizer, conversation, grant);
    if (text.ok() || text.status().code() != Code::invalid_argument) return text;
    // The template has a rule that no probe found: fall back to a form that every template accepts.
    auto strict = render_as(form, strictest(dialect), tokenizer, conversation, grant);
    return strict.ok() ? std::move(strict) : std::move(text);
  }

 private:
  static Expected<MarkedText> render_as(const Form& form, const ChatDialect& dialect, const Tokenizer& tokenizer,
                                        const Conversation& conversation, WorkGrant* grant) {
    const bool tools = has_tools(conversation);
    Json values = conversation.options.is_object() ? conversation.options : Json::object();
    apply_thinking(form.thinking, conversation.thinking, values);
    values["messages"] = adapt_messages(dialect, conversation.messages);
    values["tools"] = tools ? conversation.tools : Json();
    values["documents"] = values.value("documents", Json());
    values["add_generation_prompt"] = conversation.add_generation_prompt;
    jinja::Inputs inputs;
    inputs.values = &values;
    if (tokenizer.bos()) inputs.trusted.emplace_back("bos_token", tokenizer.token_bytes(*tokenizer.bos(), true));
    if (tokenizer.eos()) inputs.trusted.emplace_back("eos_token", tokenizer.token_bytes(*tokenizer.eos(), true));
    jinja::Limits limits;
    limits.grant = grant;
    return form.jinja.render(inputs, limits);
  }
};

ChatTemplate::ChatTemplate(std::unique_ptr<const Parts> parts) : parts_(std::move(parts)) {}
ChatTemplate::~ChatTemplate() = default;

const std::string& ChatTemplate::source() const { return parts_->plain.source; }
const ChatFeatures& ChatTemplate::features() const { return parts_->features; }
const AnswerFormat& ChatTemplate::answer_format(bool tools) const { return parts_->form_for(tools).answers; }

Expected<std::unique_ptr<ChatTemplate>> ChatTemplate::from_model(const modelfile::Model& model) {
  const std::string key = "tokenizer.chat_template";
  std::string name = key;
  if (!model.has(name)) name = key + ".default";
  if (const std::string_view own = default_template(model); !model.has(name) && !own.empty()) {
    log::info("the file has no chat template ({}): the program's own for this architecture takes its place", key);
    return from_text(std::string(own));
  }
  if (!model.has(name)) {
    log::info("the file has no chat template ({}): the model continues each text as it stands", key);
    return from_text(std::string(kContinue));
  }
  MR_ASSIGN_OR_RETURN(std::string jinja, model.get_string(name));
  std::string tool_use;
  if (model.has(key + ".tool_use")) {
    MR_ASSIGN_OR_RETURN(tool_use, model.get_string(key + ".tool_use"));
  }
  return from_text(std::move(jinja), std::move(tool_use));
}

Expected<std::unique_ptr<ChatTemplate>> ChatTemplate::from_text(std::string jinja, std::string tool_use) {
  MR_ASSIGN_OR_RETURN(Form plain, read_form(std::move(jinja)));
  std::optional<Form> with_tools;
  if (!tool_use.empty()) {
    MR_ASSIGN_OR_RETURN(with_tools, read_form(std::move(tool_use)));
  }
  ChatFeatures features;
  features.tools = (with_tools ? with_tools->jinja : plain.jinja).mentions("tools");
  const ThinkingControls& controls = plain.thinking;
  features.thinking = controls.enable_thinking || controls.thinking || !controls.mode_on.empty() || controls.budget ||
                      !controls.efforts.empty();
  return std::unique_ptr<ChatTemplate>(
      new ChatTemplate(std::make_unique<const Parts>(Parts{std::move(plain), std::move(with_tools), features})));
}

Expected<Prompt> ChatTemplate::prompt(const Tokenizer& tokenizer, const Conversation& conversation,
                                      WorkGrant* grant) const {
  MR_ASSIGN_OR_RETURN(MarkedText text, parts_->render(tokenizer, conversation, grant));
  Prompt made;
  std::vector<std::size_t> inserted;
  text = with_inserts(std::move(text), conversation, inserted);
  if (conversation.inserted != nullptr) *conversation.inserted = std::move(inserted);
  made.format = answer_format(Parts::has_tools(conversation));
  made.in_thought = conversation.add_generation_prompt && ends_in_thought(text.bytes(), *made.format.thoughts);
  // The answer so far follows the thought; and a template without a switch would open an unwanted thought.
  if (made.in_thought && (!conversation.begun.empty() || conversation.thinking.on == false)) {
    text.append(fmt::format("\n{}\n\n", made.format.thoughts->end), true);
    made.in_thought = false;
  }
  if (!conversation.begun.empty()) text.append(conversation.begun, false);
  made.ids = tokenizer.encode(text);
  if (tokenizer.adds_bos() && tokenizer.bos() && (made.ids.empty() || made.ids[0] != *tokenizer.bos())) {
    made.ids.insert(made.ids.begin(), *tokenizer.bos());
  }
  return made;
}

Expected<std::string> ChatTemplate::text(const Tokenizer& tokenizer, const Conversation& conversation,
                                         WorkGrant* grant) const {
  MR_ASSIGN_OR_RETURN(const MarkedText text, parts_->render(tokenizer, conversation, grant));
  return text.bytes();
}

Expected<std::vector<TokenId>> ChatTemplate::render(const Tokenizer& tokenizer, const std::vector<Message>& messages,
                                                    bool add_generation_prompt) const {
  Conversation conversation;
  conversation.messages = to_json(messages);
  conversation.add_generation_prompt = add_generation_prompt;
  MR_ASSIGN_OR_RETURN(Prompt made, prompt(tokenizer, conversation));
  return std::move(made.ids);
}

bool continues_text(const ChatTemplate& chat_template) { return chat_template.source() == kContinue; }

Status check_messages(const Json& messages) {
  if (!messages.is_array()) return error(Code::invalid_argument, "messages: an array of messages is needed");
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const Json& message = messages[i];
    if (!message.is_object() || !message.value("role", Json()).is_string()) {
      return error(Code::invalid_argument, "messages[{}]: an object with a role is needed", i);
    }
    if (message.contains("content") && !is_text(message["content"])) {
      return error(Code::invalid_argument, "messages[{}].content: only text is understood", i);
    }
  }
  return {};
}

Json to_json(const std::vector<Message>& messages) {
  Json all = Json::array();
  for (const Message& message : messages) {
    Json one = {{"role", message.role}, {"content", message.content}};
    if (!message.reasoning.empty()) one["reasoning_content"] = message.reasoning;
    all.push_back(std::move(one));
  }
  return all;
}

}  // namespace millrace::text
