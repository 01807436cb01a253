// Formats of block_groups_avx512.h whose weights lie on a grid (tensor/grids.h), and the choice among all formats.
//
// The points of a vector are loaded one by one, as processors that were mended against leaking gathers take long for
// one. Signs and ninth bits are worked out for all of a super-block at once.
//
// Everything here has internal linkage, so that no code built for one instruction set can be linked into another.
#pragma once

#include "kernels/cpu/block_formats_avx512.h"
#include "tensor/grids.h"

namespace millrace::kernels::avx512 {
namespace {

/// Eight points of eight weights: of lane L those numbered at(L, 0) and at(L, 1).
template <class At>
inline __attribute__((always_inline)) __m512i points_of_eight(const std::uint64_t* grid, const At& at) {
  const auto lane = [&](int l) {
    const __m128i first = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(grid + at(l, 0)));
    const auto* second = reinterpret_cast<const __m64*>(grid + at(l, 1));
    return _mm_castps_si128(_mm_loadh_pi(_mm_castsi128_ps(first), second));
  };
  const __m256i low = _mm256_inserti128_si256(_mm256_castsi128_si256(lane(0)), lane(1), 1);
  const __m256i high = _mm256_inserti128_si256(_mm256_castsi128_si256(lane(2)), lane(3), 1);
  return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}
/// Sixteen points of four weights: of lane L those numbered at(L, 0 to 3).
template <class At>
inline __attribute__((always_inline)) __m512i points_of_four(const std::uint32_t* grid, const At& at) {
  const auto lane = [&](int l) {
    const auto point = [&](int j) { return static_cast<int>(grid[at(l, j)]); };
    return _mm_set_epi32(point(3), point(2), point(1), point(0));
  };
  const __m256i low = _mm256_inserti128_si256(_mm256_castsi128_si256(lane(0)), lane(1), 1);
  const __m256i high = _mm256_inserti128_si256(_mm256_castsi128_si256(lane(2)), lane(3), 1);
  return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}

struct alignas(64) Places {
  std::uint8_t of[64];
};
/// Where the signs of vector 2t + h are, of which part p has four bytes at kStride * p: those of weights 16h on of
/// part 2L + t, each byte eight times.
template <int kStride>
constexpr std::array<Places, 4> sign_places() {
  std::array<Places, 4> places{};
  for (int i = 0; i < 4; ++i)
    for (int k = 0; k < 64; ++k)
      places[static_cast<std::size_t>(i)].of[k] =
          static_cast<std::uint8_t>(kStride * (2 * (k / 16) + i / 2) + 2 * (i % 2) + k / 8 % 2);
  return places;
}
template <int kStride>
constexpr std::array<Places, 4> kSignPlaces = sign_places<kStride>();

struct alignas(64) EvenSigns {
  std::uint8_t of[128];
};
constexpr EvenSigns even_signs() {
  EvenSigns signs{};
  for (unsigned i = 0; i < 128; ++i) signs.of[i] = static_cast<std::uint8_t>(eight_signs(i));
  return signs;
}
constexpr EvenSigns kEvenSigns = even_signs();
/// Of each byte its low seven bits, and an eighth that makes their number even.
__m512i with_eighth_sign(__m512i seven) {
  return _mm512_permutex2var_epi8(load(kEvenSigns.of), seven, load(kEvenSigns.of + 64));
}
/// Four times seven bits, the first ones at bit kAt of each qword: as bytes 0 to 3 there.
template <int kAt>
__m512i seven_bit_signs(__m512i qwords) {
  constexpr long long kFrom = kAt | (kAt + 7) << 8 | (kAt + 14) << 16 | static_cast<long long>(kAt + 21) << 24;
  return with_eighth_sign(_mm512_multishift_epi64_epi8(_mm512_set1_epi64(kFrom), qwords));
}

/// kOffset + the values, or - where there is a sign.
template <int kOffset>
__m512i with_signs(__m512i values, __m512i signs, const Places& places) {
  const __m512i own = _mm512_permutexvar_epi8(load(places.of), signs), offset = _mm512_set1_epi8(kOffset);
  const __mmask64 minus = _mm512_test_epi8_mask(own, bit_of_place());
  return _mm512_mask_sub_epi8(_mm512_add_epi8(offset, values), minus, offset, values);
}

/// 2x + 1 of each byte. REQUIRES: x < 64.
__m128i odd_scales(__m128i v) { return _mm_or_si128(_mm_add_epi8(v, v), _mm_set1_epi8(1)); }

/// What the formats have in common.
template <class Block>
struct OfGrid : SuperBlocks {
  using G = Grid<Block>;
  static constexpr Kind kKind = G::kHalves ? Kind::halves : Kind::scaled;
  static constexpr int kOffset = G::kOffset, kBlockBytes = sizeof(Block);

