// The matrix-vector kernel: one for each dtype, number of rows of x, and how rows of the matrix lie.
//
// A matrix is a list of segments of 256 weights, row after row. A block takes a range of rows, each of its warps a part
// of it, and a warp works two lists of rows side by side (the two halves of its rows, or gate and up), so that what is
// read of x serves both. A tile is up to 32 consecutive segments of each list, a pair a lane. A warp has its own ring
// of tiles in shared memory and refills a stage as soon as its lanes have read it, so that nothing but the start
// synchronizes the block. A lane's sums go to shared memory, and when a few rows are complete, one lane a row (and row
// of x) adds the row's segments in ascending order: the order of the contract.
//
// Weights do not depend on the kernels before: the ring fills before their end is waited for. The next kernel is let go
// when a block has ordered its last tile and has its activations, and fills its own ring while this one finishes.
#pragma once

#include <atomic>
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/exp.cuh"
#include "kernels/cuda/launchers.h"
#include "kernels/cuda/matvec_copy.cuh"
#include "kernels/cuda/matvec_decode.cuh"
#include "kernels/cuda/pdl.cuh"
#include "kernels/cuda/quantize.cuh"

namespace millrace::kernels::cuda {

/// At most, in a block that works `rows` rows of x.
__host__ __device__ constexpr int matvec_threads(int rows) { return rows == 1 ? 512 : 256; }

/// Division of n < 2^31 by a constant of the launch.
struct Divisor {
  std::uint32_t value = 1, multiplier = 1, shift = 0;

  Divisor() = default;
  explicit Divisor(int d) : value(static_cast<std::uint32_t>(d)) {
    while ((std::uint64_t{1} << shift) < value) ++shift;
    multiplier = static_cast<std::uint32_t>(((((std::uint64_t{1} << shift) - value) << 32) / value) + 1);
  }
  __device__ int quotient(int n) const {
    return static_cast<int>((__umulhi(static_cast<std::uint32_t>(n), multiplier) + static_cast<std::uint32_t>(n)) >>
                            shift);
  }
};

/// What the kernel is asked to do. Rows are counted through: over the products, or over the entries of a mixture.
struct MatvecArgs {
  const std::byte* const* weight[kMostProducts];
  const std::byte* const* up;                   // a pair's
  const std::byte* const* bias[kMostProducts];  // a pair: the gate's and the up's
  bool addends;               // in the place of entries, bias has Product::addend of each: float [x_rows, rows]
  const std::int32_t* ready;  // MatmulCall::ready
  float* y[kMostProducts];
  std::int64_t y_stride[kMostProducts];
  std::int32_t products;
  std::int32_t first_row[kMostProducts + 1];  // of each product, and the end; experts: 0 and the rows of a matrix

  // Experts, if chosen is set.
  const std::int32_t* chosen;
  const std::byte* const* scale[2];  // of each expert a number, for its products with weight[0], and of a pair's up
  std::int32_t address_stride, bias_stride;
  Divisor entries_per_x, matrix_rows;
  const std::byte* const* shared[2];  // of each row's last entry, the matrix and a pair's up; or none
  Divisor places;                     // entries of a row, if shared is set

  const float* x;
  std::int64_t x_stride;
  Q8 x_q8;
  Q8 y_q8;
  std::int32_t x_rows, cols;
  std::int64_t row_bytes;

  enum Effect : std::int32_t { kStore, kAdd, kPair, kGated } effect;  // kGated: y = gated(y, product)
  Gate gate;

