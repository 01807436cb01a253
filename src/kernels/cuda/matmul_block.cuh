// A block's tile of kRows weight rows by kWidth columns (rows of x) for matmul_tile.cuh and matmul_wgmma.cuh: where its
// parts lie in shared memory, and the threads' work that fills them, in steps of 128 elements of K. Raw weights (a
// segment at a time) and activations come by cp.async; the threads then decode weights to int8, once for all columns.
//
// Tiles of int8 have rows of 128 bytes, their chunks of 16 swizzled: chunk c of row r lies at c ^ (r % 8). So ldmatrix
// and stores meet no bank conflicts, and it is the 128-byte swizzle of warpgroup products.
#pragma once

#include "kernels/cuda/matmul_args.cuh"
#include "kernels/cuda/quads.cuh"

namespace millrace::kernels::cuda {

/// kWarpgroup: rows are placed as m64 fragments want them, else as m16. kLaneColumns: columns of a lane.
template <DType kDType, int kRowCount, int kColumnCount, int kThreadCount, int kLaneColumnCount, bool kWarpgroupRows,
          int kStageCount = 3>
struct Tile {
  using Q = Quads<kDType>;
  static constexpr int kRows = kRowCount, kWidth = kColumnCount, kThreads = kThreadCount;
  static constexpr int kLaneColumns = kLaneColumnCount;
  static constexpr int kParts = Q::kHalves ? 2 : 1;           // scale groups of a block of 32
  static constexpr int kStep = 128;                           // elements
  static constexpr int kGroups = 4 * kParts;                  // scale groups of a step
  static constexpr int kStages = kStageCount;                 // of activations
  static constexpr int kItems = kRows * 4 / kThreads;         // blocks of 32 that a thread decodes in a step
  static constexpr int kInputCopies = kWidth * 8 / kThreads;  // of 16 bytes, a thread and step
  static constexpr int kScaleCopies = kWidth * 4 / kThreads;
  static_assert(kItems * kThreads == kRows * 4 && kScaleCopies * kThreads == kWidth * 4);
  static constexpr int kChunks = (Q::kBytes + (Q::kAlign < 16 ? 16 - Q::kAlign : 0) + 15) / 16;
  static constexpr int kRawPitch = 16 * (kChunks + (kChunks % 2 == 0));  // an odd number of chunks
  static constexpr int kRowPitch = kRows + 8, kColumnPitch = kWidth + 8;

  // Everything lies in one allocation that starts at a multiple of 1024 bytes, in this order.
  static constexpr int kWeightBytes = kRows * kStep, kInputBytes = kWidth * kStep;
  static constexpr int kWeights = 0;                                               // int8 [2][rows][step]
  static constexpr int kInputs = kWeights + 2 * kWeightBytes;                      // int8 [stages][columns][step]
  static constexpr int kRaw = kInputs + kStages * kInputBytes;                     // [2][rows][raw pitch]
  static constexpr int kWs = kRaw + 2 * kRows * kRawPitch + 16;                    // float [2][groups][row pitch]
  static constexpr int kMin = kWs + 2 * kGroups * kRowPitch * 4;                   // float, likewise
  static constexpr int kDx = kMin + (Q::kMins ? 2 * kGroups * kRowPitch * 4 : 0);  // float [stages][4][column pitch]
  static constexpr int kDs = kDx + kStages * 4 * kColumnPitch * 4;                 // float or two int16, likewise
  static constexpr int kColumns = kDs + (Q::kMins ? kStages * 4 * kColumnPitch * 4 : 0);  // Column [columns]
  static constexpr int kBytes = kColumns + kWidth * 8;

  /// Where row r of the tile lies among the rows of int8.
  __device__ static int place_of_row(int r) {
    const int g = r % 32 / 4, c = r % 4;
    return kWarpgroupRows ? 64 * (c / 2) + 16 * (r / 32) + 8 * (c % 2) + g
                          : r / 32 * 32 + 16 * (c / 2) + 8 * (c % 2) + g;
  }
  /// The column that lies at `place` among the columns of int8.
  __device__ static int column_at_place(int place) {
    constexpr int kUnit = 4 * kLaneColumns;  // columns of a warp
    const int in = place % kUnit;
    return place / kUnit * kUnit + in % 8 / 2 * kLaneColumns + in / 8 * 2 + in % 2;
  }
  /// Where column c lies among the scales: lanes read four at a time, those of all t side by side.
  __device__ static int place_of_scale(int c) {
    constexpr int kUnit = 4 * kLaneColumns;
    const int in = c % kUnit, i = in % kLaneColumns;
    return c / kUnit * kUnit + i / 4 * 16 + in / kLaneColumns * 4 + i % 4;
  }
  /// In pairs: whether row r is one of up, and which row of the gate's or up's half of the tile.
  __device__ static bool is_up(int r) { return kWarpgroupRows ? r / 2 % 2 == 1 : r / 32 % 2 == 1; }
  __device__ static int row_of_pair(int r) { return kWarpgroupRows ? r / 4 * 2 + r % 2 : r / 64 * 32 + r % 32; }
};

template <typename T>
struct TileBlock {
  using Q = typename T::Q;
  static constexpr int kRawShare = 4;                       // threads that copy a row
  static constexpr int kRawRows = T::kThreads / kRawShare;  // rows at a time
  static constexpr int kRawRounds = T::kRows / kRawRows;

