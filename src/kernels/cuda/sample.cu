// The largest logits of a row, for the sampler on the host. Contract in cuda_kernels.h.
//
// A logit and its id become one number that orders as the contract says: by logit, then by the smaller id, NaN after
// everything. Such keys are all different, so however the work is cut the 64 largest are the same. A list is 64 keys in
// descending order, two in each lane of a warp; two lists make one by an elementwise maximum against the other's
// reverse and one bitonic merge.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/pdl.cuh"

namespace millrace::kernels::cuda {
namespace {

using Key = unsigned long long;

constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xffffffffu;
constexpr int kList = kCandidates;
static_assert(kList == 2 * kWarp, "a lane holds two keys of a list");

/// Places `lane` and `lane + 32` of a list.
struct Pair {
  Key low = 0, high = 0;
};

__device__ __forceinline__ Key key_of(float logit, unsigned id) {
  const unsigned bits = __float_as_uint(logit == 0 ? 0.0f : logit);
  const unsigned order = logit != logit ? 0u : bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  return static_cast<Key>(order) << 32 | ~id;
}
__device__ __forceinline__ unsigned id_of(Key key) { return ~static_cast<unsigned>(key); }

__device__ __forceinline__ Key larger(Key a, Key b) { return a > b ? a : b; }
__device__ __forceinline__ Key smaller(Key a, Key b) { return a < b ? a : b; }

// Compares places that differ in bit kStep; the lower place gets the larger key where `descending`.
template <int kStep>
__device__ __forceinline__ void exchange(Pair& p, bool low_descending, bool high_descending) {
  if constexpr (kStep == kWarp) {
    const Key most = larger(p.low, p.high), least = smaller(p.low, p.high);
    p.low = low_descending ? most : least;
    p.high = low_descending ? least : most;
  } else {
    const bool first = (threadIdx.x & kStep) == 0;
    const Key low = __shfl_xor_sync(kAllLanes, p.low, kStep), high = __shfl_xor_sync(kAllLanes, p.high, kStep);
    p.low = first == low_descending ? larger(p.low, low) : smaller(p.low, low);
    p.high = first == high_descending ? larger(p.high, high) : smaller(p.high, high);
  }
}

// The last stage of a bitonic sort: 64 keys that rise and then fall, or the reverse, into descending order.
template <int kStep = kWarp>
__device__ __forceinline__ void sort_bitonic(Pair& p) {
  exchange<kStep>(p, true, true);
  if constexpr (kStep > 1) sort_bitonic<kStep / 2>(p);
}

// Stretches of kStretch places become sorted in turn descending and ascending.
template <int kStretch, int kStep = kStretch / 2>
__device__ __forceinline__ void sort_stretches(Pair& p) {
  const unsigned lane = threadIdx.x % kWarp;
  exchange<kStep>(p, (lane & kStretch) == 0, ((lane + kWarp) & kStretch) == 0);
  if constexpr (kStep > 1) sort_stretches<kStretch, kStep / 2>(p);
}
__device__ __forceinline__ void sort_list(Pair& p) {
  sort_stretches<2>(p);
  sort_stretches<4>(p);
  sort_stretches<8>(p);
  sort_stretches<16>(p);
  sort_stretches<32>(p);
  sort_bitonic(p);
}

/// The 64 largest of two lists.
__device__ __forceinline__ void merge(Pair& p, const Pair& other) {
  const unsigned mirror = kWarp - 1 - threadIdx.x % kWarp;
  const Key low = __shfl_sync(kAllLanes, other.high, mirror), high = __shfl_sync(kAllLanes, other.low, mirror);
  p.low = larger(p.low, low);
  p.high = larger(p.high, high);
  sort_bitonic(p);
}

/// One list of all the warps' lists, in warp 0. lists: [warps][64]; warps is a power of two.
__device__ void merge_warps(Pair& p, Key* lists, int warps) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  for (int half = warps / 2; half > 0; half /= 2) {
    if (warp >= half && warp < 2 * half) {
      lists[warp * kList + lane] = p.low;
      lists[warp * kList + lane + kWarp] = p.high;
    }
    __syncthreads();
    if (warp < half) {
      const Key* other = lists + (warp + half) * kList;
      merge(p, Pair{other[lane], other[lane + kWarp]});
    }
  }
}

constexpr int kPartWarps = 16;
constexpr int kPartLogits = kPartWarps * kList;  // that a block takes in one batch

// A block's share of a row: `batches` times kPartLogits logits. lists: [rows, parts, 64]; finite: [rows, parts].
template <int kBatches>
__global__ void __launch_bounds__(kWarp* kPartWarps)
    part_kernel(const float* logits, int vocab, Key* lists, std::int32_t* finite) {
  __shared__ Key shared[kPartWarps * kList];
  allow_successor();
  wait_for_predecessor();
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const std::int64_t row = blockIdx.y, part = row * gridDim.x + blockIdx.x;
  const float* from = logits + row * vocab;
  const int first = (static_cast<int>(blockIdx.x) * kPartWarps + warp) * kBatches * kList + lane;
  float x[2 * kBatches];
#pragma unroll
  for (int i = 0; i < 2 * kBatches; ++i) x[i] = first + kWarp * i < vocab ? from[first + kWarp * i] : 0.0f;
  bool all_finite = true;
  Pair p;
#pragma unroll
  for (int b = 0; b < kBatches; ++b) {
    const int at = first + kList * b;
    Pair next;
    if (at < vocab) next.low = key_of(x[2 * b], at);
    if (at + kWarp < vocab) next.high = key_of(x[2 * b + 1], at + kWarp);
    all_finite = all_finite && isfinite(x[2 * b]) && isfinite(x[2 * b + 1]);
    if (b > 0) {  // most batches hold nothing larger than the list's last
      const Key last = __shfl_sync(kAllLanes, p.high, kWarp - 1);
      if (!__any_sync(kAllLanes, larger(next.low, next.high) > last)) continue;
    }
    sort_list(next);
    if (b == 0) {
      p = next;
    } else {
      merge(p, next);
    }
  }
  const int block_finite = __syncthreads_and(all_finite);
  merge_warps(p, shared, kPartWarps);
  if (warp != 0) return;
  lists[part * kList + lane] = p.low;
  lists[part * kList + lane + kWarp] = p.high;
  if (lane == 0) finite[part] = block_finite;
}

constexpr int kFinalWarps = 32;

__global__ void __launch_bounds__(kWarp* kFinalWarps)
    final_kernel(const float* logits, int vocab, int parts, const Key* lists, const std::int32_t* finite,
                 Candidates* out) {
  __shared__ Key shared[kFinalWarps * kList];
  allow_successor();
  wait_for_predecessor();
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const std::int64_t row = blockIdx.x;
  const Key* from = lists + row * parts * kList + lane;
  Pair p;
  if (warp < parts) p = {from[warp * kList], from[warp * kList + kWarp]};
  for (int part = warp + kFinalWarps; part < parts; part += kFinalWarps) {
    merge(p, Pair{from[part * kList], from[part * kList + kWarp]});
  }
  bool all = true;
  for (int part = static_cast<int>(threadIdx.x); part < parts; part += kWarp * kFinalWarps) {
    all = all && finite[row * parts + part] != 0;
  }
  const int row_finite = __syncthreads_and(all);
  merge_warps(p, shared, kFinalWarps);
  if (warp != 0) return;
  const int count = min(vocab, kCandidates);
  Candidates& c = out[row];
  const auto put = [&](int place, Key key) {
    const bool there = place < count;
    c.id[place] = there ? static_cast<int>(id_of(key)) : -1;
    c.logit[place] = there ? logits[row * vocab + id_of(key)] : -INFINITY;
  };
  put(lane, p.low);
  put(lane + kWarp, p.high);
  if (lane == 0) c.finite = row_finite, c.count = count;
}

// Longer shares make fewer lists, where rows are enough to fill the device.
int batches_for(int rows) { return rows < 4 ? 1 : rows < 16 ? 4 : 8; }
int parts_for(int vocab, int batches) { return (vocab + kPartLogits * batches - 1) / (kPartLogits * batches); }

}  // namespace

