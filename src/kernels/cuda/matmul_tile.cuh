// The kernel for many rows of x, with products of a warp. While a block's warps multiply a step of 128 elements, its
// threads decode the next step's weights and start the copies of the one after; with two places for activations in
// place of three, those of the next step. Bound by issue slots: a term (I to float, ws * dx, fma, and fma for mins) is
// three or four instructions an output.
#pragma once

#include "kernels/cuda/matmul_block.cuh"
#include "kernels/cuda/matmul_launch.cuh"

namespace millrace::kernels::cuda {

template <DType kDType, int kRowCount, int kColumnCount, int kRowWarpCount, int kColumnWarpCount, int kStageCount = 3>
struct WarpTile : Tile<kDType, kRowCount, kColumnCount, 32 * kRowWarpCount * kColumnWarpCount,
                       kColumnCount / kColumnWarpCount / 4, false, kStageCount> {
  static constexpr bool kLarge = kStageCount == 3;               // built where has_large_blocks() alone, others
  static constexpr bool kSmall = !kLarge && kColumnCount == 64;  // elsewhere alone, small ones in code for 7.5
  static constexpr int kRowWarps = kRowWarpCount;
  static constexpr int kSubs = kRowCount / kRowWarps / 32;           // sets of 32 rows, a warp
  static constexpr int kCols = kColumnCount / kColumnWarpCount / 8;  // sets of 8 columns, a warp
  static_assert(kSubs == 2, "a pair is a warp's two sets of rows");
};

/// Adds the four blocks of step s to the warp's accumulators and decodes the next step between them; `first`: of a
/// segment.
template <typename T, bool first>
__device__ inline void multiply_step(const TileBlock<T>& block, int s, int stage, bool decodes, bool idle, int warp_row,
                                     int warp_column, float (&acc)[T::kSubs][2][T::kCols][4]) {
  using Q = typename T::Q;
  const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
  const std::uint8_t* a_from =
      block.shared + T::kWeights + s % 2 * T::kWeightBytes + (warp_row + lane / 8 % 2 * 8 + lane % 8) * T::kStep;
  const std::uint8_t* b_from =
      block.shared + T::kInputs + stage * T::kInputBytes + (warp_column + lane / 16 * 8 + lane % 8) * T::kStep;
  const int row_at = s % 2 * T::kGroups * T::kRowPitch + warp_row + 4 * g;
  const auto* ws_from = reinterpret_cast<const float*>(block.shared + T::kWs) + row_at;
  const auto* min_from = reinterpret_cast<const float*>(block.shared + T::kMin) + row_at;
  const int column_at = stage * 4 * T::kColumnPitch + warp_column + 4 * t;
  const auto* dx_from = reinterpret_cast<const float*>(block.shared + T::kDx) + column_at;
  const auto* ds_from = reinterpret_cast<const float*>(block.shared + T::kDs) + column_at;
#pragma unroll
  for (int b = 0; b < 4; ++b) {
    if (!idle) {
      Inputs<Q, T::kCols> in;
      in.load(b_from + ((2 * b + lane / 8 % 2) ^ lane % 8) * 16, T::kStep, dx_from + b * T::kColumnPitch,
              ds_from + b * T::kColumnPitch);
#pragma unroll
      for (int u = 0; u < T::kSubs; ++u) {
        RowScales<Q> rows;
        rows.load(ws_from + T::kParts * b * T::kRowPitch + 32 * u, min_from + T::kParts * b * T::kRowPitch + 32 * u,
                  T::kRowPitch);
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          std::uint32_t w[4];
          load_matrices(w, a_from + (32 * u + 16 * m) * T::kStep + ((2 * b + lane / 16) ^ lane % 8) * 16);
          if (first && b == 0) {
            add_block<Q, T::kCols, true>(acc[u][m], w, m, rows, in);
          } else {
            add_block<Q, T::kCols, false>(acc[u][m], w, m, rows, in);
          }
        }
      }
    }
    if (decodes) {
#pragma unroll
      for (int i = b * T::kItems / 4; i < (b + 1) * T::kItems / 4; ++i) block.decode(s + 1, i);
    }
  }
}

