// The contract of the small ops beside gated attention and layers with a state on a CUDA device. Where nothing else is
// said they have the CPU's bits (kernels/kernels.h, exec/ops.h). Rules as in cuda_kernels.h.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/cuda_kernels.h"
#include "kernels/kernels.h"

namespace millrace::kernels::cuda {

/// out [rows, heads, head_dim]: of each head the channels from `first` on of the h-th of `heads` equal parts of x
/// [rows, cols]. out is not x.
cudaError_t pick_heads(const float* x, std::int64_t cols, std::int32_t rows, std::int32_t heads, std::int32_t head_dim,
                       std::int32_t first, float* out, cudaStream_t stream);
cudaError_t multiply(float* x, const float* y, std::int64_t n, cudaStream_t stream);  // x *= y
/// x [rows, cols] /= 1 + e^-gate; gate: [rows, cols].
cudaError_t sigmoid_gate(float* x, const float* gate, std::int64_t n, cudaStream_t stream);
/// x [rows, cols] *= 1 / (1 + e^-gate); gate: [rows].
cudaError_t sigmoid_gate_rows(float* x, const float* gate, std::int32_t rows, std::int32_t cols, cudaStream_t stream);
/// The first `heads` heads of each row of x [rows, cols], in place: divided by sqrt(sum of squares + eps).
cudaError_t l2_norm_heads(float* x, std::int64_t cols, std::int32_t rows, std::int32_t heads, std::int32_t head_dim,
                          float eps, cudaStream_t stream);
/// step = ln(1 + e^(step + bias)), decay = e^(a * step); [rows, cols] each. decay may be step, which is not kept then.
/// a, bias: entries of float32 [cols].
cudaError_t time_step(float* decay, float* step, const std::byte* const* a, const std::byte* const* bias,
                      std::int32_t rows, std::int32_t cols, cudaStream_t stream);
/// Each of the `groups` equal parts of x's rows [rows, groups * dim], in place: x / rms(x) * its part of weight [groups
/// * dim], eps beside the mean of squares. Thread t of 256 adds elements t, t + 256, ... by one fma each; lanes of a
/// warp by a tree (16, 8, 4, 2, 1), then the warps in ascending order, from +0. The CPU's bits it has not.
cudaError_t rms_norm_groups(float* x, const std::byte* const* weight, std::int32_t rows, std::int32_t groups,
                            std::int32_t dim, float eps, cudaStream_t stream);
cudaError_t activate(Activation activation, float* x, std::int64_t n, cudaStream_t stream);  // x = activation(x) * 1

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
cudaError_t activate_entries(const ActivateEntriesCall& call, cudaStream_t stream);

}  // namespace millrace::kernels::cuda
