// Formats of blocks for block_groups_avx2.h: blocks of 32 weights, and super-blocks of them. Those on a grid are in
// grid_formats_avx2.h.
//
// A format has: kKind; kOffset and kMost of its bytes, which are unsigned, or kMost 0 where they are signed;
// kBlockElements and kBlockBytes of what its dtype calls a block; unpack(p, use), which calls use(e, first, second)
// with vectors 2e and 2e + 1 for each e; and scales(p). Both read the group's bytes and none behind them.
//
// Everything here has internal linkage, so that no code built for one instruction set can be linked into another.
#pragma once

#include "kernels/cpu/block_groups_avx2.h"

namespace millrace::kernels::MR_AVX2 {
namespace {

MR_FAST __m256i nibbles(__m256i raw) { return _mm256_and_si256(raw, _mm256_set1_epi8(15)); }
MR_FAST __m256i high_nibbles(__m256i raw) { return nibbles(_mm256_srli_epi16(raw, 4)); }

// Scales. Numbers of a byte or a word that lie apart are brought together by loads that begin so that each falls on its
// place in the vector, and blends of those.

/// Word 0 of each of eight blocks.
template <int kStride>
MR_FAST __m128i words_of(const std::byte* p) {
  constexpr int kStep = kStride - 2;
  const auto at = [p](int b) __attribute__((always_inline)) { return load128(p + kStep * b); };
  const __m128i a = _mm_blend_epi16(_mm_blend_epi16(at(0), at(1), 0x02), _mm_blend_epi16(at(2), at(3), 0x08), 0x0c);
  const __m128i b = _mm_blend_epi16(_mm_blend_epi16(at(4), at(5), 0x20), _mm_blend_epi16(at(6), at(7), 0x80), 0xc0);
  return _mm_blend_epi16(a, b, 0xf0);
}
/// Dword 0 of each of four blocks.
template <int kStride>
MR_FAST __m128i dwords_of(const std::byte* p) {
  constexpr int kStep = kStride - 4;
  const __m128i a = _mm_blend_epi32(load128(p), load128(p + kStep), 0x02);
  const __m128i b = _mm_blend_epi32(load128(p + 2 * kStep), load128(p + 3 * kStep), 0x08);
  return _mm_blend_epi32(a, b, 0x0c);
}

MR_FAST __m256 unsigned_floats(__m128i bytes) { return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes)); }
MR_FAST __m256 signed_floats(__m128i bytes) { return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)); }
MR_FAST __m128i upper_eight(__m128i v) { return _mm_unpackhi_epi64(v, v); }
/// Of sixteen bytes, of block b and half h at 2b + h: those of the first interleaved vector, then of the second.
MR_FAST __m128i interleaved(__m128i bytes) { return _mm_shuffle_epi32(bytes, 0xd8); }
MR_FAST __m256 half_to_all(std::uint32_t d) {
  return _mm256_broadcastss_ps(_mm_cvtph_ps(_mm_cvtsi32_si128(static_cast<int>(d))));
}
MR_FAST __m256 negated(__m256 v) { return _mm256_xor_ps(v, _mm256_set1_ps(-0.0F)); }

/// Blocks of 32.
struct Blocks {
  static constexpr int kBlockElements = 32;
  /// Sixteen bytes of blocks e and e + 4, `offset` bytes from their start.
  template <int kStride>
  static MR_FAST __m256i two_of(const std::byte* p, int e, int offset) {
    return load_lanes(p + e * kStride + offset, p + (e + 4) * kStride + offset);
  }
};

/// Nibbles behind kLead bytes: float16 d, and where there is one a min m; and behind these a dword with each weight's
/// fifth bit where there is one.
template <bool kMin, bool kFifth>
struct Nibbles : Blocks {
  static constexpr Kind kKind = kMin ? Kind::with_min : Kind::scaled;
  static constexpr int kOffset = kMin ? 0 : kFifth ? 16 : 8, kMost = kFifth ? 31 : 15;
  static constexpr int kHigh = kMin ? 4 : 2, kLead = kHigh + (kFifth ? 4 : 0), kBlockBytes = kLead + 16;

