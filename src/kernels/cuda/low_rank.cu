// Contract in low_rank.h: two launches, A's products and B's; or one of clusters, for what stands apart of few rows. Of
// prompts A's are the tensor cores'.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <utility>

#include "kernels/cuda/async_copy.cuh"
#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/exp.cuh"
#include "kernels/cuda/launchers.h"
#include "kernels/cuda/pdl.cuh"
#include "kernels/cuda/tensor_core.cuh"
#include "kernels/cuda/warp.cuh"

namespace millrace::kernels::cuda {
namespace {

constexpr int kThreads = gpu::kLowRankSums, kWarps = kThreads / 32, kChunk = gpu::kLowRankChunk;
constexpr int kRanksAtOnce = 16;  // of B
constexpr int kCluster = 8;       // blocks
constexpr int kMostOwn = 32;      // channels of one of them

__device__ __forceinline__ float element(const std::byte* from, DType dtype, std::int64_t i) {
  if (dtype == DType::f32) return reinterpret_cast<const float*>(from)[i];
  if (dtype == DType::f16) return __half2float(reinterpret_cast<const __half*>(from)[i]);
  return __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(from)[i]);
}

/// Eight elements of 2 bytes.
__device__ __forceinline__ void widen(const uint4& words, DType dtype, float (&out)[kChunk]) {
  const unsigned word[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    if (dtype == DType::bf16) {
      out[2 * w] = __uint_as_float(word[w] << 16);
      out[2 * w + 1] = __uint_as_float(word[w] & 0xffff0000u);
    } else {
      out[2 * w] = __half2float(__ushort_as_half(static_cast<unsigned short>(word[w] & 0xffffu)));
      out[2 * w + 1] = __half2float(__ushort_as_half(static_cast<unsigned short>(word[w] >> 16)));
    }
  }
}

/// Elements [i, i + kChunk), which begin at a multiple of 16 bytes.
__device__ __forceinline__ void load_chunk(const std::byte* from, DType dtype, std::int64_t i, float (&out)[kChunk]) {
  if (dtype == DType::f32) {
    const auto* const quads = reinterpret_cast<const float4*>(from) + i / 4;
    const float4 low = quads[0], high = quads[1];
    out[0] = low.x, out[1] = low.y, out[2] = low.z, out[3] = low.w;
    out[4] = high.x, out[5] = high.y, out[6] = high.z, out[7] = high.w;
    return;
  }
  widen(reinterpret_cast<const uint4*>(from)[i / kChunk], dtype, out);
}

/// Which part a block works on, and which of its tiles; `size_of`: how much of a part there is to cut.
template <typename SizeOf>
__device__ __forceinline__ int find_part(const LowRankCall& call, int& tile, int tile_size, const SizeOf& size_of) {
  int part = 0;
  for (; part + 1 < call.count; ++part) {
    const int tiles = (size_of(call.parts[part]) + tile_size - 1) / tile_size;
    if (tile < tiles) break;
    tile -= tiles;
  }
  return part;
}

/// Channels of the parts in front of part p; of all parts for call.count.
__host__ __device__ __forceinline__ int channels_before(const LowRankCall& call, int p) {
  int before = 0;
  for (int i = 0; i < p; ++i) before += call.parts[i].rank;
  return before;
}

/// A row of some part's A.
struct Channel {
  const std::byte* a;
  DType dtype;
  float factor;
};
__device__ __forceinline__ std::int64_t row_bytes(const LowRankCall& call, DType dtype) {
  return (dtype == DType::f32 ? 4 : 2) * static_cast<std::int64_t>(call.cols);
}
__device__ __forceinline__ Channel channel_of(const LowRankCall& call, const LowRankCall::Part& part, int i) {
  return {part.a + i * row_bytes(call, part.a_dtype), part.a_dtype, part.factor};
}
/// Number c of all parts' channels.
__device__ __forceinline__ Channel channel_at(const LowRankCall& call, int c) {
  const int p = find_part(call, c, 1, [](const LowRankCall::Part& part) { return part.rank; });
  return channel_of(call, call.parts[p], c);
}

/// sums[warp][r * kRanks + j]: what each warp has of the sum over columns of row r and channel j; the caller
/// synchronizes. kAligned: rows are whole chunks, which begin at multiples of 16 bytes.
template <int kRows, int kRanks, bool kAligned>
__device__ __forceinline__ void sum_columns(const LowRankCall& call, int row0, const Channel (&channels)[kRanks],
                                            float (&sums)[kWarps][kRows * kRanks]) {
  constexpr int kAtOnce = kRows == 1 ? 4 : 1;  // chunks of x that are asked for before the first is worked
  const int chunks = (call.cols + kChunk - 1) / kChunk;
  const float* x[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) x[r] = call.x + static_cast<std::int64_t>(min(row0 + r, call.x_rows - 1)) * call.cols;
  float acc[kRows][kRanks] = {};
  for (int c0 = static_cast<int>(threadIdx.x); c0 < chunks; c0 += kAtOnce * kThreads) {
    float from_x[kAtOnce][kRows][kChunk];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int first = (c0 + i * kThreads) * kChunk;
      if (first >= call.cols) continue;
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        if constexpr (kAligned) {
          load_chunk(reinterpret_cast<const std::byte*>(x[r]), DType::f32, first, from_x[i][r]);
        } else {
          for (int e = 0; e < min(kChunk, call.cols - first); ++e) from_x[i][r][e] = x[r][first + e];
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int first = (c0 + i * kThreads) * kChunk, count = kAligned ? kChunk : min(kChunk, call.cols - first);
      if (first >= call.cols) continue;
#pragma unroll
      for (int j = 0; j < kRanks; ++j) {
        float from_a[kChunk];
        if constexpr (kAligned) {
          load_chunk(channels[j].a, channels[j].dtype, first, from_a);
        } else {
          for (int e = 0; e < count; ++e) from_a[e] = element(channels[j].a, channels[j].dtype, first + e);
        }
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
#pragma unroll
          for (int e = 0; e < kChunk; ++e)
            if (kAligned || e < count) acc[r][j] = __fmaf_rn(from_a[e], from_x[i][r][e], acc[r][j]);
        }
      }
    }
  }
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
#pragma unroll
  for (int i = 0; i < kRows * kRanks; ++i) {
    const float sum = sum_over_warp(acc[i / kRanks][i % kRanks]);
    if (lane == 0) sums[warp][i] = sum;
  }
}
/// Of sum number i.
template <int kSums>
__device__ __forceinline__ float whole_sum(const float (&sums)[kWarps][kSums], int i) {
  float sum = sums[0][i];
  for (int w = 1; w < kWarps; ++w) sum += sums[w][i];
  return sum;
}

