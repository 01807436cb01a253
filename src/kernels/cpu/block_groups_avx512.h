// Groups of sixteen blocks of weights, as products with few x rows take them straight from the blocks of the file.
//
// Weights are not repacked. Sixteen blocks of a row, a *group*, become eight vectors of unsigned bytes: vector 2e + h
// holds in its 128-bit lane L the half h (16 weights) of one block, the block that the format calls number 4L + e of
// the group. Activations lie prepared in the same arrangement. Two vpdpbusd (h = 0, 1) leave four partial sums of a
// block in lane L of sum e; a 4 x 4 transposing addition leaves the block's sum in element 4L + e. So all sixteen
// scales, and the sixteen sums, are one vector each, in the format's own order.
//
// Everything here has internal linkage, so that no code built for one instruction set can be linked into another.
#pragma once

// GCC 12 calls the undefined operands inside its own AVX-512 headers uninitialized (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wuninitialized"
#ifndef __clang__
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "kernels/kernels.h"
#include "tensor/blocks.h"

namespace millrace::kernels::avx512 {
namespace {

constexpr int kGroup = 16;  // blocks

/// One row's activations for a group. u0, u1 by kind: with scale alone -offset * S (int); with mins S (float); with two
/// scales a block -offset * S16_0 and -offset * S16_1 (int); with two mins S16_0 and S16_1 (float).
struct alignas(64) XGroup {
  std::int8_t q[8][64];
  float d[kGroup];
  std::int32_t u0[kGroup];
  std::int32_t u1[kGroup];
};

/// A group of weights, ready. Scales by kind: a = d; a, b = scale and min, negated where it is subtracted; a, b, c = d
/// and the two halves'; m, m0, m1 = dmin, negated, and the two halves' mins.
struct Weights {
  __m512i q[8];
  __m512 a, b, c;
  __m512 m, m0, m1;
};

enum class Kind { scaled, with_min, halves, half_mins };
constexpr bool has_halves(Kind kind) { return kind == Kind::halves || kind == Kind::half_mins; }

__m512i load(const void* p) { return _mm512_loadu_si512(p); }
__m128i load128(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
__m256i load256(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }

std::uint32_t load32(const std::byte* p) {
  std::uint32_t value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

/// Four lanes as one vector.
__m512i joined(__m128i a, __m128i b, __m128i c, __m128i d) {
  const __m256i low = _mm256_inserti128_si256(_mm256_castsi128_si256(a), b, 1);
  const __m256i high = _mm256_inserti128_si256(_mm256_castsi128_si256(c), d, 1);
  return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}
/// Lanes 0 and 2 of a, then of b; lanes 1 and 3.
__m512i even_lanes(__m512i a, __m512i b) { return _mm512_shuffle_i32x4(a, b, 0x88); }
__m512i odd_lanes(__m512i a, __m512i b) { return _mm512_shuffle_i32x4(a, b, 0xdd); }

__m512i nibbles(__m512i raw) { return _mm512_and_si512(raw, _mm512_set1_epi8(15)); }
__m512i high_nibbles(__m512i raw) { return nibbles(_mm512_srli_epi32(raw, 4)); }

/// Element 4L + e: the sum of the four elements of lane L of s[e].
__m512i add_fours(const __m512i s[4]) {
  const __m512i a = _mm512_add_epi32(_mm512_unpacklo_epi32(s[0], s[1]), _mm512_unpackhi_epi32(s[0], s[1]));
  const __m512i b = _mm512_add_epi32(_mm512_unpacklo_epi32(s[2], s[3]), _mm512_unpackhi_epi32(s[2], s[3]));
  return _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
}

/// v plus its elements at index xor `distance`.
template <int distance>
__m512 add_across(__m512 v) {
  if constexpr (distance == 8) return _mm512_add_ps(v, _mm512_shuffle_f32x4(v, v, 0x4e));
  if constexpr (distance == 4) return _mm512_add_ps(v, _mm512_shuffle_f32x4(v, v, 0xb1));
  if constexpr (distance == 2) return _mm512_add_ps(v, _mm512_permute_ps(v, 0x4e));
  if constexpr (distance == 1) return _mm512_add_ps(v, _mm512_permute_ps(v, 0xb1));
}

template <class Format>
constexpr int kGroupBytes = kGroup * 32 / Format::kBlockElements* Format::kBlockBytes;

/// Asks for what comes soon, into the L1 cache, and for what comes later, into the L2. Rows follow each other, so that
/// past the end of a row lies the next. (Measured: 60 % of the memory's rate without, 93 % with.)
template <int bytes>
inline __attribute__((always_inline)) void prefetch_ahead(const std::byte* p) {
  constexpr int kNear = 1024, kFar = 8192;
#pragma GCC unroll 16
  for (int i = 0; i < bytes; i += 64) {
    __builtin_prefetch(p + kNear + i, 0, 3);
    __builtin_prefetch(p + kFar + i, 0, 2);
  }
}

/// What of a row's last group, where it is not whole, are blocks of that row, in the format's order.
template <class Format>
__mmask16 blocks_there(std::int64_t blocks) {
  std::uint32_t there = 0;
  for (int i = 0; i < kGroup; ++i) there |= Format::block_at(i) < blocks ? 1U << i : 0;
  return static_cast<__mmask16>(there);
}

/// A group of which other blocks than those of `there` may hold anything.
template <class Format>
inline __attribute__((always_inline)) Weights only(Weights w, __mmask16 there) {
  w.a = _mm512_maskz_mov_ps(there, w.a);
  if constexpr (Format::kKind == Kind::with_min) w.b = _mm512_maskz_mov_ps(there, w.b);
  if constexpr (Format::kKind == Kind::half_mins) w.m = _mm512_maskz_mov_ps(there, w.m);
  return w;
}
template <class Format>
inline __attribute__((always_inline)) Weights unpack_some(const std::byte* p, __mmask16 there) {
  return only<Format>(Format::unpack(p), there);
}

/// The sums of the group's blocks, in the format's order: whole blocks, or (where each half has a scale) half h of
/// each.
template <class Format>
inline __attribute__((always_inline)) __m512i group_sums(const Weights& w, const XGroup& x, int half = 0) {
  const __m512i zero = _mm512_setzero_si512();
  __m512i s[4];
#pragma GCC unroll 4
  for (int e = 0; e < 4; ++e) {
    s[e] = _mm512_dpbusd_epi32(zero, w.q[2 * e + half], load(x.q[2 * e + half]));
    if constexpr (!has_halves(Format::kKind)) s[e] = _mm512_dpbusd_epi32(s[e], w.q[2 * e + 1], load(x.q[2 * e + 1]));
  }
  if constexpr (Format::kKind == Kind::with_min || Format::kKind == Kind::half_mins) return add_fours(s);
  return _mm512_add_epi32(add_fours(s), _mm512_load_si512(half == 0 ? x.u0 : x.u1));
}

/// Block `i` (number) of a group of activations: block b of row `row`, or zeros where b is negative.
template <class Format>
void put_block(const MatmulArgs& args, std::int64_t row, std::int64_t b, int i, XGroup& group) {
  const std::int64_t blocks = args.cols / 32;
  __m128i first = _mm_setzero_si128(), second = first;
  float scale = 0;
  std::int32_t s0 = 0, s1 = 0;
  if (b >= 0) {
    const std::int8_t* q = args.x_q8.q + row * args.cols + 32 * b;
    first = load128(q);
    second = load128(q + 16);
    scale = args.x_q8.d[row * blocks + b];
    s0 = args.x_q8.sum16[2 * (row * blocks + b)];
    s1 = args.x_q8.sum16[2 * (row * blocks + b) + 1];
  }
  _mm_store_si128(reinterpret_cast<__m128i*>(group.q[2 * (i % 4)] + 16 * (i / 4)), first);
  _mm_store_si128(reinterpret_cast<__m128i*>(group.q[2 * (i % 4) + 1] + 16 * (i / 4)), second);
  group.d[i] = scale;
  group.u0[i] = Format::kKind == Kind::halves ? -Format::kOffset * s0 : -Format::kOffset * (s0 + s1);
  group.u1[i] = -Format::kOffset * s1;
  if constexpr (Format::kKind == Kind::with_min) {
    const float sum = static_cast<float>(s0 + s1);
    std::memcpy(&group.u0[i], &sum, sizeof sum);
  }
  if constexpr (Format::kKind == Kind::half_mins) {
    const float first_sum = static_cast<float>(s0), second_sum = static_cast<float>(s1);
    std::memcpy(&group.u0[i], &first_sum, sizeof first_sum);
    std::memcpy(&group.u1[i], &second_sum, sizeof second_sum);
  }
}

}  // namespace
}  // namespace millrace::kernels::avx512
