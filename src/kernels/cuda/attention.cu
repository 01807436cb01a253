// Attention of few rows: a block takes a row, a KV head (or one of its heads, where blocks are few) and a chunk of
// keys. Blocks of a short context form a cluster and merge their chunks there; the chunks of longer ones meet in device
// memory and are merged by a kernel of their own. Contract and order of sums: ops.h. Source: Dao et al.,
// FlashAttention (2022), and its split over the keys.
#include <algorithm>
#include <cstddef>
#include <type_traits>

#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/attention_chunks.cuh"
#include "kernels/cuda/attention_few.cuh"
#include "kernels/cuda/attention_half.cuh"
#include "kernels/cuda/attention_q8.cuh"
#include "kernels/cuda/bulk_copy.cuh"
#include "kernels/cuda/capability.h"
#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/exp.cuh"
#include "kernels/cuda/kv_bits.cuh"
#include "kernels/cuda/landing.cuh"
#include "kernels/cuda/launchers.h"
#include "kernels/cuda/pdl.cuh"
#include "kernels/cuda/quantize.cuh"
#include "kernels/cuda/warp.cuh"
#include "kernels/gpu/plainer.h"

namespace millrace::kernels::cuda {
namespace {

constexpr int kTileRowHeads = 128;  // pairs of a row and a head of the group in a tile
constexpr int kMostCluster = 8;     // blocks, that every device with clusters takes

/// What a merge multiplies by when a chunk joins: the sums so far, and the chunk's.
struct alignas(8) Factors {
  float before, chunk;
};

/// Lane l < 32 gets the factors of the chunk whose maximum it has (-inf: none), `most` (M, the same in all lanes) moves
/// on. Chunks in ascending order.
__device__ __forceinline__ Factors merge_factors(float m, float& most) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  float now = m;  // the maximum up to this lane's chunk
#pragma unroll
  for (int step = 1; step < kWarp; step *= 2) {
    const float other = __shfl_up_sync(kAllLanes, now, step);
    if (lane >= step) now = fmaxf(now, other);
  }
  now = fmaxf(now, most);
  float before = __shfl_up_sync(kAllLanes, now, 1);
  if (lane == 0) before = most;
  most = __shfl_sync(kAllLanes, now, kWarp - 1);
  return {exp_to_one(before - now), exp_to_one(m - now)};
}

// ---------------------------------------------------------------------------------------------------------------------
// The steps of a chunk. Over f32, threads share the work of kHeads heads: each has kPair neighbouring keys (then
// channels) of kEach heads. Keys in f16 and q8_0 go to the tensor cores instead, a warp at a time: attention_half.cuh,
// attention_q8.cuh. Few bits become q8_0 where they arrive: attention_few.cuh.

template <typename T>
constexpr bool kIsNibbles = std::is_same_v<T, Nibbles>;
template <typename T>
constexpr bool kQuantized = kIsNibbles<T> || kIsFewBits<T> || std::is_same_v<T, std::int8_t>;
/// Of so many elements of the cache; of few bits, as they are multiplied.
template <typename T>
__host__ __device__ constexpr int bytes_of(int elements) {
  return elements * static_cast<int>(sizeof(T)) / (kIsNibbles<T> ? 2 : 1);
}
template <typename T>
constexpr bool kIsHalf = std::is_same_v<T, __half>;
constexpr int kThreads = 128;  // one a key of the chunk
static_assert(kThreads == kAttentionChunk);
constexpr int kWarps = kThreads / kWarp;

template <int kHeads>
struct Share {
  static constexpr int kPair = kHeads == 1 ? 1 : 2;
  static constexpr int kEach = kHeads / kPair;
};
/// Blocks that a multiprocessor should hold.
template <typename T, int kHeadDim>
constexpr int kResident = !kQuantized<T> && !kIsHalf<T> ? 3
                          : kHeadDim > 128              ? 2
                          : kIsHalf<T>                  ? 3
                                                        : 4;
/// Floats between heads of the scores: for tensor cores so that the lanes of a warp meet other banks.
template <typename T>
constexpr int kScoreStride = kQuantized<T> ? kAttentionChunk + 16
                             : kIsHalf<T>  ? kAttentionChunk + 8
                                           : kAttentionChunk;

template <int kPair>
struct alignas(kPair * sizeof(float)) Elements {
  float e[kPair];
};

// Scores of kPair keys for kEach heads. q: [.., head_dim] from the first of the heads; k: channel 0 of the first key in
// [head_dim, 64]; scores: [.., 128] from the first head and key.
template <int kPair, int kEach>
__device__ __forceinline__ void score_keys(const float* q, const float* k, int head_dim, float scale, float* scores) {
  constexpr int kStep = 16;  // channels; every head_dim is a multiple
  float s[kEach][kPair] = {};
#pragma unroll 2
  for (int d = 0; d < head_dim; d += kStep) {
    float4 q4[kEach][kStep / 4];
    Elements<kPair> keys[kStep];
#pragma unroll
    for (int h = 0; h < kEach; ++h) {
#pragma unroll
      for (int i = 0; i < kStep / 4; ++i) q4[h][i] = reinterpret_cast<const float4*>(q + h * head_dim + d)[i];
    }
#pragma unroll
    for (int i = 0; i < kStep; ++i) keys[i] = *reinterpret_cast<const Elements<kPair>*>(k + (d + i) * kKvBlock);
#pragma unroll
    for (int i = 0; i < kStep; ++i) {
#pragma unroll
      for (int p = 0; p < kPair; ++p) {
        const float key = keys[i].e[p];
#pragma unroll
        for (int h = 0; h < kEach; ++h) {
          const float4& four = q4[h][i / 4];
          s[h][p] = __fmaf_rn(i % 4 == 0 ? four.x : i % 4 == 1 ? four.y : i % 4 == 2 ? four.z : four.w, key, s[h][p]);
        }
      }
    }
  }
#pragma unroll
  for (int h = 0; h < kEach; ++h) {
#pragma unroll
    for (int p = 0; p < kPair; ++p) scores[h * kAttentionChunk + p] = s[h][p] * scale;
  }
}

// A warp turns one head's scores into weights. Key j belongs to lane j % 32. Keys outside [begin, end) get 0.
__device__ __forceinline__ ChunkSum soften(float* scores, int begin, int end) {
  constexpr int kEach = kAttentionChunk / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  float s[kEach], m = -INFINITY, l = 0;
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    const int key = lane + kWarp * k;
    s[k] = key >= begin && key < end ? scores[key] : -INFINITY;
    m = fmaxf(m, s[k]);
  }
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) m = fmaxf(m, __shfl_xor_sync(kAllLanes, m, step));
#pragma unroll
  for (int k = 0; k < kEach; ++k) s[k] = exp_to_one(s[k] - m);
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    l += s[k];
    scores[lane + kWarp * k] = s[k];
  }
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) l += __shfl_xor_sync(kAllLanes, l, step);
  return {m, l};
}

