// The matrix-vector kernel: one for each dtype, number of rows of x, and whether rows of the matrix lie ragged.
//
// A matrix is a list of segments of 256 weights, row after row. A block takes a range of rows, each of its warps a part
// of it, and a warp works its rows in tiles of up to 32 consecutive segments, one a lane. It has its own ring of tiles
// in shared memory and refills a stage as soon as its lanes have read it, so that nothing but the start synchronizes
// the block. A lane's sum goes to shared memory, and when a few rows are complete, one lane a row (and row of x) adds
// the row's segments in ascending order: the order of the contract.
//
// Weights do not depend on the kernels before: the ring fills before their end is waited for. The next kernel is let go
// when a block has ordered its last tile, and fills its own ring while this one finishes.
#pragma once

#include <atomic>
#include <cstdint>

#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/exp.cuh"
#include "kernels/cuda/matvec_copy.cuh"
#include "kernels/cuda/matvec_decode.cuh"
#include "kernels/cuda/pdl.cuh"
#include "kernels/cuda/quantize.cuh"

namespace millrace::kernels::cuda {

/// At most, in a block. With one row of x, two blocks of so many fit an SM: this kernel's and the next one's.
constexpr int kMatvecThreads = 384;

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
  const std::byte* const* weight[3];
  const std::byte* const* up;       // swiglu
  const std::byte* const* bias[3];  // swiglu: the gate's and the up's
  float* y[3];
  std::int64_t y_stride[3];
  std::int32_t products;
  std::int32_t first_row[4];  // of each product, and the end; experts: 0 and the rows of a matrix

  // Experts, if chosen is set.
  const std::int32_t* chosen;
  std::int32_t address_stride;
  Divisor entries_per_x, matrix_rows;

  const float* x;
  std::int64_t x_stride;
  Q8 x_q8;
  Q8 y_q8;
  std::int32_t x_rows, cols;
  std::int64_t row_bytes;

  enum Effect : std::int32_t { kStore, kAdd, kSwiglu, kGated } effect;  // kGated: y = silu(y) * product

