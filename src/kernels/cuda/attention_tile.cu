// Attention of many rows over f32 keys and values: a block takes up to 64 (row, head) pairs of a tile that share a KV
// head, and walks the chunks of keys that any of its rows sees. Contract and order of sums: ops.h.
//
// Two products a chunk on the FP32 units, each as a register-tiled loop over slabs that pass through shared memory in
// two buffers: scores = q K (channels x 128 keys), and chunk result = weights V (keys x head_dim). The loads of a slab
// run while the one before it is worked. Sixteen threads share a row in both products, four rows a thread, so that a
// row's maximum and sum are found by shuffles and its result never leaves the registers. They are every other lane of a
// warp: neighbours then read the same keys, which shared memory serves at once. Source: Dao et al., FlashAttention
// (2022); the register tiles are those of any SGEMM.
#include <cstddef>

#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/exp.cuh"
#include "kernels/cuda/pdl.cuh"
#include "kernels/cuda/quantize.cuh"
#include "kernels/cuda/warp.cuh"

namespace millrace::kernels::cuda {
namespace {

constexpr int kAcross = 16;                       // threads that share a row
constexpr int kMix = 2;                           // lanes from one of them to the next
constexpr int kRows = 4;                          // of a thread: pairs 4 ty .. 4 ty + 3
constexpr int kKeys = kAttentionChunk / kAcross;  // of a thread: 2 tx, 2 tx + 1 of every 32
constexpr int kUnroll = 8;                        // steps of a product

struct TileArgs : HeadArgs {
  const int4* tiles;
  int tile_count;
  int slices;  // blocks that share a tile and KV head
  int turns;   // tiles a block takes, 1 or 2; see tile_of
};

/// Which tile a block takes in a turn; -1: none. A sequence's tiles come in ascending order, so later ones take longer.
/// One tile each, long ones first; or where two blocks a multiprocessor would all start at once, and end when the
/// unluckiest does, half as many that take a long one and then a short one.
__device__ __forceinline__ int tile_of(const TileArgs& args, int turn) {
  const int mine = static_cast<int>(blockIdx.y), other = args.tile_count - 1 - mine;
  return turn == 0 ? other : mine < other ? mine : -1;
}

template <int kHeadDim>
struct Shape {
  static constexpr int kThreads = kHeadDim <= 128 ? 256 : 128;
  static constexpr int kWarps = kThreads / 32;
  static constexpr int kM = kRows * kThreads / kAcross;                          // pairs of a block
  static constexpr int kSlab = kHeadDim % 32 == 0 && kHeadDim <= 128 ? 32 : 16;  // channels of K or keys of V at a time
  static constexpr int kQuads = kHeadDim / 64;           // channels 64 j + 4 tx .. + 3 of a thread
  static constexpr int kRest = kHeadDim % 64 / kAcross;  // and 64 kQuads + kRest tx .. (0, 1 or 2)
  static constexpr int kChannels = kHeadDim / kAcross;
  static constexpr int kStride = kM + 4;  // floats between keys of the weights: no bank conflicts, and room for RowSums
  static constexpr int kBuffer = kSlab * (kHeadDim > kAttentionChunk ? kHeadDim : kAttentionChunk);
  static constexpr int kSharedFloats = kHeadDim * kM + kAttentionChunk * kStride + 2 * kBuffer;
  static_assert(kSharedFloats * sizeof(float) <= kLeastBlockShared);
  static_assert(4 * kQuads + kRest == kChannels && kRest <= 2 && 2 * kM <= kAttentionChunk);
};

/// Of a row's merge: M, L, and the factors of A and of the chunk's result.
struct alignas(16) RowSums {
  float most, total, before, joins;
};

// Which key of the chunk is a thread's c-th.
__device__ __forceinline__ int key_of(int tx, int c) { return 2 * tx + 32 * (c / 2) + c % 2; }

// s[r][c] = fma(q, k, s[r][c]) over a slab's channels. kHalves: of the chunk's keys, halves that anyone sees.
template <typename S, int kHalves>
__device__ __forceinline__ void score_slab(const float* q, const float* k, float (&s)[kRows][kKeys]) {
#pragma unroll kUnroll
  for (int d = 0; d < S::kSlab; ++d) {
    alignas(16) float a[kRows], b[4 * kHalves];
    *reinterpret_cast<float4*>(a) = *reinterpret_cast<const float4*>(q + d * S::kM);
#pragma unroll
    for (int g = 0; g < kHalves; ++g) {
      *reinterpret_cast<float4*>(b + 4 * g) = *reinterpret_cast<const float4*>(k + d * kAttentionChunk + kKvBlock * g);
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int c = 0; c < 4 * kHalves; ++c) s[r][c] = __fmaf_rn(a[r], b[c], s[r][c]);
    }
  }
}

// acc[r][c] = fma(weight, v, acc[r][c]) over a slab's first `keys` keys, a multiple of kUnroll. kMasked: a weight of -1
// says that the row does not see the key, whose values may be anything.
template <typename S, int kHeadDim, bool kMasked>
__device__ __forceinline__ void value_slab(const float* weights, const float* v, int tx, int keys,
                                           float (&acc)[kRows][S::kChannels]) {
#pragma unroll 1
  for (int j0 = 0; j0 < keys; j0 += kUnroll) {
#pragma unroll
    for (int j1 = 0; j1 < kUnroll; ++j1) {
      const int j = j0 + j1;
      alignas(16) float a[kRows], b[S::kChannels];
      *reinterpret_cast<float4*>(a) = *reinterpret_cast<const float4*>(weights + j * S::kStride);
#pragma unroll
      for (int g = 0; g < S::kQuads; ++g) {
        *reinterpret_cast<float4*>(b + 4 * g) = *reinterpret_cast<const float4*>(v + j * kHeadDim + 64 * g + 4 * tx);
      }
#pragma unroll
      for (int g = 0; g < S::kRest; ++g) b[4 * S::kQuads + g] = v[j * kHeadDim + 64 * S::kQuads + S::kRest * tx + g];
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        if (kMasked && a[r] < 0) continue;
#pragma unroll
        for (int c = 0; c < S::kChannels; ++c) acc[r][c] = __fmaf_rn(a[r], b[c], acc[r][c]);
      }
    }
  }
}