  // The plan. A granule is what one block must have whole: a row, or 32 if the result is quantized.
  std::int32_t granule_rows, block_granules, blocks_with_one_more;  // the first blocks have one granule more
  std::int32_t warp_rows;
  std::int32_t segments;                            // of a row
  Divisor by_segments, by_sum_rows, by_row_blocks;  // the last: blocks of 32 in a row of x
  std::int32_t tile_items;                          // at most 32
  std::int32_t tile_rows, tile_segments;            // a tile's items as whole rows of segments and the rest
  std::int32_t sum_rows;            // rows of a list whose segments are added at once; times rows of x at most 16
  std::int32_t partial_items;       // places for sums of segments, a multiple of `segments`
  std::int32_t stages, half_bytes;  // half of a stage is one list's
  std::int32_t x_at, partial_at, result_at, barrier_at, ring_at;  // in shared memory; a grid's points come first
#ifdef MATVEC_TUNING
  unsigned long long* stamps;
  int early;
#endif
};

/// Activations in shared memory, a segment: q[256], d[8], aux[kAux]; or 256 floats. aux holds, for each scale group, an
/// int32 -offset * S, or a float dx * S for the mins. The stride is an odd multiple of 16 bytes, so that lanes on
/// consecutive segments read without conflicts.
template <DType kType>
struct XLayout {
  __host__ __device__ static constexpr int aux_words() {
    if constexpr (is_float(kType)) {
      return 0;
    } else {
      return Decoder<kType>::kMin || Decoder<kType>::kOffset != 0 ? kSegment / Decoder<kType>::kGroup : 0;
    }
  }
  static constexpr int kScaleAt = kSegment, kAuxAt = kSegment + 32;
  static constexpr int kBytes = is_float(kType) ? 4 * kSegment : kAuxAt + 4 * aux_words();
  static constexpr int kStride = kBytes / 16 % 2 == 1 ? kBytes : kBytes + 16;
};

/// How rows of the matrix lie.
///   even    segments are whole and begin where the dtype's decoder wants them
///   ragged  they do not; each lane copies its own to where it wants it
///   packed  the same, but a tile is one copy of the bytes as they lie (of a list's rows nothing lies between), and
///           lanes read at any address: copies of a hundred bytes keep the copy engine busy, not the memory
enum class RowLayout : std::uint8_t { even, ragged, packed };

/// Weights in shared memory: a segment every kStride bytes (packed: at most). Where segments can be read without
/// conflicts as they lie, a tile is one copy, else one a lane.
template <DType kType, RowLayout kRows>
struct WLayout {
  static constexpr bool kRagged = kRows != RowLayout::even;
  __host__ __device__ static constexpr int segment_bytes() {
    if constexpr (is_float(kType)) {
      return Decoder<kType>::kElementBytes * kSegment;
    } else {
      return Decoder<kType>::kBytes;
    }
  }
  __host__ __device__ static constexpr int alignment() {
    if constexpr (is_float(kType)) {
      return kRagged ? 2 : 16;
    } else {
      return kRagged ? 2 : Decoder<kType>::kAlign;
    }
  }
  __host__ __device__ static constexpr int odd_16(int bytes) {
    return (bytes + 15) / 16 % 2 == 1 ? (bytes + 15) / 16 * 16 : (bytes + 31) / 16 * 16;
  }
  static constexpr int kBytes = segment_bytes();
  static constexpr bool kPacked = kRows == RowLayout::packed;
  static constexpr bool kOneCopy = kPacked || (!kRagged && (alignment() < 16 || kBytes / 16 % 2 == 1));
  static constexpr int kStride = kOneCopy ? kBytes : odd_16(kRagged ? kBytes + 30 : kBytes);
};

// ---------------------------------------------------------------------------------------------------------------------
// A segment

/// Whether D has SignedLevels.
template <typename D>
concept has_levels = requires {
  typename D::Levels;
};

/// Points of kType's grid; 0: it has none.
template <DType kType>
__host__ __device__ constexpr int grid_points() {
  if constexpr (requires { Decoder<kType>::kPoints; }) {
    return Decoder<kType>::kPoints;
  } else {
    return 0;
  }
}

/// A segment's words, and the grid that its weights lie on.
template <typename Reader>
struct OnGrid : Reader {
  __device__ OnGrid(std::uint32_t address, const std::uint32_t* grid) : Reader(address), points(grid) {}
  const std::uint32_t* points;
};
template <typename Reader>
struct OffGrid : Reader {
  __device__ OffGrid(std::uint32_t address, const std::uint32_t*) : Reader(address) {}
};

/// acc[l][m] = the sum of the `count` terms of list l's segment with row m of x. points: the grid's, in shared memory.
/// REQUIRES: acc zero.
template <DType kType, int kM, RowLayout kRows>
__device__ __forceinline__ void quantized_segments(std::uint32_t weights, int half_bytes, const int (&heads)[2],
                                                   const std::uint32_t* points, const std::byte* x, int x_row_bytes,
                                                   int count, float (&acc)[2][kM]) {
  using D = Decoder<kType>;
  using X = XLayout<kType>;
  using W = WLayout<kType, kRows>;
  using Segment = Words<W::alignment(), D::kBytes>;
  using Reader = std::conditional_t<(grid_points<kType>() > 0), OnGrid<Segment>, OffGrid<Segment>>;
  Reader words[2] = {Reader(weights + heads[0], points), Reader(weights + half_bytes + heads[1], points)};
  const auto dot = [](std::uint32_t w, std::uint32_t q, int sum) {
    if constexpr (D::kSigned) return __dp4a(static_cast<int>(w), static_cast<int>(q), sum);
    return dp4a_unsigned(w, q, sum);
  };
#pragma unroll
  for (int b = 0; b < 8; ++b) {
    if (W::kRagged && 32 * b >= count) break;
    if constexpr (kM == 1 && has_levels<D>) {
      // A row alone pays for all that is done with its weights.
      const uint4 low = reinterpret_cast<const uint4*>(x)[2 * b], high = reinterpret_cast<const uint4*>(x)[2 * b + 1];
      const float dx = reinterpret_cast<const float*>(x + X::kScaleAt)[b];
      const std::uint32_t lows[4] = {low.x, low.y, low.z, low.w}, highs[4] = {high.x, high.y, high.z, high.w};
      int plus[2] = {}, minus[2] = {};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        std::uint32_t first, second;
        by_turns(lows[i], highs[i], first, second);
#pragma unroll
        for (int l = 0; l < 2; ++l) D::Levels::dot(D::nibbles(words[l], b, i), first, second, plus[l], minus[l]);
      }
#pragma unroll
      for (int l = 0; l < 2; ++l)
        acc[l][0] = fmaf(D::scale(words[l], b) * dx, static_cast<float>(plus[l] - minus[l]), acc[l][0]);
      continue;
    }
    std::uint32_t w[2][8];
    D::words(words[0], b, w[0]);
    D::words(words[1], b, w[1]);
#pragma unroll
    for (int m = 0; m < kM; ++m) {
      const std::byte* row = x + m * x_row_bytes;
      const uint4 low = reinterpret_cast<const uint4*>(row)[2 * b],
                  high = reinterpret_cast<const uint4*>(row)[2 * b + 1];
      const float dx = reinterpret_cast<const float*>(row + X::kScaleAt)[b];
      const int* offset = reinterpret_cast<const int*>(row + X::kAuxAt);
      const float* sum = reinterpret_cast<const float*>(row + X::kAuxAt);
#pragma unroll
      for (int l = 0; l < 2; ++l) {
        float& total = acc[l][m];
        // One scale for both halves of the block: their integers are added. Two: they stay apart.
        constexpr bool kOne = D::kGroup == 32;
        constexpr bool kSameShift = D::shift(0, 0) == D::shift(0, 1);
        int i = D::kOffset == 0 ? 0 : kOne ? offset[b] : offset[2 * b];
        int j = D::kOffset == 0 || kOne ? 0 : offset[2 * b + 1];
        i = dot(w[l][0], low.x, i), j = dot(w[l][4], high.x, j);
        i = dot(w[l][1], low.y, i), j = dot(w[l][5], high.y, j);
        i = dot(w[l][2], low.z, i), j = dot(w[l][6], high.z, j);
        i = dot(w[l][3], low.w, i), j = dot(w[l][7], high.w, j);
        if constexpr (kOne) {
          const int all = kSameShift ? (i + j) >> D::shift(b, 0) : i + (j >> D::shift(b, 1));
          total = fmaf(D::scale(words[l], b) * dx, static_cast<float>(all), total);
          if constexpr (D::kMin) total = fmaf(-D::min(words[l], b), sum[b], total);
        } else {
          total = fmaf(D::scale(words[l], 2 * b) * dx, static_cast<float>(i >> D::shift(b, 0)), total);
          if constexpr (D::kMin) total = fmaf(-D::min(words[l], 2 * b), sum[2 * b], total);
          total = fmaf(D::scale(words[l], 2 * b + 1) * dx, static_cast<float>(j >> D::shift(b, 1)), total);
          if constexpr (D::kMin) total = fmaf(-D::min(words[l], 2 * b + 1), sum[2 * b + 1], total);
        }
      }
    }
  }
}

