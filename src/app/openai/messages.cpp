// Messages and the calls in them.
#include "app/generate/fields.h"
#include "app/openai/request.h"
#include "modelfile/escape.h"
#include "text/past_arguments.h"

namespace millrace::openai {
namespace {

/// The arguments of a past call as an object: OpenAI sends them as text.
Json arguments_of(const Json& function) {
  const auto found = function.find("arguments");
  if (found == function.end()) return Json::object();
  if (!found->is_string()) return text::past_arguments(*found);
  Json parsed = generate::parse_json(found->get_ref<const std::string&>());
  return parsed.is_object() ? parsed : text::past_arguments(*found);
}

Status parse_calls(const Json& calls, Json& out) {
  if (!calls.is_array()) return error(Code::invalid_argument, "messages: tool_calls must be a list");
  Json list = Json::array();
  for (const Json& call : calls) {
    if (call.is_object() && call.value("type", Json()) == "custom") {
      const Json custom = call.value("custom", Json());
      Json one = {{"type", "function"},
                  {"function", {{"name", word(custom, "name")}, {"arguments", {{"input", word(custom, "input")}}}}}};
      if (call.contains("id") && call["id"].is_string()) one["id"] = call["id"];
      list.push_back(std::move(one));
      continue;
    }
    const auto function = call.is_object() ? call.find("function") : call.end();
    if (!call.is_object() || function == call.end() || !function->is_object() ||
        !function->value("name", Json()).is_string())
      return error(Code::invalid_argument, "messages: a tool call needs a function with a name");
    Json one = {{"type", "function"},
                {"function", {{"name", function->value("name", Json())}, {"arguments", arguments_of(*function)}}}};
    if (call.contains("id") && call["id"].is_string()) one["id"] = call["id"];
    list.push_back(std::move(one));
  }
  out = std::move(list);
  return {};
}

/// OpenAI's, and those that templates of published models know beside them.
Status check_role(const std::string& role) {
  for (const char* known : {"system", "developer", "user", "assistant", "tool", "function", "ipython", "observation",
                            "control", "document", "context"})
    if (role == known) return {};
  return error(Code::invalid_argument, "messages: there is no role {}; send system, developer, user, assistant or tool",
               modelfile::escape(role, 40));
}

Expected<Json> parse_message(const Json& message, generate::Pictures& pictures) {
  if (!message.is_object() || !message.contains("role") || !message["role"].is_string())
    return error(Code::invalid_argument, "messages: each must be an object with a role");
  MR_RETURN_IF_ERROR(check_role(message["role"].get_ref<const std::string&>()));
  Json out = {{"role", message["role"]}};
  const auto content = message.find("content");
  const bool of_tool = message["role"] == "tool" || message["role"] == "function";
  MR_ASSIGN_OR_RETURN(out["content"], content_text(content == message.end() ? Json() : *content, "messages",
                                                   of_tool ? Unreadable::noted : Unreadable::refused,
                                                   of_tool || message["role"] == "user" ? &pictures : nullptr));
  if (const auto calls = message.find("tool_calls"); calls != message.end() && !calls->is_null())
    MR_RETURN_IF_ERROR(parse_calls(*calls, out["tool_calls"]));
  for (const char* name : {"name", "tool_call_id", "reasoning_content"})
    if (message.contains(name) && message[name].is_string()) out[name] = message[name];
  return out;
}

}  // namespace

Status parse_messages(const Json& messages, Job& job) {
  if (!messages.is_array() || messages.empty())
    return error(Code::invalid_argument, "messages: must be a list with at least one message");
  job.messages = Json::array();
  for (const Json& message : messages) {
    MR_ASSIGN_OR_RETURN(Json out, parse_message(message, job.pictures));
    job.messages.push_back(std::move(out));
  }
  return {};
}

}  // namespace millrace::openai
