// The contract of the small ops beside gated attention and layers with a state on a CUDA device. Every one has the
// CPU's bits (kernels/kernels.h, exec/ops.h). Rules as in cuda_kernels.h.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

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
cudaError_t activate(Activation activation, float* x, std::int64_t n, cudaStream_t stream);  // x = activation(x) * 1

}  // namespace millrace::kernels::cuda
