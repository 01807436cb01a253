// Draws from all of a row's logits, a block a row. Contract in draw.h.
//
// Weights are whole numbers (kernels/draw.h), so that sums have one answer however the work is cut. Each warp sums up
// stretches of the row; the stretch that holds the point is found among their sums, and the token within it. Where
// top-p cuts, weights are counted by eight bits of their logits' order at a time, from the top; each lane has bins of
// its own, since logits close together fall into one (in code for 7.5 two lanes, whose blocks have no room for more).
#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/capability.h"
#include "kernels/cuda/exp.cuh"
#include "kernels/cuda/launchers.h"
#include "kernels/cuda/logit_order.cuh"
#include "kernels/cuda/pdl.cuh"
#include "kernels/cuda/warp.cuh"

namespace millrace::kernels::cuda {
namespace {

using Weight = unsigned long long;

constexpr int kThreads = 1024, kWarps = kThreads / kWarp;
constexpr int kStretch = 256, kEach = kStretch / kWarp;  // logits, of which a lane has so many
constexpr int kBins = 256, kBinsOfLane = kBins / kWarp;
constexpr int kColumns = MILLRACE_SMALL_BLOCKS ? kWarp / 2 : kWarp;  // of bins; in device code

__device__ __forceinline__ Weight weight(float below) {
  return below >= kLeastBelow ? static_cast<Weight>(exp_to_one(below) * kDrawUnit) : 0;
}

__device__ __forceinline__ Weight sum_of_warp(Weight value) {
  return combine_over_warp(value, [](Weight a, Weight b) { return a + b; });
}
/// Of this lane and those before it.
__device__ __forceinline__ Weight sum_so_far(Weight value) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int step = 1; step < kWarp; step *= 2) {
    const Weight other = __shfl_up_sync(kAllLanes, value, step);
    if (lane >= step) value += other;
  }
  return value;
}

/// The order of the last logit, from the largest on, with which a share of the weight is reached. bins:
/// [kBins][kColumns].
__device__ unsigned boundary(const float* logits, int vocab, float best, float share, Weight* bins, Weight* totals) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp, warp = thread / kWarp;
  unsigned prefix = 0, known = 0;
  Weight needed = 0;
  for (int shift = 24; shift >= 0; shift -= 8) {
    for (int i = thread; i < kBins * kColumns; i += kThreads) bins[i] = 0;
    __syncthreads();
    for (int id = thread; id < vocab; id += kThreads) {
      const unsigned order = order_of(logits[id]);
      if ((order & known) != prefix) continue;
      const Weight mine = weight(logits[id] - best);
      if (mine > 0) atomicAdd(&bins[((order >> shift) & (kBins - 1)) * kColumns + lane % kColumns], mine);
    }
    __syncthreads();
    for (int bin = warp; bin < kBins; bin += kWarps) {
      const Weight total = sum_of_warp(lane < kColumns ? bins[bin * kColumns + lane] : 0);
      if (lane == 0) totals[bin] = total;
    }
    __syncthreads();
    // Every warp finds the bin: lane l looks at the l-th eight of them from the top.
    Weight sum = 0;
#pragma unroll
    for (int i = 0; i < kBinsOfLane; ++i) sum += totals[kBins - 1 - lane * kBinsOfLane - i];
    const Weight with = sum_so_far(sum);
    if (shift == 24) {
      const Weight all = __shfl_sync(kAllLanes, with, kWarp - 1);
      const auto least = static_cast<Weight>(ceil(static_cast<double>(share) * static_cast<double>(all)));
      needed = least > 0 ? least : 1;
    }
    const unsigned reached = __ballot_sync(kAllLanes, with >= needed);
    const int owner = reached != 0 ? __ffs(static_cast<int>(reached)) - 1 : kWarp - 1;
    Weight before = with - sum;
    int digit = kBins - 1 - lane * kBinsOfLane;
    const int last = digit - kBinsOfLane + 1;
    while (digit > last && before + totals[digit] < needed) before += totals[digit--];
    digit = __shfl_sync(kAllLanes, digit, owner);
    needed -= __shfl_sync(kAllLanes, before, owner);
    prefix |= static_cast<unsigned>(digit) << shift;
    known |= (kBins - 1u) << shift;
    __syncthreads();
  }
  return prefix;
}

