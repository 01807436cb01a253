// Routers, sums over experts, and what the sampler gets, with the GPU's bits.
#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "kernels.h"
#include "kernels/gpu/draw.h"
#include "kernels/gpu/gates.h"
#include "kernels/gpu/heads.h"

namespace millrace::kernels::gpu {

namespace {

using simulated::at;

/// In lanes of 32, as the router's warp has them.
void softmax(std::vector<float>& p) {
  float most = -INFINITY;
  for (const float v : p) most = std::fmax(most, v);
  for (float& v : p) v = exp_f32(v - most);
  const float total = simulated::lane_sum(static_cast<std::int64_t>(p.size()), [&](std::int64_t i, float acc) {
    return acc + p[static_cast<std::size_t>(i)];
  });
  for (float& v : p) v /= total;
}

/// -infinity for all experts outside of the best groups.
void keep_best_groups(const ChooseCall& call, std::vector<float>& selection) {
  const int each = call.experts / call.groups;
  std::vector<float> score(static_cast<std::size_t>(call.groups));
  for (int g = 0; g < call.groups; ++g) {
    std::vector<float> of(selection.begin() + g * each, selection.begin() + (g + 1) * each);
    std::sort(of.begin(), of.end(), std::greater<>());
    score[static_cast<std::size_t>(g)] = each > 1 ? of[0] + of[1] : of[0];
  }
  std::vector<int> order(score.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    return score[static_cast<std::size_t>(a)] > score[static_cast<std::size_t>(b)];
  });
  for (int i = call.groups_used; i < call.groups; ++i)
    std::fill_n(selection.begin() + order[static_cast<std::size_t>(i)] * each, each, -INFINITY);
}

void choose_row(const ChooseCall& call, std::int64_t row) {
  using Gating = ChooseCall::Gating;
  const float* const from = call.scores + row * call.experts;
  std::vector<float> p(from, from + call.experts);
  if (call.gating == Gating::sigmoid)
    for (float& v : p) v = 1.0f / (1.0f + exp_f32(0.0f - v));
  if (call.gating == Gating::softmax) softmax(p);
  std::vector<float> selection = p;
  if (const float* const bias = at(call.bias); bias != nullptr)
    for (std::size_t e = 0; e < p.size(); ++e) selection[e] += bias[e];
  if (call.groups > 1) keep_best_groups(call, selection);
  std::vector<std::int32_t> order(p.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
    return selection[static_cast<std::size_t>(a)] > selection[static_cast<std::size_t>(b)];
  });
  std::vector<float> chosen;
  float sum = 0;
  for (int k = 0; k < call.top_k; ++k) {
    float probability = p[static_cast<std::size_t>(order[static_cast<std::size_t>(k)])];
    if (call.gating == Gating::sparse_mixer) {
      const float mine = probability;
      const auto gone = order.begin() + k;
      probability = 1.0f / simulated::lane_sum(call.experts, [&](std::int64_t e, float acc) {
                      const float score = p[static_cast<std::size_t>(e)];
                      const bool far = (mine - score) / std::fmax(std::fabs(score), mine) > 0.02f;
                      const bool taken = std::find(order.begin(), gone, static_cast<std::int32_t>(e)) != gone;
                      return taken || far ? acc : acc + exp_f32(score - mine);
                    });
    }
    if (call.gating == Gating::softmax_chosen)
      probability = exp_f32(probability - p[static_cast<std::size_t>(order[0])]);
    sum += probability;
    chosen.push_back(probability);
  }
  const bool divide = call.normalize || call.gating == Gating::softmax_chosen;
  for (int k = 0; k < call.top_k; ++k) {
    const std::int32_t expert = order[static_cast<std::size_t>(k)];
    const float mine = chosen[static_cast<std::size_t>(k)];
    float weight = (divide ? mine / (sum < 0x1p-14f ? 0x1p-14f : sum) : mine) * call.scale;
    if (call.output_scale != nullptr) weight *= at(call.output_scale)[expert];
    if (call.hidden_scale != nullptr) weight *= at(call.hidden_scale)[expert];
    call.chosen[row * call.top_k + k] = expert;
    call.weights[row * call.top_k + k] = weight;
  }
}

void combine_row(const CombineCall& call, std::int64_t row) {
  float by = 1;
  if (call.shared_gate != nullptr) simulated::cpu().sigmoid_mul(&by, call.shared_gate + row, 1);
  for (std::int64_t c = 0; c < call.cols; ++c) {
    float acc = 0;
    for (std::int64_t k = 0; k < call.top_k; ++k)
      acc = std::fma(call.weights[row * call.top_k + k], call.expert_out[(row * call.places + k) * call.cols + c], acc);
    if (call.shared != nullptr) acc = acc + call.shared[row * call.shared_stride + c] * by;
    float& y = call.y[row * call.cols + c];
    y = call.residual ? y + acc : acc;
  }
}

