// The kernel for few rows of x (5 to some dozens), bound by device memory. A block computes tiles of 32 weight rows (in
// pairs: 32 of the gate and 32 of up) by kWidth columns, one after the other. Its warps share K, a segment each at a
// time, so that many bytes are in flight however few the rows are: a warp copies its segment's raw weights and
// activations into memory of its own, decodes weights straight into fragments, and adds its accumulators to the tile's
// totals when its segment's turn has come; who adds a tile's last segment writes the tile. Warps meet only there: each
// is handed its turn by the warp before it, which keeps the order that the contract names, over all segments of all the
// block's tiles.
#pragma once

#include "kernels/cuda/capability.h"
#include "kernels/cuda/landing.cuh"
#include "kernels/cuda/matmul_args.cuh"
#include "kernels/cuda/quads.cuh"

namespace millrace::kernels::cuda {

template <DType kDType, int kColumnCount, int kSubCount>
struct Slim {
  using Q = Quads<kDType>;
  static constexpr int kWidth = kColumnCount, kCols = kWidth / 8;
  static constexpr int kSubs = kSubCount;  // sets of 32 rows: 2 in pairs
  static constexpr int kRows = 32 * kSubs;
  static constexpr int kParts = Q::kHalves ? 2 : 1;
  static constexpr int kPitch = 128 + 16;  // bytes between columns of half a segment
  static constexpr int kChunks = (Q::kBytes + (Q::kAlign < 16 ? 16 - Q::kAlign : 0) + 15) / 16;
  static constexpr int kRawPitch = 16 * (kChunks + (kChunks % 2 == 0));  // an odd number of chunks
  static constexpr int kColumnPitch = kWidth + 8;

  // A warp's memory, in this order.
  static constexpr int kRaw = 0;                                               // [2][rows][raw pitch]
  static constexpr int kInputs = kRaw + 2 * kRows * kRawPitch + 16;            // [2][columns][pitch]
  static constexpr int kDx = kInputs + 2 * kWidth * kPitch;                    // float [2][4][column pitch]
  static constexpr int kDs = kDx + 2 * 4 * kColumnPitch * 4;                   // likewise
  static constexpr int kWs = kDs + (Q::kMins ? 2 * 4 * kColumnPitch * 4 : 0);  // float [groups][rows]
  static constexpr int kMin = kWs + 8 * kParts * kRows * 4;                    // likewise
  static constexpr int kWarpBytes = kMin + (Q::kMins ? 8 * kParts * kRows * 4 : 0);
  // The block's, after the warps'.
  static constexpr int kTotalBytes = kRows * kWidth * 4;  // float4 [subs][2][cols][32 lanes]
  // Then Column [columns], const std::byte* [4], Departure [warps], int [columns].
  static constexpr int kBlockBytes = kTotalBytes + kWidth * 8 + 4 * 8 + 8 * 8 + kWidth * 4;
  static constexpr int kMostWarps = 8;  // of a block: as many as its memory has room for
  static_assert(kWarpBytes + kBlockBytes <= kLeastBlockShared, "there is room for one");
};

/// A segment of a row tile that a warp works on, in the order of its turns.
struct SlimTurn {
  int row_tile, segment;
};

template <typename S>
struct SlimWarp {
  using Q = typename S::Q;
  std::uint8_t* memory;  // the warp's
  const TileArgs& args;
  const std::byte* const* addresses;  // of the products' matrices; [3]: of up
  int lane, row_bytes;
  unsigned input_at[S::kWidth / 4];  // in x.q, in units of 16 bytes
  unsigned scale_at[S::kWidth / 8];  // in x.scale

  __device__ int product_of(int row_tile) const {
    int product = 0;
    while (row_tile >= args.products[product].tiles_end) ++product;
    return product;
  }
  __device__ int first_row(int row_tile, int product) const {
    return 32 * (product == 0 ? row_tile : row_tile - args.products[product - 1].tiles_end);
  }
  /// The row of its matrix that row r of the tile is; the last one for those beyond.
  __device__ unsigned row_at(int first, int last, int r) const {
    return static_cast<unsigned>(min(first + r % 32, last));
  }
  /// Rows whose fragments are read together lie side by side.
  __device__ static int place_of(int row) { return row / 32 * 32 + row % 4 * 8 + row % 32 / 4; }

