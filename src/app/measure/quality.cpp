#include "app/measure/quality.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <filesystem>
#include <utility>

namespace millrace::measure {
namespace {

using engine::Engine;

/// A window on its way.
struct Open {
  std::int64_t window = 0;
  Engine::Id id = 0;
};

/// Of the values at places that were seen, added in order.
struct Moments {
  double mean = 0, error = 0;  // error: of the mean, its standard error; 0 of a single value
  std::int64_t count = 0;
};

Moments moments_of(const std::vector<bool>& seen, FunctionRef<double(std::size_t place)> value) {
  Moments found;
  double sum = 0, squares = 0;
  for (std::size_t i = 0; i < seen.size(); ++i) {
    if (!seen[i]) continue;
    sum += value(i);
    ++found.count;
  }
  if (found.count == 0) return found;
  const auto count = static_cast<double>(found.count);
  found.mean = sum / count;
  for (std::size_t i = 0; i < seen.size(); ++i)
    if (seen[i]) squares += (value(i) - found.mean) * (value(i) - found.mean);
  if (found.count > 1) found.error = std::sqrt(squares / count / (count - 1));
  return found;
}

/// exp of a mean of losses.
Perplexity perplexity_of(const Moments& losses) {
  if (losses.count == 0) return {};
  const double value = std::exp(losses.mean);
  return {value, value * losses.error, losses.count};
}

/// The value below which so much of the (sorted) values lies, between neighbours on a straight line.
double quantile(std::span<const float> sorted, double share) {
  const double at = share * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(at);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  const double least = sorted[below];
  return least + (sorted[above] - least) * (at - static_cast<double>(below));
}

}  // namespace

namespace {

/// Logits of a pass are kept together. They may take a part of what the model takes: with a large vocabulary those of a
/// whole window would be several times a small model's weights.
std::int64_t most_logit_rows(const TextWindows& windows, const engine::EngineOptions& options) {
  constexpr std::int64_t kLeastBytes = 128 << 20, kLeastRows = 32, kShareOfFile = 4;
  std::error_code unknown;
  const std::uintmax_t file_bytes = std::filesystem::file_size(options.model.path, unknown);
  const std::int64_t bytes =
      unknown ? kLeastBytes : std::max(kLeastBytes, static_cast<std::int64_t>(file_bytes) / kShareOfFile);
  return std::max(kLeastRows, bytes / (std::max<std::int64_t>(1, windows.vocabulary()) * 4));
}

}  // namespace

Status prepare_engine(const TextWindows& windows, engine::EngineOptions& options) {
  const std::int64_t context = windows.options().context;
  if (options.demand.context_tokens == 0) options.demand.context_tokens = context;
  if (options.demand.context_tokens < context)
    return error(Code::invalid_argument, "a window of {} tokens has no room in a context of {}", context,
                 options.demand.context_tokens);
  const std::int64_t rows = options.demand.batch_tokens > 0 ? options.demand.batch_tokens : kPassTokens;
  options.demand.max_sequences = std::clamp<std::int64_t>(rows / context, 1, windows.size());
  options.demand.fewer_sequences = true;
  if (options.demand.batch_tokens == 0)
    options.demand.batch_tokens = std::max(context, options.demand.max_sequences * context);
  options.demand.logit_rows =
      std::min(options.demand.max_sequences * windows.counted(), most_logit_rows(windows, options));
  return {};
}

Status run_windows(Engine& engine, const TextWindows& windows, const OnRow& on_row, const RunOptions& options) {
  const std::int64_t most_open = 2 * std::max<std::int64_t>(1, engine.load().max_sequences);
  const std::int64_t prompt = windows.options().context - 1, total = windows.size() * prompt;
  Status failed;
  std::deque<Open> open;
  std::int64_t submitted = 0, done = 0;
  std::vector<std::int64_t> read(static_cast<std::size_t>(windows.size()));  // tokens of each window
  const auto submit = [&](std::int64_t window) -> Status {
    engine::Request request;
    request.prompt = windows.prompt(window);
    request.max_tokens = 0;
    request.logits_of_prompt = true;
    request.first_logits = prompt - windows.counted();
    request.on_logits = [&, window](std::int64_t position, std::span<const float> logits) {
      const std::int64_t i = position - (prompt - windows.counted());
      if (failed.ok() && i >= 0) failed = on_row(window * windows.counted() + i, windows.target(window, i), logits);
    };
    request.on_prompt = [&, window](std::int64_t tokens, std::int64_t) {
      done += tokens - std::exchange(read[static_cast<std::size_t>(window)], tokens);
    };
    MR_ASSIGN_OR_RETURN(const Engine::Id id, engine.submit(std::move(request)));
    open.push_back({window, id});
    return {};
  };
  const auto end_all = [&](Status why) {
    for (const Open& one : open) engine.cancel(one.id);
    while (engine.step()) {
    }
    for (const Open& one : open) (void)engine.take(one.id);
    engine.set_stop_flag(nullptr);
    return why;
  };
  engine.set_stop_flag(options.cancel);
  while (submitted < windows.size() || !open.empty()) {
    while (submitted < windows.size() && std::ssize(open) < most_open)
      if (Status status = submit(submitted++); !status.ok()) return end_all(std::move(status));
    engine.step();
    if (!failed.ok()) return end_all(failed);
    for (auto one = open.begin(); one != open.end();) {
      if (!engine.finished(one->id)) {
        ++one;
        continue;
      }
      const engine::Result result = engine.take(one->id);
      one = open.erase(one);
      if (result.finish == engine::Finish::cancelled) return end_all(error(Code::cancelled, "stopped"));
      if (result.finish == engine::Finish::error) return end_all(result.status);
    }
    if (options.progress) options.progress(done, total);
  }
  engine.set_stop_flag(nullptr);
  return {};
}

Quality::Quality(std::int64_t rows, int threads, LogitsReader* reference, LogitsWriter* save)
    : threads_(threads),
      reference_(reference),
      save_(save),
      seen_(static_cast<std::size_t>(rows)),
      same_top_(static_cast<std::size_t>(rows)),
      losses_(static_cast<std::size_t>(rows)) {
  if (reference == nullptr) return;
  divergences_.resize(losses_.size());
  reference_losses_.resize(losses_.size());
  log_p_.resize(static_cast<std::size_t>(reference->shape().vocabulary));
}

Quality::~Quality() = default;

Status Quality::add(std::int64_t row, text::TokenId target, std::span<const float> logits) {
  if (pool_ == nullptr && std::ssize(logits) >= Distributions::kForThreads) {
    pool_ = std::make_unique<ThreadPool>(ThreadPool::Options{.threads = threads_, .pin = false});
    distributions_ = Distributions(pool_.get());
  }
  const LogSum sum = distributions_.log_sum(logits);
  const auto at = static_cast<std::size_t>(row);
  seen_[at] = true;
  losses_[at] = -sum.log_probability(logits[static_cast<std::size_t>(target)]);
  if (save_ != nullptr) MR_RETURN_IF_ERROR(save_->write(row, logits, sum, target));
  if (reference_ == nullptr) return {};
  float right = 0;
  MR_RETURN_IF_ERROR(reference_->read(row, log_p_, right));
  divergences_[at] = static_cast<float>(distributions_.divergence(log_p_, logits, sum));
  reference_losses_[at] = -right;
  // Of several that are likeliest, 16 bits may name another: it counts as the same.
  const float best = *std::max_element(log_p_.begin(), log_p_.end());
  same_top_[at] = log_p_[static_cast<std::size_t>(sum.top)] >= best;
  return {};
}

Perplexity Quality::perplexity() const {
  return perplexity_of(moments_of(seen_, [&](std::size_t i) { return losses_[i]; }));
}

Divergence Quality::divergence() const {
  const auto change = [&](std::size_t i) {
    return std::exp(-losses_[i]) - std::exp(-static_cast<double>(reference_losses_[i]));
  };
  const Moments kl = moments_of(seen_, [&](std::size_t i) { return static_cast<double>(divergences_[i]); });
  Divergence found;
  found.mean = kl.mean;
  found.error = kl.error;
  if (kl.count == 0) return found;
  found.reference = perplexity_of(moments_of(seen_, [&](std::size_t i) { return double{reference_losses_[i]}; }));
  found.same_top = moments_of(seen_, [&](std::size_t i) { return same_top_[i] ? 1.0 : 0.0; }).mean;
  found.mean_change = moments_of(seen_, change).mean;
  found.rms_change = std::sqrt(moments_of(seen_, [&](std::size_t i) { return change(i) * change(i); }).mean);
  std::vector<float> sorted;
  sorted.reserve(static_cast<std::size_t>(kl.count));
  for (std::size_t i = 0; i < seen_.size(); ++i)
    if (seen_[i]) sorted.push_back(divergences_[i]);
  std::sort(sorted.begin(), sorted.end());
  found.median = quantile(sorted, 0.5);
  found.p90 = quantile(sorted, 0.9);
  found.p99 = quantile(sorted, 0.99);
  found.p999 = quantile(sorted, 0.999);
  found.largest = sorted.back();
  for (const float one : sorted) found.capped += std::min(double{one}, found.p99);
  found.capped /= static_cast<double>(sorted.size());
  return found;
}

}  // namespace millrace::measure
