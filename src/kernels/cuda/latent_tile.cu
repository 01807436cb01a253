// Latent attention on the f16 tensor cores. A block takes 64 pairs of a row and a head: all heads share the latents, so
// pairs of neighbouring rows are as good as heads of one. Two warps take sixteen pairs: each has the scores of half of
// a tile's keys, both read the scores of all of them, and each multiplies its half of the channels. The tile of latents
// in shared memory serves as keys and as values. Keys of a list are gathered into tiles: a block then has heads of one
// row, and finds the addresses of a span of keys before their tiles. Contract: latent.h. Sources: Dao et al.,
// FlashAttention (2022); DeepSeek-AI, DeepSeek-V2 (2024).
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <type_traits>

#include "kernels/cuda/async_copy.cuh"
#include "kernels/cuda/attention_half.cuh"
#include "kernels/cuda/capability.h"
#include "kernels/cuda/exp.cuh"
#include "kernels/cuda/kv_view.cuh"
#include "kernels/cuda/latent_tile.cuh"
#include "kernels/cuda/pdl.cuh"
#include "kernels/cuda/warp.cuh"

namespace millrace::kernels::cuda {
namespace {

constexpr int kQ8Group = 32;  // channels with one scale
constexpr int kPairs = 64, kPairsOfWarp = 16;
constexpr int kThreads = 256;
constexpr int kKeys = 32;   // of a tile
constexpr int kStages = 3;  // tiles in shared memory: one is read while two come
static_assert(kLatentSpan % kKeys == 0 && kKvBlock % kKeys == 0);
static_assert(kLatentSpan <= kThreads && kStages * kKeys <= kLatentSpan);  // find_keys()
constexpr int kPad = 8;                 // halves behind a row, so that eight rows meet all banks
constexpr int kScorePitch = kKeys + 4;  // floats
constexpr int kMostDim = 640;           // of what shared memory holds
constexpr int kMostHalf = kMostLatentValues / 2;
constexpr int kLoads = kMostDim / (4 * kWarp);  // of four channels of a query, by a lane

struct TileArgs {
  RowView rows;
  KvView kv;
  const float* q;
  int heads;
  float scale;
  int v_dim;
  float* out;
  const std::int32_t* chosen;  // [rows, top_k], or null
  int top_k;
  // Generated rows: the first of the launch, spans at most, and what these give.
  int first_row, spans;
  float* part;   // [rows of the launch, heads, spans, v_dim]
  float2* sums;  // the same: maximum, sum
};

/// Where a key of a list lies: in that block's part of the layer.
struct alignas(16) KeyPlace {
  const std::byte* block;
  int slot;
};

/// With or without a list, so that both are worked by the same kernels.
std::size_t shared_bytes(int dim) {
  const auto row = static_cast<std::size_t>(dim + kPad) * sizeof(__half);
  return (kPairs + kStages * kKeys) * row + kPairs * (kScorePitch + 1) * sizeof(float) +
         2 * kLatentSpan * sizeof(KeyPlace);
}

/// How many keys a row sees.
__device__ __forceinline__ int seen_keys(const TileArgs& args, int row) {
  const int all = args.rows.position[row] + 1;
  return args.chosen == nullptr ? all : min(all, args.top_k);
}

/// {row lane / 4: columns 2 quarter and + 1} of four blocks of eight rows and eight columns; lane l gives the address
/// of row l % 8 of block l / 8.
__device__ __forceinline__ void load_rows(unsigned (&r)[4], unsigned from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(from)
               : "memory");
}

/// What is in shared memory, for a block's threads.
struct Place {
  __device__ Place(std::byte* memory, int dim) : pitch(dim + kPad), q(reinterpret_cast<__half*>(memory)) {
    keys = q + kPairs * pitch;
    scores = reinterpret_cast<float*>(keys + kStages * kKeys * pitch);
    unit = scores + kPairs * kScorePitch;
    listed = reinterpret_cast<KeyPlace*>(unit + kPairs);
  }
  int pitch;
  __half *q, *keys;
  float *scores, *unit;  // [kPairs, kScorePitch]; [kPairs]: what a score of q counts
  KeyPlace* listed;      // [2, kLatentSpan]: two spans of a list, by turns
};

/// The places of a span's keys. What lies behind `end` is never used, and has the address of the last key.
__device__ __forceinline__ void find_keys(const TileArgs& args, const Place& place, int row, int sequence, int span,
                                          int end) {
  const int i = static_cast<int>(threadIdx.x);
  if (i >= kLatentSpan) return;
  const std::int32_t* const list = args.chosen + static_cast<std::int64_t>(row) * args.top_k;
  const int position = list[min(span * kLatentSpan + i, end - 1)];
  place.listed[span % 2 * kLatentSpan + i] = {
      args.kv.blocks.table[kv_entry(args.kv, sequence, position)] + args.kv.blocks.v_offset, position % kKvBlock};
}

/// The queries of the block's pairs, as HalfQuery's factors; zeros where there is no pair.
__device__ __forceinline__ void load_queries(const TileArgs& args, const Place& place, std::int64_t first_pair,
                                             int pairs) {
  constexpr int kEach = kPairs * kWarp / kThreads;
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const int dim = args.kv.head_dim;
  for (int i = 0; i < kEach; ++i) {
    const int pair = warp * kEach + i;
    const float* from = args.q + (first_pair + pair) * dim;
    float4 x[kLoads];
    unsigned bits = 0;
#pragma unroll
    for (int j = 0; j < kLoads; ++j) {
      const int d = 4 * (j * kWarp + lane);
      x[j] = pair < pairs && d < dim ? *reinterpret_cast<const float4*>(from + d) : make_float4(0, 0, 0, 0);
      for (const float value : {x[j].x, x[j].y, x[j].z, x[j].w}) bits = max(bits, __float_as_uint(value) & 0x7fffffffu);
    }
    bits = max_over_warp(bits);
    const int exponent = static_cast<int>(bits >> 23) - 127;
    const int up = exponent >= -100 && exponent < 128 ? 10 - exponent : 0;
    const float power = power_of_two(static_cast<unsigned>(up));
#pragma unroll
    for (int j = 0; j < kLoads; ++j) {
      const int d = 4 * (j * kWarp + lane);
      if (d >= dim) continue;
      const uint2 four = {pack(__floats2half2_rn(x[j].x * power, x[j].y * power)),
                          pack(__floats2half2_rn(x[j].z * power, x[j].w * power))};
      *reinterpret_cast<uint2*>(place.q + pair * place.pitch + d) = four;
    }
    if (lane == 0) place.unit[pair] = power_of_two(static_cast<unsigned>(-up)) * args.scale;
  }
}

/// Keys [first, first + kKeys) of a sequence to a stage, zeros from `end` on. Copies that run on are one group.
template <typename T, bool kListed>
__device__ __forceinline__ void load_tile(const TileArgs& args, const Place& place, int stage, int sequence, int first,
                                          int end) {
  const int dim = args.kv.head_dim;
  const std::byte* together = nullptr;  // without a list a tile lies in one block
  if constexpr (!kListed) together = args.kv.blocks.table[kv_entry(args.kv, sequence, first)] + args.kv.blocks.v_offset;
  const KeyPlace* const listed = place.listed + first % (2 * kLatentSpan);
  __half* const to = place.keys + stage * kKeys * place.pitch;
  constexpr int kUnit = 16 / static_cast<int>(sizeof(T));  // channels
  const int units = dim / kUnit;
  for (int u = static_cast<int>(threadIdx.x); u < kKeys * units; u += kThreads) {
    const int key = u / units, d = (u - key * units) * kUnit;
    const KeyPlace at_key = kListed ? listed[key] : KeyPlace{together, first % kKvBlock + key};
    const std::byte* const block = at_key.block;
    const auto* from = reinterpret_cast<const T*>(block) + at_key.slot * dim + d;
    __half* const at = to + key * place.pitch + d;
    if constexpr (std::is_same_v<T, __half>) {
      copy_16(at, from, first + key < end);
    } else {
      uint4 low = {}, high = {};
      if (first + key < end) {
        const auto* scales = reinterpret_cast<const __half*>(block + kKvBlock * dim);
        const float d_of = __half2float(scales[at_key.slot * (dim / kQ8Group) + d / kQ8Group]);
        const uint4 bytes = *reinterpret_cast<const uint4*>(from);
        const auto four = [&](unsigned word, unsigned& a, unsigned& b) {
          const auto at_of = [&](int i) {
            return static_cast<float>(static_cast<std::int8_t>(word >> (8 * i))) * d_of;
          };
          a = pack(__floats2half2_rn(at_of(0), at_of(1)));
          b = pack(__floats2half2_rn(at_of(2), at_of(3)));
        };
        four(bytes.x, low.x, low.y);
        four(bytes.y, low.z, low.w);
        four(bytes.z, high.x, high.y);
        four(bytes.w, high.z, high.w);
      }
      *reinterpret_cast<uint4*>(at) = low;
      *reinterpret_cast<uint4*>(at + 8) = high;
    }
  }
  copies_commit();
}

/// Sums of a lane's pairs, lane / 4 and that + 8 of its warp's: maximum, sum, and values of its columns.
struct PairSums {
  float most[2] = {-INFINITY, -INFINITY}, total[2] = {};
  float values[kMostHalf / 8][4] = {};
};

/// What is done with a tile: the scores of the warp's half of the keys.
__device__ __forceinline__ void score(const Place& place, const __half* tile, int dim, int group, int half, int first,
                                      const int (&last_key)[2]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, quarter = lane % 4;
  const unsigned q = shared_address(place.q + (group * kPairsOfWarp + lane % 16) * place.pitch + lane / 16 * 8);
  const unsigned keys =
      shared_address(tile + (half * kKeys / 2 + lane / 16 * 8 + lane % 8) * place.pitch + lane / 8 % 2 * 8);
  float even[2][4] = {}, odd[2][4] = {};
  const int steps = dim / 16;
  const auto step = [&](int t, float(&sums)[2][4]) {
    unsigned a[4], b[4];
    load_rows(a, q + t * 32);
    load_rows(b, keys + t * 32);
    multiply_halves(sums[0], a, b[0], b[1]);
    multiply_halves(sums[1], a, b[2], b[3]);
  };
  int t = 0;
#pragma unroll 4
  for (; t + 1 < steps; t += 2) {
    step(t, even);
    step(t + 1, odd);
  }
  if (t < steps) step(t, even);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int pair = group * kPairsOfWarp + lane / 4 + 8 * h;
    const float unit = place.unit[pair];
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const int key = half * kKeys / 2 + 8 * n + 2 * quarter;
      float2 s = {(even[n][2 * h] + odd[n][2 * h]) * unit, (even[n][2 * h + 1] + odd[n][2 * h + 1]) * unit};
      if (first + key > last_key[h]) s.x = -INFINITY;
      if (first + key + 1 > last_key[h]) s.y = -INFINITY;
      *reinterpret_cast<float2*>(place.scores + pair * kScorePitch + key) = s;
    }
  }
}

