// Attention of many rows over keys and values kept as f16: a warp takes sixteen (row, head) pairs of a tile that share
// a KV head, and walks the chunks of keys that any of its block's rows sees, while the copy engine brings the next
// ones. Contract and order of sums: ops.h; what a lane holds: attention_half.cuh. Scores, weights and results
// of a pair stay in the registers of its four lanes. Warps wait for what they read and for the slowest reader before it
// is overwritten, not for each other's steps, so that one's products run beside another's exponentials. Source: Dao et
// al., FlashAttention (2022).
#include <algorithm>
#include <cstddef>

#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/attention_half.cuh"
#include "kernels/cuda/exp.cuh"
#include "kernels/cuda/landing.cuh"
#include "kernels/cuda/pdl.cuh"
#include "kernels/cuda/quantize.cuh"
#include "kernels/cuda/warp.cuh"

namespace millrace::kernels::cuda {
namespace {

constexpr int kKeyTiles = kAttentionChunk / 8;   // of eight keys
constexpr int kKeySteps = kAttentionChunk / 16;  // of sixteen
constexpr int kBlockSteps = kKvBlock / 16;

struct HalfTileArgs : HeadArgs {
  const int4* tiles;
  int tile_count;
  int slices;  // blocks that share a tile and KV head
};

/// kInTurns: K and V take turns in one place.
template <int kHeadDim, int kWarps, bool kInTurns>
struct Shape {
  using L = HalfLayout<kHeadDim>;
  static constexpr int kThreads = 32 * kWarps, kPairs = 16 * kWarps;
  static constexpr int kKeyBytes = 2 * L::kKeys, kValueBytes = 2 * L::kValues;
  static constexpr int kCacheBytes = kInTurns ? std::max(kKeyBytes, kValueBytes) : kKeyBytes + kValueBytes;
};

/// The queries of a warp's sixteen pairs as factors, in the warp's own part of shared memory.
template <int kHeadDim>
class Queries {
 public:
  static constexpr int kWarpBytes = kHeadDim / 16 * 32 * 16;
  __device__ __forceinline__ explicit Queries(std::byte* place) {
    const int thread = static_cast<int>(threadIdx.x);
    mine_ = reinterpret_cast<unsigned*>(place + thread / 32 * kWarpBytes) + thread % 32 * 4;
  }
  /// upper: of row lane / 4, or that + 8.
  __device__ __forceinline__ void put(bool upper, const HalfQuery<kHeadDim>& query) {
#pragma unroll
    for (int t = 0; t < kHeadDim / 16; ++t) {
#pragma unroll
      for (int far = 0; far < 2; ++far) mine_[t * 128 + 2 * far + upper] = query.factors[t][far];
    }
  }
  __device__ __forceinline__ void get(int t, unsigned (&a)[4]) const {
    const uint4 four = *reinterpret_cast<const uint4*>(mine_ + t * 128);
    a[0] = four.x, a[1] = four.y, a[2] = four.z, a[3] = four.w;
  }

 private:
  unsigned* mine_;  // [steps][lane][4]
};

__device__ __forceinline__ void no_scores(float (*s)[4]) {  // of 64 keys
#pragma unroll
  for (int n = 0; n < kKvBlock / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) s[n][i] = 0;
  }
}

// Scores of 64 keys, from `from` on (key_address), for a warp's pairs.
template <int kHeadDim>
__device__ __forceinline__ void score_block(const Queries<kHeadDim>& queries, unsigned from, float (*s)[4]) {
  no_scores(s);
#pragma unroll
  for (int t = 0; t < kHeadDim / 16; ++t) {
    unsigned keys[kBlockSteps][4];
#pragma unroll
    for (int j = 0; j < kBlockSteps; ++j) load_columns(keys[j], from + t * (2 * kKvBlock) + j * 32);
    unsigned factors[4];
    queries.get(t, factors);
#pragma unroll
    for (int j = 0; j < kBlockSteps; ++j) {
      multiply_halves(s[2 * j], factors, keys[j][0], keys[j][1]);
      multiply_halves(s[2 * j + 1], factors, keys[j][2], keys[j][3]);
    }
  }
}

/// A pair's merge so far.
/// Keys of a chunk that a pair sees.
struct Seen {
  int begin, end;
};

// Scores of a lane's two pairs become weights, as factors of the products with values; 0 for keys that a pair does not
// see. Returns in `factors` what the merged and the chunk's results are multiplied by. Key 8 n + 2 quarter + i of row +
// 8 h is s[n][2 h + i]. bend(s): what scaled scores go through. For the whole warp.
template <typename Bend>
__device__ __forceinline__ void soften(float (&s)[kKeyTiles][4], const Seen (&seen)[2], const float (&unit)[2],
                                       const Bend& bend, Merged (&merged)[2], unsigned (&weights)[kKeySteps][4],
                                       float2 (&factors)[2]) {
  const int first = static_cast<int>(threadIdx.x) % 4 * 2;
#pragma unroll
  for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) s[n][i] *= unit[i / 2];
  }
  bend(s);
  bool all = true;
