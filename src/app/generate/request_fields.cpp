#include "app/generate/request_fields.h"

#include <algorithm>
#include <initializer_list>
#include <set>

#include "base/log.h"
#include "base/mutex.h"
#include "modelfile/escape.h"

namespace millrace::generate {
namespace {

using List = std::vector<RequestField>;

constexpr FieldUse kRefused = FieldUse::refused, kIgnored = FieldUse::ignored;
constexpr const char* kNoAccounts = "this server keeps no accounts";
constexpr const char* kCached = "prompts are cached without being told to";
constexpr const char* kOneTier = "there is one tier";

List joined(std::initializer_list<List> lists) {
  List all;
  for (const List& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

/// How tokens are picked, in every API but Ollama's and Anthropic's.
List sampling() {
  return {
      {"temperature"},
      {"top_p"},
      {"top_k"},
      {"min_p"},
      {"typical_p"},
      {"top_n_sigma"},
      {"xtc_probability"},
      {"xtc_threshold"},
      {"dry_multiplier"},
      {"dry_base"},
      {"dry_allowed_length"},
      {"dry_penalty_last_n"},
      {"dry_sequence_breakers"},
      {"mirostat"},
      {"mirostat_tau"},
      {"mirostat_eta"},
      {"presence_penalty"},
      {"frequency_penalty"},
      {"repeat_penalty"},
      {"repetition_penalty"},
      {"repeat_last_n"},
      {"seed"},
      {"logit_bias"},
      {"min_tokens"},
      {"stop"},
      {"stop_token_ids"},
      {"bad_words"},
      {"ignore_eos"},
      {"tfs_z", kRefused, "not supported; send min_p or top_p", "1\n1.0"},
      {"dynatemp_range", kRefused, "not supported; send one temperature", "0\n0.0"},
      {"dynatemp_exponent", kIgnored, "it has no effect without dynatemp_range"},
      {"epsilon_cutoff", kRefused, "not supported; send min_p", "0\n0.0"},
      {"eta_cutoff", kRefused, "not supported; send min_p", "0\n0.0"},
      {"penalty_alpha", kRefused, "contrastive search is not supported; leave it out", "0\n0.0"},
      {"guidance_scale", kRefused, "not supported; leave it out", "1\n1.0"},
      {"negative_prompt", kRefused, "not supported; leave it out", "\"\""},
      {"use_beam_search", kRefused, "beam search is not supported; send n for several answers", "false"},
      {"best_of", kRefused, "not supported; send n and choose among the answers", "1"},
      {"length_penalty", kRefused, "beam search is not supported; leave it out", "1\n1.0"},
      {"include_stop_str_in_output", kRefused, "not supported; the stop text is left out of answers", "false"},
      {"lora"},
      {"t_max_predict_ms", kRefused, "not supported; send max_tokens", "0\n-1"},
      {"samplers", kIgnored, "the order of the rules is fixed (docs/reference/http-api.md)"},
      {"min_keep", kIgnored, "one token always stays"},
      {"skip_special_tokens", kIgnored, "special tokens are never part of an answer's text"},
      {"spaces_between_special_tokens", kIgnored, "special tokens are never part of an answer's text"},
      {"truncate_prompt_tokens", kRefused, "not supported; send a shorter prompt", "-1"},
      {"cache_prompt", kIgnored, kCached},
      {"cache_salt", kIgnored, "caches hold nothing that another request could read"},
      {"id_slot", kIgnored, "the server gives requests their places"},
      {"slot_id", kIgnored, "the server gives requests their places"},
      {"n_keep", kIgnored, "prompts are not shifted"},
      {"n_probs", kIgnored, "send logprobs and top_logprobs"},
      {"timings_per_token", kIgnored, "the answer's end has timings"},
      {"request_id", kIgnored, "answers have ids of their own"},
      {"return_progress"},
      {"prompt_progress"},
      {"priority"},
      {"model"},
      {"stream"},
      {"stream_options"},
      {"user", kIgnored, kNoAccounts},
  };
}

/// The form of an answer, as several servers spell it.
List forms() {
  return {
      {"response_format"},
      {"grammar"},
      {"json_schema"},
      {"ebnf"},
      {"regex"},
      {"structured_outputs"},
      {"guided_json"},
      {"guided_grammar"},
      {"guided_regex"},
      {"guided_choice"},
      {"guided_decoding_backend", kIgnored, "there is one"},
      {"guided_whitespace_pattern", kRefused, "not supported; send a grammar", ""},
      {"structural_tag", kRefused, "not supported; send a JSON schema as response_format", ""},
      {"grammar_lazy", kRefused, "not supported; the whole answer keeps a grammar", "false"},
      {"grammar_triggers", kIgnored, "the whole answer keeps a grammar"},
      {"functions", kRefused, "this form of OpenAI's API has given way to tools; send those", "[]"},
      {"function_call", kRefused, "this form of OpenAI's API has given way to tools; send those", "\"none\"\n\"auto\""},
      {"format", kRefused, "belongs to /api/chat; send response_format", "\"\""},
  };
}

/// How the model thinks.
List thinking() {
  return {{"reasoning_effort"},
          {"reasoning"},
          {"think"},
          {"thinking"},
          {"enable_thinking"},
          {"chat_template_kwargs"},
          {"reasoning_format", kIgnored, "thoughts always come as reasoning_content"},
          {"include_reasoning", kIgnored, "thoughts always come as reasoning_content"},
          {"reasoning_in_content", kIgnored, "thoughts always come as reasoning_content"}};
}

/// What OpenAI's two chat APIs keep for its accounts and caches.
List house() {
  return {{"metadata", kIgnored, "answers are not kept"},
          {"service_tier", kIgnored, kOneTier},
          {"safety_identifier", kIgnored, kNoAccounts},
          {"prompt_cache_key", kIgnored, kCached},
          {"prompt_cache_options", kIgnored, kCached},
          {"prompt_cache_retention", kIgnored, kCached},
          {"moderation", kRefused, "there is no moderation here; leave it out", ""},
          {"verbosity", kIgnored, "models here know no verbosity; say it in the system message"}};
}

RequestField one_answer() { return {"n", kRefused, "one answer at a time", "1"}; }

List chat() {
  return joined({sampling(),
                 forms(),
                 thinking(),
                 house(),
                 {{"messages"},
                  {"n"},
                  {"max_tokens"},
                  {"max_completion_tokens"},
                  {"logprobs"},
                  {"top_logprobs"},
                  {"prompt_logprobs"},
                  {"tools"},
                  {"tool_choice"},
                  {"parallel_tool_calls"},
                  {"parse_tool_calls", kIgnored, "calls are always read"},
                  {"modalities"},
                  {"audio", kRefused, "answers are text only; leave it out", ""},
                  {"prediction", kIgnored, "answers are not guided by it"},
                  {"store", kIgnored, "chat completions are not kept"},
                  {"web_search_options", kRefused, "there is no web search here; send a tool", ""},
                  {"echo", kRefused, "goes with /v1/completions", "false"},
                  {"add_generation_prompt", kRefused, "not supported; a last assistant message is continued", "true"},
                  {"continue_final_message", kIgnored, "a last assistant message is always continued"},
                  {"add_special_tokens", kIgnored, "the template decides what comes first"},
                  {"documents", kRefused, "not supported; put documents into a message", "[]"},
                  {"chat_template", kRefused, "not supported; create a model with a TEMPLATE", ""}}});
}

List completion() {
  return joined(
      {sampling(),
       forms(),
       {{"prompt"},
        {"n"},
        {"suffix"},
        {"max_tokens"},
        {"echo"},
        {"logprobs"},
        {"prompt_logprobs"},
        {"add_special_tokens", kIgnored, "BOS goes before a text where the model wants it; send token ids"}}});
}

List infill() {
  return joined(
      {sampling(),
       forms(),
       {one_answer(), {"input_prefix"}, {"input_suffix"}, {"input_extra"}, {"prompt"}, {"max_tokens"}, {"n_predict"}}});
}

List native_completion() {
  return joined({sampling(), forms(), {one_answer(), {"prompt"}, {"max_tokens"}, {"n_predict"}}});
}

List response() {
  return joined(
      {sampling(),
       forms(),
       thinking(),
       {one_answer(),
        {"input"},
        {"instructions"},
        {"max_output_tokens"},
        {"previous_response_id"},
        {"store"},
        {"include"},
        {"top_logprobs"},
        {"text"},
        {"metadata"},
        {"tools"},
        {"tool_choice"},
        {"parallel_tool_calls"},
        {"truncation"},
        {"access_programs", kRefused, "there are none here; leave it out", "[]"},
        {"background", kRefused, "not supported; the answer comes with this request", "false"},
        {"background_options", kIgnored, "answers come with their request"},
        {"context_management", kRefused, "not supported; send truncation, or POST /v1/responses/compact", "[]"},
        {"conversation", kRefused, "not supported; previous_response_id continues a response", ""},
        {"prompt", kRefused, "prompts are not kept here; send instructions and input", ""},
        {"image", kIgnored, "pictures are parts of the input"},
        {"max_tool_calls", kIgnored, "it bounds tools that OpenAI runs; there are none here"},
        {"moderation", kRefused, "there is no moderation here; leave it out", ""},
        {"personality", kIgnored, "models here have none; say it in the instructions"},
        {"client_metadata", kIgnored, kNoAccounts},
        {"service_tier", kIgnored, kOneTier},
        {"safety_identifier", kIgnored, kNoAccounts},
        {"prompt_cache_key", kIgnored, kCached},
        {"prompt_cache_options", kIgnored, kCached},
        {"prompt_cache_retention", kIgnored, kCached}}});
}

List message() {
  return {{"model"},
          {"messages"},
          {"max_tokens"},
          {"system"},
          {"temperature"},
          {"top_p"},
          {"top_k"},
          {"stop_sequences"},
          {"stream"},
          {"tools"},
          {"tool_choice"},
          {"thinking"},
          {"output_config"},
          {"output_format"},
          {"metadata", kIgnored, kNoAccounts},
          {"betas", kIgnored, "what is supported needs no beta header"},
          {"billing_policy", kIgnored, kNoAccounts},
          {"cache_control", kIgnored, kCached},
          {"compaction", kRefused, "not supported; send a shorter conversation", ""},
          {"container", kRefused, "there are no containers here; leave it out", ""},
          {"context_management", kIgnored, "the client keeps its conversation short"},
          {"diagnostics", kIgnored, "there are none"},
          {"fallback_credit_token", kIgnored, kNoAccounts},
          {"fallbacks", kRefused, "not supported; ask for another model", "[]"},
          {"inference_geo", kIgnored, "there is one place"},
          {"mcp_servers", kRefused, "this server calls no MCP servers; let the client offer their tools", "[]"},
          {"service_tier", kIgnored, kOneTier},
          {"speed", kIgnored, "there is one"},
          {"thread", kRefused, "threads are not kept here; send the whole conversation", ""},
          {"user_profile_id", kIgnored, kNoAccounts},
          {"workspace_id", kIgnored, kNoAccounts}};
}

List embedding() {
  return {{"model"},
          {"input"},
          {"encoding_format"},
          {"dimensions"},
          {"user", kIgnored, kNoAccounts},
          {"priority", kIgnored, "embeddings go one after the other"},
          {"truncate_prompt_tokens", kRefused, "not supported; send shorter texts", "-1"},
          {"input_type", kIgnored, "put the prefix that the model wants into the text"},
          {"truncate", kIgnored, "texts that are too long are refused"}};
}

List rerank() {
  return {{"model"},
          {"query"},
          {"documents"},
          {"top_n"},
          {"return_documents"},
          {"user", kIgnored, kNoAccounts},
          {"max_tokens_per_doc", kRefused, "not supported; send shorter documents", ""},
          {"max_chunks_per_doc", kRefused, "not supported; send shorter documents", ""}};
}

List ollama_common() {
  return {{"model"},
          {"name"},
          {"stream"},
          {"format"},
          {"options"},
          {"keep_alive"},
          {"think"},
          {"truncate"},
          {"logprobs"},
          {"top_logprobs"},
          {"prompt_progress"},
          {"template"},
          {"shift", kIgnored, "an answer ends where the context does"},
          {"dimensions", kIgnored, "it belongs to /api/embed"},
          {"_debug_render_only", kRefused, "not supported; POST /apply-template", "false"},
          {"width", kRefused, "this server makes no pictures", "0"},
          {"height", kRefused, "this server makes no pictures", "0"},
          {"steps", kRefused, "this server makes no pictures", "0"}};
}

List ollama_generate() {
  return joined({ollama_common(), {{"prompt"}, {"system"}, {"suffix"}, {"raw"}, {"context"}, {"images"}}});
}

List ollama_chat() { return joined({ollama_common(), {{"messages"}, {"tools"}, {"tool_choice"}}}); }

List ollama_options() {
  constexpr const char* kServer = "the server is started with it, not the request";
  return {{"temperature"},
          {"top_k"},
          {"top_p"},
          {"min_p"},
          {"typical_p"},
          {"repeat_last_n"},
          {"repeat_penalty"},
          {"presence_penalty"},
          {"frequency_penalty"},
          {"mirostat"},
          {"mirostat_tau"},
          {"mirostat_eta"},
          {"seed"},
          {"num_predict"},
          {"num_ctx"},
          {"stop"},
          {"tfs_z", kIgnored, "not supported, as in Ollama; send min_p or top_p"},
          {"num_gqa", kIgnored, "the model file decides it"},
          {"penalize_newline", kIgnored, "penalties count every token"},
          {"num_keep", kIgnored, "the system message is always kept"},
          {"num_batch", kIgnored, kServer},
          {"num_gpu", kIgnored, kServer},
          {"main_gpu", kIgnored, kServer},
          {"num_thread", kIgnored, kServer},
          {"numa", kIgnored, kServer},
          {"low_vram", kIgnored, kServer},
          {"f16_kv", kIgnored, kServer},
          {"vocab_only", kIgnored, kServer},
          {"use_mmap", kIgnored, kServer},
          {"use_mlock", kIgnored, kServer},
          {"draft_num_predict", kIgnored, kServer}};
}

List ollama_embed() {
  return {{"model"}, {"name"}, {"input"}, {"prompt"}, {"truncate"}, {"dimensions"}, {"options"}, {"keep_alive"}};
}

bool asks_for_nothing(const Json& value, std::string_view neutral) {
  if (value.is_null()) return true;
  const std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  while (!neutral.empty()) {
    const std::size_t end = std::min(neutral.find('\n'), neutral.size());
    if (neutral.substr(0, end) == text) return true;
    neutral.remove_prefix(std::min(end + 1, neutral.size()));
  }
  return false;
}

/// Whether this is the first time that the log hears of it. What clients invent is bounded.
bool is_news(RequestKind kind, const std::string& field) {
  constexpr std::size_t kMost = 1000;
  static Mutex mutex;
  static std::set<std::pair<RequestKind, std::string>> told MR_GUARDED_BY(mutex);
  const MutexLock lock(mutex);
  return told.size() < kMost && told.emplace(kind, field).second;
}

std::vector<List> sorted(std::vector<List> all) {
  for (List& list : all)
    std::sort(list.begin(), list.end(),
              [](const RequestField& a, const RequestField& b) { return std::string_view(a.name) < b.name; });
  return all;
}

}  // namespace

std::string_view name_of(RequestKind kind) {
  switch (kind) {
    case RequestKind::chat:
      return "/v1/chat/completions";
    case RequestKind::completion:
      return "/v1/completions";
    case RequestKind::infill:
      return "/infill";
    case RequestKind::native_completion:
      return "/completion";
    case RequestKind::response:
      return "/v1/responses";
    case RequestKind::message:
      return "/v1/messages";
    case RequestKind::embedding:
      return "/v1/embeddings";
    case RequestKind::rerank:
      return "/v1/rerank";
    case RequestKind::ollama_generate:
      return "/api/generate";
    case RequestKind::ollama_chat:
      return "/api/chat";
    case RequestKind::ollama_options:
      return "options of /api/generate and /api/chat";
    case RequestKind::ollama_embed:
      return "/api/embed";
  }
  return "";
}

const std::vector<RequestField>& fields_of(RequestKind kind) {
  static const std::vector<List> all =
      sorted({chat(), completion(), infill(), native_completion(), response(), message(), embedding(), rerank(),
              ollama_generate(), ollama_chat(), ollama_options(), ollama_embed()});
  return all[static_cast<std::size_t>(kind)];
}

Status check_fields(RequestKind kind, const Json& body) {
  constexpr std::size_t kLongest = 60, kMostUnknown = 16;
  std::size_t unknown = 0;
  const std::vector<RequestField>& known = fields_of(kind);
  for (const auto& [name, value] : body.items()) {
    const auto field = std::lower_bound(known.begin(), known.end(), name,
                                        [](const RequestField& one, const std::string& key) { return one.name < key; });
    if (field == known.end() || field->name != name) {
      if (++unknown > kMostUnknown) continue;
      const std::string shown = modelfile::escape(name, kLongest);
      if (is_news(kind, shown))
        log::warn("{}: nothing here knows the field {}; it has no effect", name_of(kind), shown);
    } else if (field->use == FieldUse::refused && !asks_for_nothing(value, field->neutral)) {
      return error(Code::unsupported, "{}: {}", name, field->says);
    } else if (field->use == FieldUse::ignored && !value.is_null() && is_news(kind, name)) {
      log::warn("{}: the field {} has no effect: {}", name_of(kind), name, field->says);
    }
  }
  return {};
}

}  // namespace millrace::generate
