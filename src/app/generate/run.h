// A running Job: its requests in a Service, and their results as events for another thread.
// Thread-safety: one thread calls; the engine's thread produces events. The destructor cancels unfinished requests.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "app/generate/call.h"
#include "app/generate/job.h"
#include "base/work_grant.h"
#include "engine/model_manager.h"
#include "engine/pictures.h"

namespace millrace::generate {

struct TokenLogprob {
  struct Candidate {
    std::string bytes;
    text::TokenId id = 0;
    float log_probability = 0;
  };
  Candidate chosen;
  std::vector<Candidate> likeliest;
  std::int64_t rank = 0;  // of the chosen one; 0: not counted
};
/// Each token of a prompt. Nothing comes before the first, whose log probability is not a number.
using PromptTokens = std::vector<TokenLogprob>;

/// Prompt tokens done of total.
struct Progress {
  std::int64_t done = 0, total = 0;
};
/// More of an answer.
struct Delta {
  int choice = 0;
  std::string content, reasoning;
  std::vector<CallPiece> tool_calls;
  std::vector<TokenLogprob> logprobs;
  bool empty() const { return content.empty() && reasoning.empty() && tool_calls.empty() && logprobs.empty(); }
};
/// The end of an answer. reason: "stop", "length", "tool_calls", "cancelled", or "error" with its status.
struct Finished {
  int choice = 0;
  std::string reason;
  Status status;
  std::string stop = {};  // the stop string that ended it; empty: none did
};
/// Before anything of the answers, where the job wants it.
struct Prompted {
  std::shared_ptr<const PromptTokens> tokens;
};
using Event = std::variant<Progress, Delta, Finished, Prompted>;

/// Tokens and seconds of all choices together, complete when done().
struct Totals {
  std::int64_t prompt_tokens = 0, cached_tokens = 0, completion_tokens = 0;
  std::int64_t reasoning_tokens = 0;  // of the completion's
  double prompt_seconds = 0, decode_seconds = 0;
};

/// The progress of a Run, for logs and statistics. Written by the thread that takes the Run's events.
struct Meter {
  Totals totals;
  std::optional<std::chrono::steady_clock::time_point> first_token;  // when the first piece of an answer was taken
  std::int64_t pieces = 0;                                           // of answers that were taken
  std::string reason;                                                // of the last answer that ended; empty: none did
  std::vector<text::TokenId> tokens;                                 // of that answer, where the job wanted them kept
};

class Run {
 public:
  /// `client`: for fairness among clients. `grant` (may be null) is asked for the memory that making the prompt takes,
  /// and whether it is still wanted. Errors: invalid_argument (the prompt does not fit, or cannot be made),
  /// unsupported, unavailable, out_of_budget, cancelled.
  static Expected<std::unique_ptr<Run>> start(engine::ModelManager::Use model, const Job& job,
                                              const std::string& client, WorkGrant* grant = nullptr);
  ~Run();
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  /// The next event, or none if the time is over. REQUIRES: not done().
  std::optional<Event> next(std::chrono::milliseconds time);
  /// Makes next() wait for many pieces or the end, so that a caller without a stream is not woken for each piece.
  void take_whole();
  /// Whether every choice has finished and every event was taken.
  bool done() const { return open_ == 0; }
  const Totals& totals() const { return meter_->totals; }
  std::shared_ptr<const Meter> meter() const { return meter_; }
  const std::vector<text::TokenId>& prompt() const { return prompt_; }
  const engine::ModelManager::Loaded& model() const { return *model_; }
  bool loaded_now() const { return model_.loaded_now(); }

 private:
  struct Queue;
  explicit Run(engine::ModelManager::Use model) : model_(std::move(model)) {}
  Status submit(const Job& job, const text::Prompt& prompt, const std::vector<engine::PlacedPicture>& pictures,
                int choice, const std::string& client, WorkGrant* grant);

  engine::ModelManager::Use model_;
  std::vector<text::TokenId> prompt_;
  std::shared_ptr<Queue> queue_;
  std::vector<engine::Service::Id> ids_;
  std::shared_ptr<Meter> meter_ = std::make_shared<Meter>();
  int open_ = 0;
};

/// All of an answer.
struct Answer {
  std::string content, reasoning, reason, stop;
  std::vector<ToolCall> tool_calls;
  std::vector<TokenLogprob> logprobs;
  std::shared_ptr<const PromptTokens> prompt;  // all answers' own; null: not asked for

  void add(Delta delta);

 private:
  CallJoiner calls_;
};
/// Takes all events. `gone` is polled: true cancels. The memory of the answers is charged to `grant` (may be null).
/// Errors: those of the run; cancelled, out_of_budget.
Expected<std::vector<Answer>> collect(Run& run, int choices, const std::function<bool()>& gone,
                                      WorkGrant* grant = nullptr);

}  // namespace millrace::generate