// Joins the four rows' values of the sixteen threads that share them, by a tree: threads 8 apart first, then 4, 2, 1.
// In the first two steps a thread hands half of its rows on, so that it ends with the result of one, row_of(tx).
__device__ __forceinline__ int row_of(int tx) { return tx / 4; }
__device__ __forceinline__ int first_with(int row) { return row * 4; }
template <typename Join>
__device__ __forceinline__ float join_across(const float (&v)[kRows], int tx, Join join) {
  const bool upper = (tx & 8) != 0, odd = (tx & 4) != 0;
  float pair[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    pair[i] = join(upper ? v[2 + i] : v[i], __shfl_xor_sync(kAllLanes, upper ? v[i] : v[2 + i], kMix * 8));
  }
  float one = join(odd ? pair[1] : pair[0], __shfl_xor_sync(kAllLanes, odd ? pair[0] : pair[1], kMix * 4));
  one = join(one, __shfl_xor_sync(kAllLanes, one, kMix * 2));
  return join(one, __shfl_xor_sync(kAllLanes, one, kMix));
}

template <int kHeadDim, bool kRare>
__global__ void __launch_bounds__(Shape<kHeadDim>::kThreads, 2) tile_kernel(const __grid_constant__ TileArgs args) {
  using S = Shape<kHeadDim>;
  extern __shared__ __align__(16) float shared[];
  float* const queries = shared;                                  // [head_dim, kM]
  float* const weights = queries + kHeadDim * S::kM;              // [128, kStride], of which kM are used
  float* const buffers = weights + kAttentionChunk * S::kStride;  // [2, kBuffer]
  const auto sums_of = [&](int pair) -> RowSums& {                // in the weights' unused floats
    return *reinterpret_cast<RowSums*>(weights + pair * S::kStride + S::kM);
  };
  const auto sight_of = [&](int pair) -> SeenKeys& {  // kSeesNothing: no such pair
    return *reinterpret_cast<SeenKeys*>(weights + (S::kM + pair) * S::kStride + S::kM);
  };
  allow_successor();
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int tx = lane / kMix, ty = kMix * warp + lane % kMix, my_row = row_of(tx);
  const int kv_head = static_cast<int>(blockIdx.x) / args.slices;
  const int first_pair = static_cast<int>(blockIdx.x) % args.slices * S::kM;
  wait_for_predecessor();

  for (int turn = 0; turn < args.turns; ++turn) {
    const int tile_index = tile_of(args, turn);
    if (tile_index < 0) return;
    const int4 tile = args.tiles[tile_index];
    const int pairs = min(tile.y * args.group - first_pair, S::kM);
    if (pairs <= 0) continue;
    const auto row_at = [&](int pair) { return tile.x + (first_pair + pair) / args.group; };
    const auto first_channel = [&](int pair) {  // of a pair, in q and in the result
      const int head = kv_head * args.group + (first_pair + pair) % args.group;
      return (static_cast<std::int64_t>(row_at(pair)) * args.heads + head) * kHeadDim;
    };
    if (turn > 0) __syncthreads();
    if (thread < S::kM) {
      sight_of(thread) = thread < pairs ? seen_by<kRare>(args, row_at(thread)) : kSeesNothing;
      const Merged start = merge_start(args, kv_head * args.group + (first_pair + thread) % args.group);
      sums_of(thread) = {start.most, start.total, 1, 0};
    }
    {  // Queries, channel-major. A thread has one pair, so that its stores are next to its neighbours'.
      const int pair = thread % S::kM;
      const float* from = args.q + first_channel(min(pair, pairs - 1));
#pragma unroll 4
      for (int d = thread / S::kM * 4; d < kHeadDim; d += S::kThreads / S::kM * 4) {
        const float4 v = *reinterpret_cast<const float4*>(from + d);
        queries[d * S::kM + pair] = v.x;
        queries[(d + 1) * S::kM + pair] = v.y;
        queries[(d + 2) * S::kM + pair] = v.z;
        queries[(d + 3) * S::kM + pair] = v.w;
      }
    }
    __syncthreads();
    // Keys that any of the block's rows sees, and those that all do.
    int oldest = 0x7fffffff, newest = 0, all_from = 0, all_to = 0x7fffffff;
    for (int m = lane; m < pairs; m += 32) {
      const SeenKeys sight = sight_of(m);
      oldest = min(oldest, sight.first), all_from = max(all_from, sight.first);
      newest = max(newest, sight.last), all_to = min(all_to, sight.last);
    }
    oldest = min_over_warp(oldest), all_from = max_over_warp(all_from);
    newest = max_over_warp(newest), all_to = min_over_warp(all_to);
    const int first_chunk = oldest / kAttentionChunk, last_chunk = newest / kAttentionChunk;

    constexpr int kKeyLoads = S::kSlab * kAttentionChunk / (4 * S::kThreads);
    constexpr int kValueLoads = (S::kSlab * kHeadDim + 4 * S::kThreads - 1) / (4 * S::kThreads);
    float4 loaded[kKeyLoads > kValueLoads ? kKeyLoads : kValueLoads];
    const std::byte *key_from, *low_values, *high_values;  // of this thread; key_from null: nobody sees the keys
    const auto enter_chunk = [&](int chunk) {
      const int base = chunk * kAttentionChunk;
      const auto block = [&](int half) -> const std::byte* {
        const int key = base + half * kKvBlock;
        if (key > newest || key + kKvBlock <= oldest) return nullptr;
        return args.kv.blocks.table[kv_entry(args.kv, tile.z, key)];
      };
      const std::byte *low = block(0), *high = block(1);
      key_from = lane < 16 ? low : high;
      if (key_from)
        key_from += kv_part(args.kv.blocks, true, kv_head) +
                    (warp * kKvBlock + 4 * (lane % 16)) * static_cast<int>(sizeof(float));
      low_values = low + kv_part(args.kv.blocks, false, kv_head);
      high_values = high + kv_part(args.kv.blocks, false, kv_head);
    };
    // A slab of K: warp w has channels w, w + kWarps, ...; lane l keys 4 l .. 4 l + 3. In shared memory the keys of a
    // channel lie as threads take them: tx's first four, and its last four 64 floats on.
    const auto fetch_keys = [&](int slab) {
#pragma unroll
      for (int i = 0; i < kKeyLoads; ++i) {
        loaded[i] = {};
        if (!key_from) continue;
        loaded[i] = *reinterpret_cast<const float4*>(key_from + (slab * S::kSlab + S::kWarps * i) * kKvBlock *
                                                                    static_cast<int>(sizeof(float)));
      }
    };
    const auto put_keys = [&](float* buffer) {
      float* to = buffer + warp * kAttentionChunk + lane / 16 * 64 + lane % 8 * 8 + lane / 8 % 2 * 2;
#pragma unroll
      for (int i = 0; i < kKeyLoads; ++i) {
        const float4 v = loaded[i];
        *reinterpret_cast<float2*>(to + S::kWarps * i * kAttentionChunk) = make_float2(v.x, v.y);
        *reinterpret_cast<float2*>(to + S::kWarps * i * kAttentionChunk + 4) = make_float2(v.z, v.w);
      }
    };
    // A slab of V lies in the cache as it will in shared memory.
    const auto fetch_values = [&](int slab) {
      constexpr int kSlabs = kKvBlock / S::kSlab;  // of a block of the cache
      const std::byte* from = (slab < kSlabs ? low_values : high_values) +
                              (slab % kSlabs * S::kSlab * kHeadDim + 4 * thread) * static_cast<int>(sizeof(float));
#pragma unroll
      for (int i = 0; i < kValueLoads; ++i) {
        if (4 * (thread + S::kThreads * i) < S::kSlab * kHeadDim) {
          loaded[i] = *reinterpret_cast<const float4*>(from + 4 * S::kThreads * i * static_cast<int>(sizeof(float)));
        }
      }
    };
    const auto put_values = [&](float* buffer) {
#pragma unroll
      for (int i = 0; i < kValueLoads; ++i) {
        const int at = 4 * (thread + S::kThreads * i);
        if (at < S::kSlab * kHeadDim) *reinterpret_cast<float4*>(buffer + at) = loaded[i];
      }
    };

    float merged[kRows][S::kChannels] = {};  // A
    int stage = 0;
    enter_chunk(first_chunk);
    fetch_keys(0);
    put_keys(buffers);
    __syncthreads();
    for (int chunk = first_chunk; chunk <= last_chunk; ++chunk) {
      const int base = chunk * kAttentionChunk;
      const bool second_half = newest - base >= kKvBlock;
      const bool masked = base + kAttentionChunk - 1 > all_to || base < all_from || pairs < S::kM;
      const int first_slab = max(oldest - base, 0) / S::kSlab;
      const int last_key = min(newest - base, kAttentionChunk - 1), last_slab = last_key / S::kSlab;
      const auto visible_to = [&](int pair) {  // keys [x, y) of the chunk
        const SeenKeys sight = sight_of(pair);
        return make_int2(max(sight.first - base, 0), min(sight.last + 1 - base, kAttentionChunk));
      };
      {
        float s[kRows][kKeys] = {};
        constexpr int kKeySlabs = kHeadDim / S::kSlab;
        for (int slab = 0; slab < kKeySlabs; ++slab) {
          if (slab + 1 < kKeySlabs) {
            fetch_keys(slab + 1);
          } else {
            fetch_values(first_slab);
          }
          const float* q = queries + slab * S::kSlab * S::kM + 4 * ty;
          const float* k = buffers + stage * S::kBuffer + 4 * tx;
          if (second_half) {
            score_slab<S, 2>(q, k, s);
          } else {
            score_slab<S, 1>(q, k, s);
          }
          stage ^= 1;
          if (slab + 1 < kKeySlabs) {
            put_keys(buffers + stage * S::kBuffer);
            __syncthreads();
          } else {
            put_values(buffers + stage * S::kBuffer);
          }
        }
        // Scores become weights.
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
#pragma unroll
          for (int c = 0; c < kKeys; ++c) s[r][c] *= args.scale;
        }
        if constexpr (kRare) {
#pragma unroll
          for (int r = 0; r < kRows; ++r) {
            const int pair = min(4 * ty + r, pairs - 1);
            const ScoreBend bend(args, kv_head * args.group + (first_pair + pair) % args.group);
            const int ahead = args.rows.position[row_at(pair)] - base;
#pragma unroll
            for (int c = 0; c < kKeys; ++c) s[r][c] = bend(s[r][c], ahead - key_of(tx, c));
          }
        }
        if (masked) {
#pragma unroll
          for (int r = 0; r < kRows; ++r) {
            const int2 seen = visible_to(4 * ty + r);
#pragma unroll
            for (int c = 0; c < kKeys; ++c) {
              if (key_of(tx, c) < seen.x || key_of(tx, c) >= seen.y) s[r][c] = -INFINITY;
            }
          }
        }
        float m[kRows];
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          m[r] = s[r][0];
#pragma unroll
          for (int c = 1; c < kKeys; ++c) m[r] = fmaxf(m[r], s[r][c]);
        }
        const float my_m = join_across(m, tx, [](float a, float b) { return fmaxf(a, b); });
#pragma unroll
        for (int r = 0; r < kRows; ++r) m[r] = __shfl_sync(kAllLanes, my_m, kMix * first_with(r) + lane % kMix);
        // A row's weights are summed as the contract says: a thread has all keys of lanes 2 tx and 2 tx + 1.
        float l[2][kRows];
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
#pragma unroll
          for (int c = 0; c < kKeys; ++c) s[r][c] = exp_to_one(s[r][c] - m[r]);
#pragma unroll
          for (int i = 0; i < 2; ++i) l[i][r] = (s[r][i] + s[r][2 + i]) + s[r][4 + i] + s[r][6 + i];
        }
        const auto add = [](float a, float b) { return a + b; };
        const float my_l = join_across(l[0], tx, add) + join_across(l[1], tx, add);
        const int2 seen = visible_to(4 * ty + my_row);
        if (seen.x < seen.y && tx % 4 == 0) {
          RowSums& row = sums_of(4 * ty + my_row);
          const float now = fmaxf(row.most, my_m);
          const float before = exp_to_one(row.most - now), joins = exp_to_one(my_m - now);
          row = {now, __fmaf_rn(row.total, before, my_l * joins), before, joins};
        } else if (tx % 4 == 0) {
          sums_of(4 * ty + my_row).before = 1;
          sums_of(4 * ty + my_row).joins = 0;
        }
        if (masked) {
#pragma unroll
          for (int r = 0; r < kRows; ++r) {
            const int2 row_seen = visible_to(4 * ty + r);
#pragma unroll
            for (int c = 0; c < kKeys; ++c) {
              if (key_of(tx, c) < row_seen.x || key_of(tx, c) >= row_seen.y) s[r][c] = -1;
            }
          }
        }
#pragma unroll
        for (int c = 0; c < kKeys; ++c) {
          *reinterpret_cast<float4*>(weights + key_of(tx, c) * S::kStride + 4 * ty) =
              make_float4(s[0][c], s[1][c], s[2][c], s[3][c]);
        }
        __syncthreads();
      }
      float acc[kRows][S::kChannels] = {};
      for (int slab = first_slab; slab <= last_slab; ++slab) {
        const bool more_chunks = chunk < last_chunk;
        if (slab < last_slab) {
          fetch_values(slab + 1);
        } else if (more_chunks) {
          enter_chunk(chunk + 1);
          fetch_keys(0);
        }
        const float* w = weights + slab * S::kSlab * S::kStride + 4 * ty;
        const float* v = buffers + stage * S::kBuffer;
        const int keys = min((last_key - slab * S::kSlab) / kUnroll * kUnroll + kUnroll, S::kSlab);
        if (masked) {
          value_slab<S, kHeadDim, true>(w, v, tx, keys, acc);
        } else {
          value_slab<S, kHeadDim, false>(w, v, tx, keys, acc);
        }
        stage ^= 1;
        if (slab < last_slab) {
          put_values(buffers + stage * S::kBuffer);
        } else if (more_chunks) {
          put_keys(buffers + stage * S::kBuffer);
        }
        __syncthreads();
      }
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const RowSums row = sums_of(4 * ty + r);
#pragma unroll
        for (int c = 0; c < S::kChannels; ++c) {
          merged[r][c] = __fmaf_rn(merged[r][c], row.before, acc[r][c] * row.joins);
        }
      }
    }