// The weighted sums of kPair channels over keys [begin, end) for kEach heads. weights: [.., 128] from the first of the
// heads; v: the first of the channels of key 0 in [128, stride].
template <int kPair, int kEach>
__device__ __forceinline__ void add_values(const float* weights, const float* v, int stride, int begin, int end,
                                           float (&acc)[kEach][kPair]) {
  // kKeys keys, of which the first is a multiple of 4.
  const auto add = [&]<int kKeys>(std::integral_constant<int, kKeys>, int key) {
    float4 w[kEach][kKeys / 4];
    Elements<kPair> values[kKeys];
#pragma unroll
    for (int h = 0; h < kEach; ++h) {
#pragma unroll
      for (int i = 0; i < kKeys / 4; ++i) {
        w[h][i] = reinterpret_cast<const float4*>(weights + h * kAttentionChunk + key)[i];
      }
    }
#pragma unroll
    for (int i = 0; i < kKeys; ++i) values[i] = *reinterpret_cast<const Elements<kPair>*>(v + (key + i) * stride);
#pragma unroll
    for (int i = 0; i < kKeys; ++i) {
#pragma unroll
      for (int p = 0; p < kPair; ++p) {
        const float value = values[i].e[p];
#pragma unroll
        for (int h = 0; h < kEach; ++h) {
          const float4& four = w[h][i / 4];
          acc[h][p] = __fmaf_rn(i % 4 == 0   ? four.x
                                : i % 4 == 1 ? four.y
                                : i % 4 == 2 ? four.z
                                             : four.w,
                                value, acc[h][p]);
        }
      }
    }
  };
  const auto add_one = [&](int key) {
    const auto values = *reinterpret_cast<const Elements<kPair>*>(v + key * stride);
#pragma unroll
    for (int p = 0; p < kPair; ++p) {
#pragma unroll
      for (int h = 0; h < kEach; ++h) {
        acc[h][p] = __fmaf_rn(weights[h * kAttentionChunk + key], values.e[p], acc[h][p]);
      }
    }
  };
  int key = begin;
  for (; key < end && key % 4 != 0; ++key) add_one(key);
#pragma unroll 2
  for (; key + 16 <= end; key += 16) add(std::integral_constant<int, 16>(), key);
#pragma unroll 1
  for (; key + 4 <= end; key += 4) add(std::integral_constant<int, 4>(), key);
#pragma unroll 1
  for (; key < end; ++key) add_one(key);
}

// ---------------------------------------------------------------------------------------------------------------------
// The kernel

// The blocks of a row and its `heads` heads from row_head on have their sums ([heads]) and results ([heads, head_dim])
// in shared memory; each merges some channels, 32 a warp at a time.
__device__ __forceinline__ void merge_in_cluster(const DecodeArgs& args, std::int64_t row_head, int first_head,
                                                 int heads, const ChunkSum* sums, const float* results, int chunks) {
  sync_cluster();
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const int rank = static_cast<int>(blockIdx.y), head_dim = args.kv.head_dim, each = (head_dim + kWarp - 1) / kWarp;
  for (int item = rank + warp * chunks; item < heads * each; item += chunks * kWarps) {
    const int h = item / each, c = item % each * kWarp + lane;
    const ChunkSum* sum = sums + h;
    const float* result = results + h * head_dim;
    float part[kMostCluster], m = -INFINITY, l = 0;
    if (lane < chunks) {
      m = load_in_cluster(in_cluster(&sum->m, lane));
      l = load_in_cluster(in_cluster(&sum->l, lane));
    }
#pragma unroll
    for (int i = 0; i < kMostCluster; ++i) {
      if (i < chunks && c < head_dim) part[i] = load_in_cluster(in_cluster(result + c, i));
    }
    auto [most, total] = merge_start(args, first_head + h);
    float a = 0;
    const Factors factors = merge_factors(m, most);
    l *= factors.chunk;
#pragma unroll
    for (int i = 0; i < kMostCluster; ++i) {
      if (i >= chunks) break;
      const float before = __shfl_sync(kAllLanes, factors.before, i);
      total = __fmaf_rn(total, before, __shfl_sync(kAllLanes, l, i));
      a = __fmaf_rn(a, before, part[i] * __shfl_sync(kAllLanes, factors.chunk, i));
    }
    if (c >= head_dim) continue;
    const float y[1] = {a / total};
    const std::int64_t at = (row_head + h) * head_dim + c;
    if (args.out) args.out[at] = y[0];
    if (args.q8.q) quantize_block(y, args.q8.q + at / 32 * 32, args.q8.scale + at / 32);
  }
  sync_cluster();  // the others read this block's shared memory until here
}

// The smallest position among the pass's rows of a sequence: keys before it were stored by earlier passes.
__device__ __forceinline__ int first_of_pass(const RowView& rows, int sequence, int position) {
  if (rows.rows == 1) return position;
  int first = position;
#pragma unroll 1
  for (int r = static_cast<int>(threadIdx.x) % kWarp; r < rows.rows; r += kWarp) {
    if (rows.sequence[r] == sequence) first = min(first, rows.position[r]);
  }
  return min_over_warp(first);
}

/// A chunk of a row's keys in a block's hands.
struct ChunkView {
  const std::byte* block[2];  // of the cache; where the row sees none of its keys, another that it sees
  bool plain[2];              // where the cache has few bits: that is a plain block
  int begin, end;             // keys of the chunk
  __device__ __forceinline__ bool sees(int half) const {
    return end > half * kKvBlock && begin < (half + 1) * kKvBlock;
  }
  __device__ __forceinline__ int blocks() const { return (sees(0) ? 1 : 0) + (sees(1) ? 1 : 0); }
  /// The later keys of a half are not before `old`.
  __device__ __forceinline__ bool has_new(int half, int old) const { return min(end, (half + 1) * kKvBlock) > old; }
};

/// A Landing with what of an Arrival's ways it does not need: its bytes are not counted, it knows when all have
/// started.
class HalfArrival : public Landing {
 public:
  __device__ void open() { Landing::open(kThreads); }
  __device__ void expect(int) {}
};

/// What a thread keeps of the queries that its warp multiplies on tensor cores.
template <typename T, int kHeadDim>
struct Queries {};
template <int kHeadDim>
struct Queries<std::int8_t, kHeadDim> : Q8Queries<kHeadDim> {};
template <int kHeadDim>
struct Queries<Nibbles, kHeadDim> : Q8Queries<kHeadDim, true> {};
template <bool kSigns, int kHeadDim>
struct Queries<FewBits<kSigns>, kHeadDim> : Q8Queries<kHeadDim> {};
template <int kHeadDim>
struct Queries<__half, kHeadDim> : HalfQuery<kHeadDim> {};

