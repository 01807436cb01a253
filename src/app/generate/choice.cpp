#include "app/generate/choice.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <optional>
#include <utility>

#include "app/generate/form.h"
#include "app/generate/prompt.h"
#include "base/carry_on.h"
#include "engine/choice.h"

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
  Choice(int number, text::AnswerForm form, const text::AnswerForm* call_form)
      : index(number), parser(std::move(form)) {
    if (call_form != nullptr) call_parser.emplace(*call_form);
  }

  void on_text(std::string_view text, std::int64_t tokens) {
    uncounted += tokens;
    take(with_calls(parser.push(text), false));
  }

  /// The content of messages as the call that it is.
  std::vector<text::AnswerEvent> with_calls(std::vector<text::AnswerEvent> events, bool last) {
    if (!call_parser) return events;
    std::vector<text::AnswerEvent> all;
    const auto add = [&](std::vector<text::AnswerEvent> more) {
      std::move(more.begin(), more.end(), std::back_inserter(all));
    };
    for (text::AnswerEvent& event : events) {
      if (event.kind == text::AnswerEvent::Kind::content)
        add(call_parser->push(event.text));
      else
        all.push_back(std::move(event));
    }
    if (last) add(call_parser->finish());
    return all;
  }

  /// Tokens count for what the next text they bring is: marks of thoughts bring none.
  void count_thoughts(const std::vector<text::AnswerEvent>& events) {
    if (events.empty()) return;
    in_thought = std::all_of(events.begin(), events.end(), [](const text::AnswerEvent& event) {
      return event.kind == text::AnswerEvent::Kind::reasoning;
    });
    const std::int64_t tokens = std::exchange(uncounted, 0);
    if (in_thought) reasoning_tokens += tokens;
  }

  void tell_prompt() {
    if (prompt != nullptr) on_event(Prompted{std::exchange(prompt, nullptr)});
  }

  /// What the parser made of more text.
  void take(const std::vector<text::AnswerEvent>& events) {
    using Kind = text::AnswerEvent::Kind;
    tell_prompt();
    count_thoughts(events);
    Delta delta;
    delta.choice = index;
    std::vector<CallPiece>& calls = delta.tool_calls;
    for (const text::AnswerEvent& event : events) {
      if (enough) break;
      if (event.kind == Kind::content) delta.content += event.text;
      if (event.kind == Kind::reasoning) delta.reasoning += event.text;
      if (event.kind == Kind::content || event.kind == Kind::reasoning) continue;
      if (calls.empty() || calls.back().index != event.call) calls.push_back({event.call, {}, {}});
      if (event.kind == Kind::call_begin) calls.back().name = event.text;
      if (event.kind == Kind::call_arguments) calls.back().arguments += event.text;
      calls.back().begins |= event.kind == Kind::call_begin;
      calls.back().ends |= event.kind == Kind::call_end;
      enough = one_call && event.kind == Kind::call_end;
    }
    called = (call_parser ? call_parser->calls() : parser.calls()) > 0;
    delta.logprobs = std::move(pending);
    pending.clear();
    if (!delta.empty()) on_event(std::move(delta));
  }

  void on_done(engine::Result result) {
    if (!result.status.ok()) prompt = nullptr;
    take(with_calls(parser.finish(), true));
    if (in_thought) reasoning_tokens += uncounted;
    Ended ended;
    ended.finished = {index, reason_of(result, called), result.status, result.stop};
    ended.reasoning_tokens = reasoning_tokens;
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
  std::optional<text::AnswerParser> call_parser;  // of a call that has to come, where `parser` tells messages apart
  bool called = false, keep_tokens = false, in_thought = false;
  bool one_call = false, enough = false;  // one_call: the first call ends the answer
  std::int64_t uncounted = 0, reasoning_tokens = 0;
  std::shared_ptr<PromptTokens> prompt;  // until it is told
  std::vector<TokenLogprob> pending;
};

/// The tokens that end an answer, ascending.
std::vector<TokenId> end_tokens(const text::Tokenizer& tokenizer, const std::vector<TokenId>& stops) {
  std::vector<TokenId> ids = stops;
  for (TokenId id = 0; id < tokenizer.vocab_size(); ++id)
    if (tokenizer.ends_generation(id)) ids.push_back(id);
  std::sort(ids.begin(), ids.end());
  return ids;
}

/// The tokens that hold one of these texts, ascending. Errors: invalid_argument (no token holds one).
Expected<std::vector<TokenId>> tokens_with(const text::Tokenizer& tokenizer, const std::vector<std::string>& texts) {
  std::vector<TokenId> ids;
  std::vector<bool> found(texts.size());
  for (TokenId id = 0; id < tokenizer.vocab_size(); ++id) {
    const std::string bytes = tokenizer.token_bytes(id, true);
    bool holds = false;
    for (std::size_t i = 0; i < texts.size(); ++i) {
      if (bytes.find(texts[i]) == std::string::npos) continue;
      found[i] = holds = true;
    }
    if (holds) ids.push_back(id);
  }
  for (std::size_t i = 0; i < texts.size(); ++i)
    if (!found[i])
      return error(Code::invalid_argument, "dry_sequence_breakers: no token of this model's vocabulary holds {}",
                   Json(texts[i]).dump(-1, ' ', false, Json::error_handler_t::replace));
  return ids;
}

/// A text that the answer must not have, at a word's beginning and within one.
void ban(const text::Tokenizer& tokenizer, const std::string& words, std::vector<std::vector<TokenId>>& banned) {
  for (const std::string& form : {words, " " + words}) {
    std::vector<TokenId> ids = tokenizer.encode(form, text::Specials::as_text);
    if (!ids.empty() && std::find(banned.begin(), banned.end(), ids) == banned.end()) banned.push_back(std::move(ids));
  }
}

