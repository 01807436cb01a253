// Activations to int8 with AVX2; the same bits as quantize_q8.cpp.
#include <immintrin.h>

#include "kernels/cpu/matmul.h"

namespace millrace::kernels::avx2 {
namespace {

std::uint32_t largest(__m256i v) {
  __m128i m = _mm_max_epu32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0x4e));
  m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0xb1));
  return static_cast<std::uint32_t>(_mm_cvtsi128_si32(m));
}

// Sixteen ints in -127..127 to bytes at `out`; returns their sum.
std::int32_t store16(__m256i a, __m256i b, std::int8_t* out) {
  const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xd8);
  const __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out), bytes);
  const __m256i pairs = _mm256_madd_epi16(words, _mm256_set1_epi16(1));
  __m128i s = _mm_add_epi32(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
  s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
}

}  // namespace

void quantize_q8(const float* x, std::int64_t x_stride, std::int64_t rows, std::int64_t cols, Q8Rows out) {
  const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t b = 0; b < cols / 32; ++b) {
      const std::int64_t block = r * (cols / 32) + b;
      __m256 v[4];
      __m256i largest8 = _mm256_setzero_si256();
      for (int i = 0; i < 4; ++i) {
        v[i] = _mm256_loadu_ps(x + r * x_stride + 32 * b + 8 * i);
        // Magnitudes compare as integers do, and so NaN is the largest of all.
        largest8 = _mm256_max_epu32(largest8, _mm256_and_si256(_mm256_castps_si256(v[i]), magnitude));
      }
      const std::uint32_t amax_bits = largest(largest8);
      const float amax = _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(static_cast<int>(amax_bits))));
      const bool finite = amax_bits < 0x7f800000, nonzero = finite && amax >= 0x1p-120F;
      __m256i q[4] = {};
      if (nonzero) {
        const __m256 inverse = _mm256_set1_ps(127.0F / amax);
        for (int i = 0; i < 4; ++i) q[i] = _mm256_cvtps_epi32(_mm256_mul_ps(v[i], inverse));
      }
      out.sum16[2 * block] = store16(q[0], q[1], out.q + 32 * block);
      out.sum16[2 * block + 1] = store16(q[2], q[3], out.q + 32 * block + 16);
      out.d[block] = nonzero ? amax / 127.0F : finite ? 0.0F : __builtin_nanf("");
    }
  }
}

}  // namespace millrace::kernels::avx2
