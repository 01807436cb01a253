// Formats of blocks for block_groups_avx512.h: blocks of 32 weights, and super-blocks of them. Those on a grid are in
// grid_formats_avx512.h.
//
// A format has: kKind; kOffset of its unsigned bytes; kBlockElements and kBlockBytes of what its dtype calls a block;
// block_at(i), the block of 32 of the group that is number i (i = 4L + e); unpack(p), which reads the group's bytes and
// none behind them, kLong where that takes long; and add_all(v), the contract's tree over sixteen elements (bits 3, 2,
// 1, 0 of the block).
//
// Everything here has internal linkage, so that no code built for one instruction set can be linked into another.
#pragma once

#include "kernels/cpu/block_groups_avx512.h"

// Of formats that are long to unpack.
#define MR_UNPACK                     \
  static constexpr bool kLong = true; \
  static inline __attribute__((always_inline)) Weights unpack(const std::byte* p)

namespace millrace::kernels::avx512 {
namespace {

/// Sixteen blocks. Number 4L + e: block 4e + L.
struct Blocks {
  static constexpr int kBlockElements = 32;
  static constexpr bool kLong = false;
  static constexpr int block_at(int i) { return 4 * (i % 4) + i / 4; }
  static __m512 add_all(__m512 v) { return add_across<4>(add_across<8>(add_across<1>(add_across<2>(v)))); }
};

/// Two super-blocks. Number 4L + e, e = 2s + t: block 2L + t of super-block s.
struct SuperBlocks {
  static constexpr int kBlockElements = 256;
  static constexpr bool kLong = false;
  static constexpr int block_at(int i) { return 8 * (i / 2 % 2) + 2 * (i / 4) + i % 2; }
  static __m512 add_all(__m512 v) { return add_across<1>(add_across<4>(add_across<8>(add_across<2>(v)))); }

  /// Super-block s.
  template <class Block>
  static const Block& at(const std::byte* p, int s) {
    return reinterpret_cast<const Block*>(p)[s];
  }
  /// Element 4L + 2s + t: byte 2L + t of of[s], which has eight.
  static __m128i in_order(const __m128i of[2]) { return _mm_unpacklo_epi16(of[0], of[1]); }
  static __m512 unsigned_floats(const __m128i of[2]) { return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(in_order(of))); }
  static __m512 signed_floats(const __m128i of[2]) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(in_order(of))); }
  /// Two float16, of super-blocks 0 and 1, to all their blocks.
  static __m512 to_all(std::uint32_t d0, std::uint32_t d1) {
    const __m128 d = _mm_cvtph_ps(_mm_cvtsi32_si128(static_cast<int>(d0 | d1 << 16)));
    return _mm512_broadcast_f32x4(_mm_permute_ps(d, 0x50));
  }
};

struct Q4_0 : Blocks {
  static constexpr Kind kKind = Kind::scaled;
  static constexpr int kOffset = 8, kBlockBytes = 18;

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

struct Q8_0 : Blocks {
  static constexpr Kind kKind = Kind::scaled;
  static constexpr int kOffset = 128, kBlockBytes = 34;

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

struct MXFP4 : Blocks {
  static constexpr Kind kKind = Kind::scaled;
  static constexpr int kOffset = 12, kBlockBytes = 17;

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

struct NVFP4 : Blocks {
  static constexpr Kind kKind = Kind::halves;
  static constexpr int kOffset = 12, kBlockElements = 64, kBlockBytes = 36;

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

/// Scales and mins of Q4_K and Q5_K, which begin alike.
template <int kBytes>
struct SixBitMins : SuperBlocks {
  static constexpr Kind kKind = Kind::with_min;
  static constexpr int kOffset = 0, kBlockBytes = kBytes;

  /// Eight 6-bit scales (or mins) as bytes, from dwords 0 or 1 and 2 of the packed twelve bytes (tensor/blocks.h).
  static __m128i six_bits(std::uint32_t own, std::uint32_t low_nibbles) {
    const std::uint32_t second = (low_nibbles & 0x0f0f0f0f) | ((own >> 2) & 0x30303030);
    return _mm_cvtsi64_si128(static_cast<long long>((own & 0x3f3f3f3f) | static_cast<std::uint64_t>(second) << 32));
  }