/// Bytes of shared memory that a chunk's K and its V take.
template <typename T, int kHeadDim>
__host__ __device__ constexpr int chunk_key_bytes(int head_dim) {
  if constexpr (kIsHalf<T>) return 2 * HalfLayout<kHeadDim>::kKeys;
  return kAttentionChunk * (bytes_of<T>(head_dim) + (kQuantized<T> ? head_dim / 32 * 2 : 0));
}
template <typename T, int kHeadDim>
__host__ __device__ constexpr int chunk_value_bytes(int head_dim) {
  if constexpr (kIsHalf<T>) return 2 * HalfLayout<kHeadDim>::kValues;  // no less than K's
  return chunk_key_bytes<T, kHeadDim>(head_dim);
}

/// kHeads: heads worked at once (a block with more takes more rounds over the same keys). kHeadDim 0: any. A block
/// takes every gridDim.y-th chunk of its row; the next chunk's keys are on their way while it works on a chunk's
/// values.
template <typename T, int kHeads, int kHeadDim, bool kRare>
__global__ void __launch_bounds__(kThreads, kResident<T, kHeadDim>)
    decode_kernel(const __grid_constant__ DecodeArgs args) {
  using S = Share<kHeads>;
  constexpr bool kQ8 = kQuantized<T>, kHalf = kIsHalf<T>, kFew = kIsFewBits<T>;
  constexpr bool kRounds = kHeads == 8;             // more heads than kHeads may be there
  constexpr bool kClusters = kHeads == 1 || kHalf;  // of no more heads than kHeads
#if MILLRACE_SMALL_BLOCKS
  constexpr bool kFits = false;  // K and V together, wherever this code runs: see both_fit()
#else
  constexpr bool kFits = kQ8 || (kHalf && kHeadDim <= 128);
#endif
  extern __shared__ __align__(128) std::byte shared[];
  __shared__ ChunkSum sums[kHeads];
  __shared__ std::conditional_t<kHalf, HalfArrival, Arrival> keys_and_queries, values;
  allow_successor();
  // What says where keys lie is written between passes, by copies; so it may be read while earlier kernels run, and so
  // may keys of earlier passes. A block without work is gone before the kernel's turn comes.
  const int thread = static_cast<int>(threadIdx.x), head_dim = kHeadDim > 0 ? kHeadDim : args.kv.head_dim;
  const int row_blocks = args.heads / args.block_heads;
  const int row = static_cast<int>(blockIdx.x) / row_blocks,
            first_head = static_cast<int>(blockIdx.x) % row_blocks * args.block_heads;
  const int kv_head = first_head / args.group;
  const std::int64_t row_head = static_cast<std::int64_t>(row) * args.heads + first_head;
  const int position = args.rows.position[row], sequence = args.rows.sequence[row];
  const Chunks chunks = chunks_of_row<kRare>(position, args.window);
  int slot = static_cast<int>(blockIdx.y);  // chunk, from the first that the row sees
  if (slot >= chunks.count) return;
  const bool both = kFits || args.both;
  // Of a block of the cache: a token's elements, and all of them; scales follow them in q8_0 and q4_0.
  const int row_bytes = bytes_of<T>(head_dim), elements_bytes = kKvBlock * row_bytes;
  const int scale_bytes = kQ8 ? kKvBlock * head_dim / 32 * static_cast<int>(sizeof(__half)) : 0;
  const int half_bytes = elements_bytes + scale_bytes;
  const int key_bytes_each = chunk_key_bytes<T, kHeadDim>(head_dim) / 2;
  std::byte* const k = shared;  // [2] blocks: [head_dim, 64], scales; f16 as HalfLayout says
  std::byte* const v_bytes = both ? shared + 2 * key_bytes_each : shared;
  // V lies as [128, head_dim]; f16 as HalfLayout says.
  std::byte* const v_scales = v_bytes + 2 * elements_bytes;                                      // [128, head_dim / 32]
  auto* const q = reinterpret_cast<float*>(v_bytes + chunk_value_bytes<T, kHeadDim>(head_dim));  // [kHeads, head_dim]
  float* scores = q + kHeads * head_dim;  // [kHeads, 128], then weights
  const int query_bytes = min(args.block_heads, kHeads) * head_dim * static_cast<int>(sizeof(float));

  const auto view_of = [&](int at) {
    const int base = (chunks.first + at) * kAttentionChunk;
    ChunkView view;
    view.begin = max(first_visible<kRare>(position, args.window) - base, 0);
    view.end = min(position + 1 - base, kAttentionChunk);
#pragma unroll
    for (int half = 0; half < 2; ++half) {  // nothing is done with the addresses here, which are on their way for long
      const int block =
          min(max(base / kKvBlock + half, (base + view.begin) / kKvBlock), (base + view.end - 1) / kKvBlock);
      const std::byte* const* blocks = args.kv.blocks.table;
      if constexpr (kFew) {
        view.plain[half] = is_plain_block(block, position);
        if (view.plain[half]) blocks = args.kv.plain.table;
      }
      view.block[half] = blocks[static_cast<std::int64_t>(sequence) * args.kv.max_blocks + block];
    }
    return view;
  };
  const std::int64_t keys_at = kv_part(args.kv.blocks, true, kv_head);
  const std::int64_t values_at = kv_part(args.kv.blocks, false, kv_head);
  // Whether a half's bytes are yet to become those of q8_0.
  const auto is_few = [&](const ChunkView& view, int half) { return kFew && view.sees(half) && !view.plain[half]; };
  // Where a half's K lies, or its V, and what of a block the head has there.
  const auto part_at = [&](const ChunkView& view, int half, bool is_key) {
    if constexpr (kFew) {
      if (view.plain[half]) return view.block[half] + kv_part(args.kv.plain, is_key, kv_head);
    }
    return view.block[half] + (is_key ? keys_at : values_at);
  };
  const auto part_bytes = [&](const ChunkView& view, int half) {
    if constexpr (kFew) {
      if (!view.plain[half]) return FewBitsBlock<kHeadDim, kHasSigns<T>>::kBytes;
    }
    return half_bytes;
  };
  const auto key_bytes = [&](const ChunkView& view) {
    if constexpr (kFew) return (view.sees(0) ? part_bytes(view, 0) : 0) + (view.sees(1) ? part_bytes(view, 1) : 0);
    return view.blocks() * half_bytes;
  };
  // K of the blocks with only keys before `old`, or of the others.
  const auto copy_keys = [&](const ChunkView& view, int old, bool olds) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (!view.sees(half) || view.has_new(half, old) == olds) continue;
      if constexpr (kHalf) {
        copy_half_keys<kHeadDim, kThreads>(k + half * HalfLayout<kHeadDim>::kKeys, view.block[half] + keys_at);
      } else if (Arrival::copies()) {
        keys_and_queries.copy(k + half * half_bytes, part_at(view, half, true), part_bytes(view, half));
      }
    }
  };
  const auto value_bytes = [&](const ChunkView& view) {
    if constexpr (kFew) {
      int bytes = 0;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int keys = min(view.end, (half + 1) * kKvBlock) - max(view.begin, half * kKvBlock);
        if (view.sees(half)) bytes += view.plain[half] ? keys * row_bytes + scale_bytes : part_bytes(view, half);
      }
      return bytes;
    }
    return (view.end - view.begin) * row_bytes + (kQ8 ? view.blocks() * scale_bytes : 0);
  };
  // V of keys before `old`, or of the others. In f16 and in few bits block by block as K; in q8_0 its scales so: a
  // copy's size and place are multiples of 16 bytes, a token's scales are not.
  const auto copy_values = [&](const ChunkView& view, int old, bool olds) {
    const int from = olds ? view.begin : max(old, view.begin), until = olds ? min(old, view.end) : view.end;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const bool whole = view.sees(half) && view.has_new(half, old) != olds;
      if constexpr (kHalf) {
        if (whole) {
          copy_half_values<kHeadDim, kThreads>(v_bytes + half * HalfLayout<kHeadDim>::kValues,
                                               view.block[half] + values_at);
        }
      } else if (Arrival::copies()) {
        const int first = max(from, half * kKvBlock), last = min(until, (half + 1) * kKvBlock);
        const std::byte* block = part_at(view, half, false);
        if constexpr (kFew) {
          if (is_few(view, half)) {
            if (whole) values.copy(v_bytes + half * elements_bytes, block, part_bytes(view, half));
            continue;
          }
        }
        if (first < last) {
          values.copy(v_bytes + first * row_bytes, block + (first - half * kKvBlock) * row_bytes,
                      (last - first) * row_bytes);
        }
        if (kQ8 && whole) values.copy(v_scales + half * scale_bytes, block + elements_bytes, scale_bytes);
      }
    }
  };
  const auto all_started = [](auto& set) {  // after a set's last copy
    if constexpr (kHalf) set.started();
  };

  ChunkView view = view_of(slot);
  {
    // Keys before `old` of the chunk are there already; the others, which cannot be copied yet, come nearer.
    const int old = first_of_pass(args.rows, sequence, position) - (chunks.first + slot) * kAttentionChunk;
    if (thread == 0) {
      keys_and_queries.open();
      values.open();
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (!view.sees(half) || !view.has_new(half, old)) continue;
        prefetch_bytes(part_at(view, half, true), part_bytes(view, half));
        if (kHalf && both) prefetch_bytes(view.block[half] + values_at, half_bytes);
      }
    }
    if (Arrival::copies()) {
      keys_and_queries.expect(query_bytes + key_bytes(view));
      if (both) values.expect(value_bytes(view));
    }
    copy_keys(view, old, true);
    if (both) copy_values(view, old, true);
    __syncthreads();  // the arrivals are open
    wait_for_predecessor();
    const auto* queries_from = reinterpret_cast<const std::byte*>(args.q + row_head * head_dim);
    if constexpr (kHalf) {
      const auto to = static_cast<unsigned>(__cvta_generic_to_shared(q));
      for (int i = 16 * thread; i < query_bytes; i += 16 * kThreads) copy_unit(to + i, queries_from + i);
    } else if (Arrival::copies()) {
      keys_and_queries.copy(q, queries_from, query_bytes);
    }
    copy_keys(view, old, false);
    all_started(keys_and_queries);
    if (both) {
      copy_values(view, old, false);
      all_started(values);
    }
  }

  // A chunk's result of neighbouring channels from c on of one of the block's heads.
  const auto give = [&]<int kCount>(int h, int c, const ChunkSum& sum, const float(&acc)[kCount]) {
    Elements<kCount> result;
#pragma unroll
    for (int p = 0; p < kCount; ++p) result.e[p] = acc[p];
    if (kClusters && args.cluster && chunks.count > 1) {
      *reinterpret_cast<Elements<kCount>*>(q + h * head_dim + c) = result;  // nobody needs q any more
      return;
    }
    const std::int64_t head = row_head + h;
    if (chunks.count > 1) {
      *reinterpret_cast<Elements<kCount>*>(args.part + (head * args.max_chunks + slot) * head_dim + c) = result;
      return;
    }
#pragma unroll
    for (int p = 0; p < kCount; ++p) result.e[p] = result.e[p] * sum.m / sum.l;  // as merge_alone() left them
    const std::int64_t at = head * head_dim + c;
    if (args.out) *reinterpret_cast<Elements<kCount>*>(args.out + at) = result;
    if (args.q8.q) quantize_block(result.e, args.q8.q + at / 32 * 32, args.q8.scale + at / 32);
  };
  [[maybe_unused]] const int lane = thread % kWarp, warp = thread / kWarp, pair = lane / 4;
  [[maybe_unused]] Queries<T, kHeadDim> queries;
  // What arrived of few bits becomes q8_0; others may read it once all threads have synchronized.
  const auto expand = [&]<bool kKeys>(std::bool_constant<kKeys>) {
    if constexpr (kFew) {
      if (!is_few(view, 0) && !is_few(view, 1)) return;
      std::byte* const elements = kKeys ? k : v_bytes;
      std::byte* const scales = kKeys ? k + elements_bytes : v_scales;
      const FewBitsPlaces places = {{elements, elements + (kKeys ? half_bytes : elements_bytes)},
                                    {scales, scales + (kKeys ? half_bytes : scale_bytes)}};
      expand_few_bits<kHeadDim, kHasSigns<T>, kKeys, kThreads>(places, is_few(view, 0), is_few(view, 1));
    }
  };

  for (int turn = 0;; ++turn) {
    const int next_slot = slot + static_cast<int>(gridDim.y);
    const bool more = next_slot < chunks.count;
    ChunkView next = {};
    if (more) next = view_of(next_slot);
    for (int h0 = 0; h0 < args.block_heads; h0 += kHeads) {
      const int heads = min(args.block_heads - h0, kHeads);
      const bool last_round = !kRounds || h0 + kHeads >= args.block_heads;
      if (kRounds && args.block_heads > kHeads && (turn > 0 || h0 > 0)) {  // other heads were in the queries' place
        __syncthreads();
        if (h0 > 0 && !both) {
          if (Arrival::copies()) keys_and_queries.expect(key_bytes(view));
          copy_keys(view, kAttentionChunk, true);
          all_started(keys_and_queries);
        }
        const float* from = args.q + (row_head + h0) * head_dim;
        for (int i = thread; i < heads * head_dim; i += kThreads) q[i] = from[i];
        __syncthreads();
      }
      const int rounds = both ? 1 : (args.block_heads + kHeads - 1) / kHeads;  // in which keys come again
      const int arrival = turn * rounds + (both ? 0 : h0 / kHeads);
      if (h0 == 0 || !both) keys_and_queries.await(arrival);
      if constexpr (kFew) {
        if (h0 == 0 || !both) {
          expand(std::true_type());
          __syncthreads();
        }
      }
      if constexpr (kHalf) {
        if (turn == 0 || args.block_heads > kHeads) {
          queries.load(pair < heads ? q + pair * head_dim : nullptr, args.scale);
        }
        const int first = kWarp * warp;
        if (first < view.end && first + kWarp > view.begin) {
          float s[4][4];
          score_half<kHeadDim, 4>(
              queries, key_address<kHeadDim>(k + first / kKvBlock * key_bytes_each) + first % kKvBlock * 2, s);
          if (pair < kHeads) {
#pragma unroll
            for (int n = 0; n < 4; ++n) {
              *reinterpret_cast<float2*>(scores + pair * kScoreStride<T> + first + 8 * n + 2 * (lane % 4)) =
                  make_float2(s[n][0] * queries.unit, s[n][1] * queries.unit);
            }
          }
        }
      } else if constexpr (kQ8) {
        if (turn == 0 || args.block_heads > kHeads) queries.load(pair < heads ? q + pair * head_dim : nullptr);
        const int first = kWarp * warp;
        if (first < view.end && first + kWarp > view.begin) {
          alignas(16) float s[8];
          queries.score(k + first / kKvBlock * half_bytes, first % kKvBlock, s);
#pragma unroll
          for (int i = 0; i < 8; ++i) s[i] *= args.scale;
          if (pair < kHeads) {
            auto* to = reinterpret_cast<float4*>(scores + pair * kScoreStride<T> + first + 8 * (lane % 4));
            to[0] = *reinterpret_cast<const float4*>(s);
            to[1] = *reinterpret_cast<const float4*>(s + 4);
          }
        }
      } else {
        const int key = thread % (kThreads / S::kPair) * S::kPair, h = thread / (kThreads / S::kPair) * S::kEach;
        if (key < view.end && key + S::kPair > view.begin) {
          score_keys<S::kPair, S::kEach>(
              q + h * head_dim, reinterpret_cast<const float*>(k + key / kKvBlock * half_bytes) + key % kKvBlock,
              head_dim, args.scale, scores + h * kAttentionChunk + key);
        }
      }
      __syncthreads();
      if (!both) {
        if (Arrival::copies()) values.expect(value_bytes(view));
        copy_values(view, kAttentionChunk, true);
        all_started(values);
      } else if (more && last_round) {
        if (Arrival::copies()) keys_and_queries.expect(key_bytes(next));
        copy_keys(next, kAttentionChunk, true);
        all_started(keys_and_queries);
      }
      for (int h = thread / kWarp; h < heads; h += kWarps) {
        float* const mine = scores + h * kScoreStride<T>;
        if constexpr (kRare) {
          const ScoreBend bend(args, first_head + h0 + h);
          bend_chunk(bend, position - (chunks.first + slot) * kAttentionChunk, mine);
        }
        ChunkSum sum = kHalf ? soften_half(mine, view.begin, view.end) : soften(mine, view.begin, view.end);
        if (thread % kWarp != 0) continue;
        if (chunks.count == 1) sum = merge_alone(args, first_head + h0 + h, sum);
        sums[h] = sum;
        if (chunks.count > 1 && !args.cluster) args.sums[(row_head + h0 + h) * args.max_chunks + slot] = sum;
      }
      if (h0 == 0 || !both) {
        values.await(arrival);
        expand(std::false_type());
        if constexpr (kHalf) {
          clear_values<kHeadDim>(v_bytes, view.begin / kKvBlock * kKvBlock, view.begin, thread, kThreads);
          clear_values<kHeadDim>(v_bytes, view.end, (view.end + kKvBlock - 1) / kKvBlock * kKvBlock, thread, kThreads);
        }
      }
      __syncthreads();
      if constexpr (kHalf) {
        const float* weights = pair < heads ? scores + pair * kScoreStride<T> : nullptr;
        const unsigned from = value_address<kHeadDim>(v_bytes);
        for (int g = warp; g < kHeadDim / 32; g += kWarps) {
          float acc[8];
          add_half_values<kHeadDim, 4>(weights, from + g * 64, view.sees(0), view.sees(1), acc);
          gather_columns(acc);
          if (pair < heads) give(h0 + pair, 32 * g + 8 * (lane % 4), sums[pair], acc);
        }
        if constexpr (kHeadDim % 32 != 0) {
          constexpr int kLast = kHeadDim / 32;
          if (warp == kLast % kWarps) {
            float acc[4];
            add_half_values<kHeadDim, 2>(weights, from + kLast * 64, view.sees(0), view.sees(1), acc);
#pragma unroll
            for (int n = 0; n < 2; ++n) {
              const float two[2] = {acc[2 * n], acc[2 * n + 1]};
              if (pair < heads) give(h0 + pair, 32 * kLast + 8 * n + 2 * (lane % 4), sums[pair], two);
            }
          }
        }
      } else if constexpr (kQ8) {
        float weights[4][8];  // of the lane's pair and keys 32 t + 8 (lane % 4) + i
#pragma unroll
        for (int t = 0; t < 4; ++t) {
          const float* from = scores + pair * kScoreStride<T> + 32 * t + 8 * (lane % 4);
#pragma unroll
          for (int i = 0; i < 8; ++i) weights[t][i] = pair < heads ? from[i] : 0.0f;
        }
        for (int g = warp; g < head_dim / 32; g += kWarps) {
          float acc[8];
          add_q8_values<kHeadDim, kIsNibbles<T>>(weights, v_bytes, reinterpret_cast<const __half*>(v_scales), g, acc);
          if (pair < heads) give(h0 + pair, 32 * g + 8 * (lane % 4), sums[pair], acc);
        }
      } else {
        for (int item = thread; item < head_dim; item += kThreads) {
          const int pairs = head_dim / S::kPair, c = item % pairs * S::kPair, first = item / pairs * S::kEach;
          float acc[S::kEach][S::kPair] = {};
          add_values(scores + first * kAttentionChunk, reinterpret_cast<const float*>(v_bytes) + c, head_dim,
                     view.begin, view.end, acc);
#pragma unroll
          for (int i = 0; i < S::kEach; ++i) {
            if (first + i >= heads) break;
            give(h0 + first + i, c, sums[first + i], acc[i]);
          }
        }
      }
      if (!kRounds) break;
    }
    if (!more) break;
    __syncthreads();  // V, scores and sums are free
    if (both) {
      if (Arrival::copies()) values.expect(value_bytes(next));
      copy_values(next, kAttentionChunk, true);
      all_started(values);
    } else {
      if (Arrival::copies()) keys_and_queries.expect(key_bytes(next));
      copy_keys(next, kAttentionChunk, true);
      all_started(keys_and_queries);
    }
    slot = next_slot;
    view = next;
  }
  if (kClusters && args.cluster && chunks.count > 1) {
    merge_in_cluster(args, row_head, first_head, args.block_heads, sums, q, chunks.count);
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// The merge of chunks that met in device memory: a block a row and head and kMergeChannels of its channels (one row's
// heads alone are too few blocks to read fast), a thread a channel, and one more for the sum of weights, which follows
// the same recurrence. Its factors hang on maxima alone, so that all warps make them, of many chunks at once.

constexpr std::int32_t kWideRows = 64;  // heads of 512: rows at once
constexpr int kMergeChannels = 32, kMergeWarps = 4, kMergeThreads = kMergeWarps * kWarp;
constexpr int kMergeChunks = 512;  // whose factors are made at once: a round
constexpr int kMergeGroups = kMergeChunks / kWarp;
constexpr int kMergeStage = 64, kMergeStages = 8;  // chunks whose results arrive together; that are on their way
constexpr int kMergeStageBytes = kMergeStage * kMergeChannels * static_cast<int>(sizeof(float));
static_assert(kMergeStage * kMergeStages == kMergeChunks);

struct alignas(16) MergeStep {
  float before, chunk, l, unused;
};

template <bool kRare>
__global__ void __launch_bounds__(kMergeThreads) merge_kernel(const __grid_constant__ DecodeArgs args) {
  extern __shared__ __align__(128) std::byte shared[];  // [as many stages as chunks need][kMergeStage][kMergeChannels]
  __shared__ MergeStep steps[kMergeChunks];
  __shared__ float maxima[kMergeGroups], total;
  allow_successor();
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp, warp = thread / kWarp;
  const int head_dim = args.kv.head_dim, first_channel = static_cast<int>(blockIdx.y) * kMergeChannels;
  const int channels = min(head_dim - first_channel, kMergeChannels);  // a multiple of 16
  const int row = static_cast<int>(blockIdx.x) / args.heads;
  const int chunks = chunks_of_row<kRare>(args.rows.position[row], args.window).count;
  wait_for_predecessor();  // in every block, as all may have nothing to do
  if (chunks == 1) return;
  const std::int64_t row_head = blockIdx.x;
  const float* part = args.part + row_head * args.max_chunks * head_dim + first_channel;
  const ChunkSum* chunk_sums = args.sums + row_head * args.max_chunks;
  // A chunk's channels are 8 or 4 copies of 16 bytes, by neighbouring threads. Stages follow each other through the
  // places of shared memory; one without chunks is a group of nothing.
  const int shift = channels == kMergeChannels ? 3 : 2, place = thread >> shift;
  const int at_channel = (thread & ((1 << shift) - 1)) * 4;
  static_assert(kMergeChannels == 32);
  const auto fetch = [&](int stage) {
    const int first = stage * kMergeStage, count = min(chunks - first, kMergeStage);
    float* to = reinterpret_cast<float*>(shared) + stage % kMergeStages * (kMergeStage * kMergeChannels) + at_channel;
    const float* from = part + static_cast<std::int64_t>(first) * head_dim + at_channel;
    for (int chunk = place; chunk < count; chunk += kMergeThreads >> shift)
      copy_unit(shared_address(to + chunk * kMergeChannels), from + chunk * head_dim);
    copies_commit();
  };
#pragma unroll 1
  for (int stage = 0; stage < kMergeStages; ++stage) fetch(stage);
  Merged start = {-INFINITY, 0};
  if (args.sinks != nullptr) start = merge_start(args, static_cast<int>(blockIdx.x) % args.heads);
  const bool sums_weights = thread == kWarp;
  float a = sums_weights ? start.total : 0;
  for (int round = 0; round < chunks; round += kMergeChunks) {
    // Lane l of a group's warp has the maximum and sum of its chunk l.
    ChunkSum mine[kMergeGroups / kMergeWarps];
#pragma unroll
    for (int i = 0; i < kMergeGroups / kMergeWarps; ++i) {
      const int c = round + (warp + i * kMergeWarps) * kWarp + lane;
      if (c - lane >= chunks) break;
      mine[i] = c < chunks ? chunk_sums[c] : ChunkSum{-INFINITY, 0};
    }
#pragma unroll
    for (int i = 0; i < kMergeGroups / kMergeWarps; ++i) {
      if (round + (warp + i * kMergeWarps) * kWarp >= chunks) break;
      float most = mine[i].m;
#pragma unroll
      for (int step = kWarp / 2; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, step));
      if (lane == 0) maxima[warp + i * kMergeWarps] = most;
    }
    __syncthreads();
    float before = start.most;  // the maximum of all that comes before a group
    int group = 0;
#pragma unroll
    for (int i = 0; i < kMergeGroups / kMergeWarps; ++i) {
      if (round + (warp + i * kMergeWarps) * kWarp >= chunks) break;
      for (; group < warp + i * kMergeWarps; ++group) before = fmaxf(before, maxima[group]);
      float most = before;
      const Factors f = merge_factors(mine[i].m, most);
      steps[group * kWarp + lane] = {f.before, f.chunk, mine[i].l * f.chunk, 0};
    }
    if (round + kMergeChunks < chunks) {  // all groups are there
      for (; group < kMergeGroups; ++group) before = fmaxf(before, maxima[group]);
      start.most = before;
    }
    for (int stage = 0; stage < kMergeStages; ++stage) {
      const int first = round + stage * kMergeStage, count = min(chunks - first, kMergeStage);
      if (count <= 0) break;
      copies_wait<kMergeStages - 1>();
      __syncthreads();  // everybody's copies are there, and the steps
      const MergeStep* step = steps + stage * kMergeStage;
      if (thread < channels) {
        const float* from = reinterpret_cast<const float*>(shared) + stage * (kMergeStage * kMergeChannels) + thread;
#pragma unroll 8
        for (int c = 0; c < count; ++c) a = __fmaf_rn(a, step[c].before, from[c * kMergeChannels] * step[c].chunk);
      } else if (sums_weights) {
#pragma unroll 8
        for (int c = 0; c < count; ++c) a = __fmaf_rn(a, step[c].before, step[c].l);
      }
      __syncthreads();  // the next fetch overwrites this stage, and the next round the steps
      fetch(first / kMergeStage + kMergeStages);
    }
  }
  if (sums_weights) total = a;
  __syncthreads();
  if (thread >= channels) return;
  const float result[1] = {a / total};
  const std::int64_t at = row_head * head_dim + first_channel + thread;
  if (args.out) args.out[at] = result[0];
  if (args.q8.q) quantize_block(result, args.q8.q + at / 32 * 32, args.q8.scale + at / 32);
}

