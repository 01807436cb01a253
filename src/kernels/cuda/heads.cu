// Contracts in heads.h.
#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/exp.cuh"
#include "kernels/cuda/gated_norm.cuh"
#include "kernels/cuda/launchers.h"
#include "kernels/cuda/norm_sum.cuh"
#include "kernels/cuda/pdl.cuh"
#include "kernels/cuda/quantize.cuh"
#include "kernels/cuda/softplus.cuh"

namespace millrace::kernels::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;

unsigned blocks_for(std::int64_t n, int each = kThreads) { return static_cast<unsigned>((n + each - 1) / each); }

// ---------------------------------------------------------------------------------------------------------------------
// Elementwise: an element a thread.

__global__ void pick_heads_kernel(const __grid_constant__ PickCall call) {
  allow_successor();
  wait_for_predecessor();
  const std::int64_t row = blockIdx.x;
  const int i = static_cast<int>(blockIdx.y) * kThreads + static_cast<int>(threadIdx.x),
            all = call.heads * call.head_dim;
  if (i >= all) return;
  const bool second = blockIdx.z > 0;
  const int first = second ? call.first[1] : call.first[0];
  float* const out = second ? call.out[1] : call.out[0];
  const std::int64_t part = call.cols / call.heads;
  out[row * all + i] = call.x[row * call.cols + i / call.head_dim * part + first + i % call.head_dim];
}

/// x[i] = of(x[i], y[i])
template <typename Of>
__global__ void pairs_kernel(float* x, const float* y, std::int64_t n, Of of) {
  allow_successor();
  wait_for_predecessor();
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < n) x[i] = of(x[i], y[i]);
}
struct Times {
  __device__ float operator()(float x, float y) const { return x * y; }
};
struct OverSigmoid {
  __device__ float operator()(float x, float y) const { return over_sigmoid(x, y); }
};
template <typename Of>
cudaError_t pairs(float* x, const float* y, std::int64_t n, Of of, cudaStream_t stream) {
  if (n <= 0) return cudaSuccess;
  return launch(pairs_kernel<Of>, dim3(blocks_for(n)), dim3(kThreads), 0, stream, x, y, n, of);
}

/// Four neighbouring channels a thread, so that eight lanes have a block.
__global__ void __launch_bounds__(kThreads) sigmoid_gate_kernel(const __grid_constant__ SigmoidGateCall call) {
  allow_successor();
  wait_for_predecessor();
  const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x, block = at / 8;
  if (block >= call.blocks) return;
  const float4 x = reinterpret_cast<const float4*>(call.x)[at], g = reinterpret_cast<const float4*>(call.gate)[at];
  const float y[4] = {over_sigmoid(x.x, g.x), over_sigmoid(x.y, g.y), over_sigmoid(x.z, g.z), over_sigmoid(x.w, g.w)};
  if (call.out != nullptr) reinterpret_cast<float4*>(call.out)[at] = make_float4(y[0], y[1], y[2], y[3]);
  if (call.out_bf16 != nullptr) store_bf16(call.out_bf16, at, y);
  if (call.out_q8.q != nullptr) quantize_block(y, call.out_q8.q + 32 * block, call.out_q8.scale + block);
}

__global__ void sigmoid_gate_rows_kernel(float* x, const float* gate, int cols) {
  allow_successor();
  wait_for_predecessor();
  const std::int64_t row = blockIdx.x;
  const int i = static_cast<int>(blockIdx.y) * kThreads + static_cast<int>(threadIdx.x);
  if (i < cols) x[row * cols + i] *= over_sigmoid(1.0f, gate[row]);
}

__global__ void time_step_kernel(float* decay, float* step, const std::byte* const* a, const std::byte* const* bias,
                                 std::int64_t n, int cols, int together, float bound) {
  allow_successor();
  wait_for_predecessor();
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= n) return;
  const auto c = static_cast<int>(i % cols);
  const float x = step[i] + reinterpret_cast<const float*>(*bias)[c];
  const float factor = reinterpret_cast<const float*>(*a)[c / together];
  if (bound != 0) {
    decay[i] = exp_f32(bound * over_sigmoid(1.0f, fabsf(factor) * x));
    return;
  }
  const float value = softplus(x);
  step[i] = value;
  decay[i] = exp_f32(factor * value);  // may lie where the step did
}

