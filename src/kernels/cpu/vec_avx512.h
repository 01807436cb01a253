// Sixteen lanes in an AVX-512 register. See vec_plain.h for what each function means and for the anonymous namespace.
#pragma once

// GCC 12 takes the "undefined" operand inside its own AVX-512 intrinsics for a mistake of ours (GCC bug 105593).
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif

#include <cstdint>

#include "kernels/cpu/vec_avx2.h"

namespace millrace::kernels {
namespace {

struct Avx512 {
  using Float = __m512;
  static constexpr int kWidth = 16;
  static constexpr int kRegisters = 32;

  static __mmask16 mask(int n) { return static_cast<__mmask16>((1u << n) - 1); }
  static Float load(const float* p) { return _mm512_loadu_ps(p); }
  static Float load_first(const float* p, int n) { return _mm512_maskz_loadu_ps(mask(n), p); }
  static void store(float* p, Float v) { _mm512_storeu_ps(p, v); }
  static void store_first(float* p, Float v, int n) { _mm512_mask_storeu_ps(p, mask(n), v); }
  static Float keep_first(Float v, int n) { return _mm512_maskz_mov_ps(mask(n), v); }
  static Float set(float v) { return _mm512_set1_ps(v); }
  static Float add(Float a, Float b) { return _mm512_add_ps(a, b); }
  static Float sub(Float a, Float b) { return _mm512_sub_ps(a, b); }
  static Float mul(Float a, Float b) { return _mm512_mul_ps(a, b); }
  static Float div(Float a, Float b) { return _mm512_div_ps(a, b); }
  static Float fma(Float a, Float b, Float c) { return _mm512_fmadd_ps(a, b, c); }
  static Float max(Float a, Float b) { return _mm512_max_ps(a, b); }
  static Float min(Float a, Float b) { return _mm512_min_ps(a, b); }
  static float sum(Float v) {
    return Avx2::sum(_mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1)));
  }
  static float max_lane(Float v) {
    return Avx2::max_lane(_mm256_max_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1)));
  }
  static Float times_power_of_two(Float x, Float n) { return _mm512_scalef_ps(x, n); }

  static Float load_half(const std::uint16_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static Float load_half_first(const std::uint16_t* p, int n) {
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask(n), p));
  }
  static void store_half(std::uint16_t* p, Float v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
  }
  static void store_half_first(std::uint16_t* p, Float v, int n) {
    _mm256_mask_storeu_epi16(p, mask(n), _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
  }
};

}  // namespace
}  // namespace millrace::kernels
