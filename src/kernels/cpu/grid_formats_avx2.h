// Formats of block_groups_avx2.h whose weights lie on a grid (tensor/grids.h), and the choice among all formats. Points
// are loaded one by one: no instruction gathers them, because processors that were mended against leaking gathers take
// long for one.
//
// Everything here has internal linkage, so that no code built for one instruction set can be linked into another.
#pragma once

#include "kernels/cpu/block_formats_avx2.h"
#include "tensor/grids.h"

namespace millrace::kernels::MR_AVX2 {
namespace {

/// Two words of eight bytes to each lane, from where they lie: at(block, l) for block e and points l and l + 1, and for
/// block e + 4.
template <class At>
MR_FAST __m256i four_words(int e, int l, const At& at) {
  const auto two = [&](int block) __attribute__((always_inline)) {
    const auto* second = reinterpret_cast<const __m64*>(at(block, l + 1));
    return _mm_castps_si128(_mm_loadh_pi(_mm_castsi128_ps(load64(at(block, l))), second));
  };
  return joined(two(e), two(e + 4));
}
/// Likewise four words of four bytes to each lane: points l to l + 3.
template <class At>
MR_FAST __m256i eight_words(int e, int l, const At& at) {
  const auto four = [&](int block) __attribute__((always_inline)) {
    const auto word = [&](int i) __attribute__((always_inline)) { return static_cast<int>(*at(block, l + i)); };
    return _mm_set_epi32(word(3), word(2), word(1), word(0));
  };
  return joined(four(e), four(e + 4));
}

/// By seven signs: 1 or -1 for each of eight weights.
constexpr GridTable<std::uint64_t, 128> even_signs() {
  GridTable<std::uint64_t, 128> signs{};
  for (unsigned i = 0; i < 128; ++i) signs.at[i] = kByteMasks.at[eight_signs(i)] | 0x0101010101010101;
  return signs;
}
constexpr auto kEvenSigns = even_signs();
/// The same from signs that are all stored, of which each block has four bytes, those of blocks 4 to 7 in the upper
/// lane: of half h of blocks e and e + 4.
MR_FAST __m256i stored_signs(__m256i signs, int e, int h) {
  const __m256i places = _mm256_set_epi64x(0x0101010101010101, 0, 0x0101010101010101, 0);
  const __m256i bits = _mm256_set1_epi64x(static_cast<long long>(0x8040201008040201ULL));
  const __m256i from = _mm256_add_epi8(places, _mm256_set1_epi8(static_cast<char>(4 * e + 2 * h)));
  const __m256i own = _mm256_and_si256(_mm256_shuffle_epi8(signs, from), bits);
  return _mm256_or_si256(_mm256_cmpeq_epi8(own, bits), _mm256_set1_epi8(1));
}
template <int kOffset>
MR_FAST __m256i with_signs(__m256i values, __m256i signs) {
  return _mm256_add_epi8(_mm256_sign_epi8(values, signs), _mm256_set1_epi8(kOffset));
}

/// 2x + 1 of each byte. REQUIRES: x < 64.
MR_FAST __m128i odd_scales(__m128i v) { return _mm_or_si128(_mm_add_epi8(v, v), _mm_set1_epi8(1)); }

/// What the formats have in common.
template <class Block>
struct OfGrid : SuperBlocks<Block> {
  using G = Grid<Block>;
  static constexpr Kind kKind = G::kHalves ? Kind::halves : Kind::scaled;
  static constexpr int kOffset = G::kOffset, kMost = G::kMost;
  using SuperBlocks<Block>::at;

