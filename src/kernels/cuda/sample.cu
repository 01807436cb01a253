// The largest logits of a row, for the sampler on the host. Contract in ops.h.
//
// A logit and its id become one number that orders as the contract says: by logit, then by the smaller id, NaN after
// everything. Such keys are all different, so "the 64 largest" has one answer however the work is cut. Stretches of 64
// logits are first stood for by their largest key. The 64 largest of those bound from below what can be among the 64
// largest of all, and lie in the only stretches that hold any.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/launchers.h"
#include "kernels/cuda/logit_order.cuh"
#include "kernels/cuda/pdl.cuh"
#include "kernels/cuda/warp.cuh"

namespace millrace::kernels::cuda {
namespace {

using Key = unsigned long long;

constexpr int kStretch = 64;
constexpr int kMostStretches = 12'000;              // of a row: their keys lie in a block's shared memory
constexpr int kLeastKeys = kCandidates * kStretch;  // of logits, which take the place of the stretches' keys
static_assert(kMostStretches * kStretch == kMostVocab);

__device__ __forceinline__ Key key_of(unsigned order, unsigned id) { return static_cast<Key>(order) << 32 | ~id; }
__device__ __forceinline__ unsigned id_of(Key key) { return ~static_cast<unsigned>(key); }

// ---------------------------------------------------------------------------------------------------------------------
// The largest key of every stretch: a warp takes kEach stretches.

constexpr int kPartWarps = 8;

template <int kEach>
__global__ void __launch_bounds__(kWarp* kPartWarps)
    stretches_kernel(const float* logits, int vocab, int stretches, Key* keys, std::uint8_t* finite) {
  allow_successor();
  wait_for_predecessor();
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const std::int64_t row = blockIdx.y;
  const int first = (static_cast<int>(blockIdx.x) * kPartWarps + warp) * kEach;
  const float* from = logits + row * vocab;
  float x[kEach][2];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int id = (first + i) * kStretch + j * kWarp + lane;
      x[i][j] = id < vocab ? from[id] : 0.0f;
    }
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    if (first + i >= stretches) break;
    unsigned order[2];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int id = (first + i) * kStretch + j * kWarp + lane;
      order[j] = id < vocab ? order_of(x[i][j]) : 0u;
    }
    const unsigned most = max_over_warp(max(order[0], order[1]));
    const unsigned place = order[0] == most ? lane : order[1] == most ? lane + kWarp : kStretch;
    const unsigned id = (first + i) * kStretch + min_over_warp(place);
    const bool all = __all_sync(kAllLanes, isfinite(x[i][0]) && isfinite(x[i][1]));
    if (lane == 0) {
      keys[row * stretches + first + i] = key_of(most, id);
      finite[row * stretches + first + i] = all ? 1 : 0;
    }
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// The candidates: a block a row.

constexpr int kThreads = 1024;
constexpr int kBins = 256;

/// The k-th largest of n > k keys, or a number between it and the next smaller: exactly k keys are not smaller. From
/// the top, eight bits at a time: keys that share all bits so far are counted by their next eight.
__device__ Key threshold(const Key* keys, int n, int k, int* bins) {
  constexpr int kEach = kBins / kWarp;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp;
  Key prefix = 0;
  for (int shift = 56;; shift -= 8) {
    __syncthreads();
    if (thread < kBins) bins[thread] = 0;
    __syncthreads();
    for (int i = thread; i < n; i += kThreads) {
      const Key key = keys[i];
      if (shift == 56 || key >> (shift + 8) == prefix >> (shift + 8)) atomicAdd(&bins[(key >> shift) & (kBins - 1)], 1);
    }
    __syncthreads();
    // Every warp finds the bin that holds the k-th: lane l looks at the l-th eight of bins from the top.
    int count[kEach], sum = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) sum += count[i] = bins[kBins - 1 - lane * kEach - i];
    int above = sum;
#pragma unroll
    for (int step = 1; step < kWarp; step *= 2) {
      const int other = __shfl_up_sync(kAllLanes, above, step);
      if (lane >= step) above += other;
    }
    const int owner = __ffs(static_cast<int>(__ballot_sync(kAllLanes, above >= k))) - 1;
    above -= sum;
    int digit = 0, there = 0;
#pragma unroll
    for (int i = kEach - 1; i >= 0; --i) {  // the first bin, from the top, with which k is reached
      int before = above;
#pragma unroll
      for (int j = 0; j < i; ++j) before += count[j];
      if (before < k && before + count[i] >= k) digit = kBins - 1 - lane * kEach - i, there = before;
    }
    digit = __shfl_sync(kAllLanes, digit, owner);
    k -= __shfl_sync(kAllLanes, there, owner);
    prefix |= static_cast<Key>(digit) << shift;
    if (bins[digit] == k || shift == 0) break;
  }
  __syncthreads();
  return prefix;
}

