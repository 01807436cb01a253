// The kernel of matmul_prompt() by int8 (PromptProducts::int8), for super-blocks whose groups have integer scales. A
// segment's sums stay integers, a group's times its scale, and become floats once: an output costs an instruction a
// group beside the tensor core's, where matmul_tile.cuh takes three or four. Mins are products of their own, in tf32,
// with the sums of activations: one of eight groups.
//
// While a block's warps multiply a step of 128 elements, activations of the next are on their way; then each warp
// decodes the next step's weights of the rows whose raw bytes it copied, so that raw weights meet no barrier. A step
// has one. Tiles of int8 are swizzled as in matmul_block.cuh, rows placed as matmul_args.cuh says, columns as they are.
#pragma once

#include "kernels/cuda/matmul_launch.cuh"
#include "kernels/cuda/matmul_prompt_launch.cuh"
#include "kernels/cuda/quads.cuh"
#include "kernels/cuda/tensor_core.cuh"

namespace millrace::kernels::cuda {

/// A warp has kRowSets of 32 rows and kColumnSets of 8 columns. kRawCount: segments of raw weights that are there or on
/// their way.
template <DType kDType, int kRowWarpCount, int kColumnWarpCount, int kRowSets, int kColumnSets, int kRawCount>
struct PromptInt8Tile {
  using Q = Quads<kDType>;
  static_assert(Q::kIntegers && kColumnSets % 2 == 0);
  static constexpr int kRowWarps = kRowWarpCount, kSubs = kRowSets, kCols = kColumnSets, kRaws = kRawCount;
  static constexpr int kRows = 32 * kRowSets * kRowWarpCount, kWidth = 8 * kColumnSets * kColumnWarpCount;
  static constexpr int kThreads = 32 * kRowWarpCount * kColumnWarpCount;
  static constexpr int kStep = 128;                  // elements
  static constexpr int kParts = Q::kHalves ? 2 : 1;  // scale groups of a block of 32
  static constexpr int kGroups = 4 * kParts;         // of a step
  static constexpr int kItems = kRows * 4 / kThreads;
  static constexpr int kInputCopies = kWidth * 8 / kThreads;  // of 16 bytes, a thread and step
  static constexpr int kChunks = (Q::kBytes + (Q::kAlign < 16 ? 16 - Q::kAlign : 0) + 15) / 16;
  static constexpr int kRawPitch = 16 * (kChunks + (kChunks % 2 == 0));  // an odd number of chunks
  static constexpr int kRowPitch = kRows + 8, kColumnPitch = kWidth + 8;
  static constexpr int kSumGroups = Q::kMins ? 8 * kParts : 0;  // of a segment
  static_assert(kItems * kThreads == kRows * 4 && kInputCopies * kThreads == kWidth * 8);

  static constexpr int kWeightBytes = kRows * kStep, kInputBytes = kWidth * kStep;
  static constexpr int kWeights = 0;                                     // int8 [2][rows][step]
  static constexpr int kInputs = 2 * kWeightBytes;                       // int8 [2][columns][step]
  static constexpr int kRaw = kInputs + 2 * kInputBytes;                 // [raws][rows][raw pitch]
  static constexpr int kScales = kRaw + kRaws * kRows * kRawPitch + 16;  // int8 [2][groups][rows]
  static constexpr int kWhole = kScales + 2 * kGroups * kRows;           // float [rows]
  static constexpr int kMin = kWhole + kRows * 4;                        // float [sum groups][row pitch], tf32
  static constexpr int kDx = kMin + kSumGroups * kRowPitch * 4;          // float [columns]
  static constexpr int kSums = kDx + kWidth * 4;                         // float [sum groups][column pitch], tf32
  static constexpr int kBytes = kSums + kSumGroups * kColumnPitch * 4;
  static_assert(kBytes <= static_cast<int>(kLeastBlockShared));
  static constexpr int kBlocks = kThreads >= 256 ? 1 : 2;  // that a multiprocessor holds

  /// Where row r of the tile lies among the rows of int8.
  __device__ static int place_of_row(int r) { return r / 32 * 32 + r % 4 * 8 + r % 32 / 4; }
};

/// A thread's part of what fills the block's shared memory.
template <typename T>
struct PromptInt8Block {
  using Q = typename T::Q;
  static constexpr int kRawRows = T::kThreads / 4;  // rows at a time, four threads each

