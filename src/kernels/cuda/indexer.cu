// An indexer's queries and keys, scores, and the choice of the largest. Contract: indexer.h.
//
// Scores: a block takes 128 keys of a row and all heads, 64 (or 32) at once. Sums have the CPU's order, one fma after
// another, so the float units are the bound, not memory: a thread has 8 keys and 8 heads, whose 64 fmas take 24 bytes
// of keys and queries from shared memory a channel, while the next channels come.
//
// The choice: radix select. A row's scores are cut into as many parts as a cluster has blocks. Three times they count
// the next bits of those scores that can still be the k-th largest, and each adds up the counts of all; then each
// writes the chosen positions of its part behind those of the parts before.
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/async_copy.cuh"
#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/index_tile.cuh"
#include "kernels/cuda/kv_view.cuh"
#include "kernels/cuda/launchers.h"
#include "kernels/cuda/pdl.cuh"
#include "kernels/cuda/warp.cuh"

namespace millrace::kernels::cuda {
namespace {

// ---------------------------------------------------------------------------------------------------------------------
// Queries and keys

constexpr int kStoreThreads = 256;

/// Pair i of the channels that turn.
__device__ __forceinline__ void turn_pair(const IndexStoreCall& call, float* head, const float2* angles, int i) {
  float* const near = head + call.first + (call.neox ? i : 2 * i);
  float* const far = near + (call.neox ? call.rotary / 2 : 1);
  const float a = *near, b = *far;
  *near = __fmaf_rn(a, angles[i].x, -(b * angles[i].y));
  *far = __fmaf_rn(a, angles[i].y, b * angles[i].x);
}

/// By one warp: lane l has the channels c with c % 32 == l, which is the order of the CPU's sums.
__device__ __forceinline__ void store_key(const IndexStoreCall& call, std::int64_t row, const float2* angles) {
  __shared__ float key[kMostIndexDim];
  constexpr int kEach = kMostIndexDim / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp, dim = call.index.dim;
  const auto* const weight = reinterpret_cast<const float*>(*call.weight);
  const auto* const bias = call.bias == nullptr ? nullptr : reinterpret_cast<const float*>(*call.bias);
  float x[kEach], sum = 0, squares = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int c = i * kWarp + lane;
    x[i] = c < dim ? call.key[row * dim + c] : 0;
    if (c < dim) sum += x[i];
  }
  const float mean = sum_over_warp(sum) / static_cast<float>(dim);
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    x[i] -= mean;
    if (i * kWarp < dim) squares = __fmaf_rn(x[i], x[i], squares);
  }
  const float scale = 1.0f / sqrtf(sum_over_warp(squares) / static_cast<float>(dim) + call.eps);
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int c = i * kWarp + lane;
    if (c >= dim) continue;
    const float normed = x[i] * scale * weight[c];
    key[c] = bias == nullptr ? normed : normed + bias[c];
  }
  __syncwarp();
  for (int i = lane; i < call.rotary / 2; i += kWarp) turn_pair(call, key, angles, i);
  __syncwarp();
  const int position = call.rows.position[row], slot = position % kKvBlock;
  std::byte* const to = const_cast<std::byte*>(index_block(call.index, call.rows.sequence[row], position));
  for (int c = lane; c < dim; c += kWarp) {
    if (call.index.dtype == DType::f16)
      reinterpret_cast<__half*>(to)[c * kKvBlock + slot] = __float2half_rn(key[c]);
    else
      reinterpret_cast<float*>(to)[c * kKvBlock + slot] = key[c];
  }
}

__global__ void __launch_bounds__(kStoreThreads) store_index_kernel(const __grid_constant__ IndexStoreCall call) {
  allow_successor();
  wait_for_predecessor();
  const std::int64_t row = blockIdx.x;
  const int half = call.rotary / 2, dim = call.index.dim;
  const auto* const angles = reinterpret_cast<const float2*>(call.cos_sin) + row * half;
  if (threadIdx.x < kWarp) store_key(call, row, angles);
  for (int i = static_cast<int>(threadIdx.x); i < call.heads * half; i += kStoreThreads)
    turn_pair(call, call.q + (row * call.heads + i / half) * dim, angles, i % half);
}

