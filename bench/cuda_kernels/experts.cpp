// Mixtures: who is chosen, products with experts, and what is made of their results. A router chooses uniformly.
#include <fmt/format.h>

#include "cuda_kernels/shapes.h"
#include "kernels/cuda/launchers.h"
#include "tensor/codec.h"

namespace millrace::bench {
namespace {

using namespace kernels::cuda;

constexpr int kMostMatvecEntries = 64;  // more go to matmul_experts (exec/gpu/mixtures.cpp)

/// Gate and up together, or down. sorted: for matmul_experts.
ExpertCall make_call(Case& c, const Mixture& m, int rows, bool gated, bool sorted) {
  const Chosen router = choose_experts(rows, m.experts, m.top_k);
  ExpertCall call;
  call.entries = rows * m.top_k;
  call.experts = m.experts;
  call.rows = gated ? m.hidden : m.dim;
  call.cols = gated ? m.dim : m.hidden;
  call.dtype = call.up_dtype = m.dtype;
  call.address_stride = 1;
  call.weight = c.matrices(m.dtype, call.rows, call.cols, m.experts);
  if (gated) {
    call.up = c.matrices(m.dtype, call.rows, call.cols, m.experts);
    call.effect = Effect::gated;
    call.entries_per_x = m.top_k;
    call.x_q8 = c.q8(rows, call.cols);
    call.y_q8 = c.q8_room(call.entries, call.rows);
  } else {
    call.x_q8 = c.q8(call.entries, call.cols);
    call.y = c.writes<float>(std::int64_t{call.entries} * call.rows);
  }
  if (m.name == "gpt-oss-120b") {
    call.activation = gated ? kernels::Activation::clamped : call.activation;
    const std::int64_t all = std::int64_t{m.experts} * call.rows, touched = std::int64_t{router.touched} * call.rows;
    call.bias = c.vector(all, touched);
    if (gated) call.up_bias = c.vector(all, touched);
    call.bias_stride = call.rows;
  }
  call.chosen = c.holds(router.chosen);
  if (sorted) {
    call.sorted = c.holds(router.sorted);
    call.expert_first = c.holds(router.first);
  }
  const int matrices = gated ? 2 : 1;
  c.moves(static_cast<double>(row_bytes(m.dtype, call.cols)) * call.rows * router.touched * matrices);
  c.multiplies_int8(static_cast<double>(call.entries) * call.rows * call.cols * matrices);
  return call;
}

void time_expert_products(Suite& suite, const Mixture& m, int rows) {
  for (const bool gated : {true, false}) {
    const std::string name = fmt::format("{}, {}, {}", m.name, gated ? "gate_up" : "down", info(m.dtype).name);
    if (rows * m.top_k <= kMostMatvecEntries)
      suite.time("matvec_experts", name, rows, [=](Case& c) {
        const ExpertCall call = make_call(c, m, rows, gated, false);
        return [=](cudaStream_t stream) { return matvec_experts(call, stream); };
      });
    else
      suite.time("matmul_experts", name, rows, [=](Case& c) {
        const ExpertCall call = make_call(c, m, rows, gated, true);
        return [=](cudaStream_t stream) { return matmul_experts(call, stream); };
      });
  }
}

/// With a softmax over all experts; with groups and biases (DeepSeek); over those chosen (gpt-oss).
void time_routers(Suite& suite, const Mixture& m, int rows) {
  const std::int64_t entries = std::int64_t{rows} * m.top_k, scores = std::int64_t{rows} * m.experts;
  suite.time("route", m.name, rows, [=](Case& c) {
    const float* const x = c.reads<float>(scores);
    auto* const chosen = c.writes<std::int32_t>(entries);
    float* const weights = c.writes<float>(entries);
    return [=](cudaStream_t stream) { return route(x, rows, m.experts, m.top_k, true, 1, chosen, weights, stream); };
  });
  suite.time("choose", m.name, rows, [=](Case& c) {
    ChooseCall call;
    call.scores = c.reads<float>(scores);
    call.rows = rows;
    call.experts = m.experts;
    call.top_k = m.top_k;
    if (m.name == "DeepSeek") {
      call.bias = c.vector(m.experts);
      call.groups = 8;
      call.groups_used = 4;
      call.scale = 2.5F;
    } else {
      call.gating = m.name == "gpt-oss-120b" ? ChooseCall::Gating::softmax_chosen : ChooseCall::Gating::softmax;
    }
    call.chosen = c.writes<std::int32_t>(entries);
    call.weights = c.writes<float>(entries);
    return [=](cudaStream_t stream) { return choose(call, stream); };
  });
  suite.time("sort_entries", m.name, rows, [=](Case& c) {
    const auto* const chosen = c.holds(choose_experts(rows, m.experts, m.top_k).chosen);
    auto* const sorted = c.writes<std::int32_t>(entries);
    auto* const first = c.writes<std::int32_t>(m.experts + 1);
    return [=](cudaStream_t stream) {
      return sort_entries(chosen, static_cast<std::int32_t>(entries), m.experts, sorted, first, stream);
    };
  });
}

void time_results(Suite& suite, const Mixture& m, int rows) {
  const std::int64_t entries = std::int64_t{rows} * m.top_k, out = std::int64_t{rows} * m.dim;
  suite.time("combine_experts", m.name, rows, [=](Case& c) {
    const float* const x = c.reads<float>(entries * m.dim);
    const float* const weights = c.reads<float>(entries);
    float* const y = c.changes<float>(out);
    return [=](cudaStream_t stream) { return combine_experts(x, weights, rows, m.top_k, m.dim, true, y, stream); };
  });
  suite.time("combine", fmt::format("{}, a shared expert with a gate", m.name), rows, [=](Case& c) {
    CombineCall call;
    call.expert_out = c.reads<float>(entries * m.dim);
    call.weights = c.reads<float>(entries);
    call.shared = c.reads<float>(out);
    call.shared_stride = m.dim;
    call.shared_gate = c.reads<float>(rows);
    call.rows = rows;
    call.top_k = call.places = m.top_k;
    call.cols = m.dim;
    call.residual = true;
    call.y = c.changes<float>(out);
    return [=](cudaStream_t stream) { return combine(call, stream); };
  });
}

}  // namespace

void time_experts(Suite& suite) {
  for (const Mixture& m : kMixtures)
    for (const int rows : kAllRows) time_expert_products(suite, m, rows);
  for (const Mixture& m : kMixtures)
    for (const int rows : kAllRows) {
      time_routers(suite, m, rows);
      time_results(suite, m, rows);
    }
  // Experts without a gate: those of Nemotron's 30B-A3B.
  constexpr int kTopK = 6, kHidden = 1856;
  for (const int rows : kAllRows)
    suite.time("activate_entries", "Nemotron 30B-A3B, relu squared to int8", rows, [=](Case& c) {
      ActivateEntriesCall call;
      call.entries = rows * kTopK;
      call.cols = kHidden;
      call.x = c.reads<float>(std::int64_t{call.entries} * kHidden);
      call.q8 = c.q8_room(call.entries, kHidden);
      return [=](cudaStream_t stream) { return activate_entries(call, stream); };
    });
}

}  // namespace millrace::bench