std::size_t sample_workspace_bytes(std::int32_t rows, std::int32_t vocab) {
  // Any number of rows up to `rows` must fit, and fewer rows may be cut finer.
  std::size_t most = 0;
  for (const int r : {std::min(rows, 3), std::min(rows, 15), rows}) {
    const std::size_t parts = static_cast<std::size_t>(r) * static_cast<std::size_t>(parts_for(vocab, batches_for(r)));
    most = std::max(most, parts * (kList * sizeof(Key) + sizeof(std::int32_t)));
  }
  return most + 256;
}

cudaError_t candidates(const float* logits, std::int32_t rows, std::int32_t vocab, Candidates* out,
                       std::byte* workspace, cudaStream_t stream) {
  if (rows <= 0) return cudaSuccess;
  const int batches = batches_for(rows), parts = parts_for(vocab, batches);
  auto* lists = reinterpret_cast<Key*>(workspace);
  auto* finite = reinterpret_cast<std::int32_t*>(lists + static_cast<std::int64_t>(rows) * parts * kList);
  auto* part = batches == 1 ? part_kernel<1> : batches == 4 ? part_kernel<4> : part_kernel<8>;
  const cudaError_t error =
      launch(part, dim3(parts, rows), dim3(kWarp * kPartWarps), 0, stream, logits, vocab, lists, finite);
  if (error != cudaSuccess) return error;
  return launch(final_kernel, dim3(rows), dim3(kWarp * kFinalWarps), 0, stream, logits, vocab, parts,
                static_cast<const Key*>(lists), static_cast<const std::int32_t*>(finite), out);
}

}  // namespace millrace::kernels::cuda