/// The tile's keys into the sums, for the warp's half of the channels.
__device__ __forceinline__ void add_values(const Place& place, const __half* tile, int v_half, int group, int half,
                                           PairSums& sums) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, quarter = lane % 4;
  constexpr int kSteps = kKeys / 16;
  unsigned weights[kSteps][4];
  float before[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float* from = place.scores + (group * kPairsOfWarp + lane / 4 + 8 * h) * kScorePitch + 2 * quarter;
    float2 s[2 * kSteps];
    float most = sums.most[h];
#pragma unroll
    for (int i = 0; i < 2 * kSteps; ++i) {
      s[i] = *reinterpret_cast<const float2*>(from + 8 * i);
      most = max_or_nan(most, max_or_nan(s[i].x, s[i].y));
    }
    most = max_or_nan(most, __shfl_xor_sync(kFullWarp, most, 1));
    most = max_or_nan(most, __shfl_xor_sync(kFullWarp, most, 2));
    const float base = most == -INFINITY ? 0 : most;  // nothing seen yet
    float total = 0;
#pragma unroll
    for (int i = 0; i < 2 * kSteps; ++i) {
      const __half2 e = __floats2half2_rn(exp_to_one(s[i].x - base), exp_to_one(s[i].y - base));
      weights[i / 2][i % 2 * 2 + h] = pack(e);
      total += __low2float(e) + __high2float(e);
    }
    total += __shfl_xor_sync(kFullWarp, total, 1);
    total += __shfl_xor_sync(kFullWarp, total, 2);
    before[h] = exp_to_one(sums.most[h] - base);
    sums.total[h] = __fmaf_rn(sums.total[h], before[h], total);
    sums.most[h] = most;
  }
  if (__any_sync(kFullWarp, before[0] != 1 || before[1] != 1)) {
#pragma unroll
    for (int n = 0; n < kMostHalf / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sums.values[n][i] *= before[i / 2];
    }
  }
  const unsigned values =
      shared_address(tile + (lane / 8 % 2 * 8 + lane % 8) * place.pitch + half * v_half + lane / 16 * 8);
