// OpenAI's responses, without state: request bodies into Jobs, answers and stream events out of what a Run gives.
// Pure functions, but for the Stream, which one thread feeds in order.
#pragma once

#include <string>

#include "app/generate/job.h"
#include "app/generate/run.h"
#include "app/openai/response.h"

namespace millrace::openai {

/// POST /v1/responses. Errors: invalid_argument, unsupported (previous_response_id: nothing is kept).
Expected<Job> parse_response(const Json& body);

Json response_body(const Envelope& envelope, const Job& job, const generate::Answer& answer,
                   const generate::Totals& totals);

/// One answer as server-sent events.
class ResponseStream {
 public:
  explicit ResponseStream(Job job);
  std::string begin();
  std::string event(const generate::Event& event);
  std::string end(const generate::Totals& totals);

 private:
  std::string sse(const char* type, const Json& data);
  std::string open_text();
  std::string close_text();

  const Job job_;
  const Envelope envelope_;
  generate::Answer answer_;
  std::string text_id_;
  std::string event_of_call(const generate::CallPiece& piece);
  std::string event_of_custom_call(const generate::CallPiece& piece);

  Json call_;                 // the function_call or custom_tool_call that is open
  std::string custom_input_;  // of a custom_tool_call, as the JSON it comes in
  int sequence_ = 0, output_index_ = 0;
  bool text_open_ = false, failed_ = false;
  Json output_ = Json::array();
};

}  // namespace millrace::openai
