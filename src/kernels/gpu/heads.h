// The contract of the small ops beside gated attention, layers with a state and mixtures on a GPU. Where
// nothing else is said they have the CPU's bits (kernels/kernels.h, exec/ops.h). Rules as in ops.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/gpu/ops.h"
#include "kernels/kernels.h"

namespace millrace::kernels::gpu {

/// out[i] [rows, heads, head_dim], of one or two: of each head the channels from first[i] on of the h-th of `heads`
/// equal parts of x [rows, cols]. No out is x.
struct PickCall {
  const float* x = nullptr;
  std::int64_t cols = 0;
  std::int32_t rows = 0, heads = 0, head_dim = 0;
  std::int32_t count = 1;
  std::int32_t first[2] = {};
  float* out[2] = {};
};
Status pick_heads(const PickCall& call, device::StreamRef stream);
Status multiply(float* x, const float* y, std::int64_t n, device::StreamRef stream);  // x *= y
/// x [rows, cols] /= 1 + e^-gate; gate: [rows, cols].
Status sigmoid_gate(float* x, const float* gate, std::int64_t n, device::StreamRef stream);
/// The same of whole blocks of 32, with the result in other forms. What is null is not written.
struct SigmoidGateCall {
  const float *x = nullptr, *gate = nullptr;  // [blocks, 32]
  std::int64_t blocks = 0;
  float* out = nullptr;  // [blocks, 32]; may be x
  Q8 out_q8;
  Bf16* out_bf16 = nullptr;
};
Status sigmoid_gate(const SigmoidGateCall& call, device::StreamRef stream);
/// x [rows, cols] *= 1 / (1 + e^-gate); gate: [rows].
Status sigmoid_gate_rows(float* x, const float* gate, std::int32_t rows, std::int32_t cols, device::StreamRef stream);
/// The first `heads` heads of each row of x [rows, cols], in place: divided by sqrt(sum of squares + eps).
Status l2_norm_heads(float* x, std::int64_t cols, std::int32_t rows, std::int32_t heads, std::int32_t head_dim,
                     float eps, device::StreamRef stream);
/// step = ln(1 + e^(step + bias)), decay = e^(a * step); [rows, cols] each. decay may be step, which is not kept then.
/// bias: entry of float32 [cols]; a: of [cols / together], each for as many neighbours. With a bound, below 0: decay =
/// e^(bound / (1 + e^(-|a| (step + bias)))), and step stays, unless it is decay.
Status time_step(float* decay, float* step, const std::byte* const* a, const std::byte* const* bias, std::int32_t rows,
                 std::int32_t cols, std::int32_t together, float bound, device::StreamRef stream);
/// Each of the `groups` equal parts of x's rows [rows, groups * dim], in place: x / rms(x) * its part of weight [groups
/// * dim], eps beside the mean of squares. Thread t of 256 adds elements t, t + 256, ... by one fma each; lanes of a
/// warp by a tree (16, 8, 4, 2, 1), then the warps in ascending order, from +0. The CPU's bits it has not.
Status rms_norm_groups(float* x, const std::byte* const* weight, std::int32_t rows, std::int32_t groups,
                       std::int32_t dim, float eps, device::StreamRef stream);
/// rms_norm() of ops.h with the result in other forms. What is null is not written.
struct NormCall {
  const float* x = nullptr;
  const std::int32_t* x_index = nullptr;
  const std::byte* const* weight = nullptr;
  std::int32_t rows = 0, cols = 0;
  float eps = 0;
  float* out = nullptr;  // [rows, cols]
  Q8 out_q8;
  Bf16* out_bf16 = nullptr;
};
Status rms_norm(const NormCall& call, device::StreamRef stream);
/// Of each head of a row: gated(gate, x / rms(x) * weight), with the bits of rms_norm() and gate_rows() one after the
/// other. What is null is not written.
struct GatedNormCall {
  const float *x = nullptr, *gate = nullptr;  // [rows, heads * head_dim]
  const std::byte* const* weight = nullptr;   // entry of float32 [head_dim]
  std::int32_t rows = 0, heads = 0;
  std::int32_t head_dim = 0;  // a multiple of 32, at most kMostGatedHeadDim
  float eps = 0;
  Activation activation = Activation::silu;
  float* out = nullptr;  // [rows, heads * head_dim]; may be `gate`
  Q8 out_q8;
  Bf16* out_bf16 = nullptr;
};
constexpr std::int32_t kMostGatedHeadDim = 512;
Status gated_norm(const GatedNormCall& call, device::StreamRef stream);
Status activate(Activation activation, float* x, std::int64_t n, device::StreamRef stream);  // x = activation(x) * 1
Status xielu(const Xielu& shape, float* x, std::int64_t n, device::StreamRef stream);        // x = xIELU(x)
/// out[r] = the largest of row r of x [rows, cols].
Status largest(const float* x, std::int32_t rows, std::int32_t cols, float* out, device::StreamRef stream);

/// What stands between the products of experts that have no gate: an entry's row of x becomes activation(x) * 1, in
/// place, or only as int8 in q8 where that is set. Entries as in ExpertCall.
struct ActivateEntriesCall {
  Activation activation = Activation::relu_squared;
  float* x = nullptr;  // [entries, cols]; cols: a multiple of 32 where q8 is set
  Q8 q8;               // [entries, cols]
  std::int32_t entries = 0, cols = 0;
  // Those of the experts [0, experts) alone, as sort_entries() has them; null: all.
  const std::int32_t* sorted = nullptr;
  const std::int32_t* expert_first = nullptr;
  std::int32_t experts = 0;
};
Status activate_entries(const ActivateEntriesCall& call, device::StreamRef stream);

/// What a mixture's experts gave of each row r, and an expert beside them that all rows share: y[r] (+)= (the sum over
/// places k ascending of fma(weights[r, k], expert_out[r, k], acc) from +0) + shared[r] / (1 + e^-gate[r]).
/// residual: that is added to y, else stored. So combine_experts(), sigmoid_gate_rows() and add() one after the other.
struct CombineCall {
  const float* expert_out = nullptr;  // [rows, places, cols], the first top_k of a row the experts'
  const float* weights = nullptr;     // [rows, top_k]
  const float* shared = nullptr;      // [rows, cols], shared_stride floats apart; null: there is none
  std::int64_t shared_stride = 0;
  const float* shared_gate = nullptr;  // [rows]; null: it counts in full
  std::int32_t rows = 0, top_k = 0, places = 0, cols = 0;
  bool residual = false;
  float* y = nullptr;  // [rows, cols]
};
Status combine(const CombineCall& call, device::StreamRef stream);

}  // namespace millrace::kernels::gpu