// ---------------------------------------------------------------------------------------------------------------------
// Launchers

/// Bytes of shared memory that queries and scores take.
template <typename T, int kHeads>
constexpr std::size_t query_bytes(int head_dim) {
  return sizeof(float) * kHeads * static_cast<std::size_t>(head_dim + kScoreStride<T>);
}
constexpr std::size_t kMostStaticShared = 1024;  // of decode_kernel
static_assert(chunk_value_bytes<__half, kWideHeadDim>(kWideHeadDim) + query_bytes<__half, 8>(kWideHeadDim) +
                  kMostStaticShared <=
              kWideHeadShared);
static_assert(chunk_value_bytes<float, 256>(256) + query_bytes<float, 8>(256) + kMostStaticShared <= kWideHeadShared &&
              chunk_value_bytes<float, 128>(128) + query_bytes<float, 8>(128) + kMostStaticShared <= kLeastBlockShared);

/// Bytes that a launch may give a block of the current device.
std::size_t shared_of_block() {
  const std::size_t bytes = block_shared_bytes();
  return bytes == 0 ? kLeastBlockShared : bytes - kMostStaticShared;
}

/// Whether K and V of so many bytes, and what is beside them, lie in a block's memory together. Code for 8.0 and later
/// takes it from the heads' size, and 99 KiB; that for 7.5 has what the device has.
bool both_fit(std::size_t bytes) { return bytes <= (has_small_blocks() ? shared_of_block() : kLeastBlockShared); }

