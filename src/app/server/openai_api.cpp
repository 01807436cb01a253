// OpenAI's chat completions, completions and models.
#include <algorithm>
#include <vector>

#include "app/openai/request.h"
#include "app/openai/response.h"
#include "app/server/context.h"
#include "app/server/errors.h"
#include "app/server/ollama_request.h"

namespace millrace::server {
namespace {

using generate::Delta;
using generate::Finished;
using generate::Job;
using generate::Progress;
using httplib::Request;
using httplib::Response;

constexpr const char* kDone = "data: [DONE]\n\n";

/// What a file does not say is null.
Json known(std::int64_t tokens) { return tokens > 0 ? Json(tokens) : Json(); }

Json model_json(const Context& context, const ModelInfo& info, vision::MmprojFolders& folders) {
  Json modalities = Json::array({"text"});
  if (!context.models.mmproj_of(info.path, folders).empty()) modalities.push_back("image");
  return {{"id", info.name},
          {"object", "model"},
          {"created", std::chrono::duration_cast<std::chrono::seconds>(info.modified.time_since_epoch()).count()},
          {"owned_by", "library"},
          // As vLLM and OpenRouter name it, and llama-server.
          {"max_model_len", known(info.context_length)},
          {"context_length", known(info.context_length)},
          {"architecture", {{"input_modalities", std::move(modalities)}, {"output_modalities", Json::array({"text"})}}},
          {"meta", {{"n_ctx_train", known(info.context_length)}}}};
}

/// As Anthropic's clients ask for it: their header is there.
Json anthropic_model(const ModelInfo& info) {
  return {{"type", "model"},
          {"id", info.name},
          {"display_name", info.name},
          {"created_at", rfc3339(info.modified)},
          {"lifecycle", "active"},
          {"max_input_tokens", known(info.context_length)},
          {"max_tokens", known(info.context_length)}};
}

/// The model with each of its adapters: "BASE:ADAPTER".
std::vector<ModelInfo> adapted(const Context& context, const ModelInfo& info) {
  std::vector<ModelInfo> all;
  const engine::ModelOptions& given = context.models.options().engine.model;
  constexpr std::string_view kLatest = ":latest";
  if (!context.models.is_given(info.source())) return all;
  for (const engine::AdapterOptions& adapter : given.adapters) {
    if (adapter.of_model) continue;
    ModelInfo& one = all.emplace_back(info);
    if (one.name.ends_with(kLatest)) one.name.resize(one.name.size() - kLatest.size());
    one.name += ":" + adapter.name;
  }
  return all;
}

bool speaks_anthropic(const Request& request) { return request.has_header("anthropic-version"); }

void list_models(Context& context, const Request& request, Response& response) {
  const auto models = context.catalog.list(&Connection::current().memory());
  const bool anthropic = speaks_anthropic(request);
  if (!models.ok()) return fail(anthropic ? Api::anthropic : Api::openai, response, models.status());
  Json data = Json::array();
  if (anthropic) {
    for (const ModelInfo& info : *models) data.push_back(anthropic_model(info));
    const Json first = data.empty() ? Json() : data.front()["id"], last = data.empty() ? Json() : data.back()["id"];
    return reply(response, {{"data", std::move(data)}, {"has_more", false}, {"first_id", first}, {"last_id", last}});
  }
  vision::MmprojFolders folders;
  for (const ModelInfo& info : *models) {
    data.push_back(model_json(context, info, folders));
    for (const ModelInfo& one : adapted(context, info)) data.push_back(model_json(context, one, folders));
  }
  reply(response, {{"object", "list"}, {"data", std::move(data)}});
}

void get_model(Context& context, const Request& request, Response& response) {
  auto info = context.catalog.find_outline(request.matches[1]);
  if (!info.ok()) {
    info = model_meant(context, request.matches[1]);
    if (info.ok()) info->name = request.matches[1];
  }
  const bool anthropic = speaks_anthropic(request);
  if (!info.ok()) return fail(anthropic ? Api::anthropic : Api::openai, response, info.status());
  vision::MmprojFolders folders;
  reply(response, anthropic ? anthropic_model(*info) : model_json(context, *info, folders));
}

StreamForm chat_stream(const std::shared_ptr<generate::Run>& run, const Job& job) {
  const auto envelope = std::make_shared<openai::Envelope>(openai::make_envelope("chatcmpl-", job.model));
  StreamForm form{"text/event-stream", kStreamComment, {}, {}, {}};
  // The first chunk of an answer tells its role, and that it is a call where it begins with one.
  const auto begun = std::make_shared<std::vector<bool>>(static_cast<std::size_t>(job.n), false);
  const auto first = [envelope, begun](int choice, bool is_call) {
    const auto place = static_cast<std::size_t>(choice);
    if ((*begun)[place]) return std::string();
    (*begun)[place] = true;
    Json chunk = openai::chat_first_chunk(*envelope, choice);
    if (is_call) chunk["choices"][0]["delta"]["content"] = nullptr;
    return sse(chunk);
  };
  const auto calls = std::make_shared<openai::ChatCalls>();
  form.event = [envelope, job, first, calls](const generate::Event& event) -> std::string {
    if (const auto* delta = std::get_if<Delta>(&event)) {
      const bool is_call = !delta->tool_calls.empty() && delta->content.empty();
      return first(delta->choice, is_call) + sse(openai::chat_chunk(*envelope, job, *delta, *calls));
    }
    if (const auto* progress = std::get_if<Progress>(&event)) {
      Json chunk = openai::chat_empty_chunk(*envelope);
      chunk["prompt_progress"] = {{"total", progress->total}, {"processed", progress->done}};
      std::string roles;  // who asks for progress hears of roles first
      for (int i = 0; i < job.n; ++i) roles += first(i, false);
      return roles + sse(chunk);
    }
    const auto* const found = std::get_if<Finished>(&event);
    if (found == nullptr) return "";
    const Finished& finished = *found;
    if (!finished.status.ok()) return sse(openai::error_body(openai::http_status(finished.status), finished.status));
    return first(finished.choice, false) + sse(openai::chat_last_chunk(*envelope, finished));
  };
  form.end = [envelope, job, weak = std::weak_ptr(run)] {
    const auto ended = weak.lock();
    if (!job.include_usage || ended == nullptr) return std::string(kDone);
    Json chunk = openai::chat_empty_chunk(*envelope);
    chunk["usage"] = openai::usage(ended->totals());
    chunk["timings"] = openai::timings(ended->totals());
    return sse(chunk) + kDone;
  };
  return form;
}

void chat(Context& context, const Request& request, Response& response) {
  const auto begun = begin_run(context, request, [](const Json& body) { return openai::parse_chat(body); });
  if (!begun.ok()) return fail(Api::openai, response, begun.status());
  const Job& job = begun->job;
  const std::shared_ptr<generate::Run>& run = begun->run;
  if (job.stream) return stream(context, response, run, chat_stream(run, job));
  const auto answers = collect(*run, job.n);
  if (!answers.ok()) return fail(Api::openai, response, answers.status());
  context.metrics.count_run(run->totals());
  reply(response, openai::chat_body(openai::make_envelope("chatcmpl-", job.model), job, *answers, run->totals()));
}

/// A completion as a stream of chunks.
class CompletionStream {
 public:
  explicit CompletionStream(const Job& job)
      : job_(job), envelope_(openai::make_envelope("cmpl-", job.model)), offsets_(static_cast<std::size_t>(job.n), 0) {}

