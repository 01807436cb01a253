#include "engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/status.h"
#include "kernels/kernels.h"

namespace millrace::engine {

using text::TokenId;

namespace {

constexpr std::uint64_t kStep = 0x9e3779b97f4a7c15u;

/// SplitMix64 (Steele, Lea and Flood, 2014), whose state grows by kStep a number: uniform in [0, 2^53).
std::uint64_t point_at(std::uint64_t state) {
  state = (state ^ (state >> 30)) * 0xbf58476d1ce4e5b9u;
  state = (state ^ (state >> 27)) * 0x94d049bb133111ebu;
  return (state ^ (state >> 31)) >> 11;
}

}  // namespace

Sampler::Sampler(const SamplerOptions& options)
    : options_(options), state_(options.seed), most_surprise_(2.0 * options.mirostat.tau) {}

TokenId Sampler::pick(std::span<const float> logits, std::span<const TokenId> history, const Shaping& shaping) {
  MR_ASSERT(!logits.empty());
  count_history(history);
  find_repetitions(history);
  if (options_.temperature <= 0) return greedy(logits, shaping);
  if (options_.top_k <= 0 && !filters()) return draw_from_all(logits, shaping);
  keep_top_k(logits, shaping);
  if (options_.mirostat.on) return draw_by_surprise();
  if (options_.top_n_sigma > 0) keep_near_largest(logits);
  if (options_.typical_p < 1) keep_typical();
  keep_probable();
  if (options_.xtc.probability > 0) drop_top_choices();
  return draw();
}

bool Sampler::penalises() const {
  const bool counts =
      options_.penalties.repeat != 1 || options_.penalties.presence != 0 || options_.penalties.frequency != 0;
  return (counts && options_.penalties.last_n != 0) || (options_.dry.multiplier > 0 && options_.dry.last_n != 0);
}

/// Whether rules need the candidates in their order, or see all logits.
bool Sampler::filters() const {
  return options_.mirostat.on || options_.typical_p < 1 || options_.top_n_sigma > 0 || options_.xtc.probability > 0;
}

std::int64_t Sampler::logits_needed() const {
  if (penalises()) return -1;
  if (options_.temperature <= 0) return 1;
  if (filters()) return -1;
  return std::max(0, options_.top_k);
}

kernels::DrawRule Sampler::draw_rule(std::int64_t ahead) const {
  const std::uint64_t state = state_ + static_cast<std::uint64_t>(ahead + 1) * kStep;
  return {options_.temperature, options_.top_p, options_.min_p, point_at(state)};
}

TokenId Sampler::take_drawn(TokenId id) {
  state_ += kStep;
  return id;
}

TokenId Sampler::pick_from_largest(std::span<const float> logits, std::span<const TokenId> ids) {
  MR_ASSERT(!logits.empty());
  if (options_.temperature <= 0) return ids.front();
  const std::size_t k = std::min(logits.size(), static_cast<std::size_t>(options_.top_k));
  candidates_.clear();
  for (std::size_t i = 0; i < k; ++i) candidates_.push_back({logits[i], ids[i]});
  keep_probable();
  return draw();
}

void Sampler::count_history(std::span<const TokenId> history) {
  seen_.clear();
  const bool off =
      options_.penalties.repeat == 1 && options_.penalties.presence == 0 && options_.penalties.frequency == 0;
  if (off || options_.penalties.last_n == 0) return;
  if (options_.penalties.last_n > 0 && history.size() > static_cast<std::size_t>(options_.penalties.last_n))
    history = history.last(static_cast<std::size_t>(options_.penalties.last_n));
  for (const TokenId id : history) seen_.push_back({id, 1});
  std::sort(seen_.begin(), seen_.end(), [](const Seen& a, const Seen& b) { return a.id < b.id; });
  std::size_t kept = 0;
  for (std::size_t i = 0; i < seen_.size(); ++i) {
    if (kept > 0 && seen_[kept - 1].id == seen_[i].id) {
      ++seen_[kept - 1].count;
    } else {
      seen_[kept++] = seen_[i];
    }
  }
  seen_.resize(kept);
}

/// Fills dry_: of each token that followed an earlier occurrence of the history's end, what the longest of these
/// repetitions costs it. The Z function of the reversed history finds all of them in one walk.
void Sampler::find_repetitions(std::span<const TokenId> history) {
  dry_.clear();
  if (options_.dry.multiplier <= 0 || options_.dry.last_n == 0) return;
  const std::size_t asked = options_.dry.last_n > 0 ? static_cast<std::size_t>(options_.dry.last_n) : kMostDryTokens;
  history = history.last(std::min({asked, kMostDryTokens, history.size()}));
  const auto n = static_cast<std::int32_t>(history.size());
  const auto at = [&](std::int32_t i) { return history[static_cast<std::size_t>(n - 1 - i)]; };
  std::int32_t reach = 0;  // tokens at the end that no breaker is among
  const auto breaks = [&](TokenId id) {
    return std::binary_search(options_.dry.breakers.begin(), options_.dry.breakers.end(), id);
  };
  while (reach < n && !breaks(at(reach))) ++reach;
  repeats_.assign(static_cast<std::size_t>(n), 0);
  constexpr std::int32_t kLongest = 1 << 20;
  for (std::int32_t i = 1, left = 0, right = 0; i < n; ++i) {
    std::int32_t& length = repeats_[static_cast<std::size_t>(i)];
    if (i < right) length = std::min(right - i, repeats_[static_cast<std::size_t>(i - left)]);
    while (i + length < n && at(length) == at(i + length)) ++length;
    if (i + length > right) {
      left = i;
      right = i + length;
    }
    const std::int32_t repeated = std::min({length, reach, kLongest});
    if (repeated < std::max(options_.dry.allowed_length, 1)) continue;
    const auto beyond = static_cast<float>(repeated - options_.dry.allowed_length);
    const float cost = options_.dry.multiplier * std::pow(options_.dry.base, std::min(beyond, 1000.0f));
    if (at(i - 1) >= 0 && !breaks(at(i - 1)))
      dry_.push_back({at(i - 1), std::min(cost, std::numeric_limits<float>::max())});
  }
  std::sort(dry_.begin(), dry_.end(),
            [](const LogitBias& a, const LogitBias& b) { return a.id != b.id ? a.id < b.id : a.bias > b.bias; });
  const auto last =
      std::unique(dry_.begin(), dry_.end(), [](const LogitBias& a, const LogitBias& b) { return a.id == b.id; });
  dry_.erase(last, dry_.end());
}

float Sampler::penalised(float logit, int count) const {
  logit = logit > 0 ? logit / options_.penalties.repeat : logit * options_.penalties.repeat;
  return logit - options_.penalties.presence - static_cast<float>(count) * options_.penalties.frequency;
}

/// visit(Candidate) for every token that may be picked in ascending id, bias and penalties applied.
template <typename Visit>
void Sampler::visit_logits(std::span<const float> logits, const Shaping& shaping, Visit visit) const {
  auto seen = seen_.begin();
  while (seen != seen_.end() && seen->id < 0) ++seen;
  auto bias = shaping.bias.begin();
  while (bias != shaping.bias.end() && bias->id < 0) ++bias;
  auto repeated = dry_.begin();
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const auto id = static_cast<TokenId>(i);
    float logit = logits[i];
    if (bias != shaping.bias.end() && bias->id == id) logit += (bias++)->bias;
    if (seen != seen_.end() && seen->id == id) logit = penalised(logit, (seen++)->count);
    if (repeated != dry_.end() && repeated->id == id) logit -= (repeated++)->bias;
    if (std::isnan(logit)) logit = -std::numeric_limits<float>::infinity();
    if (shaping.allowed.empty() || ((shaping.allowed[i / 32] >> (i % 32)) & 1u) != 0) visit(Candidate{logit, id});
  }
}

