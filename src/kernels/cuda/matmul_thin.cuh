// The kernel for few rows of x (5 to 64), bound by device memory and then by the fold of integer sums. A block computes
// tiles of kRows weight rows (in pairs: half of them the gate's, half up's) by kWidth columns, one after the other, in
// steps of kSegments segments. Two warps do nothing but copy a step's raw weights and activations, as they lie, to one
// of kStages places in shared memory, as far ahead as places are free; weights of the first steps before the launch's
// predecessors have ended. (The copy engine is no help: it takes some 65 cycles a piece.) The other warps each take
// 16 rows by kWarpWidth columns of one of the step's segments: they decode weights from the raw bytes into fragments,
// which are multiplied in one instruction a block of 32 and eight columns. Where a step has several segments, their
// sums meet in shared memory, and each thread adds those of its own few outputs in ascending order.
//
// Tiles are built for blocks of 227 KiB where has_large_blocks() (matmul_launch.cuh), and elsewhere for blocks of 99.
#pragma once

#include "kernels/cuda/landing.cuh"
#include "kernels/cuda/matmul_args.cuh"
#include "kernels/cuda/matmul_thin_launch.cuh"
#include "kernels/cuda/quads.cuh"
#include "kernels/cuda/quantize.cuh"

namespace millrace::kernels::cuda {

/// kMostBytes: of shared memory that a block may have; kThinBytes where has_large_blocks() alone, less elsewhere alone.
template <DType kDType, int kRowCount, int kColumnCount, int kSegmentCount, int kWarpColumnCount,
          int kMostBytes = kThinBytes>
struct Thin {
  using Q = Quads<kDType>;
  static constexpr bool kSixBits = kDType == DType::q4_k || kDType == DType::q5_k;
  static constexpr int kRows = kRowCount, kWidth = kColumnCount, kSegments = kSegmentCount;
  static constexpr int kWarpWidth = kWarpColumnCount, kCols = kWarpWidth / 8;
  static constexpr int kRowWarps = kRows / 16, kColumnWarps = kWidth / kWarpWidth;
  static constexpr int kWarps = kSegments * kRowWarps * kColumnWarps;  // that multiply
  static constexpr int kCopyThreads = 64, kThreads = 32 * kWarps + kCopyThreads;
  static constexpr int kGroups = Q::kHalves ? 16 : 8;  // scale groups of a segment
  static constexpr int kFactors = Q::kMins ? 2 : 1;    // ws, and -wm
  static constexpr bool kLarge = kMostBytes == kThinBytes;
  static_assert((kWarps == 8 || kWarps == 4) && (kCols == 1 || kCols % 2 == 0));

  static constexpr int odd_chunks(int bytes) { return 16 * ((bytes + 15) / 16 | 1); }
  static constexpr int kRawPitch = odd_chunks(kSegments * Q::kBytes + (Q::kAlign < 16 ? 15 : 0));
  static constexpr int kInputPitch = kSegments * kSegment + 16;
  static constexpr int kScalePitch = kSegments * kSegment / 32 * int{sizeof(Q8Scale)} + 16;
  static constexpr int kInputs = kRows * kRawPitch + 16;  // in a place, after the raw rows
  static constexpr int kScales = kInputs + kWidth * kInputPitch;
  static constexpr int kPlaceBytes = kScales + kWidth * kScalePitch;

  static constexpr int kFactorBytes = kGroups * 16 * kFactors * 4;  // of a warp: float [groups][8][2][factors]
  static constexpr int kSumPitch = kRows + 4;                       // floats
  static constexpr int kSumBytes = kSegments * kWidth * kSumPitch * 4;
  static constexpr int kSumPlaces = kSegments > 1 ? 2 : 1;
  static constexpr int kRestBytes = kWarps * kFactorBytes + kSumPlaces * kSumBytes + 128;
  // Two blocks a multiprocessor where their places fit: one fills while the other ends.
  static constexpr int kBlocks = 2 * (2 * kPlaceBytes + kRestBytes) + 1024 <= kMostBytes ? 2 : 1;
  static constexpr int kFit = ((kMostBytes - 1024) / kBlocks - kRestBytes) / kPlaceBytes;
  static constexpr int kStages = kFit < 4 ? kFit : 4;
  static constexpr bool kFits = kStages >= 2;

