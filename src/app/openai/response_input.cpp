// What a request of OpenAI's responses asks: its items as messages, its tools as functions.
#include <optional>
#include <string_view>
#include <utility>

#include "app/generate/fields.h"
#include "app/openai/request.h"
#include "app/openai/responses.h"
#include "base/log.h"
#include "modelfile/escape.h"

namespace millrace::openai {
namespace {

using generate::ClientTool;
using generate::Fields;

/// A tool of a namespace by one name.
std::string joined(const std::string& name_space, const std::string& name) {
  if (name_space.empty()) return name;
  return name_space + (name_space.ends_with("__") ? "" : "__") + name;
}

Json function(const char* name, const char* description, Json properties, Json required) {
  return {
      {"name", name},
      {"description", description},
      {"parameters", {{"type", "object"}, {"properties", std::move(properties)}, {"required", std::move(required)}}}};
}

/// A tool of OpenAI's own that the client runs, as a function. None: it is another one.
std::optional<Json> client_function(const Json& tool) {
  const std::string type = word(tool, "type");
  const Json text = {{"type", "string"}}, number = {{"type", "integer"}};
  const Json texts = {{"type", "array"}, {"items", text}};
  if (type == "shell") {
    // In a container of OpenAI's nobody here runs anything.
    const std::string where = word(tool.value("environment", Json()), "type");
    if (where.starts_with("container")) return std::nullopt;
    return function("shell", "Runs commands in a shell, one after the other.",
                    {{"commands", texts}, {"timeout_ms", number}, {"max_output_length", number}}, {"commands"});
  }
  if (type == "local_shell") {
    return function("local_shell", "Runs a program with its arguments.",
                    {{"command", texts}, {"working_directory", text}, {"timeout_ms", number}}, {"command"});
  }
  if (type == "apply_patch") {
    const Json kinds = {{"type", "string"}, {"enum", {"create_file", "update_file", "delete_file"}}};
    return function("apply_patch", "Creates, updates or deletes a file. The diff is in V4A form; deleting needs none.",
                    {{"type", kinds}, {"path", text}, {"diff", text}}, {"type", "path"});
  }
  return std::nullopt;
}

using Known = std::map<std::string, ClientTool>;

/// The tools of a request as functions, and in `known` what the client calls them. Tools that OpenAI runs itself, such
/// as web_search, are left out with a warning: nobody here runs them.
Expected<Json> functions_of(const Json& tools, Known& known, const std::string& name_space = "") {
  Json functions = Json::array();
  for (const Json& tool : tools) {
    const std::string type = word(tool, "type"), name = word(tool, "name"), full = joined(name_space, name);
    if (type == "namespace" && name_space.empty() && tool.contains("tools") && tool["tools"].is_array()) {
      MR_ASSIGN_OR_RETURN(const Json inner, functions_of(tool["tools"], known, name));
      functions.insert(functions.end(), inner.begin(), inner.end());
      continue;
    }
    if (std::optional<Json> own = client_function(tool)) {
      known[type].name = known[type].runs = type;
      functions.push_back({{"type", "function"}, {"function", std::move(*own)}});
      continue;
    }
    const bool custom = type == "custom";
    if (type != "function" && !custom) {
      log::warn("/v1/responses: the tool {} is left out: Millrace does not run it", modelfile::escape(type, 60));
      continue;
    }
    if (name.empty()) return error(Code::invalid_argument, "tools: each needs a name");
    Json function = tool;
    if (custom) {
      MR_ASSIGN_OR_RETURN(function, custom_function(tool, known[full]));
    }
    function["name"] = full;
    functions.push_back({{"type", "function"}, {"function", std::move(function)}});
    if (!custom && !name_space.empty()) known[full].name = name;
    if (!name_space.empty()) known[full].name_space = name_space;
  }
  return functions;
}

/// The choice as chat completions have it. A tool that nobody here runs cannot be demanded.
Expected<Json> choice_of(const Json& choice, const Known& known, bool any_tools) {
  const std::string type = word(choice, "type");
  const bool own = type == "shell" || type == "local_shell" || type == "apply_patch";
  if (own && !known.contains(type))
    return error(Code::invalid_argument, "tool_choice: there is no {} among the tools", type);
  if (own) return Json{{"type", "function"}, {"function", {{"name", type}}}};
  if (!type.empty() && type != "function" && type != "custom" && type != "allowed_tools")
    return error(Code::unsupported, "tool_choice: there is no {} here; name a function, a custom tool or a shell",
                 modelfile::escape(type, 60));
  const bool demands = choice == "required" || choice == "any" || choice.is_object();
  if (demands && !any_tools)
    return error(
        Code::unsupported,
        "tool_choice: a tool call is required, but Millrace runs none of the tools sent; send functions, custom "
        "tools, shell, local_shell or apply_patch");
  return any_tools ? choice : Json();
}

// --- Items ---

/// An item of something that a tool of OpenAI's own did: it says nothing here.
bool is_foreign(const std::string& type) {
  for (const char* kind :
       {"web_search_call", "file_search_call", "image_generation_call", "code_interpreter_call", "computer_call",
        "mcp_list_tools", "mcp_approval_request", "mcp_approval_response", "tool_search_call", "tool_search_output",
        "program", "program_output", "configuration_update", "additional_tools"})
    if (type == kind) return true;
  return false;
}

/// What a shell has written, and how its commands ended.
std::string shell_text(const Json& output) {
  std::string text;
  for (const Json& one : output) {
    text += word(one, "stdout") + word(one, "stderr");
    const Json outcome = one.is_object() ? one.value("outcome", Json()) : Json();
    if (word(outcome, "type") == "timeout") text += "\n(timed out)\n";
    if (const Json code = outcome.is_object() ? outcome.value("exit_code", Json()) : Json();
        code.is_number() && code != 0)
      text += fmt::format("\n(exit code {})\n", code.dump());
  }
  return text;
}

/// What a tool answered: a text, or a list of parts, which may be pictures.
Expected<Json> output_content(const std::string& type, const Json& item) {
  Json output = item.value("output", Json(""));
  if (type == "shell_call_output" && output.is_array()) return Json(shell_text(output));
  if (type == "computer_call_output") {
    if (!output.is_object() || !output.contains("image_url")) return Json(note_of("computer_screenshot"));
    return Json::array({{{"type", "input_image"}, {"image_url", output["image_url"]}}});
  }
  if (type == "apply_patch_call_output") return Json(word(item, "status") + "\n" + word(item, "output"));
  if (output.is_object()) return Json(output.dump());
  MR_RETURN_IF_ERROR(content_text(output, "input", Unreadable::noted).status());
  return output;
}

Json call_message(const std::string& id, const std::string& name, Json arguments) {
  const Json call = {{"id", id}, {"function", {{"name", name}, {"arguments", std::move(arguments)}}}};
  return {{"role", "assistant"}, {"content", nullptr}, {"tool_calls", Json::array({call})}};
}

/// A past call as a message; null: the item is something else.
Json call_of(const std::string& type, const Json& item) {
  const std::string id = word(item, "call_id");
  if (type == "custom_tool_call") return call_message(id, word(item, "name"), {{"input", word(item, "input")}});
  if (type == "function_call")
    return call_message(id, joined(word(item, "namespace"), word(item, "name")), word(item, "arguments"));
  if (type == "local_shell_call") return call_message(id, "local_shell", item.value("action", Json::object()));
  if (type == "shell_call") return call_message(id, "shell", item.value("action", Json::object()));
  if (type == "apply_patch_call") return call_message(id, "apply_patch", item.value("operation", Json::object()));
  return nullptr;
}

/// The items of a conversation, one after the other, as messages.
class Messages {
 public:
  Status add(const Json& item) {
    const std::string type = word(item, "type");
    if (type == "reasoning") return think(item);
    if (Json call = call_of(type, item); !call.is_null()) return add_message(std::move(call));
    if (type.ends_with("_call_output")) return add_output(type, item);
    if (type == "mcp_call") {
      MR_RETURN_IF_ERROR(add_message(call_message(word(item, "id"), word(item, "name"), word(item, "arguments"))));
      return add_message({{"role", "tool"}, {"tool_call_id", word(item, "id")}, {"content", word(item, "output")}});
    }
    if (type == "compaction") return add_summary(item);
    if (is_foreign(type)) return {};
    if (!type.empty() && type != "message")
      return error(Code::invalid_argument, "input: an item of type {} is not supported", modelfile::escape(type, 60));
    return add_message(
        {{"role", word(item, "role")}, {"content", item.is_object() ? item.value("content", Json()) : Json()}});
  }
  Json take() {
    flush();
    return std::move(messages_);
  }