  /// 16 where the bit of a byte's place is set: of half h.
  static MR_FAST __m256i fifth_bits(__m256i dwords, int h) {
    const __m256i bytes = _mm256_set_epi64x(0x0101010101010101, 0, 0x0101010101010101, 0);
    const __m256i bits = _mm256_set1_epi64x(static_cast<long long>(0x8040201008040201ULL));
    const __m256i own = _mm256_shuffle_epi8(dwords, h == 0 ? bytes : _mm256_add_epi8(bytes, _mm256_set1_epi8(2)));
    return _mm256_and_si256(_mm256_cmpeq_epi8(_mm256_and_si256(own, bits), bits), _mm256_set1_epi8(16));
  }

  template <class Use>
  static MR_FAST void unpack(const std::byte* p, const Use& use) {
#pragma GCC unroll 4
    for (int e = 0; e < 4; ++e) {
      const __m256i raw = two_of<kBlockBytes>(p, e, kLead);
      __m256i first = nibbles(raw), second = high_nibbles(raw);
      if constexpr (kFifth) {
        const auto bits = [&](int b) __attribute__((always_inline)) {
          return _mm_castps_si128(_mm_broadcast_ss(reinterpret_cast<const float*>(p + b * kBlockBytes + kHigh)));
        };
        const __m256i high = joined(bits(e), bits(e + 4));
        first = _mm256_or_si256(first, fifth_bits(high, 0));
        second = _mm256_or_si256(second, fifth_bits(high, 1));
      }
      use(e, first, second);
    }
  }

  static MR_FAST Scales scales(const std::byte* p) {
    Scales s;
    if constexpr (kMin) {
      const __m128i apart = _mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
      const __m128i low = _mm_shuffle_epi8(dwords_of<kBlockBytes>(p), apart);
      const __m128i high = _mm_shuffle_epi8(dwords_of<kBlockBytes>(p + 4 * kBlockBytes), apart);
      s.a = _mm256_cvtph_ps(_mm_unpacklo_epi64(low, high));
      s.min = _mm256_cvtph_ps(_mm_unpackhi_epi64(low, high));
    } else {
      s.a = _mm256_cvtph_ps(words_of<kBlockBytes>(p));
    }
    return s;
  }
};
using Q4_0 = Nibbles<false, false>;
using Q4_1 = Nibbles<true, false>;
using Q5_0 = Nibbles<false, true>;
using Q5_1 = Nibbles<true, true>;

/// Signed bytes with kByteOffset.
MR_FAST __m256i with_offset(__m256i bytes) {
  return kByteOffset == 0 ? bytes : _mm256_xor_si256(bytes, _mm256_set1_epi8(static_cast<char>(kByteOffset)));
}

struct Q8_0 : Blocks {
  static constexpr Kind kKind = Kind::scaled;
  static constexpr int kOffset = kByteOffset, kMost = 0, kBlockBytes = 34;

  template <class Use>
  static MR_FAST void unpack(const std::byte* p, const Use& use) {
#pragma GCC unroll 4
    for (int e = 0; e < 4; ++e)
      use(e, with_offset(two_of<kBlockBytes>(p, e, 2)), with_offset(two_of<kBlockBytes>(p, e, 18)));
  }
  static MR_FAST Scales scales(const std::byte* p) {
    Scales s;
    s.a = _mm256_cvtph_ps(words_of<kBlockBytes>(p));
    return s;
  }
};

/// IQ4's levels with kByteOffset.
struct alignas(16) Iq4Levels {
  std::uint8_t of[16];
};
constexpr Iq4Levels iq4_levels() {
  Iq4Levels levels{};
  for (int i = 0; i < 16; ++i) levels.of[i] = static_cast<std::uint8_t>(kIq4Codebook[i] + kByteOffset);
  return levels;
}
constexpr Iq4Levels kIq4Levels = iq4_levels();

