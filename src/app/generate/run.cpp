#include "app/generate/run.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>

#include "app/generate/prompt.h"

namespace millrace::generate {

using engine::Finish;
using text::TokenId;

/// What the engine's thread has to say. It may outlive the Run, whose requests then end unheard.
struct Run::Queue {
  struct Ended {
    Finished finished;
    engine::Result result;  // without text and tokens
    std::int64_t completion_tokens = 0;
  };
  std::mutex mutex;
  std::condition_variable came;
  std::deque<Event> events;  // GUARDED_BY mutex
  std::deque<Ended> ended;   // GUARDED_BY mutex: one for each Finished event

  void push(Event event) {
    std::lock_guard lock(mutex);
    events.push_back(std::move(event));
    came.notify_one();
  }
};

namespace {

TokenLogprob::Candidate candidate(const text::Tokenizer& tokenizer, TokenId id, float log_probability) {
  return {tokenizer.token_bytes(id, true), id, log_probability};
}

std::string reason_of(const engine::Result& result, bool called_tool) {
  switch (result.finish) {
    case Finish::stop:
      return called_tool ? "tool_calls" : "stop";
    case Finish::length:
      return "length";
    case Finish::cancelled:
      return "cancelled";
    case Finish::error:
      break;
  }
  return "error";
}

}  // namespace

/// One answer on its way. The engine's thread alone touches it.
struct Run::Choice {
  Choice(std::shared_ptr<Queue> to, const Job& job, int number, text::AnswerForm form)
      : queue(std::move(to)), index(number), whole_is_call(must_call_tool(job)), parser(form) {}

  void on_text(std::string_view text) { take(parser.push(text)); }

  /// What the parser made of more text.
  void take(const std::vector<text::AnswerEvent>& events) {
    using Kind = text::AnswerEvent::Kind;
    Delta delta;
    delta.choice = index;
    for (const text::AnswerEvent& event : events) {
      if (event.kind == Kind::content) (whole_is_call ? call_text : delta.content) += event.text;
      if (event.kind == Kind::reasoning) delta.reasoning += event.text;
      if (event.kind == Kind::call_begin) call = {"", event.text, {}};
      if (event.kind == Kind::call_arguments) call_text += event.text;
      if (event.kind != Kind::call_end) continue;
      call.arguments = Json::parse(call_text, nullptr, false);
      if (call.arguments.is_discarded()) call.arguments = Json::object();
      call_text.clear();
      delta.tool_calls.push_back(std::move(call));
      called = true;
    }
    delta.logprobs = std::move(pending);
    pending.clear();
    if (!delta.empty()) queue->push(std::move(delta));
  }

  /// The tool call that the whole answer is.
  bool take_call() {
    const Json whole = Json::parse(call_text, nullptr, false);
    if (!whole.is_object() || !whole.contains("name")) return false;
    Delta delta;
    delta.choice = index;
    delta.tool_calls.push_back({"", whole.value("name", std::string()), whole.value("arguments", Json::object())});
    queue->push(std::move(delta));
    return true;
  }

  void on_done(engine::Result result) {
    take(parser.finish());
    called = (whole_is_call && take_call()) || called;
    Queue::Ended ended;
    ended.finished = {index, reason_of(result, called), result.status};
    if (result.finish == Finish::cancelled)
      ended.finished.status =
          error(Code::unavailable, "the answer was stopped: the server shuts down or unloads the model");
    ended.completion_tokens = std::ssize(result.tokens);
    result.tokens.clear();
    result.text.clear();
    ended.result = std::move(result);
    std::lock_guard lock(queue->mutex);
    queue->events.emplace_back(ended.finished);
    queue->ended.push_back(std::move(ended));
    queue->came.notify_one();
  }

