#include "app/anthropic/messages.h"

#include <algorithm>
#include <random>
#include <utility>

#include "app/anthropic/tools.h"
#include "app/generate/fields.h"
#include "app/generate/thinking.h"
#include "app/openai/request.h"
#include "app/openai/response.h"
#include "text/past_arguments.h"

namespace millrace::anthropic {
namespace {

using generate::Delta;
using generate::Fields;
using generate::Finished;
using generate::word;

std::string kind_of(const Json& block) { return word(block, "type"); }

/// The words of a document block: its title, what is said of it, and its text.
Expected<std::string> document_text(const Json& block) {
  const Json source = block.value("source", Json());
  const std::string kind = kind_of(source);
  std::string text;
  if (kind == "text") {
    text = word(source, "data");
  } else if (kind == "content") {
    MR_ASSIGN_OR_RETURN(text, openai::content_text(source.value("content", Json()), "messages"));
  } else {
    return error(Code::invalid_argument,
                 "messages: a document of source type '{}' is not supported; send its text as {{\"type\": \"text\"}}",
                 kind);
  }
  std::string words = "<document>\n";
  for (const char* name : {"title", "context"})
    if (const std::string said = word(block, name); !said.empty()) words += fmt::format("{}: {}\n", name, said);
  return words + text + "\n</document>\n";
}

/// Where a search found something, and what it says there.
std::string search_text(const Json& block) {
  std::string words = fmt::format("<document>\ntitle: {}\nsource: {}\n", word(block, "title"), word(block, "source"));
  if (const Json content = block.value("content", Json()); content.is_array())
    for (const Json& part : content) words += word(part, "text") + "\n";
  return words + "</document>\n";
}

/// The marker of a picture, which goes into `pictures`.
Expected<std::string> add_picture(const Json& block, const std::string& where, generate::Pictures& pictures) {
  if (pictures.size() >= generate::kMostPictures)
    return error(Code::invalid_argument, "messages: more than {} images; send fewer", generate::kMostPictures);
  return pictures.add(openai::picture_of(block, where));
}

/// What a tool answers: a text, or blocks of texts, pictures, documents and others, which are noted.
Expected<std::string> result_text(const Json& content, const std::string& where, generate::Pictures& pictures) {
  if (!content.is_array()) return openai::content_text(content, "messages");
  std::string text;
  for (std::size_t i = 0; i < content.size(); ++i) {
    const Json& block = content[i];
    const std::string kind = kind_of(block);
    if (kind == "image") {
      MR_ASSIGN_OR_RETURN(const std::string marker, add_picture(block, fmt::format("{}.{}", where, i), pictures));
      text += marker;
    } else if (kind == "document") {
      const Expected<std::string> words = document_text(block);
      text += words.ok() ? *words : openai::note_of(kind);
    } else if (kind == "search_result") {
      text += search_text(block);
    } else if (kind == "tool_reference") {
      text += word(block, "tool_name") + "\n";
    } else {
      MR_ASSIGN_OR_RETURN(const std::string part,
                          openai::content_text(Json::array({block}), "messages", openai::Unreadable::noted));
      text += part;
    }
  }
  return text;
}

/// What tools did that another server has run, in words: it stays in a conversation that goes on here.
std::string foreign_text(const Json& block) {
  constexpr std::size_t kMost = 2000;
  const std::string kind = kind_of(block);
  if (kind == "compaction") return word(block, "content") + "\n";
  const Json what = block.value(kind.ends_with("_use") ? "input" : "content", Json());
  std::string words =
      what.is_string() ? what.get<std::string>() : what.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (words.size() > kMost)
    words.resize(words.find_last_of(' ', kMost) == std::string::npos ? 0 : words.find_last_of(' ', kMost));
  const std::string name = word(block, "name");
  return fmt::format("[{}{}{}: {}]\n", kind, name.empty() ? "" : " ", name, words);
}

bool is_foreign(const std::string& kind) {
  return kind == "server_tool_use" || kind == "mcp_tool_use" || kind == "compaction" ||
         (kind.ends_with("_tool_result") && kind != "tool_result");
}

/// A message's blocks into the messages that say the same: results of tools become messages of their own.
/// `where`: what errors about a picture begin with, before the block's index.
Status add_blocks(const std::string& role, const Json& blocks, const std::string& where, Job& job) {
  Json& messages = job.messages;
  Json message = {{"role", role}, {"content", ""}};
  std::string text, thoughts;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const Json& block = blocks[i];
    const std::string kind = kind_of(block);
    if (kind == "image" && role == "user") {
      MR_ASSIGN_OR_RETURN(const std::string marker, add_picture(block, fmt::format("{}.{}", where, i), job.pictures));
      text += marker;
    } else if (kind == "text") {
      text += word(block, "text");
    } else if (kind == "document") {
      MR_ASSIGN_OR_RETURN(const std::string words, document_text(block));
      text += words;
    } else if (kind == "thinking") {
      thoughts += word(block, "thinking");
    } else if (kind == "tool_use") {
      message["tool_calls"].push_back(
          {{"id", word(block, "id")},
           {"type", "function"},
           {"function",
            {{"name", word(block, "name")}, {"arguments", text::past_arguments(block.value("input", Json()))}}}});
    } else if (kind == "tool_result") {
      MR_ASSIGN_OR_RETURN(std::string content, result_text(block.value("content", Json()),
                                                           fmt::format("{}.{}.content", where, i), job.pictures));
      messages.push_back(
          {{"role", "tool"}, {"content", std::move(content)}, {"tool_call_id", word(block, "tool_use_id")}});
    } else if (kind == "search_result") {
      text += search_text(block);
    } else if (is_foreign(kind)) {
      text += foreign_text(block);
    } else if (kind != "redacted_thinking") {
      return error(Code::invalid_argument, "messages: a content block of type '{}' is not supported; send text", kind);
    }
  }
  message["content"] = text;
  if (!thoughts.empty()) message["reasoning_content"] = thoughts;
  if (!text.empty() || message.contains("tool_calls")) messages.push_back(std::move(message));
  return {};
}

/// The system's blocks but those that Claude Code puts there for Anthropic's accounting. They differ from session to
/// session, and stand before everything else: a conversation would share no beginning with the last one's.
Json without_billing(const Json& system) {
  if (!system.is_array()) return system;
  Json kept = Json::array();
  for (const Json& block : system)
    if (!word(block, "text").starts_with("x-anthropic-billing-header:")) kept.push_back(block);
  return kept;
}

/// output_config.format, and output_format as it was called before.
Status parse_format(const Json& body, Job& job) {
  const Fields fields(body);
  const Json* format = fields.find("output_format");
  if (const Json* config = fields.find("output_config"); config != nullptr && !config->is_object())
    return error(Code::invalid_argument, "output_config: must be an object");
  if (const Json* config = fields.find("output_config"); config != nullptr && config->is_object())
    if (const Json* inner = Fields(*config).find("format"); inner != nullptr) format = inner;
  if (format == nullptr) return {};
  if (kind_of(*format) != "json_schema" || !format->contains("schema"))
    return error(Code::invalid_argument,
                 "output_config: format (output_format as it was called) must be {{\"type\": \"json_schema\", "
                 "\"schema\": ...}}");
  job.format = generate::Format::schema;
  job.schema = (*format)["schema"];
  return {};
}

Status parse_messages(const Json& body, Job& job) {
  const Json system = without_billing(body.value("system", Json()));
  if (!system.is_null() && system != Json::array()) {
    MR_ASSIGN_OR_RETURN(std::string text, openai::content_text(system, "system"));
    job.messages.push_back({{"role", "system"}, {"content", std::move(text)}});
  }
  const auto messages = body.find("messages");
  if (messages == body.end() || !messages->is_array() || messages->empty())
    return error(Code::invalid_argument, "messages: must be a list with at least one message");
  for (std::size_t i = 0; i < messages->size(); ++i) {
    const Json& message = (*messages)[i];
    const std::string role = word(message, "role");
    if (role != "user" && role != "assistant" && role != "system")
      return error(Code::invalid_argument, "messages: each needs the role user or assistant");
    const auto content = message.find("content");
    if (content != message.end() && content->is_string())
      job.messages.push_back({{"role", role}, {"content", *content}});
    else if (content != message.end() && content->is_array())
      MR_RETURN_IF_ERROR(add_blocks(role, *content, fmt::format("messages.{}.content", i), job));
    else
      return error(Code::invalid_argument, "messages: content must be a text or a list of blocks");
  }
  return {};
}

const char* stop_reason(const std::string& reason, const std::string& stop) {
  if (reason == "length") return "max_tokens";
  if (reason == "stop" && !stop.empty()) return "stop_sequence";
  return reason == "tool_calls" ? "tool_use" : "end_turn";
}

std::string sse(const char* event, const Json& data) {
  return fmt::format("event: {}\ndata: {}\n\n", event, data.dump(-1, ' ', false, Json::error_handler_t::replace));
}

/// What was read from a cache counts apart from the other tokens of the prompt.
Json usage_of(const generate::Totals& totals) {
  return {{"input_tokens", totals.prompt_tokens - totals.cached_tokens},
          {"cache_creation_input_tokens", 0},
          {"cache_read_input_tokens", totals.cached_tokens},
          {"output_tokens", totals.completion_tokens}};
}

Json empty_message(const std::string& model, const generate::Totals& totals) {
  return {{"id", openai::random_id("msg_")},
          {"type", "message"},
          {"role", "assistant"},
          {"model", model},
          {"content", Json::array()},
          {"stop_reason", nullptr},
          {"stop_sequence", nullptr},
          {"usage", usage_of(totals)}};
}

std::string call_id() { return openai::random_id("toolu_"); }

}  // namespace