  __device__ void copy_raw(int slot, SlimTurn turn) const {
    const int part = lane % 4, product = product_of(turn.row_tile), first = first_row(turn.row_tile, product);
    const int last = args.products[product].rows - 1;
#pragma unroll
    for (int round = 0; round < S::kRows / 8; ++round) {
      const int row = round / 4 * 32 + lane / 4 * 4 + round % 4;  // those of a round lie side by side
      const auto base = reinterpret_cast<std::uintptr_t>(addresses[round < 4 ? product : 3]);
      const auto from = base + std::uint64_t{row_at(first, last, row)} * static_cast<unsigned>(row_bytes) +
                        static_cast<unsigned>(turn.segment) * Q::kBytes;
      const auto* chunks = reinterpret_cast<const uint4*>(from & ~std::uintptr_t{15}) + part;
      auto* to = reinterpret_cast<uint4*>(memory + S::kRaw + (slot * S::kRows + place_of(row)) * S::kRawPitch) + part;
#pragma unroll
      for (int c = 0; c < S::kChunks; c += 4) {
        if (c + 4 <= S::kChunks || part < S::kChunks - c) copy_16(to + c, chunks + c);
      }
    }
  }

  /// Where the lane's copies of activations come from. Columns that do not exist read some that do.
  __device__ void start_inputs(const int* sources) {
#pragma unroll
    for (int i = 0; i < S::kWidth / 4; ++i) {
      const int source = max(sources[lane / 8 + 4 * i], sources[0]);
      input_at[i] = static_cast<unsigned>(source) * static_cast<unsigned>(args.cols / 16) + lane % 8;
    }
#pragma unroll
    for (int i = 0; i < S::kWidth / 8; ++i) {
      const int source = max(sources[lane / 4 + 8 * i], sources[0]);
      scale_at[i] = static_cast<unsigned>(source) * static_cast<unsigned>(args.cols / 32) + lane % 4;
    }
  }

  /// Half h of a segment: elements from 128 * h on, h counted over the row.
  __device__ void copy_inputs(int slot, int h) const {
    std::uint8_t* to = memory + S::kInputs + (slot * S::kWidth + lane / 8) * S::kPitch + 16 * (lane % 8);
    const std::int8_t* q = args.x.q + h * 128;
    const bool valid = 128 * h + 16 * (lane % 8) < args.cols;
#pragma unroll
    for (int i = 0; i < S::kWidth / 4; ++i) {
      copy_16(to + 4 * i * S::kPitch, q + std::uint64_t{input_at[i]} * 16, valid);
    }
    // Fragment column 8n + 2t + b is column i = 2n + b of lane t, and lies at i / 4 * 16 + 4t + i % 4.
    const int at = (slot * 4 + lane % 4) * S::kColumnPitch + lane / 8 * 4 + lane / 4 % 2;
    auto* dx = reinterpret_cast<float*>(memory + S::kDx) + at;
    auto* ds = reinterpret_cast<float*>(memory + S::kDs) + at;
    const Q8Scale* scale = args.x.scale + h * 4;
    const bool scale_valid = 128 * h + 32 * (lane % 4) < args.cols;
#pragma unroll
    for (int i = 0; i < S::kWidth / 8; ++i) {
      const Q8Scale* from = scale + scale_at[i];
      copy_4(dx + i / 2 * 16 + i % 2 * 2, &from->d, scale_valid);
      if constexpr (Q::kMins) {
        const void* sum = Q::kHalves ? static_cast<const void*>(&from->s16[0]) : &from->ds;
        copy_4(ds + i / 2 * 16 + i % 2 * 2, sum, scale_valid);
      }
    }
  }

  __device__ const std::uint8_t* segment_of(int slot, int first, int last, int row, int j) const {
    const std::uint8_t* at = memory + S::kRaw + (slot * S::kRows + place_of(row)) * S::kRawPitch;
    if constexpr (Q::kAlign < 16) {
      at += (row_at(first, last, row) * static_cast<unsigned>(row_bytes) + static_cast<unsigned>(j) * Q::kBytes) & 15;
    }
    return at;
  }

  /// The scales of segment j, each lane those of a row.
  __device__ void decode_scales(int slot, int first, int last, int j) const {
#pragma unroll
    for (int u = 0; u < S::kSubs; ++u) {
      auto* ws = reinterpret_cast<float*>(memory + S::kWs) + 32 * u + lane;
      auto* minus_wm = reinterpret_cast<float*>(memory + S::kMin) + 32 * u + lane;
      const std::uint8_t* segment = segment_of(slot, first, last, 32 * u + lane, j);
#pragma unroll
      for (int s = 0; s < 8 * S::kParts; ++s) {
        const bool exists = j * kSegment + s * (32 / S::kParts) < args.cols;
        ws[s * S::kRows] = exists ? group_scale<Q>(segment, s) : 0.0f;
        if constexpr (Q::kMins) minus_wm[s * S::kRows] = exists ? Q::minus_min(segment, s) : 0.0f;
      }
    }
  }

