#include "app/generate/choice.h"

#include <algorithm>
#include <utility>

#include "app/generate/form.h"
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
  Choice(int number, text::AnswerForm form) : index(number), parser(std::move(form)) {}

  void on_text(std::string_view text) { take(parser.push(text)); }

  /// What the parser made of more text.
  void take(const std::vector<text::AnswerEvent>& events) {
    using Kind = text::AnswerEvent::Kind;
    Delta delta;
    delta.choice = index;
    std::vector<CallPiece>& calls = delta.tool_calls;
    for (const text::AnswerEvent& event : events) {
      if (event.kind == Kind::content) delta.content += event.text;
      if (event.kind == Kind::reasoning) delta.reasoning += event.text;
      if (event.kind == Kind::content || event.kind == Kind::reasoning) continue;
      if (calls.empty() || calls.back().index != event.call) calls.push_back({event.call, {}, {}});
      if (event.kind == Kind::call_begin) calls.back().name = event.text;
      if (event.kind == Kind::call_arguments) calls.back().arguments += event.text;
      calls.back().begins |= event.kind == Kind::call_begin;
      calls.back().ends |= event.kind == Kind::call_end;
    }
    called = parser.calls() > 0;
    delta.logprobs = std::move(pending);
    pending.clear();
    if (!delta.empty()) on_event(std::move(delta));
  }

  void on_done(engine::Result result) {
    take(parser.finish());
    Ended ended;
    ended.finished = {index, reason_of(result, called), result.status};
    if (result.finish == Finish::cancelled)
      ended.finished.status =
          error(Code::unavailable, "the answer was stopped: the server shuts down or unloads the model");
    ended.completion_tokens = std::ssize(result.tokens);
    if (!keep_tokens) result.tokens.clear();
    result.text.clear();
    ended.result = std::move(result);
    on_end(std::move(ended));
  }

  std::function<void(Event)> on_event;
  std::function<void(Ended)> on_end;
  int index;
  text::AnswerParser parser;
  bool called = false, keep_tokens = false;
  std::vector<TokenLogprob> pending;
};

}  // namespace

Expected<Prepared> prepare(const engine::Engine& engine, const Job& job, const text::Prompt& prompt, int choice,
                           std::function<void(Event)> on_event, std::function<void(Ended)> on_end, WorkGrant* grant) {
  const text::AnswerForm form = answer_form(job, prompt);
  const auto state = std::make_shared<Choice>(choice, form);
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
  MR_ASSIGN_OR_RETURN(request.constraint, make_constraint(engine, job, prompt, grant));
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
  state->keep_tokens = job.keep_tokens;
  state->on_event = std::move(on_event);
  state->on_end = std::move(on_end);
  prepared.on_done = [state](engine::Result result) { state->on_done(std::move(result)); };
  return prepared;
}

}  // namespace millrace::generate
