// Formats of block_groups_avx512.h whose weights lie on a grid (tensor/grids.h), and the choice among all formats.
//
// Where a grid has up to 1,024 points they are found by permutations. Those of IQ1 are loaded one by one: 2,048 points'
// permutations take half as long again on a Xeon (on a Zen 5 a sixth less). No instruction gathers them, because
// processors that were mended against leaking gathers take long for one.
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
  return joined(lane(0), lane(1), lane(2), lane(3));
}

struct alignas(64) Places {
  std::uint8_t of[64];
};

// Points of IQ2 and IQ3 are found in vectors: eight weights of three levels, or four of eight, are a code of 16 bits
// (12), a digit two (three) bits, and 64 codes at once come from two planes of bytes, by what permutes the bytes of
// 128. The bits are spread over the bytes, and a last table makes levels of them.
//
// Points of IQ2 of both super-blocks are looked up together, and of each lane L the first eight bytes are of
// super-block 0, the others of 1: point l of part 2L + t is byte 8s + 4t + l.

template <int kCount>
struct alignas(64) CodePlanes {
  std::uint8_t low[kCount], high[kCount];
};
/// Of points as tensor/grid_points.h has them, of kWeights with kLevels levels.
template <int kCount, int kLevels, int kWeights, std::size_t kWords>
constexpr CodePlanes<kCount> codes_of(const std::array<std::uint64_t, kWords>& points) {
  constexpr unsigned kBits = kLevels <= 4 ? 2 : 3;
  CodePlanes<kCount> planes{};
  std::size_t rank = 0;
  for (std::size_t w = 0; w < kWords; ++w) {
    for (std::uint64_t bits = points[w]; bits != 0; bits &= bits - 1) {
      std::size_t number = 64 * w + static_cast<std::size_t>(std::countr_zero(bits));
      unsigned code = 0;
      for (unsigned j = 0; j < kWeights; ++j, number /= kLevels)
        code |= static_cast<unsigned>(number % kLevels) << (kBits * j);
      planes.low[rank] = static_cast<std::uint8_t>(code);
      planes.high[rank++] = static_cast<std::uint8_t>(code >> 8);
    }
  }
  return planes;
}
constexpr auto kIq2XxsCodes = codes_of<256, 3, 8>(kIq2XxsPoints);
constexpr auto kIq2XsCodes = codes_of<512, 3, 8>(kIq2XsPoints);
constexpr auto kIq2SCodes = codes_of<1024, 3, 8>(kIq2SPoints);
constexpr auto kIq3XxsCodes = codes_of<256, 8, 4>(kIq3XxsPoints);
constexpr auto kIq3SCodes = codes_of<512, 8, 4>(kIq3SPoints);

/// The bytes of a table that 64 numbers name: their low eight bits, and a mask for each further bit.
template <int kCount>
inline __attribute__((always_inline)) __m512i looked_up(const std::uint8_t* table, __m512i low,
                                                        const __mmask64* further) {
  if constexpr (kCount == 128) {
    return _mm512_permutex2var_epi8(load(table), low, load(table + 64));
  } else {
    constexpr int kHalf = kCount / 2;
    const __m512i first = looked_up<kHalf>(table, low, further);
    const __m512i second = looked_up<kHalf>(table + kHalf, low, further);
    const __mmask64 bit = kCount == 256 ? _mm512_movepi8_mask(low) : further[std::countr_zero(kCount / 512U)];
    return _mm512_mask_blend_epi8(bit, first, second);
  }
}
struct Codes {
  __m512i words[2];  // of each lane the first eight, the others
};
template <int kCount>
inline __attribute__((always_inline)) Codes codes_at(const CodePlanes<kCount>& planes, __m512i low,
                                                     const __mmask64* further = nullptr) {
  const __m512i one = looked_up<kCount>(planes.low, low, further), other = looked_up<kCount>(planes.high, low, further);
  return {{_mm512_unpacklo_epi8(one, other), _mm512_unpackhi_epi8(one, other)}};
}