  // The block's memory, in this order.
  static constexpr int kFactorsAt = kStages * kPlaceBytes;
  static constexpr int kSumsAt = kFactorsAt + kWarps * kFactorBytes;
  static constexpr int kBarriersAt = kSumsAt + kSumPlaces * kSumBytes;  // Landing and Departure [stages], Departure
  static constexpr int kBytes = kBarriersAt + 128;

  // Outputs that a thread adds up and writes: of one row of each 32, in kOwn / kRowSets columns.
  static constexpr int kRowSets = kRows / 32;
  static constexpr int kOwn = kRowSets * kWidth / kWarps;
  static_assert(kRows % 32 == 0 && kWidth % kWarps == 0);
};

/// Of Q4_K and Q5_K: scale() and minus_min() of the four groups of a half of a segment, which begins with d, dmin and
/// the packed scales.
__device__ inline void six_bit_factors(const std::uint8_t* segment, int half, float (&ws)[4], float (&minus_wm)[4]) {
  const uint4 head = *reinterpret_cast<const uint4*>(segment);
  const float2 d = __half22float2(*reinterpret_cast<const __half2*>(&head.x));
  const std::uint32_t sc = half == 0 ? head.y & 0x3F3F3F3Fu : (head.w & 0x0F0F0F0Fu) | (head.y >> 2 & 0x30303030u);
  const std::uint32_t m = half == 0 ? head.z & 0x3F3F3F3Fu : (head.w >> 4 & 0x0F0F0F0Fu) | (head.z >> 2 & 0x30303030u);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    ws[i] = d.x * static_cast<float>(sc >> (8 * i) & 255);
    minus_wm[i] = -d.y * static_cast<float>(m >> (8 * i) & 255);
  }
}

/// A step of a row tile.
struct ThinStep {
  int row_tile, step;
};

template <typename T>
struct ThinBlock {
  using Q = typename T::Q;
  std::uint8_t* shared;
  const TileArgs& args;
  int first_column, columns, lane, row_bytes, segments, steps, row_tiles;

  __device__ Landing& landing(int stage) const { return reinterpret_cast<Landing*>(shared + T::kBarriersAt)[stage]; }
  __device__ Departure& departure(int stage) const {
    return reinterpret_cast<Departure*>(shared + T::kBarriersAt)[T::kStages + stage];
  }
  __device__ Departure& sums_written() const { return departure(T::kStages); }
  __device__ std::uint8_t* place(int stage) const { return shared + stage * T::kPlaceBytes; }

  __device__ int product_of(int row_tile) const {
    int product = 0;
    while (row_tile >= args.products[product].tiles_end) ++product;
    return product;
  }
  /// The tile's first row in its product (in pairs: of both).
  __device__ int first_row(int row_tile, int product) const {
    const int rows = args.products[product].up != nullptr ? T::kRows / 2 : T::kRows;
    return rows * (product == 0 ? row_tile : row_tile - args.products[product - 1].tiles_end);
  }
  /// The row of its matrix that row r of the tile is; the last one for those beyond.
  __device__ unsigned row_at(const TileProduct& product, int first, int r) const {
    return static_cast<unsigned>(min(first + (product.up != nullptr ? r % (T::kRows / 2) : r), product.rows - 1));
  }
  __device__ ThinStep after(ThinStep at) const {
    return ++at.step < steps ? at : ThinStep{at.row_tile + static_cast<int>(gridDim.y), 0};
  }
  /// Elements of a row that step s has.
  __device__ int elements(int s) const {
    return min(T::kSegments * kSegment, args.cols - s * (T::kSegments * kSegment));
  }

  // --- The warps that copy: eight threads a row or column ---