#pragma unroll
  for (int j = 0; j < kMostHalf / 16; ++j) {
    if (16 * j >= v_half) continue;
#pragma unroll
    for (int t = 0; t < kSteps; ++t) {
      unsigned b[4];
      load_columns(b, values + static_cast<unsigned>(t * 16 * place.pitch + 16 * j) * sizeof(__half));
      multiply_halves(sums.values[2 * j], weights[t], b[0], b[1]);
      multiply_halves(sums.values[2 * j + 1], weights[t], b[2], b[3]);
    }
  }
}

/// kGenerated: a block has heads of one row, and one span of its keys. Else pairs of the rows of prompts, the last
/// ones, which see the most keys, first; where keys are listed, heads of one row.
template <typename T, bool kGenerated, bool kListed>
__global__ void __launch_bounds__(kThreads, 1) latent_tile_kernel(const __grid_constant__ TileArgs args) {
  extern __shared__ __align__(128) std::byte memory[];
  allow_successor();
  wait_for_predecessor();
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const int group = warp % (kPairs / kPairsOfWarp), half = warp / (kPairs / kPairsOfWarp);
  const int dim = args.kv.head_dim, v_half = args.v_dim / 2;
  const Place place(memory, dim);
  const int span = kGenerated ? static_cast<int>(blockIdx.z) : 0;
  std::int64_t first_pair = 0;
  int pairs = 0;
  if constexpr (kGenerated || kListed) {
    const int row = args.first_row + static_cast<int>(blockIdx.y), head = static_cast<int>(blockIdx.x) * kPairs;
    if (span * kLatentSpan >= seen_keys(args, row)) return;
    first_pair = static_cast<std::int64_t>(row) * args.heads + head;
    pairs = min(kPairs, args.heads - head);
  } else {
    const std::int64_t all = static_cast<std::int64_t>(args.rows.rows) * args.heads;
    first_pair = static_cast<std::int64_t>(gridDim.x - 1 - blockIdx.x) * kPairs;
    pairs = static_cast<int>(min(static_cast<std::int64_t>(kPairs), all - first_pair));
  }
  load_queries(args, place, first_pair, pairs);
  const bool active = group * kPairsOfWarp < pairs;
  PairSums sums;
  const int last_row = static_cast<int>((first_pair + pairs - 1) / args.heads);
  int row = static_cast<int>(first_pair / args.heads);
  while (row <= last_row) {  // rows of a sequence together
    const int first_row = row, sequence = args.rows.sequence[row];
    int end = 0;
    for (; row <= last_row && args.rows.sequence[row] == sequence; ++row) end = max(end, seen_keys(args, row));
    const int begin = span * kLatentSpan;
    if constexpr (kGenerated) end = min(end, begin + kLatentSpan);
    int last_key[2];  // that a pair sees
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int pair = group * kPairsOfWarp + lane / 4 + 8 * h;
      const int of = static_cast<int>((first_pair + pair) / args.heads);
      last_key[h] = pair < pairs && of >= first_row && of < row ? seen_keys(args, of) - 1 : -1;
    }
    if constexpr (kListed) find_keys(args, place, first_row, sequence, span, end);
    __syncthreads();  // nobody reads the tiles of the rows before
    const int tiles = (end - begin + kKeys - 1) / kKeys;
    for (int t = 0; t < kStages - 1; ++t) {
      if (t < tiles)
        load_tile<T, kListed>(args, place, t, sequence, begin + t * kKeys, end);
      else
        copies_commit();
    }
    for (int t = 0; t < tiles; ++t) {
      copies_wait<kStages - 2>();
      __syncthreads();
      if (t + kStages - 1 < tiles)
        load_tile<T, kListed>(args, place, (t + kStages - 1) % kStages, sequence, begin + (t + kStages - 1) * kKeys,
                              end);
      else
        copies_commit();
      if constexpr (kListed) {  // of the span whose first tile is loaded next
        const int next = begin + (t + kStages) * kKeys;
        if (next % kLatentSpan == 0 && next < end) find_keys(args, place, first_row, sequence, next / kLatentSpan, end);
      }
      const __half* const tile = place.keys + t % kStages * kKeys * place.pitch;
      if (active) score(place, tile, dim, group, half, begin + t * kKeys, last_key);
      __syncthreads();
      if (active) add_values(place, tile, v_half, group, half, sums);
    }
  }
  if (!active) return;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int pair = group * kPairsOfWarp + lane / 4 + 8 * h;
    if (pair >= pairs) continue;
    const int first_channel = half * v_half + 2 * (lane % 4);
    std::int64_t at = first_pair + pair;
    if constexpr (kGenerated) at = (at - static_cast<std::int64_t>(args.first_row) * args.heads) * args.spans + span;
    float* const to = (kGenerated ? args.part : args.out) + at * args.v_dim + first_channel;
    if (kGenerated && half == 0 && lane % 4 == 0) args.sums[at] = make_float2(sums.most[h], sums.total[h]);
