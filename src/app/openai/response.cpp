#include "app/openai/response.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <random>

namespace millrace::openai {
namespace {

using generate::Answer;
using generate::Delta;
using generate::Finished;
using generate::TokenLogprob;
using generate::Totals;

/// Bytes that may be part of a character, as JSON can hold them.
std::string as_text(const std::string& bytes) {
  return Json::parse(Json(bytes).dump(-1, ' ', false, Json::error_handler_t::replace));
}

Json candidate(const TokenLogprob::Candidate& one) {
  Json bytes = Json::array();
  for (const char byte : one.bytes) bytes.push_back(static_cast<unsigned char>(byte));
  return {{"token", as_text(one.bytes)}, {"logprob", one.log_probability}, {"bytes", std::move(bytes)}};
}

bool is_custom(const Job& job, const std::string& tool) {
  const auto known = job.client_tools.find(tool);
  return known != job.client_tools.end() && known->second.custom;
}

Json call_json(const Job& job, const generate::ToolCall& call) {
  if (is_custom(job, call.name))
    return {{"id", random_id("call_")},
            {"type", "custom"},
            {"custom", {{"name", call.name}, {"input", custom_input(call)}}}};
  return {{"id", random_id("call_")},
          {"type", "function"},
          {"function", {{"name", call.name}, {"arguments", call.arguments}}}};
}

Json chunk(const Envelope& envelope, const char* object, Json choices) {
  return {{"id", envelope.id},
          {"object", object},
          {"created", envelope.created},
          {"model", envelope.model},
          {"system_fingerprint", "millrace"},
          {"choices", std::move(choices)}};
}

Json chat_choice(int index, Json delta, Json reason, Json logprobs = nullptr) {
  return Json::array({{{"index", index},
                       {"delta", std::move(delta)},
                       {"logprobs", std::move(logprobs)},
                       {"finish_reason", std::move(reason)}}});
}

double rate(std::int64_t tokens, double seconds) { return seconds > 0 ? static_cast<double>(tokens) / seconds : 0; }

}  // namespace

std::string custom_input(const generate::ToolCall& call) {
  const Json input = call.object().value("input", Json());
  return input.is_string() ? input.get<std::string>() : call.arguments;
}

Json chat_logprobs(const std::vector<TokenLogprob>& logprobs) {
  Json content = Json::array();
  for (const TokenLogprob& one : logprobs) {
    Json entry = candidate(one.chosen);
    entry["top_logprobs"] = Json::array();
    for (const auto& other : one.likeliest) entry["top_logprobs"].push_back(candidate(other));
    content.push_back(std::move(entry));
  }
  return {{"content", std::move(content)}, {"refusal", nullptr}};
}

std::string random_id(const std::string& prefix) {
  static constexpr std::string_view letters = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
  thread_local std::mt19937_64 random{std::random_device{}()};
  std::string id = prefix;
  for (int i = 0; i < 24; ++i) id += letters[random() % letters.size()];
  return id;
}

Envelope make_envelope(const std::string& prefix, const std::string& model) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return {random_id(prefix), std::chrono::duration_cast<std::chrono::seconds>(now).count(), model};
}

Json usage(const Totals& totals) {
  return {{"prompt_tokens", totals.prompt_tokens},
          {"completion_tokens", totals.completion_tokens},
          {"total_tokens", totals.prompt_tokens + totals.completion_tokens},
          {"prompt_tokens_details", {{"cached_tokens", totals.cached_tokens}}},
          {"completion_tokens_details", {{"reasoning_tokens", totals.reasoning_tokens}}}};
}

Json timings(const Totals& totals) {
  const std::int64_t computed = totals.prompt_tokens - totals.cached_tokens;
  return {{"cache_n", totals.cached_tokens},
          {"prompt_n", computed},
          {"prompt_ms", totals.prompt_seconds * 1e3},
          {"prompt_per_second", rate(computed, totals.prompt_seconds)},
          {"predicted_n", totals.completion_tokens},
          {"predicted_ms", totals.decode_seconds * 1e3},
          {"predicted_per_second", rate(totals.completion_tokens, totals.decode_seconds)}};
}

Json chat_body(const Envelope& envelope, const Job& job, const std::vector<Answer>& answers, const Totals& totals) {
  Json choices = Json::array();
  for (std::size_t i = 0; i < answers.size(); ++i) {
    const Answer& answer = answers[i];
    Json message = {{"role", "assistant"}, {"content", answer.content}, {"refusal", nullptr}};
    if (answer.content.empty() && !answer.tool_calls.empty()) message["content"] = nullptr;
    if (!answer.reasoning.empty()) message["reasoning_content"] = answer.reasoning;
    for (const auto& call : answer.tool_calls) message["tool_calls"].push_back(call_json(job, call));
    choices.push_back({{"index", i},
                       {"message", std::move(message)},
                       {"logprobs", job.logprobs ? chat_logprobs(answer.logprobs) : Json()},
                       {"finish_reason", answer.reason}});
  }
  Json body = chunk(envelope, "chat.completion", std::move(choices));
  if (job.told_prompt_logprobs >= 0 && answers.front().prompt != nullptr)
    body["prompt_logprobs"] = prompt_logprobs(*answers.front().prompt, job.told_prompt_logprobs);
  body["usage"] = usage(totals);
  body["timings"] = timings(totals);
  return body;
}