#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int pair = 4 * ty + r;
      if (pair >= pairs) continue;
      const float total = sums_of(pair).total;
      const std::int64_t first = first_channel(pair);
#pragma unroll
      for (int g = 0; g < S::kQuads; ++g) {
        const std::int64_t at = first + 64 * g + 4 * tx;
        float y[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) y[i] = merged[r][4 * g + i] / total;
        if (args.out) *reinterpret_cast<float4*>(args.out + at) = make_float4(y[0], y[1], y[2], y[3]);
        if (args.q8.q) quantize_block<4, kMix>(y, args.q8.q + at / 32 * 32, args.q8.scale + at / 32);
      }
      if constexpr (S::kRest > 0) {
        const std::int64_t at = first + 64 * S::kQuads + S::kRest * tx;
        float y[S::kRest];
#pragma unroll
        for (int i = 0; i < S::kRest; ++i) {
          y[i] = merged[r][4 * S::kQuads + i] / total;
          if (args.out) args.out[at + i] = y[i];
        }
        // A head_dim of 80 never comes here with q8: its last block of 32 goes on in the next head.
        if constexpr (S::kRest == 2) {
          if (args.q8.q) quantize_block<2, kMix>(y, args.q8.q + at / 32 * 32, args.q8.scale + at / 32);
        }
      }
    }
  }
}

template <int kHeadDim>
cudaError_t tiles_of(TileArgs args, cudaStream_t stream) {
  using S = Shape<kHeadDim>;
  const int tile_pairs = attention_tile_rows(args.group) * args.group;
  args.slices = (tile_pairs + S::kM - 1) / S::kM;
  const int blocks = args.kv.kv_heads * args.slices;
  const std::int64_t all = static_cast<std::int64_t>(blocks) * args.tile_count;
  args.turns = all > multiprocessor_count() && all <= 2 * multiprocessor_count() ? 2 : 1;
  const dim3 grid(blocks, (args.tile_count + args.turns - 1) / args.turns);
  return launch_rare_or_not(args, [&](auto rare) {
    return launch_large(tile_kernel<kHeadDim, decltype(rare)::value>, grid, dim3(S::kThreads),
                        S::kSharedFloats * sizeof(float), stream, 1, args);
  });
}

}  // namespace

cudaError_t attention_tiles(const AttentionCall& call, float* f32_out, Q8 q8, cudaStream_t stream) {
  if (call.tile_count <= 0) return cudaSuccess;
  TileArgs args = {head_args(call, f32_out, q8)};
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
      return tiles_of<256>(args, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace millrace::kernels::cuda
