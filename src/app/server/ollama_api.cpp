// Ollama's generate and chat.
#include "app/openai/response.h"
#include "app/server/context.h"
#include "app/server/errors.h"
#include "app/server/ollama_request.h"

namespace millrace::server {
namespace {

using generate::Delta;
using generate::Finished;
using generate::Job;
using httplib::Request;
using httplib::Response;
using Clock = std::chrono::steady_clock;

std::int64_t ns(double seconds) { return static_cast<std::int64_t>(seconds * 1e9); }

std::string line(const Json& json) { return dump(json) + "\n"; }

/// Puts one answer, or a piece of it, into Ollama's words.
class Shape {
 public:
  Shape(bool chat, const Job& job, Clock::time_point begin, double load_seconds)
      : chat_(chat), job_(job), begin_(begin), load_seconds_(load_seconds) {}

  Json piece(const std::string& content, const std::string& thinking, const std::vector<generate::ToolCall>& calls,
             const std::vector<generate::TokenLogprob>& logprobs) const {
    Json json = {{"model", job_.model}, {"created_at", rfc3339(std::chrono::system_clock::now())}};
    if (chat_) {
      Json message = {{"role", "assistant"}, {"content", content}};
      if (!thinking.empty()) message["thinking"] = thinking;
      for (const auto& call : calls)
        message["tool_calls"].push_back(
            {{"id", openai::random_id("call_")}, {"function", {{"name", call.name}, {"arguments", call.object()}}}});
      json["message"] = std::move(message);
    } else {
      json["response"] = content;
      if (!thinking.empty()) json["thinking"] = thinking;
    }
    if (job_.logprobs && !logprobs.empty()) json["logprobs"] = logprobs_json(logprobs);
    json["done"] = false;
    return json;
  }

  /// Adds what the last piece tells.
  void finish(Json& json, const std::string& reason, const generate::Run& run) const {
    const generate::Totals& totals = run.totals();
    json["done"] = true;
    json["done_reason"] = reason == "length" ? "length" : "stop";
    json["total_duration"] = std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - begin_).count();
    json["load_duration"] = ns(load_seconds_);
    json["prompt_eval_count"] = totals.prompt_tokens;
    json["prompt_eval_duration"] = ns(totals.prompt_seconds);
    json["eval_count"] = totals.completion_tokens;
    json["eval_duration"] = ns(totals.decode_seconds);
    if (job_.keep_tokens) tell_context(json, reason, run);
  }

 private:
  /// The conversation so far in tokens, for the next request to go on with.
  void tell_context(Json& json, const std::string& reason, const generate::Run& run) const {
    std::vector<text::TokenId> all = run.prompt();
    std::erase_if(all, [](text::TokenId id) { return id < 0; });  // pictures go on in nobody's words
    const std::vector<text::TokenId>& answer = run.meter()->tokens;
    // What is made of an id: a number of JSON, and its digits. Without room for them the answer comes without.
    constexpr std::uint64_t kBytesAToken = 72;
    if (!Connection::current().memory().take((all.size() + answer.size() + 1) * kBytesAToken)) return;
    all.insert(all.end(), answer.begin(), answer.end());
    // An answer that ended by itself ended with this token, which the next turn has to see.
    const auto end = run.model().service->engine().tokenizer().eos();
    if (reason == "stop" && job_.stop.empty() && end) all.push_back(*end);
    json["context"] = all;
  }

  static Json logprobs_json(const std::vector<generate::TokenLogprob>& logprobs) {
    return openai::chat_logprobs(logprobs)["content"];
  }

