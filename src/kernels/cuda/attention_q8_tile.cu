// Attention of many rows over keys and values kept as q8_0, q4_0 or in few bits: a warp takes eight (row, head) pairs
// of a tile that share a KV head, and walks the chunks of keys that any of its block's rows sees, while the copy engine
// brings the next ones. Contract and order of sums: ops.h; the products of a chunk: attention_q8.cuh. Scores,
// weights and results of a pair stay in the registers of its four lanes.
#include <algorithm>
#include <cstddef>
#include <type_traits>

#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/attention_few.cuh"
#include "kernels/cuda/attention_q8.cuh"
#include "kernels/cuda/bulk_copy.cuh"
#include "kernels/cuda/exp.cuh"
#include "kernels/cuda/pdl.cuh"
#include "kernels/cuda/quantize.cuh"
#include "kernels/cuda/warp.cuh"

namespace millrace::kernels::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kPairs = kThreads / 32 * 8;  // of a block

struct Q8TileArgs : HeadArgs {
  const int4* tiles;
  int tile_count;
  int slices;  // blocks that share a tile and KV head
};

/// A row's merge so far.
// Scores of a pair's 32 keys a lane become weights, 0 outside [begin, end); returns the factors of what was merged and
// of this chunk. Key 32 t + 8 quarter + i is s[t][i], and its scaled score becomes bend(score, 32 t + i). For the whole
// warp.
template <typename Bend>
__device__ __forceinline__ float2 soften(float (&s)[4][8], int begin, int end, float scale, const Bend& bend,
                                         Merged& merged) {
  const int quarter = static_cast<int>(threadIdx.x) % 4;
  const auto sees = [&](int t, int i) {
    const int key = 32 * t + 8 * quarter + i;
    return key >= begin && key < end;
  };
  float m = -INFINITY, l[8];
#pragma unroll
  for (int t = 0; t < 4; ++t) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      s[t][i] = sees(t, i) ? bend(s[t][i] * scale, 32 * t + i) : -INFINITY;
      m = fmaxf(m, s[t][i]);
    }
  }
  m = fmaxf(m, __shfl_xor_sync(kWholeWarp, m, 1));
  m = fmaxf(m, __shfl_xor_sync(kWholeWarp, m, 2));
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    l[i] = 0;
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      s[t][i] = sees(t, i) ? exp_to_one(s[t][i] - m) : 0.0f;
      l[i] += s[t][i];
    }
  }
  // The contract's lane j % 32 is 8 quarter + i: its tree's steps of 16 and 8 cross quarters.
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    l[i] += __shfl_xor_sync(kWholeWarp, l[i], 2);
    l[i] += __shfl_xor_sync(kWholeWarp, l[i], 1);
  }
  const float sum = ((l[0] + l[4]) + (l[2] + l[6])) + ((l[1] + l[5]) + (l[3] + l[7]));
  if (begin >= end) return make_float2(1, 0);
  const float now = fmaxf(merged.most, m);
  const float before = exp_to_one(merged.most - now), joins = exp_to_one(m - now);
  merged = {now, __fmaf_rn(merged.total, before, sum * joins)};
  return make_float2(before, joins);
}