template <DType kType, int kM, RowLayout kRows>
__device__ __forceinline__ void float_segments(std::uint32_t address, int half_bytes, const int (&heads)[2],
                                               const std::byte* x, int x_row_bytes, int count, float (&acc)[2][kM]) {
  using D = Decoder<kType>;
  const std::byte* weights = static_cast<const std::byte*>(__cvta_shared_to_generic(address));
  const std::byte* lists[2] = {weights + heads[0], weights + half_bytes + heads[1]};
  int k = 0;
  if constexpr (kRows == RowLayout::even) {
#pragma unroll 2
    for (; k + 8 <= count; k += 8) {
      float w[2][8];
#pragma unroll
      for (int l = 0; l < 2; ++l) D::eight(lists[l] + k * D::kElementBytes, w[l]);
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        const float4* row = reinterpret_cast<const float4*>(x + m * x_row_bytes + 4 * k);
        const float4 a = row[0], b = row[1];
        const float xs[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
        for (int i = 0; i < 8; ++i) {
#pragma unroll
          for (int l = 0; l < 2; ++l) acc[l][m] = fmaf(w[l][i], xs[i], acc[l][m]);
        }
      }
    }
  }
  for (; k < count; ++k) {
    const float w[2] = {D::one(lists[0] + k * D::kElementBytes), D::one(lists[1] + k * D::kElementBytes)};
#pragma unroll
    for (int m = 0; m < kM; ++m) {
      const float xk = reinterpret_cast<const float*>(x + m * x_row_bytes)[k];
#pragma unroll
      for (int l = 0; l < 2; ++l) acc[l][m] = fmaf(w[l], xk, acc[l][m]);
    }
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// The block

/// Brings consecutive rows of x into shared memory, by the whole block; in two steps, so that what the first asks for
/// need not have arrived before other work is done. The caller then waits for copies and block.
template <DType kType>
class XStaging {
 public:
  using X = XLayout<kType>;

  /// REQUIRES: the kernels before have ended.
  __device__ XStaging(const MatvecArgs& a, std::int64_t first, int rows, std::byte* target) : a_(a), target_(target) {
    if constexpr (is_float(kType)) {
      for (int r = 0; r < rows; ++r, target += a.segments * X::kStride) {
        const float* source = a.x + (first + r) * a.x_stride;
        if (a.cols % 4 == 0 && a.x_stride % 4 == 0) {
          for (int i = threadIdx.x; i < a.cols / 4; i += blockDim.x) {
            copy_16(target + i / 64 * X::kStride + i % 64 * 16, source + 4 * i);
          }
        } else {
          for (int i = threadIdx.x; i < a.cols; i += blockDim.x) {
            reinterpret_cast<float*>(target + i / kSegment * X::kStride)[i % kSegment] = source[i];
          }
        }
      }
    } else {
      const int row_blocks = a.cols / 32;
      blocks_ = rows * row_blocks;
      const std::int8_t* q = a.x_q8.q + first * a.cols;
      for (int i = threadIdx.x; i < 2 * blocks_; i += blockDim.x) {
        int in_segment;
        std::byte* segment = segment_of(i / 2, in_segment);
        copy_16(segment + 32 * in_segment + i % 2 * 16, q + 16 * i);
      }
      scales_ = reinterpret_cast<const int4*>(a.x_q8.scale + first * row_blocks);
      load(threadIdx.x);
    }
  }
  __device__ void finish() {
    if constexpr (!is_float(kType)) {
      for (int first = threadIdx.x; first < blocks_; first += kAtOnce * blockDim.x) {
        if (first >= kAtOnce * blockDim.x) load(first);
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) {
          const int i = first + j * blockDim.x;
          if (i < blocks_) store(i, loaded_[j]);
        }
      }
    }
  }

 private:
  static constexpr int kAtOnce = 4;

  /// Where the segment of block i of the rows goes, and the block's number in it.
  __device__ std::byte* segment_of(int i, int& in_segment) const {
    const int row = a_.by_row_blocks.quotient(i);
    const int in_row = i - row * static_cast<int>(a_.by_row_blocks.value);
    in_segment = in_row % 8;
    return target_ + (row * a_.segments + in_row / 8) * X::kStride;
  }
  __device__ void load(int first) {
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int i = first + j * blockDim.x;
      if (i < blocks_) loaded_[j] = scales_[i];
    }
  }
  __device__ void store(int i, const int4& loaded) const {
    using D = Decoder<kType>;
    int b;
    std::byte* segment = segment_of(i, b);
    const float d = __int_as_float(loaded.x);
    reinterpret_cast<float*>(segment + X::kScaleAt)[b] = d;
    std::int32_t* offset = reinterpret_cast<std::int32_t*>(segment + X::kAuxAt);
    float* sum = reinterpret_cast<float*>(segment + X::kAuxAt);
    if constexpr (D::kGroup == 32) {
      if constexpr (D::kOffset != 0) offset[b] = -D::kOffset * loaded.z;
      if constexpr (D::kMin) sum[b] = __int_as_float(loaded.y);
    } else {
      const int s16[2] = {static_cast<std::int16_t>(loaded.w), loaded.w >> 16};
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        if constexpr (D::kOffset != 0) offset[2 * b + h] = -D::kOffset * s16[h];
        if constexpr (D::kMin) sum[2 * b + h] = d * static_cast<float>(s16[h]);
      }
    }
  }

  const MatvecArgs& a_;
  std::byte* target_;
  int blocks_ = 0;
  const int4* scales_ = nullptr;
  int4 loaded_[kAtOnce];
};

