// matmul_segments straight from the blocks of the file (block_groups_avx2.h), for decode, where instructions a byte are
// what counts.
//
// A segment's blocks are added one after the other, so that lanes have to be segments. A group is a segment, and eight
// are a *batch*: each group leaves its blocks' integers and scales as vectors, and a transposition makes of those eight
// vectors one for each block of the eight segments. Rows follow each other without a gap, and so do their segments: a
// batch ends where it ends, in the middle of a row, too, and no lane is idle.
#pragma once

#include "kernels/cpu/grid_formats_avx2.h"
#include "kernels/cpu/segment_rows.h"
#include "kernels/cpu/segments_blocks.h"

namespace millrace::kernels::MR_AVX2 {
namespace {

using segments::kArrangedBytes, segments::kBlocksArrangement;

constexpr int kBatch = 8;                   // segments
constexpr std::int64_t kSumsAtOnce = 2048;  // segments of whole rows, about, before the rows are added up
constexpr int kMostX = 8;                   // rows of x at once

std::int64_t segments_of(std::int64_t cols) { return (cols + 255) / 256; }

/// One row of x: its groups, and where weights have mins what those of term t of segment s are multiplied by, dx * S,
/// at mins + t * min_stride + s, the segments going on from the first again for a batch that begins at the last.
struct XRow {
  XGroup* groups;
  float* mins;
};
std::int64_t min_stride(std::int64_t segments) { return segments + kBatch; }
std::int64_t x_bytes(std::int64_t segments) {
  const std::int64_t bytes = segments * static_cast<std::int64_t>(sizeof(XGroup)) + kGroup * min_stride(segments) * 4;
  return (bytes + 63) / 64 * 64;
}
XRow x_row(std::byte* workspace, std::int64_t segments, std::int64_t r) {
  std::byte* const at = workspace + kArrangedBytes + r * x_bytes(segments);
  return {reinterpret_cast<XGroup*>(at),
          reinterpret_cast<float*>(at + segments * static_cast<std::int64_t>(sizeof(XGroup)))};
}
std::int64_t sums_of_x(std::int64_t segments) { return (segments > kSumsAtOnce ? segments : kSumsAtOnce) + kBatch; }

template <class Format>
void arrange(const MatmulArgs& args, std::int64_t row, std::int64_t segments, const XRow& out) {
  const std::int64_t blocks = args.cols / 32;
  for (std::int64_t b = 0; b < segments * kGroup; ++b)
    put_block<Format>(args, row, b < blocks ? b : -1, static_cast<int>(b % kGroup), out.groups[b / kGroup]);
  if constexpr (Format::kKind != Kind::with_min) return;
  const float* const d = args.x_q8.d + row * blocks;
  const std::int32_t* const sum16 = args.x_q8.sum16 + row * blocks * 2;
  for (std::int64_t s = 0; s < min_stride(segments); ++s) {
    for (int i = 0; i < kGroup; ++i) {
      const std::int64_t b = s % segments * kGroup + i;
      out.mins[i * min_stride(segments) + s] =
          b < blocks ? d[b] * static_cast<float>(sum16[2 * b] + sum16[2 * b + 1]) : 0.0F;
    }
  }
}

/// A number for each block of a batch, or for four and their halves, as its groups leave them.
struct alignas(32) Numbers {
  float of[kBatch][kGroup];
};

/// out[i]: element 4 * quad + i of the eight segments.
MR_FAST void transpose(const Numbers& in, int quad, __m256 out[4]) {
  __m256 v[4];
#pragma GCC unroll 4
  for (int g = 0; g < 4; ++g) {
    v[g] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_load_ps(in.of[g] + 4 * quad)),
                                _mm_load_ps(in.of[g + 4] + 4 * quad), 1);
  }
  const __m256 a = _mm256_unpacklo_ps(v[0], v[1]), b = _mm256_unpackhi_ps(v[0], v[1]);
  const __m256 c = _mm256_unpacklo_ps(v[2], v[3]), d = _mm256_unpackhi_ps(v[2], v[3]);
  out[0] = _mm256_shuffle_ps(a, c, 0x44);
  out[1] = _mm256_shuffle_ps(a, c, 0xee);
  out[2] = _mm256_shuffle_ps(b, d, 0x44);
  out[3] = _mm256_shuffle_ps(b, d, 0xee);
}

