#include "residency/expert_use.h"

#include <algorithm>
#include <cmath>

namespace millrace::residency {
namespace {

/// Where a function that grows from 0 reaches `wanted`; as far as it gets.
template <typename Function>
double solve(double wanted, const Function& function) {
  double low = 0, high = 1;
  for (int i = 0; i < 60 && function(high) < wanted; ++i) high *= 2;
  for (int i = 0; i < 60; ++i) {
    const double middle = (low + high) / 2;
    (function(middle) < wanted ? low : high) = middle;
  }
  return high;
}

}  // namespace

ExpertUse::ExpertUse(std::int64_t experts, std::int64_t top_k, double skew) {
  if (experts <= 0 || top_k <= 0) return;
  top_k_ = static_cast<double>(std::min(top_k, experts));
  chosen_.resize(static_cast<std::size_t>(experts));
  if (skew == 0 || top_k >= experts) {
    std::fill(chosen_.begin(), chosen_.end(), top_k_ / static_cast<double>(experts));
    return;
  }
  for (std::size_t i = 0; i < chosen_.size(); ++i) chosen_[i] = std::pow(static_cast<double>(i + 1), -skew);
  const std::vector<double> weights = chosen_;
  const double time = solve(top_k_, [&](double t) {
    double sum = 0;
    for (const double weight : weights) sum += 1 - std::exp(-weight * t);
    return sum;
  });
  for (double& chosen : chosen_) chosen = 1 - std::exp(-chosen * time);
}

double skew_that_meets(double met, double slots, std::int64_t experts, std::int64_t top_k) {
  constexpr double kMost = 8;
  const auto met_with = [&](double skew) { return ExpertUse(experts, top_k, skew).met(slots, 1, CachePolicy::lfu); };
  return met <= met_with(0) ? 0 : std::min(kMost, solve(met, met_with));
}

double ExpertUse::touched(double tokens) const {
  if (chosen_.empty()) return 0;
  double sum = 0;
  for (const double chosen : chosen_) sum += 1 - std::pow(1 - chosen, tokens);
  return sum / static_cast<double>(chosen_.size());
}

double ExpertUse::met(double slots, double tokens, CachePolicy policy) const {
  if (chosen_.empty() || slots >= static_cast<double>(chosen_.size())) return 1;
  constexpr double kNotAll = 1 - 1e-9;  // some have no slot, however seldom they are called for
  const auto touched = [&](double chosen) { return 1 - std::pow(1 - chosen, tokens); };
  double all = 0, here = 0;
  for (const double chosen : chosen_) all += touched(chosen);
  if (policy != CachePolicy::lru) {  // automatic finds the favourites where there are any
    double left = slots;
    for (std::size_t i = 0; i < chosen_.size() && left > 0; ++i, --left)
      here += touched(chosen_[i]) * std::min(1.0, left);
    // Without favourites the first ones are as good as any.
    return std::min(here / all, kNotAll);
  }
  if (slots <= all) {  // of the last pass alone, those that came last
    for (const double chosen : chosen_) here += touched(chosen) * touched(chosen) * slots / all;
    return std::min(here / all, kNotAll);
  }
  const auto kept = [](double chosen, double turns) { return 1 - std::pow(1 - chosen, turns); };
  const double turns = solve(slots, [&](double t) {
    double sum = 0;
    for (const double chosen : chosen_) sum += kept(chosen, t);
    return sum;
  });
  for (const double chosen : chosen_) here += touched(chosen) * kept(chosen, turns);
  return std::min(here / all, kNotAll);
}

}  // namespace millrace::residency
