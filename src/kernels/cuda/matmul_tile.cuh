// The kernel for many rows of x. A block computes kRows weight rows by kWidth columns (rows of x) in steps of 128
// elements of K: raw weights (a segment at a time) and activations come by cp.async; the block's threads decode the
// next step's weights to int8 in shared memory, once for all its columns, while its warps multiply this step's.
// Bound by issue slots: a term (I to float, ws * dx, fma, and fma for mins) is three or four instructions an output,
// and the tensor core needs one instruction for 4 outputs a lane.
#pragma once

#include "kernels/cuda/matmul_args.cuh"
#include "kernels/cuda/pdl.cuh"
#include "kernels/cuda/quads.cuh"

namespace millrace::kernels::cuda {

template <DType kDType, int kRowCount, int kColumnCount, int kRowWarps, int kColumnWarps>
struct Tile {
  using Q = Quads<kDType>;
  static constexpr int kRows = kRowCount, kWidth = kColumnCount;
  static constexpr int kThreads = 32 * kRowWarps * kColumnWarps;
  static constexpr int kSubs = kRows / kRowWarps / 32;     // of 32 rows, a warp
  static constexpr int kCols = kWidth / kColumnWarps / 8;  // of 8 columns, a warp
  static_assert(kSubs == 2, "swiglu pairs a warp's two sets of rows");

  static constexpr int kItems = kRows * 4 / kThreads;             // blocks that a thread decodes in a step
  static constexpr int kStep = 128;                               // elements
  static constexpr int kGroups = kStep / (Q::kHalves ? 16 : 32);  // scale groups of a step
  static constexpr int kStages = 3;                               // of activations
  static constexpr int kPitch = kStep + 16;                       // bytes between rows of int8: no bank conflicts
  static constexpr int kEight = 8 * kPitch + 16;                  // ... between sets of eight weight rows
  static constexpr int kChunks = (Q::kBytes + (Q::kAlign < 16 ? 16 - Q::kAlign : 0) + 15) / 16;
  static constexpr int kRawPitch = 16 * (kChunks + (kChunks % 2 == 0));  // an odd number of chunks
  static constexpr int kRowPitch = kRows + 8, kColumnPitch = kWidth + 8;

  // Everything lies in one allocation, in this order.
  static constexpr int kRaw = 0;                                                   // [2][rows][raw pitch]
  static constexpr int kWeights = kRaw + 2 * kRows * kRawPitch + 16;               // int8 [2][rows / 8][kEight]
  static constexpr int kInputs = kWeights + 2 * (kRows / 8) * kEight;              // int8 [stages][columns][pitch]
  static constexpr int kWs = kInputs + kStages * kWidth * kPitch;                  // float [2][groups][row pitch]
  static constexpr int kMin = kWs + 2 * kGroups * kRowPitch * 4;                   // float, likewise
  static constexpr int kDx = kMin + (Q::kMins ? 2 * kGroups * kRowPitch * 4 : 0);  // float [stages][4][column pitch]
  static constexpr int kDs = kDx + kStages * 4 * kColumnPitch * 4;                 // float or two int16, likewise
  static constexpr int kColumns = kDs + (Q::kMins ? kStages * 4 * kColumnPitch * 4 : 0);  // Column [columns]
  static constexpr int kSources = kColumns + kWidth * 8;                                  // int [columns], by place
  static constexpr int kBytes = kSources + kWidth * 4;
};

template <typename T>
struct TileBlock {
  using Q = typename T::Q;
  std::uint8_t* shared;
  const TileArgs& args;
  const std::byte* raw_from;  // the weight row whose raw bytes the thread copies
  int misaligned[T::kItems];  // the rows that it decodes: their first byte's place in 16

  __device__ std::uint8_t* raw_at(int buffer, int row) const {
    return shared + T::kRaw + (buffer * T::kRows + row) * T::kRawPitch;
  }

  /// Starts the copy of segment j of all rows.
  __device__ void copy_raw(int j) const {
    constexpr int kShare = T::kThreads / T::kRows;  // threads a row
    const int row = static_cast<int>(threadIdx.x) / kShare, part = static_cast<int>(threadIdx.x) % kShare;
    const auto from = reinterpret_cast<std::uintptr_t>(raw_from) + static_cast<unsigned>(j) * Q::kBytes;
    const auto* chunks = reinterpret_cast<const uint4*>(from & ~std::uintptr_t{15});
    auto* to = reinterpret_cast<uint4*>(raw_at(j % 2, row));
#pragma unroll
    for (int c = 0; c < (T::kChunks + kShare - 1) / kShare; ++c) {
      const int chunk = c * kShare + part;
      if (T::kChunks % kShare == 0 || chunk < T::kChunks) copy_16(to + chunk, chunks + chunk);
    }
  }