  /// The echo, unless it has to wait for what comes with it.
  std::string begin() const {
    std::string out;
    for (int i = 0; job_.echo && job_.prompt_logprobs < 0 && i < job_.n; ++i) out += chunk(i, job_.prompt);
    return out;
  }

  std::string event(const generate::Event& event) {
    if (const auto* prompted = std::get_if<generate::Prompted>(&event)) return echo(*prompted->tokens);
    if (const auto* delta = std::get_if<Delta>(&event)) {
      std::size_t& offset = offsets_[static_cast<std::size_t>(delta->choice)];
      return chunk(delta->choice, delta->content,
                   job_.logprobs ? openai::completion_logprobs(delta->logprobs, offset) : Json());
    }
    if (const auto* progress = std::get_if<Progress>(&event)) {
      Json chunk = openai::completion_chunk(envelope_, 0, "", nullptr, nullptr);
      chunk["choices"] = Json::array();
      chunk["prompt_progress"] = {{"total", progress->total}, {"processed", progress->done}};
      return sse(chunk);
    }
    const auto& finished = std::get<Finished>(event);
    if (!finished.status.ok()) return sse(openai::error_body(openai::http_status(finished.status), finished.status));
    return sse(openai::completion_chunk(envelope_, finished.choice, "", nullptr, finished.reason));
  }

