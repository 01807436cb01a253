#include "engine/choice.h"

#include <algorithm>
#include <cmath>
#include <limits>

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
      needs_all_(request.constraint != nullptr || !request.logit_bias.empty() || request.on_token != nullptr ||
                 request.min_tokens > 0 || !request.banned.empty()),
      bias_(sorted(request.logit_bias)) {}

/// The request's bias, and against it the tokens that it bans at this place. `history`: as pick() has it.
std::span<const LogitBias> Chooser::bias_now(const Request& request, std::span<const TokenId> history) {
  const auto answer = history.subspan(std::min(request.prompt.size(), history.size()));
  std::vector<TokenId> out;
  if (std::ssize(answer) < request.min_tokens) out = request.late_tokens;
  for (const std::vector<TokenId>& words : request.banned) {
    if (words.empty() || words.size() > answer.size() + 1) continue;
    const auto before = std::span(words).first(words.size() - 1);
    const auto end = answer.last(before.size());
    if (std::equal(before.begin(), before.end(), end.begin())) out.push_back(words.back());
  }
  if (out.empty()) return bias_;
  bias_now_ = bias_;
  std::erase_if(bias_now_,
                [&](const LogitBias& one) { return std::find(out.begin(), out.end(), one.id) != out.end(); });
  for (const TokenId id : out) bias_now_.push_back({id, -std::numeric_limits<float>::infinity()});
  std::sort(bias_now_.begin(), bias_now_.end(), [](const LogitBias& a, const LogitBias& b) { return a.id < b.id; });
  const auto last = std::unique(bias_now_.begin(), bias_now_.end(),
                                [](const LogitBias& a, const LogitBias& b) { return a.id == b.id; });
  bias_now_.erase(last, bias_now_.end());
  return bias_now_;
}

Expected<TokenId> Chooser::pick(const Request& request, std::span<const float> logits,
                                std::span<const TokenId> history) {
  Shaping shaping;
  shaping.bias = bias_now(request, history);
  if (request.constraint != nullptr) {
    allowed_.resize((logits.size() + 31) / 32);
    MR_RETURN_IF_ERROR(request.constraint->mask(allowed_));
    if (std::all_of(allowed_.begin(), allowed_.end(), [](std::uint32_t word) { return word == 0; }))
      return error(Code::invalid_argument,
                   "no token of this model's vocabulary keeps the asked-for form here; loosen the schema");
    shaping.allowed = allowed_;
    // Where the form leaves nothing else, it comes first.
    const auto banned = [&](std::size_t id) {
      const auto found = std::lower_bound(shaping.bias.begin(), shaping.bias.end(), static_cast<TokenId>(id),
                                          [](const LogitBias& one, TokenId other) { return one.id < other; });
      return found != shaping.bias.end() && found->id == static_cast<TokenId>(id) && std::isinf(found->bias);
    };
    bool some = false;
    for (std::size_t id = 0; id < logits.size() && !some; ++id)
      some = ((allowed_[id / 32] >> (id % 32)) & 1u) != 0 && !banned(id);
    if (!some) shaping.bias = bias_;
  }
  const TokenId id = sampler_.pick(logits, history, shaping);
  if (request.constraint != nullptr) MR_RETURN_IF_ERROR(request.constraint->accept(id));
  return id;
}

TokenChoice token_choice(std::span<const float> logits, TokenId id, int top,
                         std::vector<TokenChoice::Candidate>& likeliest) {
  TokenChoice choice;
  choice.id = id;
  likeliest.clear();
  if (logits.empty()) return choice;
  const double total = log_sum(logits);
  const auto log_probability = [&](TokenId token) {
    const float logit = logits[static_cast<std::size_t>(token)];
    return static_cast<float>(std::isnan(logit) ? -INFINITY : logit - total);
  };
  choice.log_probability = log_probability(id);
  const auto count = std::min<std::size_t>(static_cast<std::size_t>(std::max(top, 0)), logits.size());
  const auto likelier = [](const TokenChoice::Candidate& a, const TokenChoice::Candidate& b) {
    return a.log_probability != b.log_probability ? a.log_probability > b.log_probability : a.id < b.id;
  };
  // A short sorted list: `count` is 20 at most where people ask, the vocabulary 150,000.
  for (std::size_t i = 0; count > 0 && i < logits.size(); ++i) {
    const TokenChoice::Candidate candidate{static_cast<TokenId>(i), log_probability(static_cast<TokenId>(i))};
    if (likeliest.size() == count && !likelier(candidate, likeliest.back())) continue;
    if (likeliest.size() == count) likeliest.pop_back();
    likeliest.insert(std::upper_bound(likeliest.begin(), likeliest.end(), candidate, likelier), candidate);
  }
  choice.likeliest = likeliest;
  return choice;
}

void Chooser::tell(const Request& request, std::span<const float> logits, TokenId id) {
  if (request.on_token != nullptr) request.on_token(token_choice(logits, id, request.top_logprobs, likeliest_));
}

}  // namespace millrace::engine