/// low = scale * factor * A x, of kRows rows and kRanks channels a block.
template <int kRows, int kRanks, bool kAligned>
__global__ void __launch_bounds__(kThreads) low_kernel(const LowRankCall call) {
  __shared__ float sums[kWarps][kRows * kRanks];
  allow_successor();
  int tile = static_cast<int>(blockIdx.x);
  const int p = find_part(call, tile, kRanks, [](const LowRankCall::Part& part) { return part.rank; });
  const LowRankCall::Part& part = call.parts[p];
  const int before = channels_before(call, p), all = channels_before(call, call.count);
  const int rank0 = tile * kRanks, row0 = static_cast<int>(blockIdx.y) * kRows;
  Channel channels[kRanks];
#pragma unroll
  for (int j = 0; j < kRanks; ++j) channels[j] = channel_of(call, part, min(rank0 + j, part.rank - 1));
  wait_for_predecessor();
  bool any = false;
#pragma unroll
  for (int r = 0; r < kRows; ++r) any = any || call.scales[min(row0 + r, call.x_rows - 1)] != 0;
  if (!any) return;
  sum_columns<kRows, kRanks, kAligned>(call, row0, channels, sums);
  __syncthreads();
  const int i = static_cast<int>(threadIdx.x);
  if (i >= kRows * kRanks) return;
  const int row = row0 + i / kRanks, channel = rank0 + i % kRanks;
  if (row >= call.x_rows || channel >= part.rank) return;
  call.low[static_cast<std::int64_t>(row) * all + before + channel] =
      __fmul_rn(whole_sum(sums, i), part.factor * call.scales[row]);
}

