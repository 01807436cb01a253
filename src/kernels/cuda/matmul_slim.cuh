// The kernel for few rows of x (5 to some dozens), bound by device memory. A block computes 32 weight rows (of the gate
// and of up in swiglu) by kWidth columns. Its warps share K, a segment each at a time, so that many bytes are in flight
// however few the rows are: a warp copies its segment's raw weights and activations into memory of its own, decodes
// weights straight into fragments, and adds its accumulators to the block's totals when its segment's turn has come.
// Warps meet only there: a turn counter in shared memory keeps the order that the contract names.
#pragma once

#include "kernels/cuda/matmul_args.cuh"
#include "kernels/cuda/pdl.cuh"
#include "kernels/cuda/quads.cuh"

namespace millrace::kernels::cuda {

template <DType kDType, int kColumnCount>
struct Slim {
  using Q = Quads<kDType>;
  static constexpr int kWidth = kColumnCount, kCols = kWidth / 8, kRows = 32;
  static constexpr int kParts = Q::kHalves ? 2 : 1;
  static constexpr int kPitch = 128 + 16;  // bytes between columns of half a segment
  static constexpr int kChunks = (Q::kBytes + (Q::kAlign < 16 ? 16 - Q::kAlign : 0) + 15) / 16;
  static constexpr int kRawPitch = 16 * (kChunks + (kChunks % 2 == 0));  // an odd number of chunks
  static constexpr int kColumnPitch = kWidth + 8;

  // A warp's memory, in this order.
  static constexpr int kRaw = 0;                                               // [2][32][raw pitch]
  static constexpr int kInputs = kRaw + 2 * kRows * kRawPitch + 16;            // [2][columns][pitch]
  static constexpr int kDx = kInputs + 2 * kWidth * kPitch;                    // float [2][4][column pitch]
  static constexpr int kDs = kDx + 2 * 4 * kColumnPitch * 4;                   // likewise
  static constexpr int kWs = kDs + (Q::kMins ? 2 * 4 * kColumnPitch * 4 : 0);  // float [groups][32]
  static constexpr int kMin = kWs + 8 * kParts * kRows * 4;                    // likewise
  static constexpr int kWarpBytes = kMin + (Q::kMins ? 8 * kParts * kRows * 4 : 0);
  // The block's, after the warps'.
  static constexpr int kTotalBytes = 2 * kRows * kWidth * 4;          // float4 [gate, up][2][cols][32 lanes]
  static constexpr int kBlockBytes = kTotalBytes + kWidth * 12 + 16;  // Column [columns], int [columns], turn
  static constexpr int kMaxBytes = 227 * 1024;
  static constexpr int kFit = (kMaxBytes - kBlockBytes) / kWarpBytes;
  static constexpr int kWarps = kFit < 8 ? kFit : 8;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kBytes = kWarps * kWarpBytes + kBlockBytes;
};

template <typename S>
struct SlimWarp {
  using Q = typename S::Q;
  std::uint8_t* memory;  // the warp's
  const TileArgs& args;
  const int* sources;
  unsigned row_bytes;
  int first_row, last_row;  // of the tile, and of the matrix
  const std::byte* weights[2];

  __device__ unsigned row_at(int row) const { return static_cast<unsigned>(min(first_row + row, last_row)); }

  __device__ void copy_raw(int slot, int matrix, int j) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const auto base = reinterpret_cast<std::uintptr_t>(weights[matrix]) + static_cast<unsigned>(j) * Q::kBytes;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = lane / 2 + 16 * half;
      const auto from = (base + std::uint64_t{row_at(row)} * row_bytes) & ~std::uintptr_t{15};
      const auto* chunks = reinterpret_cast<const uint4*>(from);
      auto* to = reinterpret_cast<uint4*>(memory + S::kRaw + (slot * S::kRows + place_of(row)) * S::kRawPitch);
#pragma unroll
      for (int c = 0; c < (S::kChunks + 1) / 2; ++c) {
        const int chunk = 2 * c + lane % 2;
        if (S::kChunks % 2 == 0 || chunk < S::kChunks) copy_16(to + chunk, chunks + chunk);
      }
    }
  }
  /// Rows whose fragments are read together lie side by side.
  __device__ static int place_of(int row) { return row % 4 * 8 + row / 4; }

  __device__ const std::uint8_t* segment_of(int slot, int row, int j) const {
    const std::uint8_t* at = memory + S::kRaw + (slot * S::kRows + place_of(row)) * S::kRawPitch;
    if constexpr (Q::kAlign < 16) at += (row_at(row) * row_bytes + static_cast<unsigned>(j) * Q::kBytes) & 15;
    return at;
  }

  /// Half h of a segment: elements from 128 * h on, h counted over the row.
  __device__ void copy_inputs(int slot, int h) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    std::uint8_t* to = memory + S::kInputs + slot * S::kWidth * S::kPitch;
    auto* dx = reinterpret_cast<float*>(memory + S::kDx) + slot * 4 * S::kColumnPitch;
    auto* ds = reinterpret_cast<float*>(memory + S::kDs) + slot * 4 * S::kColumnPitch;