/// By a table of sixteen levels.
MR_FAST __m256i levels_of(const void* table, __m256i nibbles) {
  return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(load128(table)), nibbles);
}

struct IQ4_NL : Blocks {
  static constexpr Kind kKind = Kind::scaled;
  static constexpr int kOffset = kByteOffset, kMost = 0, kBlockBytes = 18;

  template <class Use>
  static MR_FAST void unpack(const std::byte* p, const Use& use) {
#pragma GCC unroll 4
    for (int e = 0; e < 4; ++e) {
      const __m256i raw = two_of<kBlockBytes>(p, e, 2);
      use(e, levels_of(kIq4Levels.of, nibbles(raw)), levels_of(kIq4Levels.of, high_nibbles(raw)));
    }
  }
  static MR_FAST Scales scales(const std::byte* p) {
    Scales s;
    s.a = _mm256_cvtph_ps(words_of<kBlockBytes>(p));
    return s;
  }
};

/// The doubled FP4 values, 12 added.
alignas(16) constexpr std::uint8_t kFp4Levels[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};

struct MXFP4 : Blocks {
  static constexpr Kind kKind = Kind::scaled;
  static constexpr int kOffset = 12, kMost = 24, kBlockBytes = 17;

  template <class Use>
  static MR_FAST void unpack(const std::byte* p, const Use& use) {
#pragma GCC unroll 4
    for (int e = 0; e < 4; ++e) {
      const __m256i raw = two_of<kBlockBytes>(p, e, 1);
      use(e, levels_of(kFp4Levels, nibbles(raw)), levels_of(kFp4Levels, high_nibbles(raw)));
    }
  }

  static MR_FAST Scales scales(const std::byte* p) {
    // The exponent of block b is byte b of what lies at 16 b.
    const auto at = [p](int b) __attribute__((always_inline)) { return load128(p + 16 * b); };
    const __m128i even =
        _mm_blend_epi16(_mm_blend_epi16(at(0), at(2), 0x02), _mm_blend_epi16(at(4), at(6), 0x08), 0x0c);
    const __m128i odd = _mm_blend_epi16(_mm_blend_epi16(at(1), at(3), 0x02), _mm_blend_epi16(at(5), at(7), 0x08), 0x0c);
    const __m128i bytes = _mm_blendv_epi8(even, odd, _mm_set1_epi16(static_cast<short>(0xff00)));
    const __m256i e = _mm256_cvtepu8_epi32(bytes);
    // Half the scale is 2^(e - 128): exponent field e - 1, or a subnormal for e < 2 (tensor/blocks.h).
    const __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
    const __m256i tiny = _mm256_cmpgt_epi32(_mm256_set1_epi32(2), e);
    const __m256i subnormal = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), e);
    Scales s;
    s.a = _mm256_castsi256_ps(_mm256_blendv_epi8(normal, subnormal, tiny));
    return s;
  }
};

struct NVFP4 {
  static constexpr Kind kKind = Kind::halves;
  static constexpr int kOffset = 12, kMost = 24, kBlockElements = 64, kBlockBytes = 36;

  template <class Use>
  static MR_FAST void unpack(const std::byte* p, const Use& use) {
#pragma GCC unroll 4
    for (int e = 0; e < 4; ++e) {
      // Eight bytes have the nibbles of half a block of 32.
      const std::byte* const own = p + e / 2 * kBlockBytes + 4 + 16 * (e % 2);
      const __m256i raw = load_lanes(own, own + 2 * kBlockBytes);
      const __m256i low = levels_of(kFp4Levels, nibbles(raw)), high = levels_of(kFp4Levels, high_nibbles(raw));
      use(e, _mm256_unpacklo_epi64(low, high), _mm256_unpackhi_epi64(low, high));
    }
  }

