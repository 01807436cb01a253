#include "engine/choice.h"

#include <algorithm>
#include <cmath>

namespace millrace::engine {

using text::TokenId;

namespace {

/// log of the sum of exp(logit); a logit that is not a number counts for nothing.
double log_sum(std::span<const float> logits) {
  float best = -INFINITY;
  for (const float logit : logits)
    if (logit > best) best = logit;
  double total = 0;
  for (const float logit : logits)
    if (!std::isnan(logit)) total += std::exp(static_cast<double>(logit) - best);
  return best + std::log(total);
}

std::vector<LogitBias> sorted(const std::map<TokenId, float>& bias) {
  std::vector<LogitBias> result;
  for (const auto& [id, value] : bias) result.push_back({id, value});
  return result;
}

}  // namespace

Chooser::Chooser(const Request& request)
    : sampler_(request.sampler),
      needs_all_(request.constraint != nullptr || !request.logit_bias.empty() || request.on_token != nullptr),
      bias_(sorted(request.logit_bias)) {}

Expected<TokenId> Chooser::pick(const Request& request, std::span<const float> logits,
                                std::span<const TokenId> history) {
  Shaping shaping;
  shaping.bias = bias_;
  if (request.constraint != nullptr) {
    allowed_.resize((logits.size() + 31) / 32);
    MR_RETURN_IF_ERROR(request.constraint->mask(allowed_));
    if (std::all_of(allowed_.begin(), allowed_.end(), [](std::uint32_t word) { return word == 0; }))
      return error(Code::invalid_argument,
                   "no token of this model's vocabulary keeps the asked-for form here; loosen the schema");
    shaping.allowed = allowed_;
  }
  const TokenId id = sampler_.pick(logits, history, shaping);
  if (request.constraint != nullptr) MR_RETURN_IF_ERROR(request.constraint->accept(id));
  return id;
}

void Chooser::tell(const Request& request, std::span<const float> logits, TokenId id) {
  if (request.on_token == nullptr) return;
  TokenChoice choice;
  choice.id = id;
  likeliest_.clear();
  if (!logits.empty()) {
    const double total = log_sum(logits);
    const auto log_probability = [&](TokenId token) {
      const float logit = logits[static_cast<std::size_t>(token)];
      return static_cast<float>(std::isnan(logit) ? -INFINITY : logit - total);
    };
    choice.log_probability = log_probability(id);
    const auto count =
        std::min<std::size_t>(static_cast<std::size_t>(std::max(request.top_logprobs, 0)), logits.size());
    const auto likelier = [](const TokenChoice::Candidate& a, const TokenChoice::Candidate& b) {
      return a.log_probability != b.log_probability ? a.log_probability > b.log_probability : a.id < b.id;
    };
    // A short sorted list: `count` is 20 at most where people ask, the vocabulary 150,000.
    for (std::size_t i = 0; count > 0 && i < logits.size(); ++i) {
      const TokenChoice::Candidate candidate{static_cast<TokenId>(i), log_probability(static_cast<TokenId>(i))};
      if (likeliest_.size() == count && !likelier(candidate, likeliest_.back())) continue;
      if (likeliest_.size() == count) likeliest_.pop_back();
      likeliest_.insert(std::upper_bound(likeliest_.begin(), likeliest_.end(), candidate, likelier), candidate);
    }
  }
  choice.likeliest = likeliest_;
  request.on_token(choice);
}

}  // namespace millrace::engine
