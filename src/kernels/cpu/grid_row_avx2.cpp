// One x row (decode) with weights on a grid (tensor/grids.h) on AVX2, straight from the file's blocks: a panel of eight
// rows would be unpacked for a single use.
//
// A super-block's eight parts are eight vectors of products with x, which takes the weights' signs. Sums of pairs in
// int16 are multiplied by 1, or by the scales of the part's halves, and added over a transposing tree, so that eight
// integers, eight scales and eight of the contract's lanes are one vector each. Four accumulators take turns, which
// makes the 32 lanes.
#include <immintrin.h>

#include <cstring>

#include "kernels/cpu/matmul_few.h"
#include "tensor/grid_blocks.h"
#include "tensor/grids.h"

namespace millrace::kernels::avx2 {
namespace {

__m128i load64(const void* p) { return _mm_loadl_epi64(static_cast<const __m128i*>(p)); }
__m128i load128(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
__m256i load256(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
__m256i both(__m128i low, __m128i high) { return _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1); }

/// Four words of eight bytes from where they lie.
template <class At>
inline __attribute__((always_inline)) __m256i four_words(const At& at) {
  const auto two = [&](int l) __attribute__((always_inline)) {
    const auto* second = reinterpret_cast<const __m64*>(at(l + 1));
    return _mm_castps_si128(_mm_loadh_pi(_mm_castsi128_ps(load64(at(l))), second));
  };
  return both(two(0), two(2));
}
/// Eight points of four weights.
template <class At>
inline __attribute__((always_inline)) __m256i eight_points(const std::uint32_t* grid, const At& at) {
  const auto point = [&](int i) __attribute__((always_inline)) { return static_cast<int>(grid[at(i)]); };
  return both(_mm_set_epi32(point(3), point(2), point(1), point(0)),
              _mm_set_epi32(point(7), point(6), point(5), point(4)));
}

/// By seven signs: the mask of eight weights, as kByteMasks has it.
constexpr GridTable<std::uint64_t, 128> even_masks() {
  GridTable<std::uint64_t, 128> masks{};
  for (unsigned i = 0; i < 128; ++i) masks.at[i] = kByteMasks.at[eight_signs(i)];
  return masks;
}
constexpr auto kEvenMasks = even_masks();
/// Masks of four times seven signs.
inline __attribute__((always_inline)) __m256i even_signs(std::uint32_t packed) {
  return four_words([packed](int l) { return kEvenMasks.at + (packed >> (7 * l) & 127); });
}
/// Masks of 32 signs.
inline __attribute__((always_inline)) __m256i plain_signs(const std::uint8_t* signs) {
  std::int32_t all;
  std::memcpy(&all, signs, sizeof all);
  const __m256i places = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
  const __m256i bits = _mm256_set1_epi64x(static_cast<long long>(0x8040201008040201ULL));
  const __m256i own = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32(all), places), bits);
  return _mm256_cmpeq_epi8(own, bits);
}
/// Sums of pairs of values times x, whose sign is turned where `minus` has ones.
inline __attribute__((always_inline)) __m256i signed_products(__m256i values, __m256i minus, __m256i x) {
  return _mm256_maddubs_epi16(values, _mm256_sub_epi8(_mm256_xor_si256(x, minus), minus));
}
/// The same of signed values.
inline __attribute__((always_inline)) __m256i products(__m256i values, __m256i x) {
  return _mm256_maddubs_epi16(_mm256_abs_epi8(values), _mm256_sign_epi8(x, values));
}

/// Eight nibbles of four bytes in their order, low ones first, as bytes.
__m128i nibbles_in_order(const std::uint8_t* packed) {
  std::int32_t four;
  std::memcpy(&four, packed, sizeof four);
  const __m128i all = _mm_cvtsi32_si128(four), nibble = _mm_set1_epi8(15);
  return _mm_unpacklo_epi8(_mm_and_si128(all, nibble), _mm_and_si128(_mm_srli_epi32(all, 4), nibble));
}
__m128i high_nibbles(__m128i v) { return _mm_and_si128(_mm_srli_epi16(v, 4), _mm_set1_epi8(15)); }

// A format: its products of a part with x, and the numbers s of its scales 2s + 1 as bytes, of each part or of the
// first and second halves; those of a format without scales are none.

template <class Block>
struct Format;

/// Of each byte the low nibble is the first half's, the high one the second's.
template <class Block>
struct NibbleScales {
  static __m128i first_scales(const Block& block) { return _mm_and_si128(load64(block.scales), _mm_set1_epi8(15)); }
  static __m128i second_scales(const Block& block) { return high_nibbles(load64(block.scales)); }
};

template <>
struct Format<BlockIQ2_XXS> {
  static __m256i part(const BlockIQ2_XXS& block, int p, __m256i x) {
    const BlockIQ2_XXS::Part& own = block.parts[p];
    return signed_products(four_words([&](int l) { return kIq2XxsGrid.at + own.points[l]; }),
                           even_signs(own.signs_and_scale), x);
  }
  static __m128i scales(const BlockIQ2_XXS& block) {
    const auto top = [&](int two, __m128i place) { return _mm_shuffle_epi8(load128(block.parts + 2 * two), place); };
    const __m128i first =
        _mm_or_si128(top(0, _mm_setr_epi8(7, 15, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1)),
                     top(1, _mm_setr_epi8(-1, -1, 7, 15, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1)));
    const __m128i last =
        _mm_or_si128(top(2, _mm_setr_epi8(-1, -1, -1, -1, 7, 15, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1)),
                     top(3, _mm_setr_epi8(-1, -1, -1, -1, -1, -1, 7, 15, -1, -1, -1, -1, -1, -1, -1, -1)));
    return high_nibbles(_mm_or_si128(first, last));
  }
};

template <>
struct Format<BlockIQ2_XS> : NibbleScales<BlockIQ2_XS> {
  static __m256i part(const BlockIQ2_XS& block, int p, __m256i x) {
    const auto point = [&](int l) { return static_cast<unsigned>(block.qs[4 * p + l]); };
    return signed_products(four_words([&](int l) { return kIq2XsGrid.at + (point(l) & 511); }),
                           four_words([&](int l) { return kEvenMasks.at + (point(l) >> 9); }), x);
  }
};

template <>
struct Format<BlockIQ2_S> : NibbleScales<BlockIQ2_S> {
  static __m256i part(const BlockIQ2_S& block, int p, __m256i x) {
    const unsigned high = block.qh[p];
    const auto point = [&](int l) { return block.qs[4 * p + l] | (high >> (2 * l) & 3) << 8; };
    return signed_products(four_words([&](int l) { return kIq2SGrid.at + point(l); }), plain_signs(block.signs + 4 * p),
                           x);
  }
};

template <>
struct Format<BlockIQ3_XXS> {
  static __m256i part(const BlockIQ3_XXS& block, int p, __m256i x) {
    return signed_products(eight_points(kIq3XxsGrid.at, [&](int i) { return block.qs[8 * p + i]; }),
                           even_signs(block.signs_and_scales[p]), x);
  }
  static __m128i scales(const BlockIQ3_XXS& block) {
    const __m128i tops = _mm_setr_epi8(3, 7, 11, 15, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1);
    const __m128i low = _mm_shuffle_epi8(load128(block.signs_and_scales), tops),
                  high = _mm_shuffle_epi8(load128(block.signs_and_scales + 4), tops);
    return high_nibbles(_mm_unpacklo_epi32(low, high));
  }
};

template <>
struct Format<BlockIQ3_S> {
  static __m256i part(const BlockIQ3_S& block, int p, __m256i x) {
    const unsigned high = block.qh[p];
    const auto point = [&](int i) { return block.qs[8 * p + i] | (high >> i & 1) << 8; };
    return signed_products(eight_points(kIq3SGrid.at, point), plain_signs(block.signs + 4 * p), x);
  }
  static __m128i scales(const BlockIQ3_S& block) { return nibbles_in_order(block.scales); }
};

template <>
struct Format<BlockIQ1_S> {
  static __m256i part(const BlockIQ1_S& block, int p, __m256i x) {
    const unsigned high = block.qh[p];
    const auto point = [&](int l) { return block.qs[4 * p + l] | (high >> (3 * l) & 7) << 8; };
    const __m256i points = four_words([&](int l) { return kIq1Grid.at + point(l); });
    return products(_mm256_sub_epi8(points, _mm256_set1_epi8((high & 0x8000) != 0 ? 9 : 7)), x);
  }
  static __m128i scales(const BlockIQ1_S& block) {
    const __m128i three = _mm_and_si128(_mm_srli_epi16(load128(block.qh), 12), _mm_set1_epi16(7));
    return _mm_packus_epi16(three, three);
  }
};

template <>
struct Format<BlockIQ1_M> {
  static __m256i part(const BlockIQ1_M& block, int p, __m256i x) {
    const unsigned high = static_cast<unsigned>(block.qh[2 * p]) | static_cast<unsigned>(block.qh[2 * p + 1]) << 8;
    const auto point = [&](int l) { return block.qs[4 * p + l] | (high >> (4 * l) & 7) << 8; };
    const __m256i points = four_words([&](int l) { return kIq1Grid.at + point(l); });
    const __m256i away = four_words([&](int l) { return kEighths.at + (high >> (4 * l + 3) & 1); });
    return products(_mm256_sub_epi8(points, away), x);
  }
  /// Three bits of words (w0, w0, w1, w1, ...): those that `up` brings to the top.
  static __m128i three_bits(const BlockIQ1_M& block, __m128i up) {
    const __m128i four = load64(block.scales);
    const __m128i three = _mm_srli_epi16(_mm_mullo_epi16(_mm_unpacklo_epi16(four, four), up), 13);
    return _mm_packus_epi16(three, three);
  }
  static __m128i first_scales(const BlockIQ1_M& block) { return three_bits(block, _mm_set1_epi32(0x00802000)); }
  static __m128i second_scales(const BlockIQ1_M& block) { return three_bits(block, _mm_set1_epi32(0x00100400)); }