// ---------------------------------------------------------------------------------------------------------------------
// Scores

constexpr int kScoreKeys = 128;  // of a block of threads: two blocks of the cache
constexpr int kEachKeys = 8, kEachHeads = 8;
constexpr int kChannels = kIndexDimStep;  // of a stage
constexpr int kStages = 2;
constexpr int kKeyGroups = kScoreKeys / kEachKeys;
constexpr int kHeadPad = 4;  // floats behind a channel's heads

template <typename T, int kHeads>
struct ScoreShared {
  static constexpr int kPitch = kHeads + kHeadPad;
  struct Stage {
    alignas(16) T keys[kChannels][kScoreKeys];
    alignas(16) float q[kChannels][kPitch];
  };
  union {
    Stage stages[kStages];
    alignas(16) float dots[kHeads][kScoreKeys];
  };
  float weights[kHeads];
};

/// Channels [first, first + kChannels) of the keys of two blocks and of heads from first_head on; zeros behind the last
/// head.
template <typename T, int kHeads>
__device__ __forceinline__ void load_stage(typename ScoreShared<T, kHeads>::Stage& stage, const ScoreArgs& args,
                                           const std::byte* near, const std::byte* far, const float* q, int first_head,
                                           int first) {
  constexpr int kThreads = kKeyGroups * kHeads / kEachHeads;
  constexpr int kUnit = 16 / static_cast<int>(sizeof(T)), kUnits = kScoreKeys / kUnit;
  const int thread = static_cast<int>(threadIdx.x), dim = args.call.index.dim;
#pragma unroll
  for (int u = thread; u < kChannels * kUnits; u += kThreads) {
    const int channel = u / kUnits, key = u % kUnits * kUnit;
    const auto* const from = reinterpret_cast<const T*>(key < kKvBlock ? near : far) + (first + channel) * kKvBlock;
    copy_16(&stage.keys[channel][key], from + key % kKvBlock);
  }
#pragma unroll
  for (int u = thread; u < kChannels * kHeads; u += kThreads) {
    const int head = u / kChannels, channel = u % kChannels;
    const bool valid = first_head + head < args.call.heads;
    copy_4(&stage.q[channel][head], q + (valid ? first_head + head : 0) * dim + first + channel, valid);
  }
  copies_commit();
}

__device__ __forceinline__ void load_eight(float (&to)[8], const float* from) {
  const float4 low = *reinterpret_cast<const float4*>(from), high = *reinterpret_cast<const float4*>(from + 4);
  to[0] = low.x, to[1] = low.y, to[2] = low.z, to[3] = low.w;
  to[4] = high.x, to[5] = high.y, to[6] = high.z, to[7] = high.w;
}
__device__ __forceinline__ void load_eight(float (&to)[8], const __half* from) {
  const uint4 eight = *reinterpret_cast<const uint4*>(from);
  const unsigned words[4] = {eight.x, eight.y, eight.z, eight.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 two = __half22float2(*reinterpret_cast<const __half2*>(&words[i]));
    to[2 * i] = two.x, to[2 * i + 1] = two.y;
  }
}

template <typename T, int kHeads>
__device__ __forceinline__ void multiply_stage(const typename ScoreShared<T, kHeads>::Stage& stage,
                                               float (&dots)[kEachHeads][kEachKeys]) {
  const int key = static_cast<int>(threadIdx.x) % kKeyGroups * kEachKeys;
  const int head = static_cast<int>(threadIdx.x) / kKeyGroups * kEachHeads;
#pragma unroll 4
  for (int channel = 0; channel < kChannels; ++channel) {
    float keys[kEachKeys], q[kEachHeads];
    load_eight(keys, &stage.keys[channel][key]);
    load_eight(q, &stage.q[channel][head]);
#pragma unroll
    for (int h = 0; h < kEachHeads; ++h) {
#pragma unroll
      for (int k = 0; k < kEachKeys; ++k) dots[h][k] = __fmaf_rn(q[h], keys[k], dots[h][k]);
    }
  }
}

