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
/// scales a block -offset * S16_0 and -offset * S16_1 (int).
struct alignas(64) XGroup {
  std::int8_t q[8][64];
  float d[kGroup];
  std::int32_t u0[kGroup];
  std::int32_t u1[kGroup];
};

/// A group of weights, ready. Scales by kind: a = d; a, b = scale and negated min; a, b, c = d and the two halves'.
struct Weights {
  __m512i q[8];
  __m512 a, b, c;
};

enum class Kind { scaled, with_min, halves };

__m512i load(const void* p) { return _mm512_loadu_si512(p); }
__m128i load128(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
__m256i load256(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }

std::uint32_t load32(const std::byte* p) {
  std::uint32_t value;
  std::memcpy(&value, p, sizeof value);
  return value;
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

// A format has: kKind; kOffset of its unsigned bytes; kGroupBytes; block_at(i), the block of the group that is number i
// (i = 4L + e); unpack(); and add_all(v), the contract's tree over sixteen elements (bits 3, 2, 1, 0 of the block).

struct Q4_0 {
  static constexpr Kind kKind = Kind::scaled;
  static constexpr int kOffset = 8, kBlockElements = 32, kBlockBytes = 18;
  static constexpr int block_at(int i) { return 4 * (i % 4) + i / 4; }
  static __m512 add_all(__m512 v) { return add_across<4>(add_across<8>(add_across<1>(add_across<2>(v)))); }

  // Four blocks are 72 bytes. A vector from their start has all but the last eight; a second load brings those.
  static Weights unpack(const std::byte* p) {
    alignas(64) static constexpr std::uint8_t kQuants[64] = {
        2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15, 16, 17, 20, 21, 22, 23, 24, 25,
        26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 38, 39, 40, 41, 42, 43, 44, 45, 46, 47, 48, 49,
        50, 51, 52, 53, 56, 57, 58, 59, 60, 61, 62, 63, 0,  0,  0,  0,  0,  0,  0,  0};
    // Float16 number 4L + e from byte 18 L: the index is the same for all e, the mask is not.
    alignas(64) static constexpr std::uint8_t kScales[64] = {0,  1,  0,  1,  0,  1,  0,  1,  18, 19, 18,
                                                             19, 18, 19, 18, 19, 36, 37, 36, 37, 36, 37,
                                                             36, 37, 54, 55, 54, 55, 54, 55, 54, 55};
    const __m512i quants = load(kQuants), scales = load(kScales);
    Weights w;
    __m512i d = _mm512_setzero_si512();
#pragma GCC unroll 4
    for (int e = 0; e < 4; ++e) {
      const __m512i from = load(p + 72 * e);
      d = _mm512_mask_permutexvar_epi8(d, 0x03030303ULL << (2 * e), scales, from);
      const __m512i raw = _mm512_mask_loadu_epi64(_mm512_permutexvar_epi8(quants, from), 0x80, p + 72 * e + 8);
      w.q[2 * e] = nibbles(raw);
      w.q[2 * e + 1] = high_nibbles(raw);
    }
    w.a = _mm512_cvtph_ps(_mm512_castsi512_si256(d));
    return w;
  }
};

struct Q8_0 {
  static constexpr Kind kKind = Kind::scaled;
  static constexpr int kOffset = 128, kBlockElements = 32, kBlockBytes = 34;
  static constexpr int block_at(int i) { return 4 * (i % 4) + i / 4; }
  static __m512 add_all(__m512 v) { return add_across<4>(add_across<8>(add_across<1>(add_across<2>(v)))); }

  static Weights unpack(const std::byte* p) {
    // Two float16 of a pair of blocks to numbers 4L + e and 4(L + 1) + e: the pair (e, L) has L = 0 or 2.
    alignas(64) static constexpr std::uint8_t kScales[64] = {0, 1, 0, 1, 0, 1, 0, 1, 34, 35, 34, 35, 34, 35, 34, 35,
                                                             0, 1, 0, 1, 0, 1, 0, 1, 34, 35, 34, 35, 34, 35, 34, 35};
    const __m512i scales = load(kScales), flip = _mm512_set1_epi8(-128);
    Weights w;
    __m512i d = _mm512_setzero_si512();
#pragma GCC unroll 4
    for (int e = 0; e < 4; ++e) {
      __m512i pair[2];
#pragma GCC unroll 2
      for (int m = 0; m < 2; ++m) {
        const std::byte* two = p + (4 * e + 2 * m) * kBlockBytes;
        pair[m] = _mm512_inserti64x4(_mm512_castsi256_si512(load256(two + 2)), load256(two + kBlockBytes + 2), 1);
        d = _mm512_mask_permutexvar_epi8(d, 0x0303ULL << (2 * e + 16 * m), scales, load(two));
      }
      w.q[2 * e] = _mm512_xor_si512(even_lanes(pair[0], pair[1]), flip);
      w.q[2 * e + 1] = _mm512_xor_si512(odd_lanes(pair[0], pair[1]), flip);
    }
    w.a = _mm512_cvtph_ps(_mm512_castsi512_si256(d));
    return w;
  }
};

struct MXFP4 {
  static constexpr Kind kKind = Kind::scaled;
  static constexpr int kOffset = 12, kBlockElements = 32, kBlockBytes = 17;
  static constexpr int block_at(int i) { return 4 * (i % 4) + i / 4; }
  static __m512 add_all(__m512 v) { return add_across<4>(add_across<8>(add_across<1>(add_across<2>(v)))); }

  // Four blocks are 68 bytes. A vector from their start has all but the last four; a second load brings those.
  static Weights unpack(const std::byte* p) {
    alignas(64) static constexpr std::uint8_t kQuants[64] = {
        1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15, 16, 18, 19, 20, 21, 22, 23,
        24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 35, 36, 37, 38, 39, 40, 41, 42, 43, 44, 45, 46,
        47, 48, 49, 50, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63, 0,  0,  0,  0};
    // Exponent number 4L + e from byte 17 L: the index is the same for all e, the mask is not.
    const __m512i exponents =
        _mm512_set_epi32(0x33333333, 0x33333333, 0x33333333, 0x33333333, 0x22222222, 0x22222222, 0x22222222, 0x22222222,
                         0x11111111, 0x11111111, 0x11111111, 0x11111111, 0, 0, 0, 0);
    const __m512i quants = load(kQuants), levels = _mm512_broadcast_i32x4(load128(kLevels));
    Weights w;
    __m512i e8 = _mm512_setzero_si512();
#pragma GCC unroll 4
    for (int e = 0; e < 4; ++e) {
      const __m512i from = load(p + 68 * e);
      e8 = _mm512_mask_permutexvar_epi8(e8, 0x0001000100010001ULL << (4 * e), exponents, from);
      const __m512i raw = _mm512_mask_loadu_epi32(_mm512_permutexvar_epi8(quants, from), 0x8000, p + 68 * e + 4);
      // Six bits of an index choose among 64 bytes, which are four times the sixteen: no mask for the nibbles.
      w.q[2 * e] = _mm512_permutexvar_epi8(raw, levels);
      w.q[2 * e + 1] = _mm512_permutexvar_epi8(_mm512_srli_epi32(raw, 4), levels);
    }
    // Half the scale is 2^(e - 128): exponent field e - 1, or a subnormal for e < 2 (tensor/blocks.h).
    const __m512i normal = _mm512_slli_epi32(_mm512_sub_epi32(e8, _mm512_set1_epi32(1)), 23);
    const __mmask16 tiny = _mm512_cmplt_epu32_mask(e8, _mm512_set1_epi32(2));
    w.a = _mm512_castsi512_ps(_mm512_mask_sllv_epi32(normal, tiny, _mm512_set1_epi32(0x00200000), e8));
    return w;
  }

 private:
  alignas(16) static constexpr std::uint8_t kLevels[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};
};

struct NVFP4 {
  static constexpr Kind kKind = Kind::halves;
  static constexpr int kOffset = 12, kBlockElements = 64, kBlockBytes = 36;
  static constexpr int block_at(int i) { return 4 * (i % 4) + i / 4; }
  static __m512 add_all(__m512 v) { return add_across<4>(add_across<8>(add_across<1>(add_across<2>(v)))); }

  static Weights unpack(const std::byte* p) {
    // Of the numbers 4L + e the first halves' scales, then the second ones': the index is the same for all e.
    alignas(64) static constexpr std::uint8_t kScales[64] = {0, 0, 0, 0, 2, 2, 2, 2, 36, 36, 36, 36, 38, 38, 38, 38,
                                                             1, 1, 1, 1, 3, 3, 3, 3, 37, 37, 37, 37, 39, 39, 39, 39};
    const __m512i levels = _mm512_broadcast_i32x4(load128(kLevels)), scales = load(kScales);
    Weights w;
    __m512i d = _mm512_setzero_si512();
#pragma GCC unroll 4
    for (int e = 0; e < 4; ++e) {
      const std::byte* two = p + 2 * e * kBlockBytes;
      d = _mm512_mask_permutexvar_epi8(d, 0x11111111ULL << e, scales, load(two));
      const __m512i raw =
          _mm512_inserti64x4(_mm512_castsi256_si512(load256(two + 4)), load256(two + kBlockBytes + 4), 1);
      // Six bits of an index choose among 64 bytes, which are four times the sixteen: no mask for the nibbles. Half of
      // a lane has the nibbles of half a block of 32.
      const __m512i low = _mm512_permutexvar_epi8(raw, levels);
      const __m512i high = _mm512_permutexvar_epi8(_mm512_srli_epi32(raw, 4), levels);
      w.q[2 * e] = _mm512_unpacklo_epi64(low, high);
      w.q[2 * e + 1] = _mm512_unpackhi_epi64(low, high);
    }
    const __m256i seven = _mm256_and_si256(_mm512_castsi512_si256(d), _mm256_set1_epi8(127));
    const __m256i some = _mm256_maskz_mov_epi8(_mm256_cmpneq_epi8_mask(seven, _mm256_set1_epi8(127)), seven);
    w.a = _mm512_set1_ps(1);
    w.b = halved(_mm256_castsi256_si128(some));
    w.c = halved(_mm256_extracti128_si256(some, 1));
    return w;
  }

 private:
  /// Sixteen UE4M3 scales, halved (tensor/blocks.h).
  static __m512 halved(__m128i bits) {
    const __m512 halves = _mm512_cvtph_ps(_mm256_slli_epi16(_mm256_cvtepu8_epi16(bits), 7));
    return _mm512_mul_ps(halves, _mm512_set1_ps(kUe4m3Unit));
  }
  alignas(16) static constexpr std::uint8_t kLevels[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};
};

/// Two super-blocks. Number 4L + e, e = 2s + t: block 2L + t of super-block s.
struct Q4_K {
  static constexpr Kind kKind = Kind::with_min;
  static constexpr int kOffset = 0, kBlockElements = 256, kBlockBytes = 144;
  static constexpr int block_at(int i) { return 8 * (i / 2 % 2) + 2 * (i / 4) + i % 2; }
  static __m512 add_all(__m512 v) { return add_across<1>(add_across<4>(add_across<8>(add_across<2>(v)))); }

  /// Eight 6-bit scales (or mins) as bytes, from dwords 0 or 1 and 2 of the packed twelve bytes (tensor/blocks.h).
  static std::uint64_t six_bits(std::uint32_t own, std::uint32_t low_nibbles) {
    const std::uint32_t second = (low_nibbles & 0x0f0f0f0f) | ((own >> 2) & 0x30303030);
    return (own & 0x3f3f3f3f) | static_cast<std::uint64_t>(second) << 32;
  }

  static Weights unpack(const std::byte* p) {
    Weights w;
    __m128i sc[2], m[2];
#pragma GCC unroll 2
    for (int s = 0; s < 2; ++s) {
      const std::byte* block = p + kBlockBytes * s;
      const __m512i a = load(block + 16), b = load(block + 80);
      const __m512i first = even_lanes(a, b), second = odd_lanes(a, b);
      w.q[4 * s] = nibbles(first);
      w.q[4 * s + 1] = nibbles(second);
      w.q[4 * s + 2] = high_nibbles(first);
      w.q[4 * s + 3] = high_nibbles(second);
      const std::uint32_t packed = load32(block + 12);
      sc[s] = _mm_cvtsi64_si128(static_cast<long long>(six_bits(load32(block + 4), packed)));
      m[s] = _mm_cvtsi64_si128(static_cast<long long>(six_bits(load32(block + 8), packed >> 4)));
    }
    // d0, dmin0, d1, dmin1
    const __m128 d = _mm_cvtph_ps(
        _mm_insert_epi32(_mm_cvtsi32_si128(static_cast<int>(load32(p))), static_cast<int>(load32(p + kBlockBytes)), 1));
    const __m512 scale = _mm512_broadcast_f32x4(_mm_permute_ps(d, 0xa0));
    const __m512 min = _mm512_broadcast_f32x4(_mm_xor_ps(_mm_permute_ps(d, 0xf5), _mm_set1_ps(-0.0F)));
    w.a = _mm512_mul_ps(scale, _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_unpacklo_epi16(sc[0], sc[1]))));
    w.b = _mm512_mul_ps(min, _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_unpacklo_epi16(m[0], m[1]))));
    // (d0, d0, d1, d1) repeats in every lane, as s does in numbers 4L + 2s + t.
    return w;
  }
};