__global__ void xielu_kernel(Xielu shape, float* x, std::int64_t n) {
  allow_successor();
  wait_for_predecessor();
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= n) return;
  const float v = x[i], positive = max_or_nan(0.0f, v), negative = min_or_nan(0.0f, v);
  const float bent = exp_f32(min_or_nan(shape.eps, v)) - 1.0f - negative;
  const float squared = shape.alpha_p * positive * positive;
  x[i] = __fmaf_rn(shape.beta, v, __fmaf_rn(shape.alpha_n, bent, squared));
}

/// A warp a row.
__global__ void __launch_bounds__(kThreads) largest_kernel(const float* x, int rows, int cols, float* out) {
  allow_successor();
  wait_for_predecessor();
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * (kThreads / 32) + threadIdx.x / 32;
  if (row >= rows) return;
  float most = -INFINITY;
  for (int c = static_cast<int>(threadIdx.x) % 32; c < cols; c += 32) most = fmaxf(most, x[row * cols + c]);
#pragma unroll
  for (int step = 16; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, step));
  if (threadIdx.x % 32 == 0) out[row] = most;
}

__global__ void activate_kernel(Activation activation, float* x, std::int64_t n) {
  allow_successor();
  wait_for_predecessor();
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= n) return;
  for_activation_or_erf(activation, [&](auto which) { x[i] = gated<decltype(which)::value>(x[i], 1.0f); });
}

// ---------------------------------------------------------------------------------------------------------------------
// Entries of experts: four neighbouring elements a thread, so that eight lanes have a block of int8.

constexpr int kActivated = 4;

__global__ void __launch_bounds__(kThreads) activate_entries_kernel(const __grid_constant__ ActivateEntriesCall call) {
  allow_successor();
  wait_for_predecessor();
  const int column = (static_cast<int>(blockIdx.y) * kThreads + static_cast<int>(threadIdx.x)) * kActivated;
  int entry = static_cast<int>(blockIdx.x);
  if (call.sorted != nullptr) {
    const int place = call.expert_first[0] + entry;
    if (place >= call.expert_first[call.experts]) return;
    entry = call.sorted[place];
  }
  if (column >= call.cols) return;  // of a block of 32 all go on, or none
  float* const x = call.x + static_cast<std::int64_t>(entry) * call.cols + column;
  float v[kActivated];
  for_activation_or_erf(call.activation, [&](auto which) {
#pragma unroll
    for (int i = 0; i < kActivated; ++i)
      v[i] = column + i < call.cols ? gated<decltype(which)::value>(x[i], 1.0f) : 0.0f;
  });
  if (call.q8.q != nullptr) {
    const std::int64_t block = (static_cast<std::int64_t>(entry) * call.cols + column) / 32;
    return quantize_block<kActivated>(v, call.q8.q + block * 32, call.q8.scale + block);
  }
#pragma unroll
  for (int i = 0; i < kActivated; ++i)
    if (column + i < call.cols) x[i] = v[i];
}

// ---------------------------------------------------------------------------------------------------------------------
// L2 norm: a head a warp. Element i is lane i % 32's.

constexpr int kHeld = 8;  // elements of a lane that stay in registers

__global__ void __launch_bounds__(kThreads)
    l2_norm_heads_kernel(float* x, std::int64_t cols, std::int64_t all, int heads, int head_dim, float eps) {
  allow_successor();
  wait_for_predecessor();
  const std::int64_t number = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  if (number >= all) return;
  float* const head = x + number / heads * cols + number % heads * head_dim;
  float held[kHeld], squares = 0;
#pragma unroll
  for (int i = 0; i < kHeld; ++i) held[i] = lane + kWarp * i < head_dim ? head[lane + kWarp * i] : 0;
#pragma unroll
  for (int i = 0; i < kHeld; ++i) squares = __fmaf_rn(held[i], held[i], squares);
  for (int e = lane + kWarp * kHeld; e < head_dim; e += kWarp) squares = __fmaf_rn(head[e], head[e], squares);
  const float scale = 1.0f / sqrtf(sum_over_warp(squares) + eps);
#pragma unroll
  for (int i = 0; i < kHeld; ++i)
    if (lane + kWarp * i < head_dim) head[lane + kWarp * i] = held[i] * scale;
  for (int e = lane + kWarp * kHeld; e < head_dim; e += kWarp) head[e] *= scale;
}