template <typename T, int kHeads>
__global__ void __launch_bounds__(kKeyGroups* kHeads / kEachHeads)
    index_scores_kernel(const __grid_constant__ ScoreArgs args) {
  extern __shared__ __align__(16) std::byte memory[];
  allow_successor();
  wait_for_predecessor();
  constexpr int kThreads = kKeyGroups * kHeads / kEachHeads, kSums = kScoreKeys / kThreads;
  auto& shared = *reinterpret_cast<ScoreShared<T, kHeads>*>(memory);
  const ChooseKeysCall& call = args.call;
  const int row = args.first_row + static_cast<int>(blockIdx.y), first_key = static_cast<int>(blockIdx.x) * kScoreKeys;
  const int position = call.rows.position[row], thread = static_cast<int>(threadIdx.x);
  if (position < call.top_k || first_key > position) return;  // all keys are chosen, or none of these is seen
  const int sequence = call.rows.sequence[row], dim = call.index.dim;
  // The second block may not be there; then its keys are not seen, and the first one's take their place.
  const std::byte* const near = index_block(call.index, sequence, first_key);
  const std::byte* const far =
      first_key + kKvBlock > position ? near : index_block(call.index, sequence, first_key + kKvBlock);
  const float* const q = call.q + static_cast<std::int64_t>(row) * call.heads * dim;
  float sums[kSums] = {};
  for (int first_head = 0; first_head < call.heads; first_head += kHeads) {
    const int heads = min(kHeads, call.heads - first_head);
    if (first_head > 0) __syncthreads();  // the sums before are made
    if (thread < heads)
      shared.weights[thread] =
          call.weights[static_cast<std::int64_t>(row) * call.heads + first_head + thread] * call.factor;
    float dots[kEachHeads][kEachKeys] = {};
    load_stage<T, kHeads>(shared.stages[0], args, near, far, q, first_head, 0);
    for (int first = 0, stage = 0; first < dim; first += kChannels, stage ^= 1) {
      if (first + kChannels < dim)
        load_stage<T, kHeads>(shared.stages[stage ^ 1], args, near, far, q, first_head, first + kChannels);
      else
        copies_commit();
      copies_wait<1>();
      __syncthreads();
      multiply_stage<T, kHeads>(shared.stages[stage], dots);
      __syncthreads();
    }
    const int key = thread % kKeyGroups * kEachKeys, head = thread / kKeyGroups * kEachHeads;
#pragma unroll
    for (int h = 0; h < kEachHeads; ++h) {
      float* const to = &shared.dots[head + h][key];
      *reinterpret_cast<float4*>(to) = make_float4(dots[h][0], dots[h][1], dots[h][2], dots[h][3]);
      *reinterpret_cast<float4*>(to + 4) = make_float4(dots[h][4], dots[h][5], dots[h][6], dots[h][7]);
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
      for (int h = 0; h < heads; ++h)
        sums[i] = __fmaf_rn(shared.weights[h], fmaxf(shared.dots[h][i * kThreads + thread], 0.0f), sums[i]);
    }
  }
  float* const out = args.scores + static_cast<std::int64_t>(blockIdx.y) * args.stride + first_key;
#pragma unroll
  for (int i = 0; i < kSums; ++i)
    if (first_key + i * kThreads + thread <= position) out[i * kThreads + thread] = sums[i];
}

// ---------------------------------------------------------------------------------------------------------------------
// The choice

