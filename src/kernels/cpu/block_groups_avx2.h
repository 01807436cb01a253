// Groups of eight blocks of weights, as products with few x rows take them on AVX2 straight from the blocks of the
// file.
//
// Weights are not repacked. Eight blocks of 32 (256 columns, a segment) become eight vectors of bytes: vector 2e + h
// holds half h (16 weights) of block e in its lower 128-bit lane and of block e + 4 in its upper one. Activations lie
// prepared in the same arrangement. Two vpmaddubsw (h = 0, 1) leave the sums of pairs of a block in one lane, in int16,
// and a transposing addition over e leaves the sums of all eight blocks in one vector, in their order. How many sums
// may be added in int16 before one could saturate depends on the format's largest byte (kPairs). With AVX-VNNI one
// vpdpbusd leaves sums of four in int32 instead.
//
// Where each half of a block has a scale, the sums of halves are two vectors: the *interleaved order*, in which
// vector v has in lane L blocks 4L + 2v and 4L + 2v + 1, both halves of the first before those of the second. It is
// what unpacklo and unpackhi make of the vectors of first and of second halves.
//
// Everything here has internal linkage, so that no code built for one instruction set can be linked into another.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "kernels/cpu/isa_avx2.h"
#include "kernels/kernels.h"
#include "tensor/blocks.h"