Expected<Job> parse(const Json& body, bool needs_max_tokens) {
  Job job;
  job.words = Job::Words::anthropic;
  job.any_length = !needs_max_tokens;
  engine::SamplerOptions& sampler = job.sampler;
  sampler = {};
  sampler.temperature = 1;
  sampler.top_k = 0;
  sampler.top_p = 1;
  sampler.min_p = 0;
  sampler.seed = (static_cast<std::uint64_t>(std::random_device{}()) & 0x7fffffff) + 1;
  Fields fields(generate::RequestKind::message, body);
  fields.text("model", job.model);
  fields.integer("max_tokens", job.max_tokens, 1, 1e9);
  if (needs_max_tokens && !fields.has("max_tokens")) fields.fail("max_tokens", "is missing");
  fields.number("temperature", sampler.temperature, 0, 2);
  fields.number("top_p", sampler.top_p, 0, 1);
  fields.integer("top_k", sampler.top_k, 0, 1e6);
  fields.texts("stop_sequences", job.stop);
  fields.flag("stream", job.stream);
  job.progress = job.stream;
  MR_RETURN_IF_ERROR(fields.status());
  MR_RETURN_IF_ERROR(generate::take_thinking(body, job));
  MR_RETURN_IF_ERROR(parse_messages(body, job));
  MR_RETURN_IF_ERROR(parse_tools(body, job));
  MR_RETURN_IF_ERROR(parse_format(body, job));
  return job;
}

