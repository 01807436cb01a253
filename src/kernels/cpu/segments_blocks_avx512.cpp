// matmul_segments straight from the blocks of the file (block_groups_avx512.h), for decode, where instructions a byte
// are what counts.
//
// A segment's eight blocks are added one after the other, so that lanes have to be segments. Eight groups, a *batch*,
// are sixteen segments: each group leaves its blocks' integers and scales as vectors, and a transposition makes of
// those eight vectors one for each block of the sixteen segments. Rows follow each other without a gap, and so do
// their segments: a batch ends where it ends, in the middle of a row, too, and no lane is idle.
#include "kernels/cpu/grid_formats_avx512.h"
#include "kernels/cpu/segment_rows.h"
#include "kernels/cpu/segments_blocks.h"

namespace millrace::kernels::avx512 {
namespace {

using segments::kArrangedBytes, segments::kBlocksArrangement;

constexpr int kBatch = 16;                  // segments
constexpr int kBatchGroups = kBatch / 2;    // a group has two segments
constexpr int kBlocks = 8;                  // of a segment
constexpr std::int64_t kSumsAtOnce = 2048;  // segments of whole rows, about, before the rows are added up
constexpr int kMostX = 8;                   // rows of x at once

/// How segments follow each other, in the weights and in x.
struct Order {
  std::int64_t segments;  // of a row
  /// Segments from row to row. Where rows are of whole segments, as many; else, and where that is even, a row begins
  /// with a group of its own, and of its last group something may lie behind it.
  std::int64_t period;
  std::int64_t x_groups;  // that x is arranged in: a group begins at any segment of an odd period

