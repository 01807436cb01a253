#include "app/openai/responses.h"

#include <chrono>
#include <cstdlib>
#include <utility>

#include "app/generate/fields.h"

namespace millrace::openai {
namespace {

using generate::Answer;
using generate::Delta;
using generate::Finished;
using generate::Totals;

std::int64_t seconds_now() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::seconds>(now).count();
}

Json text_part(const std::string& text, Json logprobs = Json::array()) {
  return {{"type", "output_text"}, {"text", text}, {"annotations", Json::array()}, {"logprobs", std::move(logprobs)}};
}

Json text_item(const std::string& id, const char* status, Json content) {
  return {{"id", id}, {"type", "message"}, {"status", status}, {"role", "assistant"}, {"content", std::move(content)}};
}

Json reasoning_part(const std::string& text) { return {{"type", "reasoning_text"}, {"text", text}}; }

Json reasoning_item(const std::string& id, const char* status, Json content) {
  return {{"id", id},
          {"type", "reasoning"},
          {"summary", Json::array()},
          {"content", std::move(content)},
          {"encrypted_content", nullptr},
          {"status", status}};
}

Json logprobs_json(const Job& job, const std::vector<generate::TokenLogprob>& logprobs) {
  return job.logprobs ? chat_logprobs(logprobs)["content"] : Json::array();
}

/// A call of a tool of OpenAI's own, which the client runs.
Json own_call(const std::string& tool, const generate::ToolCall& call) {
  Json arguments = call.object();
  const char* const status = Json::accept(call.arguments) ? "completed" : "incomplete";
  Json item = {{"call_id", random_id("call_")}, {"status", status}};
  if (tool == "apply_patch") {
    item.update({{"id", random_id("apc_")}, {"type", "apply_patch_call"}, {"operation", std::move(arguments)}});
    return item;
  }
  if (tool == "shell") {
    for (const char* name : {"timeout_ms", "max_output_length"})
      if (!arguments.contains(name)) arguments[name] = nullptr;
    if (!arguments.contains("commands")) arguments["commands"] = Json::array();
    item.update({{"id", random_id("sh_")}, {"type", "shell_call"}, {"action", std::move(arguments)}});
    item["environment"] = {{"type", "local"}};
    return item;
  }
  arguments["type"] = "exec";
  for (const char* name : {"command", "env"})
    if (!arguments.contains(name)) arguments[name] = *name == 'e' ? Json::object() : Json::array();
  item.update({{"id", random_id("lsh_")}, {"type", "local_shell_call"}, {"action", std::move(arguments)}});
  return item;
}

Json call_item(const Job& job, const generate::ToolCall& call) {
  const auto known = job.client_tools.find(call.name);
  if (known != job.client_tools.end() && !known->second.runs.empty()) return own_call(known->second.runs, call);
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

/// As it was sent: 0.3 as a float is not 0.3 as a double.
double shortest(float value) { return std::strtod(fmt::format("{}", value).c_str(), nullptr); }

Json shell(const Envelope& envelope, const Job& job, const ResponseLink& link, const char* status) {
  const auto asked = [&](const char* name, Json otherwise) { return link.asked.value(name, std::move(otherwise)); };
  return {{"id", envelope.id},
          {"object", "response"},
          {"created_at", envelope.created},
          {"status", status},
          {"background", false},
          {"completed_at", nullptr},
          {"error", nullptr},
          {"incomplete_details", nullptr},
          {"instructions", asked("instructions", Json())},
          {"max_output_tokens", job.max_tokens < 0 ? Json() : Json(job.max_tokens)},
          {"model", envelope.model},
          {"output", Json::array()},
          {"parallel_tool_calls", asked("parallel_tool_calls", true)},
          {"previous_response_id", link.previous.empty() ? Json() : Json(link.previous)},
          {"prompt_cache_key", asked("prompt_cache_key", Json())},
          {"reasoning", asked("reasoning", {{"effort", nullptr}, {"summary", nullptr}})},
          {"safety_identifier", asked("safety_identifier", Json())},
          {"service_tier", "default"},
          {"store", link.store},
          {"temperature", shortest(job.sampler.temperature)},
          {"text", asked("text", {{"format", {{"type", "text"}}}})},
          {"tool_choice", asked("tool_choice", "auto")},
          {"tools", asked("tools", Json::array())},
          {"top_p", shortest(job.sampler.top_p)},
          {"top_logprobs", asked("top_logprobs", 0)},
          {"max_tool_calls", asked("max_tool_calls", Json())},
          {"truncation", asked("truncation", "disabled")},
          {"usage", nullptr},
          {"user", asked("user", Json())},
          {"metadata", asked("metadata", Json::object())}};
}

void complete(Json& body, const std::string& reason, Json output, const Totals& totals) {
  body["output"] = std::move(output);
  body["usage"] = response_usage(totals);
  body["completed_at"] = seconds_now();
  if (reason != "length") return;
  body["status"] = "incomplete";
  body["incomplete_details"] = {{"reason", "max_output_tokens"}};
}

}  // namespace

Json response_usage(const Totals& totals) {
  return {{"input_tokens", totals.prompt_tokens},
          {"input_tokens_details", {{"cached_tokens", totals.cached_tokens}, {"cache_write_tokens", 0}}},
          {"output_tokens", totals.completion_tokens},
          {"output_tokens_details", {{"reasoning_tokens", totals.reasoning_tokens}}},
          {"total_tokens", totals.prompt_tokens + totals.completion_tokens}};
}

std::string id_prefix(const ResponseLink& link) {
  return link.place.empty() ? "resp_" : fmt::format("resp_{}_", link.place);
}

Json response_body(const Envelope& envelope, const Job& job, const ResponseLink& link, const Answer& answer,
                   const Totals& totals) {
  Json output = Json::array();
  if (!answer.reasoning.empty())
    output.push_back(reasoning_item(random_id("rs_"), "completed", Json::array({reasoning_part(answer.reasoning)})));
  if (!answer.content.empty() || answer.tool_calls.empty())
    output.push_back(text_item(random_id("msg_"), "completed",
                               Json::array({text_part(answer.content, logprobs_json(job, answer.logprobs))})));
  for (const auto& call : answer.tool_calls) output.push_back(call_item(job, call));
  Json body = shell(envelope, job, link, "completed");
  complete(body, answer.reason, std::move(output), totals);
  return body;
}

// --- The stream ---

std::string ResponseEvents::sse(const char* type, const Json& data) {
  const int number = next_++;
  if (number <= after_) return "";
  Json event = {{"type", type}, {"sequence_number", number}};
  event.update(data);
  return fmt::format("event: {}\ndata: {}\n\n", type, event.dump(-1, ' ', false, Json::error_handler_t::replace));
}

std::string ResponseEvents::open(const Json& item, const Json& part) {
  id_ = item["id"];
  std::string out = sse("response.output_item.added", {{"output_index", index_}, {"item", item}});
  if (!part.is_null()) out += sse("response.content_part.added", in_part({{"part", part}}));
  return out;
}

std::string ResponseEvents::more_text(const std::string& text, Json logprobs) {
  return sse("response.output_text.delta", in_part({{"delta", text}, {"logprobs", std::move(logprobs)}}));
}

std::string ResponseEvents::more_thought(const std::string& text) {
  return sse("response.reasoning_text.delta", in_part({{"delta", text}}));
}

std::string ResponseEvents::close(const Json& item) {
  std::string out;
  const std::string type = item["type"];
  if (type == "message" || type == "reasoning") {
    const Json part = item["content"].empty() ? text_part("") : item["content"].front();
    if (type == "message")
      out += sse("response.output_text.done", in_part({{"text", part["text"]}, {"logprobs", part["logprobs"]}}));
    else
      out += sse("response.reasoning_text.done", in_part({{"text", part["text"]}}));
    out += sse("response.content_part.done", in_part({{"part", part}}));
  } else if (type == "function_call") {
    out += sse("response.function_call_arguments.done",
               in_item({{"name", item["name"]}, {"arguments", item["arguments"]}}));
  } else if (type == "custom_tool_call") {
    out += sse("response.custom_tool_call_input.done", in_item({{"input", item["input"]}}));
  }
  out += sse("response.output_item.done", {{"output_index", index_}, {"item", item}});
  ++index_;
  return out;
}

Json ResponseEvents::in_item(Json data) const {
  data["item_id"] = id_;
  data["output_index"] = index_;
  return data;
}

Json ResponseEvents::in_part(Json data) const {
  data["content_index"] = 0;
  return in_item(std::move(data));
}

namespace {

/// An item as it begins.
Json begun_item(Json item) {
  item["status"] = "in_progress";
  if (item.contains("content")) item["content"] = Json::array();
  for (const char* name : {"arguments", "input"})
    if (item.contains(name)) item[name] = "";
  return item;
}

Json first_part(const Json& item) {
  if (item["type"] == "message") return text_part("");
  return item["type"] == "reasoning" ? reasoning_part("") : Json();
}

}  // namespace

std::string replay(const Json& response, int after) {
  ResponseEvents events(after);
  Json begun = response;
  begun["status"] = "in_progress";
  begun["output"] = Json::array();
  for (const char* name : {"usage", "completed_at", "incomplete_details"}) begun[name] = nullptr;
  std::string out = events.sse("response.created", {{"response", begun}});
  out += events.sse("response.in_progress", {{"response", begun}});
  for (const Json& item : response["output"]) {
    out += events.open(begun_item(item), first_part(item));
    const std::string type = item["type"];
    if (type == "function_call")
      out += events.sse("response.function_call_arguments.delta", events.in_item({{"delta", item["arguments"]}}));
    if (type == "custom_tool_call")
      out += events.sse("response.custom_tool_call_input.delta", events.in_item({{"delta", item["input"]}}));
    const bool parts = item.contains("content") && !item["content"].empty();
    if (parts && type == "message")
      out += events.more_text(item["content"].front()["text"], item["content"].front()["logprobs"]);
    if (parts && type == "reasoning") out += events.more_thought(item["content"].front()["text"]);
    out += events.close(item);
  }
  const bool whole = response["status"] == "completed";
  return out + events.sse(whole ? "response.completed" : "response.incomplete", {{"response", response}});
}

ResponseStream::ResponseStream(Job job, ResponseLink link)
    : job_(std::move(job)), link_(std::move(link)), envelope_(make_envelope(id_prefix(link_), job_.model)) {}

std::string ResponseStream::begin() {
  const Json response = shell(envelope_, job_, link_, "in_progress");
  std::string out = events_.sse("response.created", {{"response", response}});
  out += events_.sse("response.in_progress", {{"response", response}});
  return out;
}

/// Begins the item that more of an answer goes into, and ends another one before it.
std::string ResponseStream::open(Open what) {
  if (open_ == what) return "";
  std::string out = close();
  open_ = what;
  if (what == Open::text) {
    said_ = true;
    item_ = text_item(random_id("msg_"), "in_progress", Json::array());
    out += events_.open(item_, text_part(""));
  } else if (what == Open::thought) {
    item_ = reasoning_item(random_id("rs_"), "in_progress", Json::array());
    out += events_.open(item_, reasoning_part(""));
  }
  return out;
}

std::string ResponseStream::close() {
  const Open what = std::exchange(open_, Open::nothing);
  if (what == Open::nothing) return "";
  const Json part =
      what == Open::text ? text_part(text_, std::exchange(logprobs_, Json::array())) : reasoning_part(text_);
  text_.clear();
  item_["content"] = Json::array({part});
  item_["status"] = "completed";
  output_.push_back(item_);
  return events_.close(item_);
}

std::string ResponseStream::event(const generate::Event& event) {
  if (const auto* finished = std::get_if<Finished>(&event)) {
    reason_ = finished->reason;
    failed_ = !finished->status.ok();
    if (!failed_) return "";
    Json response = shell(envelope_, job_, link_, "failed");
    response["error"] = {{"code", "server_error"}, {"message", finished->status.message()}};
    return events_.sse("response.failed", {{"response", std::move(response)}});
  }
  const auto* delta = std::get_if<Delta>(&event);
  if (delta == nullptr) return "";
  std::string out;
  if (!delta->reasoning.empty()) {
    out += open(Open::thought);
    text_ += delta->reasoning;
    out += events_.more_thought(delta->reasoning);
  }
  if (!delta->content.empty()) {
    out += open(Open::text);
    text_ += delta->content;
    const Json logprobs = logprobs_json(job_, delta->logprobs);
    logprobs_.insert(logprobs_.end(), logprobs.begin(), logprobs.end());
    out += events_.more_text(delta->content, logprobs);
  }
  for (const auto& piece : delta->tool_calls) out += event_of_call(piece);
  return out;
}

std::string ResponseStream::event_of_call(const generate::CallPiece& piece) {
  std::string out;
  if (piece.begins) {
    out += close();
    said_ = true;
    call_ = {piece.name, ""};
    item_ = call_item(job_, call_);
    out += events_.open(begun_item(item_), nullptr);
  }
  call_.arguments += piece.arguments;
  // The text of a custom tool is a part of JSON here, and a shell's call a whole: they are told when they are there.
  const bool function = item_["type"] == "function_call";
  if (function && !piece.arguments.empty())
    out += events_.sse("response.function_call_arguments.delta", events_.in_item({{"delta", piece.arguments}}));
  if (!piece.ends) return out;
  Json whole = call_item(job_, call_);
  for (const char* name : {"id", "call_id"}) whole[name] = item_[name];
  if (!Json::accept(call_.arguments)) whole["status"] = "incomplete";
  if (whole["type"] == "custom_tool_call")
    out += events_.sse("response.custom_tool_call_input.delta", events_.in_item({{"delta", whole["input"]}}));
  out += events_.close(whole);
  output_.push_back(std::move(whole));
  return out;
}

std::string ResponseStream::end(const Totals& totals) {
  if (failed_) return "";
  std::string out;
  if (!said_) out += open(Open::text);  // an answer without a word has an empty message, streamed or not
  out += close();
  response_ = shell(envelope_, job_, link_, "completed");
  complete(response_, reason_, output_, totals);
  const bool cut = reason_ == "length";
  out += events_.sse(cut ? "response.incomplete" : "response.completed", {{"response", response_}});
  return out;
}

}  // namespace millrace::openai