/// Of B, a column of kRanksAtOnce channels from k0 on.
__device__ __forceinline__ void load_b(const LowRankCall::Part& part, int k0, int column, float (&b)[kRanksAtOnce]) {
#pragma unroll
  for (int j = 0; j < kRanksAtOnce; ++j)
    b[j] = k0 + j < part.rank && column < part.rows ? part.b[(k0 + j) * part.b_stride + column] : 0.0f;
}
/// Adds the products of `ranks` channels, low being [ranks, kRows].
template <int kRows>
__device__ __forceinline__ void add_channels(const float (&b)[kRanksAtOnce], const float* low, int ranks,
                                             float (&sums)[kRows]) {
#pragma unroll
  for (int j = 0; j < kRanksAtOnce; ++j) {
    if (j >= ranks) continue;
#pragma unroll
    for (int r = 0; r < kRows; ++r) sums[r] = __fmaf_rn(b[j], low[j * kRows + r], sums[r]);
  }
}
template <int kRows>
__device__ __forceinline__ void put_column(const LowRankCall& call, const LowRankCall::Part& part, int row0, int column,
                                           const float (&sums)[kRows]) {
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (row0 + r >= call.x_rows || column >= part.rows) continue;
    const bool none = call.scales[row0 + r] == 0;
    float& y = part.y[static_cast<std::int64_t>(row0 + r) * part.y_stride + column];
    if (call.apart) {
      y = none ? -0.0f : sums[r];
    } else if (!none) {
      y = y + sums[r];
    }
  }
}

/// By one thread of the launch, once it has waited.
__device__ __forceinline__ void tell(const LowRankCall& call) {
  if (call.ready == nullptr || blockIdx.x + blockIdx.y + threadIdx.x != 0) return;
  tell_ready(call.ready);
}

/// y += B low, or y = B low, of kRows rows and a column a thread.
template <int kRows>
__global__ void __launch_bounds__(kThreads) add_kernel(const LowRankCall call) {
  __shared__ float low[kRanksAtOnce][kRows];
  allow_successor();
  int tile = static_cast<int>(blockIdx.x);
  const int p = find_part(call, tile, kThreads, [](const LowRankCall::Part& part) { return part.rows; });
  const LowRankCall::Part& part = call.parts[p];
  const int before = channels_before(call, p), all = channels_before(call, call.count);
  const int thread = static_cast<int>(threadIdx.x), row0 = static_cast<int>(blockIdx.y) * kRows;
  const int column = tile * kThreads + thread, rows = min(kRows, call.x_rows - row0);
  float sums[kRows] = {};
  float b[kRanksAtOnce];
  for (int k0 = 0; k0 < part.rank; k0 += kRanksAtOnce) {
    const int ranks = min(kRanksAtOnce, part.rank - k0);
    load_b(part, k0, column, b);
    if (k0 == 0) {
      wait_for_predecessor();  // B is no kernel's
      tell(call);
    }
    __syncthreads();  // all have read the channels before
    if (thread < kRanksAtOnce * kRows) {
      const int j = thread / kRows, r = thread % kRows;
      low[j][r] = j < ranks && r < rows ? call.low[static_cast<std::int64_t>(row0 + r) * all + before + k0 + j] : 0.0f;
    }
    __syncthreads();
    add_channels(b, &low[0][0], ranks, sums);
  }
  put_column(call, part, row0, column, sums);
}