  // The plan. A granule is what one block must have whole: a row, or 32 if the result is quantized.
  std::int32_t granule_rows, block_granules, blocks_with_one_more;  // the first blocks have one granule more
  std::int32_t segments;                                            // of a row
  Divisor by_segments, by_sum_rows;
  std::int32_t tile_items;                // at most 32
  std::int32_t tile_rows, tile_segments;  // a tile's items as whole rows of segments and the rest
  std::int32_t sum_rows;                  // rows whose segments are added at once; times rows of x at most 32
  std::int32_t partial_items;             // places for sums of segments, a multiple of `segments`
  std::int32_t stages, stage_bytes;
  std::int32_t x_at, partial_at, result_at, barrier_at;  // in shared memory; the ring comes first
#ifdef MATVEC_TUNING
  unsigned long long* stamps;
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

/// Weights in shared memory: a segment every kStride bytes. Where segments can be read without conflicts as they lie,
/// a tile is one copy, else one a lane.
template <DType kType, bool kRagged>
struct WLayout {
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
  static constexpr bool kOneCopy = !kRagged && (alignment() < 16 || kBytes / 16 % 2 == 1);
  static constexpr int kStride = kOneCopy ? kBytes : odd_16(kRagged ? kBytes + 30 : kBytes);
};

// ---------------------------------------------------------------------------------------------------------------------
// A segment

/// acc[m] = the sum of the segment's `count` terms with row m of x. REQUIRES: acc zero.
template <DType kType, int kM, bool kRagged>
__device__ __forceinline__ void quantized_segment(std::uint32_t weights, const std::byte* x, int x_row_bytes, int count,
                                                  float (&acc)[kM]) {
  using D = Decoder<kType>;
  using X = XLayout<kType>;
  Words<WLayout<kType, kRagged>::alignment(), D::kBytes> word(weights);
  const auto dot = [](std::uint32_t w, std::uint32_t q, int sum) {
    if constexpr (D::kSigned) return __dp4a(static_cast<int>(w), static_cast<int>(q), sum);
    return dp4a_unsigned(w, q, sum);
  };
#pragma unroll
  for (int b = 0; b < 8; ++b) {
    if (kRagged && 32 * b >= count) break;
    std::uint32_t w[8];
    D::words(word, b, w);
#pragma unroll
    for (int m = 0; m < kM; ++m) {
      const std::byte* row = x + m * x_row_bytes;
      const uint4 low = reinterpret_cast<const uint4*>(row)[2 * b],
                  high = reinterpret_cast<const uint4*>(row)[2 * b + 1];
      const float dx = reinterpret_cast<const float*>(row + X::kScaleAt)[b];
      const int* offset = reinterpret_cast<const int*>(row + X::kAuxAt);
      const float* sum = reinterpret_cast<const float*>(row + X::kAuxAt);
      if constexpr (D::kGroup == 32) {
        const int start = D::kOffset != 0 ? offset[b] : 0;
        int dot_all;
        if constexpr (D::shift(0, 0) == D::shift(0, 1)) {  // both halves weigh the same
          int i = dot(w[0], low.x, D::shift(b, 0) == 0 ? start : 0);
          int j = dot(w[4], high.x, 0);
          i = dot(w[1], low.y, i), j = dot(w[5], high.y, j);
          i = dot(w[2], low.z, i), j = dot(w[6], high.z, j);
          i = dot(w[3], low.w, i), j = dot(w[7], high.w, j);
          dot_all = (i + j) >> D::shift(b, 0);
        } else {
          int i = dot(w[0], low.x, start);
          int j = dot(w[4], high.x, 0);
          i = dot(w[1], low.y, i), j = dot(w[5], high.y, j);
          i = dot(w[2], low.z, i), j = dot(w[6], high.z, j);
          i = dot(w[3], low.w, i), j = dot(w[7], high.w, j);
          dot_all = i + (j >> D::shift(b, 1));
        }
        acc[m] = fmaf(D::scale(word, b) * dx, static_cast<float>(dot_all), acc[m]);
        if constexpr (D::kMin) acc[m] = fmaf(-D::min(word, b), sum[b], acc[m]);
      } else {
        int i = dot(w[0], low.x, D::kOffset != 0 ? offset[2 * b] : 0);
        int j = dot(w[4], high.x, D::kOffset != 0 ? offset[2 * b + 1] : 0);
        i = dot(w[1], low.y, i), j = dot(w[5], high.y, j);
        i = dot(w[2], low.z, i), j = dot(w[6], high.z, j);
        i = dot(w[3], low.w, i), j = dot(w[7], high.w, j);
        acc[m] = fmaf(D::scale(word, 2 * b) * dx, static_cast<float>(i >> D::shift(b, 0)), acc[m]);
        if constexpr (D::kMin) acc[m] = fmaf(-D::min(word, 2 * b), sum[2 * b], acc[m]);
        acc[m] = fmaf(D::scale(word, 2 * b + 1) * dx, static_cast<float>(j >> D::shift(b, 1)), acc[m]);
        if constexpr (D::kMin) acc[m] = fmaf(-D::min(word, 2 * b + 1), sum[2 * b + 1], acc[m]);
      }
    }
  }
}

template <DType kType, int kM, bool kRagged>
__device__ __forceinline__ void float_segment(std::uint32_t address, const std::byte* x, int x_row_bytes, int count,
                                              float (&acc)[kM]) {
  using D = Decoder<kType>;
  const std::byte* weights = static_cast<const std::byte*>(__cvta_shared_to_generic(address));
  int k = 0;
  if constexpr (!kRagged) {
#pragma unroll 4
    for (; k + 8 <= count; k += 8) {
      float w[8];
      D::eight(weights + k * D::kElementBytes, w);
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        const float4* row = reinterpret_cast<const float4*>(x + m * x_row_bytes + 4 * k);
        const float4 a = row[0], b = row[1];
        acc[m] = fmaf(w[0], a.x, acc[m]);
        acc[m] = fmaf(w[1], a.y, acc[m]);
        acc[m] = fmaf(w[2], a.z, acc[m]);
        acc[m] = fmaf(w[3], a.w, acc[m]);
        acc[m] = fmaf(w[4], b.x, acc[m]);
        acc[m] = fmaf(w[5], b.y, acc[m]);
        acc[m] = fmaf(w[6], b.z, acc[m]);
        acc[m] = fmaf(w[7], b.w, acc[m]);
      }
    }
  }
  for (; k < count; ++k) {
    const float w = D::one(weights + k * D::kElementBytes);
#pragma unroll
    for (int m = 0; m < kM; ++m) acc[m] = fmaf(w, reinterpret_cast<const float*>(x + m * x_row_bytes)[k], acc[m]);
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// The block

/// Brings one row of x into shared memory, by the whole block; the caller waits for the copies and the block.
template <DType kType>
__device__ __forceinline__ void stage_x(const MatvecArgs& a, std::int64_t row, std::byte* target) {
  using X = XLayout<kType>;
  if constexpr (is_float(kType)) {
    const float* source = a.x + row * a.x_stride;
    if (a.cols % 4 == 0 && a.x_stride % 4 == 0) {
      for (int i = threadIdx.x; i < a.cols / 4; i += blockDim.x) {
        copy_16(target + i / 64 * X::kStride + i % 64 * 16, source + 4 * i);
      }
    } else {
      for (int i = threadIdx.x; i < a.cols; i += blockDim.x) {
        reinterpret_cast<float*>(target + i / kSegment * X::kStride)[i % kSegment] = source[i];
      }
    }
  } else {
    using D = Decoder<kType>;
    const std::int8_t* q = a.x_q8.q + row * a.cols;
    for (int i = threadIdx.x; i < a.cols / 16; i += blockDim.x) {
      copy_16(target + i / 16 * X::kStride + i % 16 * 16, q + 16 * i);
    }
    const int4* scales = reinterpret_cast<const int4*>(a.x_q8.scale + row * (a.cols / 32));
    constexpr int kAtOnce = 4;
    for (int first = threadIdx.x; first < a.cols / 32; first += kAtOnce * blockDim.x) {
      int4 v[kAtOnce];
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        const int i = first + j * blockDim.x;
        if (i < a.cols / 32) v[j] = scales[i];
      }
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        const int i = first + j * blockDim.x;
        if (i >= a.cols / 32) break;
        std::byte* segment = target + i / 8 * X::kStride;
        const float d = __int_as_float(v[j].x);
        reinterpret_cast<float*>(segment + X::kScaleAt)[i % 8] = d;
        std::int32_t* offset = reinterpret_cast<std::int32_t*>(segment + X::kAuxAt);
        float* sum = reinterpret_cast<float*>(segment + X::kAuxAt);
        const int s16[2] = {static_cast<std::int16_t>(v[j].w), v[j].w >> 16};
        if constexpr (D::kOffset != 0 && D::kGroup == 32) offset[i % 8] = -D::kOffset * v[j].z;
        if constexpr (D::kMin && D::kGroup == 32) sum[i % 8] = __int_as_float(v[j].y);
        if constexpr (D::kGroup == 16) {
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            if constexpr (D::kOffset != 0) offset[i % 8 * 2 + h] = -D::kOffset * s16[h];
            if constexpr (D::kMin) sum[i % 8 * 2 + h] = d * static_cast<float>(s16[h]);
          }
        }
      }
    }
  }
}