  static MR_FAST Scales scales(const std::byte* p) {
    const __m128i seven = _mm_and_si128(dwords_of<kBlockBytes>(p), _mm_set1_epi8(127));
    const __m128i none = _mm_cmpeq_epi8(seven, _mm_set1_epi8(127));  // what would be NaN is 0
    const __m128i bytes = interleaved(_mm_andnot_si128(none, seven));
    Scales s;
    s.a = _mm256_set1_ps(1);
    s.b = halved(bytes);
    s.c = halved(upper_eight(bytes));
    return s;
  }

 private:
  /// Eight UE4M3 scales, halved (tensor/blocks.h).
  static MR_FAST __m256 halved(__m128i bits) {
    return _mm256_mul_ps(_mm256_cvtph_ps(_mm_slli_epi16(_mm_cvtepu8_epi16(bits), 7)), _mm256_set1_ps(kUe4m3Unit));
  }
};

// Super-blocks.

template <class Block>
struct SuperBlocks {
  static constexpr int kBlockElements = 256, kBlockBytes = sizeof(Block);
  static MR_FAST const Block& at(const std::byte* p) { return *reinterpret_cast<const Block*>(p); }
};

/// Bit e of each byte in the lower lane, and e + 4 in the upper one, as bit kBit. `bits` are sixteen bytes to both
/// lanes, the upper one four places down.
template <int kBit>
MR_FAST __m256i bit_of(__m256i bits, int e) {
  const __m256i moved = e <= kBit ? _mm256_slli_epi16(bits, kBit - e) : _mm256_srli_epi16(bits, e - kBit);
  return _mm256_and_si256(moved, _mm256_set1_epi8(1 << kBit));
}
MR_FAST __m256i bits_for_lanes(const void* p) {
  return _mm256_srlv_epi32(_mm256_broadcastsi128_si256(load128(p)), _mm256_setr_epi32(0, 0, 0, 0, 4, 4, 4, 4));
}

/// Q4_K and Q5_K, which begin alike.
template <class Block, bool kFifth>
struct SixBitMins : SuperBlocks<Block> {
  static constexpr Kind kKind = Kind::with_min;
  static constexpr int kOffset = 0, kMost = kFifth ? 31 : 15;

  template <class Use>
  static MR_FAST void unpack(const std::byte* p, const Use& use) {
    const Block& block = SuperBlocks<Block>::at(p);
    __m256i high[2];
    if constexpr (kFifth) {
      high[0] = bits_for_lanes(block.qh);
      high[1] = bits_for_lanes(block.qh + 16);
    }
#pragma GCC unroll 2
    for (int k = 0; k < 2; ++k) {  // 32 bytes have two blocks
      __m256i q[2][2];             // [nibble][half]
#pragma GCC unroll 2
      for (int h = 0; h < 2; ++h) {
        const std::uint8_t* const own = block.qs + 32 * k + 16 * h;
        const __m256i raw = load_lanes(own, own + 64);
        q[0][h] = nibbles(raw);
        q[1][h] = high_nibbles(raw);
        if constexpr (kFifth) {
          q[0][h] = _mm256_or_si256(q[0][h], bit_of<4>(high[h], 2 * k));
          q[1][h] = _mm256_or_si256(q[1][h], bit_of<4>(high[h], 2 * k + 1));
        }
      }
      use(2 * k, q[0][0], q[0][1]);
      use(2 * k + 1, q[1][0], q[1][1]);
    }
  }

  /// Eight 6-bit scales (or mins) as bytes, from dwords 0 or 1 and 2 of the packed twelve bytes (tensor/blocks.h).
  static MR_FAST __m128i six_bits(std::uint32_t own, std::uint32_t low_nibbles) {
    const std::uint32_t second = (low_nibbles & 0x0f0f0f0f) | ((own >> 2) & 0x30303030);
    return _mm_cvtsi64_si128(static_cast<long long>((own & 0x3f3f3f3f) | static_cast<std::uint64_t>(second) << 32));
  }
  static MR_FAST Scales scales(const std::byte* p) {
    const std::uint32_t packed = load32(p + 12);
    const __m128 d = _mm_cvtph_ps(_mm_cvtsi32_si128(static_cast<int>(load32(p))));
    Scales s;
    s.a = _mm256_mul_ps(_mm256_broadcastss_ps(d), unsigned_floats(six_bits(load32(p + 4), packed)));
    s.min = _mm256_mul_ps(negated(_mm256_broadcastss_ps(_mm_movehdup_ps(d))),
                          unsigned_floats(six_bits(load32(p + 8), packed >> 4)));
    return s;
  }
};
using Q4_K = SixBitMins<BlockQ4_K, false>;
using Q5_K = SixBitMins<BlockQ5_K, true>;