bool has_room_for_wide_heads() { return block_shared_bytes() >= kWideHeadShared; }

template <typename T, int kHeads, int kHeadDim>
cudaError_t decode(DecodeArgs args, cudaStream_t stream) {
  const int head_dim = args.kv.head_dim;
  const auto keys = static_cast<std::size_t>(chunk_key_bytes<T, kHeadDim>(head_dim));
  const auto values = static_cast<std::size_t>(chunk_value_bytes<T, kHeadDim>(head_dim));
  const std::size_t rest = query_bytes<T, kHeads>(head_dim);
  const int blocks = args.rows.rows * args.heads / args.block_heads;
  // Where one block has the room of two, K and V of heads of 256 come side by side: a long context's blocks then read
  // on while they compute.
  const bool alone = kIsHalf<T> && kHeadDim == 256 && !args.cluster &&
                     blocks * args.max_chunks > kResident<T, kHeadDim> * multiprocessor_count() &&
                     keys + values + rest <= shared_of_block();
  args.both = alone || both_fit(keys + values + rest);
  const std::size_t bytes = (args.both ? keys : 0) + values + rest;
  // As many blocks as the device holds, with about as many chunks each; a cluster has all chunks at once.
  const int resident = alone ? 1 : kResident<T, kHeadDim>;
  const int most = std::max(resident * multiprocessor_count() / blocks, 1), each = (args.max_chunks + most - 1) / most;
  const int cluster = args.cluster ? args.max_chunks : 1;
  const dim3 grid(blocks, args.cluster ? args.max_chunks : (args.max_chunks + each - 1) / each);
  if constexpr (kIsFewBits<T>)  // the executor refuses it
    if (args.is_rare()) return cudaErrorInvalidValue;
  return launch_rare_or_not(args, [&](auto rare) {
    constexpr bool kRare = decltype(rare)::value && !kIsFewBits<T>;
    return launch_large(decode_kernel<T, kHeads, kHeadDim, kRare>, grid, dim3(kThreads), bytes, stream, cluster, args);
  });
}