  /// Starts the copy of step s of the activations.
  __device__ void copy_inputs(int s) const {
    const int* sources = reinterpret_cast<const int*>(shared + T::kSources);
    const auto* columns = reinterpret_cast<const Column*>(shared + T::kColumns);
    const int buffer = s % T::kStages, tid = static_cast<int>(threadIdx.x);
    std::uint8_t* to = shared + T::kInputs + buffer * T::kWidth * T::kPitch;
#pragma unroll
    for (int i = 0; i < T::kWidth * 8 / T::kThreads; ++i) {
      const int item = tid + i * T::kThreads, place = item / 8, chunk = item % 8, k = s * T::kStep + 16 * chunk;
      const int source = sources[place];
      const bool valid = source >= 0 && k < args.cols;
      const std::int8_t* from = valid ? args.x.q + std::int64_t{source} * args.cols + k : args.x.q;
      copy_16(to + place * T::kPitch + 16 * chunk, from, valid);
    }
    auto* dx = reinterpret_cast<float*>(shared + T::kDx) + buffer * 4 * T::kColumnPitch;
    auto* ds = reinterpret_cast<float*>(shared + T::kDs) + buffer * 4 * T::kColumnPitch;
#pragma unroll
    for (int i = 0; i < (T::kWidth * 4 + T::kThreads - 1) / T::kThreads; ++i) {
      const int item = tid + i * T::kThreads, column = item / 4, block = item % 4;
      const int source = columns[column].source, k = s * T::kStep + 32 * block;
      const bool valid = source >= 0 && k < args.cols;
      const Q8Scale* from = valid ? args.x.scale + (std::int64_t{source} * args.cols + k) / 32 : args.x.scale;
      copy_4(dx + block * T::kColumnPitch + column, &from->d, valid);
      if constexpr (Q::kMins) {
        const void* sum = Q::kHalves ? static_cast<const void*>(&from->s16[0]) : &from->ds;
        copy_4(ds + block * T::kColumnPitch + column, sum, valid);
      }
    }
  }

  /// Decodes step s of the weights, whose segment has come.
  __device__ void decode(int s) const {
    const int j = s / 2, buffer = s % 2;
#pragma unroll
    for (int i = 0; i < T::kItems; ++i) {
      const int item = static_cast<int>(threadIdx.x) + i * T::kThreads, row = item / 4, b = item % 4;
      const int block = s % 2 * 4 + b;  // of the segment
      const std::uint8_t* segment = raw_at(j % 2, row);
      if constexpr (Q::kAlign < 16) segment += (misaligned[i] + j * Q::kBytes) & 15;
      std::uint32_t w[8];
#pragma unroll
      for (int t = 0; t < 4; ++t) Q::pair(segment, block, t, w[t], w[t + 4]);
      const int set = row / 32 * 4 + row % 4;  // of eight rows: fragment row (c / 2) * 16 + (c % 2) * 8 + g
      auto* to = reinterpret_cast<uint4*>(shared + T::kWeights + (buffer * (T::kRows / 8) + set) * T::kEight +
                                          row % 32 / 4 * T::kPitch + 32 * b);
      to[0] = make_uint4(w[0], w[1], w[2], w[3]);
      to[1] = make_uint4(w[4], w[5], w[6], w[7]);

      const bool exists = (s * 4 + b) * 32 < args.cols;
      auto* ws = reinterpret_cast<float*>(shared + T::kWs) + buffer * T::kGroups * T::kRowPitch + row;
      auto* minus_wm = reinterpret_cast<float*>(shared + T::kMin) + buffer * T::kGroups * T::kRowPitch + row;
      constexpr int kParts = Q::kHalves ? 2 : 1;
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        ws[(kParts * b + part) * T::kRowPitch] = exists ? Q::scale(segment, kParts * block + part) : 0.0f;
        if constexpr (Q::kMins) {
          minus_wm[(kParts * b + part) * T::kRowPitch] = exists ? Q::minus_min(segment, kParts * block + part) : 0.0f;
        }
      }
    }
  }