  static __m512 steps(const std::byte* p) {
    return _mm512_mul_ps(to_all(G::d(at<Block>(p, 0)), G::d(at<Block>(p, 1))), _mm512_set1_ps(G::kStep));
  }
  /// w.a, of kind scaled, of a scale for each part.
  static void put_scales(const std::byte* p, const __m128i scales[2], Weights& w) {
    w.a = _mm512_mul_ps(steps(p), unsigned_floats(scales));
  }
  /// w.a, w.b and w.c, of kind halves.
  static void put_scales(const std::byte* p, const __m128i first[2], const __m128i second[2], Weights& w) {
    w.a = steps(p);
    w.b = unsigned_floats(first);
    w.c = unsigned_floats(second);
  }
};

struct IQ2_XXS : OfGrid<BlockIQ2_XXS> {
  MR_UNPACK {
    Weights w;
    __m128i sc[2];
#pragma GCC unroll 2
    for (int s = 0; s < 2; ++s) {
      const BlockIQ2_XXS& block = at<BlockIQ2_XXS>(p, s);
      const __m512i parts = load(block.parts), signs = seven_bit_signs<32>(parts);
      sc[s] = odd_scales(_mm512_cvtepi64_epi8(_mm512_srli_epi64(parts, 60)));
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        const auto number = [&](int l, int j) { return block.parts[2 * l + i / 2].points[2 * (i % 2) + j]; };
        w.q[4 * s + i] = with_signs<kOffset>(points_of_eight(kIq2XxsGrid.at, number), signs,
                                             kSignPlaces<8>[static_cast<std::size_t>(i)]);
      }
    }
    put_scales(p, sc, w);
    return w;
  }
};

/// Of each byte the low nibbles, which are first halves' scales, and the high ones.
void nibble_scales(const std::uint8_t* scales, __m128i& first, __m128i& second) {
  const __m128i both = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(scales)), four = _mm_set1_epi8(15);
  first = odd_scales(_mm_and_si128(both, four));
  second = odd_scales(_mm_and_si128(_mm_srli_epi16(both, 4), four));
}

struct IQ2_XS : OfGrid<BlockIQ2_XS> {
  MR_UNPACK {
    Weights w;
    __m128i sc[2][2];  // [half][super-block]
#pragma GCC unroll 2
    for (int s = 0; s < 2; ++s) {
      const BlockIQ2_XS& block = at<BlockIQ2_XS>(p, s);
      const __m256i seven = _mm512_cvtepi16_epi8(_mm512_srli_epi16(load(block.qs), 9));
      const __m512i signs = with_eighth_sign(_mm512_castsi256_si512(seven));
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        const auto number = [&](int l, int j) { return block.qs[8 * l + 2 * i + j] & 511; };
        w.q[4 * s + i] = with_signs<kOffset>(points_of_eight(kIq2XsGrid.at, number), signs,
                                             kSignPlaces<4>[static_cast<std::size_t>(i)]);
      }
      nibble_scales(block.scales, sc[0][s], sc[1][s]);
    }
    put_scales(p, sc[0], sc[1], w);
    return w;
  }
};

