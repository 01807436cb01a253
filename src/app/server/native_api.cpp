// What belongs to neither API: health, metrics, and llama-server's small helpers.
#include "app/generate/fields.h"
#include "app/generate/prompt.h"
#include "app/generate/thinking.h"
#include "app/openai/request.h"
#include "app/openai/response.h"
#include "app/server/context.h"
#include "app/server/errors.h"

namespace millrace::server {
namespace {

using generate::Job;
using httplib::Request;
using httplib::Response;

/// Null where the model is not loaded.
std::shared_ptr<const engine::ModelManager::Loaded> loaded_of(Context& context, const ModelInfo& info) {
  const std::string key = info.source().key();
  for (const auto& running : context.models.running())
    if (running.loaded->key == key) return running.loaded;
  return nullptr;
}

/// Of the server: it answers as soon as any model can, and goes on to answer while it changes models. Of one model,
/// where the query names it: whether that one is loaded.
void health(Context& context, const Request& request, Response& response) {
  if (context.stopping) return reply(response, {{"status", "shutting down"}}, 503);
  if (context.draining) return reply(response, {{"status", "draining"}}, 503);
  const bool loading = context.preloading && !context.models.has_loaded();
  if (request.has_param("model")) {
    const auto info = context.catalog.find_outline(request.get_param_value("model"));
    if (!info.ok()) return fail(Api::openai, response, info.status());
    if (loaded_of(context, *info) == nullptr)
      return reply(response, {{"status", loading ? "loading model" : "not loaded"}, {"model", info->name}}, 503);
  } else if (loading) {
    return reply(response, {{"status", "loading model"}}, 503);
  }
  reply(response, {{"status", "ok"}});
}

void metrics(Context& context, const Request&, Response& response) {
  response.set_content(context.metrics.render(context.models), "text/plain; version=0.0.4; charset=utf-8");
}

/// What a token takes at most on its way into an answer of /tokenize, alone and with its text.
constexpr std::uint64_t kBytesAToken = 72, kBytesAPiece = 512;

void tokenize(Context& context, const Request& request, Response& response) {
  const auto body = read_body(request);
  if (!body.ok()) return fail(Api::openai, response, body.status());
  std::string model, content;
  bool add_special = false, parse_special = true, with_pieces = false;
  generate::Fields fields(*body);
  fields.text("model", model);
  fields.text("content", content);
  fields.text("prompt", content);  // vLLM's word, as are the next
  fields.flag("add_special_tokens", add_special);
  fields.flag("add_special", add_special);
  fields.flag("parse_special", parse_special);
  fields.flag("with_pieces", with_pieces);
  if (!fields.status().ok()) return fail(Api::openai, response, fields.status());
  const auto use = use_model(context, model);
  if (!use.ok()) return fail(Api::openai, response, use.status());
  const text::Tokenizer& tokenizer = (*use)->service->engine().tokenizer();
  // Each byte may become a token, with a place in the answer and its digits.
  if (!Connection::current().memory().take(content.size() * (with_pieces ? kBytesAPiece : kBytesAToken)))
    return fail(Api::openai, response, error(Code::out_of_budget, "content: too long"));
  auto ids = tokenizer.encode(content, parse_special ? text::Specials::parse : text::Specials::as_text);
  if (add_special && tokenizer.adds_bos() && tokenizer.bos()) ids.insert(ids.begin(), *tokenizer.bos());
  Json tokens = Json::array();
  for (const text::TokenId id : ids)
    tokens.push_back(with_pieces ? Json{{"id", id}, {"piece", tokenizer.token_bytes(id, true)}} : Json(id));
  const std::size_t count = tokens.size();
  reply(
      response,
      {{"tokens", std::move(tokens)}, {"count", count}, {"max_model_len", (*use)->service->engine().context_tokens()}});
}

void detokenize(Context& context, const Request& request, Response& response) {
  const auto body = read_body(request);
  if (!body.ok()) return fail(Api::openai, response, body.status());
  std::string model;
  generate::Fields fields(*body);
  fields.text("model", model);
  if (!fields.status().ok()) return fail(Api::openai, response, fields.status());
  const Json* tokens = fields.find("tokens");
  std::vector<text::TokenId> ids;
  bool good = tokens != nullptr && tokens->is_array();
  for (std::size_t i = 0; good && i < tokens->size(); ++i) {
    good = (*tokens)[i].is_number_integer();
    if (good) ids.push_back((*tokens)[i].get<text::TokenId>());
  }
  if (!good) return fail(Api::openai, response, error(Code::invalid_argument, "tokens: must be a list of token ids"));
  if (!Connection::current().memory().take(ids.size() * kBytesAPiece))
    return fail(Api::openai, response, error(Code::out_of_budget, "tokens: too many"));
  const auto use = use_model(context, model);
  if (!use.ok()) return fail(Api::openai, response, use.status());
  const std::string content = (*use)->service->engine().tokenizer().decode(ids, true);
  reply(response, {{"content", content}, {"prompt", content}});
}

/// As vLLM tells of it: lm-evaluation-harness asks for it instead of a tokenizer's files.
void tokenizer_info(Context& context, const Request& request, Response& response) {
  const auto info = model_meant(context, request.get_param_value("model"));
  if (!info.ok()) return fail(Api::openai, response, info.status());
  const auto loaded = loaded_of(context, *info);
  if (loaded == nullptr)
    return fail(Api::openai, response,
                error(Code::unavailable, "model '{}' is not loaded; ask it something", info->name));
  const text::Tokenizer& tokenizer = loaded->service->engine().tokenizer();
  const auto text_of = [&](std::optional<text::TokenId> id) {
    return id ? Json(tokenizer.token_bytes(*id, true)) : Json();
  };
  reply(response, {{"tokenizer_class", "millrace"},
                   {"bos_token", text_of(tokenizer.bos())},
                   {"eos_token", text_of(tokenizer.eos())},
                   {"pad_token", nullptr},
                   {"model_max_length", loaded->service->engine().context_tokens()},
                   {"chat_template", info->chat_template}});
}

void apply_template(Context& context, const Request& request, Response& response) {
  const auto body = read_prompt_body(request);
  if (!body.ok()) return fail(Api::openai, response, body.status());
  generate::Job job;
  generate::Fields fields(*body);
  fields.text("model", job.model);
  Status status = fields.status();
  if (status.ok()) status = openai::parse_messages(body->value("messages", Json()), job);
  if (status.ok()) status = openai::parse_tools(*body, job);
  if (status.ok()) status = generate::take_thinking(*body, job);
  if (!status.ok()) return fail(Api::openai, response, status);
  const auto info = model_meant(context, job.model);
  if (!info.ok()) return fail(Api::openai, response, info.status());
  generate::lay_under(info->defaults(), job);
  const auto use = use_model(context, info->name, {}, sight_wanted(job));
  if (!use.ok()) return fail(Api::openai, response, use.status());
  const engine::Engine& engine = (*use)->service->engine();
  fetch_pictures(context, engine, job);
  const auto prompt = generate::make_prompt(engine, job, &Connection::current().memory());
  if (!prompt.ok()) return fail(Api::openai, response, prompt.status());
  std::string text;
  for (const text::TokenId id : prompt->ids) text += engine.tokenizer().token_bytes(id, true);
  reply(response, {{"prompt", text}});
}

/// The last of a filling, or all of it, as llama-server tells it.
Json infill_end(const Job& job, const std::string& content, const std::string& reason, const generate::Totals& totals) {
  return {{"index", 0},
          {"content", content},
          {"stop", true},
          {"stop_type", reason == "length" ? "limit" : "eos"},
          {"model", job.model},
          {"tokens_predicted", totals.completion_tokens},
          {"tokens_evaluated", totals.prompt_tokens},
          {"tokens_cached", totals.cached_tokens},
          {"timings", openai::timings(totals)}};
}

using Parse = Expected<Job> (*)(const Json& body);

/// /infill and /completion: one text after a prompt, in llama-server's form.
void go_on(Context& context, const Request& request, Response& response, Parse parse) {
  const auto begun = begin_run(context, request, parse);
  if (!begun.ok()) return fail(Api::openai, response, begun.status());
  const Job& job = begun->job;
  const std::shared_ptr<generate::Run>& run = begun->run;
  if (!job.stream) {
    const auto answers = collect(*run, 1);
    if (!answers.ok()) return fail(Api::openai, response, answers.status());
    context.metrics.count_run(run->totals());
    return reply(response, infill_end(job, answers->front().content, answers->front().reason, run->totals()));
  }
  const auto reason = std::make_shared<std::string>();
  StreamForm form{"text/event-stream", kStreamComment, {}, {}, {}};
  form.event = [reason](const generate::Event& event) -> std::string {
    if (const auto* delta = std::get_if<generate::Delta>(&event))
      return sse({{"index", 0}, {"content", delta->content}, {"stop", false}});
    const auto* finished = std::get_if<generate::Finished>(&event);
    if (finished == nullptr) return "";
    *reason = finished->status.ok() ? finished->reason : "failed";
    if (finished->status.ok()) return "";
    return sse(openai::error_body(openai::http_status(finished->status), finished->status));
  };
  form.end = [reason, job, weak = std::weak_ptr(run)]() -> std::string {
    const auto ended = weak.lock();
    if (*reason == "failed" || ended == nullptr) return "";
    return sse(infill_end(job, "", *reason, ended->totals()));
  };
  stream(context, response, run, std::move(form));
}

/// A Modelfile's, or the file's own.
Expected<std::string> chat_template_of(Context& context, const ModelInfo& info) {
  if (!info.chat_template.empty()) return info.chat_template;
  MR_ASSIGN_OR_RETURN(const FileTexts texts, context.catalog.texts(info, Connection::current().memory()));
  return texts.chat_template;
}

void props(Context& context, const Request& request, Response& response) {
  const auto info = model_meant(context, request.get_param_value("model"));
  if (!info.ok()) return fail(Api::openai, response, info.status());
  const auto loaded = loaded_of(context, *info);
  const auto chat_template = chat_template_of(context, *info);
  if (!chat_template.ok()) return fail(Api::openai, response, chat_template.status());
  const std::int64_t n_ctx = loaded != nullptr ? loaded->service->engine().context_tokens() : info->context_length;
  reply(response, {{"model_alias", info->name},
                   {"model_path", info->name},
                   {"is_loaded", loaded != nullptr},
                   {"total_slots", loaded != nullptr ? loaded->service->load().max_sequences : 0},
                   {"chat_template", *chat_template},
                   {"default_generation_settings", {{"n_ctx", n_ctx}}},
                   {"build_info", std::string("millrace ") + MILLRACE_VERSION}});
}

void get_adapters(Context& context, const Request& request, Response& response) {
  const auto use = use_model(context, request.get_param_value("model"));
  if (!use.ok()) return fail(Api::openai, response, use.status());
  Json all = Json::array();
  const bool ran = (*use)->service->run([&](engine::Engine& engine) {
    for (const engine::AdapterState& one : engine.adapters())
      all.push_back({{"id", all.size()}, {"name", one.name}, {"path", one.name}, {"scale", one.scale}});
  });
  if (!ran) return fail(Api::openai, response, error(Code::unavailable, "the server is shutting down"));
  reply(response, all);
}

constexpr std::size_t kMostAdapterBytes = 64 << 10;  // of a list of adapters: its JSON needs no grant of memory

void set_adapters(Context& context, const Request& request, Response& response) {
  kv::AdapterMix mix;
  if (request.body.size() > kMostAdapterBytes)
    return fail(Api::openai, response,
                error(Code::invalid_argument, "the list of adapters has {} bytes; send at most {}", request.body.size(),
                      kMostAdapterBytes));
  const Json list = Json::parse(request.body, nullptr, false);
  if (!openai::read_adapters(list, mix))
    return fail(Api::openai, response,
                error(Code::invalid_argument,
                      "the body must be a list of objects with an adapter's id and a scale, as "
                      "[{{\"id\": 0, \"scale\": 0.5}}]"));
  const auto use = use_model(context, request.get_param_value("model"));
  if (!use.ok()) return fail(Api::openai, response, use.status());
  Status status;
  const bool ran = (*use)->service->run([&](engine::Engine& engine) { status = engine.set_adapter_scales(mix); });
  if (!ran) status = error(Code::unavailable, "the server is shutting down");
  if (!status.ok()) return fail(Api::openai, response, status);
  reply(response, {{"success", true}});
}

/// Each place in the passes, as far as it is taken; none of a model that is not loaded.
void slots(Context& context, const Request& request, Response& response) {
  const auto info = model_meant(context, request.get_param_value("model"));
  if (!info.ok()) return fail(Api::openai, response, info.status());
  const auto loaded = loaded_of(context, *info);
  Json all = Json::array();
  if (loaded == nullptr) return reply(response, all);
  const engine::LoadCounters load = loaded->service->load();
  for (std::int64_t i = 0; i < load.max_sequences; ++i)
    all.push_back({{"id", i}, {"n_ctx", loaded->service->engine().context_tokens()}, {"is_processing", i < load.live}});
  reply(response, all);
}

}  // namespace

void add_native_routes(Context& context) {
  const auto on = [&context](auto handler) {
    return [&context, handler](const Request& request, Response& response) { handler(context, request, response); };
  };
  context.http.Get("/health", on(health));
  context.http.Get("/v1/health", on(health));
  context.http.Get("/metrics", on(metrics));
  context.http.Post("/tokenize", on(tokenize));
  context.http.Post("/detokenize", on(detokenize));
  context.http.Post("/apply-template", on(apply_template));
  context.http.Post("/completion", [&context](const Request& request, Response& response) {
    go_on(context, request, response, openai::parse_native_completion);
  });
  context.http.Post("/infill", [&context](const Request& request, Response& response) {
    go_on(context, request, response, openai::parse_infill);
  });
  context.http.Get("/tokenizer_info", on(tokenizer_info));
  context.http.Get("/props", on(props));
  context.http.Get("/slots", on(slots));
  context.http.Get("/lora-adapters", on(get_adapters));
  context.http.Post("/lora-adapters", on(set_adapters));
}

}  // namespace millrace::server