  __device__ void copy_weights(ThinStep at, int stage, int thread) const {
    const int index = product_of(at.row_tile), first = first_row(at.row_tile, index), part = thread % 8;
    const TileProduct& product = args.products[index];
    const int bytes = elements(at.step) / Q::kUnit * (Q::kUnit * Q::kBytes / kSegment);
#pragma unroll
    for (int i = 0; i < T::kRows / 8; ++i) {
      const int r = thread / 8 + 8 * i;
      const std::byte* const* entry = product.up != nullptr && r >= T::kRows / 2 ? product.up : product.weight;
      const std::uint64_t offset = std::uint64_t{row_at(product, first, r)} * static_cast<unsigned>(row_bytes) +
                                   static_cast<unsigned>(at.step) * (T::kSegments * Q::kBytes);
      const int skew = Q::kAlign < 16 ? static_cast<int>(offset & 15) : 0;
      const std::byte* from = *entry + (offset - static_cast<unsigned>(skew)) + 16 * part;
      const unsigned to = shared_address(place(stage)) + r * T::kRawPitch + 16 * part;
      const int units = (skew + bytes + 15) / 16;
#pragma unroll
      for (int c = 0; c < T::kRawPitch / 16; c += 8)
        if (c + part < units) copy_unit(to + 16 * c, from + 16 * c);
    }
  }

  __device__ void copy_inputs(ThinStep at, int stage, int thread) const {
    const int count = elements(at.step), part = thread % 8;
    for (int c = thread / 8; c < columns; c += 8) {
      const std::int64_t element = std::int64_t{first_column + c} * args.cols + at.step * (T::kSegments * kSegment);
      const auto* q = reinterpret_cast<const std::byte*>(args.x.q + element) + 16 * part;
      const auto* scale = reinterpret_cast<const std::byte*>(args.x.scale + element / 32) + 16 * part;
      const unsigned to = shared_address(place(stage)) + 16 * part;
#pragma unroll
      for (int i = 0; i < T::kSegments * kSegment / 16; i += 8)
        if (16 * (i + part) < count) copy_unit(to + T::kInputs + c * T::kInputPitch + 16 * i, q + 16 * i);
#pragma unroll
      for (int i = 0; i < T::kSegments * kSegment / 32; i += 8)
        if (32 * (i + part) < count) copy_unit(to + T::kScales + c * T::kScalePitch + 16 * i, scale + 16 * i);
    }
  }

  __device__ void copy(ThinStep first, int thread) const {
    ThinStep at = first;
    for (int stage = 0; stage < T::kStages && at.row_tile < row_tiles; ++stage, at = after(at))
      copy_weights(at, stage, thread);
    wait_for_predecessor();
    at = first;
    int stage = 0;
    for (int round = 0; at.row_tile < row_tiles; at = after(at)) {
      if (round > 0) {
        departure(stage).await(round - 1);
        copy_weights(at, stage, thread);
      }
      copy_inputs(at, stage, thread);
      landing(stage).started();
      if (++stage == T::kStages) stage = 0, ++round;
    }
    copies_wait<0>();
  }

  // --- The warps that multiply ---

