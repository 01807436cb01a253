// OpenAI's responses.
#include "app/openai/responses.h"
#include "app/server/context.h"
#include "app/server/errors.h"

namespace millrace::server {
namespace {

using httplib::Request;
using httplib::Response;

void respond(Context& context, const Request& request, Response& response) {
  const auto body = read_body(request);
  if (!body.ok()) return fail(Api::openai, response, body.status());
  auto job = openai::parse_response(*body);
  if (!job.ok()) return fail(Api::openai, response, job.status());
  auto started = start_run(context, *job, request);
  if (!started.ok()) return fail(Api::openai, response, started.status());
  const std::shared_ptr<generate::Run> run = std::move(*started);
  if (!job->stream) {
    const auto answers = collect(*run, 1);
    if (!answers.ok()) return fail(Api::openai, response, answers.status());
    context.metrics.count_run(run->totals());
    const auto envelope = openai::make_envelope("resp_", job->model);
    return reply(response, openai::response_body(envelope, *job, answers->front(), run->totals()));
  }
  const auto told = std::make_shared<openai::ResponseStream>(*job);
  StreamForm form{"text/event-stream", ": still working\n\n", {}, {}, {}};
  form.begin = [told] { return told->begin(); };
  form.event = [told](const generate::Event& event) { return told->event(event); };
  form.end = [told, weak = std::weak_ptr(run)] {
    const auto ended = weak.lock();
    return told->end(ended == nullptr ? generate::Totals() : ended->totals());
  };
  stream(context, response, run, std::move(form));
}

}  // namespace

void add_responses_routes(Context& context) {
  context.http.Post("/v1/responses",
                    [&context](const Request& request, Response& response) { respond(context, request, response); });
}

}  // namespace millrace::server
