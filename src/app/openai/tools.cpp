// Tools and the choice among them.
#include <set>

#include "app/generate/fields.h"
#include "app/openai/request.h"

namespace millrace::openai {

using generate::Fields;
using generate::ToolChoice;

namespace {

/// tool_choice of type allowed_tools: {"mode", "tools": [{"type": "function", "name" or "function": {"name"}}]}.
Status allow_tools(const Json& allowed, Job& job) {
  const std::string mode = word(allowed, "mode");
  const Json listed = allowed.is_object() ? allowed.value("tools", Json::array()) : Json::array();
  if ((mode != "auto" && mode != "required") || !listed.is_array())
    return error(Code::invalid_argument, "tool_choice: allowed_tools needs a mode, auto or required, and tools");
  std::set<std::string> names;
  for (const Json& one : listed) {
    const std::string name = word(one.is_object() ? one.value("function", one.value("custom", one)) : one, "name");
    names.insert(name.empty() ? word(one, "type") : name);  // OpenAI's own tools have no name
  }
  Json kept = Json::array();
  for (const Json& tool : job.tools)
    if (names.contains(word(tool["function"], "name"))) kept.push_back(tool);
  if (kept.empty()) return error(Code::invalid_argument, "tool_choice: none of the allowed tools is there");
  job.tools = std::move(kept);
  if (mode == "required") job.tool_choice = ToolChoice::required;
  return {};
}

}  // namespace

Status parse_tools(const Json& body, Job& job) {
  const Fields fields(body);
  if (const Json* tools = fields.find("tools"); tools != nullptr) {
    if (!tools->is_array()) return error(Code::invalid_argument, "tools: must be a list");
    for (const Json& tool : *tools) {
      if (word(tool, "type") == "custom") {
        const Json custom = tool.value("custom", tool);
        const std::string name = word(custom, "name");
        if (name.empty()) return error(Code::invalid_argument, "tools: each needs a name");
        generate::ClientTool& client = job.client_tools[name];
        MR_ASSIGN_OR_RETURN(Json made, custom_function(custom, client));
        job.tools.push_back({{"type", "function"}, {"function", std::move(made)}});
        continue;
      }
      const auto function = tool.is_object() ? tool.find("function") : tool.end();
      if (!tool.is_object() || function == tool.end() || !function->is_object() ||
          !function->value("name", Json()).is_string())
        return error(Code::invalid_argument,
                     "tools: each must be {{\"type\": \"function\", \"function\": {{\"name\": ...}}}}");
      job.tools.push_back(tool);
    }
  }
  const Json* choice = fields.find("tool_choice");
  if (choice == nullptr) return {};
  if (choice->is_string() && *choice == "auto") return {};
  if (choice->is_string() && *choice == "none") {
    job.tool_choice = ToolChoice::none;
    return {};
  }
  if (job.tools.empty()) return error(Code::invalid_argument, "tool_choice: there are no tools to choose from");
  if (word(*choice, "type") == "allowed_tools") return allow_tools(choice->value("allowed_tools", *choice), job);
  if (choice->is_string() && (*choice == "required" || *choice == "any")) {
    job.tool_choice = ToolChoice::required;
    return {};
  }
  const Json* function = nullptr;
  if (choice->is_object()) {
    function = choice;
    for (const char* holder : {"function", "custom"})
      if (choice->contains(holder)) function = &(*choice)[holder];
  }
  if (function == nullptr || !function->is_object() || !function->value("name", Json()).is_string())
    return error(Code::invalid_argument, "tool_choice: must be auto, none, required or a function");
  job.tool_choice = ToolChoice::named;
  job.tool_name = (*function)["name"];
  for (const Json& tool : job.tools)
    if (tool["function"]["name"] == job.tool_name) return {};
  return error(Code::invalid_argument, "tool_choice: no tool is called {}", job.tool_name);
}

Expected<Json> custom_function(const Json& tool, generate::ClientTool& client) {
  client.name = word(tool, "name");
  client.custom = true;
  std::string description = word(tool, "description");
  const Json format = tool.value("format", Json());
  const std::string type = word(format, "type");
  if (type == "grammar") {
    // Chat completions put syntax and definition below "grammar", responses beside the type.
    const Json& holder = format.contains("grammar") ? format["grammar"] : format;
    client.syntax = word(holder, "syntax");
    client.grammar = word(holder, "definition");
    MR_RETURN_IF_ERROR(text::grammar_syntax(client.syntax).status().with_context("tools"));
    if (client.grammar.empty())
      return error(Code::invalid_argument, "tools: the grammar of {} needs a definition", client.name);
    description += fmt::format("\n\nThe input keeps this grammar ({}):\n{}", client.syntax, client.grammar);
  } else if (!type.empty() && type != "text") {
    return error(Code::invalid_argument, "tools: the format of {} must be text or grammar", client.name);
  }
  const Json parameters = {{"type", "object"},
                           {"properties", {{"input", {{"type", "string"}}}}},
                           {"required", {"input"}},
                           {"additionalProperties", false}};
  return Json{{"name", client.name}, {"description", description}, {"parameters", parameters}};
}

}  // namespace millrace::openai
