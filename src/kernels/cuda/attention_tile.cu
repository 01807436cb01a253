// Attention of many rows: a block takes up to 64 (row, head) pairs of a tile that share a KV head, and walks the chunks
// of keys that any of its rows sees. Contract and order of sums: cuda_kernels.h.
//
// Two products a chunk on the FP32 units, each as a register-tiled loop over slabs of 16 that pass through shared
// memory in two buffers: scores = q K (16 channels x 128 keys a slab), and chunk result = weights V (16 keys x
// head_dim). The loads of a slab run while the one before it is worked. Sixteen threads share a row in both products,
// eight rows (or four) a thread, so that a row's maximum and sum are found by shuffles and its result never leaves the
// registers. Source: Dao et al., FlashAttention (2022); the register tiles are those of any SGEMM.
#include <cstddef>
#include <utility>

#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/exp.cuh"
#include "kernels/cuda/pdl.cuh"
#include "kernels/cuda/quantize.cuh"

namespace millrace::kernels::cuda {
namespace {

constexpr unsigned kAllLanes = 0xffffffffu;
#ifndef TILE_THREADS
#define TILE_THREADS 128
#define TILE_ROWS 8
#define TILE_SLAB 16
#define TILE_UNROLL 8
#define TILE_MIX 1
#define TILE_BLOCKS 2
#endif
constexpr int kThreads = TILE_THREADS;
constexpr int kWarps = kThreads / 32;
constexpr int kAcross = 16;  // threads that share a row
constexpr int kDown = kThreads / kAcross;
constexpr int kSlab = TILE_SLAB;                  // channels of K or keys of V in shared memory at a time
constexpr int kMix = TILE_MIX ? 2 : 1;            // lanes between neighbours across
constexpr int kKeys = kAttentionChunk / kAcross;  // of a thread: 4 tx .. 4 tx + 3, and 64 more

struct TileArgs {
  RowView rows;
  KvView kv;
  const float* q;
  int heads, group;
  float scale;
  int window;
  const int4* tiles;
  int slices;  // blocks that share a tile and KV head
  int snake;   // the order of tiles; see tile_of
  float* out;  // may be null
  Q8 q8;       // may be none
};

/// Which tile a block takes. A sequence's tiles come in ascending order, so later ones take longer. With more blocks
/// than fit the device at once, long ones go first; with fewer, the blocks that will share a multiprocessor (the first
/// and the second half of the grid) pair the longest with the shortest.
__device__ __forceinline__ int tile_of(int index, int tiles, bool snake) {
  if (!snake || index < tiles / 2) return tiles - 1 - index;
  return index - tiles / 2;
}

template <int kHeadDim>
struct Shape {
  static constexpr int kRows = kHeadDim <= 128 ? TILE_ROWS : 4;  // of a thread
  static constexpr int kM = kRows * kDown;                       // pairs of a block
  static constexpr int kRowGroups = kRows / 4;                   // 4 ty .. 4 ty + 3, and kRowStep more
  static constexpr int kRowStep = 4 * kDown;
  static constexpr int kQuads = kHeadDim / 64;           // channels 64 j + 4 tx .. + 3 of a thread
  static constexpr int kRest = kHeadDim % 64 / kAcross;  // and 64 kQuads + kRest tx .. (0, 1 or 2)
  static constexpr int kChannels = kHeadDim / kAcross;
  static constexpr int kWeightStride = kM + 4;  // floats between keys: fewer bank conflicts
  static constexpr int kBuffer = kSlab * (kHeadDim > kAttentionChunk ? kHeadDim : kAttentionChunk);
  static constexpr int kSharedFloats = kHeadDim * kM + kAttentionChunk * kWeightStride + 2 * kBuffer + 4 * kM + kM;
  static_assert(4 * kQuads + kRest == kChannels && kRest <= 2);
  /// Which of the block's pairs is row r of a thread.
  static __device__ __forceinline__ int pair(int ty, int r) { return 4 * ty + kRowStep * (r / 4) + r % 4; }
};

/// Of a row's merge: M, L, and the factors of A and of the chunk's result.
struct alignas(16) RowSums {
  float most, total, before, joins;
};

// Four neighbouring elements of the cache on their way through registers.
template <typename T>
struct Four;
template <>
struct Four<__half> {
  uint2 bits = {};
  __device__ void load(const std::byte* from) { bits = *reinterpret_cast<const uint2*>(from); }
  __device__ float4 wide() const {
    const float2 a = __half22float2(*reinterpret_cast<const __half2*>(&bits.x));
    const float2 b = __half22float2(*reinterpret_cast<const __half2*>(&bits.y));
    return make_float4(a.x, a.y, b.x, b.y);
  }
};
template <>
struct Four<float> {
  float4 value = {};
  __device__ void load(const std::byte* from) { value = *reinterpret_cast<const float4*>(from); }
  __device__ float4 wide() const { return value; }
};

constexpr int kUnroll = TILE_UNROLL;

// s[r][c] = fma(q, k, s[r][c]) over a slab's channels. kHalves: of the chunk's keys, halves that anyone sees.
template <typename S, int kHalves>
__device__ __forceinline__ void score_slab(const float* q, const float* k, float (&s)[S::kRows][kKeys]) {
#pragma unroll kUnroll
  for (int d = 0; d < kSlab; ++d) {
    float a[S::kRows], b[4 * kHalves];
#pragma unroll
    for (int g = 0; g < S::kRowGroups; ++g) {
      *reinterpret_cast<float4*>(a + 4 * g) = *reinterpret_cast<const float4*>(q + d * S::kM + S::kRowStep * g);
    }
#pragma unroll
    for (int g = 0; g < kHalves; ++g) {
      *reinterpret_cast<float4*>(b + 4 * g) = *reinterpret_cast<const float4*>(k + d * kAttentionChunk + kKvBlock * g);
    }
#pragma unroll
    for (int r = 0; r < S::kRows; ++r) {
#pragma unroll
      for (int c = 0; c < 4 * kHalves; ++c) s[r][c] = __fmaf_rn(a[r], b[c], s[r][c]);
    }
  }
}

// acc[r][c] = fma(weight, v, acc[r][c]) over a slab's keys. kMasked: a weight of -1 says that the row does not see the
// key, whose values may be anything.
template <typename S, int kHeadDim, bool kMasked>
__device__ __forceinline__ void value_slab(const float* weights, const float* v, int tx,
                                           float (&acc)[S::kRows][S::kChannels]) {
#pragma unroll kUnroll
  for (int j = 0; j < kSlab; ++j) {
    float a[S::kRows], b[S::kChannels];
#pragma unroll
    for (int g = 0; g < S::kRowGroups; ++g) {
      *reinterpret_cast<float4*>(a + 4 * g) =
          *reinterpret_cast<const float4*>(weights + j * S::kWeightStride + S::kRowStep * g);
    }
#pragma unroll
    for (int g = 0; g < S::kQuads; ++g) {
      *reinterpret_cast<float4*>(b + 4 * g) = *reinterpret_cast<const float4*>(v + j * kHeadDim + 64 * g + 4 * tx);
    }
#pragma unroll
    for (int g = 0; g < S::kRest; ++g) b[4 * S::kQuads + g] = v[j * kHeadDim + 64 * S::kQuads + S::kRest * tx + g];
#pragma unroll
    for (int r = 0; r < S::kRows; ++r) {
      if (kMasked && a[r] < 0) continue;
#pragma unroll
      for (int c = 0; c < S::kChannels; ++c) acc[r][c] = __fmaf_rn(a[r], b[c], acc[r][c]);
    }
  }
}

// The largest of what the sixteen threads of a row hold.
__device__ __forceinline__ float max_across(float v) {
#pragma unroll
  for (int step = kAcross / 2; step > 0; step /= 2) v = fmaxf(v, __shfl_xor_sync(kAllLanes, v, kMix * step));
  return v;
}

// The sum of a row's weights in the contract's order: keys j, j + 32, j + 64, j + 96 to lane j % 32, then lanes by a
// tree. Thread tx < 8 holds of lanes 4 tx .. 4 tx + 3 the first key and the third, thread tx + 8 the second and fourth;
// they swap, so that the first sums lanes 4 tx, 4 tx + 1 and the second 4 tx + 2, 4 tx + 3.
__device__ __forceinline__ float sum_across(const float (&e)[kKeys], bool upper) {
  float lanes[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float early = upper ? e[2 + i] : e[i], late = upper ? e[6 + i] : e[4 + i];
    const float other_early = __shfl_xor_sync(kAllLanes, upper ? e[i] : e[2 + i], kMix * kAcross / 2);
    const float other_late = __shfl_xor_sync(kAllLanes, upper ? e[4 + i] : e[6 + i], kMix * kAcross / 2);
    lanes[i] = (early + other_early) + (upper ? other_late : late) + (upper ? late : other_late);
  }
#pragma unroll
  for (const int step : {4, 2, 1, kAcross / 2}) {  // lanes 16, 8, 4 and 2 apart
#pragma unroll
    for (int i = 0; i < 2; ++i) lanes[i] += __shfl_xor_sync(kAllLanes, lanes[i], kMix * step);
  }
  return lanes[0] + lanes[1];
}

template <typename T, int kHeadDim>
__global__ void __launch_bounds__(kThreads, TILE_BLOCKS) tile_kernel(const TileArgs args) {
  using S = Shape<kHeadDim>;
  extern __shared__ __align__(16) float shared[];
  float* const queries = shared;                                            // [head_dim, kM]
  float* const weights = queries + kHeadDim * S::kM;                        // [128, kWeightStride]
  float* const buffers = weights + kAttentionChunk * S::kWeightStride;      // [2, kBuffer]
  auto* const sums = reinterpret_cast<RowSums*>(buffers + 2 * S::kBuffer);  // [kM]
  int* const positions = reinterpret_cast<int*>(sums + S::kM);              // [kM]; -1: no such pair
  allow_successor();
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int tx = kMix == 2 ? lane / 2 : lane % 16, ty = 2 * warp + (kMix == 2 ? lane % 2 : lane / 16);
  const int4 tile = args.tiles[tile_of(static_cast<int>(blockIdx.y), static_cast<int>(gridDim.y), args.snake != 0)];
  const int kv_head = static_cast<int>(blockIdx.x) / args.slices;
  const int first_pair = static_cast<int>(blockIdx.x) % args.slices * S::kM;
  const int pairs = min(tile.y * args.group - first_pair, S::kM);
  const auto row_of = [&](int pair) { return tile.x + (first_pair + pair) / args.group; };
  const auto head_of = [&](int pair) { return kv_head * args.group + (first_pair + pair) % args.group; };
  if (thread < S::kM) {
    positions[thread] = thread < pairs ? args.rows.position[row_of(thread)] : -1;
    sums[thread] = {-INFINITY, 0, 1, 0};
  }
  wait_for_predecessor();
  if (pairs <= 0) return;

  {  // Queries, channel-major. A thread has one pair, so that its stores are next to its neighbours'.
    const int pair = thread % S::kM;
    const std::int64_t row_head = static_cast<std::int64_t>(row_of(pair)) * args.heads + head_of(pair);
    for (int d = thread / S::kM * 4; d < kHeadDim; d += kThreads / S::kM * 4) {
      float4 v = make_float4(0, 0, 0, 0);
      if (pair < pairs) v = *reinterpret_cast<const float4*>(args.q + row_head * kHeadDim + d);
      queries[d * S::kM + pair] = v.x;
      queries[(d + 1) * S::kM + pair] = v.y;
      queries[(d + 2) * S::kM + pair] = v.z;
      queries[(d + 3) * S::kM + pair] = v.w;
    }
  }
  __syncthreads();
  int newest = 0, oldest_row = 0x7fffffff;  // positions of the block's rows
  for (int m = lane; m < pairs; m += 32) {
    newest = max(newest, positions[m]);
    oldest_row = min(oldest_row, positions[m]);
  }
  newest = __reduce_max_sync(kAllLanes, newest);
  oldest_row = __reduce_min_sync(kAllLanes, oldest_row);
  const int oldest = first_visible(oldest_row, args.window);  // key
  const int first_chunk = oldest / kAttentionChunk, last_chunk = newest / kAttentionChunk;

  constexpr int kKeyLoads = kSlab * kAttentionChunk / (4 * kThreads);
  constexpr int kValueLoads = (kSlab * kHeadDim + 4 * kThreads - 1) / (4 * kThreads);
  Four<T> loaded[kKeyLoads > kValueLoads ? kKeyLoads : kValueLoads];
  const std::byte *key_from, *low_values, *high_values;  // of this thread; key_from is null where nobody sees the keys
  const auto enter_chunk = [&](int chunk) {
    const int base = chunk * kAttentionChunk;
    const auto block = [&](int half) -> const std::byte* {
      const int key = base + half * kKvBlock;
      if (key > newest || key + kKvBlock <= oldest) return nullptr;
      return kv_block(args.kv, tile.z, 2 * chunk + half, 0, kv_head);
    };
    const std::byte *low = block(0), *high = block(1);
    key_from = lane < 16 ? low : high;
    if (key_from) key_from += args.kv.k_offset + (warp * kKvBlock + 4 * (lane % 16)) * static_cast<int>(sizeof(T));
    low_values = low + args.kv.v_offset;
    high_values = high + args.kv.v_offset;
  };
  // A slab of K: warp w has channels w, w + kWarps, ...; lane l keys 4 l .. 4 l + 3.
  const auto fetch_keys = [&](int slab) {
#pragma unroll
    for (int i = 0; i < kKeyLoads; ++i) {
      loaded[i] = {};
      if (key_from) loaded[i].load(key_from + (slab * kSlab + kWarps * i) * kKvBlock * static_cast<int>(sizeof(T)));
    }
  };
  const auto put_keys = [&](float* buffer) {
#pragma unroll
    for (int i = 0; i < kKeyLoads; ++i) {
      *reinterpret_cast<float4*>(buffer + (warp + kWarps * i) * kAttentionChunk + 4 * lane) = loaded[i].wide();
    }
  };
  // A slab of V lies in the cache as it will in shared memory.
  const auto fetch_values = [&](int slab) {
    const std::byte* from = (slab < kKvBlock / kSlab ? low_values : high_values) +
                            (slab % (kKvBlock / kSlab) * kSlab * kHeadDim + 4 * thread) * static_cast<int>(sizeof(T));
#pragma unroll
    for (int i = 0; i < kValueLoads; ++i) {
      if (4 * (thread + kThreads * i) < kSlab * kHeadDim) {
        loaded[i].load(from + 4 * kThreads * i * static_cast<int>(sizeof(T)));
      }
    }
  };
  const auto put_values = [&](float* buffer) {
#pragma unroll
    for (int i = 0; i < kValueLoads; ++i) {
      const int at = 4 * (thread + kThreads * i);
      if (at < kSlab * kHeadDim) *reinterpret_cast<float4*>(buffer + at) = loaded[i].wide();
    }
  };

  float merged[S::kRows][S::kChannels] = {};  // A
  int stage = 0;
  enter_chunk(first_chunk);
  fetch_keys(0);
  put_keys(buffers);
  __syncthreads();
  for (int chunk = first_chunk; chunk <= last_chunk; ++chunk) {
    const int base = chunk * kAttentionChunk;
    const bool second_half = newest - base >= kKvBlock;
    const bool masked =
        base + kAttentionChunk - 1 > oldest_row || base < first_visible(newest, args.window) || pairs < S::kM;
    const int first_slab = max(oldest - base, 0) / kSlab, last_slab = min(newest - base, kAttentionChunk - 1) / kSlab;
    {
      float s[S::kRows][kKeys] = {};
      constexpr int kKeySlabs = kHeadDim / kSlab;
      for (int slab = 0; slab < kKeySlabs; ++slab) {
        if (slab + 1 < kKeySlabs) {
          fetch_keys(slab + 1);
        } else {
          fetch_values(first_slab);
        }
        const float* q = queries + slab * kSlab * S::kM + 4 * ty;
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
      for (int r = 0; r < S::kRows; ++r) {
        int begin = 0, end = kAttentionChunk;
        if (masked) {
          const int position = positions[S::pair(ty, r)];
          begin = first_visible(position, args.window) - base;
          end = position + 1 - base;
        }
        const auto key = [&](int c) { return 4 * tx + kKvBlock * (c / 4) + c % 4; };
        float m = -INFINITY;
#pragma unroll
        for (int c = 0; c < kKeys; ++c) {
          s[r][c] *= args.scale;
          if (masked && (key(c) < begin || key(c) >= end)) s[r][c] = -INFINITY;
          m = fmaxf(m, s[r][c]);
        }
        m = max_across(m);
#pragma unroll
        for (int c = 0; c < kKeys; ++c) {
          s[r][c] = exp_to_one(s[r][c] - m);
          if (masked && (key(c) < begin || key(c) >= end)) s[r][c] = 0;
        }
        const float l = sum_across(s[r], tx >= kAcross / 2);
        if (masked) {
#pragma unroll
          for (int c = 0; c < kKeys; ++c) {
            if (key(c) < begin || key(c) >= end) s[r][c] = -1;
          }
        }
        RowSums& row = sums[S::pair(ty, r)];
        RowSums now = {row.most, row.total, 1, 0};
        if (max(begin, 0) < min(end, kAttentionChunk)) {
          now.most = fmaxf(row.most, m);
          now.before = exp_to_one(row.most - now.most);
          now.joins = exp_to_one(m - now.most);
          now.total = __fmaf_rn(row.total, now.before, l * now.joins);
        }
        __syncwarp();
        if (tx == 0) row = now;
      }
#pragma unroll
      for (int c = 0; c < kKeys; ++c) {
        float* to = weights + (4 * tx + kKvBlock * (c / 4) + c % 4) * S::kWeightStride + 4 * ty;
#pragma unroll
        for (int g = 0; g < S::kRowGroups; ++g) {
          *reinterpret_cast<float4*>(to + S::kRowStep * g) =
              make_float4(s[4 * g][c], s[4 * g + 1][c], s[4 * g + 2][c], s[4 * g + 3][c]);
        }
      }
      __syncthreads();
    }
    float acc[S::kRows][S::kChannels] = {};
    for (int slab = first_slab; slab <= last_slab; ++slab) {
      const bool more_chunks = chunk < last_chunk;
      if (slab < last_slab) {
        fetch_values(slab + 1);
      } else if (more_chunks) {
        enter_chunk(chunk + 1);
        fetch_keys(0);
      }
      const float* w = weights + slab * kSlab * S::kWeightStride + 4 * ty;
      const float* v = buffers + stage * S::kBuffer;
      if (masked) {
        value_slab<S, kHeadDim, true>(w, v, tx, acc);
      } else {
        value_slab<S, kHeadDim, false>(w, v, tx, acc);
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
    for (int r = 0; r < S::kRows; ++r) {
      const RowSums row = sums[S::pair(ty, r)];
#pragma unroll
      for (int c = 0; c < S::kChannels; ++c) {
        merged[r][c] = __fmaf_rn(merged[r][c], row.before, acc[r][c] * row.joins);
      }
    }
  }

#pragma unroll
  for (int r = 0; r < S::kRows; ++r) {
    const int pair = S::pair(ty, r);
    if (pair >= pairs) continue;
    const float total = sums[pair].total;
    const std::int64_t first = (static_cast<std::int64_t>(row_of(pair)) * args.heads + head_of(pair)) * kHeadDim;
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
      for (int i = 0; i < S::kRest; ++i) y[i] = merged[r][4 * S::kQuads + i] / total;
      if (args.out) {
#pragma unroll
        for (int i = 0; i < S::kRest; ++i) args.out[at + i] = y[i];
      }
      // A head_dim of 80 never comes here with q8: its last block of 32 goes on in the next head.
      if constexpr (S::kRest == 2) {
        if (args.q8.q) quantize_block<2, kMix>(y, args.q8.q + at / 32 * 32, args.q8.scale + at / 32);
      }
    }
  }
}

template <typename T, int kHeadDim>
cudaError_t tiles_of(TileArgs args, int tiles, cudaStream_t stream) {
  using S = Shape<kHeadDim>;
  const int tile_pairs = attention_tile_rows(args.group) * args.group;
  args.slices = (tile_pairs + S::kM - 1) / S::kM;
  const dim3 grid(args.kv.kv_heads * args.slices, tiles);
  args.snake = static_cast<std::int64_t>(grid.x) * tiles <= 2 * multiprocessors() ? 1 : 0;
  return launch_large(tile_kernel<T, kHeadDim>, grid, dim3(kThreads), S::kSharedFloats * sizeof(float), stream, 1,
                      args);
}

template <typename T>
cudaError_t tiles_as(const TileArgs& args, int tiles, cudaStream_t stream) {
  switch (args.kv.head_dim) {
    case 64:
      return tiles_of<T, 64>(args, tiles, stream);
    case 80:
      return tiles_of<T, 80>(args, tiles, stream);
    case 96:
      return tiles_of<T, 96>(args, tiles, stream);
    case 128:
      return tiles_of<T, 128>(args, tiles, stream);
    case 256:
      return tiles_of<T, 256>(args, tiles, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace

cudaError_t attention_tiles(const AttentionCall& call, float* f32_out, Q8 q8, cudaStream_t stream) {
  if (call.tile_count <= 0) return cudaSuccess;
  TileArgs args = {};
  args.rows = call.rows;
  args.kv = call.kv;
  args.q = call.q;
  args.heads = call.heads;
  args.group = call.heads / call.kv.kv_heads;
  args.scale = call.scale;
  args.window = call.window;
  args.tiles = call.tiles;
  args.out = f32_out;
  args.q8 = q8;
  return call.kv.dtype == DType::f16 ? tiles_as<__half>(args, call.tile_count, stream)
                                     : tiles_as<float>(args, call.tile_count, stream);
}

}  // namespace millrace::kernels::cuda