/// Numbers of points, of a super-block.
template <int kCount>
struct alignas(64) Numbers16 {
  std::uint16_t of[kCount];
};
/// Byte k / kTimes of eight or sixteen in the upper half of word k.
template <int kTimes>
__m512i upper_bytes(__m128i bytes) {
  alignas(64) static constexpr Places kFrom = [] {
    Places from{};
    for (int k = 0; k < 32; ++k) from.of[2 * k + 1] = static_cast<std::uint8_t>(k / kTimes);
    return from;
  }();
  return _mm512_maskz_permutexvar_epi8(0xaaaaaaaaaaaaaaaaULL, load(kFrom.of), _mm512_castsi128_si512(bytes));
}
__m512i words_of(const std::uint8_t* bytes) { return _mm512_cvtepu8_epi16(load256(bytes)); }
__m128i load64(const void* p) { return _mm_loadl_epi64(static_cast<const __m128i*>(p)); }

struct IQ2_S : OfGrid<BlockIQ2_S> {
  MR_UNPACK {
    const __m512i shifts = _mm512_set1_epi64(0x0006000400020000);
    Weights w;
    __m128i sc[2][2];  // [half][super-block]
#pragma GCC unroll 2
    for (int s = 0; s < 2; ++s) {
      const BlockIQ2_S& block = at<BlockIQ2_S>(p, s);
      const __m512i signs = _mm512_castsi256_si512(load256(block.signs));
      const __m512i high =
          _mm512_and_si512(_mm512_srlv_epi16(upper_bytes<4>(load64(block.qh)), shifts), _mm512_set1_epi16(0x0300));
      Numbers16<32> numbers;
      _mm512_store_si512(numbers.of, _mm512_or_si512(words_of(block.qs), high));
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        const auto number = [&](int l, int j) { return numbers.of[8 * l + 2 * i + j]; };
        w.q[4 * s + i] = with_signs<kOffset>(points_of_eight(kIq2SGrid.at, number), signs,
                                             kSignPlaces<4>[static_cast<std::size_t>(i)]);
      }
      nibble_scales(block.scales, sc[0][s], sc[1][s]);
    }
    put_scales(p, sc[0], sc[1], w);
    return w;
  }
};

struct IQ3_XXS : OfGrid<BlockIQ3_XXS> {
  MR_UNPACK {
    Weights w;
    __m128i sc[2];
#pragma GCC unroll 2
    for (int s = 0; s < 2; ++s) {
      const BlockIQ3_XXS& block = at<BlockIQ3_XXS>(p, s);
      const __m256i packed = load256(block.signs_and_scales);
      const __m512i signs = seven_bit_signs<0>(_mm512_cvtepu32_epi64(packed));
      sc[s] = odd_scales(_mm256_cvtepi32_epi8(_mm256_srli_epi32(packed, 28)));
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        const auto number = [&](int l, int j) { return block.qs[16 * l + 4 * i + j]; };
        w.q[4 * s + i] = with_signs<kOffset>(points_of_four(kIq3XxsGrid.at, number), signs,
                                             kSignPlaces<8>[static_cast<std::size_t>(i)]);
      }
    }
    put_scales(p, sc, w);
    return w;
  }
};

struct IQ3_S : OfGrid<BlockIQ3_S> {
  MR_UNPACK {
    const __m512i shifts = _mm512_set_epi16(7, 6, 5, 4, 3, 2, 1, 0, 7, 6, 5, 4, 3, 2, 1, 0, 7, 6, 5, 4, 3, 2, 1, 0, 7,
                                            6, 5, 4, 3, 2, 1, 0);
    Weights w;
    __m128i sc[2];
#pragma GCC unroll 2
    for (int s = 0; s < 2; ++s) {
      const BlockIQ3_S& block = at<BlockIQ3_S>(p, s);
      const __m512i signs = _mm512_castsi256_si512(load256(block.signs));
      const __m128i ninth = load64(block.qh);
      Numbers16<64> numbers;
#pragma GCC unroll 2
      for (int k = 0; k < 2; ++k) {
        const __m512i own = upper_bytes<8>(k == 0 ? ninth : _mm_srli_si128(ninth, 4));
        const __m512i high = _mm512_and_si512(_mm512_srlv_epi16(own, shifts), _mm512_set1_epi16(0x0100));
        _mm512_store_si512(numbers.of + 32 * k, _mm512_or_si512(words_of(block.qs + 32 * k), high));
      }
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        const auto number = [&](int l, int j) { return numbers.of[16 * l + 4 * i + j]; };
        w.q[4 * s + i] = with_signs<kOffset>(points_of_four(kIq3SGrid.at, number), signs,
                                             kSignPlaces<4>[static_cast<std::size_t>(i)]);
      }
      std::uint32_t scales;
      std::memcpy(&scales, block.scales, sizeof scales);
      sc[s] = odd_scales(nibbles_in_order(scales));
    }
    put_scales(p, sc, w);
    return w;
  }
};

