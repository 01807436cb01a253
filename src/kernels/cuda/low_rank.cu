// Contract in low_rank.h: two launches, A's products and B's.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "kernels/cuda/launchers.h"
#include "kernels/cuda/pdl.cuh"

namespace millrace::kernels::cuda {
namespace {

constexpr int kThreads = gpu::kLowRankSums, kWarps = kThreads / 32;
constexpr unsigned kAllLanes = 0xffffffffu;

__device__ __forceinline__ float element(const std::byte* from, DType dtype, std::int64_t i) {
  if (dtype == DType::f32) return reinterpret_cast<const float*>(from)[i];
  if (dtype == DType::f16) return __half2float(reinterpret_cast<const __half*>(from)[i]);
  return __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(from)[i]);
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

/// low = scale * factor * A x, of kRows rows and kRanks channels a block.
template <int kRows, int kRanks>
__global__ void __launch_bounds__(kThreads) low_kernel(const LowRankCall call) {
  __shared__ float sums[kWarps][kRows * kRanks];
  allow_successor();
  int tile = static_cast<int>(blockIdx.x);
  const int p = find_part(call, tile, kRanks, [](const LowRankCall::Part& part) { return part.rank; });
  const LowRankCall::Part& part = call.parts[p];
  int before = 0, all = 0;  // channels of the parts in front, and of all
  for (int i = 0; i < call.count; ++i) {
    if (i < p) before += call.parts[i].rank;
    all += call.parts[i].rank;
  }
  const int rank0 = tile * kRanks, row0 = static_cast<int>(blockIdx.y) * kRows;
  wait_for_predecessor();
  const float* x[kRows];
  bool any = false;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int row = min(row0 + r, call.x_rows - 1);
    x[r] = call.x + static_cast<std::int64_t>(row) * call.cols;
    any = any || call.scales[row] != 0;
  }
  if (!any) return;
  float acc[kRows][kRanks] = {};
  for (int k = static_cast<int>(threadIdx.x); k < call.cols; k += kThreads) {
    float a[kRanks];
#pragma unroll
    for (int j = 0; j < kRanks; ++j)
      a[j] = element(part.a, part.a_dtype, static_cast<std::int64_t>(min(rank0 + j, part.rank - 1)) * call.cols + k);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float value = x[r][k];
#pragma unroll
      for (int j = 0; j < kRanks; ++j) acc[r][j] = __fmaf_rn(a[j], value, acc[r][j]);
    }
  }
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
#pragma unroll
  for (int i = 0; i < kRows * kRanks; ++i) {
    float sum = acc[i / kRanks][i % kRanks];
#pragma unroll
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
    if (lane == 0) sums[warp][i] = sum;
  }
  __syncthreads();
  const int i = static_cast<int>(threadIdx.x);
  if (i >= kRows * kRanks) return;
  const int row = row0 + i / kRanks, channel = rank0 + i % kRanks;
  if (row >= call.x_rows || channel >= part.rank) return;
  float sum = sums[0][i];
  for (int w = 1; w < kWarps; ++w) sum += sums[w][i];
  call.low[static_cast<std::int64_t>(row) * all + before + channel] = __fmul_rn(sum, part.factor * call.scales[row]);
}

/// y += B low, of kRows rows and a column a thread.
template <int kRows>
__global__ void __launch_bounds__(kThreads) add_kernel(const LowRankCall call) {
  allow_successor();
  int tile = static_cast<int>(blockIdx.x);
  const int p = find_part(call, tile, kThreads, [](const LowRankCall::Part& part) { return part.rows; });
  const LowRankCall::Part& part = call.parts[p];
  int before = 0, all = 0;
  for (int i = 0; i < call.count; ++i) {
    if (i < p) before += call.parts[i].rank;
    all += call.parts[i].rank;
  }
  const int column = tile * kThreads + static_cast<int>(threadIdx.x), row0 = static_cast<int>(blockIdx.y) * kRows;
  wait_for_predecessor();
  if (column >= part.rows) return;
  float sums[kRows] = {};
  const float* const low = call.low + static_cast<std::int64_t>(row0) * all + before;
  const int rows = min(kRows, call.x_rows - row0);
  for (int k = 0; k < part.rank; ++k) {
    const float b = part.b[k * part.b_stride + column];
#pragma unroll
    for (int r = 0; r < kRows; ++r)
      if (r < rows) sums[r] = __fmaf_rn(b, low[static_cast<std::int64_t>(r) * all + k], sums[r]);
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (r >= rows || call.scales[row0 + r] == 0) continue;
    float& y = part.y[static_cast<std::int64_t>(row0 + r) * part.y_stride + column];
    y = y + sums[r];
  }
}

template <int kRows, int kRanks>
cudaError_t run(const LowRankCall& call, cudaStream_t stream) {
  unsigned low_tiles = 0, add_tiles = 0;
  for (int i = 0; i < call.count; ++i) {
    low_tiles += static_cast<unsigned>((call.parts[i].rank + kRanks - 1) / kRanks);
    add_tiles += static_cast<unsigned>((call.parts[i].rows + kThreads - 1) / kThreads);
  }
  const auto row_tiles = static_cast<unsigned>((call.x_rows + kRows - 1) / kRows);
  const cudaError_t error =
      launch(low_kernel<kRows, kRanks>, dim3(low_tiles, row_tiles), dim3(kThreads), 0, stream, call);
  if (error != cudaSuccess) return error;
  return launch(add_kernel<kRows>, dim3(add_tiles, row_tiles), dim3(kThreads), 0, stream, call);
}

}  // namespace

cudaError_t add_low_rank(const LowRankCall& call, cudaStream_t stream) {
  constexpr std::int32_t kFewRows = 4;
  if (call.x_rows <= 0 || call.count == 0) return cudaSuccess;
  for (int i = 0; i < call.count; ++i) {
    const DType dtype = call.parts[i].a_dtype;
    if (call.parts[i].rank <= 0 || call.parts[i].rows <= 0) return cudaErrorInvalidValue;
    if (dtype != DType::f32 && dtype != DType::f16 && dtype != DType::bf16) return cudaErrorInvalidValue;
  }
  if (call.x_rows == 1) return run<1, 4>(call, stream);
  return call.x_rows <= kFewRows ? run<4, 4>(call, stream) : run<8, 16>(call, stream);
}

}  // namespace millrace::kernels::cuda
