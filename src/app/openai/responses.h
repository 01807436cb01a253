// OpenAI's responses: request bodies into Jobs, answers and stream events out of what a Run gives. What is kept of them
// between requests is the server's matter. Pure functions, but for the Stream, which one thread feeds in order.
#pragma once

#include <optional>
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

/// What a response says of its tokens.
Json response_usage(const generate::Totals& totals);

/// A summary as a compaction item's encrypted_content, and out of it. None: another server made it.
std::string seal_summary(const std::string& summary);
std::optional<std::string> summary_of(const Json& item);

/// The events of a response that is there already, from behind the one of that number on (-1: all).
std::string replay(const Json& response, int after);

/// Server-sent events of a response, numbered in the order in which they are made. One thread.
class ResponseEvents {
 public:
  /// `after`: events up to this number are left out.
  explicit ResponseEvents(int after = -1) : after_(after) {}
  std::string sse(const char* type, const Json& data);
  /// An item begins, with its first part (null: it has none).
  std::string open(const Json& item, const Json& part);
  std::string more_text(const std::string& text, Json logprobs);
  std::string more_thought(const std::string& text);
  /// The item that is open ends as this.
  std::string close(const Json& item);
  /// Data of the item that is open.
  Json in_item(Json data) const;

 private:
  Json in_part(Json data) const;

  const int after_;
  int next_ = 0, index_ = 0;
  std::string id_;  // of the open item
};

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
  enum class Open { nothing, thought, text };
  std::string open(Open what);
  std::string close();
  std::string event_of_call(const generate::CallPiece& piece);

  const Job job_;
  const ResponseLink link_;
  const Envelope envelope_;
  ResponseEvents events_;
  Open open_ = Open::nothing;
  Json item_;                      // the one that is open, or the call
  std::string text_, reason_;      // of the open item; of the answer's end
  Json logprobs_ = Json::array();  // of the open item
  generate::ToolCall call_;        // that is open
  bool said_ = false, failed_ = false;
  Json output_ = Json::array(), response_;
};

}  // namespace millrace::openai