#pragma unroll
    for (int i = 0; i < S::kWidth / 4; ++i) {
      const int place = lane / 8 + 4 * i, k = 128 * h + 16 * (lane % 8), source = sources[place];
      const bool valid = source >= 0 && k < args.cols;
      copy_16(to + place * S::kPitch + 16 * (lane % 8),
              valid ? args.x.q + std::int64_t{source} * args.cols + k : args.x.q, valid);
    }
#pragma unroll
    for (int i = 0; i < S::kWidth / 8; ++i) {
      const int place = lane / 4 + 8 * i, k = 128 * h + 32 * (lane % 4), source = sources[place];
      const bool valid = source >= 0 && k < args.cols;
      const Q8Scale* from = valid ? args.x.scale + (std::int64_t{source} * args.cols + k) / 32 : args.x.scale;
      // Fragment column 8n + 2t + b is the lane's column 2n + b.
      const int column = place % 8 / 2 * (2 * S::kCols) + place / 8 * 2 + place % 2;
      copy_4(dx + lane % 4 * S::kColumnPitch + column, &from->d, valid);
      if constexpr (Q::kMins) {
        const void* sum = Q::kHalves ? static_cast<const void*>(&from->s16[0]) : &from->ds;
        copy_4(ds + lane % 4 * S::kColumnPitch + column, sum, valid);
      }
    }
  }

  /// The scales of segment j, each lane those of a row.
  __device__ void decode_scales(int slot, int j) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    auto* ws = reinterpret_cast<float*>(memory + S::kWs) + lane;
    auto* minus_wm = reinterpret_cast<float*>(memory + S::kMin) + lane;
    const std::uint8_t* segment = segment_of(slot, lane, j);
#pragma unroll
    for (int s = 0; s < 8 * S::kParts; ++s) {
      const bool exists = j * kSegment + s * (32 / S::kParts) < args.cols;
      ws[s * S::kRows] = exists ? Q::scale(segment, s) : 0.0f;
      if constexpr (Q::kMins) minus_wm[s * S::kRows] = exists ? Q::minus_min(segment, s) : 0.0f;
    }
  }

  template <bool first>
  __device__ void multiply(int slot, int half, const std::uint8_t* const (&segments)[4],
                           float (&acc)[2][S::kCols][4]) const {
    const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
    const std::uint8_t* b_from =
        memory + S::kInputs + half * S::kWidth * S::kPitch + (lane % 8 + lane / 16 * 8) * S::kPitch + lane / 8 % 2 * 16;
    const int column = half * 4 * S::kColumnPitch + t * 2 * S::kCols;
    const auto* dx_from = reinterpret_cast<const float*>(memory + S::kDx) + column;
    const auto* ds_from = reinterpret_cast<const float*>(memory + S::kDs) + column;
    const auto* ws_from = reinterpret_cast<const float*>(memory + S::kWs) + half * 4 * S::kParts * S::kRows + 4 * g;
    const auto* min_from = reinterpret_cast<const float*>(memory + S::kMin) + half * 4 * S::kParts * S::kRows + 4 * g;
#pragma unroll
    for (int b = 0; b < 4; ++b) {
      Inputs<Q, S::kCols> in;
      in.load(b_from + 32 * b, S::kPitch, dx_from + b * S::kColumnPitch, ds_from + b * S::kColumnPitch);
      RowScales<Q> rows;
      rows.load(ws_from + b * S::kParts * S::kRows, min_from + b * S::kParts * S::kRows, S::kRows);
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        std::uint32_t w[4];
        Q::pair(segments[2 * m], 4 * half + b, t, w[0], w[2]);
        Q::pair(segments[2 * m + 1], 4 * half + b, t, w[1], w[3]);
        if (first && b == 0) {
          add_block<Q, S::kCols, true>(acc[m], w, m, rows, in);
        } else {
          add_block<Q, S::kCols, false>(acc[m], w, m, rows, in);
        }
      }
    }
  }
};

