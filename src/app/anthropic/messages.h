// Anthropic's messages: request bodies into Jobs, answers and stream events out of what a Run gives.
// Pure functions, but for the Stream, which one thread feeds in order.
#pragma once

#include <string>
#include <vector>

#include "app/generate/job.h"
#include "app/generate/run.h"

namespace millrace::anthropic {

using generate::Job;
using generate::Json;

/// POST /v1/messages, and /count_tokens (where max_tokens may be missing). Errors: invalid_argument.
Expected<Job> parse(const Json& body, bool needs_max_tokens);

Json body(const Job& job, const generate::Answer& answer, const generate::Totals& totals);

/// One answer as server-sent events. The first says how much of the prompt a cache gave, and so waits until the job
/// tells of its progress.
class Stream {
 public:
  Stream(std::string model, std::int64_t prompt_tokens);
  std::string event(const generate::Event& event);
  std::string end(const generate::Totals& totals);

 private:
  std::string begin(std::int64_t cached_tokens);
  std::string open_block(const char* type, Json block);
  std::string close_block();
  std::string delta(Json delta) const;

  const std::string model_;
  const std::int64_t prompt_tokens_;
  std::string open_;  // the type of the block that is open; empty: none
  int index_ = -1;
  std::string reason_, stop_;
  bool begun_ = false, failed_ = false;
};

}  // namespace millrace::anthropic
