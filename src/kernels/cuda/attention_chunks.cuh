// The steps of attention of few rows, a chunk of 128 keys at a time, and those over keys and values kept as f16, which
// kernels with different room in shared memory share: attention.cu, attention_wide.cu.
#pragma once

#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cmath>

#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/attention_half.cuh"
#include "kernels/cuda/exp.cuh"

namespace millrace::kernels::cuda {

/// A chunk's maximum and sum for one head.
struct alignas(8) ChunkSum {
  float m, l;
};

struct DecodeArgs : HeadArgs {
  int block_heads;  // heads that a block works on: the group's, or one
  int max_chunks;   // that a row sees
  bool cluster;     // the chunks of a row and head are a cluster
  bool both;        // K and V are in shared memory together, else one after the other in one place
  float* part;      // [rows, heads, max_chunks, head_dim]
  ChunkSum* sums;   // [rows, heads, max_chunks]
};

/// Chunks that a row sees.
struct Chunks {
  int first, count;
};
template <bool kRare>
__device__ __forceinline__ Chunks chunks_of_row(int position, int window) {
  const int first = first_visible<kRare>(position, window) / kAttentionChunk;
  return {first, position / kAttentionChunk - first + 1};
}

/// The merge of a row's only chunk: m becomes what its results are multiplied by, l what they are then divided by.
__device__ __forceinline__ ChunkSum merge_alone(const HeadArgs& args, int head, ChunkSum sum) {
  if (args.sinks == nullptr) return {1, sum.l};
  const Merged start = merge_start(args, head);
  const float now = fmaxf(start.most, sum.m), joins = exp_to_one(sum.m - now);
  return {joins, __fmaf_rn(start.total, exp_to_one(start.most - now), sum.l * joins)};
}

/// A warp bends one head's scores of a chunk. ahead: the row's position less the chunk's first key. A lane changes the
/// keys that it reads again in soften() and soften_half().
__device__ __forceinline__ void bend_chunk(const ScoreBend& bend, int ahead, float* scores) {
#pragma unroll 1
  for (int key = static_cast<int>(threadIdx.x) % 32; key < kAttentionChunk; key += 32)
    scores[key] = bend(scores[key], ahead - key);
}

/// A warp turns one head's scores of a chunk into weights. Keys outside [begin, end) get 0. Weights are rounded to f16
/// before they are summed, and take the scores' place as factors of the products with values: {near, far} of step t and
/// quarter q in the words 8 t + 2 q and + 1.
__device__ __forceinline__ ChunkSum soften_half(float* scores, int begin, int end) {
  constexpr int kEach = kAttentionChunk / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float s[kEach], m = -INFINITY, l = 0;
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    const int key = lane + 32 * k;
    s[k] = key >= begin && key < end ? scores[key] : -INFINITY;
    m = fmaxf(m, s[k]);
  }
#pragma unroll
  for (int step = 32 / 2; step > 0; step /= 2) m = fmaxf(m, __shfl_xor_sync(kFullWarp, m, step));
  __syncwarp();  // all scores have been read
  // Of sixteen keys, near ones are the even of the first eight and the odd of the last, each quarter's two together.
  const bool odd = lane % 2 == 1, first = lane % 16 < 8;
  auto* const to = reinterpret_cast<__half*>(scores) + lane / 16 * 16 + lane % 8 / 2 * 4 + (odd == first ? 2 : 0) + odd;
#pragma unroll
  for (int k = 0; k < kEach; ++k) s[k] -= m;
  exp_for_half(s);
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    const __half weight = __float2half_rn(s[k]);
    to[32 * k] = weight;
    l += __half2float(weight);
  }
#pragma unroll
  for (int step = 32 / 2; step > 0; step /= 2) l += __shfl_xor_sync(kFullWarp, l, step);
  return {m, l};
}

/// Scores over f16 of kTiles times eight keys for eight pairs, from `from` on (key_address): of 8 n + 2 quarter and + 1
/// in s[n][0] and s[n][1]. For the whole warp.
template <int kHeadDim, int kTiles>
__device__ __forceinline__ void score_half(const HalfQuery<kHeadDim>& query, unsigned from, float (&s)[kTiles][4]) {
#pragma unroll
  for (int n = 0; n < kTiles; ++n) s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0;
#pragma unroll
  for (int t = 0; t < kHeadDim / 16; ++t) {
    unsigned keys[kTiles / 2][4];
#pragma unroll
    for (int j = 0; j < kTiles / 2; ++j) load_columns(keys[j], from + t * (2 * kKvBlock) + j * 32);
    const unsigned factors[4] = {query.factors[t][0], 0, query.factors[t][1], 0};
#pragma unroll
    for (int j = 0; j < kTiles / 2; ++j) {
      multiply_halves(s[2 * j], factors, keys[j][0], keys[j][1]);
      multiply_halves(s[2 * j + 1], factors, keys[j][2], keys[j][3]);
    }
  }
}

/// Weighted values over f16 of sixteen keys for eight pairs are added: of kTiles times eight channels, 8 n + 2 quarter
/// and + 1 in sums[n][0] and sums[n][1]. from: the sixteen's, from value_address. weights: the lane's pair's of the
/// sixteen, as soften_half leaves them, or null: there is no such pair. For the whole warp.
template <int kTiles>
__device__ __forceinline__ void add_half_step(const float* weights, unsigned from, float (&sums)[kTiles][4]) {
  const int quarter = static_cast<int>(threadIdx.x) % 4;
  uint2 two = {};
  if (weights) two = *reinterpret_cast<const uint2*>(weights + 2 * quarter);
  const unsigned factors[4] = {two.x, 0, two.y, 0};
#pragma unroll
  for (int j = 0; j < kTiles / 2; ++j) {
    unsigned values[4];
    load_columns(values, from + j * 32);
    multiply_halves(sums[2 * j], factors, values[0], values[1]);
    multiply_halves(sums[2 * j + 1], factors, values[2], values[3]);
  }
}

/// The same of a chunk: acc[2 n] and acc[2 n + 1]. low, high: which half of the chunk has keys that are seen.
template <int kHeadDim, int kTiles>
__device__ __forceinline__ void add_half_values(const float* weights, unsigned from, bool low, bool high,
                                                float (&acc)[2 * kTiles]) {
  float sums[kTiles][4] = {};
#pragma unroll
  for (int step = 0; step < kAttentionChunk / 16; ++step) {
    if (!(step < kKvBlock / 16 ? low : high)) continue;
    add_half_step<kTiles>(weights ? weights + 8 * step : nullptr, from + step * (8 * HalfLayout<kHeadDim>::kValuePitch),
                          sums);
  }
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 2; ++i) acc[2 * n + i] = sums[n][i];
  }
}

/// Heads of 512 over f16 where a block has no room for a chunk's keys or values: attention_wide.cu. args.block_heads of
/// them at a time, args.cluster false.
cudaError_t attention_by_halves(const DecodeArgs& args, cudaStream_t stream);

}  // namespace millrace::kernels::cuda
