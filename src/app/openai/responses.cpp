#include "app/openai/responses.h"

#include <cstdlib>

#include "app/generate/fields.h"
#include "app/openai/request.h"
#include "base/log.h"

namespace millrace::openai {
namespace {

using generate::Answer;
using generate::Delta;
using generate::Fields;
using generate::Finished;
using generate::Totals;

/// A tool of a namespace by one name.
std::string joined(const std::string& name_space, const std::string& name) {
  if (name_space.empty()) return name;
  return name_space + (name_space.ends_with("__") ? "" : "__") + name;
}

/// The tools of a request as functions, and in `known` what the client calls them. Tools that OpenAI runs itself, such
/// as web_search, are left out: there is nobody here to run them.
Expected<Json> functions_of(const Json& tools, std::map<std::string, generate::ClientTool>& known,
                            const std::string& name_space = "") {
  Json functions = Json::array();
  for (const Json& tool : tools) {
    const std::string type = word(tool, "type"), name = word(tool, "name"), full = joined(name_space, name);
    if (type == "namespace" && name_space.empty() && tool.contains("tools") && tool["tools"].is_array()) {
      MR_ASSIGN_OR_RETURN(const Json inner, functions_of(tool["tools"], known, name));
      functions.insert(functions.end(), inner.begin(), inner.end());
      continue;
    }
    const bool custom = type == "custom";
    if (type != "function" && !custom) {
      log::info("tools: {} is left out; only functions, custom tools and namespaces run here", type);
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

/// An item of something that a tool of OpenAI's own did: it says nothing here.
bool is_foreign(const std::string& type) {
  for (const char* kind : {"web_search_call", "file_search_call", "image_generation_call", "code_interpreter_call",
                           "computer_call", "mcp_list_tools", "reasoning"})
    if (type == kind) return true;
  return false;
}

/// What a tool answered: a text, or a list of parts.
Expected<std::string> output_text(const Json& item) {
  const Json output = item.value("output", Json(""));
  return output.is_object() ? output.dump() : content_text(output, "input");
}

/// An input item as a chat message.
Expected<Json> message_of(const Json& item) {
  const std::string type = word(item, "type");
  if (type == "function_call_output" || type == "custom_tool_call_output" || type == "local_shell_call_output") {
    MR_ASSIGN_OR_RETURN(std::string output, output_text(item));
    const char* const of = item.contains("call_id") ? "call_id" : "id";  // a shell's has only the latter
    return Json{{"role", "tool"}, {"tool_call_id", word(item, of)}, {"content", std::move(output)}};
  }
  if (type == "custom_tool_call") {
    const Json call = {{"id", word(item, "call_id")},
                       {"function", {{"name", word(item, "name")}, {"arguments", {{"input", word(item, "input")}}}}}};
    return Json{{"role", "assistant"}, {"content", nullptr}, {"tool_calls", Json::array({call})}};
  }
  if (type == "function_call") {
    const Json call = {
        {"id", word(item, "call_id")},
        {"function",
         {{"name", joined(word(item, "namespace"), word(item, "name"))}, {"arguments", word(item, "arguments")}}}};
    return Json{{"role", "assistant"}, {"content", nullptr}, {"tool_calls", Json::array({call})}};
  }
  if (type == "local_shell_call") {
    const Json call = {{"id", word(item, "call_id")},
                       {"function", {{"name", "local_shell"}, {"arguments", item.value("action", Json::object())}}}};
    return Json{{"role", "assistant"}, {"content", nullptr}, {"tool_calls", Json::array({call})}};
  }
  if (is_foreign(type)) return Json();
  if (!type.empty() && type != "message")
    return error(Code::invalid_argument, "input: an item of type {} is not supported", type);
  return Json{{"role", word(item, "role")}, {"content", item.value("content", Json())}};
}

Expected<Json> messages_of(const Json& body, const Json& earlier) {
  Json messages = Json::array();
  if (const std::string instructions = word(body, "instructions"); !instructions.empty())
    messages.push_back({{"role", "system"}, {"content", instructions}});
  MR_ASSIGN_OR_RETURN(const Json input, input_items(body));
  for (const Json* items : {&earlier, &input}) {
    for (const Json& item : *items) {
      MR_ASSIGN_OR_RETURN(Json message, message_of(item));
      if (!message.is_null()) messages.push_back(std::move(message));
    }
  }
  return messages;
}

Json usage_of(const Totals& totals) {
  return {{"input_tokens", totals.prompt_tokens},
          {"input_tokens_details", {{"cached_tokens", totals.cached_tokens}}},
          {"output_tokens", totals.completion_tokens},
          {"output_tokens_details", {{"reasoning_tokens", 0}}},
          {"total_tokens", totals.prompt_tokens + totals.completion_tokens}};
}

Json text_part(const std::string& text) {
  return {{"type", "output_text"}, {"text", text}, {"annotations", Json::array()}, {"logprobs", Json::array()}};
}

Json text_item(const std::string& id, const char* status, Json content) {
  return {{"id", id}, {"type", "message"}, {"status", status}, {"role", "assistant"}, {"content", std::move(content)}};
}

Json call_item(const Job& job, const generate::ToolCall& call) {
  const auto known = job.client_tools.find(call.name);
  if (known != job.client_tools.end() && known->second.custom)
    return {{"id", random_id("ctc_")},       {"type", "custom_tool_call"}, {"status", "completed"},
            {"call_id", random_id("call_")}, {"name", known->second.name}, {"input", custom_input(call)}};
  if (known != job.client_tools.end()) {
    Json item = call_item({}, {known->second.name, call.arguments});
    item["namespace"] = known->second.name_space;
    return item;
  }
  return {{"id", random_id("fc_")},
          {"type", "function_call"},
          {"status", Json::accept(call.arguments) ? "completed" : "incomplete"},
          {"call_id", random_id("call_")},
          {"name", call.name},
          {"arguments", call.arguments}};
}

Json reasoning_item(const std::string& text) {
  return {{"id", random_id("rs_")},
          {"type", "reasoning"},
          {"summary", Json::array()},
          {"content", Json::array({{{"type", "reasoning_text"}, {"text", text}}})}};
}

/// As it was sent: 0.3 as a float is not 0.3 as a double.
double shortest(float value) { return std::strtod(fmt::format("{}", value).c_str(), nullptr); }

Json shell(const Envelope& envelope, const Job& job, const ResponseLink& link, const char* status) {
  const auto asked = [&](const char* name, Json otherwise) { return link.asked.value(name, std::move(otherwise)); };
  return {{"id", envelope.id},
          {"object", "response"},
          {"created_at", envelope.created},
          {"status", status},
          {"error", nullptr},
          {"incomplete_details", nullptr},
          {"instructions", asked("instructions", Json())},
          {"max_output_tokens", job.max_tokens < 0 ? Json() : Json(job.max_tokens)},
          {"model", envelope.model},
          {"output", Json::array()},
          {"parallel_tool_calls", asked("parallel_tool_calls", true)},
          {"previous_response_id", link.previous.empty() ? Json() : Json(link.previous)},
          {"store", link.store},
          {"temperature", shortest(job.sampler.temperature)},
          {"text", asked("text", {{"format", {{"type", "text"}}}})},
          {"tool_choice", asked("tool_choice", "auto")},
          {"tools", asked("tools", Json::array())},
          {"top_p", shortest(job.sampler.top_p)},
          {"truncation", "disabled"},
          {"usage", nullptr},
          {"metadata", asked("metadata", Json::object())}};
}

void complete(Json& body, const std::string& reason, Json output, const Totals& totals) {
  body["output"] = std::move(output);
  body["usage"] = usage_of(totals);
  if (reason != "length") return;
  body["status"] = "incomplete";
  body["incomplete_details"] = {{"reason", "max_output_tokens"}};
}

/// What would be another request without it.
Status refuse_what_is_not_done(const Fields& fields) {
  struct Field {
    const char *name, *says;
  };
  static constexpr Field fields_of_others[] = {
      {"conversation", "not supported; previous_response_id goes on from a response"},
      {"prompt", "prompts are not kept here; send instructions and input"}};
  for (const Field& field : fields_of_others)
    if (fields.has(field.name)) return error(Code::unsupported, "{}: {}", field.name, field.says);
  if (const Json* background = fields.find("background"); background != nullptr && *background != false)
    return error(Code::unsupported, "background: not supported; the answer comes with this request");
  const Json* const choice = fields.find("tool_choice");
  if (const std::string type = choice != nullptr ? word(*choice, "type") : ""; !type.empty())
    if (type != "function" && type != "custom" && type != "allowed_tools")
      return error(Code::unsupported, "tool_choice: there is no {} here; name a function or a custom tool", type);
  return {};
}

/// ResponseLink::asked.
Expected<Json> repeated(const Fields& fields) {
  Json asked = Json::object();
  const auto repeat = [&](const char* name, bool (*good)(const Json&), const char* kind) {
    const Json* const value = fields.find(name);
    if (value == nullptr) return Status();
    if (!good(*value)) return error(Code::invalid_argument, "{}: must be {}", name, kind);
    asked[name] = *value;
    return Status();
  };
  const auto is_object = [](const Json& value) { return value.is_object(); };
  MR_RETURN_IF_ERROR(repeat(
      "instructions", [](const Json& value) { return value.is_string(); }, "a text"));
  MR_RETURN_IF_ERROR(repeat("metadata", is_object, "an object"));
  MR_RETURN_IF_ERROR(repeat("text", is_object, "an object"));
  MR_RETURN_IF_ERROR(repeat(
      "tools", [](const Json& value) { return value.is_array(); }, "a list"));
  MR_RETURN_IF_ERROR(repeat(
      "parallel_tool_calls", [](const Json& value) { return value.is_boolean(); }, "true or false"));
  MR_RETURN_IF_ERROR(repeat(
      "tool_choice", [](const Json&) { return true; }, ""));
  if (asked.contains("text") && !Fields(asked["text"]).has("format")) asked["text"]["format"] = {{"type", "text"}};
  return asked;
}

}  // namespace

Expected<ResponseLink> parse_link(const Json& body) {
  const Fields fields(body);
  MR_RETURN_IF_ERROR(refuse_what_is_not_done(fields));
  ResponseLink link;
  if (const auto previous = body.find("previous_response_id"); previous != body.end() && !previous->is_null()) {
    if (!previous->is_string()) return error(Code::invalid_argument, "previous_response_id: must be a text");
    link.previous = previous->get<std::string>();
  }
  if (const auto store = body.find("store"); store != body.end() && !store->is_null()) {
    if (!store->is_boolean()) return error(Code::invalid_argument, "store: must be true or false");
    link.store = store->get<bool>();
  }
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
  // What chat completions call otherwise; the rest has the same names.
  Json chat = body;
  std::map<std::string, generate::ClientTool> known;
  MR_ASSIGN_OR_RETURN(chat["messages"], messages_of(body, earlier));
  if (const auto most = body.find("max_output_tokens"); most != body.end()) chat["max_completion_tokens"] = *most;
  if (const auto tools = body.find("tools"); tools != body.end() && tools->is_array()) {
    MR_ASSIGN_OR_RETURN(chat["tools"], functions_of(*tools, known));
    // A choice among none: those that it meant are not there.
    if (chat["tools"].empty()) chat.erase("tool_choice");
  }
  if (const auto text = body.find("text"); text != body.end() && text->is_object() && text->contains("format"))
    chat["response_format"] = (*text)["format"];
  if (const auto reasoning = body.find("reasoning"); reasoning != body.end() && reasoning->is_object())
    chat["reasoning"] = *reasoning;
  MR_ASSIGN_OR_RETURN(Job job, parse_chat(chat));
  job.client_tools = std::move(known);
  return job;
}

std::string id_prefix(const ResponseLink& link) {
  return link.place.empty() ? "resp_" : fmt::format("resp_{}_", link.place);
}

Json response_body(const Envelope& envelope, const Job& job, const ResponseLink& link, const Answer& answer,
                   const Totals& totals) {
  Json output = Json::array();
  if (!answer.reasoning.empty()) output.push_back(reasoning_item(answer.reasoning));
  if (!answer.content.empty() || answer.tool_calls.empty())
    output.push_back(text_item(random_id("msg_"), "completed", Json::array({text_part(answer.content)})));
  for (const auto& call : answer.tool_calls) output.push_back(call_item(job, call));
  Json body = shell(envelope, job, link, "completed");
  complete(body, answer.reason, std::move(output), totals);
  return body;
}

// --- The stream ---

ResponseStream::ResponseStream(Job job, ResponseLink link)
    : job_(std::move(job)), link_(std::move(link)), envelope_(make_envelope(id_prefix(link_), job_.model)) {}

std::string ResponseStream::sse(const char* type, const Json& data) {
  Json event = {{"type", type}, {"sequence_number", sequence_++}};
  event.update(data);
  return fmt::format("event: {}\ndata: {}\n\n", type, event.dump(-1, ' ', false, Json::error_handler_t::replace));
}

std::string ResponseStream::begin() {
  const Json response = shell(envelope_, job_, link_, "in_progress");
  return sse("response.created", {{"response", response}}) + sse("response.in_progress", {{"response", response}});
}

std::string ResponseStream::open_text() {
  if (text_open_) return "";
  text_open_ = true;
  text_id_ = random_id("msg_");
  return sse("response.output_item.added",
             {{"output_index", output_index_}, {"item", text_item(text_id_, "in_progress", Json::array())}}) +
         sse("response.content_part.added",
             {{"item_id", text_id_}, {"output_index", output_index_}, {"content_index", 0}, {"part", text_part("")}});
}

std::string ResponseStream::close_text() {
  if (!text_open_) return "";
  text_open_ = false;
  const Json place = {{"item_id", text_id_}, {"output_index", output_index_}, {"content_index", 0}};
  Json done = place, part = place;
  done["text"] = answer_.content;
  done["logprobs"] = Json::array();
  part["part"] = text_part(answer_.content);
  output_.push_back(text_item(text_id_, "completed", Json::array({text_part(answer_.content)})));
  answer_.content.clear();  // of the next item, if there is one
  return sse("response.output_text.done", done) + sse("response.content_part.done", part) +
         sse("response.output_item.done", {{"output_index", output_index_++}, {"item", output_.back()}});
}

std::string ResponseStream::event(const generate::Event& event) {
  if (const auto* finished = std::get_if<Finished>(&event)) {
    answer_.reason = finished->reason;
    failed_ = !finished->status.ok();
    if (!failed_) return "";
    Json response = shell(envelope_, job_, link_, "failed");
    response["error"] = {{"code", "server_error"}, {"message", finished->status.message()}};
    return sse("response.failed", {{"response", std::move(response)}});
  }
  const auto* delta = std::get_if<Delta>(&event);
  if (delta == nullptr) return "";
  std::string out;
  if (!delta->content.empty()) {
    out += open_text();
    answer_.content += delta->content;
    out += sse("response.output_text.delta", {{"item_id", text_id_},
                                              {"output_index", output_index_},
                                              {"content_index", 0},
                                              {"delta", delta->content},
                                              {"logprobs", Json::array()}});
  }
  for (const auto& piece : delta->tool_calls) out += event_of_call(piece);
  return out;
}

std::string ResponseStream::event_of_call(const generate::CallPiece& piece) {
  std::string out;
  if (piece.begins) {
    out += close_text();
    call_ = call_item(job_, {piece.name, ""});
    call_["status"] = "in_progress";
    custom_input_.clear();
    out += sse("response.output_item.added", {{"output_index", output_index_}, {"item", call_}});
  }
  if (call_["type"] == "custom_tool_call") return out + event_of_custom_call(piece);
  std::string& arguments = call_["arguments"].get_ref<std::string&>();
  arguments += piece.arguments;
  if (!piece.arguments.empty()) {
    out += sse("response.function_call_arguments.delta",
               {{"item_id", call_["id"]}, {"output_index", output_index_}, {"delta", piece.arguments}});
  }
  if (!piece.ends) return out;
  out += sse("response.function_call_arguments.done",
             {{"item_id", call_["id"]}, {"output_index", output_index_}, {"arguments", arguments}});
  call_["status"] = Json::accept(arguments) ? "completed" : "incomplete";
  out += sse("response.output_item.done", {{"output_index", output_index_++}, {"item", call_}});
  output_.push_back(call_);
  return out;
}

/// Its text is a part of JSON here, so it is told when it is whole.
std::string ResponseStream::event_of_custom_call(const generate::CallPiece& piece) {
  custom_input_ += piece.arguments;
  if (!piece.ends) return "";
  const std::string input = custom_input({"", custom_input_});
  const Json place = {{"item_id", call_["id"]}, {"output_index", output_index_}};
  Json delta = place, done = place;
  delta["delta"] = input;
  done["input"] = input;
  call_["input"] = input;
  call_["status"] = Json::accept(custom_input_) ? "completed" : "incomplete";
  output_.push_back(call_);
  return sse("response.custom_tool_call_input.delta", delta) + sse("response.custom_tool_call_input.done", done) +
         sse("response.output_item.done", {{"output_index", output_index_++}, {"item", call_}});
}

std::string ResponseStream::end(const Totals& totals) {
  if (failed_) return "";
  std::string out = close_text();
  response_ = shell(envelope_, job_, link_, "completed");
  complete(response_, answer_.reason, output_, totals);
  const bool cut = answer_.reason == "length";
  return out + sse(cut ? "response.incomplete" : "response.completed", {{"response", response_}});
}

}  // namespace millrace::openai