template <typename T>
__device__ inline void multiply_tile(const TileArgs& args) {
  extern __shared__ __align__(1024) std::uint8_t shared[];
  const int tid = static_cast<int>(threadIdx.x);
  wait_for_predecessor();
  allow_successor();
  TilePlace place;
  if (!find_place<T>(args, shared, place)) return;
  const TileProduct& product = args.products[place.product];
  const bool pairs = product.up != nullptr;  // then rows of 64 are 32 of the gate and 32 of up
  const int first_row = place.row_tile * (pairs ? T::kRows / 2 : T::kRows);
  TileBlock<T> block{shared, args, tid};
  block.start_weights(product, place.expert * args.address_stride, first_row);
  __syncthreads();
  block.start_inputs();

  const int segments = (args.cols + kSegment - 1) / kSegment, steps = 2 * segments;
  block.copy_inputs(0, 0);
  block.copy_raw(0);
  copies_commit();
  if constexpr (T::kStages > 2) block.copy_inputs(1, 1);
  if (segments > 1) block.copy_raw(1);
  copies_commit();
  copies_wait<1>();
  __syncthreads();
#pragma unroll
  for (int i = 0; i < T::kItems; ++i) block.decode(0, i);

  const int warp = tid / 32;
  const int warp_row = warp % T::kRowWarps * 64, warp_column = warp / T::kRowWarps * 8 * T::kCols;
  const bool idle = warp_column >= place.columns;  // a warp of columns that do not exist
  float total[T::kSubs][2][T::kCols][4] = {}, acc[T::kSubs][2][T::kCols][4];
  constexpr int kAhead = T::kStages - 1;  // steps that activations are on their way before theirs
  const auto after = [](int stage) { return stage == T::kStages - 1 ? 0 : stage + 1; };
  int stage = 0;
  for (int j = 0; j < segments; ++j) {
    // Of three places one is free for the step after the next; of two the one for the next, and step s has the first.
    const int s = 2 * j, stage1 = after(stage), free = kAhead > 1 ? after(stage1) : stage1;
    copies_wait<1>();  // of two places: the next segment's raw weights may be on their way yet
    __syncthreads();
    block.copy_inputs(s + kAhead, free);
    copies_commit();
    multiply_step<T, true>(block, s, stage, true, idle, warp_row, warp_column, acc);

    copies_wait<kAhead - 1>();
    __syncthreads();
    block.copy_inputs(s + 1 + kAhead, stage);
    if constexpr (kAhead == 1) copies_commit();
    if (j + 2 < segments) block.copy_raw(j + 2);
    copies_commit();
    multiply_step<T, false>(block, s + 1, stage1, s + 2 < steps, idle, warp_row, warp_column, acc);
    if constexpr (kAhead > 1) stage = free;
#pragma unroll
    for (int u = 0; u < T::kSubs; ++u)
#pragma unroll
      for (int m = 0; m < 2; ++m)
#pragma unroll
        for (int n = 0; n < T::kCols; ++n)
#pragma unroll
          for (int i = 0; i < 4; ++i) total[u][m][n][i] += acc[u][m][n][i];
  }
  copies_wait<0>();
  if (idle) return;
  const auto* columns = reinterpret_cast<const Column*>(shared + T::kColumns) + warp_column;
  if (pairs) {
    finish_rows<T::kCols>(args, product, place.expert, first_row + warp_row / 2, columns, 2 * T::kCols, total[0],
                          total[1]);
  } else {
#pragma unroll
    for (int u = 0; u < T::kSubs; ++u) {
      finish_rows<T::kCols>(args, product, place.expert, first_row + warp_row + 32 * u, columns, 2 * T::kCols, total[u],
                            nullptr);
    }
  }
}

template <typename T, int kBlocks>
__global__ void __launch_bounds__(T::kThreads, kBlocks) tile_kernel(const __grid_constant__ TileArgs args) {
  constexpr bool kBuilt = T::kSmall ? MILLRACE_SMALL_BLOCKS == 1 : T::kLarge == (MILLRACE_LARGE_BLOCKS == 1);
  if constexpr (kBuilt) multiply_tile<T>(args);
}

/// The tile where has_small_blocks(), of dtypes for which it is small enough.
template <DType kDType>
using SmallTile = WarpTile<kDType, 64, 64, 1, 4, 2>;

/// kBlocks: how many of them a multiprocessor holds. max_tiles: of columns.
template <typename T, int kBlocks>
cudaError_t launch_tiles(TileArgs args, int max_tiles, cudaStream_t stream) {
  static_assert(T::kLarge || T::kBytes <= kLeastBlockShared);
  const int row_tiles = count_row_tiles(args.products, T::kRows, T::kRows / 2);
  return launch_large(tile_kernel<T, kBlocks>, tile_grid(args, row_tiles, max_tiles), T::kThreads, T::kBytes, stream, 1,
                      args);
}

}  // namespace millrace::kernels::cuda