/// y = B low, of at most kRows rows. Each block of a cluster sums some of the channels of all parts, kTogether of them
/// at a time, and reads the others' from the blocks beside it; then it has columns. A is copied to shared memory, and
/// B's first rows are read, before the kernels before end.
template <int kRows, int kTogether, bool kAligned>
__global__ void __launch_bounds__(kThreads) apart_kernel(const LowRankCall call, const int tiles, const int a_stride) {
  extern __shared__ uint4 staged[];  // rows of A, a_stride bytes each; 0: they are read where they lie
  __shared__ float sums[kWarps][kRows * kTogether];
  __shared__ float own[kMostOwn * kRows], low[kCluster * kMostOwn * kRows];
  allow_successor();
  const int thread = static_cast<int>(threadIdx.x), block = static_cast<int>(blockIdx.y);
  const int all = channels_before(call, call.count);
  const int each = (all + kCluster - 1) / kCluster, first = block * each, end = min(first + each, all);
  auto* const a_rows = reinterpret_cast<std::byte*>(staged);
  if (a_stride > 0) {
    for (int c = first; c < end; ++c) {
      const Channel channel = channel_at(call, c);
      const int bytes = static_cast<int>(row_bytes(call, channel.dtype));
      for (int at = 16 * thread; at < bytes; at += 16 * kThreads)
        copy_16(a_rows + (c - first) * a_stride + at, channel.a + at);
    }
    copies_commit();
  }
  const auto part_of = [&](int& tile) {
    return find_part(call, tile, kThreads, [](const LowRankCall::Part& part) { return part.rows; });
  };
  const int first_tile = static_cast<int>(blockIdx.x) * kCluster + block;
  float b[kRanksAtOnce] = {};
  if (int tile = first_tile; tile < tiles) {
    const int p = part_of(tile);
    load_b(call.parts[p], 0, tile * kThreads + thread, b);
  }
  if (a_stride > 0) copies_wait<0>();
  __syncthreads();
  wait_for_predecessor();
  tell(call);
  for (int c0 = first; c0 < end; c0 += kTogether) {
    Channel channels[kTogether];
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      const int c = min(c0 + j, end - 1);
      channels[j] = channel_at(call, c);
      if (a_stride > 0) channels[j].a = a_rows + (c - first) * a_stride;
    }
    sum_columns<kRows, kTogether, kAligned>(call, 0, channels, sums);
    __syncthreads();
    if (thread < kRows * kTogether) {
      const int row = thread / kTogether, c = c0 + thread % kTogether;
      if (row < call.x_rows && c < end)
        own[(c - first) * kRows + row] =
            __fmul_rn(whole_sum(sums, thread), channel_at(call, c).factor * call.scales[row]);
    }
    __syncthreads();
  }
  sync_cluster();
  for (int i = thread; i < all * kRows; i += kThreads) {
    const int c = i / kRows;
    low[i] = load_in_cluster(in_cluster(own + c % each * kRows + i % kRows, c / each));
  }
  arrive_in_cluster();  // for those that read this block's
  __syncthreads();
  for (int at = first_tile; at < tiles; at += static_cast<int>(gridDim.x) * kCluster) {
    int tile = at;
    const int p = part_of(tile);
    const LowRankCall::Part& part = call.parts[p];
    const int before = channels_before(call, p), column = tile * kThreads + thread;
    float columns[kRows] = {};
    for (int k0 = 0; k0 < part.rank; k0 += kRanksAtOnce) {
      if (at != first_tile || k0 != 0) load_b(part, k0, column, b);
      add_channels(b, low + (before + k0) * kRows, min(kRanksAtOnce, part.rank - k0), columns);
    }
    put_column(call, part, 0, column, columns);
  }
  wait_for_cluster();
}

// ---------------------------------------------------------------------------------------------------------------------
// Prompts

constexpr int kPromptThreads = 512, kPromptWarps = kPromptThreads / 32;
constexpr int kPromptRows = 16;  // of x, a block
constexpr int kStep = 32;        // columns that a warp works at once: 8 of each of four threads
constexpr int kAddedRows = 64;   // of y, a block
constexpr int kWarpColumns = 32, kColumns = kWarpColumns * kWarps;
constexpr int kApartRows = 4;  // floats that keep rows of shared memory in different banks
__host__ __device__ constexpr int padded_ranks(int rank) { return (rank + 7) / 8 * 8; }