constexpr int kChooseThreads = 512, kChooseWarps = kChooseThreads / kWarp;
constexpr int kMostParts = 8;  // blocks of a cluster
constexpr int kRounds = 3, kDigitBits = 11, kDigits = 1 << kDigitBits;
constexpr int kEachDigits = kDigits / kChooseThreads;
static_assert(kRounds * kDigitBits >= 32 && kEachDigits == 4);

/// Scores in an order of integers: NaN as -infinity, and both zeros as one.
__device__ __forceinline__ unsigned ordered(float score) {
  score = score == score ? score + 0.0f : -INFINITY;
  const unsigned bits = __float_as_uint(score);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}
/// The lowest bit of a round's digit; the last digit has one bit less.
__device__ constexpr int digit_shift(int round) { return round == kRounds - 1 ? 0 : 32 - (round + 1) * kDigitBits; }

struct ChooseShared {
  alignas(
      16) unsigned counts[kRounds][kDigits];  // by digit: of this block's part, of scores that begin as the k-th does
  unsigned warps[kChooseWarps];
  unsigned found_digit, found_above;
  unsigned above[kChooseWarps], equal[kChooseWarps];  // scores of a warp's keys: above the k-th, and equal to it
  unsigned part_above, part_equal;
};

/// Four numbers of all blocks of the cluster, added up.
__device__ __forceinline__ uint4 sum_of_fours(const unsigned* fours, int parts) {
  uint4 sum = parts == 1 ? *reinterpret_cast<const uint4*>(fours) : make_uint4(0, 0, 0, 0);
  if (parts == 1) return sum;
  for (int part = 0; part < parts; ++part) {
    const uint4 of_part = load_four_in_cluster(in_cluster(fours, part));
    sum.x += of_part.x, sum.y += of_part.y, sum.z += of_part.z, sum.w += of_part.w;
  }
  return sum;
}
/// The value in the memory of all blocks of the cluster, added up over those before `end`.
__device__ __forceinline__ unsigned sum_of_parts(const unsigned* value, int parts, int end) {
  if (parts == 1) return end > 0 ? *value : 0;
  unsigned sum = 0;
  for (int part = 0; part < end; ++part) sum += __float_as_uint(load_in_cluster(in_cluster(value, part)));
  return sum;
}

/// Which digit the k-th largest has, k counted from 1, and how many scores have larger ones; of the whole row.
__device__ __forceinline__ void find_digit(ChooseShared& shared, const unsigned* counts, int parts, unsigned k) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp, warp = thread / kWarp;
  const uint4 fours = sum_of_fours(counts + kDigits - kEachDigits * (thread + 1), parts);
  const unsigned each[kEachDigits] = {fours.w, fours.z, fours.y, fours.x};  // from the largest digit down
  const unsigned mine = fours.x + fours.y + fours.z + fours.w;
  unsigned through = mine;
#pragma unroll
  for (int step = 1; step < kWarp; step *= 2) {
    const unsigned other = __shfl_up_sync(kAllLanes, through, step);
    if (lane >= step) through += other;
  }
  if (lane == kWarp - 1) shared.warps[warp] = through;
  __syncthreads();
  unsigned before = through - mine;
  for (int w = 0; w < warp; ++w) before += shared.warps[w];
#pragma unroll
  for (int i = 0; i < kEachDigits; ++i) {
    if (before < k && k <= before + each[i]) {
      shared.found_digit = static_cast<unsigned>(kDigits - 1 - (kEachDigits * thread + i));
      shared.found_above = before;
    }
    before += each[i];
  }
  __syncthreads();
}

struct ChooseArgs {
  ScoreArgs of;
  int parts;  // of a row: blocks of a cluster, along y
};