#pragma unroll
  for (int h = 0; h < 2; ++h) all = all && seen[h].begin == 0 && seen[h].end == kAttentionChunk;
  if (!__all_sync(kFullWarp, all)) {
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int key = 8 * n + first + i % 2;
        if (key < seen[i / 2].begin || key >= seen[i / 2].end) s[n][i] = -INFINITY;
      }
    }
  }
  float m[2], from[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    m[h] = -INFINITY;
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) m[h] = fmaxf(m[h], fmaxf(s[n][2 * h], s[n][2 * h + 1]));
    m[h] = fmaxf(m[h], __shfl_xor_sync(kFullWarp, m[h], 1));
    m[h] = fmaxf(m[h], __shfl_xor_sync(kFullWarp, m[h], 2));
    from[h] = seen[h].begin < seen[h].end ? m[h] : 0.0f;  // else all weights are exp(-infinity)
  }
  // The contract's lane j % 32 is 8 (n % 4) + 2 quarter + i: of its tree, steps of 4 and 2 cross quarters.
  float l[4][4];
#pragma unroll
  for (int step = 0; step < kKeySteps; ++step) {
    // Of factor i: keys of an even place from the step's first eight and of an odd one from its last, then the others.
    float x[8];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      x[2 * i] = s[2 * step + i / 2][2 * (i % 2)] - from[i % 2];
      x[2 * i + 1] = s[2 * step + 1 - i / 2][2 * (i % 2) + 1] - from[i % 2];
    }
    exp_for_half(x);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const __half2 two = __floats2half2_rn(x[2 * i], x[2 * i + 1]);
      weights[step][i] = pack(two);
      const float2 wide = __half22float2(two);
      float& even_sum = l[(2 * step + i / 2) % 4][2 * (i % 2)];
      float& odd_sum = l[(2 * step + 1 - i / 2) % 4][2 * (i % 2) + 1];
      even_sum = step < 2 ? wide.x : even_sum + wide.x;
      odd_sum = step < 2 ? wide.y : odd_sum + wide.y;
    }
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float lane[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      lane[i] = (l[0][2 * h + i] + l[2][2 * h + i]) + (l[1][2 * h + i] + l[3][2 * h + i]);
      lane[i] += __shfl_xor_sync(kFullWarp, lane[i], 2);
      lane[i] += __shfl_xor_sync(kFullWarp, lane[i], 1);
    }
    if (seen[h].begin >= seen[h].end) {
      factors[h] = make_float2(1, 0);
      continue;
    }
    const float now = fmaxf(merged[h].most, m[h]);
    const float before = exp_to_one(merged[h].most - now), joins = exp_to_one(m[h] - now);
    merged[h] = {now, __fmaf_rn(merged[h].total, before, (lane[0] + lane[1]) * joins)};
    factors[h] = make_float2(before, joins);
  }
}

