// Activations to int8 with AVX-512; the same bits as quantize_q8.cpp.
// GCC 12 calls the undefined operands inside its own AVX-512 headers uninitialized (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wuninitialized"
#ifndef __clang__
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>

#include "kernels/cpu/matmul.h"

namespace millrace::kernels::avx512 {

void quantize_q8(const float* x, std::int64_t x_stride, std::int64_t rows, std::int64_t cols, Q8Rows out) {
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t b = 0; b < cols / 32; ++b) {
      const std::int64_t block = r * (cols / 32) + b;
      const __m512 x0 = _mm512_loadu_ps(x + r * x_stride + 32 * b),
                   x1 = _mm512_loadu_ps(x + r * x_stride + 32 * b + 16);
      // Magnitudes compare as integers do, and so NaN is the largest of all.
      const std::uint32_t amax_bits = _mm512_reduce_max_epu32(_mm512_max_epu32(
          _mm512_and_si512(_mm512_castps_si512(x0), magnitude), _mm512_and_si512(_mm512_castps_si512(x1), magnitude)));
      const float amax = _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(static_cast<int>(amax_bits))));
      const bool finite = amax_bits < 0x7f800000, nonzero = finite && amax >= 0x1p-120F;
      __m512i q0 = _mm512_setzero_si512(), q1 = q0;
      if (nonzero) {
        const __m512 inverse = _mm512_set1_ps(127.0F / amax);
        q0 = _mm512_cvtps_epi32(_mm512_mul_ps(x0, inverse));
        q1 = _mm512_cvtps_epi32(_mm512_mul_ps(x1, inverse));
      }
      _mm_storeu_si128(reinterpret_cast<__m128i*>(out.q + 32 * block), _mm512_cvtepi32_epi8(q0));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(out.q + 32 * block + 16), _mm512_cvtepi32_epi8(q1));
      out.sum16[2 * block] = _mm512_reduce_add_epi32(q0);
      out.sum16[2 * block + 1] = _mm512_reduce_add_epi32(q1);
      out.d[block] = nonzero ? amax / 127.0F : finite ? 0.0F : __builtin_nanf("");
    }
  }
}

}  // namespace millrace::kernels::avx512