struct Q6_K : SuperBlocks<BlockQ6_K> {
  static constexpr Kind kKind = Kind::halves;
  static constexpr int kOffset = 32, kMost = 63;

  template <class Use>
  static MR_FAST void unpack(const std::byte* p, const Use& use) {
    const BlockQ6_K& block = at(p);
    const __m256i two = _mm256_set1_epi8(0x30);
    const __m256i high[2] = {load_lanes(block.qh, block.qh + 32), load_lanes(block.qh + 16, block.qh + 48)};
#pragma GCC unroll 2
    for (int k = 0; k < 2; ++k) {  // 32 bytes have blocks k and k + 2
      __m256i q[2][2];             // [nibble][half]
#pragma GCC unroll 2
      for (int h = 0; h < 2; ++h) {
        const std::uint8_t* const own = block.ql + 32 * k + 16 * h;
        const __m256i raw = load_lanes(own, own + 64);
        const __m256i low = k == 0 ? _mm256_slli_epi16(high[h], 4) : _mm256_slli_epi16(high[h], 2);
        const __m256i top = k == 0 ? high[h] : _mm256_srli_epi16(high[h], 2);
        q[0][h] = _mm256_or_si256(nibbles(raw), _mm256_and_si256(low, two));
        q[1][h] = _mm256_or_si256(high_nibbles(raw), _mm256_and_si256(top, two));
      }
      use(k, q[0][0], q[0][1]);
      use(k + 2, q[1][0], q[1][1]);
    }
  }

  static MR_FAST Scales scales(const std::byte* p) {
    const BlockQ6_K& block = at(p);
    const __m128i bytes = interleaved(load128(block.scales));
    Scales s;
    s.a = half_to_all(block.d);
    s.b = signed_floats(bytes);
    s.c = signed_floats(upper_eight(bytes));
    return s;
  }
};

/// Eight nibbles of four bytes in their order, low ones first, as bytes.
MR_FAST __m128i nibbles_in_order(const std::uint8_t* packed) {
  const __m128i all = _mm_cvtsi32_si128(static_cast<int>(load32(packed))), four = _mm_set1_epi8(15);
  return _mm_unpacklo_epi8(_mm_and_si128(all, four), _mm_and_si128(_mm_srli_epi32(all, 4), four));
}

struct IQ4_XS : SuperBlocks<BlockIQ4_XS> {
  static constexpr Kind kKind = Kind::scaled;
  static constexpr int kOffset = kByteOffset, kMost = 0;

  template <class Use>
  static MR_FAST void unpack(const std::byte* p, const Use& use) {
    const BlockIQ4_XS& block = at(p);
#pragma GCC unroll 4
    for (int e = 0; e < 4; ++e) {
      const __m256i raw = load_lanes(block.qs + 16 * e, block.qs + 16 * e + 64);
      use(e, levels_of(kIq4Levels.of, nibbles(raw)), levels_of(kIq4Levels.of, high_nibbles(raw)));
    }
  }

  static MR_FAST Scales scales(const std::byte* p) {
    const BlockIQ4_XS& block = at(p);
    // Two bits of each scale, at 2b of sixteen: a multiplication brings them to bits 14 and 15, which then are 4 and 5.
    const __m128i up = _mm_mullo_epi16(_mm_set1_epi16(static_cast<short>(block.scales_h)),
                                       _mm_setr_epi16(1 << 14, 1 << 12, 1 << 10, 1 << 8, 1 << 6, 1 << 4, 1 << 2, 1));
    const __m128i high = _mm_and_si128(_mm_srli_epi16(up, 10), _mm_set1_epi16(0x30));
    const __m128i six = _mm_or_si128(nibbles_in_order(block.scales_l), _mm_packus_epi16(high, high));
    Scales s;
    s.a = _mm256_mul_ps(half_to_all(block.d), signed_floats(_mm_sub_epi8(six, _mm_set1_epi8(32))));
    return s;
  }
};

