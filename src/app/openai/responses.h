// OpenAI's responses: request bodies into Jobs, answers and stream events out of what a Run gives. What is kept of them
// between requests is the server's matter. Pure functions, but for the Stream, which one thread feeds in order.
#pragma once

#include <string>

#include "app/generate/job.h"
#include "app/generate/run.h"
#include "app/openai/response.h"

namespace millrace::openai {

/// What a request says of others, and what its response says of that.
struct ResponseLink {
  std::string previous;  // the response it goes on from; empty: none
  bool store = true;     // whether others may go on from it
  /// Sixteen hexadecimal digits by which a balancer keeps the conversation on one server, part of the response's id, by
  /// which it finds the server again; empty: there is none.
  std::string place = {};
  Json asked = Json::object();  // what the response repeats of its request: instructions, tools, metadata and so on
};
/// "resp_", and its place.
std::string id_prefix(const ResponseLink& link);
/// Errors: invalid_argument (a field of a wrong kind, or that means something that is not done here).
Expected<ResponseLink> parse_link(const Json& body);

/// A request's input as a list of items. Errors: invalid_argument.
Expected<Json> input_items(const Json& body);

/// POST /v1/responses. `earlier`: input and output items of the responses that it goes on from, in their order.
Expected<Job> parse_response(const Json& body, const Json& earlier = Json::array());

Json response_body(const Envelope& envelope, const Job& job, const ResponseLink& link, const generate::Answer& answer,
                   const generate::Totals& totals);

/// One answer as server-sent events.
class ResponseStream {
 public:
  ResponseStream(Job job, ResponseLink link);
  std::string begin();
  std::string event(const generate::Event& event);
  std::string end(const generate::Totals& totals);
  /// As end() has told it; null before, and where the answer failed.
  const Json& response() const { return response_; }

 private:
  std::string sse(const char* type, const Json& data);
  std::string open_text();
  std::string close_text();

  const Job job_;
  const ResponseLink link_;
  const Envelope envelope_;
  generate::Answer answer_;
  std::string text_id_;
  std::string event_of_call(const generate::CallPiece& piece);
  std::string event_of_custom_call(const generate::CallPiece& piece);

  Json call_;                 // the function_call or custom_tool_call that is open
  std::string custom_input_;  // of a custom_tool_call, as the JSON it comes in
  int sequence_ = 0, output_index_ = 0;
  bool text_open_ = false, failed_ = false;
  Json output_ = Json::array(), response_;
};

}  // namespace millrace::openai