  /// w.a, w.b.
  static inline __attribute__((always_inline)) void put_scales(const std::byte* p, Weights& w) {
    __m128i sc[2], m[2];
#pragma GCC unroll 2
    for (int s = 0; s < 2; ++s) {
      const std::byte* block = p + kBytes * s;
      const std::uint32_t packed = load32(block + 12);
      sc[s] = six_bits(load32(block + 4), packed);
      m[s] = six_bits(load32(block + 8), packed >> 4);
    }
    // d0, dmin0, d1, dmin1; (d0, d0, d1, d1) repeats in every lane, as s does in numbers 4L + 2s + t.
    const __m128 d = _mm_cvtph_ps(
        _mm_insert_epi32(_mm_cvtsi32_si128(static_cast<int>(load32(p))), static_cast<int>(load32(p + kBytes)), 1));
    const __m512 scale = _mm512_broadcast_f32x4(_mm_permute_ps(d, 0xa0));
    const __m512 min = _mm512_broadcast_f32x4(_mm_xor_ps(_mm_permute_ps(d, 0xf5), _mm_set1_ps(-0.0F)));
    w.a = _mm512_mul_ps(scale, unsigned_floats(sc));
    w.b = _mm512_mul_ps(min, unsigned_floats(m));
  }
};

struct Q4_K : SixBitMins<144> {
  static Weights unpack(const std::byte* p) {
    Weights w;
#pragma GCC unroll 2
    for (int s = 0; s < 2; ++s) {
      const std::byte* block = p + kBlockBytes * s;
      const __m512i a = load(block + 16), b = load(block + 80);
      const __m512i first = even_lanes(a, b), second = odd_lanes(a, b);
      w.q[4 * s] = nibbles(first);
      w.q[4 * s + 1] = nibbles(second);
      w.q[4 * s + 2] = high_nibbles(first);
      w.q[4 * s + 3] = high_nibbles(second);
    }
    put_scales(p, w);
    return w;
  }
};

struct Q6_K {
  static constexpr bool kLong = false;
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

// Blocks of 32, of which four are loaded at once, each to its lane.

/// Sixteen dwords in order: that of each block, at the same place.
template <int kBytes>
__m512i dwords_of(const std::byte* p) {
  const auto lane = [p](int l) {
    const auto dword = [=](int e) { return static_cast<int>(load32(p + kBytes * (4 * e + l))); };
    return _mm_set_epi32(dword(3), dword(2), dword(1), dword(0));
  };
  return joined(lane(0), lane(1), lane(2), lane(3));
}
__m512 low_half(__m512i v) { return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(v)); }
__m512 high_half(__m512i v) { return low_half(_mm512_srli_epi32(v, 16)); }

/// Sixteen bytes of each of four blocks.
template <int kBytes>
__m512i four_of(const std::byte* p) {
  return joined(load128(p), load128(p + kBytes), load128(p + 2 * kBytes), load128(p + 3 * kBytes));
}
/// A dword of each of four blocks, all over its lane.
template <int kBytes>
__m512i four_dwords_of(const std::byte* p) {
  const auto all = [p](int l) { return _mm_set1_epi32(static_cast<int>(load32(p + kBytes * l))); };
  return joined(all(0), all(1), all(2), all(3));
}

/// Bit k of a byte at place k of eight.
__m512i bit_of_place() { return _mm512_set1_epi64(static_cast<long long>(0x8040201008040201ULL)); }

/// Nibbles behind kLead bytes: float16 d, and where there is a min m; and behind these a dword with each weight's fifth
/// bit where there is one.
template <bool kMin, bool kFifth>
struct Nibbles : Blocks {
  static constexpr Kind kKind = kMin ? Kind::with_min : Kind::scaled;
  static constexpr int kOffset = kMin ? 0 : kFifth ? 16 : 8;
  static constexpr int kHigh = kMin ? 4 : 2, kLead = kHigh + (kFifth ? 4 : 0), kBlockBytes = kLead + 16;

  MR_UNPACK {
    alignas(16) static constexpr std::uint8_t kBytes[2][16] = {{0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1},
                                                               {2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3}};
    const __m512i sixteen = _mm512_set1_epi8(16);
    Weights w;
#pragma GCC unroll 4
    for (int e = 0; e < 4; ++e) {
      const std::byte* four = p + 4 * e * kBlockBytes;
      const __m512i raw = four_of<kBlockBytes>(four + kLead);
      w.q[2 * e] = nibbles(raw);
      w.q[2 * e + 1] = high_nibbles(raw);
      if constexpr (kFifth) {
        const __m512i bits = four_dwords_of<kBlockBytes>(four + kHigh);
#pragma GCC unroll 2
        for (int h = 0; h < 2; ++h) {
          const __m512i own = _mm512_shuffle_epi8(bits, _mm512_broadcast_i32x4(load128(kBytes[h])));
          const __mmask64 set = _mm512_test_epi8_mask(own, bit_of_place());
          w.q[2 * e + h] = _mm512_mask_add_epi8(w.q[2 * e + h], set, w.q[2 * e + h], sixteen);
        }
      }
    }
    const __m512i scales = dwords_of<kBlockBytes>(p);
    w.a = low_half(scales);
    if constexpr (kMin) w.b = high_half(scales);
    return w;
  }
};
using Q4_1 = Nibbles<true, false>;
using Q5_0 = Nibbles<false, true>;
using Q5_1 = Nibbles<true, true>;

/// The levels of IQ4_NL and IQ4_XS, 128 added.
__m512i iq4_levels() { return _mm512_xor_si512(_mm512_broadcast_i32x4(load128(kIq4Codebook)), _mm512_set1_epi8(-128)); }

struct IQ4_NL : Blocks {
  static constexpr Kind kKind = Kind::scaled;
  static constexpr int kOffset = 128, kBlockBytes = 18;