  std::uint8_t* shared;
  const PromptArgs& args;
  int tid;
  const std::byte* raw_from[T::kItems];
  int misaligned[T::kItems];  // of the rows that the thread decodes: their first byte's place in 16
  const std::int8_t* q_from;
  std::int64_t q_pitch;

  /// The row of the tile that the thread decodes as its i-th item: of the eight whose bytes its warp copies.
  __device__ int item_row(int i) const {
    const int k = tid / 4 + i * kRawRows;
    return k / 8 * 8 + k % 2 * 4 + k % 8 / 2;  // lanes that store together differ in their swizzle
  }

  __device__ std::uint8_t* raw_of(int j) const { return shared + T::kRaw + j % T::kRaws * T::kRows * T::kRawPitch; }

  __device__ void start_weights(const TileProduct& product, int first_row) {
    const bool pairs = product.up != nullptr;  // then of four rows two are the gate's and two up's
    const unsigned row_bytes = static_cast<unsigned>(args.cols / Q::kUnit) * Q::kBytes;
    const auto row_in_matrix = [&](int row) {
      return static_cast<unsigned>(min(first_row + (pairs ? row / 4 * 2 + row % 2 : row), product.rows - 1));
    };
#pragma unroll
    for (int i = 0; i < T::kItems; ++i) {
      const int row = tid / 4 + i * kRawRows;
      const std::byte* const* entry = pairs && row / 2 % 2 == 1 ? product.up : product.weight;
      raw_from[i] = *entry + std::uint64_t{row_in_matrix(row)} * row_bytes;
      misaligned[i] = static_cast<int>(row_in_matrix(item_row(i)) * row_bytes & 15);
    }
  }
  __device__ void start_inputs(int first_column) {
    q_pitch = std::int64_t{args.segments} * kSegment;
    q_from = args.rounded.q + (first_column + tid / 8) * q_pitch + tid % 8 * 16;
  }

  /// Starts the copy of segment j of the rows.
  __device__ void copy_raw(int j) const {
#pragma unroll
    for (int i = 0; i < T::kItems; ++i) {
      const int row = tid / 4 + i * kRawRows, part = tid % 4;
      const auto from = reinterpret_cast<std::uintptr_t>(raw_from[i]) + static_cast<unsigned>(j) * Q::kBytes;
      const auto* chunks = reinterpret_cast<const uint4*>(from & ~std::uintptr_t{15}) + part;
      auto* to = reinterpret_cast<uint4*>(raw_of(j) + row * T::kRawPitch) + part;
#pragma unroll
      for (int c = 0; c < T::kChunks; c += 4) {
        if (c + 4 <= T::kChunks || part < T::kChunks - c) copy_16(to + c, chunks + c);
      }
    }
  }
  /// Starts the copy of step s of the activations.
  __device__ void copy_inputs(int s) const {
    const int place = tid / 8, chunk = tid % 8;
    std::uint8_t* to = shared + T::kInputs + s % 2 * T::kInputBytes + place * T::kStep + (chunk ^ place % 8) * 16;
#pragma unroll
    for (int i = 0; i < T::kInputCopies; ++i)
      copy_16(to + i * (T::kThreads / 8) * T::kStep, q_from + i * (T::kThreads / 8) * q_pitch + s * T::kStep);
  }
  /// Starts the copy of what segment j of the activations has beside its int8.
  __device__ void copy_scales(int j, int first_column) const {
    constexpr int kEach = T::kWidth / 4;  // copies
    const float* from = args.rounded.scales + std::int64_t{j} * kSegmentScales * args.padded_rows + first_column;
    if (tid < kEach) copy_16(shared + T::kDx + tid * 16, from + tid * 4);
    if constexpr (Q::kMins) {
#pragma unroll
      for (int i = tid; i < T::kSumGroups * kEach; i += T::kThreads) {
        const int group = i / kEach, at = i % kEach * 4;
        copy_16(shared + T::kSums + (group * T::kColumnPitch + at) * 4,
                from + (1 + (Q::kHalves ? 8 : 0) + group) * args.padded_rows + at);
      }
    }
  }