/// low = scale * factor * A x of kPromptRows rows, and 8 * kTiles channels of all parts. A warp has every 16th step
/// of columns; the warps' sums are added in ascending order. kHalves: A is of 2 bytes an element, in each part.
template <int kTiles, bool kHalves>
__global__ void __launch_bounds__(kPromptThreads) low_prompt_kernel(const LowRankCall call) {
  constexpr int kChannels = 8 * kTiles;
  __shared__ float sums[kPromptWarps][kPromptRows][kChannels];
  allow_successor();
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int row = lane / 4, column = lane % 4 * kChunk;
  const int row0 = static_cast<int>(blockIdx.x) * kPromptRows, first = static_cast<int>(blockIdx.y) * kChannels;
  const int all = channels_before(call, call.count);
  Channel channels[kTiles];
#pragma unroll
  for (int t = 0; t < kTiles; ++t) channels[t] = channel_at(call, min(first + 8 * t + row, all - 1));
  const Bf16* x[2];
#pragma unroll
  for (int h = 0; h < 2; ++h)
    x[h] = call.x_bf16 + static_cast<std::int64_t>(min(row0 + row + 8 * h, call.x_rows - 1)) * call.cols;
  float acc[kTiles][4] = {};
  wait_for_predecessor();
#pragma unroll(kTiles <= 2 ? 4 : 2)
  for (int k0 = warp * kStep; k0 < call.cols; k0 += kPromptWarps * kStep) {
    const int k = k0 + column;
    const bool inside = k < call.cols;
    uint4 x_words[2] = {}, a_words[kTiles] = {};
    if (inside) {
#pragma unroll
      for (int h = 0; h < 2; ++h) x_words[h] = *reinterpret_cast<const uint4*>(x[h] + k);
      if constexpr (kHalves) {
#pragma unroll
        for (int t = 0; t < kTiles; ++t) a_words[t] = *reinterpret_cast<const uint4*>(channels[t].a + 2 * k);
      }
    }
    float from_x[2][kChunk];
#pragma unroll
    for (int h = 0; h < 2; ++h) widen(x_words[h], DType::bf16, from_x[h]);
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      float from_a[kChunk] = {};
      if constexpr (kHalves) {
        widen(a_words[t], channels[t].dtype, from_a);
      } else {
        if (inside) load_chunk(channels[t].a, channels[t].dtype, k, from_a);
#pragma unroll
        for (float& a : from_a) a = to_tf32(a);
      }
#pragma unroll
      for (int s = 0; s < kChunk; s += 2) {
        const float of_x[4] = {from_x[0][s], from_x[1][s], from_x[0][s + 1], from_x[1][s + 1]};
        multiply_tf32(acc[t], of_x, from_a[s], from_a[s + 1]);
      }
    }
  }
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[warp][row + i / 2 * 8][8 * t + lane % 4 * 2 + i % 2] = acc[t][i];
  }
  __syncthreads();
  for (int i = thread; i < kPromptRows * kChannels; i += kPromptThreads) {
    const int r = i / kChannels, c = first + i % kChannels;
    if (row0 + r >= call.x_rows || c >= all) continue;
    float sum = sums[0][r][i % kChannels];
    for (int w = 1; w < kPromptWarps; ++w) sum += sums[w][r][i % kChannels];
    call.low[static_cast<std::int64_t>(row0 + r) * all + c] =
        __fmul_rn(sum, channel_at(call, c).factor * call.scales[row0 + r]);
  }
}