TokenId Sampler::greedy(std::span<const float> logits, const Shaping& shaping) const {
  Candidate best{-std::numeric_limits<float>::infinity(), -1};
  visit_logits(logits, shaping, [&](const Candidate& candidate) {
    if (best.id < 0 || candidate.logit > best.logit) best = candidate;
  });
  return best.id;
}

TokenId Sampler::draw_from_all(std::span<const float> logits, const Shaping& shaping) {
  if (!seen_.empty() || !dry_.empty() || !shaping.allowed.empty() || !shaping.bias.empty()) {
    shaped_.assign(logits.size(), -std::numeric_limits<float>::infinity());
    visit_logits(logits, shaping, [this](const Candidate& candidate) {
      shaped_[static_cast<std::size_t>(candidate.id)] = candidate.logit;
    });
    logits = shaped_;
  }
  return take_drawn(kernels::draw(logits, draw_rule(0), weights_));
}

/// Fills candidates_ with the top_k best, best first. A heap of k keeps a vocabulary of 150,000 from being copied.
void Sampler::keep_top_k(std::span<const float> logits, const Shaping& shaping) {
  const std::size_t asked =
      options_.top_k > 0 && !options_.mirostat.on ? static_cast<std::size_t>(options_.top_k) : logits.size();
  const std::size_t k = std::min(asked, logits.size());
  candidates_.clear();
  candidates_.reserve(k);
  visit_logits(logits, shaping, [&](const Candidate& candidate) {
    if (candidates_.size() < k) {
      candidates_.push_back(candidate);
      if (candidates_.size() == k) std::make_heap(candidates_.begin(), candidates_.end(), better);
    } else if (better(candidate, candidates_.front())) {
      std::pop_heap(candidates_.begin(), candidates_.end(), better);
      candidates_.back() = candidate;
      std::push_heap(candidates_.begin(), candidates_.end(), better);
    }
  });
  std::sort(candidates_.begin(), candidates_.end(), better);
}