/// kOffset + the level of each digit, whatever stands in an index above the digit.
template <int kOffset, std::size_t kLevels>
constexpr Places level_table(const std::array<std::uint8_t, kLevels>& levels) {
  Places table{};
  for (std::size_t i = 0; i < 64; ++i) {
    const std::size_t digit = i % (kLevels <= 4 ? 4 : 8);
    table.of[i] = static_cast<std::uint8_t>(kOffset + (digit < kLevels ? levels[digit] : 0));
  }
  return table;
}

/// Of an in-lane shuffle, for vector i = 2t + h: byte kFrom + 2i + j of a lane to all of its qword j.
template <int kFrom>
constexpr std::array<Places, 4> byte_places() {
  std::array<Places, 4> places{};
  for (int i = 0; i < 4; ++i)
    for (int k = 0; k < 64; ++k)
      places[static_cast<std::size_t>(i)].of[k] = static_cast<std::uint8_t>(kFrom + 2 * i + k / 8 % 2);
  return places;
}
template <int kFrom>
constexpr std::array<Places, 4> kBytePlaces = byte_places<kFrom>();
/// Likewise word 2i + j to the first of its qword j.
constexpr std::array<Places, 4> kWordPlaces = [] {
  std::array<Places, 4> places{};
  for (int i = 0; i < 4; ++i)
    for (int k = 0; k < 64; ++k)
      places[static_cast<std::size_t>(i)].of[k] = static_cast<std::uint8_t>(2 * (2 * i + k / 8 % 2) + k % 2);
  return places;
}();

/// kOffset + values, or - where there is a sign: each byte of `signs` has those of eight weights, at its own place.
template <int kOffset>
__m512i with_signs(__m512i values, __m512i signs) {
  const __mmask64 minus = _mm512_test_epi8_mask(signs, bit_of_place());
  return _mm512_mask_sub_epi8(values, minus, _mm512_set1_epi8(2 * kOffset), values);
}

/// kOffset + the values of vector i of super-block s. signs: a byte a point, in the points' order.
template <int kOffset, int s>
inline __attribute__((always_inline)) __m512i iq2_values(const Codes& codes, __m512i signs, std::size_t i) {
  static constexpr Places kLevels = level_table<kOffset>(kIq2Levels);
  const __m512i spread = _mm512_set1_epi64(0x0e0c0a0806040200);
  const __m512i code = _mm512_shuffle_epi8(codes.words[s], load(kWordPlaces[i].of));
  const __m512i values = _mm512_permutexvar_epi8(_mm512_multishift_epi64_epi8(spread, code), load(kLevels.of));
  return with_signs<kOffset>(values, _mm512_shuffle_epi8(signs, load(kBytePlaces<8 * s>[i].of)));
}
template <int kOffset>
inline __attribute__((always_inline)) void put_iq2(const Codes& codes, __m512i signs, Weights& w) {
#pragma GCC unroll 4
  for (std::size_t i = 0; i < 4; ++i) {
    w.q[i] = iq2_values<kOffset, 0>(codes, signs, i);
    w.q[4 + i] = iq2_values<kOffset, 1>(codes, signs, i);
  }
}

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