  /// Decodes the thread's blocks of step s, whose segment the warp has; in a segment's second step what the whole of it
  /// needs, too.
  __device__ void decode(int s) const {
    const int j = s / 2, buffer = s % 2, b = tid % 4;
    const int block = buffer * 4 + b;  // of the segment
#pragma unroll
    for (int i = 0; i < T::kItems; ++i) {
      const int row = item_row(i), place = T::place_of_row(row);
      const std::uint8_t* segment = raw_of(j) + row * T::kRawPitch;
      if constexpr (Q::kAlign < 16) segment += (misaligned[i] + j * Q::kBytes) & 15;
      std::uint32_t w[8];
#pragma unroll
      for (int t = 0; t < 4; ++t) Q::pair(segment, block, t, w[t], w[t + 4]);
      std::uint8_t* to = shared + T::kWeights + buffer * T::kWeightBytes + place * T::kStep;
      *reinterpret_cast<uint4*>(to + ((2 * b) ^ place % 8) * 16) = make_uint4(w[0], w[1], w[2], w[3]);
      *reinterpret_cast<uint4*>(to + ((2 * b + 1) ^ place % 8) * 16) = make_uint4(w[4], w[5], w[6], w[7]);
      std::uint8_t* scales = shared + T::kScales + (buffer * T::kGroups + T::kParts * b) * T::kRows + row;
#pragma unroll
      for (int part = 0; part < T::kParts; ++part) {
        scales[part * T::kRows] = static_cast<std::uint8_t>(Q::integer_scale(segment, T::kParts * block + part));
      }
      if (buffer == 0) continue;
      if (b == 0) reinterpret_cast<float*>(shared + T::kWhole)[row] = Q::whole_scale(segment);
      if constexpr (Q::kMins) {
        auto* minus_wm = reinterpret_cast<float*>(shared + T::kMin) + row;
#pragma unroll
        for (int group = b; group < T::kSumGroups; group += 4)
          minus_wm[group * T::kRowPitch] = to_tf32(Q::minus_min(segment, group));
      }
    }
  }
};

/// Adds d[i] times the scale of its row; `first`: to nothing.
__device__ __forceinline__ void add_scaled(int (&acc)[4], const int (&d)[4], int scale0, int scale1, bool first) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int scaled = d[i] * (i < 2 ? scale0 : scale1);
    acc[i] = first ? scaled : acc[i] + scaled;
  }
}

/// Byte k of four int8.
template <int k>
__device__ inline int int_of_byte(std::uint32_t bytes) {
  int value;  // the byte, and its sign above it: __byte_perm() does not pass that bit on
  asm("prmt.b32 %0, %1, 0, %2;" : "=r"(value) : "r"(bytes), "n"(0x8880 + 0x1111 * k));
  return value;
}

/// Adds the four blocks of step s to the warp's sums; `first`: of a segment.
template <typename T, bool first>
__device__ inline void multiply_int8_step(const std::uint8_t* shared, int s, int warp_row, int warp_column,
                                          int (&acc)[T::kSubs][2][T::kCols][4]) {
  using Q = typename T::Q;
  const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4;
  const std::uint8_t* a_from =
      shared + T::kWeights + s % 2 * T::kWeightBytes + (warp_row + lane / 8 % 2 * 8 + lane % 8) * T::kStep;
  const std::uint8_t* b_from =
      shared + T::kInputs + s % 2 * T::kInputBytes + (warp_column + lane / 16 * 8 + lane % 8) * T::kStep;
  const std::uint8_t* scales_from = shared + T::kScales + s % 2 * T::kGroups * T::kRows + warp_row + 4 * g;
#pragma unroll
  for (int b = 0; b < 4; ++b) {
    std::uint32_t x[T::kCols / 2][4];
#pragma unroll
    for (int n = 0; n < T::kCols / 2; ++n)
      load_matrices(x[n], b_from + n * 16 * T::kStep + ((2 * b + lane / 8 % 2) ^ lane % 8) * 16);
#pragma unroll
    for (int u = 0; u < T::kSubs; ++u) {
      std::uint32_t scales[T::kParts];
#pragma unroll
      for (int part = 0; part < T::kParts; ++part) {
        scales[part] =
            *reinterpret_cast<const std::uint32_t*>(scales_from + (T::kParts * b + part) * T::kRows + 32 * u);
      }
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        std::uint32_t w[4];
        load_matrices(w, a_from + (32 * u + 16 * m) * T::kStep + ((2 * b + lane / 16) ^ lane % 8) * 16);
        int scale[T::kParts][2];
#pragma unroll
        for (int part = 0; part < T::kParts; ++part) {
          scale[part][0] = m == 0 ? int_of_byte<0>(scales[part]) : int_of_byte<2>(scales[part]);
          scale[part][1] = m == 0 ? int_of_byte<1>(scales[part]) : int_of_byte<3>(scales[part]);
        }
#pragma unroll
        for (int n = 0; n < T::kCols; ++n) {
          const std::uint32_t x0 = x[n / 2][n % 2 * 2], x1 = x[n / 2][n % 2 * 2 + 1];
          int d[4];
          if constexpr (Q::kHalves) {
            multiply_16(d, w[0], w[1], x0);
            add_scaled(acc[u][m][n], d, scale[0][0], scale[0][1], first && b == 0);
            multiply_16(d, w[2], w[3], x1);
            add_scaled(acc[u][m][n], d, scale[T::kParts - 1][0], scale[T::kParts - 1][1], false);
          } else {
            multiply_32(d, w, x0, x1);
            add_scaled(acc[u][m][n], d, scale[0][0], scale[0][1], first && b == 0);
          }
        }
      }
    }
  }
}