// T: the cache's elements.
template <int kHeadDim, typename T, bool kRare>
__global__ void __launch_bounds__(kThreads, kHeadDim <= 128 ? 3 : 2)
    q8_tile_kernel(const __grid_constant__ Q8TileArgs args) {
  constexpr bool kNibbles = std::is_same_v<T, Nibbles>, kFew = kIsFewBits<T>;
  constexpr int kGroups = kHeadDim / 32;
  constexpr int kElements = kKvBlock * kHeadDim / (kNibbles ? 2 : 1);  // bytes of a block's K or V
  constexpr int kScales = kKvBlock * kGroups * 2;
  extern __shared__ __align__(128) std::byte shared[];
  std::byte* const keys = shared;                                // [2] blocks: [.., 64], scales
  std::byte* const values = shared + 2 * (kElements + kScales);  // of 128 keys
  std::byte* const value_scales = values + 2 * kElements;        // [128, head_dim / 32]
  __shared__ Arrival keys_there, values_there;
  allow_successor();
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32, quarter = lane % 4;
  const int kv_head = static_cast<int>(blockIdx.x) / args.slices;
  const int first_pair = static_cast<int>(blockIdx.x) % args.slices * kPairs;
  // A sequence's tiles come in ascending order, so later ones take longer, and go first.
  const int4 tile = args.tiles[args.tile_count - 1 - static_cast<int>(blockIdx.y)];
  const int pairs = min(tile.y * args.group - first_pair, kPairs);
  wait_for_predecessor();  // in every block, as all may have nothing to do
  if (pairs <= 0) return;
  if (threadIdx.x == 0) {
    keys_there.open();
    values_there.open();
  }
  const auto row_of = [&](int pair) { return tile.x + (first_pair + pair) / args.group; };
  int newest = 0, oldest = 0x7fffffff;  // keys that any of the block's rows sees
  for (int m = lane; m < pairs; m += 32) {
    const SeenKeys keys_of_row = seen_by<kRare>(args, row_of(m));
    newest = max(newest, keys_of_row.last);
    oldest = min(oldest, keys_of_row.first);
  }
  newest = max_over_warp(newest);
  oldest = min_over_warp(oldest);
  const int first_chunk = oldest / kAttentionChunk, last_chunk = newest / kAttentionChunk;

  const int my_pair = 8 * warp + lane / 4;
  const bool mine = my_pair < pairs;
  const SeenKeys sight = mine ? seen_by<kRare>(args, row_of(my_pair)) : kSeesNothing;
  const int head = kv_head * args.group + (first_pair + my_pair) % args.group;
  const std::int64_t first_channel =
      mine ? (static_cast<std::int64_t>(row_of(my_pair)) * args.heads + head) * kHeadDim : 0;
  Q8Queries<kHeadDim, kNibbles> queries;
  queries.load(mine ? args.q + first_channel : nullptr);

  const auto is_seen = [&](int block) { return block * kKvBlock <= newest && (block + 1) * kKvBlock > oldest; };
  // Whether a block's bytes are yet to become those of q8_0: all rows of a tile see the same blocks in plain ones.
  const auto is_few = [&](int block) { return kFew && is_seen(block) && !is_plain_block(block, newest); };
  constexpr int kFewBytes = FewBitsBlock<kHeadDim, kHasSigns<T>>::kBytes;
  const auto fetch = [&](int chunk, Arrival& arrival, bool is_key, std::byte* elements, int stride, std::byte* scales,
                         int scale_stride) {
    if (!Arrival::copies()) return;
    const bool seen[2] = {is_seen(2 * chunk), is_seen(2 * chunk + 1)};
    const int few = (is_few(2 * chunk) ? 1 : 0) + (is_few(2 * chunk + 1) ? 1 : 0);
    arrival.expect((seen[0] + seen[1] - few) * (kElements + kScales) + few * kFewBytes);
    for (int half = 0; half < 2; ++half) {
      if (!seen[half]) continue;
      const int block = 2 * chunk + half;
      const KvView::Blocks& blocks = !kFew || is_few(block) ? args.kv.blocks : args.kv.plain;
      const std::byte* const from =
          blocks.table[kv_entry(args.kv, tile.z, block * kKvBlock)] + kv_part(blocks, is_key, kv_head);
      if (is_few(block)) {
        arrival.copy(elements + half * stride, from, kFewBytes);
        continue;
      }
      arrival.copy(elements + half * stride, from, kElements);
      arrival.copy(scales + half * scale_stride, from + kElements, kScales);
    }
  };
  const auto fetch_keys = [&](int chunk) {
    constexpr int kBlock = kElements + kScales;
    fetch(chunk, keys_there, true, keys, kBlock, keys + kElements, kBlock);
  };
  const auto fetch_values = [&](int chunk) {
    fetch(chunk, values_there, false, values, kElements, value_scales, kScales);
  };
  // What arrived of few bits becomes q8_0, before anybody reads it.
  const auto expand = [&]<bool kKeys>(int chunk, std::bool_constant<kKeys>) {
    if constexpr (kFew) {
      const bool few[2] = {is_few(2 * chunk), is_few(2 * chunk + 1)};
      if (!few[0] && !few[1]) return;
      std::byte* const elements = kKeys ? keys : values;
      std::byte* const scales = kKeys ? keys + kElements : value_scales;
      const FewBitsPlaces places = {{elements, elements + (kKeys ? kElements + kScales : kElements)},
                                    {scales, scales + (kKeys ? kElements + kScales : kScales)}};
      expand_few_bits<kHeadDim, kHasSigns<T>, kKeys, kThreads>(places, few[0], few[1]);
      __syncthreads();
    }
  };
  __syncthreads();  // the arrivals are open
  fetch_keys(first_chunk);
  fetch_values(first_chunk);

  float result[kGroups][8] = {};  // A, of channels 32 g + 8 quarter + i
  Merged merged = merge_start(args, head);
  for (int chunk = first_chunk; chunk <= last_chunk; ++chunk) {
    const int base = chunk * kAttentionChunk;
    const bool more = chunk < last_chunk;
    float s[4][8];
    keys_there.await(chunk - first_chunk);
    expand(chunk, std::true_type());
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      if (is_seen(2 * chunk + t / 2)) {
        queries.score(keys + t / 2 * (kElements + kScales), t % 2 * 32, s[t]);
      } else {
#pragma unroll
        for (int i = 0; i < 8; ++i) s[t][i] = 0;
      }
    }
    __syncthreads();  // K is free
    if (more) fetch_keys(chunk + 1);
    const int begin = max(sight.first - base, 0);
    const int end = min(sight.last + 1 - base, kAttentionChunk);
    const ScoreBend by(args, head);
    const int ahead = (kRare && mine ? args.rows.position[row_of(my_pair)] : 0) - base - 8 * quarter;
    const auto bend = [&](float score, int key) { return kRare ? by(score, ahead - key) : score; };
    const float2 factors = soften(s, begin, end, args.scale, bend, merged);
    values_there.await(chunk - first_chunk);
    expand(chunk, std::false_type());
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      float acc[8];
      add_q8_values<kHeadDim, kNibbles>(s, values, reinterpret_cast<const __half*>(value_scales), g, acc);
#pragma unroll
      for (int i = 0; i < 8; ++i) result[g][i] = __fmaf_rn(result[g][i], factors.x, acc[i] * factors.y);
    }
    __syncthreads();  // V is free
    if (more) fetch_values(chunk + 1);
  }

  if (!mine) return;
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    const std::int64_t at = first_channel + 32 * g + 8 * quarter;
#pragma unroll
    for (int i = 0; i < 8; ++i) result[g][i] = result[g][i] / merged.total;
    if (args.out) {
      auto* const to = reinterpret_cast<float4*>(args.out + at);
      to[0] = make_float4(result[g][0], result[g][1], result[g][2], result[g][3]);
      to[1] = make_float4(result[g][4], result[g][5], result[g][6], result[g][7]);
    }
    if (args.q8.q) quantize_block(result[g], args.q8.q + at / 32 * 32, args.q8.scale + at / 32);
  }
}

