#include "app/server/ollama_request.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <ctime>
#include <random>

#include "app/generate/fields.h"
#include "app/generate/thinking.h"
#include "app/openai/request.h"
#include "base/os/calendar.h"

namespace millrace::server {
namespace {

using generate::Fields;
using generate::Format;
using generate::Job;
using generate::word;

constexpr double kAny = 1e9;

engine::ModelManager::Duration seconds(double count) {
  if (count < 0 || count > 1e9) return engine::ModelManager::kForever;
  return std::chrono::duration_cast<engine::ModelManager::Duration>(std::chrono::duration<double>(count));
}

/// "1h30m", "-1s", "300ms"; a number alone is of seconds. NaN where it is none.
double go_seconds(std::string_view text) {
  const bool negative = text.starts_with('-');
  if (negative) text.remove_prefix(1);
  double total = 0;
  if (text.empty()) return std::nan("");
  while (!text.empty()) {
    double number = 0;
    const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (problem != std::errc()) return std::nan("");
    text.remove_prefix(static_cast<std::size_t>(end - text.data()));
    const std::size_t length = std::min(text.find_first_of("0123456789."), text.size());
    const std::string_view unit = text.substr(0, length);
    text.remove_prefix(length);
    const double factor = unit == "h"                           ? 3600
                          : unit == "m"                         ? 60
                          : unit == "s" || unit.empty()         ? 1
                          : unit == "ms"                        ? 1e-3
                          : unit == "us" || unit == "\xc2\xb5s" ? 1e-6
                          : unit == "ns"                        ? 1e-9
                                                                : std::nan("");
    total += number * factor;
  }
  return negative ? -total : total;
}

void parse_options(const Json& options, Job& job, Fields& errors) {
  Fields fields(generate::RequestKind::ollama_options, options);
  engine::SamplerOptions& sampler = job.sampler;
  fields.number("temperature", sampler.temperature, 0, 100);
  fields.integer("top_k", sampler.top_k, -1, kAny);
  sampler.top_k = std::max(sampler.top_k, 0);
  fields.number("typical_p", sampler.typical_p, 0, 1);
  openai::parse_mirostat(fields, sampler);
  fields.number("top_p", sampler.top_p, 0, 1);
  fields.number("min_p", sampler.min_p, 0, 1);
  fields.integer("repeat_last_n", sampler.penalties.last_n, -1, kAny);
  fields.number("repeat_penalty", sampler.penalties.repeat, 0.01, 100);
  fields.number("presence_penalty", sampler.penalties.presence, -100, 100);
  fields.number("frequency_penalty", sampler.penalties.frequency, -100, 100);
  fields.integer("seed", sampler.seed, -9e15, 9e15);
  fields.integer("num_predict", job.max_tokens, -2, kAny);
  if (job.max_tokens < 0) job.max_tokens = -1;
  fields.integer("num_ctx", job.context, 0, kAny);
  fields.texts("stop", job.stop);
  if (!fields.status().ok()) errors.fail(fields.status());
}

void parse_format(const Json& body, Job& job, Fields& fields) {
  const Json* format = fields.find("format");
  if (format == nullptr || (format->is_string() && format->get<std::string>().empty())) return;
  if (format->is_string() && *format == "json") {
    job.format = Format::json;
  } else if (format->is_object()) {
    job.format = Format::schema;
    job.schema = *format;
  } else {
    fields.fail("format", "must be \"json\" or a JSON schema");
  }
  (void)body;
}

/// What generate and chat have in common.
Status parse_common(generate::RequestKind kind, const Json& body, const ModelInfo& info, OllamaRequest& out) {
  Job& job = out.job;
  job.words = Job::Words::ollama;
  job.model = info.name;
  job.stream = true;
  job.truncate = true;
  job.sampler = {};
  job.sampler.top_p = 0.9f;
  job.sampler.min_p = 0;
  Fields fields(kind, body);
  parse_options(info.parameters, job, fields);
  if (const Json* options = fields.find("options"); options != nullptr) {
    if (options->is_object())
      parse_options(*options, job, fields);
    else
      fields.fail("options", "must be an object");
  }
  const Json* const asked = fields.find("options");
  const bool seeded =
      info.parameters.contains("seed") || (asked != nullptr && asked->is_object() && asked->contains("seed"));
  if (!seeded) job.sampler.seed = (static_cast<std::uint64_t>(std::random_device{}()) & 0x7fffffff) + 1;
  fields.flag("stream", job.stream);
  fields.flag("truncate", job.truncate);
  fields.flag("logprobs", job.logprobs);
  fields.integer("top_logprobs", job.top_logprobs, 0, 20);
  fields.flag("prompt_progress", job.progress);
  fields.text("template", job.chat_template);
  parse_format(body, job, fields);
  MR_RETURN_IF_ERROR(fields.status());
  MR_RETURN_IF_ERROR(generate::take_thinking(body, job));
  MR_ASSIGN_OR_RETURN(out.keep_alive, parse_keep_alive(body));
  return {};
}

/// What an earlier answer gave as its `context`: that conversation goes on.
Status parse_context(const Json& body, Job& job) {
  Fields fields(body);
  const Json* const context = fields.find("context");
  if (context == nullptr || (context->is_array() && context->empty())) return {};
  if (!job.chat) fields.fail("context", "goes with neither raw nor suffix; put the earlier text into the prompt");
  bool good = context->is_array();
  for (std::size_t i = 0; good && i < context->size(); ++i) {
    const Json& id = (*context)[i];
    good = id.is_number_integer() && id >= 0 && id <= INT32_MAX;
    if (good) job.before.push_back(id.get<text::TokenId>());
  }
  if (!good) fields.fail("context", "must be the list of token ids that an earlier answer gave");
  return fields.status();
}

/// Markers of the pictures in `images`, a list of base64; empty: there are none.
Expected<std::string> take_pictures(const Json& holder, generate::Pictures& pictures) {
  const auto images = holder.find("images");
  if (images != holder.end() && !images->is_null() && !images->is_array())
    return error(Code::invalid_argument, "images: must be a list");
  std::string markers;
  if (images == holder.end() || images->is_null()) return markers;
  if (images->size() + pictures.size() > generate::kMostPictures)
    return error(Code::invalid_argument, "images: more than {}; send fewer", generate::kMostPictures);
  for (const Json& one : *images) {
    if (!one.is_string()) return error(Code::invalid_argument, "images: must be a list of pictures in base64");
    const std::string& text = one.get_ref<const std::string&>();
    const bool url = text.starts_with("http://") || text.starts_with("https://");
    markers += pictures.add(url ? generate::picture_of_url("image", "images", text)
                                : generate::picture_of_base64("image", "images", text));
  }
  return markers;
}

}  // namespace

Expected<std::string> ollama_model(const Json& body) {
  std::string name;
  Fields fields(body);
  fields.text("name", name);
  fields.text("model", name);
  MR_RETURN_IF_ERROR(fields.status());
  if (name.empty()) return error(Code::invalid_argument, "model is required");
  return name;
}

Expected<KeepAlive> parse_keep_alive(const Json& body) {
  const Fields fields(body);
  const Json* value = fields.find("keep_alive");
  if (value == nullptr) return KeepAlive();
  if (value->is_number()) return KeepAlive(seconds(value->get<double>()));
  const double count = value->is_string() ? go_seconds(value->get<std::string>()) : std::nan("");
  if (std::isnan(count))
    return error(Code::invalid_argument, "keep_alive: must be a number of seconds or a duration such as \"5m\"");
  return KeepAlive(seconds(count));
}

Expected<OllamaRequest> parse_ollama_generate(const Json& body, const ModelInfo& info) {
  OllamaRequest out;
  MR_RETURN_IF_ERROR(parse_common(generate::RequestKind::ollama_generate, body, info, out));
  Job& job = out.job;
  std::string system, suffix;
  bool raw = false;
  Fields fields(body);
  fields.text("prompt", job.prompt);
  fields.text("system", system);
  fields.text("suffix", suffix);
  fields.flag("raw", raw);
  MR_RETURN_IF_ERROR(fields.status());
  MR_ASSIGN_OR_RETURN(const std::string markers, take_pictures(body, job.pictures));
  out.empty = job.prompt.empty() && markers.empty();  // a picture asks for itself
  if (!suffix.empty()) job.fill.emplace().suffix = suffix;
  job.chat = !raw && !job.fill;
  if (!job.chat && !markers.empty()) fields.fail("images", "go with neither raw nor suffix");
  MR_RETURN_IF_ERROR(fields.status());
  MR_RETURN_IF_ERROR(parse_context(body, job));
  if (!job.chat) return out;
  job.keep_tokens = true;
  if (!system.empty()) job.messages.push_back({{"role", "system"}, {"content", system}});
  job.messages.push_back({{"role", "user"}, {"content", markers + job.prompt}});
  generate::Defaults defaults = info.defaults();
  if (!job.before.empty()) {  // they stand in it already
    defaults.system.clear();
    defaults.messages.clear();
  }
  generate::lay_under(defaults, job);
  return out;
}

Expected<OllamaRequest> parse_ollama_chat(const Json& body, const ModelInfo& info) {
  OllamaRequest out;
  MR_RETURN_IF_ERROR(parse_common(generate::RequestKind::ollama_chat, body, info, out));
  const Fields fields(body);
  const Json* messages = fields.find("messages");
  out.empty = messages == nullptr || (messages->is_array() && messages->empty());
  MR_RETURN_IF_ERROR(openai::parse_tools(body, out.job));
  if (out.empty) return out;
  MR_RETURN_IF_ERROR(openai::parse_messages(*messages, out.job));
  // Ollama's clients send a tool's name as tool_name, and past thoughts as thinking.
  for (std::size_t i = 0; i < messages->size(); ++i) {
    const Json& message = (*messages)[i];
    if (message.contains("tool_name") && message["tool_name"].is_string())
      out.job.messages[i]["name"] = message["tool_name"];
    MR_ASSIGN_OR_RETURN(const std::string markers, take_pictures(message, out.job.pictures));
    if (!markers.empty() && word(message, "role") != "user" && word(message, "role") != "tool")
      return error(Code::invalid_argument, "images: they go with messages of users and tools");
    if (!markers.empty()) {  // before a question, behind what a tool said
      Json& content = out.job.messages[i]["content"];
      const std::string said = content.get<std::string>();
      content = message.value("role", Json()) == "tool" ? said + "\n" + markers : markers + said;
    }
    if (message.contains("thinking") && message["thinking"].is_string())
      out.job.messages[i]["reasoning_content"] = message["thinking"];
  }
  generate::lay_under(info.defaults(), out.job);
  return out;
}

Expected<OllamaEmbedRequest> parse_ollama_embed(const Json& body, const char* field) {
  OllamaEmbedRequest out;
  Fields fields(generate::RequestKind::ollama_embed, body);
  fields.texts(field, out.texts);
  fields.flag("truncate", out.truncate);
  fields.integer("dimensions", out.dimensions, 0, kAny);
  if (out.texts.size() > openai::kMostEmbeddings)
    fields.fail(field, fmt::format("at most {} texts at once", openai::kMostEmbeddings));
  if (const Json* options = fields.find("options"); options != nullptr && !options->is_object()) {
    fields.fail("options", "must be an object");
  } else if (options != nullptr) {
    Fields inner(*options);
    inner.integer("num_ctx", out.context, 0, kAny);
    if (!inner.status().ok()) fields.fail(inner.status());
  }
  MR_RETURN_IF_ERROR(fields.status());
  MR_ASSIGN_OR_RETURN(out.keep_alive, parse_keep_alive(body));
  return out;
}

std::string rfc3339(std::chrono::system_clock::time_point time, std::size_t decimals) {
  const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
  const std::tm parts = os::utc_time(static_cast<std::time_t>(ns / 1'000'000'000)).value_or(std::tm{});
  const std::string fraction = fmt::format("{:09}", ns % 1'000'000'000);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{}Z", parts.tm_year + 1900, parts.tm_mon + 1, parts.tm_mday,
                     parts.tm_hour, parts.tm_min, parts.tm_sec, fraction.substr(0, decimals));
}

}  // namespace millrace::server