/// Products of 64 rows and 8 columns from `column` on by a warp, as m16n8k8 fragments; low: its rows lie `stride`
/// apart.
__device__ __forceinline__ void sum_ranks(const LowRankCall::Part& part, const float* low, int stride, int column,
                                          float (&sums)[kAddedRows / 16][4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32, row = lane / 4, k = lane % 4;
  const bool inside = column + row < part.rows;
  for (int k0 = 0; k0 < part.rank; k0 += 8) {
    float b[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int channel = k0 + k + 4 * h;
      b[h] = inside && channel < part.rank ? to_tf32(part.b[channel * part.b_stride + column + row]) : 0.0f;
    }
#pragma unroll
    for (int m = 0; m < kAddedRows / 16; ++m) {
      const float* const at = low + (16 * m + row) * stride + k0 + k;
      const float a[4] = {at[0], at[8 * stride], at[4], at[8 * stride + 4]};
      multiply_tf32(sums[m], a, b[0], b[1]);
    }
  }
}

/// y += B low of kAddedRows rows and kColumns columns of one part; or of two, a gate and an up, what comes of them.
/// Channels lie in shared memory, those of a part padded to a multiple of 8.
template <bool kGates, Activation kActivation = Activation::silu>
__global__ void __launch_bounds__(kThreads) add_prompt_kernel(const LowRankCall call, const Gate limits) {
  extern __shared__ uint4 staged[];
  allow_successor();
  int tile = static_cast<int>(blockIdx.x);
  const int p = kGates ? 0 : find_part(call, tile, kColumns, [](const LowRankCall::Part& part) { return part.rows; });
  const LowRankCall::Part &part = call.parts[p], &up = call.parts[kGates ? 1 : p];
  const int before = channels_before(call, p), all = channels_before(call, call.count);
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32,
            row0 = static_cast<int>(blockIdx.y) * kAddedRows;
  const int stride = padded_ranks(part.rank) + kApartRows, up_stride = padded_ranks(up.rank) + kApartRows;
  auto* const low = reinterpret_cast<float*>(staged);
  float* const up_low = low + kAddedRows * stride;
  const auto stage = [&](float* to, int to_stride, int first, int rank) {
    const int padded = to_stride - kApartRows;
    for (int i = thread; i < kAddedRows * padded; i += kThreads) {
      const int r = i / padded, c = i % padded;
      const bool inside = c < rank && row0 + r < call.x_rows;
      to[r * to_stride + c] = inside ? to_tf32(call.low[static_cast<std::int64_t>(row0 + r) * all + first + c]) : 0.0f;
    }
  };
  wait_for_predecessor();
  stage(low, stride, before, part.rank);
  if constexpr (kGates) stage(up_low, up_stride, part.rank, up.rank);
  __syncthreads();
#pragma unroll 1
  for (int i = 0; i < kWarpColumns / 8; ++i) {
    const int first = tile * kColumns + thread / 32 * kWarpColumns + 8 * i, column = first + lane % 4 * 2;
    if (first >= part.rows) return;
    float2 y[kAddedRows / 8] = {}, of_up[kGates ? kAddedRows / 8 : 1] = {};
    const auto load = [&](const LowRankCall::Part& from, int r, float2& to) {
      const int row = row0 + 8 * r + lane / 4;
      if (row < call.x_rows && column < part.rows)
        to = *reinterpret_cast<const float2*>(from.y + static_cast<std::int64_t>(row) * from.y_stride + column);
    };
#pragma unroll
    for (int r = 0; r < kAddedRows / 8; ++r) {
      load(part, r, y[r]);
      if constexpr (kGates) load(up, r, of_up[r]);
    }
    float sums[kAddedRows / 16][4] = {}, up_sums[kGates ? kAddedRows / 16 : 1][4] = {};
    sum_ranks(part, low, stride, first, sums);
    if constexpr (kGates) sum_ranks(up, up_low, up_stride, first, up_sums);
#pragma unroll
    for (int r = 0; r < kAddedRows / 8; ++r) {
      const std::int64_t row = row0 + 8 * r + lane / 4;
      if (row >= call.x_rows || column >= part.rows) continue;
      const bool any = call.scales[row] != 0;
      const auto with = [&](float2 at, const float(&sum)[4]) {
        return any ? make_float2(at.x + sum[r % 2 * 2], at.y + sum[r % 2 * 2 + 1]) : at;
      };
      const float2 sum = with(y[r], sums[r / 2]);
      if constexpr (kGates) {
        const float2 u = with(of_up[r], up_sums[r / 2]);
        *reinterpret_cast<__nv_bfloat162*>(call.gated + row * part.rows + column) =
            __floats2bfloat162_rn(gated<kActivation>(sum.x, u.x, limits), gated<kActivation>(sum.y, u.y, limits));
      } else if (any) {
        *reinterpret_cast<float2*>(part.y + row * part.y_stride + column) = sum;
      }
    }
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// Launches

bool is_whole(const void* at) { return reinterpret_cast<std::uintptr_t>(at) % 16 == 0; }

bool is_aligned(const LowRankCall& call) {
  bool aligned = call.cols % kChunk == 0 && is_whole(call.x) && is_whole(call.x_bf16);
  for (int i = 0; i < call.count; ++i) aligned = aligned && is_whole(call.parts[i].a);
  return aligned;
}

unsigned divided(std::int64_t a, std::int64_t b) { return static_cast<unsigned>((a + b - 1) / b); }

/// Of the columns of all parts.
unsigned tiles_of(const LowRankCall& call, int columns = kThreads) {
  unsigned tiles = 0;
  for (int i = 0; i < call.count; ++i) tiles += divided(call.parts[i].rows, columns);
  return tiles;
}
int channels_of(const LowRankCall& call) { return channels_before(call, call.count); }
/// Whether A is of 2 bytes an element, in each part.
bool has_halves(const LowRankCall& call) {
  return std::none_of(call.parts, call.parts + call.count,
                      [](const LowRankCall::Part& part) { return part.a_dtype == DType::f32; });
}

template <int kRows, int kRanks, int kRowsAdded>
cudaError_t run(const LowRankCall& call, cudaStream_t stream) {
  unsigned low_tiles = 0;
  for (int i = 0; i < call.count; ++i) low_tiles += divided(call.parts[i].rank, kRanks);
  const auto row_tiles = [&](int rows) { return divided(call.x_rows, rows); };
  const auto kernel = is_aligned(call) ? low_kernel<kRows, kRanks, true> : low_kernel<kRows, kRanks, false>;
  const cudaError_t error = launch(kernel, dim3(low_tiles, row_tiles(kRows)), dim3(kThreads), 0, stream, call);
  if (error != cudaSuccess) return error;
  return launch(add_kernel<kRowsAdded>, dim3(tiles_of(call), row_tiles(kRowsAdded)), dim3(kThreads), 0, stream, call);
}

/// Whether one launch of clusters does it.
bool is_apart_of_few(const LowRankCall& call) {
  return call.apart && call.x_rows <= kMatvecRows && channels_of(call) <= kCluster * kMostOwn && overlaps_launches();
}

template <int kRows, int kTogether, bool kAligned>
cudaError_t run_apart(const LowRankCall& call, int own, cudaStream_t stream) {
  constexpr unsigned kMostClusters = 16;
  constexpr std::int64_t kMostStaged = 64 * 1024;
  const unsigned tiles = tiles_of(call), clusters = std::min(divided(tiles, kCluster), kMostClusters);
  std::int64_t stride = std::int64_t{call.cols} * (has_halves(call) ? 2 : 4);
  if (!kAligned || own * stride > kMostStaged) stride = 0;
  const auto kernel = apart_kernel<kRows, kTogether, kAligned>;
  const std::size_t bytes = static_cast<std::size_t>(own * stride);
  // As products have it, which run beside it: an SM changes the split of its memory only when it is idle.
  for (const auto& [attribute, value] :
       {std::pair{cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)},
        std::pair{cudaFuncAttributePreferredSharedMemoryCarveout, 100}})
    if (const cudaError_t error = cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), attribute, value);
        error != cudaSuccess)
      return error;
  return launch_clusters(kernel, dim3(clusters, kCluster), dim3(kThreads), bytes, stream, kCluster, call,
                         static_cast<int>(tiles), static_cast<int>(stride));
}
template <int kRows>
cudaError_t run_apart(const LowRankCall& call, cudaStream_t stream) {
  const int own = static_cast<int>(divided(channels_of(call), kCluster));
  if (!is_aligned(call)) return run_apart<kRows, 4, false>(call, own, stream);
  if (own <= 2) return run_apart<kRows, 2, true>(call, own, stream);
  return own <= 4 ? run_apart<kRows, 4, true>(call, own, stream) : run_apart<kRows, 6, true>(call, own, stream);
}