  /// Decodes the factors of 16 rows of the segment whose row r lies at `row`, r being lane % 16: a half of the groups
  /// each lane.
  __device__ void decode_factors(const std::uint8_t* row, float* factors) const {
    constexpr int kHalf = T::kGroups / 2;
    const int half = lane / 16, r = lane % 16;
    float ws[kHalf], minus_wm[kHalf];
    if constexpr (T::kSixBits) {
      six_bit_factors(row, half, ws, minus_wm);
    } else {
#pragma unroll
      for (int i = 0; i < kHalf; ++i) {
        ws[i] = group_scale<Q>(row, half * kHalf + i);
        if constexpr (Q::kMins) minus_wm[i] = Q::minus_min(row, half * kHalf + i);
      }
    }
    float* to = factors + (half * kHalf * 16 + r % 8 * 2 + r / 8) * T::kFactors;
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
      if constexpr (Q::kMins) {
        *reinterpret_cast<float2*>(to + i * 32) = make_float2(ws[i], minus_wm[i]);
      } else {
        to[i * 16] = ws[i];
      }
    }
  }

  /// The factors of the lane's two rows in a group.
  __device__ void load_factors(const float* factors, int group, float (&ws)[2], float (&minus_wm)[2]) const {
    if constexpr (Q::kMins) {
      const float4 v = *reinterpret_cast<const float4*>(factors + group * 32 + lane / 4 * 4);
      ws[0] = v.x, minus_wm[0] = v.y, ws[1] = v.z, minus_wm[1] = v.w;
    } else {
      const float2 v = *reinterpret_cast<const float2*>(factors + group * 16 + lane / 4 * 2);
      ws[0] = v.x, ws[1] = v.y;
    }
  }

  /// The scales of a block of 32 of the lane's two columns of eight; `from`: of the block, of the first of the two.
  __device__ void load_scales(const std::uint8_t* from, float (&dx)[2], float (&ds)[2][2]) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const auto* scale = reinterpret_cast<const Q8Scale*>(from + i * T::kScalePitch);
      if constexpr (Q::kMins && Q::kHalves) {
        const float4 v = *reinterpret_cast<const float4*>(scale);
        const int sums = __float_as_int(v.w);
        dx[i] = v.x;
        ds[0][i] = v.x * static_cast<float>(static_cast<std::int16_t>(sums));
        ds[1][i] = v.x * static_cast<float>(sums >> 16);
      } else if constexpr (Q::kMins) {
        const float2 v = *reinterpret_cast<const float2*>(scale);
        dx[i] = v.x, ds[0][i] = v.y;
      } else {
        dx[i] = scale->d;
      }
    }
  }

  /// The segment's sums: rows[h] of the segment, h the lane's two rows; x and scales: of the segment, of the warp's
  /// columns.
  __device__ void multiply(const std::uint8_t* const (&rows)[2], const std::uint8_t* x, const std::uint8_t* scales,
                           const float* factors, int blocks, float (&acc)[T::kCols][4]) const {
    const int t = lane % 4;
    const std::uint8_t* x_from =
        x + lane / 8 % 2 * 16 +
        (T::kCols == 1 ? lane % 8 * T::kInputPitch + lane / 16 * 32 : (lane % 8 + lane / 16 * 8) * T::kInputPitch);
    const std::uint8_t* scales_from = scales + 2 * t * T::kScalePitch;
#pragma unroll
    for (int n = 0; n < T::kCols; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) acc[n][i] = 0;
    std::uint32_t in[(T::kCols + 1) / 2][4];
#pragma unroll
    for (int b = 0; b < kSegment / 32; ++b) {
      if (Q::kUnit < kSegment && b >= blocks) break;
      if (T::kCols > 1 || b % 2 == 0) {
#pragma unroll
        for (int n = 0; n < (T::kCols + 1) / 2; ++n) load_matrices(in[n], x_from + 32 * b + 16 * n * T::kInputPitch);
      }
      std::uint32_t w[4];
      Q::pair(rows[0], b, t, w[0], w[2]);
      Q::pair(rows[1], b, t, w[1], w[3]);
      constexpr int kParts = Q::kHalves ? 2 : 1;
      float ws[kParts][2], minus_wm[kParts][2];
#pragma unroll
      for (int part = 0; part < kParts; ++part) load_factors(factors, kParts * b + part, ws[part], minus_wm[part]);
#pragma unroll
      for (int n = 0; n < T::kCols; ++n) {
        float dx[2], ds[2][2];
        load_scales(scales_from + 8 * n * T::kScalePitch + b * int{sizeof(Q8Scale)}, dx, ds);
        const int at = T::kCols == 1 ? b % 2 * 2 : n % 2 * 2;
        const std::uint32_t x0 = in[n / 2][at], x1 = in[n / 2][at + 1];
        int d[4];
        if constexpr (Q::kHalves) {
          multiply_16(d, w[0], w[1], x0);
          add_term<Q::kMins, false>(acc[n], d, ws[0], minus_wm[0], dx, ds[0]);
          multiply_16(d, w[2], w[3], x1);
          add_term<Q::kMins, false>(acc[n], d, ws[1], minus_wm[1], dx, ds[1]);
        } else {
          multiply_32(d, w, x0, x1);
          add_term<Q::kMins, false>(acc[n], d, ws[0], minus_wm[0], dx, ds[0]);
        }
      }
    }
  }

  // --- Sums ---

  __device__ float* sums(int buffer) const {
    return reinterpret_cast<float*>(shared + T::kSumsAt + buffer * T::kSumBytes);
  }
  /// Writes a warp's sums of segment k of a step.
  __device__ void write_sums(int buffer, int k, int warp_row, int warp_column, const float (&acc)[T::kCols][4]) const {
    float* to = sums(buffer) + (k * T::kWidth + warp_column + lane % 4 * 2) * T::kSumPitch + warp_row + lane / 4;
#pragma unroll
    for (int n = 0; n < T::kCols; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) to[(8 * n + i % 2) * T::kSumPitch + i / 2 * 8] = acc[n][i];
    }
  }
  /// Of the thread's o-th output.
  __device__ static int column_of(int warp, int o) { return warp * (T::kWidth / T::kWarps) + o / T::kRowSets; }
  __device__ int row_of(int o) const { return o % T::kRowSets * 32 + lane; }

  /// Adds `count` segments' sums to the thread's totals, in ascending order.
  __device__ void add_sums(int buffer, int warp, int count, float (&total)[T::kOwn]) const {
#pragma unroll
    for (int o = 0; o < T::kOwn; ++o) {
      const float* from = sums(buffer) + column_of(warp, o) * T::kSumPitch + row_of(o);
#pragma unroll
      for (int k = 0; k < T::kSegments; ++k)
        if (k < count) total[o] += from[k * T::kWidth * T::kSumPitch];
    }
  }

  /// Writes the thread's outputs of a row tile.
  __device__ void finish(int row_tile, int warp, const float (&total)[T::kOwn]) const {
    const int index = product_of(row_tile), first = first_row(row_tile, index);
    const TileProduct& product = args.products[index];
    if (product.up != nullptr) {
      if constexpr (T::kRows >= 64) finish_pairs(product, first, warp, total);
      return;
    }
    const auto* bias = product.bias == nullptr ? nullptr : reinterpret_cast<const float*>(*product.bias);
#pragma unroll
    for (int o = 0; o < T::kOwn; ++o) {
      const int column = column_of(warp, o), row = first + row_of(o);
      if (column >= columns || row >= product.rows) continue;
      float v = total[o];
      if (bias != nullptr) v += bias[row];
      float* y = product.y + (first_column + column) * product.y_stride + row;
      *y = args.effect == Effect::add ? *y + v : v;
    }
  }
  __device__ void finish_pairs(const TileProduct& product, int first, int warp, const float (&total)[T::kOwn]) const {
    const auto* bias = product.bias == nullptr ? nullptr : reinterpret_cast<const float*>(*product.bias);
    const auto* up_bias = product.up_bias == nullptr ? nullptr : reinterpret_cast<const float*>(*product.up_bias);
#pragma unroll
    for (int o = 0; o < T::kOwn; ++o) {
      if (o % T::kRowSets >= T::kRowSets / 2) continue;  // of up
      const int column = column_of(warp, o), row = first + row_of(o);
      if (column >= columns) continue;
      const bool exists = row < product.rows;
      float gate = total[o], up = total[o + T::kRowSets / 2];
      if (bias != nullptr && exists) gate += bias[row];
      if (up_bias != nullptr && exists) up += up_bias[row];
      const float v = gated(args.gate, gate, up);
      const std::int64_t target = first_column + column;
      if (product.y != nullptr && exists) product.y[target * product.y_stride + row] = v;
      if (args.y_q8.q != nullptr && row - lane < product.rows) {
        const std::int64_t block = target * (product.rows / 32) + (row - lane) / 32;
        const float value[1] = {v};
        quantize_block(value, args.y_q8.q + block * 32, args.y_q8.scale + block);
      }
    }
  }

  __device__ static void meet() { asm volatile("bar.sync 1, %0;" ::"n"(32 * T::kWarps) : "memory"); }

  __device__ void work(ThinStep first, int warp) const {
    const int k = warp / (T::kRowWarps * T::kColumnWarps), in_segment = warp % (T::kRowWarps * T::kColumnWarps);
    const int warp_row = in_segment % T::kRowWarps * 16, warp_column = in_segment / T::kRowWarps * T::kWarpWidth;
    auto* const factors = reinterpret_cast<float*>(shared + T::kFactorsAt + warp * T::kFactorBytes);
    float total[T::kOwn] = {}, acc[T::kCols][4] = {}, tile_total[T::kSegments > 1 ? 1 : T::kCols][4] = {};
    int stage = 0, round = 0, turn = 0;
    ThinStep before{};  // whose sums are not yet added
    const auto add_before = [&] {
      if (turn == 0) return;
      sums_written().await(turn - 1);
      add_sums((turn - 1) % 2, warp, segments - before.step * T::kSegments, total);
      if (before.step + 1 < steps) return;
      finish(before.row_tile, warp, total);
#pragma unroll
      for (float& t : total) t = 0;
    };
    for (ThinStep at = first; at.row_tile < row_tiles; at = after(at)) {
      const int j = at.step * T::kSegments + k;
      landing(stage).await(round);
      if (j < segments && warp_column < columns) {
        const int index = product_of(at.row_tile), row0 = first_row(at.row_tile, index);
        const std::uint8_t* const raw = place(stage) + k * Q::kBytes;
        const auto segment_row = [&](int r) {
          const std::uint8_t* row = raw + r * T::kRawPitch;
          if constexpr (Q::kAlign < 16)
            row += (row_at(args.products[index], row0, r) * static_cast<unsigned>(row_bytes) +
                    static_cast<unsigned>(at.step) * (T::kSegments * Q::kBytes)) &
                   15;
          return row;
        };
        __syncwarp();
        decode_factors(segment_row(warp_row + lane % 16), factors);
        __syncwarp();
        const std::uint8_t* const rows[2] = {segment_row(warp_row + lane / 4), segment_row(warp_row + lane / 4 + 8)};
        multiply(rows, place(stage) + T::kInputs + warp_column * T::kInputPitch + k * kSegment,
                 place(stage) + T::kScales + warp_column * T::kScalePitch + k * (kSegment / 32 * int{sizeof(Q8Scale)}),
                 factors, (args.cols - j * kSegment) / 32, acc);
      }
      departure(stage).leave();
      if (++stage == T::kStages) stage = 0, ++round;
      if constexpr (T::kSegments > 1) {
        add_before();
        write_sums(turn % 2, k, warp_row, warp_column, acc);
        sums_written().leave();
        before = at;
        ++turn;
      } else {
#pragma unroll
        for (int n = 0; n < T::kCols; ++n)
#pragma unroll
          for (int i = 0; i < 4; ++i) tile_total[n][i] += acc[n][i];
        if (at.step + 1 < steps) continue;
        meet();  // the tile before has been read
        write_sums(0, 0, warp_row, warp_column, tile_total);
        meet();
        add_sums(0, warp, 1, total);
        finish(at.row_tile, warp, total);
#pragma unroll
        for (float& t : total) t = 0;
#pragma unroll
        for (int n = 0; n < T::kCols; ++n)
#pragma unroll
          for (int i = 0; i < 4; ++i) tile_total[n][i] = 0;
      }
    }
    if constexpr (T::kSegments > 1) add_before();
  }
};

