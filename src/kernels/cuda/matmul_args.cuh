// What the kernels of matmul() and matmul_experts() share: their arguments, the tensor core's instructions, and what is
// done to a finished tile.
//
// A warp's tile is kSubs * 32 weight rows by kCols * 8 columns (rows of x), as m16n8 fragments. Rows and columns are
// permuted so that what a lane holds is contiguous: with g = lane / 4 and t = lane % 4, a lane has rows 4g .. 4g+3 of
// each 32 and columns t * 2 * kCols .. + 2 * kCols - 1. Row 4g + c of a 32 lies at fragment row (c / 2) * 16 + (c % 2)
// * 8
// + g, column t * 2 * kCols + 2n + b at fragment column 8n + 2t + b.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/async_copy.cuh"
#include "kernels/cuda/exp.cuh"
#include "kernels/cuda/launchers.h"
#include "kernels/cuda/pdl.cuh"
#include "kernels/cuda/tensor_core.cuh"

namespace millrace::kernels::cuda {

struct TileProduct {
  const std::byte* const* weight = nullptr;  // entries, as in ops.h; null where there is none
  const std::byte* const* up = nullptr;      // gated: `weight` is the gate's
  const std::byte* const* bias = nullptr;    // experts: each has `rows` of it, bias_stride behind the last one's
  const std::byte* const* up_bias = nullptr;
  const std::byte *const *scale = nullptr, *const *up_scale = nullptr;  // of experts: a number each
  float* y = nullptr;
  std::int64_t y_stride = 0;
  std::int32_t rows = 0, bias_stride = 0;
  std::int32_t tiles_end = 0;  // row tiles of this product and those before it
};

/// Row tiles of all products, and their bounds. pair_rows: of the gate (and as many of up) in tiles of pairs.
inline int count_row_tiles(TileProduct (&products)[kMostTileProducts], int tile_rows, int pair_rows) {
  int row_tiles = 0;
  for (TileProduct& product : products) {
    const int rows = product.up != nullptr ? pair_rows : tile_rows;
    row_tiles += (product.rows + rows - 1) / rows;
    product.tiles_end = row_tiles;
  }
  return row_tiles;
}

struct TileArgs {
  TileProduct products[kMostTileProducts];
  Effect effect = Effect::store;
  Gate gate;
  std::int32_t cols = 0, x_rows = 0;
  Q8 x;
  Q8 y_q8;  // gated: written if set
  // Experts only: see ExpertCall.
  const std::int32_t* sorted = nullptr;
  const std::int32_t* expert_first = nullptr;
  std::int32_t experts = 0, address_stride = 0, entries_per_x = 1;
};

/// Rows of x and of y of a tile's columns; -1: none.
struct Column {
  std::int32_t source, target;
};

/// What a warpgroup's product (wgmma) is told of an operand in shared memory: rows of 128 bytes with the 128-byte
/// swizzle; p: a row that is a multiple of 8, and the first byte of K.
__device__ inline std::uint64_t operand_at(const std::uint8_t* p) {
  constexpr std::uint64_t kEightRows = 8 * 128 / 16, kSwizzle128 = 1;
  return (shared_address(p) & 0x3FFFF) >> 4 | std::uint64_t{1} << 16 | kEightRows << 32 | kSwizzle128 << 62;
}

__device__ inline void load_matrices(std::uint32_t (&m)[4], const void* p) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(shared_address(p)));
}

/// Sums over 32 elements, and over 16. (Hopper's mma.sync does not overlap with float work: it costs about 9 issue
/// slots.)
__device__ inline void multiply_32(int (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  multiply_32_bytes(d, a, b0, b1, {0, 0, 0, 0});
}
__device__ inline void multiply_16(int (&d)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t b0) {
  multiply_16_bytes(d, a0, a1, b0, {0, 0, 0, 0});
}

/// One term of four sums: rows h, columns b at 2h + b. `first`: of the segment (starts the accumulators).
template <bool kMins, bool first>
__device__ inline void add_term(float (&acc)[4], const int* d, const float* ws, const float* minus_wm, const float* dx,
                                const float* ds) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int h = i / 2, b = i % 2;
    const float integer = static_cast<float>(d[i]);  // exact: below 2^22
    const float scale = ws[h] * dx[b];
    acc[i] = first ? scale * integer : __fmaf_rn(scale, integer, acc[i]);
    if (kMins) acc[i] = __fmaf_rn(minus_wm[h], ds[b], acc[i]);
  }
}

