// Embeddings, in OpenAI's form and in Ollama's two.
#include "app/openai/embeddings.h"

#include "app/openai/request.h"
#include "app/server/context.h"
#include "app/server/errors.h"
#include "app/server/ollama_request.h"
#include "engine/embed.h"

namespace millrace::server {
namespace {

using engine::Embeddings;
using engine::EmbedOptions;
using engine::ModelManager;
using httplib::Request;
using httplib::Response;
using Clock = std::chrono::steady_clock;
using Inputs = std::vector<std::vector<text::TokenId>>;

/// `field`: where the texts stood, for the error.
Expected<Inputs> tokens_of(const engine::Engine& engine, const std::vector<std::string>& texts, const char* field,
                           bool truncate, std::int64_t most) {
  Inputs inputs;
  for (const std::string& text : texts) {
    Expected<std::vector<text::TokenId>> ids = engine::embedding_tokens(engine, text, truncate, most);
    if (!ids.ok()) return error(ids.status().code(), "{}: {}", field, ids.status().message());
    inputs.push_back(std::move(*ids));
  }
  return inputs;
}

Expected<Embeddings> embed(Context& context, const ModelManager::Use& model, const Inputs& inputs,
                           std::int64_t dimensions, const Request& request) {
  // Each number once as it is computed, once as text.
  constexpr std::uint64_t kBytesANumber = 40;
  const auto width = static_cast<std::uint64_t>(model->service->engine().model().hyperparameters().model_dim);
  if (!Connection::current().memory().take(inputs.size() * width * kBytesANumber))
    return error(Code::out_of_budget, "input: too many texts at once");
  EmbedOptions options;
  options.dimensions = dimensions;
  options.client = client_of(request);
  MR_ASSIGN_OR_RETURN(Embeddings made, engine::embed(*model->service, inputs, options, client_gone));
  generate::Totals totals;
  totals.prompt_tokens = made.prompt_tokens;
  totals.prompt_seconds = made.seconds;
  context.metrics.count_run(totals);
  Connection::current().record().totals = totals;
  return made;
}

Status answer_openai(Context& context, const Request& request, Response& response) {
  MR_ASSIGN_OR_RETURN(const LargeJson body, read_body(request));
  MR_ASSIGN_OR_RETURN(openai::EmbeddingJob job, openai::parse_embeddings(body));
  MR_RETURN_IF_ERROR(check_no_adapter(context, job.model));
  MR_ASSIGN_OR_RETURN(const ModelManager::Use model, use_model(context, job.model));
  const engine::Engine& engine = model->service->engine();
  const std::int64_t most = engine.model().hyperparameters().model_dim;
  if (job.dimensions > most) return error(Code::invalid_argument, "dimensions: this model's embeddings have {}", most);
  Inputs inputs = std::move(job.tokens);
  if (inputs.empty()) {
    MR_ASSIGN_OR_RETURN(inputs, tokens_of(engine, job.texts, "input", false, 0));
  }
  for (const auto& input : inputs)
    if (std::ssize(input) > engine.context_tokens())
      return error(Code::invalid_argument, "input: {} tokens, but this model's maximum context length is {}",
                   input.size(), engine.context_tokens());
  MR_ASSIGN_OR_RETURN(const Embeddings made, embed(context, model, inputs, job.dimensions, request));
  response.set_content(openai::embeddings_body(job.model, made.vectors, job.base64, made.prompt_tokens),
                       "application/json");
  return {};
}

/// What both of Ollama's endpoints do; an empty text loads the model, nothing else.
struct OllamaAnswer {
  std::string model;
  Embeddings made;
  Clock::duration load{};
};
Expected<OllamaAnswer> ollama_embed(Context& context, const Request& request, const char* field) {
  const Clock::time_point begin = Clock::now();
  OllamaAnswer out;
  MR_ASSIGN_OR_RETURN(const LargeJson body, read_body(request));
  MR_ASSIGN_OR_RETURN(out.model, ollama_model(body));
  MR_ASSIGN_OR_RETURN(const OllamaEmbedRequest asked, parse_ollama_embed(body, field));
  MR_RETURN_IF_ERROR(check_no_adapter(context, out.model));
  MR_ASSIGN_OR_RETURN(const ModelManager::Use model, use_model(context, out.model, asked.keep_alive));
  out.load = Clock::now() - begin;
  if (asked.texts.empty() || (asked.texts.size() == 1 && asked.texts[0].empty())) return out;
  MR_ASSIGN_OR_RETURN(const Inputs inputs,
                      tokens_of(model->service->engine(), asked.texts, field, asked.truncate, asked.context));
  MR_ASSIGN_OR_RETURN(out.made, embed(context, model, inputs, asked.dimensions, request));
  return out;
}

Status answer_ollama(Context& context, const Request& request, Response& response) {
  const Clock::time_point begin = Clock::now();
  MR_ASSIGN_OR_RETURN(const OllamaAnswer answer, ollama_embed(context, request, "input"));
  std::string out = R"({"model":)" + dump(Json(answer.model)) + R"(,"embeddings":[)";
  for (const auto& vector : answer.made.vectors) {
    if (out.back() != '[') out += ',';
    openai::append_list(out, vector);
  }
  const auto ns = [](Clock::duration time) {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(time).count();
  };
  out += fmt::format(R"(],"total_duration":{},"load_duration":{},"prompt_eval_count":{}}})", ns(Clock::now() - begin),
                     ns(answer.load), answer.made.prompt_tokens);
  response.set_content(out, "application/json");
  return {};
}

Status answer_ollama_once(Context& context, const Request& request, Response& response) {
  MR_ASSIGN_OR_RETURN(const OllamaAnswer answer, ollama_embed(context, request, "prompt"));
  std::string out = R"({"embedding":)";
  openai::append_list(out, answer.made.vectors.empty() ? std::vector<float>() : answer.made.vectors.front());
  response.set_content(out + "}", "application/json");
  return {};
}

}  // namespace

void add_embedding_routes(Context& context) {
  const auto on = [&context](Api api, auto handler) {
    return [&context, api, handler](const Request& request, Response& response) {
      const Status status = handler(context, request, response);
      if (!status.ok()) fail(api, response, status);
    };
  };
  context.http.Post("/v1/embeddings", on(Api::openai, answer_openai));
  context.http.Post("/api/embed", on(Api::ollama, answer_ollama));
  context.http.Post("/api/embeddings", on(Api::ollama, answer_ollama_once));
}

}  // namespace millrace::server