/// kOffset + the values of a super-block of IQ3, whose points lie in order. signs: see sign_places().
template <int kOffset, int kStride>
inline __attribute__((always_inline)) void put_iq3(const Codes& codes, const Places& levels, __m512i signs,
                                                   __m512i q[4]) {
  const __m512i spread = _mm512_set1_epi64(0x2926232009060300);
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m512i words = codes.words[i / 2];
    const __m512i code = i % 2 == 0 ? _mm512_unpacklo_epi16(words, words) : _mm512_unpackhi_epi16(words, words);
    const __m512i values = _mm512_permutexvar_epi8(_mm512_multishift_epi64_epi8(spread, code), load(levels.of));
    const __m512i own = _mm512_permutexvar_epi8(load(kSignPlaces<kStride>[static_cast<std::size_t>(i)].of), signs);
    q[i] = with_signs<kOffset>(values, own);
  }
}

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
__m512i seven_bits(__m512i qwords) {
  constexpr long long kFrom = kAt | (kAt + 7) << 8 | (kAt + 14) << 16 | static_cast<long long>(kAt + 21) << 24;
  return _mm512_multishift_epi64_epi8(_mm512_set1_epi64(kFrom), qwords);
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

__m128i load64(const void* p) { return _mm_loadl_epi64(static_cast<const __m128i*>(p)); }

struct IQ2_XXS : OfGrid<BlockIQ2_XXS> {
  MR_UNPACK {
    // Bytes 0 to 3 of the parts' qwords to the points' order.
    static constexpr Places kOrder = [] {
      Places order{};
      for (int k = 0; k < 64; ++k) {
        const int point = 8 * (k / 16) + k % 8;
        order.of[k] = static_cast<std::uint8_t>(8 * (point / 4) + point % 4 + (k / 8 % 2 != 0 ? 64 : 0));
      }
      return order;
    }();
    const __m512i first = load(at<BlockIQ2_XXS>(p, 0).parts), second = load(at<BlockIQ2_XXS>(p, 1).parts);
    const auto in_points_order = [](__m512i a, __m512i b) { return _mm512_permutex2var_epi8(a, load(kOrder.of), b); };
    Weights w;
    put_iq2<kOffset>(codes_at(kIq2XxsCodes, in_points_order(first, second)),
                     with_eighth_sign(in_points_order(seven_bits<32>(first), seven_bits<32>(second))), w);
    const __m128i sc[2] = {odd_scales(_mm512_cvtepi64_epi8(_mm512_srli_epi64(first, 60))),
                           odd_scales(_mm512_cvtepi64_epi8(_mm512_srli_epi64(second, 60)))};
    put_scales(p, sc, w);
    return w;
  }
};

/// Scales of IQ2_XS and IQ2_S: of each byte the low nibble is the first half's, the high one the second's.
template <class Block>
inline __attribute__((always_inline)) void put_nibble_scales(const std::byte* p, Weights& w) {
  const __m128i four = _mm_set1_epi8(15);
  __m128i first[2], second[2];
  for (int s = 0; s < 2; ++s) {
    const __m128i both = load64(SuperBlocks::at<Block>(p, s).scales);
    first[s] = odd_scales(_mm_and_si128(both, four));
    second[s] = odd_scales(_mm_and_si128(_mm_srli_epi16(both, 4), four));
  }
  OfGrid<Block>::put_scales(p, first, second, w);
}

struct IQ2_XS : OfGrid<BlockIQ2_XS> {
  MR_UNPACK {
    const __m512i first = load(at<BlockIQ2_XS>(p, 0).qs), second = load(at<BlockIQ2_XS>(p, 1).qs);
    const __m512i byte = _mm512_set1_epi16(255), one = _mm512_set1_epi8(1);
    const __m512i low = _mm512_packus_epi16(_mm512_and_si512(first, byte), _mm512_and_si512(second, byte));
    const __m512i high = _mm512_packus_epi16(_mm512_srli_epi16(first, 8), _mm512_srli_epi16(second, 8));
    const __mmask64 ninth = _mm512_test_epi8_mask(high, one);
    const __m512i seven = _mm512_packus_epi16(_mm512_srli_epi16(first, 9), _mm512_srli_epi16(second, 9));
    Weights w;
    put_iq2<kOffset>(codes_at(kIq2XsCodes, low, &ninth), with_eighth_sign(seven), w);
    put_nibble_scales<BlockIQ2_XS>(p, w);
    return w;
  }
};

struct IQ2_S : OfGrid<BlockIQ2_S> {
  MR_UNPACK {
    // Which of the sixteen bytes of both super-blocks has the upper bits of a point, and which bit is the ninth.
    static constexpr Places kBytes = [] {
      Places bytes{};
      for (int k = 0; k < 64; ++k) bytes.of[k] = static_cast<std::uint8_t>(k / 8 % 2 * 8 + (8 * (k / 16) + k % 8) / 4);
      return bytes;
    }();
    const __m512i ninths = _mm512_set1_epi32(0x40100401), tenths = _mm512_set1_epi32(static_cast<int>(0x80200802));
    const BlockIQ2_S &a = at<BlockIQ2_S>(p, 0), &b = at<BlockIQ2_S>(p, 1);
    const __m512i order = _mm512_set_epi64(11, 3, 10, 2, 9, 1, 8, 0);
    const auto in_points_order = [order](const std::uint8_t* first, const std::uint8_t* second) {
      return _mm512_permutex2var_epi64(_mm512_castsi256_si512(load256(first)), order,
                                       _mm512_castsi256_si512(load256(second)));
    };
    const __m512i upper = _mm512_permutexvar_epi8(
        load(kBytes.of), _mm512_castsi128_si512(_mm_unpacklo_epi64(load64(a.qh), load64(b.qh))));
    const __mmask64 further[2] = {_mm512_test_epi8_mask(upper, ninths), _mm512_test_epi8_mask(upper, tenths)};
    Weights w;
    put_iq2<kOffset>(codes_at(kIq2SCodes, in_points_order(a.qs, b.qs), further), in_points_order(a.signs, b.signs), w);
    put_nibble_scales<BlockIQ2_S>(p, w);
    return w;
  }
};

struct IQ3_XXS : OfGrid<BlockIQ3_XXS> {
  MR_UNPACK {
    static constexpr Places kLevels = level_table<kOffset>(kIq3XxsLevels);
    Weights w;
    __m128i sc[2];
#pragma GCC unroll 2
    for (int s = 0; s < 2; ++s) {
      const BlockIQ3_XXS& block = at<BlockIQ3_XXS>(p, s);
      const __m256i packed = load256(block.signs_and_scales);
      const __m512i signs = with_eighth_sign(seven_bits<0>(_mm512_cvtepu32_epi64(packed)));
      put_iq3<kOffset, 8>(codes_at(kIq3XxsCodes, load(block.qs)), kLevels, signs, w.q + 4 * s);
      sc[s] = odd_scales(_mm256_cvtepi32_epi8(_mm256_srli_epi32(packed, 28)));
    }
    put_scales(p, sc, w);
    return w;
  }
};

struct IQ3_S : OfGrid<BlockIQ3_S> {
  MR_UNPACK {
    static constexpr Places kLevels = level_table<kOffset>(kIq3SLevels);
    Weights w;
    __m128i sc[2];
#pragma GCC unroll 2
    for (int s = 0; s < 2; ++s) {
      const BlockIQ3_S& block = at<BlockIQ3_S>(p, s);
      std::uint64_t bits;
      std::memcpy(&bits, block.qh, sizeof bits);
      const __mmask64 ninth = bits;
      put_iq3<kOffset, 4>(codes_at(kIq3SCodes, load(block.qs), &ninth), kLevels,
                          _mm512_castsi256_si512(load256(block.signs)), w.q + 4 * s);
      std::uint32_t scales;
      std::memcpy(&scales, block.scales, sizeof scales);
      sc[s] = odd_scales(nibbles_in_order(scales));
    }
    put_scales(p, sc, w);
    return w;
  }
};

/// Numbers of points, of a super-block, in memory: a compiler that sees where they come from takes them out of a vector
/// one by one, which is slower. They are read some time after they were written; those of both super-blocks come first.
struct alignas(64) PointNumbers {
  std::uint16_t of[32];
  void put(__m512i words) {
    _mm512_store_si512(of, words);
    asm("" : "+m"(of));
  }
};
/// Byte k / 2 of sixteen in the upper half of word k.
__m512i upper_bytes(__m128i bytes) {
  static constexpr Places kFrom = [] {
    Places from{};
    for (int k = 0; k < 32; ++k) from.of[2 * k + 1] = static_cast<std::uint8_t>(k / 2);
    return from;
  }();
  return _mm512_maskz_permutexvar_epi8(0xaaaaaaaaaaaaaaaaULL, load(kFrom.of), _mm512_castsi128_si512(bytes));
}
__m512i words_of(const std::uint8_t* bytes) { return _mm512_cvtepu8_epi16(load256(bytes)); }

/// Points, and two more where the eighth is added. `minus`: words, a point each, negative where it is taken away.
__m512i eighths_of(__m512i minus) {
  const __m512i added = _mm512_andnot_si512(_mm512_srai_epi16(minus, 15), _mm512_set1_epi16(2));
  return _mm512_castsi256_si512(_mm512_cvtepi16_epi8(added));
}
__m512i with_eighths(__m512i points, __m512i eighths, int i) {
  const __m512i places = load(kSignPlaces<4>[static_cast<std::size_t>(i)].of);
  return _mm512_add_epi8(points, _mm512_permutexvar_epi8(places, eighths));
}

/// Vectors of IQ1: numbers and eighths of both super-blocks.
inline __attribute__((always_inline)) void put_iq1(const PointNumbers numbers[2], const __m512i eighths[2],
                                                   Weights& w) {
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    const auto number = [&](int l, int j) { return numbers[i / 4].of[8 * l + 2 * (i % 4) + j]; };
    w.q[i] = with_eighths(points_of_eight(kIq1Grid.at, number), eighths[i / 4], i % 4);
  }
}

