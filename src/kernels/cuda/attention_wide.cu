// Attention of few rows over f16 with heads of 512, for devices whose blocks of threads have 99 KiB of shared memory: a
// chunk's keys, or its values, are 129 KiB. They come by halves, a block of the cache at a time, into one place. Every
// score hangs on its own key, and a channel's sum goes on from half to half in registers, so the bits are those of
// attention.cu. Contract and order of sums: AttentionCall in ops.h.
#include <algorithm>
#include <cstddef>

#include "kernels/cuda/async_copy.cuh"
#include "kernels/cuda/attention_chunks.cuh"
#include "kernels/cuda/launchers.h"
#include "kernels/cuda/pdl.cuh"
#include "kernels/cuda/quantize.cuh"

namespace millrace::kernels::cuda {
namespace {

constexpr int kWarp = 32, kThreads = 128, kWarps = kThreads / kWarp;
constexpr int kHeads = 8;                                // that tensor cores take at once, needed or not
constexpr int kScoreStride = kAttentionChunk + 8;        // floats: the lanes of a warp meet other banks
constexpr int kKeysOfWarp = kKvBlock / kWarps;           // of a half
constexpr int kSetsOfWarp = kWideHeadDim / 32 / kWarps;  // of 32 channels
using Layout = HalfLayout<kWideHeadDim>;
constexpr int kPlaceBytes = std::max(Layout::kKeys, Layout::kValues);
constexpr std::size_t kSharedBytes = kPlaceBytes + sizeof(float) * kHeads * (kWideHeadDim + kScoreStride);
static_assert(kSharedBytes + 1024 <= kLeastBlockShared && kKeysOfWarp == 16);

/// What a block of the cache holds of the row's chunk: keys [begin, end) of its 64, or none.
struct Half {
  const std::byte* block;
  int begin, end;
};

template <bool kRare>
__device__ __forceinline__ Half half_of(const DecodeArgs& args, int sequence, int position, int chunk, int half) {
  const int base = chunk * kAttentionChunk + half * kKvBlock;
  Half of = {nullptr, max(first_visible<kRare>(position, args.window) - base, 0), min(position + 1 - base, kKvBlock)};
  if (of.begin < of.end)
    of.block = args.kv.blocks.table[static_cast<std::int64_t>(sequence) * args.kv.max_blocks + base / kKvBlock];
  return of;
}

/// A block takes a row, up to eight heads of a KV head at a time and every gridDim.y-th chunk of the row's keys.
template <bool kRare>
__global__ void __launch_bounds__(kThreads, 1) wide_kernel(const __grid_constant__ DecodeArgs args) {
  extern __shared__ __align__(128) std::byte shared[];
  __shared__ ChunkSum sums[kHeads];
  allow_successor();
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp, warp = thread / kWarp, pair = lane / 4;
  const int row_blocks = args.heads / args.block_heads;
  const int row = static_cast<int>(blockIdx.x) / row_blocks,
            first_head = static_cast<int>(blockIdx.x) % row_blocks * args.block_heads;
  const std::int64_t row_head = static_cast<std::int64_t>(row) * args.heads + first_head;
  const std::int64_t keys_at = kv_part(args.kv.blocks, true, first_head / args.group),
                     values_at = kv_part(args.kv.blocks, false, first_head / args.group);
  std::byte* const place = shared;
  auto* const q = reinterpret_cast<float*>(shared + kPlaceBytes);  // [kHeads, 512]
  float* const scores = q + kHeads * kWideHeadDim;                 // [kHeads, 128], then weights
  wait_for_predecessor();
  const int position = args.rows.position[row], sequence = args.rows.sequence[row];
  const Chunks chunks = chunks_of_row<kRare>(position, args.window);

  // A chunk's result of eight neighbouring channels from c on of one of the block's heads.
  const auto give = [&](int slot, int h, int c, const ChunkSum& sum, const float(&acc)[8]) {
    const std::int64_t head = row_head + h;
    if (chunks.count > 1) {
      float* const to = args.part + (head * args.max_chunks + slot) * kWideHeadDim + c;
#pragma unroll
      for (int i = 0; i < 8; ++i) to[i] = acc[i];
      return;
    }
    float result[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) result[i] = acc[i] * sum.m / sum.l;  // as merge_alone() left them
    const std::int64_t at = head * kWideHeadDim + c;
#pragma unroll
    for (int i = 0; i < 8; ++i)
      if (args.out) args.out[at + i] = result[i];
    if (args.q8.q) quantize_block(result, args.q8.q + at / 32 * 32, args.q8.scale + at / 32);
  };

  for (int slot = static_cast<int>(blockIdx.y); slot < chunks.count; slot += static_cast<int>(gridDim.y)) {
    const Half halves[2] = {half_of<kRare>(args, sequence, position, chunks.first + slot, 0),
                            half_of<kRare>(args, sequence, position, chunks.first + slot, 1)};
    for (int h0 = 0; h0 < args.block_heads; h0 += kHeads) {
      const int heads = min(args.block_heads - h0, kHeads);
      __syncthreads();  // queries, scores and sums are free
      const float* const from = args.q + (row_head + h0) * kWideHeadDim;
      for (int i = thread; i < heads * kWideHeadDim; i += kThreads) q[i] = from[i];
      __syncthreads();
      {
        HalfQuery<kWideHeadDim> query;
        query.load(pair < heads ? q + pair * kWideHeadDim : nullptr, args.scale);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          if (halves[half].block == nullptr) continue;
          __syncthreads();  // the place is free
          copy_half_keys<kWideHeadDim, kThreads>(place, halves[half].block + keys_at);
          copies_commit();
          copies_wait<0>();
          __syncthreads();
          const int first = kKeysOfWarp * warp;
          float s[kKeysOfWarp / 8][4];
          score_half<kWideHeadDim, kKeysOfWarp / 8>(query, key_address<kWideHeadDim>(place) + first * 2, s);
#pragma unroll
          for (int n = 0; n < kKeysOfWarp / 8; ++n) {
            *reinterpret_cast<float2*>(scores + pair * kScoreStride + half * kKvBlock + first + 8 * n +
                                       2 * (lane % 4)) = make_float2(s[n][0] * query.unit, s[n][1] * query.unit);
          }
        }
      }
      __syncthreads();
      const int begin = halves[0].block != nullptr ? halves[0].begin : kKvBlock + halves[1].begin,
                end = halves[1].block != nullptr ? kKvBlock + halves[1].end : halves[0].end;
      for (int h = warp; h < heads; h += kWarps) {
        float* const mine = scores + h * kScoreStride;
        if constexpr (kRare) {
          const ScoreBend bend(args, first_head + h0 + h);
          bend_chunk(bend, position - (chunks.first + slot) * kAttentionChunk, mine);
        }
        ChunkSum sum = soften_half(mine, begin, end);
        if (lane != 0) continue;
        if (chunks.count == 1) sum = merge_alone(args, first_head + h0 + h, sum);
        sums[h] = sum;
        if (chunks.count > 1) args.sums[(row_head + h0 + h) * args.max_chunks + slot] = sum;
      }
      float acc[kSetsOfWarp][4][4] = {};
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (halves[half].block == nullptr) continue;
        __syncthreads();  // the place is free, and the weights are there
        copy_half_values<kWideHeadDim, kThreads>(place, halves[half].block + values_at);
        copies_commit();
        copies_wait<0>();
        __syncthreads();
        clear_values<kWideHeadDim>(place, 0, halves[half].begin, thread, kThreads);
        clear_values<kWideHeadDim>(place, halves[half].end, kKvBlock, thread, kThreads);
        __syncthreads();
        const float* const weights = pair < heads ? scores + pair * kScoreStride : nullptr;
        const unsigned values = value_address<kWideHeadDim>(place);
#pragma unroll
        for (int step = 0; step < kKvBlock / 16; ++step) {
#pragma unroll
          for (int set = 0; set < kSetsOfWarp; ++set)
            add_half_step<4>(weights ? weights + 8 * (half * (kKvBlock / 16) + step) : nullptr,
                             values + step * (8 * Layout::kValuePitch) + (warp + set * kWarps) * 64, acc[set]);
        }
      }
#pragma unroll
      for (int set = 0; set < kSetsOfWarp; ++set) {
        float mine[8];
#pragma unroll
        for (int n = 0; n < 4; ++n) mine[2 * n] = acc[set][n][0], mine[2 * n + 1] = acc[set][n][1];
        gather_columns(mine);
        if (pair < heads) give(slot, h0 + pair, 32 * (warp + set * kWarps) + 8 * (lane % 4), sums[pair], mine);
      }
    }
  }
}

}  // namespace

cudaError_t attention_by_halves(const DecodeArgs& args, cudaStream_t stream) {
  const int blocks = args.rows.rows * args.heads / args.block_heads;
  // As many blocks as the device holds, with about as many chunks each.
  const int most = std::max(multiprocessor_count() / blocks, 1), each = (args.max_chunks + most - 1) / most;
  const dim3 grid(blocks, (args.max_chunks + each - 1) / each);
  return launch_rare_or_not(args, [&](auto rare) {
    return launch_large(wide_kernel<decltype(rare)::value>, grid, dim3(kThreads), kSharedBytes, stream, 1, args);
  });
}

}  // namespace millrace::kernels::cuda