 private:
  /// Thoughts belong to what the assistant says or calls next.
  Status add_message(Json message) {
    if (message["role"] == "assistant" && !thoughts_.empty())
      message["reasoning_content"] = std::exchange(thoughts_, {});
    flush();
    messages_.push_back(std::move(message));
    return {};
  }
  void flush() {
    if (thoughts_.empty()) return;
    messages_.push_back({{"role", "assistant"}, {"content", ""}, {"reasoning_content", std::exchange(thoughts_, {})}});
  }
  Status think(const Json& item) {
    std::string text;
    for (const char* name : {"content", "summary"}) {
      const Json parts = item.value(name, Json());
      for (const Json& part : parts) text += word(part, "text");
      if (!text.empty()) break;
    }
    if (text.empty() && !word(item, "encrypted_content").empty())
      return error(Code::unsupported,
                   "input: the encrypted_content of a reasoning item cannot be read here; send its content as "
                   "reasoning_text, or leave the item out");
    thoughts_ += text;
    return {};
  }
  Status add_output(const std::string& type, const Json& item) {
    MR_ASSIGN_OR_RETURN(Json output, output_content(type, item));
    const char* const of = item.contains("call_id") ? "call_id" : "id";  // a local shell's has only the latter
    return add_message({{"role", "tool"}, {"tool_call_id", word(item, of)}, {"content", std::move(output)}});
  }
  Status add_summary(const Json& item) {
    std::optional<std::string> summary = summary_of(item);
    if (!summary)
      return error(Code::unsupported,
                   "input: the encrypted_content of a compaction item was made by another server and cannot be read "
                   "here; send the conversation itself");
    return add_message({{"role", "user"}, {"content", "Summary of our conversation so far:\n" + *summary}});
  }