struct IQ1_S : OfGrid<BlockIQ1_S> {
  MR_UNPACK {
    const __m512i shifts = _mm512_set1_epi64(0x0009000600030000);
    const __m512i parts = _mm512_set_epi16(7, 7, 7, 7, 6, 6, 6, 6, 5, 5, 5, 5, 4, 4, 4, 4, 3, 3, 3, 3, 2, 2, 2, 2, 1, 1,
                                           1, 1, 0, 0, 0, 0);
    Weights w;
    PointNumbers numbers[2];
    __m512i eighths[2];
    __m128i sc[2];
#pragma GCC unroll 2
    for (int s = 0; s < 2; ++s) {
      const BlockIQ1_S& block = at<BlockIQ1_S>(p, s);
      const __m128i qh = load128(block.qh);
      const __m512i own = _mm512_permutexvar_epi16(parts, _mm512_castsi128_si512(qh));
      const __m512i high = _mm512_slli_epi16(_mm512_and_si512(_mm512_srlv_epi16(own, shifts), _mm512_set1_epi16(7)), 8);
      numbers[s].put(_mm512_or_si512(words_of(block.qs), high));
      eighths[s] = eighths_of(own);
      sc[s] = odd_scales(_mm_cvtepi16_epi8(_mm_and_si128(_mm_srli_epi16(qh, 12), _mm_set1_epi16(7))));
    }
    put_scales(p, sc, w);
    put_iq1(numbers, eighths, w);
    return w;
  }
};