/// What a batch's groups leave of one row of x: integers as floats, and scales times those of x; of halves two each,
/// interleaved.
struct Terms {
  Numbers integers[2], scales[2];
};

/// The eight sums of a batch. mins: the weights', negated; x_mins: at the batch's first segment.
template <class Format>
MR_FAST __m256 add_batch(const Terms& terms, const Numbers& mins, const float* x_mins, std::int64_t stride) {
  constexpr int kHalves = has_halves(Format::kKind) ? 2 : 1;
  __m256 sum = _mm256_setzero_ps();
#pragma GCC unroll 4
  for (int k = 0; k < 2 * kHalves; ++k) {  // four terms, in the contract's order
    const int vector = k % kHalves, quad = k / kHalves;
    __m256 i[4], s[4], m[4];
    transpose(terms.integers[vector], quad, i);
    transpose(terms.scales[vector], quad, s);
    if constexpr (Format::kKind == Kind::with_min) transpose(mins, quad, m);
#pragma GCC unroll 4
    for (int t = 0; t < 4; ++t) {
      sum = _mm256_fmadd_ps(s[t], i[t], sum);
      if constexpr (Format::kKind == Kind::with_min)
        sum = _mm256_fmadd_ps(m[t], _mm256_loadu_ps(x_mins + (4 * k + t) * stride), sum);
    }
  }
  return sum;
}

/// A group's terms with one row of x.
template <class Format>
MR_FAST void put_terms(const Sums<Format>& sums, const Scales& scales, const XGroup& x, std::int64_t g, Terms& terms) {
  const __m256 d = _mm256_load_ps(x.d);
  _mm256_store_ps(terms.integers[0].of[g], float_sums(sums, x));
  if constexpr (has_halves(Format::kKind)) {
    _mm256_store_ps(terms.integers[1].of[g], float_sums(sums, x, 1));
    _mm256_store_ps(terms.scales[0].of[g], _mm256_mul_ps(_mm256_mul_ps(scales.a, scales.b), _mm256_unpacklo_ps(d, d)));
    _mm256_store_ps(terms.scales[1].of[g], _mm256_mul_ps(_mm256_mul_ps(scales.a, scales.c), _mm256_unpackhi_ps(d, d)));
  } else {
    _mm256_store_ps(terms.scales[0].of[g], _mm256_mul_ps(scales.a, d));
  }
}

/// `count` rows of x, and weight rows [first, first + rows), whose segments' sums fit in `sums`
/// ([count][sums_of_x()]). kOne: count is 1.
template <class Format, bool kOne>
void some_rows(const MatmulArgs& args, const XRow* x, int count, std::int64_t first, std::int64_t rows, float* sums,
               float* y) {
  constexpr std::int64_t kBytes = kGroupBytes<Format>;
  constexpr bool kParts = Format::kBlockElements < kGroup * 32;  // a row's last group may not be whole
  const std::int64_t row_bytes = args.cols / Format::kBlockElements * Format::kBlockBytes;
  const std::byte* const weight = args.weight + first * row_bytes;
  const std::byte* const end = args.weight + args.weight_rows * row_bytes;
  const std::int64_t segments = segments_of(args.cols), positions = rows * segments;
  const std::int64_t last_blocks = args.cols / 32 - (segments - 1) * kGroup;
  Terms terms[kOne ? 1 : kMostX];
  Numbers mins;
  std::memset(terms, 0, static_cast<std::size_t>(count) * sizeof(Terms));
  std::memset(&mins, 0, sizeof mins);
  alignas(32) std::byte copy[kBytes] = {};
  std::int64_t row = 0, segment = 0;  // of the group at hand
  for (std::int64_t at = 0; at < positions; at += kBatch) {
    const std::int64_t batch_segment = segment;
    const std::int64_t groups = positions - at < kBatch ? positions - at : kBatch;
    for (std::int64_t g = 0; g < groups; ++g) {
      const std::byte* p = weight + row * row_bytes + segment * kBytes;
      prefetch_ahead<kBytes>(p);
      if (kParts && end - p < kBytes) {
        std::memcpy(copy, p, static_cast<std::size_t>(end - p));
        p = copy;
      }
      Scales scales = Format::scales(p);
      if (kParts && segment + 1 == segments) scales = only_first<Format>(scales, last_blocks);
      if constexpr (Format::kKind == Kind::with_min) _mm256_store_ps(mins.of[g], scales.min);
      if constexpr (kOne) {
        const XGroup& xs = x[0].groups[segment];
        put_terms(sums_of<Format>(p, xs), scales, xs, g, terms[0]);
      } else {
        Bytes bytes;
        unpack_bytes<Format>(p, bytes);
#pragma GCC unroll 1
        for (int r = 0; r < count; ++r) {
          const XGroup& xs = x[r].groups[segment];
          put_terms(sums_of<Format>(bytes, xs), scales, xs, g, terms[r]);
        }
      }
      if (++segment == segments) segment = 0, ++row;
    }
    for (int r = 0; r < count; ++r) {
      _mm256_storeu_ps(sums + r * sums_of_x(segments) + at,
                       add_batch<Format>(terms[r], mins, x[r].mins + batch_segment, min_stride(segments)));
    }
  }
  for (int r = 0; r < count; ++r)
    segments::add_rows(sums + r * sums_of_x(segments), segments, segments, rows, y + r * args.y_stride + first);
}

