// Contract in low_rank.h: two launches, A's products and B's; or one of clusters, for what stands apart of few rows.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/launchers.h"
#include "kernels/cuda/pdl.cuh"
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

/// Elements [i, i + kChunk), which begin at a multiple of 16 bytes.
__device__ __forceinline__ void load_chunk(const std::byte* from, DType dtype, std::int64_t i, float out[kChunk]) {
  if (dtype == DType::f32) {
    const auto* const quads = reinterpret_cast<const float4*>(from) + i / 4;
    const float4 low = quads[0], high = quads[1];
    out[0] = low.x, out[1] = low.y, out[2] = low.z, out[3] = low.w;
    out[4] = high.x, out[5] = high.y, out[6] = high.z, out[7] = high.w;
    return;
  }
  const uint4 words = reinterpret_cast<const uint4*>(from)[i / kChunk];
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

/// Channels of the parts in front of part p, and of all.
__device__ __forceinline__ int channels_before(const LowRankCall& call, int p, int& all) {
  int before = 0;
  all = 0;
  for (int i = 0; i < call.count; ++i) {
    if (i < p) before += call.parts[i].rank;
    all += call.parts[i].rank;
  }
  return before;
}

/// A row of some part's A.
struct Channel {
  const std::byte* a;
  DType dtype;
  float factor;
};
__device__ __forceinline__ Channel channel_of(const LowRankCall& call, const LowRankCall::Part& part, int i) {
  const std::int64_t size = part.a_dtype == DType::f32 ? 4 : 2;
  return {part.a + i * size * call.cols, part.a_dtype, part.factor};
}

/// sums[warp][r * kRanks + j]: what each warp has of the sum over columns of row r and channel j; the caller
/// synchronizes. kAligned: rows are whole chunks, which begin at multiples of 16 bytes.
template <int kRows, int kRanks, bool kAligned>
__device__ __forceinline__ void sum_columns(const LowRankCall& call, int row0, const Channel (&channels)[kRanks],
                                            float (&sums)[kWarps][kRows * kRanks]) {
  const int chunks = (call.cols + kChunk - 1) / kChunk;
  const float* x[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) x[r] = call.x + static_cast<std::int64_t>(min(row0 + r, call.x_rows - 1)) * call.cols;
  float acc[kRows][kRanks] = {};
#pragma unroll(kRows* kRanks <= 4 ? 4 : 1)
  for (int c = static_cast<int>(threadIdx.x); c < chunks; c += kThreads) {
    const int first = c * kChunk, count = kAligned ? kChunk : min(kChunk, call.cols - first);
    float from_x[kRows][kChunk];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if constexpr (kAligned) {
        load_chunk(reinterpret_cast<const std::byte*>(x[r]), DType::f32, first, from_x[r]);
      } else {
        for (int e = 0; e < count; ++e) from_x[r][e] = x[r][first + e];
      }
    }
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
          if (kAligned || e < count) acc[r][j] = __fmaf_rn(from_a[e], from_x[r][e], acc[r][j]);
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
  int all = 0;
  const int before = channels_before(call, p, all);
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
/// Adds the products of `ranks` channels.
template <int kRows>
__device__ __forceinline__ void add_channels(const float (&b)[kRanksAtOnce], const float (&low)[kRanksAtOnce][kRows],
                                             int ranks, float (&sums)[kRows]) {
#pragma unroll
  for (int j = 0; j < kRanksAtOnce; ++j) {
    if (j >= ranks) continue;
#pragma unroll
    for (int r = 0; r < kRows; ++r) sums[r] = __fmaf_rn(b[j], low[j][r], sums[r]);
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

/// y += B low, or y = B low, of kRows rows and a column a thread.
template <int kRows>
__global__ void __launch_bounds__(kThreads) add_kernel(const LowRankCall call) {
  __shared__ float low[kRanksAtOnce][kRows];
  allow_successor();
  int tile = static_cast<int>(blockIdx.x);
  const int p = find_part(call, tile, kThreads, [](const LowRankCall::Part& part) { return part.rows; });
  const LowRankCall::Part& part = call.parts[p];
  int all = 0;
  const int before = channels_before(call, p, all);
  const int thread = static_cast<int>(threadIdx.x), row0 = static_cast<int>(blockIdx.y) * kRows;
  const int column = tile * kThreads + thread, rows = min(kRows, call.x_rows - row0);
  float sums[kRows] = {};
  float b[kRanksAtOnce];
  for (int k0 = 0; k0 < part.rank; k0 += kRanksAtOnce) {
    const int ranks = min(kRanksAtOnce, part.rank - k0);
    load_b(part, k0, column, b);
    if (k0 == 0) wait_for_predecessor();  // B is no kernel's
    __syncthreads();                      // all have read the channels before
    if (thread < kRanksAtOnce * kRows) {
      const int j = thread / kRows, r = thread % kRows;
      low[j][r] = j < ranks && r < rows ? call.low[static_cast<std::int64_t>(row0 + r) * all + before + k0 + j] : 0.0f;
    }
    __syncthreads();
    add_channels(b, low, ranks, sums);
  }
  put_column(call, part, row0, column, sums);
}

/// Asks for the bytes to come to the second cache.
__device__ __forceinline__ void prefetch(const std::byte* from, std::int64_t bytes) {
  constexpr int kLine = 128;
  for (std::int64_t at = static_cast<std::int64_t>(threadIdx.x) * kLine; at < bytes; at += kThreads * kLine)
    asm volatile("prefetch.global.L2 [%0];" ::"l"(from + at));
}

/// y = B low, of at most kRows rows. Each block of a cluster sums some of the channels of all parts, reads the others'
/// from the blocks beside it, and then has columns. What is no kernel's is asked for before the kernels before end.
template <int kRows, bool kAligned>
__global__ void __launch_bounds__(kThreads) apart_kernel(const LowRankCall call, const int tiles) {
  constexpr int kTogether = 4;
  __shared__ float sums[kWarps][kRows * kTogether];
  __shared__ float own[kMostOwn * kRows], low[kRanksAtOnce][kRows];
  allow_successor();
  const int thread = static_cast<int>(threadIdx.x), block = static_cast<int>(blockIdx.y);
  int all = 0;
  channels_before(call, 0, all);
  const int each = (all + kCluster - 1) / kCluster, first = block * each, end = min(first + each, all);
  const auto channel_at = [&](int c) {
    const int p = find_part(call, c, 1, [](const LowRankCall::Part& part) { return part.rank; });
    return channel_of(call, call.parts[p], c);
  };
  for (int c = first; c < end; ++c) {
    const Channel channel = channel_at(c);
    prefetch(channel.a, (channel.dtype == DType::f32 ? 4 : 2) * static_cast<std::int64_t>(call.cols));
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
  wait_for_predecessor();
  for (int c0 = first; c0 < end; c0 += kTogether) {
    Channel channels[kTogether];
#pragma unroll
    for (int j = 0; j < kTogether; ++j) channels[j] = channel_at(min(c0 + j, end - 1));
    sum_columns<kRows, kTogether, kAligned>(call, 0, channels, sums);
    __syncthreads();
    if (thread < kRows * kTogether) {
      const int row = thread / kTogether, c = c0 + thread % kTogether;
      if (row < call.x_rows && c < end)
        own[(c - first) * kRows + row] = __fmul_rn(whole_sum(sums, thread), channel_at(c).factor * call.scales[row]);
    }
    __syncthreads();
  }
  sync_cluster();
  for (int at = first_tile; at < tiles; at += static_cast<int>(gridDim.x) * kCluster) {
    int tile = at;
    const int p = part_of(tile);
    const LowRankCall::Part& part = call.parts[p];
    int sum = 0;
    const int before = channels_before(call, p, sum), column = tile * kThreads + thread;
    float columns[kRows] = {};
    for (int k0 = 0; k0 < part.rank; k0 += kRanksAtOnce) {
      const int ranks = min(kRanksAtOnce, part.rank - k0);
      if (at != first_tile || k0 != 0) load_b(part, k0, column, b);
      __syncthreads();  // all have read the channels before
      if (thread < ranks * kRows) {
        const int j = thread / kRows, r = thread % kRows, c = before + k0 + j;
        low[j][r] = load_in_cluster(in_cluster(own + c % each * kRows + r, c / each));
      }
      __syncthreads();
      add_channels(b, low, ranks, columns);
    }
    put_column(call, part, 0, column, columns);
  }
  sync_cluster();  // the others read this block's channels until here
}

bool is_aligned(const LowRankCall& call) {
  const auto whole = [](const void* at) { return reinterpret_cast<std::uintptr_t>(at) % 16 == 0; };
  bool aligned = call.cols % kChunk == 0 && whole(call.x);
  for (int i = 0; i < call.count; ++i) aligned = aligned && whole(call.parts[i].a);
  return aligned;
}

unsigned tiles_of(const LowRankCall& call) {
  unsigned tiles = 0;
  for (int i = 0; i < call.count; ++i) tiles += static_cast<unsigned>((call.parts[i].rows + kThreads - 1) / kThreads);
  return tiles;
}

template <int kRows, int kRanks, int kAddedRows>
cudaError_t run(const LowRankCall& call, cudaStream_t stream) {
  unsigned low_tiles = 0;
  for (int i = 0; i < call.count; ++i) low_tiles += static_cast<unsigned>((call.parts[i].rank + kRanks - 1) / kRanks);
  const auto row_tiles = [&](int rows) { return static_cast<unsigned>((call.x_rows + rows - 1) / rows); };
  const auto kernel = is_aligned(call) ? low_kernel<kRows, kRanks, true> : low_kernel<kRows, kRanks, false>;
  const cudaError_t error = launch(kernel, dim3(low_tiles, row_tiles(kRows)), dim3(kThreads), 0, stream, call);
  if (error != cudaSuccess) return error;
  return launch(add_kernel<kAddedRows>, dim3(tiles_of(call), row_tiles(kAddedRows)), dim3(kThreads), 0, stream, call);
}

/// Whether one launch of clusters does it.
bool is_apart_of_few(const LowRankCall& call) {
  int channels = 0;
  for (int i = 0; i < call.count; ++i) channels += call.parts[i].rank;
  return call.apart && call.x_rows <= kMatvecRows && channels <= kCluster * kMostOwn && overlaps_launches();
}

template <int kRows>
cudaError_t run_apart(const LowRankCall& call, cudaStream_t stream) {
  constexpr unsigned kMostClusters = 16;
  const unsigned tiles = tiles_of(call), clusters = std::min((tiles + kCluster - 1) / kCluster, kMostClusters);
  const auto kernel = is_aligned(call) ? apart_kernel<kRows, true> : apart_kernel<kRows, false>;
  return launch_clusters(kernel, dim3(clusters, kCluster), dim3(kThreads), 0, stream, kCluster, call,
                         static_cast<int>(tiles));
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
  if (is_apart_of_few(call))
    return call.x_rows == 1 ? run_apart<1>(call, stream) : run_apart<kMatvecRows>(call, stream);
  if (call.x_rows == 1) return run<1, 2, 1>(call, stream);
  return call.x_rows <= kFewRows ? run<4, 4, 4>(call, stream) : run<4, 16, 8>(call, stream);
}

}  // namespace millrace::kernels::cuda