  bool chat_;
  Job job_;
  Clock::time_point begin_;
  double load_seconds_;
};

StreamForm ndjson(const std::shared_ptr<generate::Run>& run, const std::shared_ptr<Shape>& shape) {
  StreamForm form{"application/x-ndjson", "", {}, {}, {}};
  const auto reason = std::make_shared<std::string>();
  const auto failed = std::make_shared<bool>(false);
  // Calls are told whole here.
  const auto calls = std::make_shared<generate::CallJoiner>();
  form.event = [shape, reason, failed, calls](const generate::Event& event) -> std::string {
    if (const auto* delta = std::get_if<Delta>(&event)) {
      const std::vector<generate::ToolCall> whole = calls->add(delta->tool_calls);
      const bool says = !delta->content.empty() || !delta->reasoning.empty() || !delta->logprobs.empty();
      if (!says && whole.empty()) return "";
      return line(shape->piece(delta->content, delta->reasoning, whole, delta->logprobs));
    }
    if (const auto* progress = std::get_if<generate::Progress>(&event)) {  // Ollama has none: who asks knows our words
      Json piece = shape->piece("", "", {}, {});
      piece["prompt_progress"] = {{"total", progress->total}, {"processed", progress->done}};
      return line(piece);
    }
    if (const auto* finished = std::get_if<Finished>(&event)) {
      *reason = finished->reason;
      *failed = !finished->status.ok();
      if (*failed) return line({{"error", finished->status.message()}});
    }
    return "";
  };
  form.end = [shape, reason, failed, weak = std::weak_ptr(run)] {
    const auto ended = weak.lock();
    if (*failed || ended == nullptr) return std::string();
    Json last = shape->piece("", "", {}, {});
    shape->finish(last, *reason, *ended);
    return line(last);
  };
  return form;
}

/// Loads or unloads: what an empty prompt asks for.
void load_or_unload(Context& context, const OllamaRequest& asked, const ModelInfo& info, bool chat,
                    Response& response) {
  const bool unload = asked.keep_alive && *asked.keep_alive == engine::ModelManager::Duration::zero();
  if (unload) {
    context.models.unload(info.source());
  } else if (const auto use = context.models.use(info.source(), asked.keep_alive, wanted_by(info, asked.job));
             !use.ok()) {
    return fail(Api::ollama, response, use.status());
  }
  Json body = {{"model", info.name}, {"created_at", rfc3339(std::chrono::system_clock::now())}};
  if (chat)
    body["message"] = {{"role", "assistant"}, {"content", ""}};
  else
    body["response"] = "";
  body["done"] = true;
  body["done_reason"] = unload ? "unload" : "load";
  if (!asked.job.stream) return reply(response, body);
  response.set_content(line(body), "application/x-ndjson");
}

void answer(Context& context, const Request& request, Response& response, bool chat) {
  const Clock::time_point begin = Clock::now();
  const auto body = read_prompt_body(request);
  if (!body.ok()) return fail(Api::ollama, response, body.status());
  const auto name = ollama_model(*body);
  if (!name.ok()) return fail(Api::ollama, response, name.status());
  const auto info = model_meant(context, *name);
  if (!info.ok()) return fail(Api::ollama, response, info.status());
  auto asked = chat ? parse_ollama_chat(*body, *info) : parse_ollama_generate(*body, *info);
  if (!asked.ok()) return fail(Api::ollama, response, asked.status());
  if (asked->empty) return load_or_unload(context, *asked, *info, chat, response);
  asked->job.model = *name;
  asked->job.adapter = info->adapter;
  auto model = use_found(context, *info, asked->keep_alive, wanted_by(*info, asked->job));
  if (!model.ok()) return fail(Api::ollama, response, model.status());
  const double load_seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  auto started = start_run(context, asked->job, std::move(*model), request);
  if (!started.ok()) return fail(Api::ollama, response, started.status());
  const std::shared_ptr<generate::Run> run = std::move(*started);
  const auto shape = std::make_shared<Shape>(chat, asked->job, begin, load_seconds);
  if (asked->job.stream) return stream(context, response, run, ndjson(run, shape));
  const auto answers = collect(*run, 1);
  if (!answers.ok()) return fail(Api::ollama, response, answers.status());
  context.metrics.count_run(run->totals());
  const generate::Answer& one = answers->front();
  Json whole = shape->piece(one.content, one.reasoning, one.tool_calls, one.logprobs);
  shape->finish(whole, one.reason, *run);
  reply(response, whole);
}

}  // namespace

void add_ollama_routes(Context& context) {
  context.http.Post("/api/generate", [&context](const Request& request, Response& response) {
    answer(context, request, response, false);
  });
  context.http.Post("/api/chat", [&context](const Request& request, Response& response) {
    answer(context, request, response, true);
  });
}

}  // namespace millrace::server