/// x rows [r0, r0 + count), which lie arranged at x.
template <class Format>
void all_rows(const MatmulArgs& args, const XRow* x, std::int64_t r0, int count) {
  const std::int64_t segments = segments_of(args.cols);
  auto* const sums = reinterpret_cast<float*>(args.workspace + kArrangedBytes + kMostX * x_bytes(segments));
  const std::int64_t at_once = segments < kSumsAtOnce ? kSumsAtOnce / segments : 1;
  for (std::int64_t n = 0; n < args.weight_rows; n += at_once) {
    const std::int64_t left = args.weight_rows - n, rows = left < at_once ? left : at_once;
    float* const y = args.y + r0 * args.y_stride;
    if (count == 1) {
      some_rows<Format, true>(args, x, count, n, rows, sums, y);
    } else {
      some_rows<Format, false>(args, x, count, n, rows, sums, y);
    }
  }
}

template <class Format>
void product(const MatmulArgs& args) {
  const std::int64_t segments = segments_of(args.cols);
  XRow x[kMostX];
  for (int r = 0; r < kMostX; ++r) x[r] = x_row(args.workspace, segments, r);
  segments::for_arranged<kMostX>(
      args, kBlocksArrangement + static_cast<std::int64_t>(args.dtype),
      [&](std::int64_t source, int r) { arrange<Format>(args, source, segments, x[r]); },
      [&](std::int64_t r0, int count) { all_rows<Format>(args, x, r0, count); });
}

/// Rows of x up to which this is faster than panels (matmul_segments.h), as measured on a Zen 3. Panels are unpacked
/// faster the simpler a format is, and take less for each further row.
template <class Format>
constexpr std::int64_t kMostRows = INT64_MAX;
template <>
constexpr std::int64_t kMostRows<Q3_K> = 1;
template <>
constexpr std::int64_t kMostRows<IQ4_XS> = 1;
template <>
constexpr std::int64_t kMostRows<Q4_K> = 2;
template <>
constexpr std::int64_t kMostRows<Q5_K> = 2;
template <>
constexpr std::int64_t kMostRows<Q6_K> = 2;
template <>
constexpr std::int64_t kMostRows<NVFP4> = 2;

}  // namespace

bool segments_blocks(const MatmulArgs& args) {
  bool done = false;
  for_format(args.dtype, [&]<class Format>() {
    if constexpr (Format::kKind != Kind::half_mins) {  // its mins would be two a block
      done = args.x_rows <= kMostRows<Format>;
      if (done) product<Format>(args);
    }
  });
  return done;
}

std::int64_t segments_blocks_workspace_bytes(std::int64_t cols) {
  const std::int64_t segments = segments_of(cols);
  return kArrangedBytes + kMostX * (x_bytes(segments) + sums_of_x(segments) * 4) + 64;
}

}  // namespace millrace::kernels::MR_AVX2
