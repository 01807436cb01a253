// The kernel for many rows of x on Hopper, with products of a warpgroup (compute capability 9.0, built for sm_90a): as
// matmul_tile.cuh, but the tensor core takes its operands from shared memory, beside the float work instead of in its
// way. Each of two warpgroups multiplies all 128 weight rows by 64 columns, as two products m64n64k32 a block of 32
// elements: while one is turned into terms the other runs. For dtypes with scale groups of 32 elements (k is 32 at
// least).
//
// A lane's rows: 32w + 4g .. 32w + 4g + 3 with w the warp of the group; in pairs the first product's are the gate's
// and the second's are up's.
#pragma once

#include "kernels/cuda/matmul_block.cuh"
#include "kernels/cuda/quantize.cuh"

namespace millrace::kernels::cuda {

template <DType kDType>
using GroupTile = Tile<kDType, 128, 128, 256, 16, true>;

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

#define MILLRACE_D(n) "+r"(d[n][0]), "+r"(d[n][1]), "+r"(d[n][2]), "+r"(d[n][3])
#define MILLRACE_ALL_D \
  MILLRACE_D(0), MILLRACE_D(1), MILLRACE_D(2), MILLRACE_D(3), MILLRACE_D(4), MILLRACE_D(5), MILLRACE_D(6), MILLRACE_D(7)

/// Starts d = a b over 32 elements, as a group of its own.
__device__ inline void start_product(int (&d)[8][4], std::uint64_t a, std::uint64_t b) {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
  asm volatile(
      "{\n"
      ".reg .pred add;\n"
      "setp.ne.b32 add, 0, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k32.s32.s8.s8 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, %32, %33, add;\n"
      "}"
      : MILLRACE_ALL_D
      : "l"(a), "l"(b));
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/// Until d has its values.
__device__ inline void wait_product(int (&d)[8][4]) {
  asm volatile("wgmma.wait_group.sync.aligned 0;" : MILLRACE_ALL_D : : "memory");
}
#undef MILLRACE_D
#undef MILLRACE_ALL_D

/// A pair's end: h = gated(gate, up) of the block's 64 rows, through shared memory (its operands are done with), to
/// where lanes hold neighbouring rows.
template <typename T>
__device__ inline void finish_pairs(const TileArgs& args, const TileProduct& product, int expert, int first_row,
                                    std::uint8_t* shared, const float (&total)[2][8][4]) {
  constexpr int kPitch = 64 + 4;  // floats between columns
  const int tid = static_cast<int>(threadIdx.x), lane = tid % 32, g = lane / 4, t = lane % 4;
  const int column = tid / 128 * 64, row = tid / 32 % 4 * 16 + 2 * g, rows = product.rows;
  auto* values = reinterpret_cast<float*>(shared);
  const auto* columns = reinterpret_cast<const Column*>(shared + T::kColumns);
  const float* gate_bias = bias_of(product, product.bias, expert);
  const float* up_bias = bias_of(product, product.up_bias, expert);
  const float scale = scale_of(product.scale, expert), up_scale = scale_of(product.up_scale, expert);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int at = min(first_row + row + h, rows - 1);
    const float gate_extra = gate_bias == nullptr ? 0.0f : gate_bias[at];
    const float up_extra = up_bias == nullptr ? 0.0f : up_bias[at];
    for_activation(args.gate.activation, [&](auto which) {
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        float gate = total[0][i / 2][2 * h + i % 2], up = total[1][i / 2][2 * h + i % 2];
        if (product.scale != nullptr) gate *= scale;
        if (gate_bias != nullptr) gate += gate_extra;
        if (product.up_scale != nullptr) up *= up_scale;
        if (up_bias != nullptr) up += up_extra;
        values[(column + 16 * t + i) * kPitch + row + h] = gated<decltype(which)::value>(gate, up, args.gate);
      }
    });
  }
  __syncthreads();
  // Eight lanes take 32 rows of a column.
  const int part = lane % 8 * 4;
  for (int item = tid / 8; item < 2 * T::kWidth; item += T::kThreads / 8) {
    const int target = columns[item / 2].target, first = first_row + item % 2 * 32;
    if (target < 0 || first >= rows) continue;
    const float4 all = *reinterpret_cast<const float4*>(values + item / 2 * kPitch + item % 2 * 32 + part);
    const float v[4] = {all.x, all.y, all.z, all.w};
    if (args.y_q8.q != nullptr) {
      const std::int64_t block = std::int64_t{target} * (rows / 32) + first / 32;
      quantize_block<4>(v, args.y_q8.q + block * 32, args.y_q8.scale + block);
    }
    if (product.y != nullptr) {
      float* y = product.y + target * product.y_stride + first + part;
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        if (first + part + c < rows) y[c] = v[c];
      }
    }
  }
}
#endif  // __CUDA_ARCH_FEAT_SM90_ALL