/// The i-th of values that a kernel's arguments hold, without an index known only at run time.
template <typename T>
__device__ __forceinline__ const T& pick(const T (&of)[kMostProducts], int i) {
  static_assert(kMostProducts == 4);
  return i == 0 ? of[0] : i == 1 ? of[1] : i == 2 ? of[2] : of[3];
}

/// Of a product's matrix.
__device__ __forceinline__ int rows_of(const MatvecArgs& a, int product) {
  return product == 0   ? a.first_row[1]
         : product == 1 ? a.first_row[2] - a.first_row[1]
         : product == 2 ? a.first_row[3] - a.first_row[2]
                        : a.first_row[4] - a.first_row[3];
}

/// Where in `chosen` an entry's expert is; negative: it is of the matrix that all rows share.
__device__ __forceinline__ int chosen_at(const MatvecArgs& a, int entry) {
  if (a.shared[0] == nullptr) return entry;
  const int row = a.places.quotient(entry), places = static_cast<int>(a.places.value);
  return entry - row * places == places - 1 ? -1 : entry - row;
}

/// Consecutive rows of one matrix, or of a pair of them, and how many of them each list has.
struct Run {
  int product, entry;
  int row, rows;
  int list_rows[2];
};

/// The run that begins at a row and ends before `end`.
__device__ __forceinline__ Run run_at(const MatvecArgs& a, int row, int end) {
  Run run;
  run.product = run.entry = 0;
  int first = 0, last = a.first_row[1];
  if (a.chosen != nullptr) {
    run.entry = a.matrix_rows.quotient(row);
    first = run.entry * last;
    last += first;
  } else {
    if (a.products > 1 && row >= last) run.product = 1, first = last, last = a.first_row[2];
    if (a.products > 2 && row >= last) run.product = 2, first = last, last = a.first_row[3];
    if (a.products > 3 && row >= last) run.product = 3, first = last, last = a.first_row[4];
  }
  run.row = row - first;
  run.rows = min(end, last) - row;
  const bool pair = a.effect == MatvecArgs::kPair;
  run.list_rows[0] = pair ? run.rows : (run.rows + 1) / 2;
  run.list_rows[1] = pair ? run.rows : run.rows - run.list_rows[0];
  return run;
}

