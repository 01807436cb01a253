// Products of many rows with float weights, by plain float32 arithmetic: tensor cores would round differently. A block
// makes a square tile of rows of x by rows of the matrix, a thread 4 by 4 of it. Sums follow the contract: a segment's
// from +0 in ascending order, segments' added in ascending order. Where the tiles are too few for all multiprocessors
// (a router's), they are smaller and slices of a block's threads share K, a segment each.
#include <cstdint>

#include "kernels/cuda/exp.cuh"
#include "kernels/cuda/float_matmul.cuh"
#include "kernels/cuda/matmul_launch.cuh"
#include "kernels/cuda/matvec_decode.cuh"
#include "kernels/cuda/pdl.cuh"
#include "kernels/cuda/quantize.cuh"

namespace millrace::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kEach = 4;  // rows of x, and of the matrix, a thread

template <int kTileRows>
struct FloatTile {
  static constexpr int kTile = kTileRows;  // rows of x, and of the matrix
  static constexpr int kSide = kTile / kEach;
  static constexpr int kSlice = kSide * kSide;       // threads
  static constexpr int kSlices = kThreads / kSlice;  // each takes segments slice, slice + kSlices, ...
  static constexpr int kDepth = 8 * kSlice / kTile;  // elements of K at a time; a thread brings 8 of a row
  static constexpr int kPitch = kTile + 4;           // of a line of shared memory, one for each k
  using Lines = float[kDepth][kPitch];
};
using LargeTile = FloatTile<64>;
using SmallTile = FloatTile<32>;

struct FloatArgs {
  const std::byte* const* weight[2];  // the second: a pair's up
  DType dtype[2];
  const std::byte* const* bias[2];
  const std::byte* const* scale[2];  // of experts: a number each
  Effect effect;
  Gate gate;
  std::int32_t rows, cols, x_rows;
  const float* x;
  std::int64_t x_stride;
  float* y;
  std::int64_t y_stride;
  Q8 y_q8;
  // Experts, if sorted is set; x_rows is the number of entries then.
  const std::int32_t* sorted;
  const std::int32_t* expert_first;
  std::int32_t experts, address_stride, bias_stride, entries_per_x;
};

/// The rows of x that a block works on: rows [first, first + count) of x, or of `sorted`.
struct Rows {
  int expert = 0, first = 0, count = 0;
};

template <int kTile>
__device__ Rows rows_of_block(const FloatArgs& a) {
  Rows rows;
  int tile = blockIdx.y;
  if (a.sorted == nullptr) {
    rows.first = tile * kTile;
    rows.count = min(kTile, a.x_rows - rows.first);
    return rows;
  }
  for (; rows.expert < a.experts; ++rows.expert) {
    const int first = a.expert_first[rows.expert], count = a.expert_first[rows.expert + 1] - first;
    const int tiles = (count + kTile - 1) / kTile;
    if (tile < tiles) {
      rows.first = first + tile * kTile;
      rows.count = min(kTile, count - tile * kTile);
      return rows;
    }
    tile -= tiles;
  }
  return rows;
}

template <DType kType>
__device__ __forceinline__ void load_weights(const std::byte* row, int k, int cols, float (&w)[8]) {
  using D = Decoder<kType>;
  const std::byte* p = row + static_cast<std::int64_t>(k) * D::kElementBytes;
  if (k + 8 <= cols && (reinterpret_cast<std::uintptr_t>(p) & 15) == 0) {
    D::eight(p, w);
    return;
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) w[i] = k + i < cols ? D::one(p + i * D::kElementBytes) : 0.0f;
}

/// Eight weights of row n from k on; 0 outside the matrix.
__device__ __forceinline__ void load_weights(const FloatArgs& a, const std::byte* matrix, DType dtype, int n, int k,
                                             float (&w)[8]) {
#pragma unroll
  for (int i = 0; i < 8; ++i) w[i] = 0;
  if (n >= a.rows || k >= a.cols) return;
  const std::byte* row = matrix + static_cast<std::int64_t>(n) * a.cols * (dtype == DType::f32 ? 4 : 2);
  if (dtype == DType::f16) return load_weights<DType::f16>(row, k, a.cols, w);
  if (dtype == DType::bf16) return load_weights<DType::bf16>(row, k, a.cols, w);
  load_weights<DType::f32>(row, k, a.cols, w);
}