template <typename T, int kHeadDim>
cudaError_t decode_heads(const DecodeArgs& args, cudaStream_t stream) {
  if (args.block_heads == 1) return decode<T, 1, kHeadDim>(args, stream);
  if constexpr (!kQuantized<T> && !kIsHalf<T>) {  // tensor cores take eight heads, needed or not
    if (args.block_heads == 2) return decode<T, 2, kHeadDim>(args, stream);
    if (args.block_heads <= 4) return decode<T, 4, kHeadDim>(args, stream);
  }
  return decode<T, 8, kHeadDim>(args, stream);
}

template <typename T>
cudaError_t decode_quantized(const DecodeArgs& args, cudaStream_t stream) {
  const int head_dim = args.kv.head_dim;
  if (head_dim == 64) return decode_heads<T, 64>(args, stream);
  if (head_dim == 96) return decode_heads<T, 96>(args, stream);
  if (head_dim == 128) return decode_heads<T, 128>(args, stream);
  if (head_dim == 256) return decode_heads<T, 256>(args, stream);
  return cudaErrorInvalidValue;
}

cudaError_t decode_any(const DecodeArgs& args, cudaStream_t stream) {
  const int head_dim = args.kv.head_dim;
  if (args.kv.dtype == DType::q8_0) return decode_quantized<std::int8_t>(args, stream);
  if (args.kv.dtype == DType::q4_0) return decode_quantized<Nibbles>(args, stream);
  if (args.kv.dtype == DType::q3_k) return decode_quantized<FewBits<true>>(args, stream);
  if (args.kv.dtype == DType::q2_0) return decode_quantized<FewBits<false>>(args, stream);
  if (args.kv.dtype == DType::f32) return decode_heads<float, 0>(args, stream);
  if (head_dim == 64) return decode_heads<__half, 64>(args, stream);
  if (head_dim == 80) return decode_heads<__half, 80>(args, stream);
  if (head_dim == 96) return decode_heads<__half, 96>(args, stream);
  if (head_dim == 128) return decode_heads<__half, 128>(args, stream);
  if (head_dim == 256) return decode_heads<__half, 256>(args, stream);
  if (head_dim == kWideHeadDim)
    return has_room_for_wide_heads() ? decode<__half, 8, kWideHeadDim>(args, stream)
                                     : attention_by_halves(args, stream);
  return cudaErrorInvalidValue;
}