  MR_UNPACK {
    const __m512i levels = iq4_levels();
    Weights w;
#pragma GCC unroll 4
    for (int e = 0; e < 4; ++e) {
      const __m512i raw = four_of<kBlockBytes>(p + 4 * e * kBlockBytes + 2);
      // Six bits of an index choose among 64 bytes, which are four times the sixteen.
      w.q[2 * e] = _mm512_permutexvar_epi8(raw, levels);
      w.q[2 * e + 1] = _mm512_permutexvar_epi8(_mm512_srli_epi32(raw, 4), levels);
    }
    w.a = low_half(dwords_of<kBlockBytes>(p));
    return w;
  }
};

// Super-blocks.

/// Eight nibbles of four bytes in their order, low ones first, as bytes.
__m128i nibbles_in_order(std::uint32_t packed) {
  const __m128i all = _mm_cvtsi32_si128(static_cast<int>(packed)), four = _mm_set1_epi8(15);
  return _mm_unpacklo_epi8(_mm_and_si128(all, four), _mm_and_si128(_mm_srli_epi32(all, 4), four));
}

struct IQ4_XS : SuperBlocks {
  static constexpr Kind kKind = Kind::scaled;
  static constexpr int kOffset = 128, kBlockBytes = sizeof(BlockIQ4_XS);

  MR_UNPACK {
    const __m512i levels = iq4_levels();
    Weights w;
    __m128i sc[2];
#pragma GCC unroll 2
    for (int s = 0; s < 2; ++s) {
      const BlockIQ4_XS& block = at<BlockIQ4_XS>(p, s);
      const __m512i a = load(block.qs), b = load(block.qs + 64);
#pragma GCC unroll 2
      for (int t = 0; t < 2; ++t) {
        const __m512i raw = t == 0 ? even_lanes(a, b) : odd_lanes(a, b);
        w.q[4 * s + 2 * t] = _mm512_permutexvar_epi8(raw, levels);
        w.q[4 * s + 2 * t + 1] = _mm512_permutexvar_epi8(_mm512_srli_epi32(raw, 4), levels);
      }
      const __m128i high = _mm_and_si128(
          _mm_srlv_epi16(_mm_set1_epi16(static_cast<short>(block.scales_h)), _mm_set_epi16(14, 12, 10, 8, 6, 4, 2, 0)),
          _mm_set1_epi16(3));
      std::uint32_t low;
      std::memcpy(&low, block.scales_l, sizeof low);
      sc[s] = _mm_sub_epi8(_mm_or_si128(nibbles_in_order(low), _mm_cvtepi16_epi8(_mm_slli_epi16(high, 4))),
                           _mm_set1_epi8(32));
    }
    w.a = _mm512_mul_ps(to_all(at<BlockIQ4_XS>(p, 0).d, at<BlockIQ4_XS>(p, 1).d), signed_floats(sc));
    return w;
  }
};

/// Bit 2L + t of each byte of lane L.
__m512i bit_of_part(int t) {
  return _mm512_slli_epi32(
      _mm512_set_epi64(0x4040404040404040, 0x4040404040404040, 0x1010101010101010, 0x1010101010101010,
                       0x0404040404040404, 0x0404040404040404, 0x0101010101010101, 0x0101010101010101),
      static_cast<unsigned>(t));
}

struct Q5_K : SixBitMins<176> {
  MR_UNPACK {
    const __m512i sixteen = _mm512_set1_epi8(16);
    Weights w;
#pragma GCC unroll 2
    for (int s = 0; s < 2; ++s) {
      const BlockQ5_K& block = at<BlockQ5_K>(p, s);
      const __m512i a = load(block.qs), b = load(block.qs + 64);
#pragma GCC unroll 2
      for (int h = 0; h < 2; ++h) {
        const __m512i raw = h == 0 ? even_lanes(a, b) : odd_lanes(a, b);
        const __m512i high = _mm512_broadcast_i32x4(load128(block.qh + 16 * h));
#pragma GCC unroll 2
        for (int t = 0; t < 2; ++t) {
          const __m512i four = t == 0 ? nibbles(raw) : high_nibbles(raw);
          const __mmask64 set = _mm512_test_epi8_mask(high, bit_of_part(t));
          w.q[4 * s + 2 * t + h] = _mm512_mask_add_epi8(four, set, four, sixteen);
        }
      }
    }
    put_scales(p, w);
    return w;
  }
};

/// Two bits a weight, as Q2_K, Q3_K and TQ2_0 have them in 64 bytes: of part 2L + t, half h.
__m512i two_bits(__m512i qs, int t, int h) {
  const __m512i shifts = _mm512_set_epi64(4, 4, 0, 0, 4, 4, 0, 0);
  const __m512i raw = h == 0 ? _mm512_shuffle_i32x4(qs, qs, 0xa0) : _mm512_shuffle_i32x4(qs, qs, 0xf5);
  const __m512i low = _mm512_srlv_epi64(raw, t == 0 ? shifts : _mm512_add_epi64(shifts, _mm512_set1_epi64(2)));
  return _mm512_and_si512(low, _mm512_set1_epi8(3));
}
/// Of sixteen bytes, a number of each 16 weights: those of first halves, and those of second ones behind them.
__m128i halves_apart(__m128i all) {
  return _mm_shuffle_epi8(all, _mm_set_epi8(15, 13, 11, 9, 7, 5, 3, 1, 14, 12, 10, 8, 6, 4, 2, 0));
}
__m128i second_eight(__m128i v) { return _mm_unpackhi_epi64(v, v); }

struct Q2_K : SuperBlocks {
  static constexpr Kind kKind = Kind::half_mins;
  static constexpr int kOffset = 0, kBlockBytes = sizeof(BlockQ2_K);

