// One to eight x rows (decode): bound by how fast weights come from memory, so that instructions a byte are what
// counts. Sixteen blocks at a time, as they lie in the file (block_groups_avx512.h): their terms are the contract's
// sixteen lanes, in the format's order; two accumulators take turns, which makes the 32 lanes. The final tree adds the
// elements that the contract pairs.
#include <utility>

#include "kernels/cpu/grid_formats_avx512.h"
#include "kernels/cpu/matmul_few.h"

namespace millrace::kernels::avx512 {
namespace {

/// The group's terms, added to sum.
template <class Format>
inline __attribute__((always_inline)) __m512 add_group(const Weights& w, const XGroup& x, __m512 sum) {
  const __m512 d = _mm512_load_ps(x.d);
  const __m512 i0 = _mm512_cvtepi32_ps(group_sums<Format>(w, x));
  if constexpr (has_halves(Format::kKind)) {
    // Integers below 2^24, exact; of NVFP4 their sum is rounded once, as everywhere.
    const __m512 j = _mm512_fmadd_ps(_mm512_cvtepi32_ps(group_sums<Format>(w, x, 1)), w.c, _mm512_mul_ps(i0, w.b));
    sum = _mm512_fmadd_ps(_mm512_mul_ps(w.a, d), j, sum);
    if constexpr (Format::kKind == Kind::half_mins) {
      const __m512 s0 = _mm512_castsi512_ps(_mm512_load_si512(x.u0)), s1 = _mm512_castsi512_ps(_mm512_load_si512(x.u1));
      sum = _mm512_fmadd_ps(_mm512_mul_ps(w.m, d), _mm512_fmadd_ps(s1, w.m1, _mm512_mul_ps(s0, w.m0)), sum);
    }
    return sum;
  }
  sum = _mm512_fmadd_ps(_mm512_mul_ps(w.a, d), i0, sum);
  if constexpr (Format::kKind == Kind::with_min)
    sum = _mm512_fmadd_ps(_mm512_mul_ps(w.b, d), _mm512_castsi512_ps(_mm512_load_si512(x.u0)), sum);
  return sum;
}

/// One weight row with kX x rows. x: [kX][groups]. The row's `whole` groups are at w; where there is one more, `there`
/// of it is at `rest`.
template <class Format, int kX>
inline __attribute__((always_inline)) void weight_row(const std::byte* w, const XGroup* x, std::int64_t groups,
                                                      std::int64_t whole, const std::byte* rest, __mmask16 there,
                                                      float* const* y) {
  __m512 sum[2][kX];
#pragma GCC unroll 8
  for (int i = 0; i < kX; ++i) sum[0][i] = sum[1][i] = _mm512_setzero_ps();
  const auto add = [&](const Weights& weights, std::int64_t g, int turn) __attribute__((always_inline)) {
#pragma GCC unroll 8
    for (int i = 0; i < kX; ++i) sum[turn][i] = add_group<Format>(weights, x[i * groups + g], sum[turn][i]);
  };
  const auto next = [&](std::int64_t g) __attribute__((always_inline)) {
    const std::byte* p = w + g * kGroupBytes<Format>;
    prefetch_ahead<kGroupBytes<Format>>(p);
    return Format::unpack(p);
  };
  std::int64_t g = 0;
  for (; g + 2 <= whole; g += 2) {
    add(next(g), g, 0);
    add(next(g + 1), g + 1, 1);
  }
  const bool odd = g < whole;
  if (odd) add(next(g), g, 0);
  if (whole < groups) {
    prefetch_ahead<kGroupBytes<Format>>(w + whole * kGroupBytes<Format>);
    const Weights last = unpack_some<Format>(rest, there);
    if (odd) {
      add(last, whole, 1);
    } else {
      add(last, whole, 0);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kX; ++i) *y[i] = _mm512_cvtss_f32(Format::add_all(_mm512_add_ps(sum[0][i], sum[1][i])));
}

template <class Format>
__attribute__((noinline)) Weights unpack_apart(const std::byte* p) {
  return Format::unpack(p);
}

/// The same with `count` rows, for formats that are long to unpack: what unpacks stands here once for a row and once
/// for more.
template <class Format>
inline __attribute__((always_inline)) void weight_row_long(const std::byte* w, const XGroup* x, int count,
                                                           std::int64_t groups, std::int64_t whole,
                                                           const std::byte* rest, __mmask16 there, float* const* y) {
  if (count == 1) {
    __m512 sum = _mm512_setzero_ps(), other = sum;  // they take turns
    for (std::int64_t g = 0; g < groups; ++g) {
      const std::byte* const p = g < whole ? w + g * kGroupBytes<Format> : rest;
      prefetch_ahead<kGroupBytes<Format>>(w + g * kGroupBytes<Format>);
      const __m512 next = add_group<Format>(unpack_some<Format>(p, g < whole ? 0xffff : there), x[g], sum);
      sum = other;
      other = next;
    }
    *y[0] = _mm512_cvtss_f32(Format::add_all(_mm512_add_ps(sum, other)));
    return;
  }
  __m512 sum[2][kFewRows];
  for (int i = 0; i < count; ++i) sum[0][i] = sum[1][i] = _mm512_setzero_ps();
  for (std::int64_t g = 0; g < groups; ++g) {
    prefetch_ahead<kGroupBytes<Format>>(w + g * kGroupBytes<Format>);
    Weights weights = unpack_apart<Format>(g < whole ? w + g * kGroupBytes<Format> : rest);
    if (g == whole) weights = only<Format>(weights, there);
    __m512* const own = sum[g % 2];
#pragma GCC unroll 1
    for (int i = 0; i < count; ++i) own[i] = add_group<Format>(weights, x[i * groups + g], own[i]);
  }
  for (int i = 0; i < count; ++i) *y[i] = _mm512_cvtss_f32(Format::add_all(_mm512_add_ps(sum[0][i], sum[1][i])));
}

/// Row `row` of the activations, in the format's arrangement; blocks past the end are zero.
template <class Format>
void prepare(const MatmulArgs& args, std::int64_t row, std::int64_t groups, XGroup* out) {
  const std::int64_t blocks = args.cols / 32;
  for (std::int64_t g = 0; g < groups; ++g) {
    for (int i = 0; i < kGroup; ++i) {
      const std::int64_t b = g * kGroup + Format::block_at(i);
      put_block<Format>(args, row, b < blocks ? b : -1, i, out[g]);
    }
  }
}

/// kX: x rows, or 0 for as many as there are.
template <class Format, int kX>
void weight_rows(const MatmulArgs& args, const XGroup* x, std::int64_t groups) {
  constexpr std::int64_t kBytes = kGroupBytes<Format>;
  const std::int64_t row_bytes = args.cols / Format::kBlockElements * Format::kBlockBytes;
  const std::int64_t whole = row_bytes / kBytes, rest = row_bytes - whole * kBytes;
  const __mmask16 there = blocks_there<Format>(args.cols / 32 - whole * kGroup);
  const std::byte* const end = args.weight + args.weight_rows * row_bytes;
  const int count = kX == 0 ? static_cast<int>(args.x_rows) : kX;
  alignas(64) std::byte copy[kBytes] = {};
  for (std::int64_t n = 0; n < args.weight_rows; ++n) {
    const std::byte *const w = args.weight + n * row_bytes, *last = w + whole * kBytes;
    if (rest > 0 && end - last < kBytes) {  // elsewhere the next row's blocks may be read
      std::memcpy(copy, last, static_cast<std::size_t>(rest));
      last = copy;
    }
    float* y[kFewRows];
    for (int i = 0; i < count; ++i) y[i] = args.y + i * args.y_stride + n;
    if constexpr (kX == 0) {
      weight_row_long<Format>(w, x, count, groups, whole, last, there, y);
    } else {
      weight_row<Format, kX>(w, x, groups, whole, last, there, y);
    }
  }
}

std::int64_t groups_of(std::int64_t cols) { return (cols / 32 + kGroup - 1) / kGroup; }

template <class Format>
void product(const MatmulArgs& args) {
  const std::int64_t groups = groups_of(args.cols);
  XGroup* x = reinterpret_cast<XGroup*>(args.workspace + kArrangedBytes);
  auto& there = *reinterpret_cast<Arranged*>(args.workspace);
  const bool named = args.x_index == nullptr || args.x_rows == 1;  // others pick rows as they like
  const Arranged wanted{named ? args.x_name : 0, args.dtype, args.x_rows, args.cols,
                        args.x_index == nullptr ? 0 : args.x_index[0]};
  if (wanted.name == 0 || there != wanted) {
    for (std::int64_t r = 0; r < args.x_rows; ++r) {
      prepare<Format>(args, args.x_index ? args.x_index[r] : r, groups, x + r * groups);
    }
    there = wanted;
  }
  if constexpr (Format::kLong) {
    weight_rows<Format, 0>(args, x, groups);
  } else {
    const auto with = [&]<int kX>() {
      if (args.x_rows == kX) weight_rows<Format, kX>(args, x, groups);
    };
    [&]<int... kX>(std::integer_sequence<int, kX...>) { (with.template operator()<kX + 1>(), ...); }
    (std::make_integer_sequence<int, kFewRows>());
  }
}

}  // namespace

bool matmul_few(const MatmulArgs& args) {
  return for_format(args.dtype, [&]<class Format>() { product<Format>(args); });
}

std::int64_t matmul_few_workspace_bytes(std::int64_t cols) {
  return kArrangedBytes + kFewRows * groups_of(cols) * static_cast<std::int64_t>(sizeof(XGroup));
}

}  // namespace millrace::kernels::avx512
