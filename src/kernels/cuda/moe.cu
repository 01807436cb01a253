// Mixtures of experts: the router's choice, the order in which products take the chosen entries, and the weighted sum
// of what the experts gave. Contracts in ops.h and heads.h.
#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/exp.cuh"
#include "kernels/cuda/launchers.h"
#include "kernels/cuda/pdl.cuh"
#include "kernels/cuda/warp.cuh"

namespace millrace::kernels::cuda {
namespace {

// ---------------------------------------------------------------------------------------------------------------------
// route: a warp a row. Lane l holds experts l, l + 32, ... Sums of the softmax: a lane's in ascending order, then lanes
// by a tree.

constexpr int kRouteWarps = 4;

template <int kEach>
__global__ void __launch_bounds__(kWarp* kRouteWarps)
    route_kernel(const float* scores, int rows, int experts, int top_k, bool normalize, float scale,
                 std::int32_t* chosen, float* weights) {
  allow_successor();
  wait_for_predecessor();
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int row = static_cast<int>(blockIdx.x) * kRouteWarps + static_cast<int>(threadIdx.x) / kWarp;
  if (row >= rows) return;
  const float* from = scores + static_cast<std::int64_t>(row) * experts;
  float p[kEach];
  float most = -INFINITY;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    p[i] = lane + kWarp * i < experts ? from[lane + kWarp * i] : -INFINITY;
    most = fmaxf(most, p[i]);
  }
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, step));
  float total = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    if (lane + kWarp * i >= experts) continue;
    p[i] = exp_f32(p[i] - most);
    total += p[i];
  }
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) total += __shfl_xor_sync(kAllLanes, total, step);

  // Probabilities are not negative, so they compare as their bits do; -1 is one that is gone or never was.
  int bits[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    bits[i] = lane + kWarp * i < experts ? __float_as_int(p[i] / total) & 0x7fffffff : -1;
  }
  float sum = 0, mine = 0;
  int my_expert = 0;
  for (int k = 0; k < top_k; ++k) {
    int best = -1, place = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (bits[i] > best) best = bits[i], place = i;
    }
    const int largest = max_over_warp(best);
    const int expert = min_over_warp(best == largest ? lane + kWarp * place : experts);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (lane + kWarp * i == expert) bits[i] = -1;
    }
    const float probability = __int_as_float(largest);
    sum += probability;
    if (lane == k) mine = probability, my_expert = expert;
  }
  if (lane < top_k) {
    const std::int64_t at = static_cast<std::int64_t>(row) * top_k + lane;
    chosen[at] = my_expert;
    weights[at] = (normalize ? mine / sum : mine) * scale;
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// sort_entries: a block an expert. Each warp counts in its own stretch of the entries, then writes what it found there.

constexpr int kSortWarps = 8;

__global__ void __launch_bounds__(kWarp* kSortWarps)
    sort_entries_kernel(const std::int32_t* chosen, int entries, std::int32_t* sorted, std::int32_t* expert_first) {
  __shared__ int equal_of[kSortWarps], less_of[kSortWarps];
  allow_successor();
  wait_for_predecessor();
  const int expert = static_cast<int>(blockIdx.x);
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const int stretch = (entries + kSortWarps * kWarp - 1) / (kSortWarps * kWarp) * kWarp;
  const int begin = warp * stretch, end = min(begin + stretch, entries);
  int equal = 0, less = 0;
#pragma unroll 8
  for (int i = begin + lane; i < end; i += kWarp) {
    const int e = chosen[i];
    equal += e == expert;
    less += e < expert;
  }
  equal = count_over_warp(equal);
  less = count_over_warp(less);
  if (lane == 0) equal_of[warp] = equal, less_of[warp] = less;
  __syncthreads();
  int first = 0, at = 0;
  for (int w = 0; w < kSortWarps; ++w) {
    first += less_of[w];
    at += less_of[w] + (w < warp ? equal_of[w] : 0);
  }
  if (threadIdx.x == 0) {
    expert_first[expert] = first;
    if (blockIdx.x + 1 == gridDim.x) expert_first[expert + 1] = entries;
  }
  if (equal == 0) return;
#pragma unroll 8
  for (int i = begin; i < end; i += kWarp) {
    const bool found = i + lane < end && chosen[i + lane] == expert;
    const unsigned all = __ballot_sync(kAllLanes, found);
    if (found) sorted[at + __popc(all & ((1u << lane) - 1))] = i + lane;
    at += __popc(all);
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// combine: kEach columns a thread.

constexpr int kCombineThreads = 128;

template <int kEach>
__global__ void combine_kernel(const __grid_constant__ CombineCall call) {
  using Vector = std::conditional_t<kEach == 4, float4, float>;
  allow_successor();
  wait_for_predecessor();
  const std::int64_t row = blockIdx.x;
  const int at = static_cast<int>(blockIdx.y) * kCombineThreads + static_cast<int>(threadIdx.x);
  if (at * kEach >= call.cols) return;
  union {
    Vector v;
    float f[kEach];
  } acc, term;
#pragma unroll
  for (int i = 0; i < kEach; ++i) acc.f[i] = 0;
#pragma unroll 8
  for (int k = 0; k < call.top_k; ++k) {
    const float w = call.weights[row * call.top_k + k];
    term.v = reinterpret_cast<const Vector*>(call.expert_out + (row * call.places + k) * call.cols)[at];
#pragma unroll
    for (int i = 0; i < kEach; ++i) acc.f[i] = __fmaf_rn(w, term.f[i], acc.f[i]);
  }
  if (call.shared != nullptr) {
    const float by = call.shared_gate == nullptr ? 1.0f : over_sigmoid(1.0f, call.shared_gate[row]);
    term.v = reinterpret_cast<const Vector*>(call.shared + row * call.shared_stride)[at];
#pragma unroll
    for (int i = 0; i < kEach; ++i) acc.f[i] = acc.f[i] + term.f[i] * by;
  }
  auto* to = reinterpret_cast<Vector*>(call.y + row * call.cols) + at;
  if (call.residual) {
    term.v = *to;
#pragma unroll
    for (int i = 0; i < kEach; ++i) acc.f[i] = term.f[i] + acc.f[i];
  }
  *to = acc.v;
}

}  // namespace

cudaError_t route(const float* scores, std::int32_t rows, std::int32_t experts, std::int32_t top_k, bool normalize,
                  float scale, std::int32_t* chosen, float* weights, cudaStream_t stream) {
  if (rows <= 0) return cudaSuccess;
  const auto run = [&](auto* kernel) {
    return launch(kernel, dim3((rows + kRouteWarps - 1) / kRouteWarps), dim3(kWarp * kRouteWarps), 0, stream, scores,
                  rows, experts, top_k, normalize, scale, chosen, weights);
  };
  if (experts <= 4 * kWarp) return run(route_kernel<4>);
  if (experts <= 8 * kWarp) return run(route_kernel<8>);
  return run(route_kernel<32>);
}

cudaError_t sort_entries(const std::int32_t* chosen, std::int32_t entries, std::int32_t experts, std::int32_t* sorted,
                         std::int32_t* expert_first, cudaStream_t stream) {
  return launch(sort_entries_kernel, dim3(experts), dim3(kWarp * kSortWarps), 0, stream, chosen, entries, sorted,
                expert_first);
}

cudaError_t combine(const CombineCall& call, cudaStream_t stream) {
  if (call.rows <= 0) return cudaSuccess;
  const auto run = [&](auto* kernel, int each) {
    const int columns = kCombineThreads * each;
    return launch(kernel, dim3(call.rows, (call.cols + columns - 1) / columns), dim3(kCombineThreads), 0, stream, call);
  };
  return call.cols % 4 == 0 ? run(combine_kernel<4>, 4) : run(combine_kernel<1>, 1);
}

cudaError_t combine_experts(const float* expert_out, const float* weights, std::int32_t rows, std::int32_t top_k,
                            std::int32_t cols, bool residual, float* y, cudaStream_t stream) {
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

}  // namespace millrace::kernels::cuda