  std::string end(const generate::Totals& totals) const {
    if (!job_.include_usage) return kDone;
    return sse(openai::completion_body(envelope_, Json::array(), totals)) + kDone;
  }

 private:
  std::string chunk(int choice, const std::string& text, const Json& logprobs = nullptr) const {
    return sse(openai::completion_chunk(envelope_, choice, text, logprobs, nullptr));
  }
  std::string echo(const generate::PromptTokens& tokens) {
    const auto echoed = openai::echoed_tokens(job_, tokens);
    std::string out;
    for (int i = 0; i < job_.n; ++i)
      out += chunk(i, job_.prompt, openai::completion_logprobs(echoed, offsets_[static_cast<std::size_t>(i)]));
    return out;
  }

  const Job job_;
  const openai::Envelope envelope_;
  std::vector<std::size_t> offsets_;  // characters of each answer so far
};

StreamForm completion_stream(const std::shared_ptr<generate::Run>& run, const Job& job) {
  const auto told = std::make_shared<CompletionStream>(job);
  StreamForm form{"text/event-stream", kStreamComment, {}, {}, {}};
  form.begin = [told] { return told->begin(); };
  form.event = [told](const generate::Event& event) { return told->event(event); };
  form.end = [told, weak = std::weak_ptr(run)] {
    const auto ended = weak.lock();
    return ended == nullptr ? std::string(kDone) : told->end(ended->totals());
  };
  return form;
}

void complete(Context& context, const Request& request, Response& response) {
  const auto body = read_prompt_body(request);
  if (!body.ok()) return fail(Api::openai, response, body.status());
  auto jobs = openai::parse_completion(*body);
  if (!jobs.ok()) return fail(Api::openai, response, jobs.status());
  if (jobs->front().stream && jobs->size() > 1)
    return fail(Api::openai, response, error(Code::unsupported, "prompt: several at once are not streamed; send one"));
  std::vector<std::shared_ptr<generate::Run>> runs;
  for (Job& job : *jobs) {
    auto started = start_run(context, job, request);
    if (!started.ok()) return fail(Api::openai, response, started.status());
    openai::write_prompt((*started)->model().service->engine().tokenizer(), job);
    runs.push_back(std::move(*started));
  }
  const Job& first = jobs->front();
  if (first.stream) return stream(context, response, runs[0], completion_stream(runs[0], first));
  Json choices = Json::array();
  generate::Totals totals;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const auto answers = collect(*runs[i], first.n);
    if (!answers.ok()) return fail(Api::openai, response, answers.status());
    for (const auto& answer : *answers)
      choices.push_back(openai::completion_choice((*jobs)[i], answer, static_cast<int>(choices.size())));
    const generate::Totals& own = runs[i]->totals();
    context.metrics.count_run(own);
    totals.prompt_tokens += own.prompt_tokens;
    totals.cached_tokens += own.cached_tokens;
    totals.completion_tokens += own.completion_tokens;
    totals.reasoning_tokens += own.reasoning_tokens;
    totals.prompt_seconds = std::max(totals.prompt_seconds, own.prompt_seconds);
    totals.decode_seconds = std::max(totals.decode_seconds, own.decode_seconds);
  }
  reply(response, openai::completion_body(openai::make_envelope("cmpl-", first.model), std::move(choices), totals));
}

}  // namespace

void add_openai_routes(Context& context) {
  const auto on = [&context](auto handler) {
    return [&context, handler](const Request& request, Response& response) { handler(context, request, response); };
  };
  context.http.Get("/v1/models", on(list_models));
  context.http.Get(R"(/v1/models/(.+))", on(get_model));
  context.http.Post("/v1/chat/completions", on(chat));
  context.http.Post("/v1/completions", on(complete));
}

}  // namespace millrace::server