template <int kHeadDim, typename T>
cudaError_t tiles_as(const Q8TileArgs& args, cudaStream_t stream) {
  constexpr int kElements = kHeadDim / (std::is_same_v<T, Nibbles> ? 2 : 1);
  constexpr std::size_t kBytes = 4 * kKvBlock * (kElements + kHeadDim / 32 * sizeof(__half));
  static_assert(kBytes <= kLeastBlockShared);
  const dim3 grid(args.kv.kv_heads * args.slices, args.tile_count);
  if constexpr (kIsFewBits<T>)  // the executor refuses it
    if (args.is_rare()) return cudaErrorInvalidValue;
  return launch_rare_or_not(args, [&](auto rare) {
    constexpr bool kRare = decltype(rare)::value && !kIsFewBits<T>;
    return launch_large(q8_tile_kernel<kHeadDim, T, kRare>, grid, dim3(kThreads), kBytes, stream, 1, args);
  });
}
template <int kHeadDim>
cudaError_t tiles_of(const Q8TileArgs& args, cudaStream_t stream) {
  return args.kv.dtype == DType::q4_0   ? tiles_as<kHeadDim, Nibbles>(args, stream)
         : args.kv.dtype == DType::q3_k ? tiles_as<kHeadDim, FewBits<true>>(args, stream)
         : args.kv.dtype == DType::q2_0 ? tiles_as<kHeadDim, FewBits<false>>(args, stream)
                                        : tiles_as<kHeadDim, std::int8_t>(args, stream);
}

}  // namespace

cudaError_t attention_q8_tiles(const AttentionCall& call, float* f32_out, Q8 q8, cudaStream_t stream) {
  if (call.tile_count <= 0) return cudaSuccess;
  Q8TileArgs args = {head_args(call, f32_out, q8)};
  args.tiles = reinterpret_cast<const int4*>(call.tiles);
  args.tile_count = call.tile_count;
  args.slices = (attention_tile_rows(args.group) * args.group + kPairs - 1) / kPairs;
  switch (call.kv.head_dim) {
    case 64:
      return tiles_of<64>(args, stream);
    case 96:
      return tiles_of<96>(args, stream);
    case 128:
      return tiles_of<128>(args, stream);
    case 256:
      return tiles_of<256>(args, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace millrace::kernels::cuda
