#include "exec/expert_choice.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace millrace::exec {
namespace {

constexpr float kLeastTotal = 6.103515625e-5f;  // weights are divided by at least this, as files are made for

/// Leaves only the best groups of neighbours in the choice: those whose largest, so many, sum up to most.
void keep_best_groups(const Experts& experts, float* selection) {
  const std::int32_t each = experts.count / experts.groups;
  float score[kMostGroups];
  std::int32_t best[kMostGroups];
  for (std::int32_t g = 0; g < experts.groups; ++g) {
    std::int32_t largest[2];
    const std::int32_t count = std::min(each, experts.group_best);
    kernels::top_k(selection + g * each, each, count, largest);
    score[g] = 0;
    for (std::int32_t i = 0; i < count; ++i) score[g] += selection[g * each + largest[i]];
  }
  kernels::top_k(score, experts.groups, experts.groups_used, best);
  for (std::int32_t g = 0; g < experts.groups; ++g)
    if (std::find(best, best + experts.groups_used, g) == best + experts.groups_used)
      std::fill_n(selection + g * each, each, -std::numeric_limits<float>::infinity());
}

/// Raises the preferred ones of those that may be chosen.
void raise(const Experts& experts, const RouteBias& route, float* selection) {
  float least = std::numeric_limits<float>::infinity(), most = -least;
  for (std::int32_t e = 0; e < experts.count; ++e) {
    if (!std::isfinite(selection[e])) continue;
    least = std::min(least, selection[e]);
    most = std::max(most, selection[e]);
  }
  if (!(most > least)) return;
  const float each = route.of_range * (most - least) / static_cast<float>(route.tiers);
  for (std::int32_t e = 0; e < experts.count; ++e)
    if (route.near[e] != 0) selection[e] += each * static_cast<float>(route.near[e]);
}

/// Puts the router's favourite in front, in the place of the last one where it is not among the chosen.
void keep_favourite(std::int32_t favourite, const Experts& experts, std::int32_t* chosen) {
  std::int32_t* const end = chosen + experts.top_k;
  std::int32_t* found = std::find(chosen, end, favourite);
  if (found == end) *--found = favourite;
  std::rotate(chosen, found, found + 1);
}

/// What the choice goes by with a bias of the choice, groups or preferred experts: in `selection`, filled here.
void choose_by_selection(const Experts& experts, const float* bias, const RouteBias& route, float* selection,
                         std::int32_t* chosen) {
  if (bias != nullptr)
    for (std::int32_t e = 0; e < experts.count; ++e) selection[e] += bias[e];
  if (experts.groups > 1) keep_best_groups(experts, selection);
  std::int32_t favourite = -1;
  if (route.near != nullptr) {
    kernels::top_k(selection, experts.count, 1, &favourite);
    raise(experts, route, selection);
  }
  kernels::top_k(selection, experts.count, experts.top_k, chosen);
  if (favourite >= 0) keep_favourite(favourite, experts, chosen);
}

}  // namespace

void choose_experts(const kernels::Table& table, const Experts& experts, const float* bias, const RouteBias& route,
                    float* scores, float* selection, std::int32_t* chosen, float* weight) {
  const bool prefers = route.near != nullptr && route.of_range > 0;
  const bool by_logits = prefers && bias == nullptr && experts.groups == 1 && experts.gating != Gating::sigmoid;
  if (by_logits) std::copy_n(scores, experts.count, selection);
  if (experts.gating == Gating::softmax) table.softmax(scores, experts.count);
  if (experts.gating == Gating::sigmoid)
    for (std::int32_t e = 0; e < experts.count; ++e) scores[e] = 1.0f / (1.0f + kernels::exp_f32(-scores[e]));
  if (prefers || bias != nullptr || experts.groups > 1) {
    if (!by_logits) std::copy_n(scores, experts.count, selection);
    choose_by_selection(experts, bias, prefers ? route : RouteBias{}, selection, chosen);
  } else {
    kernels::top_k(scores, experts.count, experts.top_k, chosen);
  }
  for (std::int32_t k = 0; k < experts.top_k; ++k) weight[k] = scores[chosen[k]];
  if (experts.gating == Gating::softmax_chosen) table.softmax(weight, experts.top_k);
  float total = 0;
  for (std::int32_t k = 0; k < experts.top_k; ++k) total += weight[k];
  for (std::int32_t k = 0; k < experts.top_k; ++k)
    weight[k] = (experts.normalize ? weight[k] / std::max(total, kLeastTotal) : weight[k]) * experts.scale;
}

}  // namespace millrace::exec