  template <bool first>
  __device__ void multiply(int half, const std::uint8_t* const (&segments)[S::kSubs][4],
                           float (&acc)[S::kSubs][2][S::kCols][4]) const {
    const int g = lane / 4, t = lane % 4;
    const std::uint8_t* b_from =
        memory + S::kInputs + half * S::kWidth * S::kPitch + (lane % 8 + lane / 16 * 8) * S::kPitch + lane / 8 % 2 * 16;
    const int column = half * 4 * S::kColumnPitch + 4 * t;
    const auto* dx_from = reinterpret_cast<const float*>(memory + S::kDx) + column;
    const auto* ds_from = reinterpret_cast<const float*>(memory + S::kDs) + column;
    const auto* ws_from = reinterpret_cast<const float*>(memory + S::kWs) + half * 4 * S::kParts * S::kRows + 4 * g;
    const auto* min_from = reinterpret_cast<const float*>(memory + S::kMin) + half * 4 * S::kParts * S::kRows + 4 * g;
    // What block b takes is fetched while the block before is multiplied.
    struct Fetched {
      Inputs<Q, S::kCols> in;
      RowScales<Q> rows[S::kSubs];
      std::uint32_t w[S::kSubs][2][4];
    };
    const auto fetch = [&](int b, Fetched& to) {
      to.in.load(b_from + 32 * b, S::kPitch, dx_from + b * S::kColumnPitch, ds_from + b * S::kColumnPitch);
#pragma unroll
      for (int u = 0; u < S::kSubs; ++u) {
        to.rows[u].load(ws_from + b * S::kParts * S::kRows + 32 * u, min_from + b * S::kParts * S::kRows + 32 * u,
                        S::kRows);
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          Q::pair(segments[u][2 * m], 4 * half + b, t, to.w[u][m][0], to.w[u][m][2]);
          Q::pair(segments[u][2 * m + 1], 4 * half + b, t, to.w[u][m][1], to.w[u][m][3]);
        }
      }
    };
    Fetched fetched[2];
    fetch(0, fetched[0]);
#pragma unroll
    for (int b = 0; b < 4; ++b) {
      if (b < 3) fetch(b + 1, fetched[(b + 1) % 2]);
      const Fetched& now = fetched[b % 2];
#pragma unroll
      for (int u = 0; u < S::kSubs; ++u) {
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          if (first && b == 0) {
            add_block<Q, S::kCols, true>(acc[u][m], now.w[u][m], m, now.rows[u], now.in);
          } else {
            add_block<Q, S::kCols, false>(acc[u][m], now.w[u][m], m, now.rows[u], now.in);
          }
        }
      }
    }
  }
};