/// A warp's tiles in order, as its ring is filled.
template <DType kType, RowLayout kRows>
class Orders {
 public:
  using W = WLayout<kType, kRows>;

  __device__ Orders(const MatvecArgs& a, int first, int end, std::byte* ring, std::uint64_t* barriers, int lane)
      : a_(a), row_(first), end_(end), lane_(lane), ring_(ring), barriers_(barriers) {
    policy_ = cache_policy(a.chosen != nullptr ? Keep::normal : Keep::little);
    if (!done()) start();
  }
  __device__ bool done() const { return row_ >= end_; }

  /// Orders the next tile into the next stage. REQUIRES: not done, the stage is free.
  __device__ void order() {
    std::byte* target = ring_ + stage_ * 2 * a_.half_bytes;
    Copy copies[2];
    if constexpr (W::kPacked) {
      const std::int64_t begin = item_row_ * a_.row_bytes + item_segment_ * W::kBytes;
      next_item();
      const std::int64_t next = item_row_ * a_.row_bytes + item_segment_ * W::kBytes;
#pragma unroll
      for (int l = 0; l < 2; ++l) {
        const std::byte* source = source_[l] + begin;
        const std::uint32_t head = static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(source)) & 15;
        const int length = static_cast<int>((left_[l] <= a_.tile_items ? list_bytes_[l] : next) - begin);
        copies[l] = {target + l * a_.half_bytes, source - head, left_[l] > 0 ? (head + length + 15) & ~15u : 0};
      }
      warp_copies(copies[0], copies[1], barriers_ + stage_, lane_, policy_);
    } else if constexpr (W::kOneCopy) {
#pragma unroll
      for (int l = 0; l < 2; ++l) {
        const int items = min(a_.tile_items, left_[l]);
        const std::uint32_t head = static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(source_[l])) & 15;
        copies[l] = {target + l * a_.half_bytes, source_[l] - head,
                     items > 0 ? (head + items * W::kBytes + 15) & ~15u : 0};
        source_[l] += a_.tile_items * W::kBytes;
      }
      warp_copies(copies[0], copies[1], barriers_ + stage_, lane_, policy_);
    } else {
      const std::int64_t in_row = static_cast<std::int64_t>(item_segment_) * W::kBytes;
      const int length = static_cast<int>(min(static_cast<std::int64_t>(W::kBytes), a_.row_bytes - in_row));
#pragma unroll
      for (int l = 0; l < 2; ++l) {
        const std::byte* source = source_[l] + item_row_ * a_.row_bytes + in_row;
        const std::uint32_t head = static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(source)) & 15;
        copies[l] = {target + l * a_.half_bytes + lane_ * W::kStride, source - head,
                     lane_ < min(a_.tile_items, left_[l]) ? (head + length + 15) & ~15u : 0};
      }
      lane_copies(copies[0], copies[1], barriers_ + stage_, policy_);
      next_item();
    }
    if (++stage_ == a_.stages) stage_ = 0;
    left_[0] -= a_.tile_items;
    left_[1] -= a_.tile_items;
    if (left_[0] > 0) return;
    row_ += run_rows_;
    if (!done()) start();
  }

 private:
  __device__ void next_item() {
    item_row_ += a_.tile_rows;
    item_segment_ += a_.tile_segments;
    if (item_segment_ >= a_.segments) item_segment_ -= a_.segments, ++item_row_;
  }
  __device__ void start() {
    const Run run = run_at(a_, row_, end_);
    run_rows_ = run.rows;
    const std::byte* const* entry = pick(a_.weight, run.product);
    const std::byte* const* up = a_.up;
    std::int64_t skip = 0;
    if (a_.chosen != nullptr) {
      const int at = chosen_at(a_, run.entry);
      if (at < 0) entry = a_.shared[0], up = a_.shared[1];
      if (at >= 0) skip = static_cast<std::int64_t>(a_.chosen[at]) * a_.address_stride;
    }
    source_[0] = entry[skip] + run.row * a_.row_bytes;
    source_[1] = a_.effect == MatvecArgs::kPair ? up[skip] + run.row * a_.row_bytes
                                                : source_[0] + run.list_rows[0] * a_.row_bytes;
    left_[0] = run.list_rows[0] * a_.segments;
    left_[1] = run.list_rows[1] * a_.segments;
    if constexpr (W::kPacked) {
      item_row_ = item_segment_ = 0;
      list_bytes_[0] = run.list_rows[0] * a_.row_bytes;
      list_bytes_[1] = run.list_rows[1] * a_.row_bytes;
    } else {
      item_row_ = a_.by_segments.quotient(lane_);
      item_segment_ = lane_ - item_row_ * a_.segments;
    }
  }

  const MatvecArgs& a_;
  int row_, end_, lane_;
  std::byte* ring_;
  std::uint64_t* barriers_;
  std::uint64_t policy_;
  int stage_ = 0, run_rows_ = 0;
  int left_[2] = {};                     // segments not yet ordered
  int item_row_ = 0, item_segment_ = 0;  // of this lane's item; packed: of the tile's first
  std::int64_t list_bytes_[2] = {};      // packed: of the run's rows
  const std::byte* source_[2] = {};
};