Json body(const Job& job, const generate::Answer& answer, const generate::Totals& totals) {
  Json message = empty_message(job.model, totals);
  Json& content = message["content"];
  if (!answer.reasoning.empty())
    content.push_back({{"type", "thinking"}, {"thinking", answer.reasoning}, {"signature", ""}});
  if (!answer.content.empty() || answer.tool_calls.empty())
    content.push_back({{"type", "text"}, {"text", answer.content}});
  for (const auto& call : answer.tool_calls)
    content.push_back({{"type", "tool_use"}, {"id", call_id()}, {"name", call.name}, {"input", call.object()}});
  message["stop_reason"] = stop_reason(answer.reason, answer.stop);
  if (!answer.stop.empty()) message["stop_sequence"] = answer.stop;
  return message;
}

Stream::Stream(std::string model, std::int64_t prompt_tokens)
    : model_(std::move(model)), prompt_tokens_(prompt_tokens) {}

std::string Stream::begin(std::int64_t cached_tokens) {
  if (std::exchange(begun_, true)) return "";
  generate::Totals known;
  known.prompt_tokens = prompt_tokens_;
  known.cached_tokens = cached_tokens;
  return sse("message_start", {{"type", "message_start"}, {"message", empty_message(model_, known)}});
}

std::string Stream::close_block() {
  if (open_.empty()) return "";
  open_.clear();
  return sse("content_block_stop", {{"type", "content_block_stop"}, {"index", index_}});
}

std::string Stream::open_block(const char* type, Json block) {
  if (open_ == type && open_ != "tool_use") return "";
  std::string out = close_block();
  open_ = type;
  return out + sse("content_block_start",
                   {{"type", "content_block_start"}, {"index", ++index_}, {"content_block", std::move(block)}});
}

std::string Stream::delta(Json delta) const {
  return sse("content_block_delta", {{"type", "content_block_delta"}, {"index", index_}, {"delta", std::move(delta)}});
}

std::string Stream::event(const generate::Event& event) {
  if (const auto* progress = std::get_if<generate::Progress>(&event)) return begin(progress->done);
  std::string out = begin(0);
  if (const auto* finished = std::get_if<Finished>(&event)) {
    reason_ = finished->reason;
    stop_ = finished->stop;
    failed_ = !finished->status.ok();
    if (!failed_) return out;
    return out + sse("error",
                     {{"type", "error"}, {"error", {{"type", "api_error"}, {"message", finished->status.message()}}}});
  }
  const auto* piece = std::get_if<Delta>(&event);
  if (piece == nullptr) return out;
  if (!piece->reasoning.empty()) {
    out += open_block("thinking", {{"type", "thinking"}, {"thinking", ""}, {"signature", ""}});
    out += delta({{"type", "thinking_delta"}, {"thinking", piece->reasoning}});
  }
  if (!piece->content.empty()) {
    out += open_block("text", {{"type", "text"}, {"text", ""}});
    out += delta({{"type", "text_delta"}, {"text", piece->content}});
  }
  for (const auto& call : piece->tool_calls) {
    if (call.begins) {
      out += open_block("tool_use",
                        {{"type", "tool_use"}, {"id", call_id()}, {"name", call.name}, {"input", Json::object()}});
    }
    if (!call.arguments.empty()) out += delta({{"type", "input_json_delta"}, {"partial_json", call.arguments}});
  }
  return out;
}

std::string Stream::end(const generate::Totals& totals) {
  if (failed_) return "";
  std::string out = close_block();
  out += sse("message_delta",
             {{"type", "message_delta"},
              {"delta",
               {{"stop_reason", stop_reason(reason_, stop_)}, {"stop_sequence", stop_.empty() ? Json() : Json(stop_)}}},
              {"usage", usage_of(totals)}});
  return out + sse("message_stop", {{"type", "message_stop"}});
}

}  // namespace millrace::anthropic