/// Two super-blocks. Number 4L + e, L = 2h + p, e = 2s + u: block 4h + 2u + p of super-block s.
struct Q6_K {
  static constexpr Kind kKind = Kind::halves;
  static constexpr int kOffset = 32, kBlockElements = 256, kBlockBytes = 210;
  static constexpr int block_at(int i) { return 8 * (i / 2 % 2) + 4 * (i / 8) + 2 * (i % 2) + i / 4 % 2; }
  static __m512 add_all(__m512 v) { return add_across<4>(add_across<1>(add_across<8>(add_across<2>(v)))); }

  static Weights unpack(const std::byte* p) {
    const __m512i four = _mm512_set1_epi8(15), six = _mm512_set1_epi8(63);
    // Lane p of the 32 bytes of high bits: block p's are 2p bits up (and those of the high nibbles four more).
    const __m512i shifts = _mm512_set_epi64(2, 2, 0, 0, 2, 2, 0, 0);
    Weights w;
#pragma GCC unroll 2
    for (int s = 0; s < 2; ++s) {
      const std::byte* block = p + kBlockBytes * s;
      const __m512i a = load(block), b = load(block + 64), high = load(block + 128);
#pragma GCC unroll 2
      for (int h = 0; h < 2; ++h) {
        const __m512i raw = h == 0 ? even_lanes(a, b) : odd_lanes(a, b);
        const __m512i top = _mm512_srlv_epi64(
            h == 0 ? _mm512_shuffle_i32x4(high, high, 0xa0) : _mm512_shuffle_i32x4(high, high, 0xf5), shifts);
        // Ternary logic 0xd8 is the second operand where the third has ones, else the first.
        w.q[4 * s + h] = _mm512_and_si512(_mm512_ternarylogic_epi64(_mm512_slli_epi32(top, 4), raw, four, 0xd8), six);
        w.q[4 * s + 2 + h] =
            _mm512_and_si512(_mm512_ternarylogic_epi64(top, _mm512_srli_epi32(raw, 4), four, 0xd8), six);
      }
    }
    // Byte 8h + 4u + 2p + half of super-block s's scales, at s * 16, to number 8h + 4p + 2s + u.
    alignas(32) static constexpr std::uint8_t kScales[32] = {0, 4, 16, 20, 2, 6, 18, 22, 8, 12, 24, 28, 10, 14, 26, 30,
                                                             1, 5, 17, 21, 3, 7, 19, 23, 9, 13, 25, 29, 11, 15, 27, 31};
    const __m256i scales =
        _mm256_inserti128_si256(_mm256_castsi128_si256(load128(p + 192)), load128(p + kBlockBytes + 192), 1);
    const __m256i ordered = _mm256_permutexvar_epi8(load256(kScales), scales);
    w.b = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_castsi256_si128(ordered)));
    w.c = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_extracti128_si256(ordered, 1)));
    const std::uint32_t d0 = load32(p + 206) >> 16, d1 = load32(p + kBlockBytes + 206) >> 16;
    const __m128 d = _mm_cvtph_ps(_mm_cvtsi32_si128(static_cast<int>(d0 | d1 << 16)));
    w.a = _mm512_broadcast_f32x4(_mm_permute_ps(d, 0x50));
    return w;
  }
};