/// n floats, n a multiple of 4; each four kStep floats after the four before.
template <int n, int kStep = 4>
__device__ inline void load_floats(float* to, const float* from) {
#pragma unroll
  for (int i = 0; i < n; i += 4) {
    const float4 v = *reinterpret_cast<const float4*>(from + i / 4 * kStep);
    to[i] = v.x, to[i + 1] = v.y, to[i + 2] = v.z, to[i + 3] = v.w;
  }
}

/// A lane's columns in a block of 32 elements: fragments of x, scales, and sums times scales.
template <typename Q, int kCols>
struct Inputs {
  std::uint32_t x[kCols / 2][4];
  float dx[2 * kCols], ds[Q::kHalves ? 2 : 1][2 * kCols];

  /// from: the lane's address in the first 16 columns' fragments; pitch: bytes between columns.
  __device__ void load(const std::uint8_t* from, int pitch, const float* dx_from, const float* ds_from) {
#pragma unroll
    for (int n = 0; n < kCols / 2; ++n) load_matrices(x[n], from + n * 16 * pitch);
    load_scales(dx_from, ds_from);
  }
  __device__ void load_scales(const float* dx_from, const float* ds_from) {
    load_floats<2 * kCols, 16>(dx, dx_from);
    if constexpr (Q::kMins) load_floats<2 * kCols, 16>(ds[0], ds_from);
    if constexpr (Q::kMins && Q::kHalves) {  // what came are two int16 sums
#pragma unroll
      for (int i = 0; i < 2 * kCols; ++i) {
        const int sums = __float_as_int(ds[0][i]);
        ds[0][i] = dx[i] * static_cast<float>(static_cast<std::int16_t>(sums));
        ds[1][i] = dx[i] * static_cast<float>(sums >> 16);
      }
    }
  }
};

/// Scales of a lane's four rows of 32 in a block of 32 elements.
template <typename Q>
struct RowScales {
  static constexpr int kParts = Q::kHalves ? 2 : 1;
  float ws[kParts][4], minus_wm[kParts][4];

  /// pitch: floats between scale groups.
  __device__ void load(const float* ws_from, const float* min_from, int pitch) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      load_floats<4>(ws[part], ws_from + part * pitch);
      if constexpr (Q::kMins) load_floats<4>(minus_wm[part], min_from + part * pitch);
    }
  }
};

/// Adds the terms of a block of 32 elements to 16 rows (fragment m of 32) by 8 * kCols columns; w: the rows' fragment.
template <typename Q, int kCols, bool first>
__device__ inline void add_block(float (&acc)[kCols][4], const std::uint32_t (&w)[4], int m, const RowScales<Q>& rows,
                                 const Inputs<Q, kCols>& in) {
#pragma unroll
  for (int n = 0; n < kCols; ++n) {
    const std::uint32_t x0 = in.x[n / 2][n % 2 * 2], x1 = in.x[n / 2][n % 2 * 2 + 1];
    int d[4];
    if constexpr (Q::kHalves) {
      multiply_16(d, w[0], w[1], x0);
      add_term<Q::kMins, first>(acc[n], d, &rows.ws[0][2 * m], &rows.minus_wm[0][2 * m], &in.dx[2 * n],
                                &in.ds[0][2 * n]);
      multiply_16(d, w[2], w[3], x1);
      add_term<Q::kMins, false>(acc[n], d, &rows.ws[1][2 * m], &rows.minus_wm[1][2 * m], &in.dx[2 * n],
                                &in.ds[1][2 * n]);
    } else {
      multiply_32(d, w, x0, x1);
      add_term<Q::kMins, first>(acc[n], d, &rows.ws[0][2 * m], &rows.minus_wm[0][2 * m], &in.dx[2 * n],
                                &in.ds[0][2 * n]);
    }
  }
}