  static MR_FAST __m256 step(const std::byte* p) {
    return _mm256_mul_ps(half_to_all(G::d(at(p))), _mm256_set1_ps(G::kStep));
  }
  /// Of numbers s of scales 2s + 1, one for each part.
  static MR_FAST Scales of_parts(const std::byte* p, __m128i numbers) {
    Scales s;
    s.a = _mm256_mul_ps(step(p), unsigned_floats(odd_scales(numbers)));
    return s;
  }
  /// Of those of first halves, and of second ones.
  static MR_FAST Scales of_halves(const std::byte* p, __m128i first, __m128i second) {
    const __m128i bytes = interleaved(odd_scales(_mm_unpacklo_epi8(first, second)));
    Scales s;
    s.a = step(p);
    s.b = unsigned_floats(bytes);
    s.c = unsigned_floats(upper_eight(bytes));
    return s;
  }
  /// The same where of each byte the low nibble is the first half's, the high one the second's.
  static MR_FAST Scales of_nibbles(const std::byte* p, const std::uint8_t* scales) {
    const __m128i both = load64(scales), four = _mm_set1_epi8(15);
    return of_halves(p, _mm_and_si128(both, four), _mm_and_si128(_mm_srli_epi16(both, 4), four));
  }
};
MR_FAST __m128i top_nibbles(__m128i v) { return _mm_and_si128(_mm_srli_epi16(v, 4), _mm_set1_epi8(15)); }

struct IQ2_XXS : OfGrid<BlockIQ2_XXS> {
  template <class Use>
  static MR_FAST void unpack(const std::byte* p, const Use& use) {
    const BlockIQ2_XXS& block = at(p);
    const auto half = [&](int e, int h) __attribute__((always_inline)) {
      return with_signs<kOffset>(
          four_words(e, 2 * h, [&](int b, int l) { return kIq2XxsGrid.at + block.parts[b].points[l]; }),
          four_words(e, 2 * h,
                     [&](int b, int l) { return kEvenSigns.at + (block.parts[b].signs_and_scale >> (7 * l) & 127); }));
    };
#pragma GCC unroll 4
    for (int e = 0; e < 4; ++e) use(e, half(e, 0), half(e, 1));
  }
  static MR_FAST Scales scales(const std::byte* p) {
    const BlockIQ2_XXS& block = at(p);
    const auto top = [&](int two, __m128i place) __attribute__((always_inline)) {
      return _mm_shuffle_epi8(load128(block.parts + 2 * two), place);
    };
    const __m128i first =
        _mm_or_si128(top(0, _mm_setr_epi8(7, 15, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1)),
                     top(1, _mm_setr_epi8(-1, -1, 7, 15, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1)));
    const __m128i last =
        _mm_or_si128(top(2, _mm_setr_epi8(-1, -1, -1, -1, 7, 15, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1)),
                     top(3, _mm_setr_epi8(-1, -1, -1, -1, -1, -1, 7, 15, -1, -1, -1, -1, -1, -1, -1, -1)));
    return of_parts(p, top_nibbles(_mm_or_si128(first, last)));
  }
};

struct IQ2_XS : OfGrid<BlockIQ2_XS> {
  template <class Use>
  static MR_FAST void unpack(const std::byte* p, const Use& use) {
    const BlockIQ2_XS& block = at(p);
    const auto half = [&](int e, int h) __attribute__((always_inline)) {
      return with_signs<kOffset>(
          four_words(e, 2 * h, [&](int b, int l) { return kIq2XsGrid.at + (block.qs[4 * b + l] & 511); }),
          four_words(e, 2 * h, [&](int b, int l) { return kEvenSigns.at + (block.qs[4 * b + l] >> 9); }));
    };
#pragma GCC unroll 4
    for (int e = 0; e < 4; ++e) use(e, half(e, 0), half(e, 1));
  }
  static MR_FAST Scales scales(const std::byte* p) { return of_nibbles(p, at(p).scales); }
};

struct IQ2_S : OfGrid<BlockIQ2_S> {
  template <class Use>
  static MR_FAST void unpack(const std::byte* p, const Use& use) {
    const BlockIQ2_S& block = at(p);
    const __m256i signs = load256(block.signs);
    const auto point = [&](int b, int l) __attribute__((always_inline)) {
      return kIq2SGrid.at + (block.qs[4 * b + l] | (block.qh[b] >> (2 * l) & 3U) << 8);
    };
#pragma GCC unroll 4
    for (int e = 0; e < 4; ++e) {
      use(e, with_signs<kOffset>(four_words(e, 0, point), stored_signs(signs, e, 0)),
          with_signs<kOffset>(four_words(e, 2, point), stored_signs(signs, e, 1)));
    }
  }
  static MR_FAST Scales scales(const std::byte* p) { return of_nibbles(p, at(p).scales); }
};

struct IQ3_XXS : OfGrid<BlockIQ3_XXS> {
  template <class Use>
  static MR_FAST void unpack(const std::byte* p, const Use& use) {
    const BlockIQ3_XXS& block = at(p);
    const auto half = [&](int e, int h) __attribute__((always_inline)) {
      return with_signs<kOffset>(
          eight_words(e, 4 * h, [&](int b, int l) { return kIq3XxsGrid.at + block.qs[8 * b + l]; }),
          four_words(e, 2 * h,
                     [&](int b, int l) { return kEvenSigns.at + (block.signs_and_scales[b] >> (7 * l) & 127); }));
    };
#pragma GCC unroll 4
    for (int e = 0; e < 4; ++e) use(e, half(e, 0), half(e, 1));
  }
  static MR_FAST Scales scales(const std::byte* p) {
    const BlockIQ3_XXS& block = at(p);
    const __m128i tops = _mm_setr_epi8(3, 7, 11, 15, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1);
    const __m128i low = _mm_shuffle_epi8(load128(block.signs_and_scales), tops);
    const __m128i high = _mm_shuffle_epi8(load128(block.signs_and_scales + 4), tops);
    return of_parts(p, top_nibbles(_mm_unpacklo_epi32(low, high)));
  }
};

struct IQ3_S : OfGrid<BlockIQ3_S> {
  template <class Use>
  static MR_FAST void unpack(const std::byte* p, const Use& use) {
    const BlockIQ3_S& block = at(p);
    const __m256i signs = load256(block.signs);
    const auto point = [&](int b, int l) __attribute__((always_inline)) {
      return kIq3SGrid.at + (block.qs[8 * b + l] | (block.qh[b] >> l & 1U) << 8);
    };
#pragma GCC unroll 4
    for (int e = 0; e < 4; ++e) {
      use(e, with_signs<kOffset>(eight_words(e, 0, point), stored_signs(signs, e, 0)),
          with_signs<kOffset>(eight_words(e, 4, point), stored_signs(signs, e, 1)));
    }
  }
  static MR_FAST Scales scales(const std::byte* p) { return of_parts(p, nibbles_in_order(at(p).scales)); }
};

struct IQ1_S : OfGrid<BlockIQ1_S> {
  template <class Use>
  static MR_FAST void unpack(const std::byte* p, const Use& use) {
    const BlockIQ1_S& block = at(p);
    const auto point = [&](int b, int l) __attribute__((always_inline)) {
      return kIq1Grid.at + (block.qs[4 * b + l] | (block.qh[b] >> (3 * l) & 7U) << 8);
    };
    // 2 where the eighth is added.
    const auto added = [&](int b) __attribute__((always_inline)) {
      return _mm_set1_epi8(static_cast<char>((~static_cast<unsigned>(block.qh[b]) >> 14) & 2));
    };
#pragma GCC unroll 4
    for (int e = 0; e < 4; ++e) {
      const __m256i eighths = joined(added(e), added(e + 4));
      use(e, _mm256_add_epi8(four_words(e, 0, point), eighths), _mm256_add_epi8(four_words(e, 2, point), eighths));
    }
  }
  static MR_FAST Scales scales(const std::byte* p) {
    const __m128i three = _mm_and_si128(_mm_srli_epi16(load128(at(p).qh), 12), _mm_set1_epi16(7));
    return of_parts(p, _mm_packus_epi16(three, three));
  }
};

struct IQ1_M : OfGrid<BlockIQ1_M> {
  template <class Use>
  static MR_FAST void unpack(const std::byte* p, const Use& use) {
    const BlockIQ1_M& block = at(p);
    const auto nibble = [&](int b, int l) __attribute__((always_inline)) {
      return static_cast<unsigned>(block.qh[2 * b + l / 2] >> (4 * (l % 2)));
    };
    const auto point = [&](int b, int l) __attribute__((always_inline)) {
      return kIq1Grid.at + (block.qs[4 * b + l] | (nibble(b, l) & 7) << 8);
    };
    const auto eighth = [&](int b, int l) __attribute__((always_inline)) {
      return kEighths.at + (nibble(b, l) >> 3 & 1);
    };
#pragma GCC unroll 4
    for (int e = 0; e < 4; ++e) {
      use(e, _mm256_add_epi8(four_words(e, 0, point), four_words(e, 0, eighth)),
          _mm256_add_epi8(four_words(e, 2, point), four_words(e, 2, eighth)));
    }
  }
  static MR_FAST Scales scales(const std::byte* p) {
    return of_halves(p, three_bits(p, _mm_set1_epi32(0x00802000)), three_bits(p, _mm_set1_epi32(0x00100400)));
  }