/// total += the segment's sums, which are whole now: first the mins, then the integers times both scales.
template <typename T>
__device__ inline void add_segment(const std::uint8_t* shared, int warp_row, int warp_column,
                                   const int (&acc)[T::kSubs][2][T::kCols][4],
                                   float (&total)[T::kSubs][2][T::kCols][4]) {
  using Q = typename T::Q;
  const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
  if constexpr (Q::kMins) {
    const auto* min_from = reinterpret_cast<const float*>(shared + T::kMin) + warp_row + 4 * g;
    const auto* sums_from = reinterpret_cast<const float*>(shared + T::kSums) + warp_column + g;
#pragma unroll
    for (int group = 0; group < T::kSumGroups; group += 8) {
      float sums[T::kCols][2];
#pragma unroll
      for (int n = 0; n < T::kCols; ++n) {
#pragma unroll
        for (int k = 0; k < 2; ++k) sums[n][k] = sums_from[(group + t + 4 * k) * T::kColumnPitch + 8 * n];
      }
#pragma unroll
      for (int u = 0; u < T::kSubs; ++u) {
        float near[4], far[4];
        load_floats<4>(near, min_from + (group + t) * T::kRowPitch + 32 * u);
        load_floats<4>(far, min_from + (group + t + 4) * T::kRowPitch + 32 * u);
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          const float mins[4] = {near[2 * m], near[2 * m + 1], far[2 * m], far[2 * m + 1]};
#pragma unroll
          for (int n = 0; n < T::kCols; ++n) multiply_tf32(total[u][m][n], mins, sums[n][0], sums[n][1]);
        }
      }
    }
  }
  float dx[T::kCols][2];
#pragma unroll
  for (int n = 0; n < T::kCols; ++n) {
    const float2 two = reinterpret_cast<const float2*>(shared + T::kDx)[warp_column / 2 + 4 * n + t];
    dx[n][0] = two.x, dx[n][1] = two.y;
  }
#pragma unroll
  for (int u = 0; u < T::kSubs; ++u) {
    float whole[4];
    load_floats<4>(whole, reinterpret_cast<const float*>(shared + T::kWhole) + warp_row + 32 * u + 4 * g);
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
      for (int n = 0; n < T::kCols; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          total[u][m][n][i] =
              __fmaf_rn(whole[2 * m + i / 2] * dx[n][i % 2], static_cast<float>(acc[u][m][n][i]), total[u][m][n][i]);
  }
}

/// Four rows of y in a column, `rows` of which exist.
__device__ inline void store_four(float* y, const float (&v)[4], bool wide, int rows) {
  if (wide) {
    *reinterpret_cast<float4*>(y) = make_float4(v[0], v[1], v[2], v[3]);
  } else {
#pragma unroll
    for (int c = 0; c < 4; ++c)
      if (c < rows) y[c] = v[c];
  }
}

