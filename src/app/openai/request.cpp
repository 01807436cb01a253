#include "app/openai/request.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <random>
#include <set>

#include "app/generate/fields.h"

namespace millrace::openai {
namespace {

using generate::Fields;
using generate::Format;
using generate::ToolChoice;

constexpr int kMostChoices = 16, kMostTopLogprobs = 20;
constexpr std::size_t kMostStops = 16, kMostPrompts = 256;
constexpr double kMostTokens = 1e9;

std::uint64_t drawn_seed() {
  std::random_device random;
  return (static_cast<std::uint64_t>(random()) & 0x7fffffff) + 1;
}

/// A text field of an object; empty where there is none.
std::string word(const Json& object, const char* name) {
  const auto found = object.is_object() ? object.find(name) : object.end();
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

/// Token ids out of a JSON list; false: one is no number that an id can be.
bool read_tokens(const Json& list, std::vector<text::TokenId>& out) {
  for (const Json& id : list) {
    if (!id.is_number_integer()) return false;
    const double value = id.get<double>();
    if (value < 0 || value > std::numeric_limits<text::TokenId>::max()) return false;
    out.push_back(id.get<text::TokenId>());
  }
  return true;
}

/// What chat completions and completions have in common, with OpenAI's defaults.
void parse_sampling(Fields& fields, Job& job) {
  engine::SamplerOptions& sampler = job.sampler;
  sampler = {};
  sampler.temperature = 1;
  sampler.top_k = 0;
  sampler.top_p = 1;
  sampler.min_p = 0;
  sampler.repeat_last_n = -1;
  fields.number("temperature", sampler.temperature, 0, 2);
  fields.number("top_p", sampler.top_p, 0, 1);
  fields.number("min_p", sampler.min_p, 0, 1);
  fields.integer("top_k", sampler.top_k, 0, 1e6);
  fields.number("presence_penalty", sampler.presence_penalty, -2, 2);
  fields.number("frequency_penalty", sampler.frequency_penalty, -2, 2);
  fields.number("repeat_penalty", sampler.repeat_penalty, 0.01, 100);
  sampler.seed = 0;
  fields.integer("seed", sampler.seed, -9e15, 9e15);
  if (!fields.has("seed")) sampler.seed = drawn_seed();
  fields.texts("stop", job.stop);
  if (job.stop.size() > kMostStops) fields.fail("stop", "has too many entries");
  fields.integer("n", job.n, 1, kMostChoices);
  fields.flag("stream", job.stream);
  fields.flag("ignore_eos", job.ignore_end);
  fields.flag("return_progress", job.progress);
  fields.flag("prompt_progress", job.progress);
  fields.integer("priority", job.priority, -100, 100);
  if (const Json* options = fields.find("stream_options"); options != nullptr && options->is_object())
    job.include_usage = options->value("include_usage", false);
  fields.text("model", job.model);
}

void parse_logit_bias(Fields& fields, Job& job) {
  const Json* bias = fields.find("logit_bias");
  if (bias == nullptr) return;
  if (!bias->is_object()) return fields.fail("logit_bias", "must be an object of token ids and numbers");
  for (const auto& [key, value] : bias->items()) {
    text::TokenId id = -1;
    const auto [end, problem] = std::from_chars(key.data(), key.data() + key.size(), id);
    const double amount = value.is_number() ? value.get<double>() : 1e9;
    if (problem != std::errc() || end != key.data() + key.size() || id < 0 || !(amount >= -100 && amount <= 100))
      return fields.fail("logit_bias", "maps token ids to numbers from -100 to 100");
    job.logit_bias[id] = static_cast<float>(amount);
  }
}

/// The arguments of a past call: OpenAI sends them as text. A template may want it parsed once more.
Expected<Json> arguments_of(const Json& function) {
  const auto found = function.find("arguments");
  if (found == function.end()) return Json::object();
  if (!found->is_string()) return *found;
  Json parsed = generate::parse_json(found->get_ref<const std::string&>());
  if (parsed.is_discarded()) parsed = *found;
  if (parsed.is_string() && generate::is_unwieldy(parsed.get_ref<const std::string&>()))
    return error(Code::invalid_argument,
                 "messages: the arguments of a tool call are no JSON object, or nested more than {} deep",
                 kMostNesting);
  return parsed;
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
    MR_ASSIGN_OR_RETURN(Json arguments, arguments_of(*function));
    Json one = {{"type", "function"},
                {"function", {{"name", function->value("name", Json())}, {"arguments", std::move(arguments)}}}};
    if (call.contains("id") && call["id"].is_string()) one["id"] = call["id"];
    list.push_back(std::move(one));
  }
  out = std::move(list);
  return {};
}

Expected<Json> parse_message(const Json& message) {
  if (!message.is_object() || !message.contains("role") || !message["role"].is_string())
    return error(Code::invalid_argument, "messages: each must be an object with a role");
  Json out = {{"role", message["role"]}};
  const auto content = message.find("content");
  MR_ASSIGN_OR_RETURN(out["content"], content_text(content == message.end() ? Json() : *content, "messages"));
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
    MR_ASSIGN_OR_RETURN(Json out, parse_message(message));
    job.messages.push_back(std::move(out));
  }
  return {};
}

namespace {

/// tool_choice of type allowed_tools: {"mode", "tools": [{"type": "function", "name" or "function": {"name"}}]}.
Status allow_tools(const Json& allowed, Job& job) {
  const std::string mode = word(allowed, "mode");
  const Json listed = allowed.is_object() ? allowed.value("tools", Json::array()) : Json::array();
  if ((mode != "auto" && mode != "required") || !listed.is_array())
    return error(Code::invalid_argument, "tool_choice: allowed_tools needs a mode, auto or required, and tools");
  std::set<std::string> names;
  for (const Json& one : listed)
    names.insert(word(one.is_object() ? one.value("function", one.value("custom", one)) : one, "name"));
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

namespace {

/// GBNF where rules are written with ::=, else Lark.
void take_grammar(const std::string& grammar, Job& job) {
  job.format = Format::grammar;
  job.grammar = grammar;
  job.syntax = grammar.find("::=") != std::string::npos ? text::GrammarSyntax::gbnf : text::GrammarSyntax::lark;
}

}  // namespace

Status parse_response_format(const Json& format, Job& job) {
  const std::string type = word(format, "type");
  if (type == "text") return {};
  if (type == "json_object") {
    job.format = format.contains("schema") ? Format::schema : Format::json;  // llama-server has schemas there, too
    if (job.format == Format::schema) job.schema = format["schema"];
    return {};
  }
  if (type == "grammar") {
    if (word(format, "grammar").empty())
      return error(Code::invalid_argument, "response_format: grammar has to be a text");
    take_grammar(word(format, "grammar"), job);
    return {};
  }
  if (type != "json_schema")
    return error(Code::invalid_argument, "response_format: type must be text, json_object, json_schema or grammar");
  // Chat completions put the schema below json_schema, responses beside the type.
  const Json& holder = format.contains("json_schema") ? format["json_schema"] : format;
  if (!holder.is_object() || !holder.contains("schema"))
    return error(Code::invalid_argument, "response_format: json_schema needs a schema");
  job.format = Format::schema;
  job.schema = holder["schema"];
  job.strict = holder.value("strict", Json()) != false;
  return {};
}

namespace {

/// One of these texts, as a regular expression.
Status take_choices(const char* field, const Json& choices, Job& job) {
  bool good = choices.is_array() && !choices.empty();
  if (good)
    for (const Json& one : choices) good = good && one.is_string();
  if (!good) return error(Code::invalid_argument, "{}: must be a list of texts", field);
  job.format = Format::grammar;
  job.syntax = text::GrammarSyntax::regex;
  job.grammar.clear();
  for (const Json& one : choices) {
    if (!job.grammar.empty()) job.grammar += '|';
    for (const char c : one.get<std::string>()) {
      if (std::string_view("\\^$.|?*+()[]{}").find(c) != std::string_view::npos) job.grammar += '\\';
      job.grammar += c;
    }
  }
  return {};
}

Status take_schema(const char* field, const Json& schema, Job& job) {
  job.format = Format::schema;
  job.schema = schema.is_string() ? generate::parse_json(schema.get_ref<const std::string&>()) : schema;
  if (job.schema.is_discarded()) return error(Code::invalid_argument, "{}: is no JSON, or nested too deep", field);
  return {};
}

/// A form by the name that llama-server, vLLM or sglang has for it.
Status take_form(const char* field, std::string_view kind, const Json& value, Job& job) {
  if (kind == "json") return take_schema(field, value, job);
  if (kind == "choice") return take_choices(field, value, job);
  if (!value.is_string()) return error(Code::invalid_argument, "{}: must be a text", field);
  take_grammar(value.get<std::string>(), job);
  if (kind == "gbnf") job.syntax = text::GrammarSyntax::gbnf;
  if (kind == "regex") job.syntax = text::GrammarSyntax::regex;
  return {};
}

/// Forms of other servers, as llama-server, vLLM and sglang take them; what we have no means for is refused. Ignored it
/// would give an answer of any form.
Status parse_other_forms(const Fields& fields, Job& job) {
  for (const char* name : {"functions", "function_call"})
    if (fields.has(name))
      return error(Code::invalid_argument, "{}: this form of OpenAI's API has given way to tools; send those", name);
  if (fields.has("structural_tag"))
    return error(Code::unsupported, "structural_tag: not supported; send a JSON schema as response_format");
  if (const Json* lazy = fields.find("grammar_lazy"); lazy != nullptr && *lazy == true)
    return error(Code::unsupported, "grammar_lazy: not supported; the whole answer keeps a grammar");
  struct Form {
    const char* field;
    const char* kind;
  };
  static constexpr Form forms[] = {{"grammar", "gbnf"},       {"json_schema", "json"},
                                   {"ebnf", "gbnf"},          {"regex", "regex"},  // sglang's
                                   {"guided_json", "json"},   {"guided_grammar", "grammar"},
                                   {"guided_regex", "regex"}, {"guided_choice", "choice"}};
  static constexpr Form outputs_forms[] = {
      {"grammar", "grammar"}, {"json", "json"}, {"regex", "regex"}, {"choice", "choice"}};
  int taken = job.format == Format::text ? 0 : 1;
  for (const Form& form : forms) {
    const Json* const value = fields.find(form.field);
    if (value == nullptr || *value == "") continue;  // clients of llama-server send an empty grammar for none
    MR_RETURN_IF_ERROR(take_form(form.field, form.kind, *value, job));
    ++taken;
  }
  if (const Json* outputs = fields.find("structured_outputs"); outputs != nullptr) {
    const int before = taken;
    for (const Form& form : outputs_forms) {
      if (!outputs->is_object() || !outputs->contains(form.field)) continue;
      MR_RETURN_IF_ERROR(take_form("structured_outputs", form.kind, (*outputs)[form.field], job));
      ++taken;
    }
    if (taken == before)
      return error(Code::unsupported, "structured_outputs: only json, grammar, regex and choice are supported");
  }
  if (taken > 1) return error(Code::invalid_argument, "grammar: several forms are asked for; send one");
  return {};
}

}  // namespace

Expected<Job> parse_chat(const Json& body) {
  Job job;
  Fields fields(body);
  parse_sampling(fields, job);
  parse_logit_bias(fields, job);
  std::vector<std::string> modalities;
  fields.texts("modalities", modalities);
  if (std::any_of(modalities.begin(), modalities.end(), [](const std::string& one) { return one != "text"; }))
    fields.fail("modalities", "answers are text only");
  fields.flag("logprobs", job.logprobs);
  fields.integer("top_logprobs", job.top_logprobs, 0, kMostTopLogprobs);
  fields.integer("max_tokens", job.max_tokens, -1, kMostTokens);
  fields.integer("max_completion_tokens", job.max_tokens, 0, kMostTokens);
  MR_RETURN_IF_ERROR(fields.status());
  MR_RETURN_IF_ERROR(parse_messages(body.value("messages", Json()), job));
  MR_RETURN_IF_ERROR(parse_tools(body, job));
  if (const Json* format = fields.find("response_format")) MR_RETURN_IF_ERROR(parse_response_format(*format, job));
  MR_RETURN_IF_ERROR(parse_other_forms(fields, job));
  if (const Json* effort = fields.find("reasoning_effort"); effort != nullptr && effort->is_string())
    job.think = *effort != "none" && *effort != "minimal";
  if (const Json* options = fields.find("chat_template_kwargs"); options != nullptr && options->is_object())
    if (options->contains("enable_thinking") && (*options)["enable_thinking"].is_boolean())
      job.think = (*options)["enable_thinking"].get<bool>();
  return job;
}

Expected<std::vector<Job>> parse_completion(const Json& body) {
  Job common;
  common.chat = false;
  common.max_tokens = 16;  // OpenAI's default here
  Fields fields(body);
  parse_sampling(fields, common);
  parse_logit_bias(fields, common);
  fields.integer("max_tokens", common.max_tokens, -1, kMostTokens);
  fields.flag("echo", common.echo);
  if (const Json* logprobs = fields.find("logprobs"); logprobs != nullptr && !logprobs->is_boolean()) {
    fields.integer("logprobs", common.top_logprobs, 0, kMostTopLogprobs);
    common.logprobs = true;
  }
  std::string suffix;
  fields.text("suffix", suffix);
  if (!suffix.empty()) common.fill.emplace().suffix = suffix;
  if (common.fill && common.echo) fields.fail("echo", "not with a suffix");
  if (const Json* format = fields.find("response_format"))
    if (Status status = parse_response_format(*format, common); !status.ok()) fields.fail(std::move(status));
  if (Status status = parse_other_forms(fields, common); !status.ok()) fields.fail(std::move(status));
  MR_RETURN_IF_ERROR(fields.status());

  const Json prompt = body.value("prompt", Json(""));
  const auto is_tokens = [](const Json& list) {
    return list.is_array() && !list.empty() && list.front().is_number_integer();
  };
  const Json prompts = prompt.is_array() && !is_tokens(prompt) ? prompt : Json::array({prompt});
  if (prompts.empty() || prompts.size() > kMostPrompts)
    return error(Code::invalid_argument, "prompt: from 1 to {} at once", kMostPrompts);
  std::vector<Job> jobs;
  for (const Json& one : prompts) {
    Job job = common;
    if (one.is_string()) {
      job.prompt = one.get<std::string>();
    } else if (is_tokens(one)) {
      if (job.fill) return error(Code::invalid_argument, "suffix: goes with a prompt that is a text");
      if (!read_tokens(one, job.prompt_tokens))
        return error(Code::invalid_argument, "prompt: token ids must be whole numbers that a vocabulary can have");
    } else {
      return error(Code::invalid_argument, "prompt: must be a text, token ids, or a list of them");
    }
    jobs.push_back(std::move(job));
  }
  return jobs;
}

Expected<Job> parse_infill(const Json& body) {
  Job job;
  job.chat = false;
  job.truncate = true;
  job.fill.emplace();
  Fields fields(body);
  parse_sampling(fields, job);
  parse_logit_bias(fields, job);
  fields.integer("max_tokens", job.max_tokens, -1, kMostTokens);
  fields.integer("n_predict", job.max_tokens, -1, kMostTokens);
  fields.text("input_prefix", job.prompt);
  fields.text("input_suffix", job.fill->suffix);
  fields.text("prompt", job.fill->begun);
  if (Status status = parse_other_forms(fields, job); !status.ok()) fields.fail(std::move(status));
  if (job.n > 1) fields.fail("n", "one filling at a time");
  const Json* const files = fields.find("input_extra");
  const auto is_file = [](const Json& file) {
    return file.is_object() && file.contains("text") && file["text"].is_string() &&
           (!file.contains("filename") || file["filename"].is_string());
  };
  if (files != nullptr && (!files->is_array() || !std::all_of(files->begin(), files->end(), is_file)))
    fields.fail("input_extra", "must be a list of {\"filename\", \"text\"}");
  MR_RETURN_IF_ERROR(fields.status());
  for (std::size_t i = 0; files != nullptr && i < files->size(); ++i)
    job.fill->files.push_back(
        {(*files)[i].value("filename", std::string("tmp")), (*files)[i]["text"].get<std::string>()});
  return job;
}

Expected<EmbeddingJob> parse_embeddings(const Json& body) {
  EmbeddingJob job;
  Fields fields(body);
  std::string format = "float";
  fields.text("model", job.model);
  fields.text("encoding_format", format);
  fields.integer("dimensions", job.dimensions, 1, 1e6);
  if (format != "float" && format != "base64") fields.fail("encoding_format", "must be float or base64");
  MR_RETURN_IF_ERROR(fields.status());
  job.base64 = format == "base64";
  const Json input = body.value("input", Json());
  const auto bad = error(Code::invalid_argument, "input: must be a text, token ids, or a list of them");
  const bool one_text = input.is_string();
  const bool one_tokens = input.is_array() && !input.empty() && input.front().is_number();
  const Json list = one_text || one_tokens ? Json::array({input}) : input;
  if (!list.is_array() || list.empty()) return bad;
  if (list.size() > kMostEmbeddings)
    return error(Code::invalid_argument, "input: at most {} texts at once", kMostEmbeddings);
  for (const Json& one : list) {
    if (one.is_string() && job.tokens.empty()) {
      job.texts.push_back(one.get<std::string>());
    } else if (one.is_array() && !one.empty() && job.texts.empty()) {
      if (!read_tokens(one, job.tokens.emplace_back())) return bad;
    } else {
      return bad;
    }
  }
  return job;
}

Expected<RerankJob> parse_rerank(const Json& body) {
  RerankJob job;
  Fields fields(body);
  fields.text("model", job.model);
  fields.text("query", job.query);
  fields.flag("return_documents", job.return_documents);
  if (job.query.empty()) fields.fail("query", "must be a text");
  const Json* documents = fields.find("documents");
  if (documents == nullptr || !documents->is_array() || documents->empty() || documents->size() > kMostEmbeddings)
    fields.fail("documents", fmt::format("must be a list of 1 to {} texts", kMostEmbeddings));
  MR_RETURN_IF_ERROR(fields.status());
  for (const Json& one : *documents) {
    const Json& text = one.is_object() && one.contains("text") ? one["text"] : one;
    if (!text.is_string())
      return error(Code::invalid_argument, "documents: [{}] must be a text, or an object with text",
                   job.documents.size());
    job.documents.push_back(text.get<std::string>());
  }
  job.most = std::ssize(job.documents);
  fields.integer("top_n", job.most, 1, 1e6);
  MR_RETURN_IF_ERROR(fields.status());
  return job;
}

}  // namespace millrace::openai