 private:
  static constexpr GridTable<std::uint64_t, 2> kEighths{{0x0707070707070707, 0x0909090909090909}};
};

template <>
struct Format<BlockTQ1_0> {
  static __m256i part(const BlockTQ1_0& block, int p, __m256i x) {
    const __m128i third = load128(block.qs + 32);
    if (p < 5) return digits(load256(block.qs), _mm256_set1_epi16(kPower[p]), x);
    if (p < 7) return digits(both(third, third), both(powers(2 * p - 10), powers(2 * p - 9)), x);
    std::int32_t last;
    std::memcpy(&last, block.qh, sizeof last);
    return digits(both(third, _mm_set1_epi32(last)), both(powers(4), _mm_setr_epi16(1, 1, 3, 3, 9, 9, 27, 27)), x);
  }

 private:
  static constexpr std::int16_t kPower[5] = {1, 3, 9, 27, 81};
  static __m128i powers(int n) { return _mm_set1_epi16(kPower[n]); }
  /// The digits that `power` brings to the front of each byte, less one, times x.
  static __m256i digits(__m256i bytes, __m256i power, __m256i x) {
    const __m256i low = _mm256_set1_epi16(255);
    const __m256i even = _mm256_and_si256(_mm256_mullo_epi16(bytes, power), low);
    const __m256i odd = _mm256_and_si256(_mm256_mullo_epi16(_mm256_srli_epi16(bytes, 8), power), low);
    const __m256i three = _mm256_set1_epi16(3);
    const __m256i even_digits = _mm256_srli_epi16(_mm256_mullo_epi16(even, three), 8);
    const __m256i odd_digits = _mm256_andnot_si256(low, _mm256_mullo_epi16(odd, three));
    return products(_mm256_sub_epi8(_mm256_or_si256(even_digits, odd_digits), _mm256_set1_epi8(1)), x);
  }
};

template <>
struct Format<BlockTQ2_0> {
  static __m256i part(const BlockTQ2_0& block, int p, __m256i x) {
    const __m256i raw = _mm256_srl_epi16(load256(block.qs + 32 * (p / 4)), _mm_cvtsi32_si128(2 * (p % 4)));
    return products(_mm256_sub_epi8(_mm256_and_si256(raw, _mm256_set1_epi8(3)), _mm256_set1_epi8(1)), x);
  }
};

template <class Block>
concept HasScales = requires(const Block& block) {
  Format<Block>::scales(block);
};

__m128i odd_scales(__m128i v) { return _mm_or_si128(_mm_add_epi8(v, v), _mm_set1_epi8(1)); }

/// The super-block's terms, added to sum.
template <class Block>
inline __attribute__((always_inline)) __m256 add_block(const Block& block, const std::int8_t* q, const float* d,
                                                       __m256 sum) {
  using G = Grid<Block>;
  __m256i halves = _mm256_setzero_si256();  // words: of the parts' first halves, of the second
  if constexpr (G::kHalves)
    halves = both(_mm_cvtepu8_epi16(odd_scales(Format<Block>::first_scales(block))),
                  _mm_cvtepu8_epi16(odd_scales(Format<Block>::second_scales(block))));
  __m256i four[2];
#pragma GCC unroll 2
  for (int h = 0; h < 2; ++h) {
    __m256i s[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const int p = 4 * h + i;
      const __m256i by =
          G::kHalves
              ? _mm256_shuffle_epi8(halves, _mm256_set1_epi16(static_cast<std::int16_t>(2 * p | (2 * p + 1) << 8)))
              : _mm256_set1_epi16(1);
      s[i] = _mm256_madd_epi16(Format<Block>::part(block, p, load256(q + 32 * p)), by);
    }
    four[h] = _mm256_hadd_epi32(_mm256_hadd_epi32(s[0], s[1]), _mm256_hadd_epi32(s[2], s[3]));
  }
  const __m256i all = _mm256_add_epi32(_mm256_permute2x128_si256(four[0], four[1], 0x20),
                                       _mm256_permute2x128_si256(four[0], four[1], 0x31));
  __m256 scale = _mm256_mul_ps(_mm256_set1_ps(_cvtsh_ss(G::d(block))), _mm256_set1_ps(G::kStep));
  if constexpr (HasScales<Block>) {
    const __m128i scales = odd_scales(Format<Block>::scales(block));
    scale = _mm256_mul_ps(scale, _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(scales)));
  }
  return _mm256_fmadd_ps(_mm256_mul_ps(scale, _mm256_loadu_ps(d)), _mm256_cvtepi32_ps(all), sum);
}