  std::uint8_t* shared;
  const TileArgs& args;
  int tid;
  const std::byte* raw_from[kRawRounds];  // weight rows whose raw bytes the thread copies
  int misaligned[T::kItems];              // of the rows that it decodes: their first byte's place in 16
  unsigned input_at[T::kInputCopies];     // in x.q, in units of 16 bytes
  unsigned scale_at[T::kScaleCopies];     // in x.scale

  /// The row of the tile that the thread decodes as its i-th item: lanes that store together differ in their swizzle.
  __device__ int item_row(int i) const {
    const int k = tid / 4 + i * (T::kThreads / 4);
    return k / 8 * 8 + k % 2 * 4 + k % 8 / 2;
  }

  /// Where everything comes from. expert: which of them; first_row: of the product.
  __device__ void start_weights(const TileProduct& product, int address_offset, int first_row) {
    const bool pairs = product.up != nullptr;
    const unsigned row_bytes = static_cast<unsigned>(args.cols / Q::kUnit) * (Q::kUnit * Q::kBytes / kSegment);
    const auto row_in_matrix = [&](int row) {  // of a row of the tile; the last one for those beyond
      return static_cast<unsigned>(min(first_row + (pairs ? T::row_of_pair(row) : row), product.rows - 1));
    };
#pragma unroll
    for (int i = 0; i < kRawRounds; ++i) {
      const int row = tid / kRawShare + i * kRawRows;
      const std::byte* const* entry = pairs && T::is_up(row) ? product.up : product.weight;
      raw_from[i] = entry[address_offset] + std::uint64_t{row_in_matrix(row)} * row_bytes;
    }
#pragma unroll
    for (int i = 0; i < T::kItems; ++i) {  // matrices start at multiples of 256 bytes
      misaligned[i] = static_cast<int>(row_in_matrix(item_row(i)) * row_bytes & 15);
    }
  }
  /// After the columns are known to all threads. Columns that do not exist read some that do.
  __device__ void start_inputs() {
    const auto* columns = reinterpret_cast<const Column*>(shared + T::kColumns);
#pragma unroll
    for (int i = 0; i < T::kInputCopies; ++i) {
      const int source = max(columns[T::column_at_place(tid / 8 + i * (T::kThreads / 8))].source, columns[0].source);
      input_at[i] = static_cast<unsigned>(source) * static_cast<unsigned>(args.cols / 16) + tid % 8;
    }
#pragma unroll
    for (int i = 0; i < T::kScaleCopies; ++i) {
      const int source = max(columns[tid / 4 + i * (T::kThreads / 4)].source, columns[0].source);
      scale_at[i] = static_cast<unsigned>(source) * static_cast<unsigned>(args.cols / 32) + tid % 4;
    }
  }

  /// Starts the copy of segment j of all rows.
  __device__ void copy_raw(int j) const {
#pragma unroll
    for (int i = 0; i < kRawRounds; ++i) {
      const int row = tid / kRawShare + i * kRawRows, part = tid % kRawShare;
      const auto from = reinterpret_cast<std::uintptr_t>(raw_from[i]) + static_cast<unsigned>(j) * Q::kBytes;
      const auto* chunks = reinterpret_cast<const uint4*>(from & ~std::uintptr_t{15}) + part;
      auto* to = reinterpret_cast<uint4*>(shared + T::kRaw + (j % 2 * T::kRows + row) * T::kRawPitch) + part;
#pragma unroll
      for (int c = 0; c < T::kChunks; c += kRawShare) {
        if (c + kRawShare <= T::kChunks || part < T::kChunks - c) copy_16(to + c, chunks + c);
      }
    }
  }