/// Two more for each of the eight points of vector i whose eighth is added. `minus`: a bit a point, four a part.
__m512i add_eighths(__m512i points, std::uint32_t minus, int i) {
  const std::uint32_t own = ~minus >> (2 * i) & 0x03030303U;
  const auto plus = static_cast<__mmask8>(own | own >> 6 | own >> 12 | own >> 18);
  return _mm512_mask_add_epi64(points, plus, points, _mm512_set1_epi8(2));
}

struct IQ1_S : OfGrid<BlockIQ1_S> {
  MR_UNPACK {
    const __m512i shifts = _mm512_set1_epi64(0x0009000600030000);
    const __m512i parts = _mm512_set_epi16(7, 7, 7, 7, 6, 6, 6, 6, 5, 5, 5, 5, 4, 4, 4, 4, 3, 3, 3, 3, 2, 2, 2, 2, 1, 1,
                                           1, 1, 0, 0, 0, 0);
    Weights w;
    __m128i sc[2];
#pragma GCC unroll 2
    for (int s = 0; s < 2; ++s) {
      const BlockIQ1_S& block = at<BlockIQ1_S>(p, s);
      const __m128i qh = load128(block.qh);
      const __m512i own = _mm512_permutexvar_epi16(parts, _mm512_castsi128_si512(qh));
      const __m512i high = _mm512_slli_epi16(_mm512_and_si512(_mm512_srlv_epi16(own, shifts), _mm512_set1_epi16(7)), 8);
      Numbers16<32> numbers;
      _mm512_store_si512(numbers.of, _mm512_or_si512(words_of(block.qs), high));
      const std::uint32_t minus = _cvtmask32_u32(_mm512_movepi16_mask(own));
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        const auto number = [&](int l, int j) { return numbers.of[8 * l + 2 * i + j]; };
        w.q[4 * s + i] = add_eighths(points_of_eight(kIq1Grid.at, number), minus, i);
      }
      sc[s] = odd_scales(_mm_cvtepi16_epi8(_mm_and_si128(_mm_srli_epi16(qh, 12), _mm_set1_epi16(7))));
    }
    put_scales(p, sc, w);
    return w;
  }
};

struct IQ1_M : OfGrid<BlockIQ1_M> {
  MR_UNPACK {
    const __m512i shifts = _mm512_set1_epi32(0x00040000);
    Weights w;
    __m128i sc[2][2];  // [half][super-block]
#pragma GCC unroll 2
    for (int s = 0; s < 2; ++s) {
      const BlockIQ1_M& block = at<BlockIQ1_M>(p, s);
      const __m512i own = _mm512_srlv_epi16(upper_bytes<2>(load128(block.qh)), shifts);
      const __m512i high = _mm512_and_si512(own, _mm512_set1_epi16(0x0700));
      Numbers16<32> numbers;
      _mm512_store_si512(numbers.of, _mm512_or_si512(words_of(block.qs), high));
      const std::uint32_t minus = _cvtmask32_u32(_mm512_test_epi16_mask(own, _mm512_set1_epi16(0x0800)));
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        const auto number = [&](int l, int j) { return numbers.of[8 * l + 2 * i + j]; };
        w.q[4 * s + i] = add_eighths(points_of_eight(kIq1Grid.at, number), minus, i);
      }
      const __m128i four = load64(block.scales), words = _mm_unpacklo_epi16(four, four), three = _mm_set1_epi16(7);
#pragma GCC unroll 2
      for (int h = 0; h < 2; ++h) {
        const __m128i places = h == 0 ? _mm_set1_epi32(0x00060000) : _mm_set1_epi32(0x00090003);
        sc[h][s] = odd_scales(_mm_cvtepi16_epi8(_mm_and_si128(_mm_srlv_epi16(words, places), three)));
      }
    }
    put_scales(p, sc[0], sc[1], w);
    return w;
  }
};

