// POST /v1/rerank, in the form that Jina's, Cohere's and llama-server's clients share.
#include <algorithm>
#include <numeric>

#include "app/openai/request.h"
#include "app/openai/response.h"
#include "app/server/context.h"
#include "app/server/errors.h"
#include "engine/rank.h"

namespace millrace::server {
namespace {

using httplib::Request;
using httplib::Response;

std::vector<std::size_t> best_first(const std::vector<double>& scores) {
  std::vector<std::size_t> order(scores.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return scores[a] > scores[b]; });
  return order;
}

Status answer(Context& context, const Request& request, Response& response) {
  MR_ASSIGN_OR_RETURN(const LargeJson body, read_body(request));
  MR_ASSIGN_OR_RETURN(const openai::RerankJob job, openai::parse_rerank(body));
  MR_RETURN_IF_ERROR(check_no_adapter(context, job.model));
  MR_ASSIGN_OR_RETURN(const engine::ModelManager::Use model, use_model(context, job.model));
  const engine::Engine& engine = model->service->engine();
  const auto width = static_cast<std::uint64_t>(engine.model().hyperparameters().model_dim);
  std::vector<std::vector<text::TokenId>> prompts;
  for (const std::string& document : job.documents) {
    auto ids = engine::rank_tokens(engine, job.query, document);
    if (!ids.ok() && ids.status().code() == Code::invalid_argument)
      return error(Code::invalid_argument, "documents: [{}] has {}", prompts.size(), ids.status().message());
    if (!ids.ok()) return error(ids.status().code(), "model: {}", ids.status().message());
    if (client_gone()) return error(Code::cancelled, "the client went away");
    // Each has the query, too: many small documents may be much more than what came.
    if (!Connection::current().memory().take(ids->size() * sizeof(text::TokenId) + width * sizeof(float)))
      return error(Code::out_of_budget, "documents: too many at once");
    prompts.push_back(std::move(*ids));
  }
  MR_ASSIGN_OR_RETURN(const engine::Ranking ranking,
                      engine::rank(*model->service, prompts, client_of(request), client_gone));
  generate::Totals totals;
  totals.prompt_tokens = ranking.prompt_tokens;
  totals.prompt_seconds = ranking.seconds;
  context.metrics.count_run(totals);
  Connection::current().record().totals = totals;

  Json results = Json::array();
  for (const std::size_t index : best_first(ranking.scores)) {
    if (std::ssize(results) == job.most) break;
    Json one = {{"index", index}, {"relevance_score", ranking.scores[index]}};
    if (job.return_documents) one["document"] = {{"text", job.documents[index]}};
    results.push_back(std::move(one));
  }
  reply(response, {{"object", "list"},
                   {"model", job.model},
                   {"results", std::move(results)},
                   {"usage", {{"prompt_tokens", totals.prompt_tokens}, {"total_tokens", totals.prompt_tokens}}}});
  return {};
}

}  // namespace

void add_rerank_routes(Context& context) {
  const auto handler = [&context](const Request& request, Response& response) {
    const Status status = answer(context, request, response);
    if (!status.ok()) fail(Api::openai, response, status);
  };
  context.http.Post("/v1/rerank", handler);
  context.http.Post("/rerank", handler);
}

}  // namespace millrace::server