template <int kTiles, bool kHalves>
cudaError_t run_prompt_sums(const LowRankCall& call, cudaStream_t stream) {
  const dim3 grid(divided(call.x_rows, kPromptRows), divided(channels_of(call), 8 * kTiles));
  return launch(low_prompt_kernel<kTiles, kHalves>, grid, dim3(kPromptThreads), 0, stream, call);
}
template <bool kHalves>
cudaError_t run_prompt_sums(const LowRankCall& call, cudaStream_t stream) {
  const int channels = channels_of(call);
  if (channels <= 16) return run_prompt_sums<2, kHalves>(call, stream);
  return channels <= 32 ? run_prompt_sums<4, kHalves>(call, stream) : run_prompt_sums<6, kHalves>(call, stream);
}

std::size_t staged_bytes(int padded) { return sizeof(float) * static_cast<std::size_t>(kAddedRows * padded); }

cudaError_t run_gates(const LowRankCall& call, cudaStream_t stream) {
  const dim3 grid(divided(call.parts[0].rows, kColumns), divided(call.x_rows, kAddedRows));
  const std::size_t bytes =
      staged_bytes(padded_ranks(call.parts[0].rank) + padded_ranks(call.parts[1].rank) + 2 * kApartRows);
  const Gate gate = gate_of(call.activation, call.limit);
  return launch_for_activation(gate.activation, [&](auto which) {
    return launch(add_prompt_kernel<true, decltype(which)::value>, grid, dim3(kThreads), bytes, stream, call, gate);
  });
}