Json chat_first_chunk(const Envelope& envelope, int choice) {
  return chunk(envelope, "chat.completion.chunk",
               chat_choice(choice, {{"role", "assistant"}, {"content", ""}}, nullptr));
}

Json ChatCalls::of(const Job& job, const Delta& delta) {
  Json list = Json::array();
  for (const auto& piece : delta.tool_calls) {
    const std::pair place{delta.choice, piece.index};
    if (piece.begins && is_custom(job, piece.name)) open_[place].name = piece.name;
    if (const auto open = open_.find(place); open != open_.end()) {
      open->second.arguments += piece.arguments;
      if (!piece.ends) continue;
      Json entry = {{"index", piece.index}};
      entry.update(call_json(job, open->second));
      list.push_back(std::move(entry));
      open_.erase(open);
      continue;
    }
    if (!piece.begins && piece.arguments.empty()) continue;
    Json entry = {{"index", piece.index}};
    if (piece.begins) {
      entry.update(call_json(job, {piece.name, piece.arguments}));
    } else {
      entry["function"] = {{"arguments", piece.arguments}};
    }
    list.push_back(std::move(entry));
  }
  return list;
}

Json chat_chunk(const Envelope& envelope, const Job& job, const Delta& delta, ChatCalls& calls) {
  Json out = Json::object();
  if (!delta.content.empty()) out["content"] = delta.content;
  if (!delta.reasoning.empty()) out["reasoning_content"] = delta.reasoning;
  if (Json list = calls.of(job, delta); !list.empty()) out["tool_calls"] = std::move(list);
  const bool logprobs = job.logprobs && !delta.logprobs.empty();
  return chunk(envelope, "chat.completion.chunk",
               chat_choice(delta.choice, std::move(out), nullptr, logprobs ? chat_logprobs(delta.logprobs) : Json()));
}

Json chat_last_chunk(const Envelope& envelope, const Finished& finished) {
  return chunk(envelope, "chat.completion.chunk", chat_choice(finished.choice, Json::object(), finished.reason));
}

Json chat_empty_chunk(const Envelope& envelope) { return chunk(envelope, "chat.completion.chunk", Json::array()); }

void write_prompt(const text::Tokenizer& tokenizer, Job& job) {
  if (!job.echo || job.prompt_tokens.empty()) return;
  job.prompt.clear();
  for (const text::TokenId id : job.prompt_tokens) job.prompt += tokenizer.token_bytes(id, true);
}

std::vector<TokenLogprob> echoed_tokens(const Job& job, const generate::PromptTokens& prompt) {
  std::vector<TokenLogprob> tokens = prompt;
  std::string all;
  for (const TokenLogprob& one : tokens) all += one.chosen.bytes;
  const auto is_prompt = [&job](std::string_view text) {
    return text == job.prompt || (text.starts_with(' ') && text.substr(1) == job.prompt);
  };
  // A BOS that the model wants before every text was not in the client's, nor was the space that some vocabularies
  // begin a text with.
  const std::size_t first = tokens.empty() ? 0 : tokens.front().chosen.bytes.size();
  if (!tokens.empty() && !is_prompt(all) && is_prompt(std::string_view(all).substr(first))) {
    tokens.erase(tokens.begin());
    all.erase(0, first);
  }
  if (!tokens.empty() && all != job.prompt && is_prompt(all)) tokens.front().chosen.bytes.erase(0, 1);
  // As many of the likeliest as the completion's own tokens have.
  for (TokenLogprob& one : tokens)
    if (std::ssize(one.likeliest) > job.top_logprobs) one.likeliest.resize(static_cast<std::size_t>(job.top_logprobs));
  return tokens;
}

Json prompt_logprobs(const generate::PromptTokens& tokens, int most) {
  Json all = Json::array();
  for (const TokenLogprob& one : tokens) {
    if (std::isnan(one.chosen.log_probability)) {
      all.push_back(nullptr);
      continue;
    }
    Json entry = Json::object();
    const auto add = [&entry](const TokenLogprob::Candidate& token, std::int64_t rank) {
      entry[std::to_string(token.id)] = {
          {"logprob", token.log_probability}, {"rank", rank}, {"decoded_token", as_text(token.bytes)}};
    };
    add(one.chosen, one.rank);
    for (std::size_t i = 0; i < one.likeliest.size() && i < static_cast<std::size_t>(most); ++i)
      if (one.likeliest[i].id != one.chosen.id) add(one.likeliest[i], static_cast<std::int64_t>(i) + 1);
    all.push_back(std::move(entry));
  }
  return all;
}