// A += the chunk's weighted values of kTiles times eight channels, from `from` on (value_address).
template <int kHeadDim, int kTiles>
__device__ __forceinline__ void add_values(const unsigned (&weights)[kKeySteps][4], unsigned from,
                                           const float2 (&factors)[2], float (*merged)[4]) {
  float acc[kTiles][4] = {};
#pragma unroll
  for (int step = 0; step < kKeySteps; ++step) {
#pragma unroll
    for (int j = 0; j < kTiles / 2; ++j) {
      unsigned values[4];
      load_columns(values, from + step * (8 * HalfLayout<kHeadDim>::kValuePitch) + j * 32);
      multiply_halves(acc[2 * j], weights[step], values[0], values[1]);
      multiply_halves(acc[2 * j + 1], weights[step], values[2], values[3]);
    }
  }
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) merged[n][i] = __fmaf_rn(merged[n][i], factors[i / 2].x, acc[n][i] * factors[i / 2].y);
  }
}

template <int kHeadDim, int kWarps, bool kInTurns, bool kRare>
__global__ void __launch_bounds__(32 * kWarps, kWarps > 4 ? 1 : 2)
    half_tile_kernel(const __grid_constant__ HalfTileArgs args) {
  if constexpr (kInTurns && kHeadDim <= 128 && !MILLRACE_SMALL_BLOCKS) return;
  using S = Shape<kHeadDim, kWarps, kInTurns>;
  using L = HalfLayout<kHeadDim>;
  extern __shared__ __align__(128) std::byte shared[];
  std::byte* const keys = shared;                                       // two blocks
  std::byte* const values = kInTurns ? shared : shared + S::kKeyBytes;  // two blocks
  __shared__ Landing keys_there, values_there;
  __shared__ Departure keys_read, values_read;
  allow_successor();
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32, quarter = lane % 4;
  const int kv_head = static_cast<int>(blockIdx.x) / args.slices;
  const int first_pair = static_cast<int>(blockIdx.x) % args.slices * S::kPairs;
  // A sequence's tiles come in ascending order, so later ones take longer, and go first.
  const int4 tile = args.tiles[args.tile_count - 1 - static_cast<int>(blockIdx.y)];
  const int pairs = min(tile.y * args.group - first_pair, S::kPairs);
  wait_for_predecessor();  // in every block, as all may have nothing to do
  if (pairs <= 0) return;
  if (threadIdx.x == 0) {
    keys_there.open(S::kThreads);
    values_there.open(S::kThreads);
    keys_read.open(S::kThreads);
    values_read.open(S::kThreads);
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

  const auto is_seen = [&](int block) { return block * kKvBlock <= newest && (block + 1) * kKvBlock > oldest; };
  // The blocks of the chunk that is fetched next; where nobody sees one, another. Asked for long before they are
  // needed.
  const std::byte* blocks[2];
  const auto locate = [&](int chunk) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int block = min(max(2 * chunk + half, oldest / kKvBlock), newest / kKvBlock);
      blocks[half] = args.kv.blocks.table[kv_entry(args.kv, tile.z, block * kKvBlock)];
    }
  };
  const auto fetch_keys = [&](int chunk) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (!is_seen(2 * chunk + half)) continue;
      copy_half_keys<kHeadDim, S::kThreads>(keys + half * L::kKeys,
                                            blocks[half] + kv_part(args.kv.blocks, true, kv_head));
    }
    keys_there.started();
  };
  const auto fetch_values = [&](int chunk) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (!is_seen(2 * chunk + half)) continue;
      copy_half_values<kHeadDim, S::kThreads>(values + half * L::kValues,
                                              blocks[half] + kv_part(args.kv.blocks, false, kv_head));
    }
    values_there.started();
  };
  locate(first_chunk);
  __syncthreads();  // the barriers are open
  fetch_keys(first_chunk);
  if (!kInTurns) {
    fetch_values(first_chunk);
    if (first_chunk < last_chunk) locate(first_chunk + 1);
  }

  const bool busy = 16 * warp < pairs;  // the warp has pairs
  SeenKeys sight[2];                    // kSeesNothing: no such pair
  std::int64_t first_channel[2];        // of a pair, in q and in the result
  float unit[2];
  Queries<kHeadDim> queries(shared + S::kCacheBytes);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int pair = 16 * warp + 8 * h + lane / 4;
    const bool mine = pair < pairs;
    sight[h] = mine ? seen_by<kRare>(args, row_of(pair)) : kSeesNothing;
    const int head = kv_head * args.group + (first_pair + pair) % args.group;
    first_channel[h] = mine ? (static_cast<std::int64_t>(row_of(pair)) * args.heads + head) * kHeadDim : 0;
    HalfQuery<kHeadDim> query;
    query.load(mine ? args.q + first_channel[h] : nullptr, args.scale);
    queries.put(h == 1, query);
    unit[h] = query.unit;
  }

  const unsigned keys_from = key_address<kHeadDim>(keys), values_from = value_address<kHeadDim>(values);
  float result[kHeadDim / 8][4] = {};  // A, of channels 8 n + 2 quarter + i
  Merged merged[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int pair = 16 * warp + 8 * h + lane / 4;
    merged[h] = merge_start(args, kv_head * args.group + (first_pair + pair) % args.group);
  }
  for (int chunk = first_chunk, turn = 0; chunk <= last_chunk; ++chunk, ++turn) {
    const int base = chunk * kAttentionChunk;
    const bool more = chunk < last_chunk, low = is_seen(2 * chunk), high = is_seen(2 * chunk + 1);
    unsigned weights[kKeySteps][4];
    float2 factors[2];
    {
      float s[kKeyTiles][4];
      keys_there.await(turn);
      if (busy) {
        // Of a block that is seen all keys have been brought. Those that a pair does not see are masked.
        if (low) {
          score_block(queries, keys_from, s);
        } else {
          no_scores(s);
        }
        if (high) {
          score_block(queries, keys_from + L::kKeys, s + kKeyTiles / 2);
        } else {
          no_scores(s + kKeyTiles / 2);
        }
      }
      keys_read.leave();
      if (kInTurns || turn > 0) {
        if (kInTurns) {
          keys_read.await(turn);
        } else {
          values_read.await(turn - 1);
        }
        fetch_values(chunk);
        if (more) locate(chunk + 1);
      }
      if (busy) {
        Seen seen[2];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          seen[h] = {max(sight[h].first - base, 0), min(sight[h].last + 1 - base, kAttentionChunk)};
        }
        const auto bend = [&](float(&scores)[kKeyTiles][4]) {
#pragma unroll
          for (int h = 0; kRare && h < 2; ++h) {
            const int pair = min(16 * warp + 8 * h + lane / 4, pairs - 1);
            const ScoreBend by(args, kv_head * args.group + (first_pair + pair) % args.group);
            const int ahead = args.rows.position[row_of(pair)] - base - 2 * quarter;
#pragma unroll
            for (int n = 0; n < kKeyTiles; ++n) {
              scores[n][2 * h] = by(scores[n][2 * h], ahead - 8 * n);
              scores[n][2 * h + 1] = by(scores[n][2 * h + 1], ahead - 8 * n - 1);
            }
          }
        };
        soften(s, seen, unit, bend, merged, weights, factors);
      }
    }
    if (!kInTurns && more) {
      keys_read.await(turn);
      fetch_keys(chunk + 1);
    }
    values_there.await(turn);
    const int first = max(oldest - base, 0), end = min(newest + 1 - base, kAttentionChunk);
    if (first > 0 || end < kAttentionChunk) {
      clear_values<kHeadDim>(values, 0, first, static_cast<int>(threadIdx.x), S::kThreads);
      clear_values<kHeadDim>(values, end, kAttentionChunk, static_cast<int>(threadIdx.x), S::kThreads);
      __syncthreads();
    }
    if (busy) {
#pragma unroll
      for (int g = 0; g < kHeadDim / 32; ++g) {
        add_values<kHeadDim, 4>(weights, values_from + g * 64, factors, result + 4 * g);
      }
      if constexpr (kHeadDim % 32 != 0) {
        add_values<kHeadDim, 2>(weights, values_from + kHeadDim / 32 * 64, factors, result + kHeadDim / 32 * 4);
      }
    }
    values_read.leave();
    if (kInTurns && more) {
      values_read.await(turn);
      fetch_keys(chunk + 1);
    }
  }