template <typename S>
__global__ void __launch_bounds__(32 * S::kMostWarps, 1) slim_kernel(const __grid_constant__ TileArgs args) {
  using Q = typename S::Q;
  extern __shared__ __align__(1024) std::uint8_t shared[];
  const int warps = static_cast<int>(blockDim.x) / 32;
  auto* totals = reinterpret_cast<float4*>(shared + warps * S::kWarpBytes);
  auto* columns = reinterpret_cast<Column*>(shared + warps * S::kWarpBytes + S::kTotalBytes);
  auto* addresses = reinterpret_cast<const std::byte**>(columns + S::kWidth);
  // By warp, at most 8: the turn that the warp before hands to it, with what it wrote, again and again.
  auto* handovers = reinterpret_cast<Departure*>(addresses + 4);
  auto* sources = reinterpret_cast<int*>(handovers + 8);
  const int tid = static_cast<int>(threadIdx.x), lane = tid % 32, warp = tid / 32, g = lane / 4;
  const bool experts = args.sorted != nullptr;
  wait_for_predecessor();
  allow_successor();

  int3 tile = make_int3(0, static_cast<int>(blockIdx.x) * S::kWidth, 0);  // expert, first column, columns
  if (experts) {
    tile = expert_tile<S::kWidth>(args, static_cast<int>(blockIdx.y));
    if (tile.z == 0) return;
  } else {
    tile.z = min(args.x_rows - tile.y, S::kWidth);
  }
  for (int place = tid; place < S::kWidth; place += 32 * warps) {
    const Column column = column_at(args, tile.y, place, tile.z);
    sources[place] = column.source;
    columns[place % 8 / 2 * (2 * S::kCols) + place / 8 * 2 + place % 2] = column;
  }
  if (tid < 4) {
    const std::byte* const* entry = tid == 3 ? args.products[0].up : args.products[tid].weight;
    addresses[tid] = entry == nullptr ? nullptr : entry[tile.x * args.address_stride];
  }
  if (tid < warps) handovers[tid].open(32);
  __syncthreads();

  // The warp's turns are warp, warp + warps, ... of the segments of the block's row tiles: blockIdx, + the grid, ...
  const int segments = (args.cols + kSegment - 1) / kSegment, row_tiles = args.products[2].tiles_end;
  const int stride = static_cast<int>(experts ? gridDim.x : gridDim.y);
  const auto later = [&](SlimTurn at) {
    at.segment += warps;
    for (; at.segment >= segments; at.segment -= segments) at.row_tile += stride;
    return at;
  };
  SlimWarp<S> work{shared + warp * S::kWarpBytes, args, addresses, lane};
  work.row_bytes = args.cols / Q::kUnit * (Q::kUnit * Q::kBytes / kSegment);
  work.start_inputs(sources);
  const auto copy_raw = [&](SlimTurn at, int slot) {
    if (at.row_tile < row_tiles) work.copy_raw(slot, at);
  };
  const auto copy_half = [&](SlimTurn at, int half) {
    if (at.row_tile < row_tiles) work.copy_inputs(half, at.segment * 2 + half);
    copies_commit();
  };
  SlimTurn at{static_cast<int>(experts ? blockIdx.x : blockIdx.y), warp};
  for (; at.segment >= segments; at.segment -= segments) at.row_tile += stride;
  SlimTurn next = later(at);
  copy_raw(at, 0);
  copy_half(at, 0);
  copy_raw(next, 1);
  copy_half(at, 1);
  int slot = 0;
  bool first = warp == 0;  // whose first turn nobody hands over
  int handed = 0;
  for (; at.row_tile < row_tiles; slot ^= 1) {
    const SlimTurn after = later(next);
    const int product = work.product_of(at.row_tile), first_row = work.first_row(at.row_tile, product);
    const int last_row = args.products[product].rows - 1, j = at.segment;
    copies_wait<1>();
    __syncwarp();
    work.decode_scales(slot, first_row, last_row, j);
    __syncwarp();
    const std::uint8_t* rows[S::kSubs][4];
#pragma unroll
    for (int u = 0; u < S::kSubs; ++u) {
#pragma unroll
      for (int c = 0; c < 4; ++c) rows[u][c] = work.segment_of(slot, first_row, last_row, 32 * u + 4 * g + c, j);
    }
    float acc[S::kSubs][2][S::kCols][4];
    work.template multiply<true>(0, rows, acc);
    __syncwarp();
    copy_half(next, 0);
    copies_wait<1>();
    __syncwarp();
    work.template multiply<false>(1, rows, acc);
    __syncwarp();
    copy_raw(after, slot);
    copy_half(next, 1);

    if (!first) handovers[warp].await(handed++);
    first = false;
#pragma unroll
    for (int i = 0; i < S::kSubs * 2 * S::kCols; ++i) {
      float(&sum)[4] = acc[i / (2 * S::kCols)][i / S::kCols % 2][i % S::kCols];
      const float4 old = j == 0 ? make_float4(0, 0, 0, 0) : totals[i * 32 + lane];
      sum[0] = old.x + sum[0], sum[1] = old.y + sum[1], sum[2] = old.z + sum[2], sum[3] = old.w + sum[3];
      if (j + 1 < segments) totals[i * 32 + lane] = make_float4(sum[0], sum[1], sum[2], sum[3]);
    }
    const bool tile_done = j + 1 == segments, block_done = tile_done && at.row_tile + stride >= row_tiles;
    if (!block_done) handovers[warp + 1 < warps ? warp + 1 : 0].leave();
    if (tile_done) {
      finish_rows<S::kCols>(args, args.products[product], tile.x, first_row, columns, 2 * S::kCols, acc[0],
                            S::kSubs == 2 ? acc[S::kSubs - 1] : nullptr);
    }
    at = next;
    next = after;
  }
  copies_wait<0>();
}

/// max_tiles: of columns. Blocks are as many as run at once, a multiprocessor each.
template <typename S>
cudaError_t launch_slim(TileArgs args, int max_tiles, int multiprocessors, cudaStream_t stream) {
  const int row_tiles = count_row_tiles(args.products, 32, 32);
  const int share = (multiprocessors + max_tiles - 1) / max_tiles;
  const auto tiles = static_cast<unsigned>(max_tiles),
             rows = static_cast<unsigned>(share < row_tiles ? share : row_tiles);
  const dim3 grid = args.sorted == nullptr ? dim3(tiles, rows) : dim3(rows, tiles);
  if (block_shared_bytes() < S::kWarpBytes + S::kBlockBytes) return cudaErrorInvalidValue;
  const std::size_t room = (block_shared_bytes() - S::kBlockBytes) / S::kWarpBytes;
  const int warps = room < S::kMostWarps ? static_cast<int>(room) : S::kMostWarps;
  return launch_large(slim_kernel<S>, grid, 32 * warps, warps * S::kWarpBytes + S::kBlockBytes, stream, 1, args);
}

}  // namespace millrace::kernels::cuda