Json completion_logprobs(const std::vector<TokenLogprob>& logprobs, std::size_t& offset) {
  Json out = {{"tokens", Json::array()},
              {"token_logprobs", Json::array()},
              {"top_logprobs", Json::array()},
              {"text_offset", Json::array()}};
  const auto begins = [](char byte) { return (static_cast<unsigned char>(byte) & 0xc0u) != 0x80u; };
  for (const TokenLogprob& one : logprobs) {
    const std::string& bytes = one.chosen.bytes;
    const bool known = !std::isnan(one.chosen.log_probability);
    out["tokens"].push_back(as_text(bytes));
    out["token_logprobs"].push_back(known ? Json(one.chosen.log_probability) : Json());
    Json top = known ? Json::object() : Json();
    for (const auto& other : one.likeliest) top[as_text(other.bytes)] = other.log_probability;
    out["top_logprobs"].push_back(std::move(top));
    // A token may begin within a character: where that stands in the text.
    const bool within = !bytes.empty() && !begins(bytes.front()) && offset > 0;
    out["text_offset"].push_back(offset - (within ? 1 : 0));
    offset += static_cast<std::size_t>(std::count_if(bytes.begin(), bytes.end(), begins));
  }
  return out;
}

Json completion_choice(const Job& job, const Answer& answer, int index) {
  Json logprobs;
  if (job.logprobs) {
    std::vector<TokenLogprob> tokens;
    if (job.echo && answer.prompt != nullptr) tokens = echoed_tokens(job, *answer.prompt);
    tokens.insert(tokens.end(), answer.logprobs.begin(), answer.logprobs.end());
    std::size_t offset = 0;
    logprobs = completion_logprobs(tokens, offset);
  }
  Json choice = {{"text", (job.echo ? job.prompt : std::string()) + answer.content},
                 {"index", index},
                 {"logprobs", std::move(logprobs)},
                 {"finish_reason", answer.reason}};
  if (job.told_prompt_logprobs >= 0 && answer.prompt != nullptr)
    choice["prompt_logprobs"] = prompt_logprobs(*answer.prompt, job.told_prompt_logprobs);
  return choice;
}

Json completion_chunk(const Envelope& envelope, int index, const std::string& text, const Json& logprobs,
                      const Json& finish_reason) {
  return chunk(
      envelope, "text_completion",
      Json::array({{{"text", text}, {"index", index}, {"logprobs", logprobs}, {"finish_reason", finish_reason}}}));
}

Json completion_body(const Envelope& envelope, Json choices, const Totals& totals) {
  Json body = chunk(envelope, "text_completion", std::move(choices));
  body["usage"] = usage(totals);
  body["timings"] = timings(totals);
  return body;
}

int http_status(const Status& status) {
  switch (status.code()) {
    case Code::invalid_argument:
    case Code::unsupported:
      return 400;
    case Code::not_found:
      return 404;
    case Code::unavailable:
      return 503;
    case Code::cancelled:
      return 499;  // the client has gone: nobody reads it but the log
    default:
      return 500;
  }
}

Json error_body(int http, const Status& status) {
  const std::string& message = status.message();
  Json param;
  const std::size_t colon = message.find(": ");
  const auto is_name = [](char c) { return (c >= 'a' && c <= 'z') || c == '_' || c == '.'; };
  if (http == 400 && colon != std::string::npos &&
      std::all_of(message.begin(), message.begin() + static_cast<std::ptrdiff_t>(colon), is_name))
    param = message.substr(0, colon);
  Json code;
  if (http == 401) code = "invalid_api_key";
  if (http == 404) code = message.starts_with("model ") ? "model_not_found" : "not_found";
  if (http == 405) code = "method_not_allowed";
  if (http == 413) code = "request_too_large";
  if (http == 503) code = "overloaded";
  if (http == 400 && message.find("maximum context length") != std::string::npos) code = "context_length_exceeded";
  if (http == 400 && message.find("Could not process image") != std::string::npos)
    code = message.find("send a JPEG, PNG or WebP") != std::string::npos ? "invalid_image_format" : "image_parse_error";
  const char* type = http == 401   ? "authentication_error"
                     : http == 403 ? "permission_error"
                     : http == 503 ? "overloaded_error"
                     : http >= 500 ? "server_error"
                                   : "invalid_request_error";
  return {{"error", {{"message", message}, {"type", type}, {"param", std::move(param)}, {"code", std::move(code)}}}};
}

std::string base64(const void* data, std::size_t bytes) {
  static constexpr char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const auto* in = static_cast<const unsigned char*>(data);
  std::string out;
  out.reserve((bytes + 2) / 3 * 4);
  for (std::size_t i = 0; i < bytes; i += 3) {
    const std::size_t left = bytes - i;
    const unsigned group = static_cast<unsigned>(in[i]) << 16 |
                           (left > 1 ? static_cast<unsigned>(in[i + 1]) << 8 : 0u) |
                           (left > 2 ? static_cast<unsigned>(in[i + 2]) : 0u);
    out += letters[group >> 18];
    out += letters[(group >> 12) & 63];
    out += left > 1 ? letters[(group >> 6) & 63] : '=';
    out += left > 2 ? letters[group & 63] : '=';
  }
  return out;
}

}  // namespace millrace::openai