__global__ void __launch_bounds__(kChooseThreads) choose_keys_kernel(const __grid_constant__ ChooseArgs args) {
  __shared__ ChooseShared shared;
  allow_successor();
  wait_for_predecessor();
  const ChooseKeysCall& call = args.of.call;
  const int row = args.of.first_row + static_cast<int>(blockIdx.x), parts = args.parts;
  const int part = static_cast<int>(blockIdx.y), thread = static_cast<int>(threadIdx.x);
  const int lane = thread % kWarp, warp = thread / kWarp;
  const int keys = call.rows.position[row] + 1;
  std::int32_t* const chosen = call.chosen + static_cast<std::int64_t>(row) * call.top_k;
  if (keys <= call.top_k) {
    for (int i = part * kChooseThreads + thread; i < keys; i += parts * kChooseThreads) chosen[i] = i;
    return;
  }
  const float* const scores = args.of.scores + static_cast<std::int64_t>(blockIdx.x) * args.of.stride;
  const int step = parts * kChooseThreads;  // keys of a warp are a multiple of kWarp
  const int of_part = (keys + step - 1) / step * kChooseThreads, of_warp = of_part / kChooseWarps;
  const int first = part * of_part, end = min(keys, first + of_part);
  for (int i = thread; i < kRounds * kDigits; i += kChooseThreads) shared.counts[0][i] = 0;
  __syncthreads();
  unsigned prefix = 0, mask = 0, left = static_cast<unsigned>(call.top_k);
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    const int shift = digit_shift(round);
    const unsigned digits = round == kRounds - 1 ? (1u << (32 - (kRounds - 1) * kDigitBits)) - 1 : kDigits - 1;
#pragma unroll 4
    for (int i = first + thread; i < end; i += kChooseThreads) {
      const unsigned score = ordered(scores[i]);
      if ((score & mask) == prefix) atomicAdd(&shared.counts[round][score >> shift & digits], 1u);
    }
    __syncthreads();
    if (parts > 1) sync_cluster();
    find_digit(shared, shared.counts[round], parts, left);
    left -= shared.found_above;
    prefix |= shared.found_digit << shift;
    mask |= digits << shift;
  }
  // `left` of the scores that equal the k-th are chosen, the first ones.
  const int begin = first + warp * of_warp, last = min(end, begin + of_warp);
  unsigned above = 0, equal = 0;
  for (int i = begin + lane; i - lane < last; i += kWarp) {
    const unsigned score = i < last ? ordered(scores[i]) : 0;
    above += static_cast<unsigned>(__popc(__ballot_sync(kAllLanes, i < last && score > prefix)));
    equal += static_cast<unsigned>(__popc(__ballot_sync(kAllLanes, i < last && score == prefix)));
  }
  if (lane == 0) shared.above[warp] = above, shared.equal[warp] = equal;
  __syncthreads();
  if (thread == 0) {
    unsigned all_above = 0, all_equal = 0;
    for (int w = 0; w < kChooseWarps; ++w) all_above += shared.above[w], all_equal += shared.equal[w];
    shared.part_above = all_above, shared.part_equal = all_equal;
  }
  __syncthreads();
  if (parts > 1) sync_cluster();
  above = sum_of_parts(&shared.part_above, parts, part);
  equal = sum_of_parts(&shared.part_equal, parts, part);
  if (parts > 1) arrive_in_cluster();  // this block reads no other's memory any more
  for (int w = 0; w < warp; ++w) above += shared.above[w], equal += shared.equal[w];
  const unsigned before_lane = (1u << lane) - 1;
  for (int i = begin + lane; i - lane < last; i += kWarp) {
    const unsigned score = i < last ? ordered(scores[i]) : 0;
    const unsigned larger = __ballot_sync(kAllLanes, i < last && score > prefix);
    const unsigned same = __ballot_sync(kAllLanes, i < last && score == prefix);
    const unsigned my_above = above + static_cast<unsigned>(__popc(larger & before_lane));
    const unsigned my_equal = equal + static_cast<unsigned>(__popc(same & before_lane));
    if ((larger >> lane & 1) != 0 || ((same >> lane & 1) != 0 && my_equal < left))
      chosen[my_above + min(my_equal, left)] = i;
    above += static_cast<unsigned>(__popc(larger));
    equal += static_cast<unsigned>(__popc(same));
  }
  if (parts > 1) wait_for_cluster();
}

