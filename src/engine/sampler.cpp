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

Sampler::Sampler(const SamplerOptions& options) : options_(options), state_(options.seed) {}

TokenId Sampler::pick(std::span<const float> logits, std::span<const TokenId> history, const Shaping& shaping) {
  MR_ASSERT(!logits.empty());
  count_history(history);
  if (options_.temperature <= 0) return greedy(logits, shaping);
  if (options_.top_k <= 0) return draw_from_all(logits, shaping);
  keep_top_k(logits, shaping);
  keep_probable();
  return draw();
}

std::int64_t Sampler::logits_needed() const {
  const bool penalties =
      options_.repeat_penalty != 1 || options_.presence_penalty != 0 || options_.frequency_penalty != 0;
  if (penalties && options_.repeat_last_n != 0) return -1;
  if (options_.temperature <= 0) return 1;
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
  const bool off = options_.repeat_penalty == 1 && options_.presence_penalty == 0 && options_.frequency_penalty == 0;
  if (off || options_.repeat_last_n == 0) return;
  if (options_.repeat_last_n > 0 && history.size() > static_cast<std::size_t>(options_.repeat_last_n))
    history = history.last(static_cast<std::size_t>(options_.repeat_last_n));
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

float Sampler::penalised(float logit, int count) const {
  logit = logit > 0 ? logit / options_.repeat_penalty : logit * options_.repeat_penalty;
  return logit - options_.presence_penalty - static_cast<float>(count) * options_.frequency_penalty;
}

/// visit(Candidate) for every token that may be picked in ascending id, bias and penalties applied.
template <typename Visit>
void Sampler::visit_logits(std::span<const float> logits, const Shaping& shaping, Visit visit) const {
  auto seen = seen_.begin();
  while (seen != seen_.end() && seen->id < 0) ++seen;
  auto bias = shaping.bias.begin();
  while (bias != shaping.bias.end() && bias->id < 0) ++bias;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const auto id = static_cast<TokenId>(i);
    float logit = logits[i];
    if (bias != shaping.bias.end() && bias->id == id) logit += (bias++)->bias;
    if (seen != seen_.end() && seen->id == id) logit = penalised(logit, (seen++)->count);
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
  if (!seen_.empty() || !shaping.allowed.empty() || !shaping.bias.empty()) {
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
  const std::size_t k = std::min(static_cast<std::size_t>(options_.top_k), logits.size());
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