#ifdef MATVEC_TUNING
__device__ __forceinline__ void stamp(unsigned long long* at, int i) {
  if (at != nullptr && threadIdx.x == 0) {
    unsigned long long t;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t)::"memory");
    at[blockIdx.x * 8 + i] = t;
  }
}
#define STAMP(i) stamp(a.stamps, i)
#define ORDER_EARLY (a.early)
#else
#define STAMP(i)
#define ORDER_EARLY false
#endif

template <DType kType, int kM, RowLayout kRows>
__global__ void __launch_bounds__(matvec_threads(kM), 1) matvec_kernel(const __grid_constant__ MatvecArgs a) {
  using W = WLayout<kType, kRows>;
  using X = XLayout<kType>;
  extern __shared__ __align__(128) std::byte shared[];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  const bool pair = a.effect == MatvecArgs::kPair, experts = a.chosen != nullptr;
  const auto row_of_block = [&](int block) {
    return (block * a.block_granules + min(block, a.blocks_with_one_more)) * a.granule_rows;
  };
  const int block_first = row_of_block(blockIdx.x), block_rows = row_of_block(blockIdx.x + 1) - block_first;
  // A block that has less to do has fewer warps at work: it asks for less at a time, so that blocks end together.
  const int first = block_first + min(warp * a.warp_rows, block_rows);
  const int end = min(first + a.warp_rows, block_first + block_rows);

  std::byte* ring = shared + a.ring_at + warp * a.stages * 2 * a.half_bytes;
  float* partial = reinterpret_cast<float*>(shared + a.partial_at) + warp * a.partial_items * 2 * kM;  // [kM, 2, items]
  float* result = reinterpret_cast<float*>(shared + a.result_at);                                      // [rows, kM]
  std::uint64_t* barriers = reinterpret_cast<std::uint64_t*>(shared + a.barrier_at) + warp * a.stages;
  std::uint32_t* points = reinterpret_cast<std::uint32_t*>(shared);  // at an address that is known
  STAMP(0);
  if (lane == 0) {
    for (int s = 0; s < a.stages; ++s) barrier_init<W::kOneCopy>(barriers + s);
    barrier_init_done();
  }
  __syncwarp();
  // Experts are chosen by a kernel before, so that nothing can be ordered until it ends.
  if (experts) wait_for_predecessor();
  Orders<kType, kRows> orders(a, first, end, ring, barriers, lane);
  const auto fill_ring = [&] {
    for (int s = 0; s < a.stages && !orders.done(); ++s) orders.order();
  };
  int first_x = 0, x_rows = a.x_rows;
  if (experts) {
    first_x = a.entries_per_x.quotient(a.matrix_rows.quotient(block_first));
    x_rows = a.entries_per_x.quotient(a.matrix_rows.quotient(block_first + block_rows - 1)) - first_x + 1;
  } else {
    fill_ring();
    if (ORDER_EARLY && orders.done()) allow_successor();
    STAMP(1);
  }
  if constexpr (grid_points<kType>() > 0) {
    for (int i = threadIdx.x; i < grid_points<kType>(); i += blockDim.x) points[i] = Decoder<kType>::point(i);
  }
  if (!experts) {
    if (a.ready != nullptr) {
      wait_until_ready(a.ready);
    } else {
      wait_for_predecessor();
    }
  }
  STAMP(2);
  const int x_row_bytes = a.segments * X::kStride;
  XStaging<kType> staging(a, first_x, x_rows, shared + a.x_at);
  if (experts) {
    fill_ring();
    STAMP(1);
  }
  staging.finish();
  copies_done();
  __syncthreads();
  STAMP(3);
  if (orders.done()) allow_successor();

  // Of the lane that adds up a row: its row of those added at once, its list, its row of x.
  const int my_column = a.by_sum_rows.quotient(lane), my_row = lane - my_column * a.sum_rows;
  const int my_list = my_column % 2, my_m = my_column / 2;
  const bool adds = my_m < kM && my_m < a.x_rows;
  const bool reads_y = a.effect == MatvecArgs::kAdd || a.effect == MatvecArgs::kGated;
  const int lane_row = a.by_segments.quotient(lane), lane_segment = lane - lane_row * a.segments;
  int stage = 0;
  std::uint32_t parity = 0;
  for (int row = first; row < end;) {
    const Run run = run_at(a, row, end);
    const std::byte* x = shared + a.x_at;
    if (experts) x += (a.entries_per_x.quotient(run.entry) - first_x) * x_row_bytes;
    const int my_first = run.row + my_row + (pair || my_list == 0 ? 0 : run.list_rows[0]);
    float* y = pick(a.y, run.product);
    if (y != nullptr) y += (run.entry + my_m) * pick(a.y_stride, run.product) + my_first;
    const int bias_of = pair ? my_list : run.product;
    const std::byte* const* bias_entry = pick(a.bias, bias_of);
    const float* bias = nullptr;
    if (bias_entry != nullptr) {
      bias = a.addends ? reinterpret_cast<const float*>(bias_entry) : reinterpret_cast<const float*>(*bias_entry);
      if (a.addends) bias += my_m * (pair ? a.first_row[1] : rows_of(a, run.product));
      bias += my_first;
    }
    if (bias != nullptr && experts) bias += static_cast<std::int64_t>(a.chosen[run.entry]) * a.bias_stride;
    float scale = 1;
    const std::byte* const* scale_entry = pair && my_list == 1 ? a.scale[1] : a.scale[0];
    if (scale_entry != nullptr) scale = reinterpret_cast<const float*>(*scale_entry)[a.chosen[run.entry]];
    const int my_rows = adds ? run.list_rows[my_list] - my_row : 0;  // that this lane may add up, by steps of sum_rows
    float before = 0;
    if (reads_y && my_rows > 0) before = *y;

    int left = run.list_rows[0] * a.segments;  // segments of the longer list, not yet worked
    int fresh = 0;                             // worked and not yet added
    int added = 0;                             // rows
    int place = lane;                          // of this lane's sums
    int sums_place = my_row * a.segments;      // of the row that this lane adds up
    int segment = lane_segment, item_row = lane_row;
    std::uint32_t tile_heads[2] = {static_cast<std::uint32_t>(run.row * a.row_bytes),
                                   static_cast<std::uint32_t>((run.row + (pair ? 0 : run.list_rows[0])) * a.row_bytes)};
    while (left > 0) {
      const int items = min(a.tile_items, left);
      // Of a packed tile: where in their list's rows this lane's segment and the tile's first begin.
      std::uint32_t at = 0, tile_at = 0;
      if constexpr (W::kPacked) {
        at = static_cast<std::uint32_t>(item_row * a.row_bytes + segment * W::kBytes);
        tile_at = __shfl_sync(0xffffffffu, at, 0);
      }
      barrier_wait(barriers + stage, parity);
      if (lane < items) {
        // Where the second list has ended, its sums are of what lay there and nobody adds them.
        const std::uint32_t weights =
            shared_address(ring) + stage * 2 * a.half_bytes + (W::kPacked ? 0 : lane * W::kStride);
        int heads[2] = {};
#pragma unroll
        for (int l = 0; l < 2; ++l) {
          if constexpr (W::kPacked) {
            heads[l] = static_cast<int>(((tile_heads[l] + tile_at) & 15) + (at - tile_at));
          } else if constexpr (W::kOneCopy && W::alignment() < 16) {
            heads[l] = static_cast<int>(tile_heads[l] & 15);
          } else if constexpr (W::kRagged) {
            heads[l] = static_cast<int>(
                (tile_heads[l] + static_cast<std::uint32_t>(item_row * a.row_bytes + segment * W::kBytes)) & 15);
          }
        }
        const std::byte* x_segment = x + segment * X::kStride;
        const int count = min(kSegment, a.cols - segment * kSegment);
        float acc[2][kM] = {};
        if constexpr (is_float(kType)) {
          float_segments<kType, kM, kRows>(weights, a.half_bytes, heads, x_segment, x_row_bytes, count, acc);
        } else {
          quantized_segments<kType, kM, kRows>(weights, a.half_bytes, heads, points, x_segment, x_row_bytes, count,
                                               acc);
        }
#pragma unroll
        for (int i = 0; i < 2 * kM; ++i) partial[i * a.partial_items + place] = acc[i % 2][i / 2];
      }
      __syncwarp();
      if (!orders.done()) {
        orders.order();
        if (orders.done()) allow_successor();
      }
      if (++stage == a.stages) stage = 0, parity ^= 1;
      left -= items;
      fresh += items;
      place += items;
      if (place >= a.partial_items) place -= a.partial_items;
      segment += a.tile_segments;
      if (W::kRagged) item_row += a.tile_rows;
      if (segment >= a.segments) {
        segment -= a.segments;
        if (W::kRagged) ++item_row;
      }
      if (W::kOneCopy && !W::kPacked)
        tile_heads[0] += a.tile_items * W::kBytes, tile_heads[1] += a.tile_items * W::kBytes;

      while (fresh >= a.sum_rows * a.segments || (left <= 0 && fresh > 0)) {
        if (a.ready != nullptr && added == 0) wait_for_predecessor();
        float total = 0;
        if (added < my_rows) {
          const float* sums = partial + my_column * a.partial_items + sums_place;
#pragma unroll 8
          for (int s = 0; s < a.segments; ++s) total += sums[s];
          if (scale_entry != nullptr) total *= scale;
          if (bias != nullptr) total += bias[added];
        }
        if (pair) {
          const float gate = __shfl_sync(0xffffffffu, total, lane - a.sum_rows);
          total = gated(a.gate, gate, total);
        }
        if (added < my_rows && (!pair || my_list == 1)) {
          if (a.effect == MatvecArgs::kAdd) total = before + total;
          if (a.effect == MatvecArgs::kGated) total = gated(a.gate, before, total);
          if (y != nullptr) y[added] = total;
          if (a.y_q8.q != nullptr) {
            const int in_block = row - block_first + my_first - run.row + added;
            result[in_block * kM + my_m] = total;
          }
        }
        added += a.sum_rows;
        fresh -= a.sum_rows * a.segments;
        sums_place += a.sum_rows * a.segments;
        if (sums_place >= a.partial_items) sums_place -= a.partial_items;
        if (reads_y && added < my_rows) before = y[added];
        __syncwarp();
      }
    }
    row += run.rows;
  }

  STAMP(4);
  if (a.y_q8.q == nullptr) return;
  __syncthreads();
  const int blocks = a.first_row[1] / 32;  // of a row of y
  const int q8_rows = experts ? 1 : a.x_rows;
  for (int i = warp; i < block_rows / 32 * q8_rows; i += warps) {
    const int place = i / q8_rows, m = i - place * q8_rows;
    const std::int64_t block = static_cast<std::int64_t>(m) * blocks + block_first / 32 + place;
    const float value[1] = {result[(32 * place + lane) * kM + m]};
    quantize_block(value, a.y_q8.q + 32 * block, a.y_q8.scale + block);
  }
}