  explicit Order(std::int64_t cols) : segments((cols + 255) / 256) {
    period = cols % 256 == 0 ? segments : (segments + 1) / 2 * 2;
    x_groups = period % 2 == 0 ? period / 2 : period;
  }
  std::int64_t sums() const { return (period > kSumsAtOnce ? period : kSumsAtOnce) + kBatch; }
};

/// One row of x: its groups, and of kind with_min dx * S of block b of segment s at mins + b * min_stride + s, the
/// segments going on from the first again for a batch that begins at the last.
struct XRow {
  XGroup* groups;
  float* mins;
};
std::int64_t min_stride(const Order& order) { return order.period + kBatch; }
std::int64_t x_bytes(const Order& order) {
  const std::int64_t bytes =
      order.x_groups * static_cast<std::int64_t>(sizeof(XGroup)) + kBlocks * min_stride(order) * 4;
  return (bytes + 63) / 64 * 64;
}
XRow x_row(std::byte* workspace, const Order& order, std::int64_t r) {
  std::byte* const at = workspace + kArrangedBytes + r * x_bytes(order);
  return {reinterpret_cast<XGroup*>(at),
          reinterpret_cast<float*>(at + order.x_groups * static_cast<std::int64_t>(sizeof(XGroup)))};
}

template <class Format>
void arrange(const MatmulArgs& args, std::int64_t row, const Order& order, const XRow& out) {
  const std::int64_t blocks = args.cols / 32, step = order.period % 2 == 0 ? 2 : 1;
  for (std::int64_t g = 0; g < order.x_groups; ++g) {
    for (int i = 0; i < kGroup; ++i) {
      const int block = Format::block_at(i);
      const std::int64_t segment = (g * step + block / kBlocks) % order.period;
      const std::int64_t b = segment * kBlocks + block % kBlocks;
      put_block<Format>(args, row, b < blocks ? b : -1, i, out.groups[g]);
    }
  }
  if (Format::kKind != Kind::with_min) return;
  const float* const d = args.x_q8.d + row * blocks;
  const std::int32_t* const sum16 = args.x_q8.sum16 + row * blocks * 2;
  for (std::int64_t s = 0; s < min_stride(order); ++s) {
    for (int i = 0; i < kBlocks; ++i) {
      const std::int64_t b = s % order.period * kBlocks + i;
      out.mins[i * min_stride(order) + s] =
          b < blocks ? d[b] * static_cast<float>(sum16[2 * b] + sum16[2 * b + 1]) : 0.0F;
    }
  }
}

/// A number for each block of a batch, as its groups leave them.
struct alignas(64) Numbers {
  float of[kBatchGroups][kGroup];
};

/// out[b]: block b of the sixteen segments, in order. Every format has in each 128-bit lane of a group blocks x and y
/// of its first segment, then of its second.
template <class Format>
inline __attribute__((always_inline)) void transpose(const Numbers& in, __m512 out[kBlocks]) {
  const __m512i even = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
  const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
  __m512 lanes[2][4];  // [groups 0 to 3 or 4 to 7][lane]
#pragma GCC unroll 2
  for (int k = 0; k < 2; ++k) {
    const float(*four)[kGroup] = in.of + 4 * k;
    const __m512 a = _mm512_load_ps(four[0]), b = _mm512_load_ps(four[1]);
    const __m512 c = _mm512_load_ps(four[2]), d = _mm512_load_ps(four[3]);
    const __m512 low_ab = _mm512_shuffle_f32x4(a, b, 0x44), high_ab = _mm512_shuffle_f32x4(a, b, 0xee);
    const __m512 low_cd = _mm512_shuffle_f32x4(c, d, 0x44), high_cd = _mm512_shuffle_f32x4(c, d, 0xee);
    lanes[k][0] = _mm512_shuffle_f32x4(low_ab, low_cd, 0x88);
    lanes[k][1] = _mm512_shuffle_f32x4(low_ab, low_cd, 0xdd);
    lanes[k][2] = _mm512_shuffle_f32x4(high_ab, high_cd, 0x88);
    lanes[k][3] = _mm512_shuffle_f32x4(high_ab, high_cd, 0xdd);
  }
#pragma GCC unroll 4
  for (int lane = 0; lane < 4; ++lane) {
    out[Format::block_at(4 * lane)] = _mm512_permutex2var_ps(lanes[0][lane], even, lanes[1][lane]);
    out[Format::block_at(4 * lane + 1)] = _mm512_permutex2var_ps(lanes[0][lane], odd, lanes[1][lane]);
  }
}

/// What a batch's groups leave of one row of x: integers as floats, and scales times those of x; of kind halves twice.
struct Terms {
  Numbers integers[2], scales[2];
};

/// The sixteen sums of a batch. mins: the weights', negated; x_mins: at the batch's first segment.
template <class Format>
inline __attribute__((always_inline)) __m512 add_batch(const Terms& terms, const Numbers& mins, const float* x_mins,
                                                       std::int64_t stride) {
  __m512 i[kBlocks], s[kBlocks], other[kBlocks], t[kBlocks];
  transpose<Format>(terms.integers[0], i);
  transpose<Format>(terms.scales[0], s);
  if constexpr (Format::kKind == Kind::with_min) transpose<Format>(mins, other);
  if constexpr (Format::kKind == Kind::halves) {
    transpose<Format>(terms.integers[1], other);
    transpose<Format>(terms.scales[1], t);
  }
  __m512 sum = _mm512_setzero_ps();
#pragma GCC unroll 8
  for (int b = 0; b < kBlocks; ++b) {
    sum = _mm512_fmadd_ps(s[b], i[b], sum);
    if constexpr (Format::kKind == Kind::with_min)
      sum = _mm512_fmadd_ps(other[b], _mm512_loadu_ps(x_mins + b * stride), sum);
    if constexpr (Format::kKind == Kind::halves) sum = _mm512_fmadd_ps(t[b], other[b], sum);
  }
  return sum;
}

/// `count` rows of x, and weight rows [first, first + rows), whose segments' sums fit in `sums`
/// ([count][order.sums()]).
template <class Format>
void some_rows(const MatmulArgs& args, const Order& order, const XRow* x, int count, std::int64_t first,
               std::int64_t rows, float* sums, float* y) {
  constexpr std::int64_t kBytes = kGroupBytes<Format>, kSegmentBytes = kBytes / 2;
  const std::int64_t row_bytes = args.cols / Format::kBlockElements * Format::kBlockBytes;
  const std::byte* const weight = args.weight + first * row_bytes;
  const std::byte* const end = args.weight + args.weight_rows * row_bytes;
  const std::int64_t stride = min_stride(order), period = order.period, positions = rows * period;
  const bool in_rows = period % 2 == 0;  // a group is of one row
  const __mmask16 last_there = blocks_there<Format>(args.cols / 32 - (period - 2) * kBlocks);
  Terms terms[kMostX];
  Numbers mins;
  std::memset(terms, 0, static_cast<std::size_t>(count) * sizeof(Terms));
  std::memset(&mins, 0, sizeof mins);
  alignas(64) std::byte copy[kBytes] = {};
  std::int64_t row = 0, segment = 0;  // of the group at hand
  for (std::int64_t at = 0; at < positions; at += kBatch) {
    const std::int64_t batch_segment = segment;
    const std::int64_t left = (positions - at + 1) / 2, groups = left < kBatchGroups ? left : kBatchGroups;
    for (std::int64_t g = 0; g < groups; ++g) {
      const std::byte* p = weight + row * row_bytes + segment * kSegmentBytes;
      prefetch_ahead<kBytes>(p);
      if (end - p < kBytes) {
        std::memcpy(copy, p, static_cast<std::size_t>(end - p));
        p = copy;
      }
      const bool last = in_rows && segment + 2 == period;
      const Weights w = only<Format>(Format::unpack(p), last ? last_there : 0xffff);
      if constexpr (Format::kKind == Kind::with_min) _mm512_store_ps(mins.of[g], w.b);
      const std::int64_t x_group = in_rows ? segment / 2 : segment;
      for (int r = 0; r < count; ++r) {
        const XGroup& xs = x[r].groups[x_group];
        const __m512 d = _mm512_load_ps(xs.d);
        _mm512_store_ps(terms[r].integers[0].of[g], _mm512_cvtepi32_ps(group_sums<Format>(w, xs)));
        if constexpr (Format::kKind == Kind::halves) {
          _mm512_store_ps(terms[r].scales[0].of[g], _mm512_mul_ps(_mm512_mul_ps(w.a, w.b), d));
          _mm512_store_ps(terms[r].integers[1].of[g], _mm512_cvtepi32_ps(group_sums<Format>(w, xs, 1)));
          _mm512_store_ps(terms[r].scales[1].of[g], _mm512_mul_ps(_mm512_mul_ps(w.a, w.c), d));
        } else {
          _mm512_store_ps(terms[r].scales[0].of[g], _mm512_mul_ps(w.a, d));
        }
      }
      segment += 2;
      if (segment >= period) {
        segment -= period;
        ++row;
      }
      if (segment >= period) segment = 0, ++row;  // a period of one: a group is two rows
    }
    for (int r = 0; r < count; ++r) {
      _mm512_storeu_ps(sums + r * order.sums() + at,
                       add_batch<Format>(terms[r], mins, x[r].mins + batch_segment, stride));
    }
  }
  for (int r = 0; r < count; ++r)
    segments::add_rows(sums + r * order.sums(), order.segments, period, rows, y + r * args.y_stride + first);
}

/// x rows [r0, r0 + count), which lie arranged at x.
template <class Format>
void all_rows(const MatmulArgs& args, const Order& order, const XRow* x, std::int64_t r0, int count) {
  auto* const sums = reinterpret_cast<float*>(args.workspace + kArrangedBytes + kMostX * x_bytes(order));
  const std::int64_t at_once = order.period < kSumsAtOnce ? kSumsAtOnce / order.period : 1;
  for (std::int64_t n = 0; n < args.weight_rows; n += at_once) {
    const std::int64_t left = args.weight_rows - n;
    some_rows<Format>(args, order, x, count, n, left < at_once ? left : at_once, sums, args.y + r0 * args.y_stride);
  }
}

template <class Format>
void product(const MatmulArgs& args) {
  const Order order(args.cols);
  XRow x[kMostX];
  for (int r = 0; r < kMostX; ++r) x[r] = x_row(args.workspace, order, r);
  segments::for_arranged<kMostX>(
      args, kBlocksArrangement + static_cast<std::int64_t>(args.dtype),
      [&](std::int64_t source, int r) { arrange<Format>(args, source, order, x[r]); },
      [&](std::int64_t r0, int count) { all_rows<Format>(args, order, x, r0, count); });
}

}  // namespace

bool segments_blocks(const MatmulArgs& args) {
  bool done = false;
  for_format(args.dtype, [&]<class Format>() {
    if constexpr (Format::kKind != Kind::half_mins) {  // its mins would be two a block
      product<Format>(args);
      done = true;
    }
  });
  return done;
}

std::int64_t segments_blocks_workspace_bytes(std::int64_t cols) {
  const Order order(cols);
  return kArrangedBytes + kMostX * (x_bytes(order) + order.sums() * 4) + 64;
}

}  // namespace millrace::kernels::avx512