 private:
  static constexpr GridTable<std::uint64_t, 2> kEighths{{0x0202020202020202, 0}};
  /// Three bits of words (w0, w0, w1, w1, ...): those that `up` brings to the top.
  static MR_FAST __m128i three_bits(const std::byte* p, __m128i up) {
    const __m128i four = load64(at(p).scales);
    const __m128i three = _mm_srli_epi16(_mm_mullo_epi16(_mm_unpacklo_epi16(four, four), up), 13);
    return _mm_packus_epi16(three, three);
  }
};

struct TQ2_0 : OfGrid<BlockTQ2_0> {
  template <class Use>
  static MR_FAST void unpack(const std::byte* p, const Use& use) {
    const BlockTQ2_0& block = at(p);
    const __m256i raw[2] = {load_lanes(block.qs, block.qs + 32), load_lanes(block.qs + 16, block.qs + 48)};
#pragma GCC unroll 4
    for (int e = 0; e < 4; ++e) use(e, two_bits(raw[0], e), two_bits(raw[1], e));
  }
  static MR_FAST Scales scales(const std::byte* p) {
    Scales s;
    s.a = step(p);
    return s;
  }
};

struct TQ1_0 : OfGrid<BlockTQ1_0> {
  template <class Use>
  static MR_FAST void unpack(const std::byte* p, const Use& use) {
    constexpr short kPower[5] = {1, 3, 9, 27, 81};
    const BlockTQ1_0& block = at(p);
    const auto power = [&](int n) __attribute__((always_inline)) { return _mm_set1_epi16(kPower[n]); };
    const __m128i third = load128(block.qs + 32), rest = _mm_set1_epi32(static_cast<int>(load32(block.qh)));
    // Blocks 0 to 4 are digits of 32 bytes; 5 to 7 of the next 16, two a block; the last half has four of four bytes.
    const auto half = [&](int e, int h) __attribute__((always_inline)) {
      const __m128i own = load128(block.qs + 16 * h);
      if (e == 0) return digits(joined(own, own), joined(power(0), power(4)));
      if (e == 3 && h == 1)
        return digits(joined(own, rest), joined(power(3), _mm_setr_epi16(1, 1, 3, 3, 9, 9, 27, 27)));
      return digits(joined(own, third), joined(power(e), power(2 * (e - 1) + h)));
    };
#pragma GCC unroll 4
    for (int e = 0; e < 4; ++e) use(e, half(e, 0), half(e, 1));
  }
  static MR_FAST Scales scales(const std::byte* p) {
    Scales s;
    s.a = step(p);
    return s;
  }