#pragma unroll
    for (int n = 0; n < kMostHalf / 8; ++n) {
      if (8 * n >= v_half) continue;
      float2 two = {sums.values[n][2 * h], sums.values[n][2 * h + 1]};
      if constexpr (!kGenerated) two = {two.x / sums.total[h], two.y / sums.total[h]};
      *reinterpret_cast<float2*>(to + 8 * n) = two;
    }
  }
}

constexpr int kMergeThreads = 128;

__global__ void __launch_bounds__(kMergeThreads) merge_kernel(const __grid_constant__ TileArgs args) {
  allow_successor();
  wait_for_predecessor();
  const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * args.heads + blockIdx.y;
  const int row = args.first_row + static_cast<int>(blockIdx.x);
  const int spans = (seen_keys(args, row) - 1) / kLatentSpan + 1;
  float* const out = args.out + (static_cast<std::int64_t>(row) * args.heads + blockIdx.y) * args.v_dim;
  for (int d = 4 * static_cast<int>(threadIdx.x); d < args.v_dim; d += 4 * kMergeThreads) {
    float most = -INFINITY, total = 0;
    for (int span = 0; span < spans; ++span) most = max_or_nan(most, args.sums[at * args.spans + span].x);
    float4 value = {0, 0, 0, 0};
#pragma unroll 8
    for (int span = 0; span < spans; ++span) {
      const float2 sum = args.sums[at * args.spans + span];
      const float4 part = *reinterpret_cast<const float4*>(args.part + (at * args.spans + span) * args.v_dim + d);
      const float counts = exp_to_one(sum.x - most);
      total = __fmaf_rn(sum.y, counts, total);
      value.x = __fmaf_rn(part.x, counts, value.x);
      value.y = __fmaf_rn(part.y, counts, value.y);
      value.z = __fmaf_rn(part.z, counts, value.z);
      value.w = __fmaf_rn(part.w, counts, value.w);
    }
    *reinterpret_cast<float4*>(out + d) =
        make_float4(value.x / total, value.y / total, value.z / total, value.w / total);
  }
}