// ---------------------------------------------------------------------------------------------------------------------
// RMS norm and a gate: a head a warp.

template <int kVectors>
__global__ void __launch_bounds__(kThreads) gated_norm_kernel(const __grid_constant__ GatedNormCall call) {
  allow_successor();
  const int lane = static_cast<int>(threadIdx.x) % kWarp, count = call.head_dim / 4;
  const auto* const weight = reinterpret_cast<const float4*>(*call.weight);
  float4 w[kVectors], v[kVectors], g[kVectors];
#pragma unroll
  for (int i = 0; i < kVectors; ++i)  // no kernel of the pass writes it
    w[i] = lane + kWarp * i < count ? weight[lane + kWarp * i] : make_float4(0, 0, 0, 0);
  wait_for_predecessor();
  const std::int64_t head = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  if (head >= static_cast<std::int64_t>(call.rows) * call.heads) return;
  const auto* const x = reinterpret_cast<const float4*>(call.x) + head * count;
  const auto* const gate = reinterpret_cast<const float4*>(call.gate) + head * count;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const bool there = lane + kWarp * i < count;
    v[i] = there ? x[lane + kWarp * i] : make_float4(0, 0, 0, 0);
    g[i] = there ? gate[lane + kWarp * i] : make_float4(0, 0, 0, 0);
  }
  gate_normal_head<kVectors>(call, head, v, g, w);
}

// ---------------------------------------------------------------------------------------------------------------------
// RMS norm: a part of a row a block.

__global__ void __launch_bounds__(kThreads)
    rms_norm_groups_kernel(float* x, const std::byte* const* weight, int groups, int dim, float eps) {
  __shared__ float warps[kWarps];
  allow_successor();
  wait_for_predecessor();
  const int thread = static_cast<int>(threadIdx.x), group = static_cast<int>(blockIdx.x) % groups;
  float* const part = x + static_cast<std::int64_t>(blockIdx.x) * dim;
  const float* const by = reinterpret_cast<const float*>(*weight) + static_cast<std::int64_t>(group) * dim;
  float squares = 0;
#pragma unroll 4
  for (int i = thread; i < dim; i += kThreads) squares = __fmaf_rn(part[i], part[i], squares);
  squares = sum_over_warp(squares);
  if (thread % kWarp == 0) warps[thread / kWarp] = squares;
  __syncthreads();
  float sum = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) sum += warps[w];
  const float scale = norm_scale(sum, dim, eps);
#pragma unroll 4
  for (int i = thread; i < dim; i += kThreads) part[i] = part[i] * scale * by[i];
}

}  // namespace

cudaError_t pick_heads(const PickCall& call, cudaStream_t stream) {
  if (call.rows <= 0) return cudaSuccess;
  const dim3 grid(static_cast<unsigned>(call.rows), blocks_for(std::int64_t{call.heads} * call.head_dim),
                  static_cast<unsigned>(call.count));
  return launch(pick_heads_kernel, grid, dim3(kThreads), 0, stream, call);
}

cudaError_t multiply(float* x, const float* y, std::int64_t n, cudaStream_t stream) {
  return pairs(x, y, n, Times(), stream);
}

cudaError_t sigmoid_gate(float* x, const float* gate, std::int64_t n, cudaStream_t stream) {
  return pairs(x, gate, n, OverSigmoid(), stream);
}

cudaError_t sigmoid_gate(const SigmoidGateCall& call, cudaStream_t stream) {
  if (call.blocks <= 0) return cudaSuccess;
  return launch(sigmoid_gate_kernel, dim3(blocks_for(call.blocks * 8)), dim3(kThreads), 0, stream, call);
}

