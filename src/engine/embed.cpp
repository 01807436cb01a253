#include "engine/embed.h"

#include <algorithm>
#include <deque>
#include <optional>
#include <utility>

#include "base/mutex.h"
#include "engine/pooler.h"

namespace millrace::engine {
namespace {

using text::TokenId;
using Clock = std::chrono::steady_clock;

/// What the engine's thread hands over. It may outlive the call.
struct Finished {
  Mutex mutex;
  CondVar came;
  std::deque<std::pair<std::size_t, Result>> results MR_GUARDED_BY(mutex);  // by input
};

/// Requests on their way; those that are left when it goes are cancelled.
class Window {
 public:
  Window(Service& service, const EmbedOptions& options) : service_(service), options_(options) {}
  ~Window() {
    for (const auto& [input, id] : open_) service_.cancel(id);
  }
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;

  std::size_t open() const { return open_.size(); }

  Status submit(std::size_t input, const std::vector<TokenId>& tokens) {
    Request request = embedding_request(service_.engine(), tokens, options_);
    MR_ASSIGN_OR_RETURN(const Service::Id id,
                        service_.submit(std::move(request), [finished = finished_, input](Result r) {
                          const MutexLock lock(finished->mutex);
                          finished->results.emplace_back(input, std::move(r));
                          finished->came.notify_one();
                        }));
    open_.emplace(input, id);
    return {};
  }

  /// Waits a little for a result; false: none came.
  bool next(std::pair<std::size_t, Result>& out) {
    const MutexLock lock(finished_->mutex);
    finished_->came.wait_for(finished_->mutex, std::chrono::milliseconds(100),
                             [this]() MR_REQUIRES(finished_->mutex) { return !finished_->results.empty(); });
    if (finished_->results.empty()) return false;
    out = std::move(finished_->results.front());
    finished_->results.pop_front();
    open_.erase(out.first);
    return true;
  }

 private:
  Service& service_;
  const EmbedOptions& options_;
  const std::shared_ptr<Finished> finished_ = std::make_shared<Finished>();
  std::unordered_map<std::size_t, Service::Id> open_;
};

Status status_of(const Result& result) {
  if (result.finish == Finish::cancelled)
    return error(Code::unavailable, "the work was stopped: the server shuts down or unloads the model");
  return result.status;
}

}  // namespace

Expected<std::vector<TokenId>> embedding_tokens(const Engine& engine, std::string_view text, bool truncate,
                                                std::int64_t most) {
  const text::Tokenizer& tokenizer = engine.tokenizer();
  const std::int64_t context = engine.context_tokens();
  most = most > 0 ? std::min(most, context) : context;
  std::vector<TokenId> ids;
  if (tokenizer.adds_bos() && tokenizer.bos()) ids.push_back(*tokenizer.bos());
  const std::vector<TokenId> body = tokenizer.encode(text, text::Specials::parse);
  ids.insert(ids.end(), body.begin(), body.end());
  const std::optional<TokenId> eos = tokenizer.adds_eos() ? tokenizer.eos() : std::nullopt;
  if (eos && (ids.empty() || ids.back() != *eos)) ids.push_back(*eos);
  if (ids.empty()) return error(Code::invalid_argument, "the text is empty; write something");
  if (std::ssize(ids) <= most) return ids;
  const std::int64_t positions = engine.model().hyperparameters().most_positions;
  if (!truncate && positions > 0 && std::ssize(ids) > positions)
    return error(Code::invalid_argument, "{} tokens, but this model's maximum context length is {}; shorten the text",
                 ids.size(), most);
  if (!truncate)
    return error(Code::invalid_argument,
                 "{} tokens, but this model's maximum context length is {}; shorten the text, or serve with --ctx {}",
                 ids.size(), most, ids.size());
  ids.resize(static_cast<std::size_t>(most));
  if (eos) ids.back() = *eos;
  return ids;
}

Request embedding_request(const Engine& engine, std::vector<TokenId> tokens, const EmbedOptions& options) {
  Request request;
  request.prompt = std::move(tokens);
  if (options.separator >= 0) {
    const auto end = std::find(request.prompt.begin(), request.prompt.end(), options.separator);
    if (end != request.prompt.end()) request.second_text = end - request.prompt.begin() + 1;
  }
  request.client = options.client;
  request.pooling = options.pooling;
  if (request.pooling == model::Pooling::none) {
    request.pooling = engine.model().hyperparameters().pooling;
    if (request.pooling == model::Pooling::rank)
      request.pooling = model::Pooling::other;  // its states are no embedding
  }
  const bool causal = engine.model().hyperparameters().causal;  // then the last token alone has seen all
  if (request.pooling == model::Pooling::none) request.pooling = causal ? model::Pooling::last : model::Pooling::mean;
  return request;
}

void shorten(std::vector<float>& vector, const EmbedOptions& options) {
  if (options.dimensions <= 0 || options.dimensions >= std::ssize(vector)) return;
  vector.resize(static_cast<std::size_t>(options.dimensions));
  normalise(vector);
}

Expected<Embeddings> embed(Service& service, const std::vector<std::vector<TokenId>>& inputs,
                           const EmbedOptions& options, const std::function<bool()>& gone) {
  const Clock::time_point begin = Clock::now();
  Embeddings out;
  out.vectors.resize(inputs.size());
  // As many as share a pass, and as many again that wait, so that the next pass is full, too.
  const auto most_open = static_cast<std::size_t>(2 * std::max<std::int64_t>(1, service.load().max_sequences));
  Window window(service, options);
  for (std::size_t submitted = 0, done = 0; done < inputs.size();) {
    while (submitted < inputs.size() && window.open() < most_open) {
      const Status status = window.submit(submitted, inputs[submitted]);
      if (status.code() == Code::unavailable && window.open() > 0) break;  // the queue is full of others' for now
      MR_RETURN_IF_ERROR(status);
      ++submitted;
    }
    if (gone && gone()) return error(Code::cancelled, "the client went away");
    std::pair<std::size_t, Result> ended;
    if (!window.next(ended)) continue;
    MR_RETURN_IF_ERROR(status_of(ended.second));
    std::vector<float>& vector = ended.second.embedding;
    shorten(vector, options);
    out.prompt_tokens += ended.second.prompt_tokens;
    out.vectors[ended.first] = std::move(vector);
    ++done;
  }
  out.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  return out;
}

}  // namespace millrace::engine
