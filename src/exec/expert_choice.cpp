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

/// What the choice goes by with a bias of the choice, or groups: in `selection`, filled here.
void choose_by_selection(const Experts& experts, const float* scores, const float* bias, float* selection,
                         std::int32_t* chosen) {
  std::copy_n(scores, experts.count, selection);
  if (bias != nullptr)
    for (std::int32_t e = 0; e < experts.count; ++e) selection[e] += bias[e];
  if (experts.groups > 1) keep_best_groups(experts, selection);
  kernels::top_k(selection, experts.count, experts.top_k, chosen);
}

/// Gating::sparse_mixer. A score's distance is relative to its own size or the chosen one's, the larger.
void weigh_sparsely(const Experts& experts, const float* scores, const std::int32_t* chosen, float* weight) {
  constexpr float kNear = 0.02f;
  for (std::int32_t k = 0; k < experts.top_k; ++k) {
    const float most = scores[chosen[k]];
    float total = 0;
    for (std::int32_t e = 0; e < experts.count; ++e) {
      const bool taken = std::find(chosen, chosen + k, e) != chosen + k;
      const bool far = (most - scores[e]) / std::max(std::abs(scores[e]), most) > kNear;
      if (!taken && !far) total += kernels::exp_f32(scores[e] - most);
    }
    weight[k] = 1.0f / total;  // which has the chosen one's own 1
  }
}

}  // namespace

void choose_experts(const kernels::Table& table, const Experts& experts, const float* bias, float* scores,
                    float* selection, std::int32_t* chosen, float* weight) {
  if (experts.gating == Gating::softmax) table.softmax(scores, experts.count);
  if (experts.gating == Gating::sigmoid)
    for (std::int32_t e = 0; e < experts.count; ++e) scores[e] = 1.0f / (1.0f + kernels::exp_f32(-scores[e]));
  if (experts.gating == Gating::sqrt_softplus)
    for (std::int32_t e = 0; e < experts.count; ++e) scores[e] = std::sqrt(kernels::softplus_f32(scores[e]));
  const bool by_token = !experts.of_tokens.none();
  if (!by_token && (bias != nullptr || experts.groups > 1))
    choose_by_selection(experts, scores, bias, selection, chosen);
  else if (!by_token)
    kernels::top_k(scores, experts.count, experts.top_k, chosen);
  for (std::int32_t k = 0; k < experts.top_k; ++k) weight[k] = scores[chosen[k]];
  if (experts.gating == Gating::softmax_chosen) table.softmax(weight, experts.top_k);
  if (experts.gating == Gating::sparse_mixer) weigh_sparsely(experts, scores, chosen, weight);
  float total = 0;
  for (std::int32_t k = 0; k < experts.top_k; ++k) total += weight[k];
  for (std::int32_t k = 0; k < experts.top_k; ++k)
    weight[k] = (experts.normalize ? weight[k] / std::max(total, kLeastTotal) : weight[k]) * experts.scale;
}

}  // namespace millrace::exec
