// Builds OpenAI's response bodies from the events of a Run. Pure functions.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "app/generate/job.h"
#include "app/generate/run.h"

namespace millrace::openai {

using generate::Job;
using generate::Json;

/// The fields that all bodies of one answer share.
struct Envelope {
  std::string id;  // "chatcmpl-..."
  std::int64_t created = 0;
  std::string model;
};
Envelope make_envelope(const std::string& prefix, const std::string& model);
/// `prefix` and 24 random letters and digits.
std::string random_id(const std::string& prefix);

/// The text that a custom tool is called with.
std::string custom_input(const generate::ToolCall& call);

/// {"content": [...], "refusal": null}
Json chat_logprobs(const std::vector<generate::TokenLogprob>& logprobs);
Json usage(const generate::Totals& totals);
Json timings(const generate::Totals& totals);

Json chat_body(const Envelope& envelope, const Job& job, const std::vector<generate::Answer>& answers,
               const generate::Totals& totals);
/// Calls within a stream of chat completions. Those of custom tools take a text, which comes as a part of JSON here:
/// they are told when they are whole. One thread.
class ChatCalls {
 public:
  /// The delta's tool_calls; an empty list where there is nothing to tell yet.
  Json of(const Job& job, const generate::Delta& delta);

 private:
  std::map<std::pair<int, int>, generate::ToolCall> open_;  // by choice and index
};
/// The first chunk of a choice, which names the role; one for a delta; the last, with the finish reason.
Json chat_first_chunk(const Envelope& envelope, int choice);
/// The first piece of a tool call has its id and name.
Json chat_chunk(const Envelope& envelope, const Job& job, const generate::Delta& delta, ChatCalls& calls);
Json chat_last_chunk(const Envelope& envelope, const generate::Finished& finished);
/// choices [] with usage or progress.
Json chat_empty_chunk(const Envelope& envelope);

/// What an echo begins with where the prompt came as tokens: their text becomes the job's prompt.
void write_prompt(const text::Tokenizer& tokenizer, Job& job);
/// The prompt's tokens in vLLM's form: a list of {id: {"logprob", "rank", "decoded_token"}}, null for the first.
Json prompt_logprobs(const generate::PromptTokens& tokens, int most);
/// The prompt's tokens in the form of an echo.
std::vector<generate::TokenLogprob> echoed_tokens(const Job& job, const generate::PromptTokens& tokens);

/// `index`: of the answer among those of all prompts.
Json completion_choice(const Job& job, const generate::Answer& answer, int index);
Json completion_chunk(const Envelope& envelope, int index, const std::string& text, const Json& logprobs,
                      const Json& finish_reason);
Json completion_body(const Envelope& envelope, Json choices, const generate::Totals& totals);
/// `offset`: characters of the text before them; it moves on.
Json completion_logprobs(const std::vector<generate::TokenLogprob>& logprobs, std::size_t& offset);

/// {"error": {message, type, param, code}}; param is taken from "param: ..." in the message.
Json error_body(int http_status, const Status& status);
/// The HTTP status for a Status.
int http_status(const Status& status);

/// RFC 4648, with padding.
std::string base64(const void* data, std::size_t bytes);

}  // namespace millrace::openai