// Adds what a warp's lanes found to a list, in any order.
__device__ __forceinline__ void push(bool found, Key key, Key* list, int* size) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const unsigned all = __ballot_sync(kAllLanes, found);
  int at = 0;
  if (lane == 0 && all != 0) at = atomicAdd(size, __popc(all));
  at = __shfl_sync(kAllLanes, at, 0) + __popc(all & ((1u << lane) - 1));
  if (found) list[at] = key;
}

__global__ void __launch_bounds__(kThreads)
    candidates_kernel(const float* logits, int vocab, int stretches, const Key* keys, const std::uint8_t* finite,
                      Candidates* out) {
  extern __shared__ Key found[];       // keys of stretches, then of logits
  __shared__ Key chosen[kCandidates];  // stretches that may hold candidates, then the candidates
  __shared__ int bins[kBins], stretch_count, found_count, chosen_count;
  allow_successor();
  wait_for_predecessor();
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp, warp = thread / kWarp;
  const std::int64_t row = blockIdx.x;
  const float* from = logits + row * vocab;
  Candidates& to = out[row];
  bool all = true;
  for (int i = thread; i < stretches; i += kThreads) {
    found[i] = keys[row * stretches + i];
    all = all && finite[row * stretches + i] != 0;
  }
  if (thread == 0) stretch_count = found_count = chosen_count = 0;
  const int row_finite = __syncthreads_and(all);

  Key least = stretches > kCandidates ? threshold(found, stretches, kCandidates, bins) : 0;
  for (int i = thread; i - lane < stretches; i += kThreads) {
    const Key key = i < stretches ? found[i] : 0;
    push(i < stretches && key >= least, key, chosen, &stretch_count);
  }
  __syncthreads();
  for (int s = warp; s < stretch_count; s += kThreads / kWarp) {
    const int first = static_cast<int>(id_of(chosen[s])) / kStretch * kStretch + lane;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int id = first + j * kWarp;
      const Key key = id < vocab ? key_of(order_of(from[id]), id) : 0;
      push(id < vocab && key >= least, key, found, &found_count);
    }
  }
  __syncthreads();
  least = found_count > kCandidates ? threshold(found, found_count, kCandidates, bins) : 0;
  for (int i = thread; i - lane < found_count; i += kThreads) {
    const Key key = i < found_count ? found[i] : 0;
    push(i < found_count && key >= least, key, chosen, &chosen_count);
  }
  __syncthreads();

  // A candidate's place is how many are larger: sixteen threads count for each.
  constexpr int kCounters = kThreads / kCandidates;
  const int mine = thread / kCounters, count = chosen_count;
  const Key key = mine < count ? chosen[mine] : 0;
  int place = 0;
  for (int i = thread % kCounters; i < count; i += kCounters) place += chosen[i] > key;
#pragma unroll
  for (int step = kCounters / 2; step > 0; step /= 2) place += __shfl_xor_sync(kAllLanes, place, step);
  if (thread % kCounters == 0) {
    const bool there = mine < count;
    if (!there) place = mine;
    to.id[place] = there ? static_cast<int>(id_of(key)) : -1;
    to.logit[place] = there ? from[id_of(key)] : -INFINITY;
  }
  if (thread == 0) to.finite = row_finite, to.count = count;
}

int stretches_of(int vocab) { return (vocab + kStretch - 1) / kStretch; }

}  // namespace

std::size_t sample_workspace_bytes(std::int32_t rows, std::int32_t vocab) {
  return static_cast<std::size_t>(rows) * static_cast<std::size_t>(stretches_of(vocab)) * (sizeof(Key) + 1);
}

cudaError_t candidates(const float* logits, std::int32_t rows, std::int32_t vocab, Candidates* out,
                       std::byte* workspace, cudaStream_t stream) {
  if (rows <= 0) return cudaSuccess;
  const int stretches = stretches_of(vocab);
  if (stretches > kMostStretches) return cudaErrorInvalidValue;
  auto* keys = reinterpret_cast<Key*>(workspace);
  auto* finite = reinterpret_cast<std::uint8_t*>(keys + static_cast<std::int64_t>(rows) * stretches);
  const int each = rows < 4 ? 1 : 4, per_block = kPartWarps * each;
  const cudaError_t error =
      launch(each == 1 ? stretches_kernel<1> : stretches_kernel<4>, dim3((stretches + per_block - 1) / per_block, rows),
             dim3(kWarp * kPartWarps), 0, stream, logits, vocab, stretches, keys, finite);
  if (error != cudaSuccess) return error;
  const std::size_t shared_bytes = sizeof(Key) * static_cast<std::size_t>(std::max(stretches, kLeastKeys));
  return launch_large(candidates_kernel, dim3(rows), dim3(kThreads), shared_bytes, stream, 1, logits, vocab, stretches,
                      static_cast<const Key*>(keys), static_cast<const std::uint8_t*>(finite), out);
}

}  // namespace millrace::kernels::cuda
