// Contracts in gates.h.
#include <cuda_runtime.h>

#include "kernels/cuda/exp.cuh"
#include "kernels/cuda/launchers.h"
#include "kernels/cuda/pdl.cuh"
#include "kernels/cuda/warp.cuh"

namespace millrace::kernels::cuda {
namespace {

constexpr int kThreads = 256;

// ---------------------------------------------------------------------------------------------------------------------
// Elementwise: an element a thread.

__global__ void scale_kernel(float* x, float factor, std::int64_t n) {
  allow_successor();
  wait_for_predecessor();
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < n) x[i] *= factor;
}

__global__ void scale_by_kernel(float* x, const std::byte* const* scalar, const std::byte* const* bias, std::int64_t n,
                                int cols) {
  allow_successor();
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const float factor = *reinterpret_cast<const float*>(*scalar);  // weights are no kernel's
  const float more = bias == nullptr || i >= n ? 0.0f : reinterpret_cast<const float*>(*bias)[i % cols];
  wait_for_predecessor();
  if (i >= n) return;
  const float product = x[i] * factor;
  x[i] = bias == nullptr ? product : product + more;
}

__global__ void add_scaled_kernel(float* x, const float* y, float factor, std::int64_t n) {
  allow_successor();
  wait_for_predecessor();
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < n) x[i] = __fmaf_rn(factor, y[i], x[i]);
}

__global__ void gate_rows_kernel(Gate by, float* gate, const float* up, std::int64_t up_stride, int cols) {
  allow_successor();
  wait_for_predecessor();
  const std::int64_t row = blockIdx.x;
  const int i = static_cast<int>(blockIdx.y) * kThreads + static_cast<int>(threadIdx.x);
  if (i >= cols) return;
  float& g = gate[row * cols + i];
  for_activation_or_erf(by.activation,
                        [&](auto which) { g = gated<decltype(which)::value>(g, up[row * up_stride + i], by); });
}

__global__ void temper_kernel(float* x, const std::int32_t* position, float scale, std::int32_t period,
                              std::int32_t offset, int cols) {
  allow_successor();
  wait_for_predecessor();
  const std::int64_t row = blockIdx.x;
  const int i = static_cast<int>(blockIdx.y) * kThreads + static_cast<int>(threadIdx.x);
  if (i >= cols) return;
  const double grown = 1 + scale * log(static_cast<double>((position[row] + offset) / period) + 1);
  x[row * cols + i] *= static_cast<float>(grown);
}

__global__ void softcap_kernel(float* x, float cap, std::int64_t n) {
  allow_successor();
  wait_for_predecessor();
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= n) return;
  const float y = x[i] / cap;
  x[i] = cap * (1.0f - 2.0f / (1.0f + exp_f32(y + y)));
}

__global__ void place_columns_kernel(PlaceCall call) {
  allow_successor();
  wait_for_predecessor();
  const std::int64_t width = call.clear_behind ? call.out_cols - call.first : call.cols;
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const std::int64_t row = i / width, col = i % width;
  if (row >= call.rows) return;
  call.out[row * call.out_cols + call.first + col] = col < call.cols ? call.x[row * call.cols + col] : 0.0f;
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

/// Scores of a row's experts, as the lanes hold them, become their softmax.
template <int kEach>
__device__ void softmax(int experts, float (&p)[kEach]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  float most = -INFINITY, sum = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    if (lane + kWarp * i < experts) most = fmaxf(most, p[i]);
  }
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, step));
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    if (lane + kWarp * i >= experts) continue;
    p[i] = exp_f32(p[i] - most);
    sum += p[i];
  }
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
#pragma unroll
  for (int i = 0; i < kEach; ++i) p[i] = p[i] / sum;
}

/// Takes the experts of all but the best groups out of the choice. A lane scores groups lane and lane + 32.
template <int kEach>
__device__ void keep_best_groups(const ChooseCall& call, const float (&p)[kEach], const float* bias,
                                 int (&key)[kEach]) {
  __shared__ float all[kChooseWarps][kWarp * kEach];
  const int lane = static_cast<int>(threadIdx.x) % kWarp, each = call.experts / call.groups;
  float* const selection = all[threadIdx.x / kWarp];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int expert = lane + kWarp * i;
    if (expert < call.experts) selection[expert] = bias == nullptr ? p[i] : p[i] + bias[expert];
  }
  __syncwarp();
  int score[2];
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const int group = lane + kWarp * j;
    score[j] = INT_MIN;
    if (group >= call.groups) continue;
    float best = -INFINITY, second = -INFINITY;
    for (int e = group * each; e < (group + 1) * each; ++e) {
      const float s = selection[e];
      if (s > best)
        second = best, best = s;
      else
        second = fmaxf(second, s);
    }
    score[j] = ordered(each > 1 ? best + second : best);
  }
  unsigned long long kept = 0;
  for (int k = 0; k < call.groups_used; ++k) {
    const int better = score[1] > score[0] ? 1 : 0, best = score[better];
    const int largest = max_over_warp(best);
    const int group = min_over_warp(best == largest ? lane + kWarp * better : INT_MAX);
    kept |= 1ull << group;
    if (group % kWarp == lane) score[group / kWarp] = INT_MIN;
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int expert = lane + kWarp * i;
    if (expert < call.experts && (kept >> (expert / each) & 1) == 0) key[i] = ordered(-INFINITY);
  }
}