/// Chunks that a row sees at most; window as in the call, by chunks or not.
int most_chunks(int max_position, int window) {
  const int chunks = (max_position + kAttentionChunk - 1) / kAttentionChunk;
  return window > 0 ? std::min(chunks, (window + kAttentionChunk - 2) / kAttentionChunk + 1) : chunks;
}

/// The workspace: sums and results of chunks, and the float32 result where it is wanted as int8 only and a block of 32
/// spans heads.
struct Workspace {
  std::size_t part = 0, result = 0, bytes = 0;
};
Workspace workspace_of(std::int64_t rows, std::int64_t heads, std::int64_t head_dim, int chunks) {
  const auto up = [](std::int64_t n) { return (static_cast<std::size_t>(n) + 255) / 256 * 256; };
  const std::int64_t parts = rows * heads * chunks;
  Workspace w;
  w.part = up(parts * static_cast<std::int64_t>(sizeof(ChunkSum)));
  w.result = w.part + up(parts * head_dim * static_cast<std::int64_t>(sizeof(float)));
  w.bytes = w.result + up(head_dim % 32 == 0 ? 0 : rows * heads * head_dim * static_cast<std::int64_t>(sizeof(float)));
  return w;
}

cudaError_t attention_few(const AttentionCall& call, const Workspace& w, int chunks, float* out, Q8 q8,
                          cudaStream_t stream) {
  DecodeArgs args = {head_args(call, out, q8)};
  args.max_chunks = chunks;
  // Blocks of one head where that does not make too many: they are done sooner, and read the keys together anyway. But
  // in f16 the tensor cores do up to eight heads as soon as one.
  const int few_heads = call.kv.dtype == DType::f16 && args.group <= 8 ? args.group : 1;
  const bool few =
      static_cast<std::int64_t>(call.rows.rows) * call.heads / few_heads * chunks <= 3 * multiprocessor_count();
  args.block_heads = few ? few_heads : args.group;
  args.cluster = few && chunks > 1 && chunks <= kMostCluster && overlaps_launches() &&
                 (call.kv.head_dim < kWideHeadDim || has_room_for_wide_heads());
  args.sums = reinterpret_cast<ChunkSum*>(call.workspace);
  args.part = reinterpret_cast<float*>(call.workspace + w.part);
  const cudaError_t error = decode_any(args, stream);
  if (error != cudaSuccess || args.cluster || chunks == 1) return error;
  const int stages = std::min((chunks + kMergeStage - 1) / kMergeStage, kMergeStages);
  const dim3 grid(call.rows.rows * call.heads, (call.kv.head_dim + kMergeChannels - 1) / kMergeChannels);
  return launch_rare_or_not(args, [&](auto rare) {
    return launch_large(merge_kernel<decltype(rare)::value>, grid, dim3(kMergeThreads), stages * kMergeStageBytes,
                        stream, 1, args);
  });
}