template <typename T>
__global__ void __launch_bounds__(T::kThreads, 1) group_kernel(const __grid_constant__ TileArgs args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Q = typename T::Q;
  extern __shared__ __align__(1024) std::uint8_t shared[];
  const int tid = static_cast<int>(threadIdx.x), lane = tid % 32, g = lane / 4, t = lane % 4;
  wait_for_predecessor();
  allow_successor();
  TilePlace place;
  if (!find_place<T>(args, shared, place)) return;
  const TileProduct& product = args.products[place.product];
  const bool pairs = product.up != nullptr;
  const int first_row = place.row_tile * (pairs ? T::kRows / 2 : T::kRows);
  TileBlock<T> block{shared, args, tid};
  block.start_weights(product, place.expert * args.address_stride, first_row);
  __syncthreads();
  block.start_inputs();

  const int segments = (args.cols + kSegment - 1) / kSegment, steps = 2 * segments;
  block.copy_inputs(0, 0);
  block.copy_raw(0);
  copies_commit();
  block.copy_inputs(1, 1);
  if (segments > 1) block.copy_raw(1);
  copies_commit();
  copies_wait<1>();
  __syncthreads();
#pragma unroll
  for (int i = 0; i < T::kItems; ++i) block.decode(0, i);

  const int first_column = tid / 128 * 64;
  const auto weights_at = [&](int s, int b, int m) {
    return operand_at(shared + T::kWeights + s % 2 * T::kWeightBytes + m * 64 * T::kStep + 32 * b);
  };
  const auto inputs_at = [&](int stage, int b) {
    return operand_at(shared + T::kInputs + stage * T::kInputBytes + first_column * T::kStep + 32 * b);
  };
  // All threads' stores and copies are visible to the tensor core, and all its reads of the step before are over.
  const auto next_step = [&] {
    copies_wait<1>();
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
  };
  const float* ws_from = reinterpret_cast<const float*>(shared + T::kWs) + tid / 32 % 4 * 32 + 4 * g;
  const float* min_from = reinterpret_cast<const float*>(shared + T::kMin) + tid / 32 % 4 * 32 + 4 * g;
  const float* dx_from = reinterpret_cast<const float*>(shared + T::kDx) + first_column + 4 * t;
  const float* ds_from = reinterpret_cast<const float*>(shared + T::kDs) + first_column + 4 * t;

  float total[2][8][4] = {}, acc[2][8][4];
  int stage = 0;
  next_step();
  for (int j = 0; j < segments; ++j) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int s = 2 * j + half, stage1 = stage == 2 ? 0 : stage + 1, stage2 = stage1 == 2 ? 0 : stage1 + 1;
#pragma unroll
      for (int b = 0; b < 4; ++b) {
        float ws[4], minus_wm[4], dx[16], ds[16];
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          int d[8][4];
          start_product(d, weights_at(half, b, m), inputs_at(stage, b));
          // While the tensor core works: a piece of what the next steps need, and the scales of this one.
          if (m == 1 && b == 0) {
            block.copy_inputs(s + 2, stage2);
            if (half == 1 && j + 2 < segments) block.copy_raw(j + 2);
            copies_commit();
          } else if (m == 1 && b < 3 && s + 1 < steps) {
#pragma unroll
            for (int i = (b - 1) * T::kItems / 2; i < b * T::kItems / 2; ++i) block.decode(s + 1, i);
          }
          if (m == 0) {
            load_floats<4>(ws, ws_from + (half * 4 + b) * T::kRowPitch);
            load_floats<16, 16>(dx, dx_from + (stage * 4 + b) * T::kColumnPitch);
            if constexpr (Q::kMins) {
              load_floats<4>(minus_wm, min_from + (half * 4 + b) * T::kRowPitch);
              load_floats<16, 16>(ds, ds_from + (stage * 4 + b) * T::kColumnPitch);
            }
          }
          wait_product(d);
          if (m == 1 && b == 3) next_step();
#pragma unroll
          for (int n = 0; n < 8; ++n) {
            if (half == 0 && b == 0) {
              add_term<Q::kMins, true>(acc[m][n], d[n], &ws[2 * m], &minus_wm[2 * m], &dx[2 * n], &ds[2 * n]);
            } else {
              add_term<Q::kMins, false>(acc[m][n], d[n], &ws[2 * m], &minus_wm[2 * m], &dx[2 * n], &ds[2 * n]);
            }
          }
        }
      }
      stage = stage1;
    }
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
      for (int n = 0; n < 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) total[m][n][i] += acc[m][n][i];
  }
  copies_wait<0>();
  if (pairs) {
    __syncthreads();
    finish_pairs<T>(args, product, place.expert, first_row, shared, total);
  } else {
    const auto* columns = reinterpret_cast<const Column*>(shared + T::kColumns) + first_column;
    finish_rows<8>(args, product, place.expert, first_row + tid / 32 % 4 * 32, columns, 16, total, nullptr);
  }
#endif  // __CUDA_ARCH_FEAT_SM90_ALL
}

/// max_tiles: of columns.
template <DType kDType>
cudaError_t launch_groups(TileArgs args, int max_tiles, cudaStream_t stream) {
  using T = GroupTile<kDType>;
  const int row_tiles = count_row_tiles(args.products, T::kRows, T::kRows / 2);
  return launch_large(group_kernel<T>, tile_grid(args, row_tiles, max_tiles), T::kThreads, T::kBytes, stream, 1, args);
}

}  // namespace millrace::kernels::cuda