/// Two bits a weight, as Q2_K, Q3_K and TQ2_0 have them in 64 bytes: of block e and e + 4.
MR_FAST __m256i two_bits(__m256i raw, int e) {
  return _mm256_and_si256(_mm256_srli_epi16(raw, 2 * e), _mm256_set1_epi8(3));
}

struct Q2_K : SuperBlocks<BlockQ2_K> {
  static constexpr Kind kKind = Kind::half_mins;
  static constexpr int kOffset = 0, kMost = 3;

  template <class Use>
  static MR_FAST void unpack(const std::byte* p, const Use& use) {
    const BlockQ2_K& block = at(p);
    const __m256i raw[2] = {load_lanes(block.qs, block.qs + 32), load_lanes(block.qs + 16, block.qs + 48)};
#pragma GCC unroll 4
    for (int e = 0; e < 4; ++e) use(e, two_bits(raw[0], e), two_bits(raw[1], e));
  }

  static MR_FAST Scales scales(const std::byte* p) {
    const BlockQ2_K& block = at(p);
    const __m128i both = load128(block.scales), four = _mm_set1_epi8(15);
    const __m128i bytes = interleaved(_mm_and_si128(both, four));
    Scales s;
    s.a = half_to_all(block.d);
    s.b = unsigned_floats(bytes);
    s.c = unsigned_floats(upper_eight(bytes));
    s.min = negated(half_to_all(block.dmin));
    s.mins = _mm256_cvtepu8_epi16(_mm_and_si128(_mm_srli_epi16(both, 4), four));
    return s;
  }
};

struct Q3_K : SuperBlocks<BlockQ3_K> {
  static constexpr Kind kKind = Kind::halves;
  static constexpr int kOffset = 4, kMost = 7;

  template <class Use>
  static MR_FAST void unpack(const std::byte* p, const Use& use) {
    const BlockQ3_K& block = at(p);
    const __m256i raw[2] = {load_lanes(block.qs, block.qs + 32), load_lanes(block.qs + 16, block.qs + 48)};
    const __m256i high[2] = {bits_for_lanes(block.hmask), bits_for_lanes(block.hmask + 16)};
#pragma GCC unroll 4
    for (int e = 0; e < 4; ++e) {
      use(e, _mm256_or_si256(two_bits(raw[0], e), bit_of<2>(high[0], e)),
          _mm256_or_si256(two_bits(raw[1], e), bit_of<2>(high[1], e)));
    }
  }

  static MR_FAST Scales scales(const std::byte* p) {
    const BlockQ3_K& block = at(p);
    std::uint64_t first;
    std::memcpy(&first, block.scales, sizeof first);
    const __m128i low = _mm_set_epi64x(static_cast<long long>(first >> 4), static_cast<long long>(first));
    const __m128i high =
        _mm_srlv_epi32(_mm_set1_epi32(static_cast<int>(load32(block.scales + 8))), _mm_set_epi32(6, 4, 2, 0));
    const __m128i six =
        _mm_or_si128(_mm_and_si128(low, _mm_set1_epi8(15)), _mm_slli_epi16(_mm_and_si128(high, _mm_set1_epi8(3)), 4));
    const __m128i bytes = interleaved(_mm_sub_epi8(six, _mm_set1_epi8(32)));
    Scales s;
    s.a = half_to_all(block.d);
    s.b = signed_floats(bytes);
    s.c = signed_floats(upper_eight(bytes));
    return s;
  }
};

}  // namespace
}  // namespace millrace::kernels::MR_AVX2
