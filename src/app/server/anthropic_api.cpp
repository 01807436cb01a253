// Anthropic's messages.
#include "app/anthropic/messages.h"
#include "app/generate/prompt.h"
#include "app/server/context.h"
#include "app/server/errors.h"

namespace millrace::server {
namespace {

using generate::Job;
using httplib::Request;
using httplib::Response;

void messages(Context& context, const Request& request, Response& response) {
  const auto begun = begin_run(context, request, [](const Json& body) { return anthropic::parse(body, true); });
  if (!begun.ok()) return fail(Api::anthropic, response, begun.status());
  const Job& job = begun->job;
  const std::shared_ptr<generate::Run>& run = begun->run;
  if (!job.stream) {
    const auto answers = collect(*run, 1);
    if (!answers.ok()) return fail(Api::anthropic, response, answers.status());
    context.metrics.count_run(run->totals());
    return reply(response, anthropic::body(job, answers->front(), run->totals()));
  }
  const auto told = std::make_shared<anthropic::Stream>(job.model, std::ssize(run->prompt()));
  StreamForm form{"text/event-stream", "event: ping\ndata: {\"type\": \"ping\"}\n\n", {}, {}, {}};
  form.event = [told](const generate::Event& event) { return told->event(event); };
  form.end = [told, weak = std::weak_ptr(run)] {
    const auto ended = weak.lock();
    return told->end(ended == nullptr ? generate::Totals() : ended->totals());
  };
  stream(context, response, run, std::move(form));
}

void count_tokens(Context& context, const Request& request, Response& response) {
  const auto body = read_prompt_body(request);
  if (!body.ok()) return fail(Api::anthropic, response, body.status());
  auto job = anthropic::parse(*body, false);
  if (!job.ok()) return fail(Api::anthropic, response, job.status());
  const auto model = use_model(context, job->model, {}, sight_wanted(*job));
  if (!model.ok()) return fail(Api::anthropic, response, model.status());
  fetch_pictures(context, (*model)->service->engine(), *job);
  const auto prompt = generate::make_prompt((*model)->service->engine(), *job, &Connection::current().memory());
  if (!prompt.ok()) return fail(Api::anthropic, response, prompt.status());
  reply(response, {{"input_tokens", prompt->ids.size()}});
}

}  // namespace

void add_anthropic_routes(Context& context) {
  context.http.Post("/v1/messages",
                    [&context](const Request& request, Response& response) { messages(context, request, response); });
  context.http.Post("/v1/messages/count_tokens", [&context](const Request& request, Response& response) {
    count_tokens(context, request, response);
  });
}

}  // namespace millrace::server
