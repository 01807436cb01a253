// OpenAI's batch files, a JSON object a line. A request:
//   {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {...}}
// and its answer:
//   {"id": "batch_req_...", "custom_id": "a", "error": null,
//    "response": {"status_code": 200, "request_id": "req_...", "body": {...}}}
// Two shorter forms are chats whose custom_id is "line-N" where they have none: {"prompt": "...", "max_tokens": 50} or
// {"messages": [...]}, with the fields of a chat's body beside it, and a line that is no JSON object, whose whole text
// is the prompt. A body that the API refuses has a status_code of its own and OpenAI's error as the body; a line that
// is no request has no response but {"error": {"code", "message", "line"}}. Source: OpenAI's documentation of the batch
// API. Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "app/generate/run.h"
#include "app/openai/request.h"

namespace millrace::batch {

using generate::Json;

enum class Endpoint { chat, completions, responses, embeddings };

struct Request {
  std::string custom_id;
  Endpoint endpoint = Endpoint::chat;
  std::string model;                // what the body asks for; empty: nothing
  std::vector<generate::Job> jobs;  // one a prompt; all with the same n. None of embeddings
  openai::EmbeddingJob embeddings;
};

/// Why a line is not worked on.
struct Refusal {
  std::string custom_id;  // empty: it has none
  std::string code;       // of a line that is no request; empty: the body is at fault, and `status` says why
  Status status;
};

/// The custom_id of line `number`; empty where it has none: it is broken JSON, or a full request without one.
std::string custom_id_of(std::string_view line, std::int64_t number);

/// Reads a line; true: into `request`, false: into `refusal`. The body may ask for any model, or for none.
bool parse_request(std::string_view line, std::int64_t number, Request& request, Refusal& refusal);

/// Answers: those of the jobs in order, each job's n side by side.
std::string answer_line(const Request& request, const std::vector<generate::Answer>& answers,
                        const generate::Totals& totals, const std::string& model);
/// Vectors in the order of the inputs.
std::string embeddings_line(const Request& request, const std::vector<std::vector<float>>& vectors,
                            std::int64_t prompt_tokens, const std::string& model);
/// A body that failed, before or while it was worked on.
std::string failure_line(const std::string& custom_id, const Status& status);
/// A line that is no request. `custom_id` may be empty.
std::string refusal_line(const std::string& custom_id, std::string_view code, const Status& status,
                         std::int64_t line_number);

/// What a line of an output file says it answers.
struct Answered {
  std::string custom_id;         // empty: a line without one, whose number is
  std::int64_t line_number = 0;  // this
};
/// Errors: corrupt (no line of a batch's output).
Expected<Answered> parse_answered(std::string_view line);

}  // namespace millrace::batch
