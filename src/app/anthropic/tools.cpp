#include "app/anthropic/tools.h"

#include <algorithm>
#include <set>
#include <string>
#include <string_view>

#include "app/generate/fields.h"
#include "base/log.h"
#include "modelfile/escape.h"

namespace millrace::anthropic {
namespace {

using generate::Fields;
using generate::Job;
using generate::Json;
using generate::ToolChoice;
using generate::word;

Json text(const char* description) { return {{"type", "string"}, {"description", description}}; }
Json number(const char* description) { return {{"type", "integer"}, {"description", description}}; }

Json object(Json properties, Json required) {
  return {{"type", "object"}, {"properties", std::move(properties)}, {"required", std::move(required)}};
}

Json bash_schema() {
  return object({{"command", text("The command to run.")},
                 {"restart", {{"type", "boolean"}, {"description", "True restarts the shell; no command is run."}}}},
                {"command"});
}

/// What the editor and the memory have in common.
Json file_commands(Json commands) {
  const Json range = {{"type", "array"},
                      {"items", {{"type", "integer"}}},
                      {"minItems", 2},
                      {"maxItems", 2},
                      {"description", "view: the first and the last line; -1 is the file's end."}};
  return {{"command", {{"type", "string"}, {"enum", std::move(commands)}}},
          {"path", text("The file or directory.")},
          {"view_range", range},
          {"file_text", text("create: the whole text of the file.")},
          {"old_str", text("str_replace: the text to replace, which stands there once.")},
          {"new_str", text("str_replace: what replaces it.")},
          {"insert_line", number("insert: the line behind which the text goes; 0 is the file's beginning.")},
          {"insert_text", text("insert: the text.")}};
}

Json editor_schema(std::string_view type) {
  Json commands = {"view", "create", "str_replace", "insert"};
  const bool undoes = type == "text_editor_20241022" || type == "text_editor_20250124";
  if (undoes) commands.push_back("undo_edit");
  Json properties = file_commands(std::move(commands));
  if (undoes) {  // they insert new_str
    properties.erase("insert_text");
    properties["new_str"] = text("str_replace: what replaces it; insert: the text.");
  }
  return object(std::move(properties), {"command", "path"});
}

Json memory_schema() {
  Json properties = file_commands({"view", "create", "str_replace", "insert", "delete", "rename"});
  properties["old_path"] = text("rename: the file or directory.");
  properties["new_path"] = text("rename: its new path.");
  return object(std::move(properties), {"command"});
}

struct TypedTool {
  std::string_view prefix, description;
  Json (*schema)(std::string_view type);
};
constexpr TypedTool kTyped[] = {
    {"bash_2", "Runs commands in a shell that stays open.", [](std::string_view) { return bash_schema(); }},
    {"text_editor_2", "Views, creates and edits files.", editor_schema},
    {"memory_2", "Keeps files below /memories that later conversations can read.",
     [](std::string_view) { return memory_schema(); }}};

/// A tool as a function. Null: nobody here runs it.
Json function_of(const Json& tool) {
  const std::string type = word(tool, "type"), name = word(tool, "name");
  for (const TypedTool& typed : kTyped)
    if (type.starts_with(typed.prefix))
      return {{"name", name}, {"description", typed.description}, {"parameters", typed.schema(type)}};
  if (!type.empty() && type != "custom") return nullptr;
  return {{"name", name},
          {"description", word(tool, "description")},
          {"parameters", tool.value("input_schema", Json::object())}};
}

/// The names of tools that nobody here runs.
Expected<std::set<std::string>> take_tools(const Json& tools, Job& job) {
  std::set<std::string> left_out;
  if (!tools.is_array()) return error(Code::invalid_argument, "tools: must be a list");
  for (const Json& tool : tools) {
    if (!tool.is_object()) return error(Code::invalid_argument, "tools: each must be an object");
    const std::string type = word(tool, "type");
    std::string name = word(tool, "name");
    Json function = function_of(tool);
    if (function.is_null()) {
      if (name.empty()) name = type;
      log::warn("/v1/messages: the tool {} is left out: it runs on Anthropic's servers, or answers with pictures",
                modelfile::escape(type, 60));
      left_out.insert(name);
      continue;
    }
    if (name.empty()) return error(Code::invalid_argument, "tools: each needs a name and an input_schema");
    job.tools.push_back({{"type", "function"}, {"function", std::move(function)}});
  }
  return left_out;
}

/// What a choice demands has to be there.
Status check_choice(const std::set<std::string>& left_out, const Job& job) {
  if (job.tool_choice == ToolChoice::required && job.tools.empty()) {
    if (left_out.empty()) return error(Code::invalid_argument, "tool_choice: there are no tools to choose from");
    return error(Code::unsupported, "tool_choice: Millrace does not run {}; send tools that the client runs",
                 modelfile::escape(*left_out.begin(), 60));
  }
  if (job.tool_choice != ToolChoice::named) return {};
  for (const Json& tool : job.tools)
    if (tool["function"]["name"] == job.tool_name) return {};
  const std::string name = modelfile::escape(job.tool_name, 60);
  if (left_out.contains(job.tool_name))
    return error(Code::unsupported, "tool_choice: Millrace does not run {}; name a tool that the client runs", name);
  return error(Code::invalid_argument, "tool_choice: no tool is called {}", name);
}

}  // namespace

Status parse_tools(const Json& body, Job& job) {
  const Fields fields(body);
  std::set<std::string> left_out;
  if (const Json* tools = fields.find("tools"); tools != nullptr) {
    MR_ASSIGN_OR_RETURN(left_out, take_tools(*tools, job));
  }
  const Json* choice = fields.find("tool_choice");
  if (choice == nullptr) return {};
  const std::string kind = word(*choice, "type");
  if (kind == "none") job.tool_choice = ToolChoice::none;
  if (kind == "any") job.tool_choice = ToolChoice::required;
  if (kind == "tool") {
    job.tool_choice = ToolChoice::named;
    job.tool_name = word(*choice, "name");
  }
  if (kind != "none" && kind != "any" && kind != "tool" && kind != "auto")
    return error(Code::invalid_argument, "tool_choice: type must be auto, any, tool or none");
  Fields inner(*choice);
  bool alone = false;
  inner.flag("disable_parallel_tool_use", alone);
  job.parallel_calls = !alone;
  MR_RETURN_IF_ERROR(inner.status());
  return check_choice(left_out, job);
}

}  // namespace millrace::anthropic