  MR_UNPACK {
    Weights w;
    __m128i sc[2][2], m[2][2];  // [half][super-block]
#pragma GCC unroll 2
    for (int s = 0; s < 2; ++s) {
      const BlockQ2_K& block = at<BlockQ2_K>(p, s);
      const __m512i qs = load(block.qs);
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) w.q[4 * s + i] = two_bits(qs, i / 2, i % 2);
      const __m128i both = halves_apart(load128(block.scales)), four = _mm_set1_epi8(15);
      const __m128i scales = _mm_and_si128(both, four), mins = _mm_and_si128(_mm_srli_epi16(both, 4), four);
      sc[0][s] = scales;
      sc[1][s] = second_eight(scales);
      m[0][s] = mins;
      m[1][s] = second_eight(mins);
    }
    w.a = to_all(at<BlockQ2_K>(p, 0).d, at<BlockQ2_K>(p, 1).d);
    w.b = unsigned_floats(sc[0]);
    w.c = unsigned_floats(sc[1]);
    w.m = _mm512_xor_ps(to_all(at<BlockQ2_K>(p, 0).dmin, at<BlockQ2_K>(p, 1).dmin), _mm512_set1_ps(-0.0F));
    w.m0 = unsigned_floats(m[0]);
    w.m1 = unsigned_floats(m[1]);
    return w;
  }
};

struct Q3_K : SuperBlocks {
  static constexpr Kind kKind = Kind::halves;
  static constexpr int kOffset = 4, kBlockBytes = sizeof(BlockQ3_K);

  MR_UNPACK {
    const __m512i third = _mm512_set1_epi8(4);
    Weights w;
    __m128i sc[2][2];  // [half][super-block]
#pragma GCC unroll 2
    for (int s = 0; s < 2; ++s) {
      const BlockQ3_K& block = at<BlockQ3_K>(p, s);
      const __m512i qs = load(block.qs);
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        const __m512i high = _mm512_broadcast_i32x4(load128(block.hmask + 16 * (i % 2)));
        const __mmask64 set = _mm512_test_epi8_mask(high, bit_of_part(i / 2));
        const __m512i low = two_bits(qs, i / 2, i % 2);
        w.q[4 * s + i] = _mm512_mask_add_epi8(low, set, low, third);
      }
      std::uint64_t first;
      std::uint32_t last;
      std::memcpy(&first, block.scales, sizeof first);
      std::memcpy(&last, block.scales + 8, sizeof last);
      const __m128i low = _mm_set_epi64x(static_cast<long long>(first >> 4), static_cast<long long>(first));
      const __m128i high = _mm_srlv_epi32(_mm_set1_epi32(static_cast<int>(last)), _mm_set_epi32(6, 4, 2, 0));
      const __m128i six =
          _mm_or_si128(_mm_and_si128(low, _mm_set1_epi8(15)), _mm_slli_epi16(_mm_and_si128(high, _mm_set1_epi8(3)), 4));
      const __m128i scales = halves_apart(_mm_sub_epi8(six, _mm_set1_epi8(32)));
      sc[0][s] = scales;
      sc[1][s] = second_eight(scales);
    }
    w.a = to_all(at<BlockQ3_K>(p, 0).d, at<BlockQ3_K>(p, 1).d);
    w.b = signed_floats(sc[0]);
    w.c = signed_floats(sc[1]);
    return w;
  }
};

}  // namespace
}  // namespace millrace::kernels::avx512