template <typename T, bool kListed>
cudaError_t tiles_of(const LatentAttentionCall& call, cudaStream_t stream) {
  TileArgs args{call.rows,   call.kv,    call.q, call.heads, call.scale, call.v_dim, call.out,
                call.chosen, call.top_k, 0,      0,          nullptr,    nullptr};
  const std::size_t shared = shared_bytes(call.kv.head_dim);
  const auto head_blocks = static_cast<unsigned>((call.heads + kPairs - 1) / kPairs);
  if (call.prompt) {
    const std::int64_t pairs = static_cast<std::int64_t>(call.rows.rows) * call.heads;
    const dim3 grid = kListed ? dim3(head_blocks, static_cast<unsigned>(call.rows.rows))
                              : dim3(static_cast<unsigned>((pairs + kPairs - 1) / kPairs));
    return launch_large(latent_tile_kernel<T, false, kListed>, grid, dim3(kThreads), shared, stream, 1, args);
  }
  const std::int32_t most_keys = most_latent_keys(call);
  args.spans = (most_keys + kLatentSpan - 1) / kLatentSpan;
  const std::size_t row_bytes = latent_workspace_bytes(1, call.heads, call.v_dim, most_keys);
  const int at_once = static_cast<int>(
      std::min<std::size_t>(call.workspace_bytes / row_bytes, static_cast<std::size_t>(call.rows.rows)));
  if (at_once <= 0) return cudaErrorInvalidValue;
  args.part = reinterpret_cast<float*>(call.workspace);
  args.sums =
      reinterpret_cast<float2*>(args.part + static_cast<std::int64_t>(at_once) * call.heads * args.spans * call.v_dim);
  for (; args.first_row < call.rows.rows; args.first_row += at_once) {
    const auto rows = static_cast<unsigned>(std::min(at_once, call.rows.rows - args.first_row));
    const dim3 grid(head_blocks, rows, static_cast<unsigned>(args.spans));
    cudaError_t error =
        launch_large(latent_tile_kernel<T, true, kListed>, grid, dim3(kThreads), shared, stream, 1, args);
    if (error == cudaSuccess)
      error = launch(merge_kernel, dim3(rows, static_cast<unsigned>(call.heads)), dim3(kMergeThreads), 0, stream, args);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

template <typename T>
cudaError_t tiles_of(const LatentAttentionCall& call, cudaStream_t stream) {
  return call.chosen != nullptr ? tiles_of<T, true>(call, stream) : tiles_of<T, false>(call, stream);
}

}  // namespace

bool latent_tiles_take(const LatentAttentionCall& call) {
  const int dim = call.kv.head_dim;
  const bool steps = dim % 16 == 0 && call.v_dim % 16 == 0;
  return steps && dim <= kMostDim && shared_bytes(dim) <= block_shared_bytes() &&
         (call.kv.dtype == DType::f16 || call.kv.dtype == DType::q8_0);
}

cudaError_t latent_tiles(const LatentAttentionCall& call, cudaStream_t stream) {
  return call.kv.dtype == DType::f16 ? tiles_of<__half>(call, stream) : tiles_of<std::int8_t>(call, stream);
}

}  // namespace millrace::kernels::cuda