cudaError_t run_prompt(const LowRankCall& call, cudaStream_t stream) {
  bool pairs = true;  // columns of y come by twos
  int widest = 0;
  for (int i = 0; i < call.count; ++i) {
    const LowRankCall::Part& part = call.parts[i];
    pairs = pairs && part.rows % 2 == 0 && part.y_stride % 2 == 0 && reinterpret_cast<std::uintptr_t>(part.y) % 8 == 0;
    widest = std::max(widest, padded_ranks(part.rank));
  }
  if (!is_aligned(call)) return cudaErrorInvalidValue;
  const cudaError_t error =
      has_halves(call) ? run_prompt_sums<true>(call, stream) : run_prompt_sums<false>(call, stream);
  if (error != cudaSuccess) return error;
  if (call.gated != nullptr) return pairs ? run_gates(call, stream) : cudaErrorInvalidValue;
  if (!pairs || widest > gpu::kMostGateRanks)
    return launch(add_kernel<8>, dim3(tiles_of(call), divided(call.x_rows, 8)), dim3(kThreads), 0, stream, call);
  return launch(add_prompt_kernel<false>, dim3(tiles_of(call, kColumns), divided(call.x_rows, kAddedRows)),
                dim3(kThreads), staged_bytes(widest + kApartRows), stream, call, Gate());
}

}  // namespace

cudaError_t add_low_rank(const LowRankCall& call, cudaStream_t stream) {
  constexpr std::int32_t kFewRows = 32;
  if (call.x_rows <= 0 || call.count == 0) return cudaSuccess;
  for (int i = 0; i < call.count; ++i) {
    const DType dtype = call.parts[i].a_dtype;
    if (call.parts[i].rank <= 0 || call.parts[i].rows <= 0) return cudaErrorInvalidValue;
    if (dtype != DType::f32 && dtype != DType::f16 && dtype != DType::bf16) return cudaErrorInvalidValue;
  }
  if (call.x_bf16 != nullptr) return run_prompt(call, stream);
  if (is_apart_of_few(call))
    return call.x_rows == 1 ? run_apart<1>(call, stream) : run_apart<kMatvecRows>(call, stream);
  if (call.x_rows == 1) return run<1, 2, 1>(call, stream);
  return call.x_rows <= kFewRows ? run<4, 4, 4>(call, stream) : run<4, 16, 8>(call, stream);
}

}  // namespace millrace::kernels::cuda