#ifdef MATVEC_TUNING
struct MatvecTuning {
  int warps = 0, stages = 0, waves = 0, tile_items = 0, sum_rows = 0;
  unsigned long long* stamps = nullptr;
  int early = 0;
};
extern MatvecTuning matvec_tuning;
#endif

/// A kernel and the sizes that its launch needs.
struct MatvecKernel {
  void (*function)(MatvecArgs) = nullptr;
  int rows = 0;                                    // of x
  int weight_stride = 0, x_stride = 0;             // bytes of a segment in shared memory
  int point_bytes = 0;                             // of the grid that its weights lie on
  std::atomic<std::uint64_t>* prepared = nullptr;  // a bit a device: its attributes are set there
};

template <DType kType, int kM, RowLayout kRows>
MatvecKernel matvec_kernel_of() {
  static std::atomic<std::uint64_t> prepared;
  return {matvec_kernel<kType, kM, kRows>, kM,       WLayout<kType, kRows>::kStride, XLayout<kType>::kStride,
          4 * grid_points<kType>(),        &prepared};
}
template <DType kType, RowLayout kRows>
MatvecKernel matvec_kernel_of(int x_rows) {
  if (x_rows == 1) return matvec_kernel_of<kType, 1, kRows>();
  if (x_rows == 2) return matvec_kernel_of<kType, 2, kRows>();
  return matvec_kernel_of<kType, 4, kRows>();
}
template <DType kType, RowLayout kUneven = RowLayout::ragged>
MatvecKernel matvec_kernel_of(int x_rows, bool uneven) {
  return uneven ? matvec_kernel_of<kType, kUneven>(x_rows) : matvec_kernel_of<kType, RowLayout::even>(x_rows);
}

/// The kernel for x_rows rows of x: it works 1, 2 or 4 of them. ragged: rows of the matrix do not begin at multiples of
/// the alignment that the dtype's segments have, or end inside a segment.
MatvecKernel matvec_kernel_nibbles(DType dtype, int x_rows, bool ragged);  // Q4_0 Q4_1 IQ4_NL MXFP4 NVFP4
MatvecKernel matvec_kernel_bytes(DType dtype, int x_rows, bool ragged);    // Q5_0 Q5_1 Q8_0
MatvecKernel matvec_kernel_fields(DType dtype, int x_rows, bool ragged);   // Q1_0 Q2_0
MatvecKernel matvec_kernel_super(DType dtype, int x_rows);                 // Q2_K to Q6_K, IQ4_XS
MatvecKernel matvec_kernel_grid(DType dtype, int x_rows);                  // IQ1 to IQ3, TQ1_0 TQ2_0
MatvecKernel matvec_kernel_float(DType dtype, int x_rows, bool ragged);    // F16 BF16 F32

}  // namespace millrace::kernels::cuda