/// What bounds the answer, in this model's tokens.
Status bind_tokens(const text::Tokenizer& tokenizer, const Job& job, engine::Request& request) {
  request.stop_tokens = job.stop_tokens;
  request.min_tokens = job.min_tokens;
  if (job.min_tokens > 0) request.late_tokens = end_tokens(tokenizer, job.stop_tokens);
  for (const std::string& words : job.bad_words) ban(tokenizer, words, request.banned);
  if (job.sampler.dry.multiplier <= 0) return {};
  MR_ASSIGN_OR_RETURN(request.sampler.dry.breakers, tokens_with(tokenizer, job.dry_breakers));
  return {};
}

/// Asks for the log probabilities of the prompt's tokens, which the engine tells of before anything else.
Status ask_for_prompt(const engine::Engine& engine, const Job& job, const std::shared_ptr<Choice>& state,
                      engine::Request& request, WorkGrant* grant) {
  constexpr std::uint64_t kBytes = 256;  // of a candidate, its place in the reply included
  const auto top = static_cast<std::uint64_t>(job.prompt_logprobs);
  if (grant != nullptr && !grant->take(request.prompt.size() * (1 + top) * kBytes))
    return error(Code::out_of_budget, "prompt_logprobs: they take more memory than requests may hold together");
  const text::Tokenizer& tokenizer = engine.tokenizer();
  const auto tokens = std::make_shared<PromptTokens>(request.prompt.size());
  for (std::size_t i = 0; i < tokens->size(); ++i)
    (*tokens)[i].chosen = candidate(tokenizer, request.prompt[i], std::numeric_limits<float>::quiet_NaN());
  state->prompt = tokens;
  request.logits_of_prompt = true;
  request.on_logits = [tokens, &tokenizer, most = job.prompt_logprobs](std::int64_t position,
                                                                       std::span<const float> logits) {
    const auto next = static_cast<std::size_t>(position) + 1;
    if (next >= tokens->size() || logits.empty()) return;
    TokenLogprob& one = (*tokens)[next];
    std::vector<engine::TokenChoice::Candidate> likeliest;
    const engine::TokenChoice choice = engine::token_choice(logits, one.chosen.id, most, likeliest);
    one.chosen.log_probability = choice.log_probability;
    const float own = logits[static_cast<std::size_t>(one.chosen.id)];
    one.rank = 1 + std::count_if(logits.begin(), logits.end(), [own](float other) { return other > own; });
    one.likeliest.clear();
    for (const auto& other : choice.likeliest)
      one.likeliest.push_back(candidate(tokenizer, other.id, other.log_probability));
  };
  return {};
}

}  // namespace

/// Errors: invalid_argument (there is no such adapter, or both say which).
static Expected<std::optional<kv::AdapterMix>> mix_of(const engine::Engine& engine, const Job& job) {
  if (job.adapter.empty()) return job.adapters;
  if (job.adapters)
    return error(Code::invalid_argument, "lora: the model's name says already which adapter it is; leave one out");
  bool found = false;
  kv::AdapterMix mix;
  for (const engine::AdapterState& one : engine.adapters()) {
    const auto index = static_cast<std::int32_t>(&one - engine.adapters().data());
    if (one.of_model || one.name == job.adapter) mix.push_back({index, one.alone});
    found = found || one.name == job.adapter;
  }
  if (!found) return error(Code::not_found, "model: it has no adapter '{}'", job.adapter);
  return std::optional(std::move(mix));
}

Expected<Prepared> prepare(const engine::Engine& engine, const Job& job, const text::Prompt& prompt,
                           std::vector<engine::PlacedPicture> pictures, int choice, std::function<void(Event)> on_event,
                           std::function<void(Ended)> on_end, WorkGrant* grant) {
  text::AnswerForm form = answer_form(job, prompt), call_form;
  const bool in_messages = must_call_tool(job) && prompt.format.calls != nullptr && prompt.format.calls->channels;
  if (in_messages) {
    call_form = std::exchange(form, message_form(prompt));
    call_form.thoughts = nullptr;
  }
  const auto state = std::make_shared<Choice>(choice, form, in_messages ? &call_form : nullptr);
  const text::Tokenizer* const tokenizer = &engine.tokenizer();
  Prepared prepared;
  engine::Request& request = prepared.request;
  request.prompt = prompt.ids;
  request.pictures = std::move(pictures);
  request.priority = job.priority;
  MR_ASSIGN_OR_RETURN(request.adapters, mix_of(engine, job));
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
  MR_RETURN_IF_ERROR(bind_tokens(*tokenizer, job, request));
  if (job.prompt_logprobs >= 0 && choice == 0) MR_RETURN_IF_ERROR(ask_for_prompt(engine, job, state, request, grant));
  state->one_call = !job.parallel_calls && form.calls != nullptr && form.may_call;
  if (state->one_call) request.enough = [state] { return state->enough; };
  MR_ASSIGN_OR_RETURN(request.constraint, make_constraint(engine, job, prompt, grant));
  request.on_text = [state](std::string_view text, std::span<const TokenId> tokens) {
    state->on_text(text, std::ssize(tokens));
  };
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
  prepared.on_done = [state](engine::Result result) {
    if (carry_on("an answer", [&] { state->on_done(std::move(result)); })) return;
    Ended ended;
    ended.finished = {state->index, "error", Status(Code::unavailable, "out of memory"), {}};
    state->on_end(std::move(ended));
  };
  return prepared;
}

}  // namespace millrace::generate