__global__ void __launch_bounds__(kThreads)
    draw_kernel(const float* logits, int vocab, const DrawRule* rules, const Candidates* found, std::int32_t* drawn) {
  extern __shared__ Weight bins[];  // then the stretches' sums
  __shared__ Weight totals[kBins];
  allow_successor();
  wait_for_predecessor();
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const std::int64_t row = blockIdx.x;
  const DrawRule rule = rules[row];
  if (!(rule.temperature > 0)) {
    if (threadIdx.x == 0) drawn[row] = -1;
    return;
  }
  const float* from = logits + row * vocab;
  const float best = found[row].logit[0];
  const unsigned least = rule.top_p < 1 ? boundary(from, vocab, best, rule.top_p, bins, totals) : 0;
  const auto weight_of = [&](int id) -> Weight {
    if (id >= vocab) return 0;
    const float below = from[id] - best;
    if (order_of(from[id]) < least || (rule.min_p > 0 && !(exp_f32(below) >= rule.min_p))) return 0;
    return weight(below / rule.temperature);
  };

  Weight* const sums = bins + kBins * kColumns;
  const int stretches = (vocab + kStretch - 1) / kStretch;
  for (int s = warp; s < stretches; s += kWarps) {
    Weight mine = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) mine += weight_of(s * kStretch + i * kWarp + lane);
    const Weight sum = sum_of_warp(mine);
    if (lane == 0) sums[s] = sum;
  }
  __syncthreads();
  if (warp > 0) return;
  Weight total = 0;
  for (int s = lane; s < stretches; s += kWarp) total += sums[s];
  total = sum_of_warp(total);
  // 53 bits by 60 at most.
  Weight left = __umul64hi(rule.point, total) << 11 | (rule.point * total) >> 53;
  // The first of 32 numbers, one a lane, whose sum with those before it is more than is left; -1: none, and they are
  // taken off.
  const auto place_of = [&](Weight mine) {
    const Weight with = sum_so_far(mine);
    const unsigned reached = __ballot_sync(kAllLanes, with > left);
    if (reached == 0) {
      left -= __shfl_sync(kAllLanes, with, kWarp - 1);
      return -1;
    }
    const int owner = __ffs(static_cast<int>(reached)) - 1;
    left -= __shfl_sync(kAllLanes, with - mine, owner);
    return owner;
  };
  int id = total == 0 ? found[row].id[0] : -1;
  for (int s = 0; s < stretches && id < 0; s += kWarp) {
    const int place = place_of(s + lane < stretches ? sums[s + lane] : 0);
    if (place < 0) continue;
    for (int first = (s + place) * kStretch; id < 0; first += kWarp) {
      const int within = place_of(weight_of(first + lane));
      if (within >= 0) id = first + within;
    }
  }
  if (lane == 0) drawn[row] = id;
}

}  // namespace

cudaError_t draw(const float* logits, std::int32_t rows, std::int32_t vocab, const DrawRule* rules,
                 const Candidates* found, std::int32_t* drawn, cudaStream_t stream) {
  if (rows <= 0) return cudaSuccess;
  if (vocab > kMostVocab) return cudaErrorInvalidValue;
  const std::size_t stretches = static_cast<std::size_t>((vocab + kStretch - 1) / kStretch);
  const int columns = has_small_blocks() ? kWarp / 2 : kWarp;
  const std::size_t weights = static_cast<std::size_t>(kBins * columns) + stretches;
  return launch_large(draw_kernel, dim3(rows), dim3(kThreads), weights * sizeof(Weight), stream, 1, logits, vocab,
                      rules, found, drawn);
}

}  // namespace millrace::kernels::cuda