template <typename T>
__device__ void multiply_thin(const TileArgs& args) {
  using Q = typename T::Q;
  extern __shared__ __align__(1024) std::uint8_t shared[];
  const int tid = static_cast<int>(threadIdx.x), warp = tid / 32;
  const int first_column = static_cast<int>(blockIdx.x) * T::kWidth;
  ThinBlock<T> block{shared, args, first_column, min(args.x_rows - first_column, T::kWidth), tid % 32};
  block.row_bytes = args.cols / Q::kUnit * (Q::kUnit * Q::kBytes / kSegment);
  block.segments = (args.cols + kSegment - 1) / kSegment;
  block.steps = (block.segments + T::kSegments - 1) / T::kSegments;
  block.row_tiles = args.products[kMostTileProducts - 1].tiles_end;
  if (tid == 0) {
    for (int stage = 0; stage < T::kStages; ++stage) {
      block.landing(stage).open(T::kCopyThreads);
      block.departure(stage).open(32 * T::kWarps);
    }
    block.sums_written().open(32 * T::kWarps);
  }
  __syncthreads();
  allow_successor();
  const ThinStep first{static_cast<int>(blockIdx.y), 0};
  if (warp >= T::kWarps) return block.copy(first, tid - 32 * T::kWarps);
  wait_for_predecessor();
  block.work(first, warp);
}

