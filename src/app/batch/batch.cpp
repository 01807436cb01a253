#include "app/batch/batch.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "app/batch/request.h"
#include "app/generate/choice.h"
#include "app/generate/prompt.h"
#include "app/openai/response.h"
#include "base/log.h"
#include "base/mutex.h"
#include "engine/embed.h"

namespace millrace::batch {
namespace {

using generate::Answer;
using generate::Ended;
using generate::Totals;
using std::chrono::milliseconds;

constexpr int kFailuresInARow = 16;  // of the engine's making: the next would fail too

/// A request on its way. While answers are open the engine's thread writes to them; the last one ends that.
struct Item {
  Request request;
  std::int64_t line_number = 0;
  std::uint64_t line_bytes = 0;
  std::vector<Answer> answers;
  std::vector<std::vector<float>> vectors;  // of embeddings, instead
  std::size_t open = 0;
  bool cancelled = false;  // it gets no line
  Totals totals;
  Status failure;
};

/// Answers that ended, from the engine's thread to ours.
class Finished {
 public:
  struct One {
    std::shared_ptr<Item> item;
    std::size_t answer = 0;
    Ended ended;
  };
  void push(One one) {
    const MutexLock lock(mutex_);
    ended_.push_back(std::move(one));
    came_.notify_one();
  }
  /// Those there are; waits a little for some.
  std::deque<One> take() {
    const MutexLock lock(mutex_);
    came_.wait_for(mutex_, milliseconds(100), [this]() MR_REQUIRES(mutex_) { return !ended_.empty(); });
    return std::exchange(ended_, {});
  }

 private:
  Mutex mutex_;
  CondVar came_;
  std::deque<One> ended_ MR_GUARDED_BY(mutex_);
};

class Worker {
 public:
  Worker(engine::Service& service, LineReader input, const Index& index, Output& output, const Options& options,
         Counts& counts)
      : service_(service),
        input_(std::move(input)),
        index_(index),
        output_(output),
        options_(options),
        counts_(counts) {}

  Status work(const std::atomic<bool>& stop) {
    while (!stop) {
      MR_RETURN_IF_ERROR(fill(stop));
      if (open_ == 0) return output_.sync();
      MR_RETURN_IF_ERROR(take());
      if (options_.on_progress) options_.on_progress(counts_);
    }
    service_.shutdown(milliseconds(0));
    MR_RETURN_IF_ERROR(take());  // what was done before
    MR_RETURN_IF_ERROR(output_.sync());
    return error(Code::cancelled, "stopped");
  }

 private:
  bool has_room() const {
    return open_ < options_.in_flight && (open_ == 0 || open_bytes_ < options_.line_bytes) && !at_end_;
  }

  /// Reads on and starts requests while there is room.
  Status fill(const std::atomic<bool>& stop) {
    while (has_room() && !stop) {
      MR_ASSIGN_OR_RETURN(const auto line, input_.next());
      at_end_ = !line;
      if (!line || line->blank() || index_.is_answered(line->number)) continue;
      MR_RETURN_IF_ERROR(start(*line));
    }
    return {};
  }

  Status start(const Line& line) {
    const auto item = std::make_shared<Item>();
    Refusal refusal;
    if (line.too_long) {
      refusal.code = "line_too_long";
      refusal.status = error(Code::invalid_argument, "the line has more than {} bytes", kMostLineBytes);
    }
    if (line.too_long || !parse_request(line.text, line.number, item->request, refusal)) {
      const std::string answer = refusal.code.empty()
                                     ? failure_line(refusal.custom_id, refusal.status)
                                     : refusal_line(refusal.custom_id, refusal.code, refusal.status, line.number);
      return fail(answer, line.number, refusal.status);
    }
    note_model(item->request.model);
    item->line_number = line.number;
    item->line_bytes = line.text.size();
    const bool embeds = item->request.endpoint == Endpoint::embeddings;
    Status submitted = embeds ? submit_embeddings(item) : submit(item);
    if (submitted.ok() || item->open > 0) return submitted;
    return fail(failure_line(item->request.custom_id, submitted), line.number, submitted);
  }

  /// Asks the engine for every answer of the request, or, where one of them cannot be asked for, for none.
  Status submit(const std::shared_ptr<Item>& item) {
    std::vector<generate::Prepared> prepared;
    std::vector<generate::Job>& jobs = item->request.jobs;
    item->answers.resize(jobs.size() * static_cast<std::size_t>(jobs.front().n));
    for (generate::Job& job : jobs) {
      generate::lay_under(options_.defaults, job);
      MR_ASSIGN_OR_RETURN(const generate::Prompt prompt, generate::make_prompt(service_.engine(), job));
      generate::EngineMemory memory(service_.engine());
      MR_ASSIGN_OR_RETURN(const auto pictures,
                          generate::see_pictures(service_.engine(), job.pictures, prompt, &memory));
      for (int choice = 0; choice < job.n; ++choice) {
        const std::size_t answer = prepared.size();
        const auto on_event = [item, answer](generate::Event event) {
          if (auto* delta = std::get_if<generate::Delta>(&event)) item->answers[answer].add(std::move(*delta));
          if (auto* prompted = std::get_if<generate::Prompted>(&event))
            for (int i = 0; i < item->request.jobs.front().n; ++i)
              item->answers[answer + static_cast<std::size_t>(i)].prompt = prompted->tokens;
        };
        const auto on_end = [item, answer, finished = finished_](Ended ended) {
          finished->push({item, answer, std::move(ended)});
        };
        MR_ASSIGN_OR_RETURN(auto one,
                            generate::prepare(service_.engine(), job, prompt, pictures, choice, on_event, on_end));
        prepared.push_back(std::move(one));
      }
      item->totals.prompt_tokens += std::ssize(prompt.ids);
      job.pictures = {};
      job.messages = job.tools = job.schema = {};  // what the answer's line does not need
      openai::write_prompt(service_.engine().tokenizer(), job);
      job.prompt_tokens = {};
    }
    open_bytes_ += item->line_bytes;
    for (generate::Prepared& one : prepared) {
      ++item->open;
      ++open_;
      // It only refuses once it is shut down, which is done by us alone.
      if (const auto id = service_.submit(std::move(one.request), std::move(one.on_done)); !id.ok()) return id.status();
    }
    return {};
  }