/// Quantizes 32 values of a row of y: lanes of one t hold four each, lane g those at 4g. All lanes take part; those of
/// columns that do not exist do not write.
__device__ inline void quantize_32(const float (&v)[4], Q8 out, std::int64_t block, bool writes) {
  const int g = static_cast<int>(threadIdx.x) % 32 / 4;
  std::uint32_t amax_bits = 0;  // magnitudes compare as integers do, and so NaN is the largest of all
#pragma unroll
  for (int c = 0; c < 4; ++c) amax_bits = max(amax_bits, __float_as_uint(v[c]) & 0x7fffffffu);
#pragma unroll
  for (int step = 4; step <= 16; step *= 2) amax_bits = max(amax_bits, __shfl_xor_sync(~0u, amax_bits, step));
  const float amax = __uint_as_float(amax_bits);
  const bool finite = amax_bits < 0x7f800000u;
  const float inverse = finite && amax >= 0x1p-120f ? __fdiv_rn(127.0f, amax) : 0.0f;
  std::uint32_t packed = 0;
  int sum = 0;
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    const float shifted = (inverse == 0 ? 0.0f : v[c] * inverse) + 12582912.0f;  // rounds to nearest even
    const int q = __float_as_int(shifted) - 0x4B400000;
    packed |= (static_cast<std::uint32_t>(q) & 255) << (8 * c);
    sum += q;
  }
  sum += __shfl_xor_sync(~0u, sum, 4);
  sum += __shfl_xor_sync(~0u, sum, 8);
  const int other = __shfl_xor_sync(~0u, sum, 16);
  if (!writes) return;
  reinterpret_cast<std::uint32_t*>(out.q + block * 32)[g] = packed;
  if (g == 0) {
    const float d = !finite ? __uint_as_float(0x7fc00000u) : inverse == 0 ? 0.0f : __fdiv_rn(amax, 127.0f);
    Q8Scale scale;
    scale.d = d;
    scale.s = sum + other;
    scale.ds = d * static_cast<float>(scale.s);
    scale.s16[0] = static_cast<std::int16_t>(sum);
    scale.s16[1] = static_cast<std::int16_t>(other);
    out.scale[block] = scale;
  }
}

/// One of the product's two biases, of `expert` where there are several; null: none.
__device__ inline const float* bias_of(const TileProduct& product, const std::byte* const* entry, int expert) {
  return entry == nullptr ? nullptr
                          : reinterpret_cast<const float*>(*entry) + std::int64_t{expert} * product.bias_stride;
}

/// What an expert's products are multiplied by.
__device__ inline float scale_of(const std::byte* const* entry, int expert) {
  return entry == nullptr ? 1.0f : reinterpret_cast<const float*>(*entry)[expert];
}