/// total[i][j] = the product's row ty * 4 + i of x and row tx * 4 + j of the matrix, both within the block's tile; of
/// the first slice's threads.
template <typename T>
__device__ void product_tile(const FloatArgs& a, const std::byte* matrix, DType dtype, const float* x_row,
                             typename T::Lines* xs, typename T::Lines* ws, float (*sums)[T::kTile][T::kTile],
                             float (&total)[kEach][kEach]) {
  constexpr int kParts = T::kDepth / 8;
  const int slice = threadIdx.x / T::kSlice, tid = threadIdx.x % T::kSlice, tx = tid % T::kSide, ty = tid / T::kSide;
  const int line = tid / kParts, part = tid % kParts * 8;  // what this thread brings: row, first k
  float w[8], x[8], sum[kEach][kEach];
  const auto bring = [&](int k) {
    load_weights(a, matrix, dtype, static_cast<int>(blockIdx.x) * T::kTile + line, k + part, w);
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] = 0;
    if (x_row != nullptr && k + part < a.cols) {
      load_weights<DType::f32>(reinterpret_cast<const std::byte*>(x_row), k + part, a.cols, x);
    }
  };
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
#pragma unroll
    for (int j = 0; j < kEach; ++j) total[i][j] = 0;
  }
  bring(slice * kSegment);
  for (int first = 0; first < a.cols; first += T::kSlices * kSegment) {
    const int begin = first + slice * kSegment;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
#pragma unroll
      for (int j = 0; j < kEach; ++j) sum[i][j] = 0;
    }
    for (int k = 0; k < kSegment; k += T::kDepth) {
      __syncthreads();
#pragma unroll
      for (int i = 0; i < 8; ++i) xs[slice][part + i][line] = x[i], ws[slice][part + i][line] = w[i];
      __syncthreads();
      bring(k + T::kDepth < kSegment ? begin + k + T::kDepth : begin + T::kSlices * kSegment);
#pragma unroll
      for (int d = 0; d < T::kDepth; ++d) {
        const float4 xv = *reinterpret_cast<const float4*>(&xs[slice][d][ty * kEach]);
        const float4 wv = *reinterpret_cast<const float4*>(&ws[slice][d][tx * kEach]);
        const float xd[kEach] = {xv.x, xv.y, xv.z, xv.w}, wd[kEach] = {wv.x, wv.y, wv.z, wv.w};
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
#pragma unroll
          for (int j = 0; j < kEach; ++j) sum[i][j] = fmaf(wd[j], xd[i], sum[i][j]);
        }
      }
    }
    if constexpr (T::kSlices == 1) {
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
#pragma unroll
        for (int j = 0; j < kEach; ++j) total[i][j] += sum[i][j];
      }
    } else {
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        *reinterpret_cast<float4*>(&sums[slice][ty * kEach + i][tx * kEach]) =
            make_float4(sum[i][0], sum[i][1], sum[i][2], sum[i][3]);
      }
      __syncthreads();
      if (slice > 0) continue;  // the next round's first barrier keeps the sums until they are read
      for (int other = 0; other < T::kSlices && first + other * kSegment < a.cols; ++other) {
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
          const float4 v = *reinterpret_cast<const float4*>(&sums[other][ty * kEach + i][tx * kEach]);
          total[i][0] += v.x, total[i][1] += v.y, total[i][2] += v.z, total[i][3] += v.w;
        }
      }
    }
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads) float_matmul_kernel(const __grid_constant__ FloatArgs a) {
  constexpr int kTile = T::kTile;
  __shared__ __align__(16) typename T::Lines xs[T::kSlices], ws[T::kSlices];
  __shared__ __align__(16) float sums[T::kSlices][kTile][kTile];  // of the slices; then the result
  auto& result = sums[0];
  allow_successor();
  wait_for_predecessor();
  const Rows rows = rows_of_block<kTile>(a);
  if (rows.count <= 0) return;
  const auto y_row = [&](int i) { return a.sorted != nullptr ? a.sorted[rows.first + i] : rows.first + i; };
  const int tid = threadIdx.x % T::kSlice, line = tid / (T::kDepth / 8);
  const float* x_row = nullptr;
  if (line < rows.count) {
    const int row = a.sorted != nullptr ? y_row(line) / a.entries_per_x : y_row(line);
    x_row = a.x + row * a.x_stride;
  }
  const std::int64_t entry = static_cast<std::int64_t>(rows.expert) * a.address_stride;
  float total[kEach][kEach], gate[kEach][kEach];
  const int n0 = static_cast<int>(blockIdx.x) * kTile, tx = tid % T::kSide, ty = tid / T::kSide;
  const auto product = [&](int side, float(&out)[kEach][kEach]) {
    product_tile<T>(a, a.weight[side][entry], a.dtype[side], x_row, xs, ws, sums, out);
    if (a.scale[side] != nullptr) {
      const float scale = reinterpret_cast<const float*>(*a.scale[side])[rows.expert];
#pragma unroll
      for (int i = 0; i < kEach * kEach; ++i) out[i / kEach][i % kEach] *= scale;
    }
    if (a.bias[side] == nullptr) return;
    const float* bias =
        reinterpret_cast<const float*>(*a.bias[side]) + static_cast<std::int64_t>(rows.expert) * a.bias_stride;
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const float b = n0 + tx * kEach + j < a.rows ? bias[n0 + tx * kEach + j] : 0.0f;
#pragma unroll
      for (int i = 0; i < kEach; ++i) out[i][j] += b;
    }
  };
  if (a.effect == Effect::gated) product(0, gate);
  product(a.effect == Effect::gated ? 1 : 0, total);

  __syncthreads();  // the sums are read
  if (threadIdx.x < T::kSlice) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int m = ty * kEach + i;