bool has_tiles(int head_dim, DType dtype) {
  if (gpu::does_without(gpu::Family::attention_tiles)) return false;
  return gpu::has_attention_tiles(head_dim, dtype, has_small_blocks() ? kSmallBlockShared : kLeastBlockShared);
}

/// Rows in tiles that the tiles' kernels do not take: one by one, as many at once as the workspace takes. later: q8 is
/// made of the floats when they are there.
cudaError_t attention_wide(const AttentionCall& call, Q8 q8, bool later, cudaStream_t stream) {
  const int cols = call.heads * call.kv.head_dim;
  const int chunks = most_chunks(call.max_position, call.window);
  for (std::int32_t first = 0; first < call.rows.rows; first += kWideRows) {
    AttentionCall some = call;
    some.rows.rows = std::min(kWideRows, call.rows.rows - first);
    some.rows.sequence += first;
    some.rows.position += first;
    const std::int64_t at = std::int64_t{first} * cols;
    some.q += at;
    const Workspace w = workspace_of(some.rows.rows, call.heads, call.kv.head_dim, chunks);
    float* out = call.out != nullptr ? call.out + at
                 : later             ? reinterpret_cast<float*>(call.workspace + w.result)
                                     : nullptr;
    const Q8 some_q8 = q8.q != nullptr ? Q8{q8.q + at, q8.scale + at / 32} : Q8{};
    cudaError_t error = attention_few(some, w, chunks, out, later ? Q8{} : some_q8, stream);
    if (error == cudaSuccess && later) error = quantize_q8(out, cols, some.rows.rows, cols, some_q8, stream);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace

std::int32_t attention_tile_rows(std::int32_t group) { return std::max(kTileRowHeads / group, 1); }

std::size_t attention_workspace_bytes(std::int32_t rows, std::int32_t heads, std::int32_t head_dim,
                                      std::int32_t max_position) {
  return workspace_of(rows, heads, head_dim, most_chunks(max_position, 0)).bytes;
}

cudaError_t attention(const AttentionCall& call, cudaStream_t stream) {
  if (call.rows.rows <= 0) return cudaSuccess;
  const int head_dim = call.kv.head_dim, rows = call.rows.rows;
  const bool few = kv_has_few_bits(call.kv.dtype), rotated = call.kv.rotation > 0;
  const bool quantized = few || call.kv.dtype == DType::q8_0 || call.kv.dtype == DType::q4_0;
  if (few && call.kv.plain.table == nullptr) return cudaErrorInvalidValue;
  const bool tiles = call.tiles != nullptr && has_tiles(head_dim, call.kv.dtype);
  if (call.seen != nullptr && !tiles) return cudaErrorInvalidValue;
  if (call.chunks && (call.window <= 0 || call.seen != nullptr)) return cudaErrorInvalidValue;
  if (quantized ? head_dim % 32 != 0 : rotated) return cudaErrorInvalidValue;
  if (rotated && call.out == nullptr) return cudaErrorInvalidValue;
  const int chunks = call.tiles ? 0 : most_chunks(call.max_position, call.window);
  const Workspace w = workspace_of(rows, call.heads, head_dim, chunks);
  // Where a block of 32 spans heads, which different blocks of threads compute, quantization comes after.
  const bool later = call.out_q8.q && head_dim % 32 != 0;
  float* out = later && !call.out ? reinterpret_cast<float*>(call.workspace + w.result) : call.out;
  const Q8 q8 = later || rotated ? Q8{} : call.out_q8;
  const bool wide = call.tiles && !tiles;
  const cudaError_t error = wide          ? attention_wide(call, later ? call.out_q8 : q8, later, stream)
                            : !call.tiles ? attention_few(call, w, chunks, out, q8, stream)
                            : quantized   ? attention_q8_tiles(call, out, q8, stream)
                            : call.kv.dtype == DType::f16 ? attention_half_tiles(call, out, q8, stream)
                                                          : attention_tiles(call, out, q8, stream);
  if (error != cudaSuccess) return error;
  if (rotated)
    return rotate_heads(out, rows * call.heads, head_dim, call.kv.rotation, call.floats, call.out_q8, stream);
  if (!later || wide) return error;
  const int cols = call.heads * head_dim;
  return quantize_q8(out, cols, rows, cols, call.out_q8, stream);
}

}  // namespace millrace::kernels::cuda