/// Top-n-sigma. The deviation is that of the row's finite logits, as the model gave them.
void Sampler::keep_near_largest(std::span<const float> logits) {
  double sum = 0, squares = 0;
  std::int64_t count = 0;
  for (const float logit : logits) {
    if (!std::isfinite(logit)) continue;
    sum += logit;
    ++count;
  }
  if (count == 0) return;
  const double mean = sum / static_cast<double>(count);
  for (const float logit : logits)
    if (std::isfinite(logit)) squares += (logit - mean) * (logit - mean);
  const double deviation = std::sqrt(squares / static_cast<double>(count));
  const double least = candidates_.front().logit - double{options_.top_n_sigma} * deviation;
  std::size_t kept = 1;
  while (kept < candidates_.size() && candidates_[kept].logit >= least) ++kept;
  candidates_.resize(kept);
}

/// Typical-p, on probabilities at temperature 1. The candidates stay in their order, best first.
void Sampler::keep_typical() {
  const float best = candidates_.front().logit;
  const auto weight = [&](const Candidate& candidate) { return double{kernels::exp_f32(candidate.logit - best)}; };
  double total = 0, drop = 0;
  for (const Candidate& candidate : candidates_) {
    const double one = weight(candidate);
    total += one;
    if (one > 0) drop += one * (double{best} - candidate.logit);
  }
  // A token's surprise is log(total) + best - logit; the entropy is its mean.
  const double mean = drop / total;
  const auto distance = [&](const Candidate& candidate) { return std::abs(double{best} - candidate.logit - mean); };
  std::sort(candidates_.begin(), candidates_.end(), [&](const Candidate& a, const Candidate& b) {
    const double of_a = distance(a), of_b = distance(b);
    return of_a != of_b ? of_a < of_b : better(a, b);
  });
  double held = 0;
  std::size_t kept = 0;
  while (kept < candidates_.size() && (kept == 0 || held < double{options_.typical_p} * total))
    held += weight(candidates_[kept++]);
  candidates_.resize(kept);
  std::sort(candidates_.begin(), candidates_.end(), better);
}

TokenId Sampler::draw_by_surprise() {
  const float best = candidates_.front().logit;
  const auto weight = [&](const Candidate& candidate) {
    return double{kernels::exp_f32((candidate.logit - best) / options_.temperature)};
  };
  double total = 0, kept_total = 0;
  for (const Candidate& candidate : candidates_) total += weight(candidate);
  std::size_t kept = 0;
  while (kept < candidates_.size() && (kept == 0 || -std::log2(weight(candidates_[kept]) / total) <= most_surprise_))
    kept_total += weight(candidates_[kept++]);
  candidates_.resize(kept);
  const TokenId id = draw();
  const auto drawn =
      std::find_if(candidates_.begin(), candidates_.end(), [id](const Candidate& one) { return one.id == id; });
  const double surprise = -std::log2(weight(*drawn) / kept_total);
  if (std::isfinite(surprise))
    most_surprise_ -= double{options_.mirostat.eta} * (surprise - double{options_.mirostat.tau});
  return id;
}

/// XTC. Its own number is taken whether or not it drops something, so that draws stay where they are.
void Sampler::drop_top_choices() {
  const double point = static_cast<double>(draw_rule(0).point) * 0x1p-53;
  state_ += kStep;
  if (point >= double{options_.xtc.probability} || options_.xtc.threshold > 0.5f) return;
  const float best = candidates_.front().logit;
  const auto weight = [&](const Candidate& candidate) { return double{kernels::exp_f32(candidate.logit - best)}; };
  double total = 0;
  for (const Candidate& candidate : candidates_) total += weight(candidate);
  std::size_t likely = 0;
  while (likely < candidates_.size() && weight(candidates_[likely]) >= double{options_.xtc.threshold} * total) ++likely;
  if (likely > 1) candidates_.erase(candidates_.begin(), candidates_.begin() + static_cast<std::ptrdiff_t>(likely - 1));
}

/// Top-p and min-p on probabilities at temperature 1.
void Sampler::keep_probable() {
  const float best = candidates_.front().logit;
  const auto weight = [&](const Candidate& candidate) { return double{kernels::exp_f32(candidate.logit - best)}; };
  if (options_.top_p < 1) {
    double total = 0, held = 0;
    for (const Candidate& candidate : candidates_) total += weight(candidate);
    std::size_t kept = 0;
    while (kept < candidates_.size() && (kept == 0 || held < double{options_.top_p} * total))
      held += weight(candidates_[kept++]);
    candidates_.resize(kept);
  }
  if (options_.min_p > 0) {
    std::size_t kept = 1;
    while (kept < candidates_.size() && weight(candidates_[kept]) >= double{options_.min_p}) ++kept;
    candidates_.resize(kept);
  }
}

TokenId Sampler::draw() {
  const float best = candidates_.front().logit;
  const auto weight = [&](const Candidate& candidate) {
    return double{kernels::exp_f32((candidate.logit - best) / options_.temperature)};
  };
  double total = 0;
  for (const Candidate& candidate : candidates_) total += weight(candidate);
  const double target = static_cast<double>(draw_rule(0).point) * 0x1p-53 * total;
  double passed = 0;
  for (const Candidate& candidate : candidates_) {
    passed += weight(candidate);
    if (target < passed) return take_drawn(candidate.id);
  }
  return take_drawn(candidates_.front().id);  // only where nothing is finite
}

}  // namespace millrace::engine