#pragma unroll
      for (int j = 0; j < kEach; ++j) {
        const int n = n0 + tx * kEach + j;
        if (m >= rows.count || n >= a.rows) continue;
        float* y = a.y == nullptr ? nullptr : a.y + y_row(m) * a.y_stride + n;
        float value = total[i][j];
        if (a.effect == Effect::add) value = *y + value;
        if (a.effect == Effect::gated) value = gated(a.gate, gate[i][j], value);
        if (y != nullptr) *y = value;
        result[m][tx * kEach + j] = value;
      }
    }
  }
  if (a.y_q8.q == nullptr) return;
  __syncthreads();
  constexpr int kBlocks = kTile / 32;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (int i = warp; i < kBlocks * rows.count; i += kThreads / 32) {
    const int m = i / kBlocks, n = n0 + i % kBlocks * 32;
    if (n >= a.rows) continue;
    const std::int64_t block = (static_cast<std::int64_t>(y_row(m)) * a.rows + n) / 32;
    const float value[1] = {result[m][i % kBlocks * 32 + lane]};
    quantize_block(value, a.y_q8.q + 32 * block, a.y_q8.scale + block);
  }
}

/// experts: how many of them may leave a tile that is not full.
cudaError_t launch_float(const FloatArgs& a, int experts, cudaStream_t stream) {
  if (a.x_rows == 0 || a.rows == 0) return cudaSuccess;
  const auto row_tiles = [&](int tile) {
    return a.sorted != nullptr ? a.x_rows / tile + experts : (a.x_rows + tile - 1) / tile;
  };
  const auto grid = [&](int tile) {
    return dim3(static_cast<unsigned>((a.rows + tile - 1) / tile), static_cast<unsigned>(row_tiles(tile)));
  };
  const dim3 large = grid(LargeTile::kTile);
  if (large.x * large.y >= static_cast<unsigned>(multiprocessor_count())) {
    return launch(float_matmul_kernel<LargeTile>, large, kThreads, 0, stream, a);
  }
  return launch(float_matmul_kernel<SmallTile>, grid(SmallTile::kTile), kThreads, 0, stream, a);
}

}  // namespace

cudaError_t matmul_float(const MatmulCall& call, cudaStream_t stream) {
  const bool pair = call.effect == Effect::gated;
  for (int p = 0; p < (pair ? 1 : call.count); ++p) {
    const Product& product = call.products[p];
    FloatArgs a{};
    for (int side = 0; side < (pair ? 2 : 1); ++side) {
      const Product& of = call.products[p + side];
      a.weight[side] = of.weight.address;
      a.dtype[side] = of.weight.dtype;
      a.bias[side] = of.bias;
    }
    a.effect = call.effect;
    a.gate = gate_of(call.activation, call.limit);
    a.rows = product.weight.rows;
    a.cols = call.cols;
    a.x_rows = call.x_rows;
    a.x = call.x;
    a.x_stride = call.x_stride;
    a.y = product.y;
    a.y_stride = product.y_stride;
    if (pair) a.y_q8 = call.y_q8;
    const cudaError_t error = launch_float(a, 0, stream);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

cudaError_t matmul_experts_float(const ExpertCall& call, cudaStream_t stream) {
  FloatArgs a{};
  a.weight[0] = call.weight;
  a.weight[1] = call.up;
  a.dtype[0] = call.dtype;
  a.dtype[1] = call.up_dtype;
  a.bias[0] = call.bias;
  a.bias[1] = call.up_bias;
  a.scale[0] = call.scale;
  a.scale[1] = call.up_scale;
  a.effect = call.effect;
  a.gate = gate_of(call.activation, call.limit);
  a.rows = call.rows;
  a.cols = call.cols;
  a.x_rows = call.entries;
  a.x = call.x;
  a.x_stride = call.cols;
  a.y = call.y;
  a.y_stride = call.rows;
  a.y_q8 = call.y_q8;
  a.sorted = call.sorted;
  a.expert_first = call.expert_first;
  a.experts = call.experts;
  a.address_stride = call.address_stride;
  a.bias_stride = call.bias_stride;
  a.entries_per_x = call.entries_per_x;
  return launch_float(a, call.entries < call.experts ? call.entries : call.experts, stream);
}

}  // namespace millrace::kernels::cuda