/// Consecutive rows of one matrix, or of a pair of them.
struct Run {
  int product, entry;
  int row, rows;
};

/// The run that begins at a row and ends before `end`.
__device__ __forceinline__ Run run_at(const MatvecArgs& a, int row, int end) {
  Run run;
  if (a.chosen != nullptr) {
    run.product = 0;
    run.entry = a.matrix_rows.quotient(row);
    run.row = row - run.entry * a.first_row[1];
    run.rows = min(end - row, a.first_row[1] - run.row);
    return run;
  }
  run.entry = 0;
  run.product = (a.products > 1 && row >= a.first_row[1]) + (a.products > 2 && row >= a.first_row[2]);
  const int first = run.product == 0 ? 0 : run.product == 1 ? a.first_row[1] : a.first_row[2];
  const int last = run.product == 0 ? a.first_row[1] : run.product == 1 ? a.first_row[2] : a.first_row[3];
  run.row = row - first;
  run.rows = min(end, last) - row;
  return run;
}

/// A warp's list of tiles as its ring is filled: run by run, a pair's gate rows before its up rows.
template <DType kType, bool kRagged>
class Orders {
 public:
  using W = WLayout<kType, kRagged>;

  __device__ Orders(const MatvecArgs& a, int first, int end, int sides, std::byte* ring, std::uint64_t* barriers,
                    int lane)
      : a_(a), row_(first), end_(end), sides_(sides), lane_(lane), ring_(ring), barriers_(barriers) {
    if (!done()) start();
  }
  __device__ bool done() const { return row_ >= end_; }

