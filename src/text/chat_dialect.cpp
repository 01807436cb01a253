#include "text/chat_dialect.h"

#include <array>
#include <string>
#include <utility>

#include "base/json_nesting.h"
#include "base/log.h"

namespace millrace::text {

namespace {

using Json = Conversation::Json;

constexpr const char* kSystem = "system-probe";
constexpr const char* kUser = "user-probe";
constexpr const char* kArgument = "argument-probe";

/// What a probe renders to; empty where the template fails.
std::string rendered(const jinja::Template& jinja, const ChatDialect& dialect, Json messages) {
  Json values = {
      {"messages", adapt_messages(dialect, std::move(messages))}, {"add_generation_prompt", true}, {"tools", nullptr}};
  jinja::Inputs inputs;
  inputs.values = &values;
  inputs.trusted = {{"bos_token", "<s>"}, {"eos_token", "</s>"}};
  inputs.now = 0;
  jinja::Limits limits;
  limits.steps = 500'000;
  limits.live_bytes = 8u << 20;
  const auto text = jinja.render(inputs, limits);
  return text.ok() ? text->bytes() : std::string();
}

bool holds(const std::string& text, const char* word) { return text.find(word) != std::string::npos; }

Json user(const char* content) { return {{"role", "user"}, {"content", content}}; }

/// The text of parts, one after the other.
std::string joined(const Json& parts) {
  std::string text;
  for (const Json& part : parts) {
    const auto found = part.is_object() ? part.find("text") : part.end();
    if (part.is_object() && found != part.end() && found->is_string()) text += found->get_ref<const std::string&>();
  }
  return text;
}

void adapt_calls(const ChatDialect& dialect, Json& calls) {
  for (Json& call : calls) {
    if (!call.is_object()) continue;
    Json* function = call.contains("function") && call["function"].is_object() ? &call["function"] : &call;
    if (!function->contains("arguments")) continue;
    Json& arguments = (*function)["arguments"];
    if (dialect.argument_text && !arguments.is_string()) {
      arguments = arguments.dump(-1, ' ', false, Json::error_handler_t::replace);
    } else if (!dialect.argument_text && arguments.is_string()) {
      const std::string& text = arguments.get_ref<const std::string&>();
      if (nests_too_deep(text)) continue;  // it stays the text that it is
      Json parsed = Json::parse(text, nullptr, false);
      if (parsed.is_object()) arguments = std::move(parsed);
    }
  }
}

void adapt(const ChatDialect& dialect, Json& message) {
  if (!message.is_object()) return;
  if (!dialect.developer && message.value("role", Json()) == "developer") message["role"] = "system";
  if (message.contains("thinking") && !message.contains("reasoning_content")) {
    message["reasoning_content"] = message["thinking"];
  } else if (message.contains("reasoning_content") && !message.contains("thinking")) {
    message["thinking"] = message["reasoning_content"];
  }
  if (message.contains("tool_name") && !message.contains("name")) message["name"] = message["tool_name"];
  const bool calls =
      message.contains("tool_calls") && message["tool_calls"].is_array() && !message["tool_calls"].empty();
  if (calls) {
    adapt_calls(dialect, message["tool_calls"]);
  } else {
    message.erase("tool_calls");
  }
  Json content = message.contains("content") ? message["content"] : Json();
  if (content.is_array() && !dialect.parts) content = joined(content);
  if (content.is_null() || content == "") content = calls && dialect.null_content ? Json() : Json("");
  if (dialect.parts && content.is_string()) content = Json::array({{{"type", "text"}, {"text", content}}});
  message["content"] = std::move(content);
}

/// A template without a system role: what it would say stands before the first question.
void fold_system(Json& messages) {
  std::string said;
  for (std::size_t i = 0; i < messages.size();) {
    const Json role = messages[i].value("role", Json());
    if (role == "system") {
      const Json& content = messages[i]["content"];
      said += (said.empty() ? "" : "\n\n") + (content.is_string() ? content.get<std::string>() : joined(content));
      messages.erase(i);
      continue;
    }
    if (role == "user" && !said.empty()) {
      Json& content = messages[i]["content"];
      if (content.is_string()) {
        content = said + "\n\n" + content.get<std::string>();
      } else if (content.is_array()) {
        content.insert(content.begin(), Json{{"type", "text"}, {"text", said + "\n\n"}});
      }
      said.clear();
    }
    ++i;
  }
  if (!said.empty()) messages.insert(messages.begin(), Json{{"role", "user"}, {"content", said}});
}

void find_call_form(const jinja::Template& jinja, ChatDialect& dialect) {
  const Json call = {{"id", "call00001"},
                     {"type", "function"},
                     {"function", {{"name", "name_probe"}, {"arguments", {{"key", kArgument}}}}}};
  const Json messages = {user(kUser), {{"role", "assistant"}, {"content", ""}, {"tool_calls", Json::array({call})}}};
  ChatDialect tried = dialect;
  for (const auto& [null_content, argument_text] :
       std::array<std::pair<bool, bool>, 4>{{{false, false}, {true, false}, {false, true}, {true, true}}}) {
    tried.null_content = null_content;
    tried.argument_text = argument_text;
    const std::string text = rendered(jinja, tried, messages);
    // Arguments given as text to a template that writes JSON would come out quoted a second time, and an object given
    // to one that takes text, as Python writes a dict.
    const bool garbled = holds(text, "\\\"") || holds(text, "'key'");
    if (holds(text, "name_probe") && holds(text, kArgument) && !garbled) {
      dialect = tried;
      return;
    }
  }
}

}  // namespace

ChatDialect find_dialect(const jinja::Template& jinja, std::string_view source) {
  ChatDialect dialect;
  dialect.developer = source.find("developer") != std::string_view::npos;
  const Json question = Json::array({user(kUser)});
  if (!holds(rendered(jinja, dialect, question), kUser)) {
    ChatDialect parts = dialect;
    parts.parts = true;
    if (holds(rendered(jinja, parts, question), kUser)) dialect = parts;
  }
  const Json with_system = Json::array({{{"role", "system"}, {"content", kSystem}}, user(kUser)});
  if (!holds(rendered(jinja, dialect, with_system), kSystem)) {
    dialect.system = false;
    if (holds(rendered(jinja, dialect, with_system), kSystem)) {
      log::info("the chat template knows no system role: system messages go before the user's first one");
    } else {
      dialect.system = true;  // it takes no conversation of ours: leave it as it comes
    }
  }
  if (source.find("tool_calls") != std::string_view::npos) find_call_form(jinja, dialect);
  return dialect;
}

Conversation::Json adapt_messages(const ChatDialect& dialect, Conversation::Json messages) {
  for (Json& message : messages) adapt(dialect, message);
  if (!dialect.system) fold_system(messages);
  return messages;
}

}  // namespace millrace::text