  /// Adds the four blocks of step s to the warp's accumulators; `first`: of a segment.
  template <bool first>
  __device__ void multiply(int s, int warp_row, int warp_column, float (&acc)[T::kSubs][2][T::kCols][4]) const {
    const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
    const std::uint8_t* a_from = shared + T::kWeights +
                                 (s % 2 * (T::kRows / 8) + warp_row / 8 + lane / 8 % 2) * T::kEight +
                                 lane % 8 * T::kPitch + lane / 16 * 16;
    const std::uint8_t* b_from = shared + T::kInputs + (s % T::kStages * T::kWidth + warp_column) * T::kPitch +
                                 (lane % 8 + lane / 16 * 8) * T::kPitch + lane / 8 % 2 * 16;
    const auto* ws_from =
        reinterpret_cast<const float*>(shared + T::kWs) + s % 2 * T::kGroups * T::kRowPitch + warp_row + 4 * g;
    const auto* min_from =
        reinterpret_cast<const float*>(shared + T::kMin) + s % 2 * T::kGroups * T::kRowPitch + warp_row + 4 * g;
    const int column = s % T::kStages * 4 * T::kColumnPitch + warp_column + t * 2 * T::kCols;
    const auto* dx_from = reinterpret_cast<const float*>(shared + T::kDx) + column;
    const auto* ds_from = reinterpret_cast<const float*>(shared + T::kDs) + column;
    constexpr int kParts = Q::kHalves ? 2 : 1;
#pragma unroll
    for (int b = 0; b < 4; ++b) {
      Inputs<Q, T::kCols> in;
      in.load(b_from + 32 * b, T::kPitch, dx_from + b * T::kColumnPitch, ds_from + b * T::kColumnPitch);
#pragma unroll
      for (int u = 0; u < T::kSubs; ++u) {
        RowScales<Q> rows;
        rows.load(ws_from + kParts * b * T::kRowPitch + 32 * u, min_from + kParts * b * T::kRowPitch + 32 * u,
                  T::kRowPitch);
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          std::uint32_t w[4];
          load_matrices(w, a_from + (4 * u + 2 * m) * T::kEight + 32 * b);
          if (first && b == 0) {
            add_block<Q, T::kCols, true>(acc[u][m], w, m, rows, in);
          } else {
            add_block<Q, T::kCols, false>(acc[u][m], w, m, rows, in);
          }
        }
      }
    }
  }
};

