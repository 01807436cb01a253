#include "app/openai/request.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <random>

#include "app/generate/fields.h"
#include "app/generate/thinking.h"

namespace millrace::openai {
namespace {

using generate::Fields;

constexpr int kMostChoices = 16, kMostTopLogprobs = 20;
constexpr std::size_t kMostStops = 16, kMostPrompts = 256, kMostWords = 256;
constexpr double kMostTokens = 1e9;

std::uint64_t drawn_seed() {
  std::random_device random;
  return (static_cast<std::uint64_t>(random()) & 0x7fffffff) + 1;
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

/// The rules by which tokens are picked, beyond OpenAI's own.
void parse_rules(Fields& fields, Job& job) {
  engine::SamplerOptions& sampler = job.sampler;
  fields.number("min_p", sampler.min_p, 0, 1);
  fields.integer("top_k", sampler.top_k, -1, 1e6);
  sampler.top_k = std::max(sampler.top_k, 0);  // vLLM's -1: all
  fields.number("typical_p", sampler.typical_p, 0, 1);
  fields.number("top_n_sigma", sampler.top_n_sigma, -1, 100);
  fields.number("xtc_probability", sampler.xtc.probability, 0, 1);
  fields.number("xtc_threshold", sampler.xtc.threshold, 0, 1);
  fields.number("repeat_penalty", sampler.penalties.repeat, 0.01, 100);
  fields.number("repetition_penalty", sampler.penalties.repeat, 0.01, 100);
  fields.integer("repeat_last_n", sampler.penalties.last_n, -1, kMostTokens);
  fields.number("dry_multiplier", sampler.dry.multiplier, 0, 100);
  fields.number("dry_base", sampler.dry.base, 1, 100);
  fields.integer("dry_allowed_length", sampler.dry.allowed_length, 0, 1e6);
  fields.integer("dry_penalty_last_n", sampler.dry.last_n, -1, kMostTokens);
  job.dry_breakers = {"\n", ":", "\"", "*"};  // where a text begins anew
  fields.texts("dry_sequence_breakers", job.dry_breakers);
  std::erase(job.dry_breakers, std::string());
  parse_mirostat(fields, sampler);
}

/// What bounds an answer.
void parse_bounds(Fields& fields, Job& job) {
  fields.texts("stop", job.stop);
  if (job.stop.size() > kMostStops) fields.fail("stop", "has too many entries");
  fields.integer("min_tokens", job.min_tokens, 0, kMostTokens);
  fields.texts("bad_words", job.bad_words);
  if (job.bad_words.size() > kMostWords || job.dry_breakers.size() > kMostWords)
    fields.fail(job.bad_words.size() > kMostWords ? "bad_words" : "dry_sequence_breakers", "has too many entries");
  if (const Json* ids = fields.find("stop_token_ids"); ids != nullptr)
    if (!ids->is_array() || ids->size() > kMostWords || !read_tokens(*ids, job.stop_tokens))
      fields.fail("stop_token_ids", "must be a list of token ids");
  fields.flag("ignore_eos", job.ignore_end);
}

}  // namespace

bool read_adapters(const Json& list, kv::AdapterMix& mix) {
  if (!list.is_array() || list.size() > kMostWords) return false;
  for (const Json& one : list) {
    if (!one.is_object() || !one.contains("id") || !one["id"].is_number_integer() || !one.contains("scale") ||
        !one["scale"].is_number())
      return false;
    const auto id = one["id"].get<std::int64_t>();
    if (id < 0 || id > (1 << 20)) return false;
    mix.push_back({static_cast<std::int32_t>(id), one["scale"].get<float>()});
  }
  return true;
}

namespace {

/// What chat completions and completions have in common, with OpenAI's defaults.
void parse_sampling(Fields& fields, Job& job) {
  engine::SamplerOptions& sampler = job.sampler;
  sampler = {};
  sampler.temperature = 1;
  sampler.top_k = 0;
  sampler.top_p = 1;
  sampler.min_p = 0;
  sampler.penalties.last_n = -1;
  fields.number("temperature", sampler.temperature, 0, 2);
  fields.number("top_p", sampler.top_p, 0, 1);
  fields.number("presence_penalty", sampler.penalties.presence, -2, 2);
  fields.number("frequency_penalty", sampler.penalties.frequency, -2, 2);
  parse_rules(fields, job);
  sampler.seed = 0;
  fields.integer("seed", sampler.seed, -9e15, 9e15);
  if (!fields.has("seed")) sampler.seed = drawn_seed();
  parse_bounds(fields, job);
  fields.flag("stream", job.stream);
  fields.flag("return_progress", job.progress);
  fields.flag("prompt_progress", job.progress);
  fields.integer("priority", job.priority, -100, 100);
  if (const Json* lora = fields.find("lora"); lora != nullptr)
    if (!read_adapters(*lora, job.adapters.emplace()))
      fields.fail("lora", "must be a list of objects with an adapter's id and a scale, as {\"id\": 0, \"scale\": 0.5}");
  if (const Json* options = fields.find("stream_options"); options != nullptr) {
    if (!options->is_object()) return fields.fail("stream_options", "must be an object");
    Fields inner(*options);
    inner.flag("include_usage", job.include_usage);
    if (!inner.status().ok()) fields.fail(inner.status());
  }
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

/// A number of the likeliest tokens; with echo also those of the prompt.
void parse_completion_logprobs(Fields& fields, Job& job) {
  const Json* const logprobs = fields.find("logprobs");
  if (logprobs != nullptr && logprobs->is_boolean()) {
    job.logprobs = logprobs->get<bool>();
  } else if (logprobs != nullptr) {
    fields.integer("logprobs", job.top_logprobs, 0, kMostTopLogprobs);
    job.logprobs = true;
  }
  fields.integer("prompt_logprobs", job.prompt_logprobs, 0, kMostTopLogprobs);
  if (job.stream && job.prompt_logprobs >= 0) fields.fail("prompt_logprobs", "is not streamed; leave stream out");
  job.told_prompt_logprobs = job.prompt_logprobs;
  if (job.echo && job.logprobs) job.prompt_logprobs = std::max(job.prompt_logprobs, job.top_logprobs);
}

}  // namespace

void parse_mirostat(Fields& fields, engine::SamplerOptions& sampler) {
  int version = sampler.mirostat.on ? 2 : 0;
  fields.integer("mirostat", version, 0, 2);
  if (version == 1) fields.fail("mirostat", "version 1 is not supported; send 2");
  sampler.mirostat.on = version == 2;
  fields.number("mirostat_tau", sampler.mirostat.tau, 0, 100);
  fields.number("mirostat_eta", sampler.mirostat.eta, 0, 1);
}

Expected<Job> parse_chat(const Json& body) { return parse_chat(generate::RequestKind::chat, body); }

Expected<Job> parse_chat(generate::RequestKind kind, const Json& body) {
  Job job;
  Fields fields(body);
  if (kind == generate::RequestKind::chat) fields.fail(generate::check_fields(kind, body));
  parse_sampling(fields, job);
  parse_logit_bias(fields, job);
  std::vector<std::string> modalities;
  fields.texts("modalities", modalities);
  if (std::any_of(modalities.begin(), modalities.end(), [](const std::string& one) { return one != "text"; }))
    fields.fail("modalities", "answers are text only");
  fields.flag("logprobs", job.logprobs);
  fields.integer("top_logprobs", job.top_logprobs, 0, kMostTopLogprobs);
  if (job.top_logprobs > 0 && !job.logprobs) fields.fail("top_logprobs", "goes with logprobs: true");
  fields.integer("prompt_logprobs", job.prompt_logprobs, 0, kMostTopLogprobs);
  job.told_prompt_logprobs = job.prompt_logprobs;
  if (job.stream && job.prompt_logprobs >= 0) fields.fail("prompt_logprobs", "is not streamed; leave stream out");
  fields.flag("parallel_tool_calls", job.parallel_calls);
  if (kind == generate::RequestKind::chat) fields.integer("n", job.n, 1, kMostChoices);
  fields.integer("max_tokens", job.max_tokens, -1, kMostTokens);
  fields.integer("max_completion_tokens", job.max_tokens, 0, kMostTokens);
  MR_RETURN_IF_ERROR(fields.status());
  const auto messages = body.find("messages");
  const Json none;
  MR_RETURN_IF_ERROR(parse_messages(messages == body.end() ? none : *messages, job));
  MR_RETURN_IF_ERROR(parse_tools(body, job));
  MR_RETURN_IF_ERROR(parse_form(fields, job));
  MR_RETURN_IF_ERROR(generate::take_thinking(body, job));
  return job;
}

Expected<std::vector<Job>> parse_completion(const Json& body) {
  Job common;
  common.chat = false;
  common.max_tokens = 16;  // OpenAI's default here
  Fields fields(generate::RequestKind::completion, body);
  parse_sampling(fields, common);
  parse_logit_bias(fields, common);
  fields.integer("max_tokens", common.max_tokens, -1, kMostTokens);
  fields.integer("n", common.n, 1, kMostChoices);
  fields.flag("echo", common.echo);
  parse_completion_logprobs(fields, common);
  std::string suffix;
  fields.text("suffix", suffix);
  if (!suffix.empty()) common.fill.emplace().suffix = suffix;
  if (common.fill && common.echo) fields.fail("echo", "not with a suffix");
  if (Status status = parse_form(fields, common); !status.ok()) fields.fail(std::move(status));
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
  Fields fields(generate::RequestKind::infill, body);
  parse_sampling(fields, job);
  parse_logit_bias(fields, job);
  fields.integer("max_tokens", job.max_tokens, -1, kMostTokens);
  fields.integer("n_predict", job.max_tokens, -1, kMostTokens);
  fields.text("input_prefix", job.prompt);
  fields.text("input_suffix", job.fill->suffix);
  fields.text("prompt", job.fill->begun);
  if (Status status = parse_form(fields, job); !status.ok()) fields.fail(std::move(status));
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

Expected<Job> parse_native_completion(const Json& body) {
  Job job;
  job.chat = false;
  Fields fields(generate::RequestKind::native_completion, body);
  parse_sampling(fields, job);
  parse_logit_bias(fields, job);
  fields.integer("max_tokens", job.max_tokens, -1, kMostTokens);
  fields.integer("n_predict", job.max_tokens, -1, kMostTokens);
  if (Status status = parse_form(fields, job); !status.ok()) fields.fail(std::move(status));
  const Json* const prompt = fields.find("prompt");
  const bool tokens = prompt != nullptr && prompt->is_array() && !prompt->empty();
  if (tokens ? !read_tokens(*prompt, job.prompt_tokens) : prompt == nullptr || !prompt->is_string())
    fields.fail("prompt", "must be a text or token ids");
  MR_RETURN_IF_ERROR(fields.status());
  if (!tokens) job.prompt = prompt->get<std::string>();
  return job;
}

Expected<EmbeddingJob> parse_embeddings(const Json& body) {
  EmbeddingJob job;
  Fields fields(generate::RequestKind::embedding, body);
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
  Fields fields(generate::RequestKind::rerank, body);
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