template <typename T>
__global__ void __launch_bounds__(T::kThreads, T::kBlocks) thin_kernel(const __grid_constant__ TileArgs args) {
  static_assert(T::kFits);
  if constexpr (T::kLarge == (MILLRACE_LARGE_BLOCKS == 1)) multiply_thin<T>(args);
}

/// max_tiles: of columns. Blocks are as many as run at once.
template <typename T>
cudaError_t launch_thin(TileArgs args, int max_tiles, cudaStream_t stream) {
  if (args.products[0].up != nullptr && T::kRows < 64) return cudaErrorInvalidValue;
  const int row_tiles = count_row_tiles(args.products, T::kRows, T::kRows / 2);
  const int share = div_up(T::kBlocks * multiprocessor_count(), max_tiles);
  const dim3 grid(static_cast<unsigned>(max_tiles), static_cast<unsigned>(share < row_tiles ? share : row_tiles));
  return launch_large(thin_kernel<T>, grid, T::kThreads, T::kBytes, stream, 1, args);
}

/// The first of two tiles of one shape, or the second, which takes less memory, where the first has no room for two
/// steps.
template <typename First, typename Second>
using FitsOr = std::conditional_t<First::kFits, First, Second>;

/// A shape's tile for blocks of kLeastBlockShared.
template <DType kDType, int kRows, int kWidth, int kSegments, int kWarpWidth>
using SmallThin = Thin<kDType, kRows, kWidth, kSegments, kWarpWidth, int{kLeastBlockShared}>;