// ---------------------------------------------------------------------------------------------------------------------
// Launches

constexpr int kClusteredRows = 64;  // rows that leave enough of a device idle to be worked by clusters

int score_stride(std::int32_t max_position) { return (max_position + kScoreKeys - 1) / kScoreKeys * kScoreKeys; }
/// Of the workspace: a row's scores, and its queries as factors.
std::size_t row_bytes(std::int32_t max_position) {
  return static_cast<std::size_t>(score_stride(max_position)) * sizeof(float) + kIndexFactorBytes;
}

template <typename T, int kHeads>
cudaError_t score(const ScoreArgs& args, int rows, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(args.stride / kScoreKeys), static_cast<unsigned>(rows));
  return launch_large(index_scores_kernel<T, kHeads>, grid, dim3(kKeyGroups * kHeads / kEachHeads),
                      sizeof(ScoreShared<T, kHeads>), stream, 1, args);
}

template <typename T>
cudaError_t score(const ScoreArgs& args, int rows, cudaStream_t stream) {
  return args.call.heads > 32 ? score<T, 64>(args, rows, stream) : score<T, 32>(args, rows, stream);
}

}  // namespace

cudaError_t store_index(const IndexStoreCall& call, cudaStream_t stream) {
  if (call.rows.rows <= 0) return cudaSuccess;
  if (call.index.dim > kMostIndexDim || call.index.dim % kIndexDimStep != 0 ||
      call.first + call.rotary > call.index.dim || call.rotary % 2 != 0)
    return cudaErrorInvalidValue;
  return launch(store_index_kernel, dim3(static_cast<unsigned>(call.rows.rows)), dim3(kStoreThreads), 0, stream, call);
}

std::size_t choose_workspace_bytes(std::int32_t rows, std::int32_t max_position) {
  constexpr std::size_t kMost = 32u << 20;
  const std::size_t row = row_bytes(max_position);
  return std::clamp<std::size_t>(kMost / row, 1, static_cast<std::size_t>(std::max(1, rows))) * row;
}

cudaError_t choose_keys(const ChooseKeysCall& call, cudaStream_t stream) {
  if (call.rows.rows <= 0) return cudaSuccess;
  if (call.index.dim > kMostIndexDim || call.index.dim % kIndexDimStep != 0 || call.heads <= 0 || call.top_k <= 0)
    return cudaErrorInvalidValue;
  const int at_once = static_cast<int>(std::min<std::size_t>(call.workspace_bytes / row_bytes(call.max_position),
                                                             static_cast<std::size_t>(call.rows.rows)));
  if (at_once <= 0) return cudaErrorInvalidValue;
  ChooseArgs args{{call, 0, score_stride(call.max_position), reinterpret_cast<float*>(call.workspace)}, 1};
  std::byte* const factors = call.workspace + std::int64_t{at_once} * args.of.stride * sizeof(float);
  for (; args.of.first_row < call.rows.rows; args.of.first_row += at_once) {
    const int rows = std::min(at_once, call.rows.rows - args.of.first_row);
    cudaError_t error = index_tiles_take(call)           ? index_tiles(args.of, factors, rows, stream)
                        : call.index.dtype == DType::f16 ? score<__half>(args.of, rows, stream)
                                                         : score<float>(args.of, rows, stream);
    if (error != cudaSuccess) return error;
    args.parts = rows <= kClusteredRows && overlaps_launches() ? kMostParts : 1;
    error = launch_clusters(choose_keys_kernel, dim3(static_cast<unsigned>(rows), static_cast<unsigned>(args.parts)),
                            dim3(kChooseThreads), 0, stream, args.parts, args);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace millrace::kernels::cuda