template <typename T, int kBlocks>
__global__ void __launch_bounds__(T::kThreads, kBlocks) tile_kernel(const __grid_constant__ TileArgs args) {
  using Q = typename T::Q;
  extern __shared__ uint4 shared_memory[];
  auto* shared = reinterpret_cast<std::uint8_t*>(shared_memory);
  const int tid = static_cast<int>(threadIdx.x);
  const bool experts = args.sorted != nullptr;
  wait_for_predecessor();
  allow_successor();

  int row_tile = static_cast<int>(experts ? blockIdx.x : blockIdx.y), product_index = 0;
  while (row_tile >= args.products[product_index].tiles_end) ++product_index;
  const TileProduct& product = args.products[product_index];
  if (product_index > 0) row_tile -= args.products[product_index - 1].tiles_end;

  int3 tile = make_int3(0, static_cast<int>(blockIdx.x) * T::kWidth, 0);  // expert, first column, columns
  if (experts) {
    tile = expert_tile<T::kWidth>(args, static_cast<int>(blockIdx.y));
    if (tile.z == 0) return;
  } else {
    tile.z = min(args.x_rows - tile.y, T::kWidth);
  }
  auto* columns = reinterpret_cast<Column*>(shared + T::kColumns);
  auto* sources = reinterpret_cast<int*>(shared + T::kSources);
  for (int i = tid; i < T::kWidth; i += T::kThreads) {
    const Column column = column_at(args, tile.y, i, tile.z);
    columns[i] = column;
    constexpr int kLane = 2 * T::kCols, kWarp = 8 * T::kCols;  // columns a lane, a warp
    const int in_warp = i % kWarp, t = in_warp / kLane, n = in_warp % kLane / 2;
    sources[i / kWarp * kWarp + 8 * n + 2 * t + i % 2] = column.source;
  }

  const bool pairs = product.up != nullptr;  // then rows of 64 are 32 of the gate and 32 of up
  const int first_row = row_tile * (pairs ? T::kRows / 2 : T::kRows);
  const unsigned row_bytes = static_cast<unsigned>(args.cols / Q::kUnit) * (Q::kUnit * Q::kBytes / kSegment);
  const auto row_in_matrix = [&](int row) {  // of a row of the tile; the last one for those beyond
    return static_cast<unsigned>(min(first_row + (pairs ? row / 64 * 32 + row % 32 : row), product.rows - 1));
  };
  TileBlock<T> block{shared, args};
  const int copied_row = tid / (T::kThreads / T::kRows);
  const std::byte* const* entry = pairs && copied_row / 32 % 2 == 1 ? product.up : product.weight;
  block.raw_from = entry[tile.x * args.address_stride] + std::uint64_t{row_in_matrix(copied_row)} * row_bytes;
#pragma unroll
  for (int i = 0; i < T::kItems; ++i) {  // matrices start at multiples of 256 bytes
    block.misaligned[i] = static_cast<int>(row_in_matrix((tid + i * T::kThreads) / 4) * row_bytes & 15);
  }
  __syncthreads();

  const int segments = (args.cols + kSegment - 1) / kSegment, steps = 2 * segments;
  block.copy_inputs(0);
  block.copy_raw(0);
  copies_commit();
  block.copy_inputs(1);
  if (segments > 1) block.copy_raw(1);
  copies_commit();
  copies_wait<1>();
  __syncthreads();
  block.decode(0);

  const int warp = tid / 32;
  const int warp_row = warp % (T::kRows / (32 * T::kSubs)) * (32 * T::kSubs);
  const int warp_column = warp / (T::kRows / (32 * T::kSubs)) * (8 * T::kCols);
  const bool idle = warp_column >= tile.z;  // a warp of columns that do not exist
  float total[T::kSubs][2][T::kCols][4] = {}, acc[T::kSubs][2][T::kCols][4];
  for (int j = 0; j < segments; ++j) {
    const int s = 2 * j;
    copies_wait<1>();
    __syncthreads();
    block.copy_inputs(s + 2);
    copies_commit();
    block.decode(s + 1);
    if (!idle) block.template multiply<true>(s, warp_row, warp_column, acc);

    copies_wait<1>();
    __syncthreads();
    block.copy_inputs(s + 3);
    if (j + 2 < segments) block.copy_raw(j + 2);
    copies_commit();
    if (s + 2 < steps) block.decode(s + 2);
    if (!idle) {
      block.template multiply<false>(s + 1, warp_row, warp_column, acc);
#pragma unroll
      for (int u = 0; u < T::kSubs; ++u)
#pragma unroll
        for (int m = 0; m < 2; ++m)
#pragma unroll
          for (int n = 0; n < T::kCols; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) total[u][m][n][i] += acc[u][m][n][i];
    }
  }
  copies_wait<0>();
  if (idle) return;
  if (pairs) {
    finish_rows<T::kCols>(args, product, first_row + warp_row / 2, columns + warp_column, 2 * T::kCols, total[0],
                          total[1]);
  } else {
#pragma unroll
    for (int u = 0; u < T::kSubs; ++u) {
      finish_rows<T::kCols>(args, product, first_row + warp_row + 32 * u, columns + warp_column, 2 * T::kCols, total[u],
                            nullptr);
    }
  }
}

/// kBlocks: how many of them a multiprocessor holds. max_tiles: of columns.
template <typename T, int kBlocks>
cudaError_t launch_tiles(TileArgs args, int max_tiles, cudaStream_t stream) {
  int row_tiles = 0;
  for (TileProduct& product : args.products) {
    const int tile_rows = product.up != nullptr ? T::kRows / 2 : T::kRows;
    row_tiles += (product.rows + tile_rows - 1) / tile_rows;
    product.tiles_end = row_tiles;
  }
  const auto tiles = static_cast<unsigned>(max_tiles), rows = static_cast<unsigned>(row_tiles);
  // Blocks that share weights start together: their raw bytes come from device memory once.
  const dim3 grid = args.sorted == nullptr ? dim3(tiles, rows) : dim3(rows, tiles);
  return launch_large(tile_kernel<T, kBlocks>, grid, dim3(T::kThreads), T::kBytes, stream, args);
}

}  // namespace millrace::kernels::cuda