  Json messages_ = Json::array();
  std::string thoughts_;
};

Expected<Json> messages_of(const Json& body, const Json& earlier) {
  Messages messages;
  if (const std::string instructions = word(body, "instructions"); !instructions.empty())
    MR_RETURN_IF_ERROR(messages.add({{"role", "system"}, {"content", instructions}}));
  MR_ASSIGN_OR_RETURN(const Json input, input_items(body));
  for (const Json* items : {&earlier, &input})
    for (const Json& item : *items) MR_RETURN_IF_ERROR(messages.add(item));
  return messages.take();
}

/// ResponseLink::asked.
Expected<Json> repeated(const Fields& fields) {
  struct Repeated {
    const char* name;
    bool (Json::*is)() const noexcept;
    const char* kind;
  };
  static constexpr Repeated all[] = {{"instructions", &Json::is_string, "a text"},
                                     {"metadata", &Json::is_object, "an object"},
                                     {"text", &Json::is_object, "an object"},
                                     {"tools", &Json::is_array, "a list"},
                                     {"parallel_tool_calls", &Json::is_boolean, "true or false"},
                                     {"tool_choice", nullptr, ""},
                                     {"reasoning", &Json::is_object, "an object"},
                                     {"truncation", &Json::is_string, "auto or disabled"},
                                     {"top_logprobs", &Json::is_number_integer, "a whole number"},
                                     {"include", &Json::is_array, "a list"},
                                     {"max_tool_calls", nullptr, ""},
                                     {"user", nullptr, ""},
                                     {"safety_identifier", nullptr, ""},
                                     {"prompt_cache_key", nullptr, ""}};
  Json asked = Json::object();
  for (const Repeated& one : all) {
    const Json* const value = fields.find(one.name);
    if (value == nullptr) continue;
    if (one.is != nullptr && !(value->*one.is)())
      return error(Code::invalid_argument, "{}: must be {}", one.name, one.kind);
    asked[one.name] = *value;
  }
  if (asked.contains("text") && !Fields(asked["text"]).has("format")) asked["text"]["format"] = {{"type", "text"}};
  return asked;
}

/// What `include` asks for: log probabilities. The rest is about tools that nobody here runs, or is there without it.
Expected<bool> includes_logprobs(const Json& body) {
  bool logprobs = false;
  const Json include = body.value("include", Json());
  for (const Json& one : include.is_array() ? include : Json::array()) {
    if (!one.is_string()) return error(Code::invalid_argument, "include: must be a list of texts");
    const std::string what = one.get<std::string>();
    if (what == "message.output_text.logprobs")
      logprobs = true;
    else
      log::debug("/v1/responses: include: {} has no effect", modelfile::escape(what, 60));
  }
  return logprobs;
}

constexpr std::string_view kSummary = "millrace-summary:";

}  // namespace

std::string seal_summary(const std::string& summary) {
  return std::string(kSummary) + base64(summary.data(), summary.size());
}

std::optional<std::string> summary_of(const Json& item) {
  const std::string sealed = word(item, "encrypted_content");
  if (!sealed.starts_with(kSummary)) return std::nullopt;
  return from_base64(std::string_view(sealed).substr(kSummary.size()));
}

Expected<ResponseLink> parse_link(const Json& body) {
  Fields fields(generate::RequestKind::response, body);
  ResponseLink link;
  fields.text("previous_response_id", link.previous);
  fields.flag("store", link.store);
  std::int64_t most = 0;
  fields.integer("max_output_tokens", most, 0, 1e9);
  MR_RETURN_IF_ERROR(fields.status());
  MR_ASSIGN_OR_RETURN(link.asked, repeated(fields));
  return link;
}

Expected<Json> input_items(const Json& body) {
  const auto input = body.find("input");
  if (input != body.end() && input->is_array()) return *input;
  if (input == body.end() || !input->is_string())
    return error(Code::invalid_argument, "input: must be a text or a list of items");
  return Json::array({{{"type", "message"}, {"role", "user"}, {"content", *input}}});
}

Expected<Job> parse_response(const Json& body, const Json& earlier) {
  // What chat completions call otherwise; the rest has the same names. The input, which may hold pictures, is not
  // copied.
  Json chat = Json::object();
  for (const auto& [name, value] : body.items())
    if (name != "input" && name != "prompt_logprobs" && name != "max_tokens" && name != "n")
      chat.get_ref<Json::object_t&>().emplace_back(name, value);
  Known known;
  MR_ASSIGN_OR_RETURN(chat["messages"], messages_of(body, earlier));
  if (const auto most = body.find("max_output_tokens"); most != body.end()) chat["max_completion_tokens"] = *most;
  bool any_tools = false;
  if (const auto tools = body.find("tools"); tools != body.end() && tools->is_array()) {
    MR_ASSIGN_OR_RETURN(chat["tools"], functions_of(*tools, known));
    any_tools = !chat["tools"].empty();
  }
  if (const auto choice = body.find("tool_choice"); choice != body.end() && !choice->is_null()) {
    MR_ASSIGN_OR_RETURN(chat["tool_choice"], choice_of(*choice, known, any_tools));
  }
  if (const auto text = body.find("text"); text != body.end() && text->is_object() && text->contains("format"))
    chat["response_format"] = (*text)["format"];
  MR_ASSIGN_OR_RETURN(const bool logprobs, includes_logprobs(body));
  chat["logprobs"] = logprobs || body.value("top_logprobs", Json(0)) != 0;
  MR_ASSIGN_OR_RETURN(Job job, parse_chat(generate::RequestKind::response, chat));
  const std::string truncation = word(body, "truncation");
  if (!truncation.empty() && truncation != "auto" && truncation != "disabled")
    return error(Code::invalid_argument, "truncation: must be auto or disabled");
  job.truncate = truncation == "auto";
  job.words = Job::Words::responses;
  job.client_tools.merge(known);
  return job;
}

}  // namespace millrace::openai