  /// Starts the copy of step s of the activations, to a stage.
  __device__ void copy_inputs(int s, int stage) const {
    const int place = tid / 8, chunk = tid % 8;
    std::uint8_t* to = shared + T::kInputs + stage * T::kInputBytes + place * T::kStep + (chunk ^ place % 8) * 16;
    const std::int8_t* q = args.x.q + s * T::kStep;
    const bool valid = s * T::kStep + 16 * chunk < args.cols;
#pragma unroll
    for (int i = 0; i < T::kInputCopies; ++i) {
      copy_16(to + i * (T::kThreads / 8) * T::kStep, q + std::uint64_t{input_at[i]} * 16, valid);
    }
    const bool scale_valid = s * T::kStep + 32 * (tid % 4) < args.cols;
    const int at = (stage * 4 + tid % 4) * T::kColumnPitch;
    auto* dx = reinterpret_cast<float*>(shared + T::kDx) + at;
    auto* ds = reinterpret_cast<float*>(shared + T::kDs) + at;
    const Q8Scale* scale = args.x.scale + s * 4;
#pragma unroll
    for (int i = 0; i < T::kScaleCopies; ++i) {
      const Q8Scale* from = scale + scale_at[i];
      const int place = T::place_of_scale(tid / 4 + i * (T::kThreads / 4));
      copy_4(dx + place, &from->d, scale_valid);
      if constexpr (Q::kMins) {
        const void* sum = Q::kHalves ? static_cast<const void*>(&from->s16[0]) : &from->ds;
        copy_4(ds + place, sum, scale_valid);
      }
    }
  }

  /// Decodes the thread's i-th block of step s, whose segment has come.
  __device__ void decode(int s, int i) const {
    const int j = s / 2, buffer = s % 2, row = item_row(i), b = tid % 4;
    const int block = s % 2 * 4 + b;  // of the segment
    const std::uint8_t* segment = shared + T::kRaw + (j % 2 * T::kRows + row) * T::kRawPitch;
    if constexpr (Q::kAlign < 16) segment += (misaligned[i] + j * Q::kBytes) & 15;
    std::uint32_t w[8];
#pragma unroll
    for (int t = 0; t < 4; ++t) Q::pair(segment, block, t, w[t], w[t + 4]);
    const int place = T::place_of_row(row);
    std::uint8_t* to = shared + T::kWeights + buffer * T::kWeightBytes + place * T::kStep;
    *reinterpret_cast<uint4*>(to + ((2 * b) ^ place % 8) * 16) = make_uint4(w[0], w[1], w[2], w[3]);
    *reinterpret_cast<uint4*>(to + ((2 * b + 1) ^ place % 8) * 16) = make_uint4(w[4], w[5], w[6], w[7]);

    const bool exists = (s * 4 + b) * 32 < args.cols;
    const int at = (buffer * T::kGroups + T::kParts * b) * T::kRowPitch + row;
    auto* ws = reinterpret_cast<float*>(shared + T::kWs) + at;
    auto* minus_wm = reinterpret_cast<float*>(shared + T::kMin) + at;
#pragma unroll
    for (int part = 0; part < T::kParts; ++part) {
      ws[part * T::kRowPitch] = exists ? group_scale<Q>(segment, T::kParts * block + part) : 0.0f;
      if constexpr (Q::kMins) {
        minus_wm[part * T::kRowPitch] = exists ? Q::minus_min(segment, T::kParts * block + part) : 0.0f;
      }
    }
  }
};

/// What a block works on: which product, row tile and columns. False: nothing. Writes the columns to shared memory.
struct TilePlace {
  int product = 0, row_tile = 0, expert = 0, columns = 0;
};
template <typename T>
__device__ inline bool find_place(const TileArgs& args, std::uint8_t* shared, TilePlace& place) {
  const bool experts = args.sorted != nullptr;
  place.row_tile = static_cast<int>(experts ? blockIdx.x : blockIdx.y);
  while (place.row_tile >= args.products[place.product].tiles_end) ++place.product;
  if (place.product > 0) place.row_tile -= args.products[place.product - 1].tiles_end;
  int first = static_cast<int>(blockIdx.x) * T::kWidth;
  if (experts) {
    const int3 tile = expert_tile<T::kWidth>(args, static_cast<int>(blockIdx.y));
    if (tile.z == 0) return false;
    place.expert = tile.x, first = tile.y, place.columns = tile.z;
  } else {
    place.columns = min(args.x_rows - first, T::kWidth);
  }
  auto* columns = reinterpret_cast<Column*>(shared + T::kColumns);
  for (int i = static_cast<int>(threadIdx.x); i < T::kWidth; i += T::kThreads) {
    columns[i] = column_at(args, first, i, place.columns);
  }
  return true;
}

/// Blocks that share weights start together: their raw bytes come from device memory once.
inline dim3 tile_grid(const TileArgs& args, int row_tiles, int max_tiles) {
  const auto tiles = static_cast<unsigned>(max_tiles), rows = static_cast<unsigned>(row_tiles);
  return args.sorted == nullptr ? dim3(tiles, rows) : dim3(rows, tiles);
}

}  // namespace millrace::kernels::cuda