namespace millrace::kernels::MR_AVX2 {
namespace {

#define MR_FAST inline __attribute__((always_inline))  // for files that include this

constexpr int kGroup = 8;  // blocks

enum class Kind { scaled, with_min, halves, half_mins };
constexpr bool has_halves(Kind kind) { return kind == Kind::halves || kind == Kind::half_mins; }
constexpr bool has_mins(Kind kind) { return kind == Kind::with_min || kind == Kind::half_mins; }

/// One row's activations for a group. u by kind: scaled: -offset * S (int) in u[0]; with_min: S (float) in u[0];
/// halves: -offset * S16 (int), interleaved; half_mins: all sixteen S16 in order, in int16, in u[0].
struct alignas(32) XGroup {
  std::int8_t q[8][32];
  float d[kGroup];
  std::int32_t u[2][kGroup];
};

/// Scales of a group. a = the blocks' scales, or d where halves have scales of their own: b, c, interleaved. min = the
/// blocks' mins, negated; with mins of halves dmin, negated, and these as int16, of block b and half h at 2b + h.
struct Scales {
  __m256 a, b, c, min;
  __m256i mins;
};

MR_FAST __m128i load64(const void* p) { return _mm_loadl_epi64(static_cast<const __m128i*>(p)); }
MR_FAST __m128i load128(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
MR_FAST __m256i load256(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
MR_FAST __m256 load_floats(const void* p) { return _mm256_castsi256_ps(load256(p)); }
MR_FAST __m256i joined(__m128i low, __m128i high) {
  return _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
}
/// Sixteen bytes to each lane.
MR_FAST __m256i load_lanes(const void* low, const void* high) { return joined(load128(low), load128(high)); }

MR_FAST std::uint32_t load32(const void* p) {
  std::uint32_t value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

template <class Format>
constexpr int kGroupBytes = kGroup * 32 / Format::kBlockElements* Format::kBlockBytes;

/// Asks for what comes soon, into the L1 cache, and for what comes later, into the L2. Rows follow each other, so that
/// past the end of a row lies the next.
template <int bytes>
MR_FAST void prefetch_ahead(const std::byte* p) {
  constexpr int kNear = 1024, kFar = 8192;
#pragma GCC unroll 8
  for (int i = 0; i < bytes; i += 64) {
    __builtin_prefetch(p + kNear + i, 0, 3);
    __builtin_prefetch(p + kFar + i, 0, 2);
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// Integer sums.

/// How many sums of two products fit into int16 when they are added. A format without kMost has signed bytes, of which
/// one sum just fits.
#ifdef __AVXVNNI__
constexpr bool kSumsAreWords = false;
constexpr int kByteOffset = 128;  // of signed bytes, which are multiplied as unsigned ones
#else
constexpr bool kSumsAreWords = true;
constexpr int kByteOffset = 0;
#endif
template <class Format>
constexpr int kPairs = Format::kMost == 0 ? 1 : 32767 / (2 * 127 * Format::kMost);

/// Sums of pairs of weights times x.
template <class Format>
MR_FAST __m256i products(__m256i w, const std::int8_t* x) {
  if constexpr (Format::kMost == 0) return _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(load256(x), w));
  return _mm256_maddubs_epi16(w, load256(x));
}
MR_FAST __m256i in_pairs(__m256i words) { return _mm256_madd_epi16(words, _mm256_set1_epi16(1)); }

#ifdef __AVXVNNI__
/// `sum` and the sums of four weights times x.
template <class Format>
MR_FAST __m256i add_fours(__m256i sum, __m256i w, const std::int8_t* x) {
  if constexpr (Format::kMost == 0 && Format::kOffset == 0)
    return _mm256_dpbusd_avx_epi32(sum, _mm256_abs_epi8(w), _mm256_sign_epi8(load256(x), w));
  return _mm256_dpbusd_avx_epi32(sum, w, load256(x));
}
#endif

/// The sums of a group with one row of x, as they arise.
template <class Format>
struct Sums {
  __m256i of[4];

#ifdef __AVXVNNI__
  /// Blocks e and e + 4: their halves.
  MR_FAST void add(int e, __m256i first, __m256i second, const XGroup& x) {
    const __m256i p = add_fours<Format>(_mm256_setzero_si256(), first, x.q[2 * e]);
    if constexpr (has_halves(Format::kKind)) {
      of[e] = _mm256_hadd_epi32(p, add_fours<Format>(_mm256_setzero_si256(), second, x.q[2 * e + 1]));
    } else {
      of[e] = add_fours<Format>(p, second, x.q[2 * e + 1]);
    }
  }
  static MR_FAST __m256i joined_pair(__m256i a, __m256i b) { return _mm256_hadd_epi32(a, b); }
#else
  /// Blocks e and e + 4: their halves.
  MR_FAST void add(int e, __m256i first, __m256i second, const XGroup& x) {
    const __m256i p = products<Format>(first, x.q[2 * e]), q = products<Format>(second, x.q[2 * e + 1]);
    if constexpr (kPairs<Format> >= 2) {
      of[e] = has_halves(Format::kKind) ? _mm256_hadd_epi16(p, q) : _mm256_add_epi16(p, q);
    } else {
      of[e] = has_halves(Format::kKind) ? _mm256_hadd_epi32(in_pairs(p), in_pairs(q))
                                        : _mm256_add_epi32(in_pairs(p), in_pairs(q));
    }
  }

  /// Of two that were added the sums of four words each (kPairs >= 2), or of four ints, to ints.
  static MR_FAST __m256i joined_pair(__m256i a, __m256i b) {
    if constexpr (kPairs<Format> >= 4) return in_pairs(_mm256_hadd_epi16(a, b));
    if constexpr (kPairs<Format> >= 2) return _mm256_hadd_epi32(in_pairs(a), in_pairs(b));
    return _mm256_hadd_epi32(a, b);
  }
#endif

  /// Of whole blocks.
  MR_FAST __m256i blocks() const {
    static_assert(!has_halves(Format::kKind));
    if constexpr (kSumsAreWords && kPairs<Format> >= 8) {
      return in_pairs(_mm256_hadd_epi16(_mm256_hadd_epi16(of[0], of[1]), _mm256_hadd_epi16(of[2], of[3])));
    } else {
      return _mm256_hadd_epi32(joined_pair(of[0], of[1]), joined_pair(of[2], of[3]));
    }
  }
  /// Of halves, interleaved.
  MR_FAST __m256i halves(int v) const {
    static_assert(has_halves(Format::kKind));
    return joined_pair(of[2 * v], of[2 * v + 1]);
  }
};

/// The sums as floats, of all blocks or (interleaved) of halves, with what makes up for the offset of the bytes.
template <class Format>
MR_FAST __m256 float_sums(const Sums<Format>& sums, const XGroup& x, int v = 0) {
  __m256i all;
  if constexpr (has_halves(Format::kKind)) {
    all = sums.halves(v);
  } else {
    all = sums.blocks();
  }
  if constexpr (Format::kOffset != 0) all = _mm256_add_epi32(all, load256(x.u[v]));
  return _mm256_cvtepi32_ps(all);
}

/// The unpacked bytes of a group, for several rows of x.
struct Bytes {
  __m256i q[8];
};
template <class Format>
MR_FAST Sums<Format> sums_of(const Bytes& bytes, const XGroup& x) {
  Sums<Format> sums;
#pragma GCC unroll 4
  for (int e = 0; e < 4; ++e) sums.add(e, bytes.q[2 * e], bytes.q[2 * e + 1], x);
  return sums;
}
template <class Format>
MR_FAST void unpack_bytes(const std::byte* p, Bytes& bytes) {
  Format::unpack(
      p, [&](int e, __m256i first, __m256i second) __attribute__((always_inline)) {
        bytes.q[2 * e] = first;
        bytes.q[2 * e + 1] = second;
      });
}
/// The same for a single row, whose products are made while the weights are in registers.
template <class Format>
MR_FAST Sums<Format> sums_of(const std::byte* p, const XGroup& x) {
  Sums<Format> sums;
  Format::unpack(
      p, [&](int e, __m256i first, __m256i second) __attribute__((always_inline)) { sums.add(e, first, second, x); });
  return sums;
}

/// Scales of a group of which only the first blocks are of the row: others may hold anything.
template <class Format>
MR_FAST Scales only_first(Scales scales, std::int64_t blocks) {
  const __m256i there =
      _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(blocks)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  // Where halves have scales, a is one number, and b and c are finite whatever their bits.
  if constexpr (!has_halves(Format::kKind)) scales.a = _mm256_and_ps(scales.a, _mm256_castsi256_ps(there));
  if constexpr (Format::kKind == Kind::with_min) scales.min = _mm256_and_ps(scales.min, _mm256_castsi256_ps(there));
  return scales;
}

// ---------------------------------------------------------------------------------------------------------------------
// Activations.

/// Block `i` of a group of activations: block b of row `row`, or zeros where b is negative.
template <class Format>
void put_block(const MatmulArgs& args, std::int64_t row, std::int64_t b, int i, XGroup& group) {
  const std::int64_t blocks = args.cols / 32;
  __m128i half[2] = {_mm_setzero_si128(), _mm_setzero_si128()};
  float scale = 0;
  std::int32_t s[2] = {0, 0};
  if (b >= 0) {
    const std::int8_t* const q = args.x_q8.q + row * args.cols + 32 * b;
    for (int h = 0; h < 2; ++h) {
      half[h] = load128(q + 16 * h);
      s[h] = args.x_q8.sum16[2 * (row * blocks + b) + h];
    }
    scale = args.x_q8.d[row * blocks + b];
  }
  group.d[i] = scale;
  for (int h = 0; h < 2; ++h) {
    _mm_store_si128(reinterpret_cast<__m128i*>(group.q[2 * (i % 4) + h] + 16 * (i / 4)), half[h]);
    if constexpr (Format::kKind == Kind::halves) {
      group.u[i / 2 % 2][i / 4 * 4 + i % 2 * 2 + h] = -Format::kOffset * s[h];
    }
    if constexpr (Format::kKind == Kind::half_mins) {
      const auto word = static_cast<std::int16_t>(s[h]);  // |S16| <= 16 * 127
      std::memcpy(reinterpret_cast<char*>(group.u[0]) + 2 * (2 * i + h), &word, sizeof word);
    }
  }
  if constexpr (Format::kKind == Kind::scaled) group.u[0][i] = -Format::kOffset * (s[0] + s[1]);
  if constexpr (Format::kKind == Kind::with_min) {
    const auto sum = static_cast<float>(s[0] + s[1]);
    std::memcpy(&group.u[0][i], &sum, sizeof sum);
  }
}

}  // namespace
}  // namespace millrace::kernels::MR_AVX2