/// use.operator()<Format>() of the dtype's; false if it has none.
template <class Use>
bool for_format(DType dtype, const Use& use) {
  switch (dtype) {
    case DType::q4_0:
      use.template operator()<Q4_0>();
      return true;
    case DType::q8_0:
      use.template operator()<Q8_0>();
      return true;
    case DType::mxfp4:
      use.template operator()<MXFP4>();
      return true;
    case DType::nvfp4:
      use.template operator()<NVFP4>();
      return true;
    case DType::q4_k:
      use.template operator()<Q4_K>();
      return true;
    case DType::q6_k:
      use.template operator()<Q6_K>();
      return true;
    default:
      return false;
  }
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
inline __attribute__((always_inline)) Weights unpack_some(const std::byte* p, __mmask16 there) {
  Weights w = Format::unpack(p);
  w.a = _mm512_maskz_mov_ps(there, w.a);
  if constexpr (Format::kKind == Kind::with_min) w.b = _mm512_maskz_mov_ps(there, w.b);
  return w;
}

/// The sums of the group's blocks, in the format's order: whole blocks, or (of kind halves) half h of each.
template <class Format>
inline __attribute__((always_inline)) __m512i group_sums(const Weights& w, const XGroup& x, int half = 0) {
  const __m512i zero = _mm512_setzero_si512();
  __m512i s[4];
#pragma GCC unroll 4
  for (int e = 0; e < 4; ++e) {
    s[e] = _mm512_dpbusd_epi32(zero, w.q[2 * e + half], load(x.q[2 * e + half]));
    if constexpr (Format::kKind != Kind::halves) s[e] = _mm512_dpbusd_epi32(s[e], w.q[2 * e + 1], load(x.q[2 * e + 1]));
  }
  if constexpr (Format::kKind == Kind::with_min) return add_fours(s);
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
}

}  // namespace
}  // namespace millrace::kernels::avx512