  /// Orders the next tile into the next stage. REQUIRES: not done, the stage is free.
  __device__ void order() {
    const int items = min(a_.tile_items, left_);
    std::byte* target = ring_ + stage_ * a_.stage_bytes;
    if constexpr (W::kOneCopy) {
      const std::uint32_t head = static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(source_)) & 15;
      warp_copy(target, source_ - head, (head + items * W::kBytes + 15) & ~15u, barriers_ + stage_, lane_);
      source_ += a_.tile_items * W::kBytes;
    } else {
      const std::int64_t in_row = static_cast<std::int64_t>(item_segment_) * W::kBytes;
      const std::byte* source = source_ + item_row_ * a_.row_bytes + in_row;
      const std::uint32_t head = static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(source)) & 15;
      const int length = static_cast<int>(min(static_cast<std::int64_t>(W::kBytes), a_.row_bytes - in_row));
      lane_copy(target + lane_ * W::kStride, source - head, lane_ < items ? (head + length + 15) & ~15u : 0,
                barriers_ + stage_);
      item_row_ += a_.tile_rows;
      item_segment_ += a_.tile_segments;
      if (item_segment_ >= a_.segments) item_segment_ -= a_.segments, ++item_row_;
    }
    if (++stage_ == a_.stages) stage_ = 0;
    left_ -= items;
    if (left_ > 0) return;
    if (++side_ == sides_) {
      side_ = 0;
      row_ += run_.rows;
    }
    if (!done()) start();
  }

 private:
  __device__ void start() {
    run_ = run_at(a_, row_, end_);
    const std::byte* const* entry = side_ == 1          ? a_.up
                                    : run_.product == 0 ? a_.weight[0]
                                    : run_.product == 1 ? a_.weight[1]
                                                        : a_.weight[2];
    if (a_.chosen != nullptr) entry += static_cast<std::int64_t>(a_.chosen[run_.entry]) * a_.address_stride;
    source_ = *entry + run_.row * a_.row_bytes;
    left_ = run_.rows * a_.segments;
    item_row_ = a_.by_segments.quotient(lane_);
    item_segment_ = lane_ - item_row_ * a_.segments;
  }

  const MatvecArgs& a_;
  int row_, end_, sides_, lane_;
  std::byte* ring_;
  std::uint64_t* barriers_;
  Run run_{};
  int side_ = 0, stage_ = 0, left_ = 0;
  int item_row_ = 0, item_segment_ = 0;  // of this lane's item
  const std::byte* source_ = nullptr;
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
#else
#define STAMP(i)
#endif