  Status submit_embeddings(const std::shared_ptr<Item>& item) {
    const engine::Engine& engine = service_.engine();
    openai::EmbeddingJob& job = item->request.embeddings;
    const std::int64_t most = engine.model().hyperparameters().model_dim;
    if (job.dimensions > most)
      return error(Code::invalid_argument, "dimensions: this model's embeddings have {}", most);
    std::vector<std::vector<text::TokenId>> inputs = std::exchange(job.tokens, {});
    for (const std::string& text : std::exchange(job.texts, {})) {
      auto ids = engine::embedding_tokens(engine, text, false);
      if (!ids.ok()) return error(ids.status().code(), "input: {}", ids.status().message());
      inputs.push_back(std::move(*ids));
    }
    for (const auto& input : inputs)
      if (std::ssize(input) > engine.context_tokens())
        return error(Code::invalid_argument, "input: {} tokens, but this model's maximum context length is {}",
                     input.size(), engine.context_tokens());
    item->vectors.resize(inputs.size());
    open_bytes_ += item->line_bytes;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      item->totals.prompt_tokens += std::ssize(inputs[i]);
      const auto on_done = [item, i, finished = finished_](engine::Result result) {
        Ended ended{{0, {}, result.status}, {}, 0};
        ended.result = std::move(result);
        finished->push({item, i, std::move(ended)});
      };
      ++item->open;
      ++open_;
      const auto id = service_.submit(engine::embedding_request(engine, std::move(inputs[i]), {}), on_done);
      if (!id.ok()) return id.status();
    }
    return {};
  }

  /// Writes what has finished.
  Status take() {
    for (Finished::One& one : finished_->take()) {
      Item& item = *one.item;
      --open_;
      --item.open;
      Ended& ended = one.ended;
      counts_.answer_tokens += ended.completion_tokens;
      item.totals.completion_tokens += ended.completion_tokens;
      item.totals.prompt_seconds = std::max(item.totals.prompt_seconds, ended.result.prompt_seconds);
      item.totals.decode_seconds = std::max(item.totals.decode_seconds, ended.result.decode_seconds);
      if (item.request.endpoint == Endpoint::embeddings)
        item.vectors[one.answer] = std::move(ended.result.embedding);
      else
        item.answers[one.answer].reason = ended.finished.reason;
      if (!ended.finished.status.ok()) item.failure = ended.finished.status;
      if (ended.result.finish == engine::Finish::cancelled) item.cancelled = true;
      if (item.open == 0) MR_RETURN_IF_ERROR(finish(item));
    }
    return {};
  }

  Status finish(Item& item) {
    open_bytes_ -= item.line_bytes;
    if (item.cancelled) return {};
    counts_.prompt_tokens += item.totals.prompt_tokens;
    if (!item.failure.ok()) {
      MR_RETURN_IF_ERROR(fail(failure_line(item.request.custom_id, item.failure), item.line_number, item.failure));
      const bool ours = item.failure.code() != Code::invalid_argument && item.failure.code() != Code::unsupported;
      failures_in_a_row_ = ours ? failures_in_a_row_ + 1 : 0;
      return failures_in_a_row_ < kFailuresInARow ? Status() : item.failure;
    }
    failures_in_a_row_ = 0;
    ++counts_.answered;
    if (item.request.endpoint == Endpoint::embeddings) {
      for (auto& vector : item.vectors) engine::shorten(vector, {.dimensions = item.request.embeddings.dimensions});
      return output_.write(embeddings_line(item.request, item.vectors, item.totals.prompt_tokens, options_.model));
    }
    return output_.write(answer_line(item.request, item.answers, item.totals, options_.model));
  }

  Status fail(std::string line, std::int64_t number, const Status& why) {
    ++counts_.answered;
    if (counts_.first_failure.empty()) counts_.first_failure = fmt::format("line {}: {}", number, why.message());
    ++counts_.failed;
    return output_.write(std::move(line));
  }

  void note_model(const std::string& asked) {
    if (asked.empty() || asked == options_.model || noted_) return;
    noted_ = true;
    log::warn("requests ask for model '{}'; '{}' answers whatever they ask for", asked, options_.model);
  }

  engine::Service& service_;
  LineReader input_;
  const Index& index_;
  Output& output_;
  const Options& options_;
  Counts& counts_;
  const std::shared_ptr<Finished> finished_ = std::make_shared<Finished>();
  std::int64_t open_ = 0;         // answers
  std::uint64_t open_bytes_ = 0;  // lines of their requests
  int failures_in_a_row_ = 0;
  bool at_end_ = false, noted_ = false;
};

}  // namespace

Status work_off(engine::Service& service, LineReader input, const Index& index, Output& output, const Options& options,
                const std::atomic<bool>& stop, Counts& counts) {
  return Worker(service, std::move(input), index, output, options, counts).work(stop);
}

}  // namespace millrace::batch