template <DType kDType>
cudaError_t launch_small_thin_shape(ThinShape shape, const TileArgs& args, int max_tiles, cudaStream_t stream) {
  switch (shape) {
    case ThinShape::thin_32x8:
      return launch_thin<FitsOr<SmallThin<kDType, 32, 8, 4, 8>, SmallThin<kDType, 32, 8, 2, 8>>>(args, max_tiles,
                                                                                                 stream);
    case ThinShape::thin_64x8:
      return launch_thin<FitsOr<SmallThin<kDType, 64, 8, 2, 8>, SmallThin<kDType, 64, 8, 1, 8>>>(args, max_tiles,
                                                                                                 stream);
    case ThinShape::thin_32x16:
      return launch_thin<SmallThin<kDType, 32, 16, 2, 8>>(args, max_tiles, stream);
    case ThinShape::thin_64x16:
      return launch_thin<FitsOr<SmallThin<kDType, 64, 16, 2, 16>, SmallThin<kDType, 64, 16, 1, 16>>>(args, max_tiles,
                                                                                                     stream);
    case ThinShape::thin_128x32:
      return launch_thin<FitsOr<SmallThin<kDType, 128, 32, 1, 32>, SmallThin<kDType, 64, 32, 1, 16>>>(args, max_tiles,
                                                                                                      stream);
  }
  return cudaErrorInvalidValue;
}

template <DType kDType>
cudaError_t launch_thin_shape(ThinShape shape, const TileArgs& args, int max_tiles, cudaStream_t stream) {
  if (!has_large_blocks()) return launch_small_thin_shape<kDType>(shape, args, max_tiles, stream);
  switch (shape) {
    case ThinShape::thin_32x8:
      return launch_thin<Thin<kDType, 32, 8, 4, 8>>(args, max_tiles, stream);
    case ThinShape::thin_64x8:
      return launch_thin<Thin<kDType, 64, 8, 2, 8>>(args, max_tiles, stream);
    case ThinShape::thin_32x16:
      return launch_thin<Thin<kDType, 32, 16, 4, 16>>(args, max_tiles, stream);
    case ThinShape::thin_64x16:
      return launch_thin<Thin<kDType, 64, 16, 2, 16>>(args, max_tiles, stream);
    case ThinShape::thin_128x32:
      return launch_thin<Thin<kDType, 128, 32, 1, 32>>(args, max_tiles, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace millrace::kernels::cuda