#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const bool mine = sight[h].last >= 0;
#pragma unroll
    for (int n = 0; n < kHeadDim / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) result[n][2 * h + i] = result[n][2 * h + i] / merged[h].total;
      if (!args.out || !mine) continue;
      *reinterpret_cast<float2*>(args.out + first_channel[h] + 8 * n + 2 * quarter) =
          make_float2(result[n][2 * h], result[n][2 * h + 1]);
    }
    // A head_dim of 80 never comes here with q8: its last block of 32 goes on in the next head.
    if (!args.q8.q) continue;
#pragma unroll
    for (int g = 0; g < kHeadDim / 32; ++g) {
      float y[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) y[i] = result[4 * g + i / 2][2 * h + i % 2];
      gather_columns(y);
      const std::int64_t at = first_channel[h] + 32 * g;
      if (mine) quantize_block(y, args.q8.q + at, args.q8.scale + at / 32);
    }
  }
}

template <int kHeadDim, int kWarps, bool kInTurns = (kHeadDim > 128)>
constexpr std::size_t kBlockBytes =
    Shape<kHeadDim, kWarps, kInTurns>::kCacheBytes + kWarps* Queries<kHeadDim>::kWarpBytes;

template <int kHeadDim, int kWarps, bool kInTurns = (kHeadDim > 128)>
cudaError_t tiles_by(HalfTileArgs args, cudaStream_t stream) {
  using S = Shape<kHeadDim, kWarps, kInTurns>;
  static_assert(kBlockBytes<kHeadDim, kWarps, kInTurns> <= kLeastBlockShared);
  args.slices = (attention_tile_rows(args.group) * args.group + S::kPairs - 1) / S::kPairs;
  const dim3 grid(args.kv.kv_heads * args.slices, args.tile_count);
  return launch_rare_or_not(args, [&](auto rare) {
    return launch_large(half_tile_kernel<kHeadDim, kWarps, kInTurns, decltype(rare)::value>, grid, dim3(S::kThreads),
                        kBlockBytes<kHeadDim, kWarps, kInTurns>, stream, 1, args);
  });
}