/// Larger logits have larger ones; NaN has the order of its bits.
std::uint32_t order_of(float logit) {
  const auto bits = std::bit_cast<std::uint32_t>(logit);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

void find_candidates(const float* logits, std::int32_t vocab, Candidates& out) {
  std::vector<std::int32_t> order(static_cast<std::size_t>(vocab));
  std::iota(order.begin(), order.end(), 0);
  out.count = std::min(vocab, kCandidates);
  std::partial_sort(order.begin(), order.begin() + out.count, order.end(), [&](std::int32_t a, std::int32_t b) {
    const std::uint32_t left = order_of(logits[a]), right = order_of(logits[b]);
    return left != right ? left > right : a < b;
  });
  out.finite = std::all_of(logits, logits + vocab, [](float v) { return std::isfinite(v); }) ? 1 : 0;
  for (int i = 0; i < kCandidates; ++i) {
    out.id[i] = i < out.count ? order[static_cast<std::size_t>(i)] : -1;
    out.logit[i] = i < out.count ? logits[out.id[i]] : -INFINITY;
  }
}

}  // namespace

Status route(const float* scores, std::int32_t rows, std::int32_t experts, std::int32_t top_k, bool normalize,
             float scale, std::int32_t* chosen, float* weights, device::StreamRef stream) {
  ChooseCall call;
  call.scores = scores;
  call.rows = rows;
  call.experts = experts;
  call.top_k = top_k;
  call.gating = ChooseCall::Gating::softmax;
  call.normalize = normalize;
  call.scale = scale;
  call.chosen = chosen;
  call.weights = weights;
  return choose(call, stream);
}
Status choose(const ChooseCall& call, device::StreamRef stream) {
  return simulated::launch(stream, call, [](const ChooseCall& c) {
    for (std::int64_t r = 0; r < c.rows; ++r) choose_row(c, r);
  });
}
Status sort_entries(const std::int32_t* chosen, std::int32_t entries, std::int32_t experts, std::int32_t* sorted,
                    std::int32_t* expert_first, device::StreamRef stream) {
  return simulated::enqueue(stream, [=] {
    std::iota(sorted, sorted + entries, 0);
    std::stable_sort(sorted, sorted + entries, [&](std::int32_t a, std::int32_t b) { return chosen[a] < chosen[b]; });
    for (std::int32_t e = 0; e <= experts; ++e)
      expert_first[e] =
          static_cast<std::int32_t>(std::count_if(chosen, chosen + entries, [&](std::int32_t c) { return c < e; }));
  });
}
Status combine(const CombineCall& call, device::StreamRef stream) {
  return simulated::launch(stream, call, [](const CombineCall& c) {
    for (std::int64_t r = 0; r < c.rows; ++r) combine_row(c, r);
  });
}
Status combine_experts(const float* expert_out, const float* weights, std::int32_t rows, std::int32_t top_k,
                       std::int32_t cols, bool residual, float* y, device::StreamRef stream) {
  CombineCall call;
  call.expert_out = expert_out;
  call.weights = weights;
  call.rows = rows;
  call.top_k = call.places = top_k;
  call.cols = cols;
  call.residual = residual;
  call.y = y;
  return combine(call, stream);
}

std::size_t sample_workspace_bytes(std::int32_t, std::int32_t) { return 256; }
Status candidates(const float* logits, std::int32_t rows, std::int32_t vocab, Candidates* out, std::byte*,
                  device::StreamRef stream) {
  return simulated::enqueue(stream, [=] {
    for (std::int64_t r = 0; r < rows; ++r) find_candidates(logits + r * vocab, vocab, out[r]);
  });
}
Status draw(const float* logits, std::int32_t rows, std::int32_t vocab, const DrawRule* rules, const Candidates*,
            std::int32_t* drawn, device::StreamRef stream) {
  if (vocab > kMostVocab) return simulated::refused();
  return simulated::enqueue(stream, [=] {
    std::vector<std::uint64_t> scratch;
    for (std::int64_t r = 0; r < rows; ++r)
      drawn[r] = rules[r].temperature > 0
                     ? kernels::draw({logits + r * vocab, static_cast<std::size_t>(vocab)}, rules[r], scratch)
                     : -1;
  });
}

}  // namespace millrace::kernels::gpu