/// y = sums, or y += sums, of 32 rows from `row` on, a lane's four of them in a column.
template <typename T>
__device__ inline void finish_int8(const PromptArgs& args, const TileProduct& product, int first_row, int first_column,
                                   const float (&sums)[2][T::kCols][4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32, t = lane % 4, row = first_row + lane / 4 * 4;
  const int rows = min(product.rows - row, 4);
  if (rows <= 0) return;
  const bool wide = rows == 4 && product.y_stride % 4 == 0, adds = args.effect == Effect::add;
  float bias[4] = {};
  if (product.bias != nullptr) {
#pragma unroll
    for (int c = 0; c < 4; ++c)
      if (c < rows) bias[c] = reinterpret_cast<const float*>(*product.bias)[row + c];
  }
#pragma unroll
  for (int n = 0; n < T::kCols; ++n) {
    float old[2][4] = {};
#pragma unroll
    for (int b = 0; b < 2; ++b) {
      const int column = first_column + 8 * n + 2 * t + b;
      if (!adds || column >= args.x_rows) continue;
      const float* y = product.y + column * product.y_stride + row;
      if (wide) {
        load_floats<4>(old[b], y);
      } else {
#pragma unroll
        for (int c = 0; c < 4; ++c)
          if (c < rows) old[b][c] = y[c];
      }
    }
#pragma unroll
    for (int b = 0; b < 2; ++b) {
      const int column = first_column + 8 * n + 2 * t + b;
      if (column >= args.x_rows) continue;
      float v[4];
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        v[c] = sums[c / 2][n][2 * (c % 2) + b];
        if (product.bias != nullptr) v[c] += bias[c];
        if (adds) v[c] = old[b][c] + v[c];
      }
      store_four(product.y + column * product.y_stride + row, v, wide, rows);
#pragma unroll 1
      for (int i = 0; i < args.also.count; ++i)
        store_four(args.also.copies[i].y + column * product.y_stride + row, v, wide, rows);
    }
  }
}

/// h = gated(gate, up) of 16 rows from first_row on, a lane's two of them in a column: in float where it is wanted, and
/// to bfloat16.
template <typename T>
__device__ inline void finish_int8_pairs(const PromptArgs& args, const TileProduct& product, int first_row,
                                         int first_column, const float (&sums)[2][T::kCols][4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32, t = lane % 4, row = first_row + lane / 4 * 2;
  const int rows = min(product.rows - row, 2);
  if (rows <= 0) return;
  const bool wide = rows == 2 && product.y_stride % 2 == 0, wide_bf16 = rows == 2 && args.y_bf16_cols % 2 == 0;
  float gate_bias[2] = {}, up_bias[2] = {};
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    if (c >= rows) continue;
    if (product.bias != nullptr) gate_bias[c] = reinterpret_cast<const float*>(*product.bias)[row + c];
    if (product.up_bias != nullptr) up_bias[c] = reinterpret_cast<const float*>(*product.up_bias)[row + c];
  }
#pragma unroll
  for (int n = 0; n < T::kCols; ++n) {
#pragma unroll
    for (int b = 0; b < 2; ++b) {
      const int column = first_column + 8 * n + 2 * t + b;
      if (column >= args.x_rows) continue;
      float v[2];
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        float gate = sums[0][n][2 * c + b], up = sums[1][n][2 * c + b];
        if (product.bias != nullptr) gate += gate_bias[c];
        if (product.up_bias != nullptr) up += up_bias[c];
        v[c] = gated(args.gate, gate, up);
      }
      if (product.y != nullptr) {
        float* y = product.y + column * product.y_stride + row;
        if (wide) {
          *reinterpret_cast<float2*>(y) = make_float2(v[0], v[1]);
        } else {
          y[0] = v[0];
          if (rows == 2) y[1] = v[1];
        }
      }
      if (args.y_bf16 == nullptr) continue;
      const __nv_bfloat162 two = __floats2bfloat162_rn(v[0], v[1]);
      const std::int64_t at = std::int64_t{column} * args.y_bf16_cols + row;
#pragma unroll 1
      for (int i = -1; i < args.also.count; ++i) {
        auto* to = at + (i < 0 ? args.y_bf16 : reinterpret_cast<__nv_bfloat16*>(args.also.copies[i].y_bf16));
        if (wide_bf16) {
          *reinterpret_cast<__nv_bfloat162*>(to) = two;
        } else {
          to[0] = two.x;
          if (rows == 2) to[1] = two.y;
        }
      }
    }
  }
}