/// One row of x (or kM) is worked by two blocks of kMatvecThreads an SM, this kernel's and the next one's.
template <DType kType, int kM, bool kRagged>
__global__ void __launch_bounds__(kMatvecThreads, kM == 1 && !kRagged ? 2 : 1)
    matvec_kernel(const __grid_constant__ MatvecArgs a) {
  using W = WLayout<kType, kRagged>;
  using X = XLayout<kType>;
  extern __shared__ __align__(128) std::byte shared[];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  const int sides = a.effect == MatvecArgs::kSwiglu ? 2 : 1;
  const bool experts = a.chosen != nullptr;
  const auto row_of_block = [&](int block) {
    return (block * a.block_granules + min(block, a.blocks_with_one_more)) * a.granule_rows;
  };
  const int block_first = row_of_block(blockIdx.x), block_rows = row_of_block(blockIdx.x + 1) - block_first;
  const int warp_rows = block_rows / warps, more = block_rows - warp_rows * warps;
  const int first = block_first + warp * warp_rows + min(warp, more);
  const int end = first + warp_rows + (warp < more ? 1 : 0);

  std::byte* ring = shared + warp * a.stages * a.stage_bytes;
  float* partial = reinterpret_cast<float*>(shared + a.partial_at) + warp * a.partial_items * kM;
  float* result = reinterpret_cast<float*>(shared + a.result_at);  // [block's rows, kM]
  std::uint64_t* barriers = reinterpret_cast<std::uint64_t*>(shared + a.barrier_at) + warp * a.stages;
  STAMP(0);
  if (lane == 0) {
    for (int s = 0; s < a.stages; ++s) barrier_init<W::kOneCopy>(barriers + s);
    barrier_init_done();
  }
  __syncwarp();
  if (experts) wait_for_predecessor();  // it chooses
  Orders<kType, kRagged> orders(a, first, end, sides, ring, barriers, lane);
  for (int s = 0; s < a.stages && !orders.done(); ++s) orders.order();
  if (orders.done()) allow_successor();

  STAMP(1);
  if (!experts) wait_for_predecessor();
  STAMP(2);
  int first_x = 0, x_rows = kM;
  if (experts) {
    first_x = a.entries_per_x.quotient(a.matrix_rows.quotient(block_first));
    x_rows = a.entries_per_x.quotient(a.matrix_rows.quotient(block_first + block_rows - 1)) - first_x + 1;
  }
  const int x_row_bytes = a.segments * X::kStride;
  for (int r = 0; r < x_rows; ++r) {
    stage_x<kType>(a, experts ? first_x + r : min(r, a.x_rows - 1), shared + a.x_at + r * x_row_bytes);
  }
  copies_done();
  __syncthreads();
  STAMP(3);

  // Of the lane that adds up a row: its row of those added at once, and of x.
  const int my_m = a.by_sum_rows.quotient(lane), my_row = lane - my_m * a.sum_rows;
  const int lane_row = a.by_segments.quotient(lane), lane_segment = lane - lane_row * a.segments;
  int stage = 0;
  std::uint32_t parity = 0;
  for (int row = first; row < end;) {
    const Run run = run_at(a, row, end);
    const std::byte* x = shared + a.x_at;
    if (experts) x += (a.entries_per_x.quotient(run.entry) - first_x) * x_row_bytes;
    float* y = run.product == 0 ? a.y[0] : run.product == 1 ? a.y[1] : a.y[2];
    if (y != nullptr) {
      const std::int64_t stride = run.product == 0 ? a.y_stride[0] : run.product == 1 ? a.y_stride[1] : a.y_stride[2];
      y += (run.entry + my_m) * stride + run.row + my_row;
    }
    for (int side = 0; side < sides; ++side) {
      const std::byte* const* bias_entry = side + run.product == 0   ? a.bias[0]
                                           : side + run.product == 1 ? a.bias[1]
                                                                     : a.bias[2];
      const float* bias =
          bias_entry == nullptr ? nullptr : reinterpret_cast<const float*>(*bias_entry) + run.row + my_row;
      const bool reads_y = a.effect == MatvecArgs::kAdd || a.effect == MatvecArgs::kGated;
      int left = run.rows * a.segments;      // segments not yet worked
      int fresh = 0;                         // segments worked and not yet added
      int added = 0;                         // rows
      int place = lane;                      // of this lane's sum
      int sums_place = my_row * a.segments;  // of the row that this lane adds up
      int segment = lane_segment, item_row = lane_row;
      std::uint32_t head = static_cast<std::uint32_t>(run.row * a.row_bytes);
      float before = 0;
      if (reads_y && my_m < a.x_rows && my_m < kM && my_row < run.rows) before = *y;

      while (left > 0) {
        const int items = min(a.tile_items, left);
        barrier_wait(barriers + stage, parity);
        if (lane < items) {
          std::uint32_t weights = shared_address(ring) + stage * a.stage_bytes + lane * W::kStride;
          if constexpr (W::kOneCopy) {
            if constexpr (W::alignment() < 16) weights += head & 15;
          } else if constexpr (kRagged) {
            weights += static_cast<std::uint32_t>((run.row + item_row) * a.row_bytes + segment * W::kBytes) & 15;
          }
          const std::byte* x_segment = x + segment * X::kStride;
          const int count = min(kSegment, a.cols - segment * kSegment);
          float acc[kM] = {};
          if constexpr (is_float(kType)) {
            float_segment<kType, kM, kRagged>(weights, x_segment, x_row_bytes, count, acc);
          } else {
            quantized_segment<kType, kM, kRagged>(weights, x_segment, x_row_bytes, count, acc);
          }
#pragma unroll
          for (int m = 0; m < kM; ++m) partial[m * a.partial_items + place] = acc[m];
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
        if (kRagged) item_row += a.tile_rows;
        if (segment >= a.segments) {
          segment -= a.segments;
          if (kRagged) ++item_row;
        }
        head += a.tile_items * W::kBytes;

        while (fresh >= a.sum_rows * a.segments || (left <= 0 && fresh > 0)) {
          const bool mine = my_m < a.x_rows && my_m < kM && added + my_row < run.rows;
          if (mine) {
            const float* sums = partial + my_m * a.partial_items + sums_place;
            float total = 0;
#pragma unroll 8
            for (int s = 0; s < a.segments; ++s) total += sums[s];
            if (bias != nullptr) total += bias[added];
            float* out = result + (row - block_first + added + my_row) * kM + my_m;
            if (side + 1 < sides) {
              *out = total;
            } else {
              if (a.effect == MatvecArgs::kAdd) total = before + total;
              if (a.effect == MatvecArgs::kGated) total = silu(before) * total;
              if (a.effect == MatvecArgs::kSwiglu) total = silu(*out) * total;
              if (y != nullptr) y[added] = total;
              if (a.y_q8.q != nullptr) *out = total;
            }
          }
          added += a.sum_rows;
          fresh -= a.sum_rows * a.segments;
          sums_place += a.sum_rows * a.segments;
          if (sums_place >= a.partial_items) sums_place -= a.partial_items;
          if (reads_y && my_m < a.x_rows && my_m < kM && added + my_row < run.rows) before = y[added];
          __syncwarp();
        }
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
};
extern MatvecTuning matvec_tuning;
#endif

/// A kernel and the sizes that its launch needs.
struct MatvecKernel {
  void (*function)(MatvecArgs) = nullptr;
  int rows = 0;                                    // of x
  int weight_stride = 0, x_stride = 0;             // bytes of a segment in shared memory
  std::atomic<std::uint64_t>* prepared = nullptr;  // a bit a device: its attributes are set there
};

template <DType kType, int kM, bool kRagged>
MatvecKernel matvec_kernel_of() {
  static std::atomic<std::uint64_t> prepared;
  return {matvec_kernel<kType, kM, kRagged>, kM, WLayout<kType, kRagged>::kStride, XLayout<kType>::kStride, &prepared};
}
template <DType kType, bool kRagged>
MatvecKernel matvec_kernel_of(int x_rows) {
  if (x_rows == 1) return matvec_kernel_of<kType, 1, kRagged>();
  if (x_rows == 2) return matvec_kernel_of<kType, 2, kRagged>();
  return matvec_kernel_of<kType, 4, kRagged>();
}

/// The kernel for x_rows rows of x: it works 1, 2 or 4 of them. ragged: rows of the matrix do not begin at multiples of
/// the alignment that the dtype's segments have, or end inside a segment.
MatvecKernel matvec_kernel_nibbles(DType dtype, int x_rows, bool ragged);  // Q4_0 Q4_1 IQ4_NL MXFP4
MatvecKernel matvec_kernel_bytes(DType dtype, int x_rows, bool ragged);    // Q5_0 Q5_1 Q8_0
MatvecKernel matvec_kernel_super(DType dtype, int x_rows);                 // Q2_K to Q6_K, IQ4_XS
MatvecKernel matvec_kernel_float(DType dtype, int x_rows, bool ragged);    // F16 BF16 F32

}  // namespace millrace::kernels::cuda
