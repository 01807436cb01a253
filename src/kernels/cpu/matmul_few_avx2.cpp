// One x row (decode) with MXFP4 on AVX2, straight from the file's blocks: panels of eight rows take more instructions
// than memory leaves time for.
//
// Eight blocks of a row, a *group*, are eight vectors of 32 unsigned levels, 0..24. Their products with x are added in
// int16 over four pairs, which just fit (8 * 24 * 127 < 32768), and then over blocks by a transposing tree, so that
// the eight integers, the eight scales and eight of the contract's lanes are one vector each. Four accumulators take
// turns, which makes the 32 lanes.
#include <immintrin.h>

#include <cstring>

#include "kernels/cpu/matmul_few.h"
#include "tensor/blocks.h"

namespace millrace::kernels::avx2 {
namespace {

constexpr int kGroup = 8;  // blocks
constexpr std::int64_t kBlockBytes = sizeof(BlockMXFP4), kGroupBytes = kGroup * kBlockBytes;
constexpr int kOffset = 12;
alignas(16) constexpr std::uint8_t kLevels[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};

__m256i load(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
__m128i load128(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }

/// x of a group: q [8][32], d [8], u [8] = -kOffset * the sum of a block's q.
struct X {
  const std::int8_t* q;
  const float* d;
  const std::int32_t* u;
};

/// Pairs of products of a block's weights with x, in int16.
inline __attribute__((always_inline)) __m256i products(const std::byte* block, const std::int8_t* x) {
  const __m256i shifts = _mm256_setr_epi32(0, 0, 0, 0, 4, 4, 4, 4);
  const __m256i levels = _mm256_broadcastsi128_si256(load128(kLevels));
  const __m256i twice = _mm256_broadcastsi128_si256(load128(block + 1));
  const __m256i nibbles = _mm256_and_si256(_mm256_srlv_epi32(twice, shifts), _mm256_set1_epi8(15));
  return _mm256_maddubs_epi16(_mm256_shuffle_epi8(levels, nibbles), load(x));
}

/// Half the scales of eight blocks, 2^(e - 128), possibly subnormal: as 2^(e/2 - 64) times 2^((e + 1)/2 - 64), exactly.
inline __attribute__((always_inline)) __m256 halved_powers(const std::byte* blocks) {
  const auto two = [&](int i) __attribute__((always_inline)) {
    return _mm_insert_epi8(_mm_cvtsi32_si128(static_cast<int>(blocks[i * kBlockBytes])),
                           static_cast<int>(blocks[(i + 1) * kBlockBytes]), 1);
  };
  const __m128i low = _mm_unpacklo_epi16(two(0), two(2)), high = _mm_unpacklo_epi16(two(4), two(6));
  const __m256i e = _mm256_cvtepu8_epi32(_mm_unpacklo_epi32(low, high));
  const auto power = [](__m256i n) __attribute__((always_inline)) {
    const __m256i biased = _mm256_add_epi32(_mm256_srli_epi32(n, 1), _mm256_set1_epi32(63));
    return _mm256_castsi256_ps(_mm256_slli_epi32(biased, 23));
  };
  return _mm256_mul_ps(power(e), power(_mm256_add_epi32(e, _mm256_set1_epi32(1))));
}

/// The group's terms, added to sum.
inline __attribute__((always_inline)) __m256 add_group(const std::byte* w, const X& x, __m256 sum) {
  __m256i four[2];
#pragma GCC unroll 2
  for (int h = 0; h < 2; ++h) {
    __m256i s[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) s[i] = products(w + (4 * h + i) * kBlockBytes, x.q + 32 * (4 * h + i));
    four[h] = _mm256_madd_epi16(_mm256_hadd_epi16(_mm256_hadd_epi16(s[0], s[1]), _mm256_hadd_epi16(s[2], s[3])),
                                _mm256_set1_epi16(1));
  }
  const __m256i all = _mm256_add_epi32(_mm256_permute2x128_si256(four[0], four[1], 0x20),
                                       _mm256_permute2x128_si256(four[0], four[1], 0x31));
  const __m256 integers = _mm256_cvtepi32_ps(_mm256_add_epi32(all, load(x.u)));
  return _mm256_fmadd_ps(_mm256_mul_ps(halved_powers(w), _mm256_loadu_ps(x.d)), integers, sum);
}

/// Asks for what comes soon and for what comes later; rows follow each other.
inline __attribute__((always_inline)) void prefetch_ahead(const std::byte* p) {
  constexpr int kNear = 1024, kFar = 8192;
#pragma GCC unroll 3
  for (int i = 0; i < kGroupBytes; i += 64) {
    __builtin_prefetch(p + kNear + i, 0, 3);
    __builtin_prefetch(p + kFar + i, 0, 2);
  }
}

/// What x has beside the file's blocks: u of all its groups, and the last group where it is not whole, padded.
struct Prepared {
  std::int32_t* u;
  alignas(32) std::int8_t q[32 * kGroup] = {};
  alignas(32) float d[kGroup] = {};
};

}  // namespace

void matmul_mxfp4_row(const MatmulArgs& args) {
  const std::int64_t blocks = args.cols / 32, whole = blocks / kGroup, rest = blocks - whole * kGroup;
  const std::int64_t row = args.x_index == nullptr ? 0 : args.x_index[0], row_bytes = blocks * kBlockBytes;
  const std::int8_t* q = args.x_q8.q + row * args.cols;
  const float* d = args.x_q8.d + row * blocks;
  const std::int32_t* sum16 = args.x_q8.sum16 + row * blocks * 2;
  Prepared x{.u = reinterpret_cast<std::int32_t*>(args.workspace)};
  for (std::int64_t b = 0; b < (whole + 1) * kGroup; ++b)
    x.u[b] = b < blocks ? -kOffset * (sum16[2 * b] + sum16[2 * b + 1]) : 0;
  std::memcpy(x.q, q + whole * kGroup * 32, static_cast<std::size_t>(rest * 32));
  std::memcpy(x.d, d + whole * kGroup, static_cast<std::size_t>(rest) * sizeof(float));
  const auto x_of = [&](std::int64_t g) __attribute__((always_inline)) {
    return X{g < whole ? q + g * kGroup * 32 : x.q, g < whole ? d + g * kGroup : x.d, x.u + g * kGroup};
  };
  const std::byte* const end = args.weight + args.weight_rows * row_bytes;
  alignas(32) std::byte copy[kGroupBytes] = {};
  for (std::int64_t n = 0; n < args.weight_rows; ++n) {
    const std::byte *const w = args.weight + n * row_bytes, *last = w + whole * kGroupBytes;
    // Elsewhere the next row's blocks may be read: no scale is infinite, and what they meet of x is zero.
    if (rest > 0 && end - last < kGroupBytes) {
      std::memcpy(copy, last, static_cast<std::size_t>(rest * kBlockBytes));
      last = copy;
    }
    __m256 sum[4] = {_mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps()};
    std::int64_t g = 0;
    for (; g + 4 <= whole; g += 4) {
#pragma GCC unroll 4
      for (int turn = 0; turn < 4; ++turn) {
        const std::byte* p = w + (g + turn) * kGroupBytes;
        prefetch_ahead(p);
        sum[turn] =
            add_group(p, {q + (g + turn) * kGroup * 32, d + (g + turn) * kGroup, x.u + (g + turn) * kGroup}, sum[turn]);
      }
    }
#pragma GCC unroll 4
    for (int turn = 0; turn < 4; ++turn) {
      const std::int64_t at = g + turn;
      if (at > whole || (at == whole && rest == 0)) break;
      prefetch_ahead(w + at * kGroupBytes);
      sum[turn] = add_group(at < whole ? w + at * kGroupBytes : last, x_of(at), sum[turn]);
    }
    const __m256 eight = _mm256_add_ps(_mm256_add_ps(sum[0], sum[2]), _mm256_add_ps(sum[1], sum[3]));
    const __m128 fours = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 twos = _mm_add_ps(fours, _mm_movehl_ps(fours, fours));
    args.y[n] = _mm_cvtss_f32(_mm_add_ss(twos, _mm_movehdup_ps(twos)));
  }
}

}  // namespace millrace::kernels::avx2