template <typename T>
__global__ void __launch_bounds__(T::kThreads, T::kBlocks) prompt_int8_kernel(const __grid_constant__ PromptArgs args) {
  if constexpr (MILLRACE_LARGE_BLOCKS == 0) {
    extern __shared__ __align__(1024) std::uint8_t shared[];
    const int tid = static_cast<int>(threadIdx.x);
    wait_for_predecessor();
    allow_successor();
    int index = 0, row_tile = static_cast<int>(blockIdx.y);
    while (row_tile >= args.products[index].tiles_end) ++index;
    if (index > 0) row_tile -= args.products[index - 1].tiles_end;
    const TileProduct& product = args.products[index];
    const bool pairs = product.up != nullptr;
    const int first_row = row_tile * (pairs ? T::kRows / 2 : T::kRows);
    const int first_column = static_cast<int>(blockIdx.x) * T::kWidth;
    PromptInt8Block<T> block{shared, args, tid, {}, {}, nullptr, 0};
    block.start_weights(product, first_row);
    block.start_inputs(first_column);

    block.copy_inputs(0);
#pragma unroll
    for (int j = 0; j < T::kRaws; ++j)
      if (j < args.segments) block.copy_raw(j);
    copies_commit();
    copies_wait<0>();
    __syncwarp();
    block.decode(0);

    const int warp = tid / 32, warp_row = warp % T::kRowWarps * 32 * T::kSubs,
              warp_column = warp / T::kRowWarps * 8 * T::kCols;
    const bool idle = first_column + warp_column >= args.x_rows;
    float total[T::kSubs][2][T::kCols][4] = {};
    for (int j = 0; j < args.segments; ++j) {
      int acc[T::kSubs][2][T::kCols][4];
      __syncthreads();  // step 2 j is there, and nobody reads the step before
      block.copy_scales(j, first_column);
      block.copy_inputs(2 * j + 1);
      copies_commit();
      if (!idle) multiply_int8_step<T, true>(shared, 2 * j, warp_row, warp_column, acc);
      block.decode(2 * j + 1);
      copies_wait<0>();
      __syncthreads();
      if (j + 1 < args.segments) block.copy_inputs(2 * j + 2);
      copies_commit();
      if (j + T::kRaws < args.segments) block.copy_raw(j + T::kRaws);
      copies_commit();
      if (!idle) {
        multiply_int8_step<T, false>(shared, 2 * j + 1, warp_row, warp_column, acc);
        add_segment<T>(shared, warp_row, warp_column, acc, total);
      }
      copies_wait<(T::kRaws > 1 ? 1 : 0)>();  // what came before the latest raw segment
      __syncwarp();                           // a warp's raw rows are copied and decoded by itself
      if (j + 1 < args.segments) block.decode(2 * j + 2);
    }
    if (idle) return;
#pragma unroll
    for (int u = 0; u < T::kSubs; ++u) {
      const int row = warp_row + 32 * u;
      if (pairs) {
        finish_int8_pairs<T>(args, product, first_row + row / 2, first_column + warp_column, total[u]);
      } else {
        finish_int8<T>(args, product, first_row + row, first_column + warp_column, total[u]);
      }
    }
  }
}

template <typename T>
cudaError_t launch_prompt_int8_tile(PromptArgs args, cudaStream_t stream) {
  const int row_tiles = count_row_tiles(args.products, T::kRows, T::kRows / 2);
  const dim3 grid(static_cast<unsigned>(div_up(args.x_rows, T::kWidth)), static_cast<unsigned>(row_tiles));
  return launch_large(prompt_int8_kernel<T>, grid, dim3(T::kThreads), static_cast<std::size_t>(T::kBytes), stream, 1,
                      args);
}

template <DType kDType>
cudaError_t launch_prompt_int8(PromptInt8Shape shape, const PromptArgs& args, cudaStream_t stream) {
  switch (shape) {
    case PromptInt8Shape::tile_128x128:
      return launch_prompt_int8_tile<PromptInt8Tile<kDType, 4, 4, 1, 4, 1>>(args, stream);
    case PromptInt8Shape::tile_64x64:
      return launch_prompt_int8_tile<PromptInt8Tile<kDType, 2, 2, 1, 4, 2>>(args, stream);
    case PromptInt8Shape::tile_32x32:
      return launch_prompt_int8_tile<PromptInt8Tile<kDType, 1, 2, 1, 2, 2>>(args, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace millrace::kernels::cuda
