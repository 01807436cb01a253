#include "app/generate/run.h"

#include <algorithm>
#include <deque>
#include <utility>

#include "app/generate/choice.h"
#include "app/generate/prompt.h"
#include "base/carry_on.h"
#include "base/mutex.h"

namespace millrace::generate {

namespace {

/// What a client may leave unread of an answer: minutes of text, and of log probabilities some seconds.
constexpr std::uint64_t kMostUnread = 1u << 20;
constexpr std::size_t kPiecesAtOnce = 64;  // of whole answers

/// What a delta adds to an answer, its place in the reply's JSON included.
std::uint64_t bytes_of(const Delta& delta) {
  constexpr std::uint64_t kCandidate = 256;
  std::uint64_t bytes = 4 * (delta.content.size() + delta.reasoning.size());
  for (const TokenLogprob& one : delta.logprobs) bytes += kCandidate * (1 + one.likeliest.size());
  for (const CallPiece& piece : delta.tool_calls) bytes += kCandidate + 4 * piece.arguments.size();
  return bytes;
}

std::uint64_t bytes_of(const Event& event) {
  const auto* delta = std::get_if<Delta>(&event);
  return sizeof(Event) + (delta != nullptr ? bytes_of(*delta) : 0);
}

}  // namespace

/// What the engine's thread has to say. It may outlive the Run, whose requests then end unheard.
struct Run::Queue {
  Mutex mutex;
  CondVar came;
  std::deque<Event> events MR_GUARDED_BY(mutex);
  std::deque<Ended> ended MR_GUARDED_BY(mutex);  // one for each Finished event
  std::uint64_t unread MR_GUARDED_BY(mutex) = 0;
  bool lost MR_GUARDED_BY(mutex) = false;       // an event had no room any more
  bool no_memory MR_GUARDED_BY(mutex) = false;  // as the process had none
  bool whole MR_GUARDED_BY(mutex) = false;
  bool taking MR_GUARDED_BY(mutex) = false;  // all events that there are