struct IQ1_M : OfGrid<BlockIQ1_M> {
  MR_UNPACK {
    const __m512i shifts = _mm512_set1_epi32(0x00040000);
    Weights w;
    PointNumbers numbers[2];
    __m512i eighths[2];
    __m128i sc[2][2];  // [half][super-block]
#pragma GCC unroll 2
    for (int s = 0; s < 2; ++s) {
      const BlockIQ1_M& block = at<BlockIQ1_M>(p, s);
      const __m512i own = _mm512_srlv_epi16(upper_bytes(load128(block.qh)), shifts);
      const __m512i high = _mm512_and_si512(own, _mm512_set1_epi16(0x0700));
      numbers[s].put(_mm512_or_si512(words_of(block.qs), high));
      eighths[s] = eighths_of(_mm512_slli_epi16(own, 4));
      const __m128i four = load64(block.scales), words = _mm_unpacklo_epi16(four, four), three = _mm_set1_epi16(7);
#pragma GCC unroll 2
      for (int h = 0; h < 2; ++h) {
        const __m128i places = h == 0 ? _mm_set1_epi32(0x00060000) : _mm_set1_epi32(0x00090003);
        sc[h][s] = odd_scales(_mm_cvtepi16_epi8(_mm_and_si128(_mm_srlv_epi16(words, places), three)));
      }
    }
    put_scales(p, sc[0], sc[1], w);
    put_iq1(numbers, eighths, w);
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
        const __m512i parts = joined(own, own, t == 0 ? own : third, t == 1 && h == 1 ? rest : third);
        w.q[4 * s + i] = digits(parts, kPowers[static_cast<std::size_t>(i)]);
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

#undef MR_UNPACK

}  // namespace
}  // namespace millrace::kernels::avx512