cudaError_t sigmoid_gate_rows(float* x, const float* gate, std::int32_t rows, std::int32_t cols, cudaStream_t stream) {
  if (rows <= 0 || cols <= 0) return cudaSuccess;
  const dim3 grid(static_cast<unsigned>(rows), blocks_for(cols));
  return launch(sigmoid_gate_rows_kernel, grid, dim3(kThreads), 0, stream, x, gate, cols);
}

cudaError_t l2_norm_heads(float* x, std::int64_t cols, std::int32_t rows, std::int32_t heads, std::int32_t head_dim,
                          float eps, cudaStream_t stream) {
  const std::int64_t all = std::int64_t{rows} * heads;
  if (all <= 0) return cudaSuccess;
  return launch(l2_norm_heads_kernel, dim3(blocks_for(all, kWarps)), dim3(kThreads), 0, stream, x, cols, all, heads,
                head_dim, eps);
}

cudaError_t rms_norm_groups(float* x, const std::byte* const* weight, std::int32_t rows, std::int32_t groups,
                            std::int32_t dim, float eps, cudaStream_t stream) {
  if (rows <= 0 || groups <= 0) return cudaSuccess;
  return launch(rms_norm_groups_kernel, dim3(static_cast<unsigned>(rows) * static_cast<unsigned>(groups)),
                dim3(kThreads), 0, stream, x, weight, groups, dim, eps);
}

cudaError_t gated_norm(const GatedNormCall& call, cudaStream_t stream) {
  const std::int64_t heads = std::int64_t{call.rows} * call.heads;
  if (heads <= 0) return cudaSuccess;
  if (call.head_dim % 32 != 0 || call.head_dim > kMostGatedHeadDim) return cudaErrorInvalidValue;
  const auto run = [&](auto* kernel) {
    return launch(kernel, dim3(blocks_for(heads, kWarps)), dim3(kThreads), 0, stream, call);
  };
  if (call.head_dim <= 4 * kWarp) return run(gated_norm_kernel<1>);
  if (call.head_dim <= 8 * kWarp) return run(gated_norm_kernel<2>);
  return run(gated_norm_kernel<4>);
}
static_assert(kMostGatedHeadDim == 4 * 4 * kWarp);

cudaError_t time_step(float* decay, float* step, const std::byte* const* a, const std::byte* const* bias,
                      std::int32_t rows, std::int32_t cols, std::int32_t together, float bound, cudaStream_t stream) {
  const std::int64_t n = std::int64_t{rows} * cols;
  if (n <= 0) return cudaSuccess;
  if (together < 1 || cols % together != 0) return cudaErrorInvalidValue;
  return launch(time_step_kernel, dim3(blocks_for(n)), dim3(kThreads), 0, stream, decay, step, a, bias, n, cols,
                together, bound);
}

cudaError_t activate(Activation activation, float* x, std::int64_t n, cudaStream_t stream) {
  if (n <= 0) return cudaSuccess;
  return launch(activate_kernel, dim3(blocks_for(n)), dim3(kThreads), 0, stream, activation, x, n);
}

cudaError_t xielu(const Xielu& shape, float* x, std::int64_t n, cudaStream_t stream) {
  if (n <= 0) return cudaSuccess;
  return launch(xielu_kernel, dim3(blocks_for(n)), dim3(kThreads), 0, stream, shape, x, n);
}

cudaError_t largest(const float* x, std::int32_t rows, std::int32_t cols, float* out, cudaStream_t stream) {
  if (rows <= 0 || cols <= 0) return cudaSuccess;
  constexpr int kRows = kThreads / 32;
  return launch(largest_kernel, dim3((rows + kRows - 1) / kRows), dim3(kThreads), 0, stream, x, rows, cols, out);
}

cudaError_t activate_entries(const ActivateEntriesCall& call, cudaStream_t stream) {
  if (call.entries <= 0 || call.cols <= 0) return cudaSuccess;
  const dim3 grid(static_cast<unsigned>(call.entries), blocks_for(call.cols, kThreads * kActivated));
  return launch(activate_entries_kernel, grid, dim3(kThreads), 0, stream, call);
}

}  // namespace millrace::kernels::cuda