  bool ready() const MR_REQUIRES(mutex) {
    return lost || !ended.empty() || events.size() >= (whole ? kPiecesAtOnce : 1);
  }
  void push(Event event) {
    const MutexLock lock(mutex);
    unread += bytes_of(event);
    lost = lost || unread > kMostUnread;
    if (!lost) keep([&]() MR_REQUIRES(mutex) { events.push_back(std::move(event)); });
    if (ready()) came.notify_one();
  }
  void end(Ended one) {
    const MutexLock lock(mutex);
    keep([&]() MR_REQUIRES(mutex) {
      events.emplace_back(one.finished);
      ended.push_back(std::move(one));
    });
    came.notify_one();
  }
  /// The reader hears of the end, whatever could not be kept.
  template <typename Add>
  void keep(const Add& add) MR_REQUIRES(mutex) {
    if (!carry_on("an answer", add)) lost = no_memory = true;
  }
};

Expected<std::unique_ptr<Run>> Run::start(engine::ModelManager::Use model, const Job& job, const std::string& client,
                                          WorkGrant* grant) {
  std::unique_ptr<Run> run(new Run(std::move(model)));
  const engine::Engine& engine = run->model_->service->engine();
  MR_ASSIGN_OR_RETURN(Prompt prompt, make_prompt(engine, job, grant));
  MR_ASSIGN_OR_RETURN(const auto pictures, see_pictures(engine, job.pictures, prompt, grant));
  run->queue_ = std::make_shared<Queue>();
  for (int choice = 0; choice < job.n; ++choice)
    MR_RETURN_IF_ERROR(run->submit(job, prompt, pictures, choice, client, grant));
  run->prompt_ = std::move(prompt.ids);
  run->meter_->totals.prompt_tokens = std::ssize(run->prompt_);
  return run;
}

Status Run::submit(const Job& job, const text::Prompt& prompt, const std::vector<engine::PlacedPicture>& pictures,
                   int choice, const std::string& client, WorkGrant* grant) {
  const std::shared_ptr<engine::Service>& service = model_->service;
  const auto on_event = [queue = queue_](Event event) { queue->push(std::move(event)); };
  const auto on_end = [queue = queue_](Ended ended) { queue->end(std::move(ended)); };
  MR_ASSIGN_OR_RETURN(Prepared prepared,
                      prepare(service->engine(), job, prompt, pictures, choice, on_event, on_end, grant));
  prepared.request.client = client;
  MR_ASSIGN_OR_RETURN(const auto id, service->submit(std::move(prepared.request), std::move(prepared.on_done)));
  ids_.push_back(id);
  ++open_;
  return {};
}

Run::~Run() {
  for (const engine::Service::Id id : ids_) model_->service->cancel(id);
}

void Run::take_whole() {
  const MutexLock lock(queue_->mutex);
  queue_->whole = true;
}

std::optional<Event> Run::next(std::chrono::milliseconds time) {
  const MutexLock lock(queue_->mutex);
  if (!queue_->taking)
    queue_->came.wait_for(queue_->mutex, time, [this]() MR_REQUIRES(queue_->mutex) { return queue_->ready(); });
  if (queue_->lost) {
    for (const engine::Service::Id id : ids_) model_->service->cancel(id);
    --open_;
    const Status slow = queue_->no_memory ? Status(Code::unavailable, "out of memory")
                                          : error(Code::unavailable, "the answer was read too slowly, and is cut here");
    meter_->reason = slow.message();
    return Finished{open_, "error", slow};
  }
  if (queue_->events.empty()) return std::nullopt;
  Event event = std::move(queue_->events.front());
  queue_->events.pop_front();
  queue_->taking = !queue_->events.empty();
  queue_->unread -= std::min(queue_->unread, bytes_of(event));
  if (std::holds_alternative<Delta>(event)) {
    if (!meter_->first_token) meter_->first_token = std::chrono::steady_clock::now();
    ++meter_->pieces;
  }
  if (const auto* const finished = std::get_if<Finished>(&event); finished != nullptr) {
    Totals& totals = meter_->totals;
    meter_->reason = finished->status.ok() ? finished->reason : finished->status.message();
    Ended ended = std::move(queue_->ended.front());
    queue_->ended.pop_front();
    totals.prompt_tokens = ended.result.prompt_tokens;
    // Choices share their prompt: what none of them computed was there before.
    const bool first = open_ == static_cast<int>(ids_.size());
    totals.cached_tokens =
        first ? ended.result.cached_tokens : std::min(totals.cached_tokens, ended.result.cached_tokens);
    totals.completion_tokens += ended.completion_tokens;
    totals.reasoning_tokens += ended.reasoning_tokens;
    meter_->tokens = std::move(ended.result.tokens);
    totals.prompt_seconds = std::max(totals.prompt_seconds, ended.result.prompt_seconds);
    totals.decode_seconds = std::max(totals.decode_seconds, ended.result.decode_seconds);
    --open_;
  }
  return event;
}

void Answer::add(Delta delta) {
  content += delta.content;
  reasoning += delta.reasoning;
  std::vector<ToolCall> whole = calls_.add(delta.tool_calls);
  std::move(whole.begin(), whole.end(), std::back_inserter(tool_calls));
  std::move(delta.logprobs.begin(), delta.logprobs.end(), std::back_inserter(logprobs));
}

Expected<std::vector<Answer>> collect(Run& run, int choices, const std::function<bool()>& gone, WorkGrant* grant) {
  std::vector<Answer> answers(static_cast<std::size_t>(choices));
  constexpr std::chrono::milliseconds kQuestion(100);
  auto next_question = std::chrono::steady_clock::now() + kQuestion;
  while (!run.done()) {
    std::optional<Event> event = run.next(kQuestion);
    // Asked also where tokens come faster than that: nobody else would notice.
    if (const auto now = std::chrono::steady_clock::now(); now >= next_question) {
      if (gone()) return error(Code::cancelled, "the client went away");
      next_question = now + kQuestion;
    }
    if (!event) continue;
    if (auto* delta = std::get_if<Delta>(&*event)) {
      if (grant != nullptr && !grant->take(bytes_of(*delta)))
        return error(Code::out_of_budget, "the answer takes more memory than requests may hold together");
      answers[static_cast<std::size_t>(delta->choice)].add(std::move(*delta));
      run.take_whole();  // from now on: when the first piece came is told
    } else if (auto* finished = std::get_if<Finished>(&*event)) {
      if (!finished->status.ok()) return finished->status;
      Answer& answer = answers[static_cast<std::size_t>(finished->choice)];
      answer.reason = finished->reason;
      answer.stop = finished->stop;
    } else if (auto* prompted = std::get_if<Prompted>(&*event)) {
      for (Answer& answer : answers) answer.prompt = prompted->tokens;
    }
  }
  return answers;
}

}  // namespace millrace::generate