/// Four warps a block, of which two fit on a multiprocessor; where they do not, eight, unless there are so few tiles
/// that smaller blocks spread further.
template <int kHeadDim>
cudaError_t tiles_of(const HalfTileArgs& args, cudaStream_t stream) {
  // A multiprocessor has 1 KiB more than a block may ask for, and each block takes 1 KiB beside what it asks for.
  constexpr std::size_t kKept = 1024, kBarriers = 256, kTwo = 2 * (kBlockBytes<kHeadDim, 4> + kBarriers + kKept);
  if constexpr (kTwo > kLeastBlockShared + kKept && kHeadDim % 32 == 0) {  // heads of 80 do not come out even
    const int pairs = attention_tile_rows(args.group) * args.group;
    const int blocks = args.kv.kv_heads * args.tile_count * ((pairs + 63) / 64);
    if (block_shared_bytes() + kKept < kTwo && !has_small_blocks() && blocks > multiprocessor_count())
      return tiles_by<kHeadDim, 8>(args, stream);
  }
  constexpr std::size_t kFourWarps = kBlockBytes<kHeadDim, 4>;
  if constexpr (kFourWarps > kSmallBlockShared)
    if (has_small_blocks()) return tiles_by<kHeadDim, 4, true>(args, stream);
  return tiles_by<kHeadDim, 4>(args, stream);
}

}  // namespace

cudaError_t attention_half_tiles(const AttentionCall& call, float* f32_out, Q8 q8, cudaStream_t stream) {
  if (call.tile_count <= 0) return cudaSuccess;
  HalfTileArgs args = {head_args(call, f32_out, q8)};
  args.tiles = reinterpret_cast<const int4*>(call.tiles);
  args.tile_count = call.tile_count;
  switch (call.kv.head_dim) {
    case 64:
      return tiles_of<64>(args, stream);
    case 80:
      return tiles_of<80>(args, stream);
    case 96:
      return tiles_of<96>(args, stream);
    case 128:
      return tiles_of<128>(args, stream);
    case 256:
      return tiles_by<256, 2>(args, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace millrace::kernels::cuda