struct TQ2_0 : OfGrid<BlockTQ2_0> {
  MR_UNPACK {
    Weights w;
#pragma GCC unroll 2
    for (int s = 0; s < 2; ++s) {
      const __m512i qs = load(at<BlockTQ2_0>(p, s).qs);
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) w.q[4 * s + i] = two_bits(qs, i / 2, i % 2);
    }
    w.a = steps(p);
    return w;
  }
};

struct TQ1_0 : OfGrid<BlockTQ1_0> {
  MR_UNPACK {
    Weights w;
#pragma GCC unroll 2
    for (int s = 0; s < 2; ++s) {
      const BlockTQ1_0& block = at<BlockTQ1_0>(p, s);
      std::uint32_t last;
      std::memcpy(&last, block.qh, sizeof last);
      const __m128i third = load128(block.qs + 32), rest = _mm_set1_epi32(static_cast<int>(last));
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        const int t = i / 2, h = i % 2;
        // Parts t, 2 + t, 4 + t and 6 + t.
        const __m128i own = load128(block.qs + 16 * h);
        const __m128i lane[4] = {own, own, t == 0 ? own : third, t == 1 && h == 1 ? rest : third};
        const __m256i low = _mm256_inserti128_si256(_mm256_castsi128_si256(lane[0]), lane[1], 1);
        const __m256i high = _mm256_inserti128_si256(_mm256_castsi128_si256(lane[2]), lane[3], 1);
        w.q[4 * s + i] =
            digits(_mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1), kPowers[static_cast<std::size_t>(i)]);
      }
    }
    w.a = steps(p);
    return w;
  }

 private:
  struct alignas(64) Powers {
    std::uint16_t of[32];
  };
  /// By vector 2t + h: what each pair of its bytes is multiplied by, 3 to the digit's number.
  static constexpr std::array<Powers, 4> kPowers = [] {
    constexpr std::uint16_t kPower[5] = {1, 3, 9, 27, 81};
    std::array<Powers, 4> powers{};
    for (int i = 0; i < 4; ++i) {
      const int t = i / 2, h = i % 2;
      for (int k = 0; k < 32; ++k) {
        const int part = 2 * (k / 8) + t, pair = k % 8;
        const int digit = part < 5 ? part : part < 7 ? 2 * (part - 5) + h : h == 0 ? 4 : pair / 2;
        powers[static_cast<std::size_t>(i)].of[k] = kPower[digit];
      }
    }
    return powers;
  }();

  /// (b * power mod 256) * 3 / 256 of each byte.
  static __m512i digits(__m512i bytes, const Powers& powers) {
    const __m512i by = load(powers.of);
    const __m512i even = _mm512_mullo_epi16(bytes, by);
    const __m512i odd = _mm512_slli_epi16(_mm512_mullo_epi16(_mm512_srli_epi16(bytes, 8), by), 8);
    const __m512i fraction = _mm512_mask_blend_epi8(0xaaaaaaaaaaaaaaaaULL, even, odd), one = _mm512_set1_epi8(1);
    const __m512i some = _mm512_maskz_mov_epi8(_mm512_cmpge_epu8_mask(fraction, _mm512_set1_epi8(86)), one);
    const __mmask64 more = _mm512_cmpge_epu8_mask(fraction, _mm512_set1_epi8(static_cast<char>(171)));
    return _mm512_mask_add_epi8(some, more, some, one);
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
}  // namespace millrace::kernels::avx512
