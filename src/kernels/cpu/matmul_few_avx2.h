// One to kFewRows x rows (decode) on AVX2, straight from the file's blocks: panels of eight rows take more instructions
// than memory leaves time for. Eight blocks at a time (block_groups_avx2.h): their terms are eight of the contract's
// lanes, in order; four accumulators take turns, which makes the 32 lanes.
#pragma once

#include "kernels/cpu/grid_formats_avx2.h"
#include "kernels/cpu/matmul_few.h"
#include "kernels/cpu/segment_rows.h"

namespace millrace::kernels::MR_AVX2 {
namespace {

using segments::kArrangedBytes;

std::int64_t groups_of(std::int64_t cols) { return (cols / 32 + kGroup - 1) / kGroup; }

/// The group's terms with one row of x, added to sum.
template <class Format>
MR_FAST __m256 add_group(const Sums<Format>& sums, const Scales& scales, const XGroup& x, __m256 sum) {
  const __m256 d = _mm256_load_ps(x.d);
  __m256 integers;
  if constexpr (has_halves(Format::kKind)) {
    // Integers below 2^24, exact; of NVFP4 their sum is rounded once, as everywhere.
    integers =
        _mm256_hadd_ps(_mm256_mul_ps(float_sums(sums, x), scales.b), _mm256_mul_ps(float_sums(sums, x, 1), scales.c));
  } else {
    integers = float_sums(sums, x);
  }
  sum = _mm256_fmadd_ps(_mm256_mul_ps(scales.a, d), integers, sum);
  if constexpr (has_mins(Format::kKind)) {
    const __m256 s = Format::kKind == Kind::half_mins
                         ? _mm256_cvtepi32_ps(_mm256_madd_epi16(scales.mins, load256(x.u[0])))
                         : load_floats(x.u[0]);
    sum = _mm256_fmadd_ps(_mm256_mul_ps(scales.min, d), s, sum);
  }
  return sum;
}

/// The contract's tree.
MR_FAST float add_lanes(const __m256 sum[4]) {
  const __m256 eight = _mm256_add_ps(_mm256_add_ps(sum[0], sum[2]), _mm256_add_ps(sum[1], sum[3]));
  const __m128 fours = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 twos = _mm_add_ps(fours, _mm_movehl_ps(fours, fours));
  return _mm_cvtss_f32(_mm_add_ss(twos, _mm_movehdup_ps(twos)));
}

/// Formats of which a row's last group may not be whole.
template <class Format>
constexpr bool kParts = Format::kBlockElements < kGroup * 32;

/// A weight row: its whole groups, and where there is a part of one, that (which may lie apart) and its blocks.
struct WeightRow {
  const std::byte *at, *part;
  std::int64_t whole, part_blocks;
};
/// Calls use(p, g, scales) for each group.
template <class Format, class Use>
MR_FAST void for_groups(const WeightRow& row, const Use& use) {
  constexpr std::int64_t kBytes = kGroupBytes<Format>;
  const std::byte* p = row.at;
  for (std::int64_t g = 0; g < row.whole; ++g, p += kBytes) {
    prefetch_ahead<kBytes>(p);
    use(p, g, Format::scales(p));
  }
  if constexpr (kParts<Format>) {
    if (row.part_blocks > 0) use(row.part, row.whole, only_first<Format>(Format::scales(row.part), row.part_blocks));
  }
}

template <class Format>
MR_FAST float one_row(const WeightRow& row, const XGroup* x) {
  __m256 sum[4] = {_mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps()};
  for_groups<Format>(
      row, [&](const std::byte* p, std::int64_t g, const Scales& scales) __attribute__((always_inline)) {
        sum[g % 4] = add_group(sums_of<Format>(p, x[g]), scales, x[g], sum[g % 4]);
      });
  return add_lanes(sum);
}

/// x: [count][groups].
template <class Format>
MR_FAST void some_rows(const WeightRow& row, const XGroup* x, std::int64_t groups, int count, float* y,
                       std::int64_t y_stride) {
  __m256 sum[kFewRows][4];
  for (int r = 0; r < count; ++r) sum[r][0] = sum[r][1] = sum[r][2] = sum[r][3] = _mm256_setzero_ps();
  for_groups<Format>(
      row, [&](const std::byte* p, std::int64_t g, const Scales& scales) __attribute__((always_inline)) {
        Bytes bytes;
        unpack_bytes<Format>(p, bytes);
#pragma GCC unroll 1
        for (int r = 0; r < count; ++r) {
          const XGroup& own = x[r * groups + g];
          sum[r][g % 4] = add_group(sums_of<Format>(bytes, own), scales, own, sum[r][g % 4]);
        }
      });
  for (int r = 0; r < count; ++r) y[r * y_stride] = add_lanes(sum[r]);
}

/// kOne: there is one row of x.
template <class Format, bool kOne>
void weight_rows(const MatmulArgs& args, const XGroup* x, int count, float* y) {
  constexpr std::int64_t kBytes = kGroupBytes<Format>;
  const std::int64_t row_bytes = args.cols / Format::kBlockElements * Format::kBlockBytes;
  const std::int64_t whole = args.cols / (kGroup * 32), part_blocks = args.cols / 32 - whole * kGroup;
  const std::byte* const end = args.weight + args.weight_rows * row_bytes;
  alignas(32) std::byte copy[kBytes] = {};
  for (std::int64_t n = 0; n < args.weight_rows; ++n) {
    const std::byte* const w = args.weight + n * row_bytes;
    WeightRow row{w, w + whole * kBytes, whole, part_blocks};
    if (kParts<Format> && part_blocks > 0 && end - row.part < kBytes) {  // elsewhere the next row's blocks may be read
      std::memcpy(copy, row.part, static_cast<std::size_t>(end - row.part));
      row.part = copy;
    }
    if constexpr (kOne) {
      y[n] = one_row<Format>(row, x);
    } else {
      some_rows<Format>(row, x, groups_of(args.cols), count, y + n, args.y_stride);
    }
  }
}

template <class Format>
void product(const MatmulArgs& args) {
  const std::int64_t groups = groups_of(args.cols), blocks = args.cols / 32;
  auto* const x = reinterpret_cast<XGroup*>(args.workspace + kArrangedBytes);
  segments::for_arranged<kFewRows>(
      args, static_cast<std::int64_t>(args.dtype),
      [&](std::int64_t source, int r) {
        for (std::int64_t b = 0; b < groups * kGroup; ++b) {
          put_block<Format>(args, source, b < blocks ? b : -1, static_cast<int>(b % kGroup),
                            x[r * groups + b / kGroup]);
        }
      },
      [&](std::int64_t r0, int count) {
        float* const y = args.y + r0 * args.y_stride;
        if (count == 1) {
          weight_rows<Format, true>(args, x, count, y);
        } else {
          weight_rows<Format, false>(args, x, count, y);
        }
      });
}

/// Rows of x up to which this is faster than panels (matmul_panel.h), as measured on a Zen 3.
template <class Format>
constexpr std::int64_t kMostRows = kFewRows;
template <>
constexpr std::int64_t kMostRows<Q2_K> = 1;
template <>
constexpr std::int64_t kMostRows<Q3_K> = 1;
template <>
constexpr std::int64_t kMostRows<IQ4_NL> = 1;
template <>
constexpr std::int64_t kMostRows<IQ4_XS> = 1;

}  // namespace

bool matmul_few(const MatmulArgs& args) {
  bool done = false;
  for_format(args.dtype, [&]<class Format>() {
    done = args.x_rows <= kMostRows<Format>;
    if (done) product<Format>(args);
  });
  return done;
}

std::int64_t matmul_few_workspace_bytes(std::int64_t cols) {
  return kArrangedBytes + kFewRows * groups_of(cols) * static_cast<std::int64_t>(sizeof(XGroup));
}

}  // namespace millrace::kernels::MR_AVX2
