#include "app/generate/choice.h"

#include <algorithm>
#include <utility>

#include "app/generate/prompt.h"

namespace millrace::generate {

using engine::Finish;
using text::TokenId;

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

/// One answer on its way. The engine's thread alone touches it.
struct Choice {
  Choice(const Job& job, int number, text::AnswerForm form)
      : index(number), whole_is_call(must_call_tool(job)), parser(std::move(form)) {}

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
    if (!delta.empty()) on_event(std::move(delta));
  }

  /// The tool call that the whole answer is.
  bool take_call() {
    const Json whole = Json::parse(call_text, nullptr, false);
    if (!whole.is_object() || !whole.contains("name")) return false;
    Delta delta;
    delta.choice = index;
    delta.tool_calls.push_back({"", whole.value("name", std::string()), whole.value("arguments", Json::object())});
    on_event(std::move(delta));
    return true;
  }

  void on_done(engine::Result result) {
    take(parser.finish());
    called = (whole_is_call && take_call()) || called;
    Ended ended;
    ended.finished = {index, reason_of(result, called), result.status};
    if (result.finish == Finish::cancelled)
      ended.finished.status =
          error(Code::unavailable, "the answer was stopped: the server shuts down or unloads the model");
    ended.completion_tokens = std::ssize(result.tokens);
    result.tokens.clear();
    result.text.clear();
    ended.result = std::move(result);
    on_end(std::move(ended));
  }

  std::function<void(Event)> on_event;
  std::function<void(Ended)> on_end;
  int index;
  bool whole_is_call;
  text::AnswerParser parser;
  ToolCall call;          // on its way
  std::string call_text;  // its arguments, or the whole call
  bool called = false;
  std::vector<TokenLogprob> pending;
};

}  // namespace

Expected<Prepared> prepare(const engine::Engine& engine, const Job& job, const text::Prompt& prompt, int choice,
                           std::function<void(Event)> on_event, std::function<void(Ended)> on_end) {
  const text::AnswerForm form = answer_form(job, prompt);
  const auto state = std::make_shared<Choice>(job, choice, form);
  const text::Tokenizer* const tokenizer = &engine.tokenizer();
  Prepared prepared;
  engine::Request& request = prepared.request;
  request.prompt = prompt.ids;
  request.priority = job.priority;
  request.sampler = job.sampler;
  request.sampler.seed += static_cast<std::uint64_t>(choice);
  request.max_tokens = job.max_tokens;
  if (job.context > 0) {
    const std::int64_t left = std::max<std::int64_t>(1, job.context - std::ssize(prompt.ids));
    request.max_tokens = job.max_tokens < 0 ? left : std::min(job.max_tokens, left);
  }
  request.stop = job.stop;
  request.shown_tokens = text::mark_tokens(*tokenizer, {form.calls, form.thoughts});
  request.ignore_end_tokens = job.ignore_end;
  request.logit_bias = job.logit_bias;
  MR_ASSIGN_OR_RETURN(request.constraint, make_constraint(engine, job, prompt));
  request.on_text = [state](std::string_view text, std::span<const TokenId>) { state->on_text(text); };
  if (job.progress && choice == 0)
    request.on_prompt = [on_event](std::int64_t done, std::int64_t total) { on_event(Progress{done, total}); };
  if (job.logprobs) {
    request.top_logprobs = job.top_logprobs;
    request.on_token = [state, tokenizer](const engine::TokenChoice& picked) {
      TokenLogprob logprob{candidate(*tokenizer, picked.id, picked.log_probability), {}};
      for (const auto& other : picked.likeliest)
        logprob.likeliest.push_back(candidate(*tokenizer, other.id, other.log_probability));
      state->pending.push_back(std::move(logprob));
    };
  }
  state->on_event = std::move(on_event);
  state->on_end = std::move(on_end);
  prepared.on_done = [state](engine::Result result) { state->on_done(std::move(result)); };
  return prepared;
}

}  // namespace millrace::generate