template <class Block>
void product(const MatmulArgs& args) {
  constexpr std::int64_t kNear = 1024, kFar = 8192;
  const std::int64_t blocks = args.cols / kSuperBlock, row = args.x_index == nullptr ? 0 : args.x_index[0];
  const std::int8_t* const q = args.x_q8.q + row * args.cols;
  const float* const d = args.x_q8.d + row * args.cols / 32;
  for (std::int64_t n = 0; n < args.weight_rows; ++n) {
    const auto* const w = reinterpret_cast<const Block*>(args.weight) + n * blocks;
    __m256 sum[4] = {_mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps()};
    for (std::int64_t b = 0; b < blocks; ++b) {
      const auto* const at = reinterpret_cast<const char*>(w + b);
      __builtin_prefetch(at + kNear, 0, 3);
      __builtin_prefetch(at + kFar, 0, 2);
      const __m256 next = add_block(w[b], q + b * kSuperBlock, d + b * 8, sum[0]);
      sum[0] = sum[1];
      sum[1] = sum[2];
      sum[2] = sum[3];
      sum[3] = next;
    }
    // Back to the order of turns: the next one is at the front.
    __m256 lanes[4];
    for (int i = 0; i < 4; ++i) lanes[(blocks + i) % 4] = sum[i];
    const __m256 eight = _mm256_add_ps(_mm256_add_ps(lanes[0], lanes[2]), _mm256_add_ps(lanes[1], lanes[3]));
    const __m128 fours = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 twos = _mm_add_ps(fours, _mm_movehl_ps(fours, fours));
    args.y[n] = _mm_cvtss_f32(_mm_add_ss(twos, _mm_movehdup_ps(twos)));
  }
}

}  // namespace

bool matmul_grid_row(const MatmulArgs& args) {
  return with_grid_block(args.dtype, [&]<typename Block>() { product<Block>(args); });
}

}  // namespace millrace::kernels::avx2