 private:
  /// (b * power mod 256) * 3 / 256 of each byte.
  static MR_FAST __m256i digits(__m256i bytes, __m256i power) {
    const __m256i low = _mm256_set1_epi16(255), three = _mm256_set1_epi16(3);
    const __m256i even = _mm256_and_si256(_mm256_mullo_epi16(bytes, power), low);
    const __m256i odd = _mm256_and_si256(_mm256_mullo_epi16(_mm256_srli_epi16(bytes, 8), power), low);
    const __m256i even_digits = _mm256_srli_epi16(_mm256_mullo_epi16(even, three), 8);
    return _mm256_or_si256(even_digits, _mm256_andnot_si256(low, _mm256_mullo_epi16(odd, three)));
  }
};

/// use.operator()<Format>() of the dtype's; false if it has none.
template <class Use>
bool for_format(DType dtype, const Use& use) {
  switch (dtype) {
    case DType::q4_0:
      return use.template operator()<Q4_0>(), true;
    case DType::q4_1:
      return use.template operator()<Q4_1>(), true;
    case DType::q5_0:
      return use.template operator()<Q5_0>(), true;
    case DType::q5_1:
      return use.template operator()<Q5_1>(), true;
    case DType::q8_0:
      return use.template operator()<Q8_0>(), true;
    case DType::mxfp4:
      return use.template operator()<MXFP4>(), true;
    case DType::nvfp4:
      return use.template operator()<NVFP4>(), true;
    case DType::q2_k:
      return use.template operator()<Q2_K>(), true;
    case DType::q3_k:
      return use.template operator()<Q3_K>(), true;
    case DType::q4_k:
      return use.template operator()<Q4_K>(), true;
    case DType::q5_k:
      return use.template operator()<Q5_K>(), true;
    case DType::q6_k:
      return use.template operator()<Q6_K>(), true;
    case DType::iq4_nl:
      return use.template operator()<IQ4_NL>(), true;
    case DType::iq4_xs:
      return use.template operator()<IQ4_XS>(), true;
    case DType::iq2_xxs:
      return use.template operator()<IQ2_XXS>(), true;
    case DType::iq2_xs:
      return use.template operator()<IQ2_XS>(), true;
    case DType::iq2_s:
      return use.template operator()<IQ2_S>(), true;
    case DType::iq3_xxs:
      return use.template operator()<IQ3_XXS>(), true;
    case DType::iq3_s:
      return use.template operator()<IQ3_S>(), true;
    case DType::iq1_s:
      return use.template operator()<IQ1_S>(), true;
    case DType::iq1_m:
      return use.template operator()<IQ1_M>(), true;
    case DType::tq1_0:
      return use.template operator()<TQ1_0>(), true;
    case DType::tq2_0:
      return use.template operator()<TQ2_0>(), true;
    default:
      return false;
  }
}

}  // namespace
}  // namespace millrace::kernels::MR_AVX2