template <typename S>
__global__ void __launch_bounds__(S::kThreads, 1) slim_kernel(const __grid_constant__ TileArgs args) {
  using Q = typename S::Q;
  extern __shared__ uint4 shared_memory[];
  auto* shared = reinterpret_cast<std::uint8_t*>(shared_memory);
  auto* totals = reinterpret_cast<float4*>(shared + S::kWarps * S::kWarpBytes);
  auto* columns = reinterpret_cast<Column*>(shared + S::kWarps * S::kWarpBytes + S::kTotalBytes);
  auto* sources = reinterpret_cast<int*>(columns + S::kWidth);
  auto* turn = sources + S::kWidth;
  const int tid = static_cast<int>(threadIdx.x), lane = tid % 32, warp = tid / 32;
  const bool experts = args.sorted != nullptr;
  wait_for_predecessor();
  allow_successor();

  int row_tile = static_cast<int>(experts ? blockIdx.x : blockIdx.y), product_index = 0;
  while (row_tile >= args.products[product_index].tiles_end) ++product_index;
  const TileProduct& product = args.products[product_index];
  if (product_index > 0) row_tile -= args.products[product_index - 1].tiles_end;
  int3 tile = make_int3(0, static_cast<int>(blockIdx.x) * S::kWidth, 0);  // expert, first column, columns
  if (experts) {
    tile = expert_tile<S::kWidth>(args, static_cast<int>(blockIdx.y));
    if (tile.z == 0) return;
  } else {
    tile.z = min(args.x_rows - tile.y, S::kWidth);
  }
  for (int place = tid; place < S::kWidth; place += S::kThreads) {
    const Column column = column_at(args, tile.y, place, tile.z);
    sources[place] = column.source;
    columns[place % 8 / 2 * (2 * S::kCols) + place / 8 * 2 + place % 2] = column;
  }
  if (tid == 0) *turn = 0;
  __syncthreads();

  const bool pairs = product.up != nullptr;
  const int segments = (args.cols + kSegment - 1) / kSegment, turns = pairs ? 2 * segments : segments;
  SlimWarp<S> work{shared + warp * S::kWarpBytes, args, sources};
  work.row_bytes = static_cast<unsigned>(args.cols / Q::kUnit) * (Q::kUnit * Q::kBytes / kSegment);
  work.first_row = row_tile * S::kRows;
  work.last_row = product.rows - 1;
  work.weights[0] = product.weight[tile.x * args.address_stride];
  work.weights[1] = pairs ? product.up[tile.x * args.address_stride] : nullptr;

  // The warp's turns are warp, warp + kWarps, ...: segments of the gate (or only matrix), then those of up.
  const auto copy_turn = [&](int v, int slot) {
    if (v < turns) work.copy_raw(slot, v / segments, v % segments);
  };
  const auto copy_half = [&](int v, int half) {
    if (v < turns) work.copy_inputs(half, v % segments * 2 + half);
    copies_commit();
  };
  copy_turn(warp, 0);
  copy_half(warp, 0);
  copy_turn(warp + S::kWarps, 1);
  copy_half(warp, 1);
  int slot = 0;
  for (int v = warp; v < turns; v += S::kWarps, slot ^= 1) {
    const int j = v % segments;
    copies_wait<1>();
    __syncwarp();
    work.decode_scales(slot, j);
    __syncwarp();
    const int g = lane / 4;
    const std::uint8_t* const rows[4] = {work.segment_of(slot, 4 * g, j), work.segment_of(slot, 4 * g + 1, j),
                                         work.segment_of(slot, 4 * g + 2, j), work.segment_of(slot, 4 * g + 3, j)};
    float acc[2][S::kCols][4];
    work.template multiply<true>(slot, 0, rows, acc);
    __syncwarp();
    copy_half(v + S::kWarps, 0);
    copies_wait<1>();
    __syncwarp();
    work.template multiply<false>(slot, 1, rows, acc);
    __syncwarp();
    copy_turn(v + 2 * S::kWarps, slot);
    copy_half(v + S::kWarps, 1);

    while (*static_cast<volatile int*>(turn) != v) {
    }
    __threadfence_block();
    float4* total = totals + v / segments * (S::kRows * S::kWidth / 4) + lane;
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int n = 0; n < S::kCols; ++n) {
        float4& sum = total[(m * S::kCols + n) * 32];
        const float4 old = j == 0 ? make_float4(0, 0, 0, 0) : sum;
        sum = make_float4(old.x + acc[m][n][0], old.y + acc[m][n][1], old.z + acc[m][n][2], old.w + acc[m][n][3]);
      }
    }
    __threadfence_block();
    __syncwarp();
    if (lane == 0) *static_cast<volatile int*>(turn) = v + 1;
  }
  copies_wait<0>();
  __syncthreads();
  for (int n = warp; n < S::kCols; n += S::kWarps) {
    float sums[2][2][1][4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float4 sum = totals[i / 2 * (S::kRows * S::kWidth / 4) + (i % 2 * S::kCols + n) * 32 + lane];
      float(&to)[4] = sums[i / 2][i % 2][0];
      to[0] = sum.x, to[1] = sum.y, to[2] = sum.z, to[3] = sum.w;
    }
    if (pairs) {
      finish_rows<1>(args, product, work.first_row, columns + 2 * n, 2 * S::kCols, sums[0], sums[1]);
    } else {
      finish_rows<1>(args, product, work.first_row, columns + 2 * n, 2 * S::kCols, sums[0], nullptr);
    }
  }
}

/// max_tiles: of columns.
template <typename S>
cudaError_t launch_slim(TileArgs args, int max_tiles, cudaStream_t stream) {
  int row_tiles = 0;
  for (TileProduct& product : args.products) {
    row_tiles += (product.rows + S::kRows - 1) / S::kRows;
    product.tiles_end = row_tiles;
  }
  const auto tiles = static_cast<unsigned>(max_tiles), rows = static_cast<unsigned>(row_tiles);
  const dim3 grid = args.sorted == nullptr ? dim3(tiles, rows) : dim3(rows, tiles);
  return launch_large(slim_kernel<S>, grid, dim3(S::kThreads), S::kBytes, stream, args);
}

}  // namespace millrace::kernels::cuda