/// Finishes 32 rows of the product, from row `first_row`, in columns of a warp: sums, [c / 2][n][2 * (c % 2) + b] as
/// fragments are. up: of a pair, the second product. Lanes of t have the 2 * kCols columns from columns[t *
/// lane_columns] on.
template <int kCols>
__device__ inline void finish_rows(const TileArgs& args, const TileProduct& product, int expert, int first_row,
                                   const Column* columns, int lane_columns, const float (&sums)[2][kCols][4],
                                   const float (*up)[kCols][4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
  const int row = first_row + 4 * g, rows = product.rows;
  if (first_row >= rows) return;
  float bias[4] = {}, up_bias[4] = {};
  const float* bias_from = bias_of(product, product.bias, expert);
  const float* up_bias_from = bias_of(product, product.up_bias, expert);
  const float scale = scale_of(product.scale, expert), up_scale = scale_of(product.up_scale, expert);
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    if (bias_from != nullptr && row + c < rows) bias[c] = bias_from[row + c];
    if (up_bias_from != nullptr && row + c < rows) up_bias[c] = up_bias_from[row + c];
  }
  const bool wide = row + 4 <= rows && product.y_stride % 4 == 0, adds = args.effect == Effect::add;
  float4 old[2 * kCols] = {};  // what is added to: asked for all at once
  if (adds) {
#pragma unroll
    for (int i = 0; i < 2 * kCols; ++i) {
      const int target = columns[t * lane_columns + i].target;
      if (target < 0) continue;
      const float* y = product.y + target * product.y_stride + row;
      if (wide) {
        old[i] = *reinterpret_cast<const float4*>(y);
      } else {
        if (row < rows) old[i].x = y[0];
        if (row + 1 < rows) old[i].y = y[1];
        if (row + 2 < rows) old[i].z = y[2];
        if (row + 3 < rows) old[i].w = y[3];
      }
    }
  }
#pragma unroll
  for (int i = 0; i < 2 * kCols; ++i) {
    const int target = columns[t * lane_columns + i].target;
    float v[4];
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      v[c] = sums[c / 2][i / 2][2 * (c % 2) + i % 2];
      if (product.scale != nullptr) v[c] *= scale;
      if (bias_from != nullptr) v[c] += bias[c];
    }
    if (up != nullptr) {
      for_activation(args.gate.activation, [&](auto which) {
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          float u = up[c / 2][i / 2][2 * (c % 2) + i % 2];
          if (product.up_scale != nullptr) u *= up_scale;
          if (up_bias_from != nullptr) u += up_bias[c];
          v[c] = gated<decltype(which)::value>(v[c], u, args.gate);
        }
      });
      if (args.y_q8.q != nullptr) {
        quantize_32(v, args.y_q8, std::int64_t{target} * (rows / 32) + first_row / 32, target >= 0);
      }
    }
    if (product.y == nullptr || target < 0) continue;
    float* y = product.y + target * product.y_stride + row;
    if (adds) v[0] = old[i].x + v[0], v[1] = old[i].y + v[1], v[2] = old[i].z + v[2], v[3] = old[i].w + v[3];
    if (wide) {
      *reinterpret_cast<float4*>(y) = make_float4(v[0], v[1], v[2], v[3]);
    } else {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        if (row + c < rows) y[c] = v[c];
      }
    }
  }
}

/// The columns of a tile: `count` of them from place `first` on, of rows of x (dense) or of sorted entries (experts).
__device__ inline Column column_at(const TileArgs& args, int first, int i, int count) {
  if (i >= count) return {-1, -1};
  if (args.sorted == nullptr) return {first + i, first + i};
  const int entry = args.sorted[first + i];
  return {entry / args.entries_per_x, entry};
}

/// The tile of expert columns at `slot` when each expert's entries are cut into tiles of kWidth: its expert, first
/// place in sorted, and count (0: the slot is beyond the last tile). All lanes of a warp take part and get the same.
template <int kWidth>
__device__ inline int3 expert_tile(const TileArgs& args, int slot) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int before = 0;  // tiles of the experts before this round's 32
  for (int base = 0; base < args.experts; base += 32) {
    const int expert = base + lane;
    const int first = expert < args.experts ? args.expert_first[expert] : 0;
    const int count = expert < args.experts ? args.expert_first[expert + 1] - first : 0;
    const int tiles = (count + kWidth - 1) / kWidth;
    int end = tiles;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int left = __shfl_up_sync(~0u, end, step);
      if (lane >= step) end += left;
    }
    end += before;
    const unsigned past = __ballot_sync(~0u, slot < end);
    if (past != 0) {
      const int owner = __ffs(static_cast<int>(past)) - 1;
      const int skip = (slot - (end - tiles)) * kWidth;
      const int left = count - skip;
      return make_int3(base + owner, __shfl_sync(~0u, first + skip, owner),
                       __shfl_sync(~0u, left < kWidth ? left : kWidth, owner));
    }
    before = __shfl_sync(~0u, end, 31);
  }
  return make_int3(0, 0, 0);
}

}  // namespace millrace::kernels::cuda