  std::shared_ptr<Queue> queue;
  int index;
  bool whole_is_call;
  text::AnswerParser parser;
  ToolCall call;          // on its way
  std::string call_text;  // its arguments, or the whole call
  bool called = false;
  std::vector<TokenLogprob> pending;
};

Expected<std::unique_ptr<Run>> Run::start(engine::ModelManager::Use model, const Job& job, const std::string& client) {
  std::unique_ptr<Run> run(new Run(std::move(model)));
  MR_ASSIGN_OR_RETURN(text::Prompt prompt, make_prompt(run->model_->service->engine(), job));
  run->prompt_ = std::move(prompt.ids);
  run->in_thought_ = prompt.in_thought;
  run->queue_ = std::make_shared<Queue>();
  for (int choice = 0; choice < job.n; ++choice) MR_RETURN_IF_ERROR(run->submit(job, choice, client));
  return run;
}

Status Run::submit(const Job& job, int choice, const std::string& client) {
  const std::shared_ptr<engine::Service>& service = model_->service;
  const auto state = std::make_shared<Choice>(queue_, job, choice, answer_form(service->engine(), job, in_thought_));
  const text::Tokenizer* const tokenizer = &service->engine().tokenizer();  // the service outlives its requests
  engine::Request request;
  request.prompt = prompt_;
  request.priority = job.priority;
  request.client = client;
  request.sampler = job.sampler;
  request.sampler.seed += static_cast<std::uint64_t>(choice);
  request.max_tokens = job.max_tokens;
  if (job.context > 0) {
    const std::int64_t left = std::max<std::int64_t>(1, job.context - std::ssize(prompt_));
    request.max_tokens = job.max_tokens < 0 ? left : std::min(job.max_tokens, left);
  }
  request.stop = job.stop;
  request.ignore_end_tokens = job.ignore_end;
  request.logit_bias = job.logit_bias;
  MR_ASSIGN_OR_RETURN(request.constraint, make_constraint(service->engine(), job, in_thought_));
  request.on_text = [state](std::string_view text, std::span<const TokenId>) { state->on_text(text); };
  if (job.progress && choice == 0) {
    request.on_prompt = [queue = queue_](std::int64_t done, std::int64_t total) { queue->push(Progress{done, total}); };
  }
  if (job.logprobs) {
    request.top_logprobs = job.top_logprobs;
    request.on_token = [state, tokenizer](const engine::TokenChoice& picked) {
      TokenLogprob logprob{candidate(*tokenizer, picked.id, picked.log_probability), {}};
      for (const auto& other : picked.likeliest)
        logprob.likeliest.push_back(candidate(*tokenizer, other.id, other.log_probability));
      state->pending.push_back(std::move(logprob));
    };
  }
  const auto id =
      service->submit(std::move(request), [state](engine::Result result) { state->on_done(std::move(result)); });
  if (!id.ok()) return id.status();
  ids_.push_back(*id);
  ++open_;
  return {};
}

Run::~Run() {
  for (const engine::Service::Id id : ids_) model_->service->cancel(id);
}

std::optional<Event> Run::next(std::chrono::milliseconds time) {
  std::unique_lock lock(queue_->mutex);
  queue_->came.wait_for(lock, time, [this] { return !queue_->events.empty(); });
  if (queue_->events.empty()) return std::nullopt;
  Event event = std::move(queue_->events.front());
  queue_->events.pop_front();
  if (std::holds_alternative<Finished>(event)) {
    const Queue::Ended ended = std::move(queue_->ended.front());
    queue_->ended.pop_front();
    totals_.prompt_tokens = ended.result.prompt_tokens;
    totals_.completion_tokens += ended.completion_tokens;
    totals_.prompt_seconds = std::max(totals_.prompt_seconds, ended.result.prompt_seconds);
    totals_.decode_seconds = std::max(totals_.decode_seconds, ended.result.decode_seconds);
    --open_;
  }
  return event;
}

Expected<std::vector<Answer>> collect(Run& run, int choices, const std::function<bool()>& gone) {
  std::vector<Answer> answers(static_cast<std::size_t>(choices));
  while (!run.done()) {
    std::optional<Event> event = run.next(std::chrono::milliseconds(100));
    if (!event) {
      if (gone()) return error(Code::cancelled, "the client went away");
      continue;
    }
    if (auto* delta = std::get_if<Delta>(&*event)) {
      Answer& answer = answers[static_cast<std::size_t>(delta->choice)];
      answer.content += delta->content;
      answer.reasoning += delta->reasoning;
      std::move(delta->tool_calls.begin(), delta->tool_calls.end(), std::back_inserter(answer.tool_calls));
      std::move(delta->logprobs.begin(), delta->logprobs.end(), std::back_inserter(answer.logprobs));
    } else if (auto* finished = std::get_if<Finished>(&*event)) {
      if (!finished->status.ok()) return finished->status;
      answers[static_cast<std::size_t>(finished->choice)].reason = finished->reason;
    }
  }
  return answers;
}

}  // namespace millrace::generate