/// The expert whose key is largest: of equal ones the first.
template <int kEach>
__device__ int largest_key(const int (&key)[kEach]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  int best = INT_MIN, place = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    if (key[i] > best) best = key[i], place = i;
  }
  const int largest = max_over_warp(best);
  return min_over_warp(best == largest ? lane + kWarp * place : INT_MAX);
}

/// The share of the expert with score `mine` of a softmax over those that are not gone and come near it.
template <int kEach>
__device__ float sparse_share(const float (&score)[kEach], const int (&key)[kEach], float mine) {
  constexpr float kNear = 0.02f;
  float total = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    if (key[i] == INT_MIN || (mine - score[i]) / fmaxf(fabsf(score[i]), mine) > kNear) continue;
    total += exp_f32(score[i] - mine);
  }
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) total += __shfl_xor_sync(kAllLanes, total, step);
  return 1.0f / total;
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
  }
  if (call.gating == ChooseCall::Gating::softmax) softmax(call.experts, p);
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int expert = lane + kWarp * i;
    key[i] = expert < call.experts ? ordered(bias == nullptr ? p[i] : p[i] + bias[expert]) : INT_MIN;
  }
  if (call.groups > 1) keep_best_groups(call, p, bias, key);
  float sum = 0, mine = 0, first = 0;
  int my_expert = 0;
  for (int k = 0; k < call.top_k; ++k) {
    const int expert = largest_key(key);
    float probability = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (lane + kWarp * i == expert) probability = p[i];
    }
    probability = __shfl_sync(kAllLanes, probability, expert % kWarp);
    if (call.gating == ChooseCall::Gating::sparse_mixer) probability = sparse_share(p, key, probability);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (lane + kWarp * i == expert) key[i] = INT_MIN;
    }
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
  float weight = (divide ? mine / (sum < 0x1p-14f ? 0x1p-14f : sum) : mine) * call.scale;
  if (call.output_scale != nullptr) weight *= reinterpret_cast<const float*>(*call.output_scale)[my_expert];
  if (call.hidden_scale != nullptr) weight *= reinterpret_cast<const float*>(*call.hidden_scale)[my_expert];
  call.weights[at] = weight;
}

}  // namespace

cudaError_t place_columns(const PlaceCall& call, cudaStream_t stream) {
  const std::int64_t n = call.rows * (call.clear_behind ? call.out_cols - call.first : call.cols);
  if (n <= 0) return cudaSuccess;
  return launch(place_columns_kernel, blocks_for(n), dim3(kThreads), 0, stream, call);
}

cudaError_t scale(float* x, float factor, std::int64_t n, cudaStream_t stream) {
  if (n <= 0) return cudaSuccess;
  return launch(scale_kernel, blocks_for(n), dim3(kThreads), 0, stream, x, factor, n);
}

cudaError_t scale_by(float* x, const std::byte* const* scalar, const std::byte* const* bias, std::int64_t rows,
                     std::int32_t cols, cudaStream_t stream) {
  const std::int64_t n = rows * cols;
  if (n <= 0) return cudaSuccess;
  return launch(scale_by_kernel, blocks_for(n), dim3(kThreads), 0, stream, x, scalar, bias, n, cols);
}

cudaError_t add_scaled(float* x, const float* y, float factor, std::int64_t n, cudaStream_t stream) {
  if (n <= 0) return cudaSuccess;
  return launch(add_scaled_kernel, blocks_for(n), dim3(kThreads), 0, stream, x, y, factor, n);
}

cudaError_t gate_rows(Activation activation, float limit, float* gate, const float* up, std::int64_t up_stride,
                      std::int32_t rows, std::int32_t cols, cudaStream_t stream) {
  if (rows <= 0 || cols <= 0) return cudaSuccess;
  return launch(gate_rows_kernel, dim3(rows, (cols + kThreads - 1) / kThreads), dim3(kThreads), 0, stream,
                gate_of(activation, limit), gate, up, up_stride, cols);
}

cudaError_t temper(float* x, const std::int32_t* position, float scale, std::int32_t period, std::int32_t offset,
                   std::int32_t rows, std::int32_t cols, cudaStream_t stream) {
  if (rows <= 0) return cudaSuccess;
  const dim3 grid(static_cast<unsigned>(rows), static_cast<unsigned>((cols + kThreads - 1) / kThreads));
  return launch(temper_kernel, grid, dim3(kThreads), 0, stream, x, position, scale, period, offset, cols);
}

cudaError_t softcap(float* x, float cap, std::int64_t n, cudaStream_t stream) {
  if (n <= 0) return cudaSuccess;
  return launch(softcap_kernel, blocks_for(n), dim3(kThreads), 0, stream, x, cap, n);
}

cudaError_t choose(const ChooseCall& call, cudaStream_t stream) {
  if (call.rows <= 0) return cudaSuccess;
  const dim3 grid((call.rows + kChooseWarps - 1) / kChooseWarps), block(kWarp * kChooseWarps);
  if (call.experts <= 4 * kWarp) return launch(choose_kernel<4>, grid, block, 0, stream, call);
  if (call.experts <= 8 * kWarp) return launch(choose_kernel<8>, grid, block, 0, stream, call);
  return launch(choose_kernel<32>, grid, block, 0, stream, call);
}

}  // namespace millrace::kernels::cuda
