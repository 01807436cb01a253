// Contracts in gates.h.
#include <cuda_runtime.h>

#include "kernels/cuda/exp.cuh"
#include "kernels/cuda/gates.h"
#include "kernels/cuda/pdl.cuh"

namespace millrace::kernels::cuda {
namespace {

constexpr int kWarp = 32, kThreads = 256;
constexpr unsigned kAllLanes = 0xffffffffu;

// ---------------------------------------------------------------------------------------------------------------------
// Elementwise: an element a thread.

/// The operations of ops_body.h, one by one.
__device__ __forceinline__ float gelu(float x) {
  const float cubed = x * x * x;
  const float inner = 0x1.988454p+0f * __fmaf_rn(0x1.6e4e26p-5f, cubed, x);
  return x / (1.0f + exp_f32(0.0f - inner));
}

__global__ void scale_kernel(float* x, float factor, std::int64_t n) {
  allow_successor();
  wait_for_predecessor();
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < n) x[i] *= factor;
}

__global__ void add_scaled_kernel(float* x, const float* y, float factor, std::int64_t n) {
  allow_successor();
  wait_for_predecessor();
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < n) x[i] = __fmaf_rn(factor, y[i], x[i]);
}

__global__ void temper_kernel(float* x, const std::int32_t* position, float scale, std::int32_t period, int cols) {
  allow_successor();
  wait_for_predecessor();
  const std::int64_t row = blockIdx.x;
  const int i = static_cast<int>(blockIdx.y) * kThreads + static_cast<int>(threadIdx.x);
  if (i >= cols) return;
  const double grown = 1 + scale * log(static_cast<double>(position[row] / period) + 1);
  x[row * cols + i] *= static_cast<float>(grown);
}

template <Activation kActivation>
__global__ void gate_mul_kernel(float* gate, const float* up, std::int64_t n) {
  allow_successor();
  wait_for_predecessor();
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= n) return;
  gate[i] = (kActivation == Activation::silu ? silu(gate[i]) : gelu(gate[i])) * up[i];
}

dim3 blocks_for(std::int64_t n) { return dim3(static_cast<unsigned>((n + kThreads - 1) / kThreads)); }

// ---------------------------------------------------------------------------------------------------------------------
// choose: a warp a row. Lane l holds experts l, l + 32, ...

constexpr int kChooseWarps = 4;

/// Floats in the order of signed integers; -0 as 0, and what is not a number last.
__device__ __forceinline__ int ordered(float x) {
  if (!(x == x)) return INT_MIN + 1;
  const int bits = __float_as_int(x + 0.0f);
  return bits >= 0 ? bits : static_cast<int>(0x80000000u - static_cast<unsigned>(bits));
}

template <int kEach>
__global__ void __launch_bounds__(kWarp* kChooseWarps) choose_kernel(ChooseCall call) {
  allow_successor();
  wait_for_predecessor();
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int row = static_cast<int>(blockIdx.x) * kChooseWarps + static_cast<int>(threadIdx.x) / kWarp;
  if (row >= call.rows) return;
  const float* from = call.scores + static_cast<std::int64_t>(row) * call.experts;
  const float* bias = call.bias == nullptr ? nullptr : reinterpret_cast<const float*>(*call.bias);
  float p[kEach];
  int key[kEach];  // INT_MIN: gone, or never was
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int expert = lane + kWarp * i;
    const bool there = expert < call.experts;
    p[i] = there ? from[expert] : 0;
    if (call.gating == ChooseCall::Gating::sigmoid) p[i] = 1.0f / (1.0f + exp_f32(0.0f - p[i]));
    key[i] = there ? ordered(bias == nullptr ? p[i] : p[i] + bias[expert]) : INT_MIN;
  }
  float sum = 0, mine = 0, first = 0;
  int my_expert = 0;
  for (int k = 0; k < call.top_k; ++k) {
    int best = INT_MIN, place = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (key[i] > best) best = key[i], place = i;
    }
    const int largest = __reduce_max_sync(kAllLanes, best);
    const int expert = __reduce_min_sync(kAllLanes, best == largest ? lane + kWarp * place : INT_MAX);
    float probability = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (lane + kWarp * i != expert) continue;
      key[i] = INT_MIN;
      probability = p[i];
    }
    probability = __shfl_sync(kAllLanes, probability, expert % kWarp);
    if (call.gating == ChooseCall::Gating::softmax_chosen) {
      if (k == 0) first = probability;  // the largest
      probability = exp_f32(probability - first);
    }
    sum += probability;
    if (lane == k) mine = probability, my_expert = expert;
  }
  if (lane >= call.top_k) return;
  const bool divide = call.normalize || call.gating == ChooseCall::Gating::softmax_chosen;
  const std::int64_t at = static_cast<std::int64_t>(row) * call.top_k + lane;
  call.chosen[at] = my_expert;
  call.weights[at] = (divide ? mine / (sum < 0x1p-14f ? 0x1p-14f : sum) : mine) * call.scale;
}

}  // namespace

cudaError_t scale(float* x, float factor, std::int64_t n, cudaStream_t stream) {
  if (n <= 0) return cudaSuccess;
  return launch(scale_kernel, blocks_for(n), dim3(kThreads), 0, stream, x, factor, n);
}

cudaError_t add_scaled(float* x, const float* y, float factor, std::int64_t n, cudaStream_t stream) {
  if (n <= 0) return cudaSuccess;
  return launch(add_scaled_kernel, blocks_for(n), dim3(kThreads), 0, stream, x, y, factor, n);
}

cudaError_t temper(float* x, const std::int32_t* position, float scale, std::int32_t period, std::int32_t rows,
                   std::int32_t cols, cudaStream_t stream) {
  if (rows <= 0) return cudaSuccess;
  const dim3 grid(static_cast<unsigned>(rows), static_cast<unsigned>((cols + kThreads - 1) / kThreads));
  return launch(temper_kernel, grid, dim3(kThreads), 0, stream, x, position, scale, period, cols);
}

cudaError_t gate_mul(Activation activation, float* gate, const float* up, std::int64_t n, cudaStream_t stream) {
  if (n <= 0) return cudaSuccess;
  auto* const kernel =
      activation == Activation::silu ? gate_mul_kernel<Activation::silu> : gate_mul_kernel<Activation::gelu>;
  return launch(kernel, blocks_for(n), dim3(kThreads), 0, stream, gate, up, n);
}

cudaError_t choose(const ChooseCall& call, cudaStream_t stream) {
  if (call.rows <= 0) return cudaSuccess;
  const dim3 grid((call.rows + kChooseWarps - 1) / kChooseWarps), block(kWarp * kChooseWarps);
  if (call.experts <= 4 * kWarp) return launch(choose_kernel<4>, grid, block, 0, stream, call);
  if (call.experts <= 8 * kWarp) return launch(choose_kernel<8>, grid, block, 0, stream, call);
  return launch(choose_kernel<32>, grid, block, 0, stream, call);
}

}  // namespace millrace::kernels::cuda
