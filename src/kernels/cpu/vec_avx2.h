// Eight lanes in an AVX2 register. See vec_plain.h for what each function means and for the anonymous namespace.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace millrace::kernels {
namespace {

struct Avx2 {
  using Float = __m256;
  using Int = __m256i;
  static constexpr int kWidth = 8;
  static constexpr int kRegisters = 16;

  static Int mask(int n) { return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)); }
  static Float load(const float* p) { return _mm256_loadu_ps(p); }
  static Float load_first(const float* p, int n) { return _mm256_maskload_ps(p, mask(n)); }
  static void store(float* p, Float v) { _mm256_storeu_ps(p, v); }
  static void store_first(float* p, Float v, int n) { _mm256_maskstore_ps(p, mask(n), v); }
  static Float keep_first(Float v, int n) { return _mm256_and_ps(v, _mm256_castsi256_ps(mask(n))); }
  static Float set(float v) { return _mm256_set1_ps(v); }
  static Float add(Float a, Float b) { return _mm256_add_ps(a, b); }
  static Float sub(Float a, Float b) { return _mm256_sub_ps(a, b); }
  static Float mul(Float a, Float b) { return _mm256_mul_ps(a, b); }
  static Float div(Float a, Float b) { return _mm256_div_ps(a, b); }
  static Float fma(Float a, Float b, Float c) { return _mm256_fmadd_ps(a, b, c); }
  static Float max(Float a, Float b) { return _mm256_max_ps(a, b); }
  static Float min(Float a, Float b) { return _mm256_min_ps(a, b); }
  static float sum(Float v) {
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
  }
  static float max_lane(Float v) {
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
  }
  static Float times_power_of_two(Float x, Float n) {
    const Int power = _mm256_cvtps_epi32(n), first = _mm256_srai_epi32(power, 1);
    return mul(mul(x, power_of_two(first)), power_of_two(_mm256_sub_epi32(power, first)));
  }
  static Float power_of_two(Int n) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
  }

  static Float load_half(const std::uint16_t* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static Float load_half_first(const std::uint16_t* p, int n) {
    std::uint16_t lanes[kWidth] = {};
    std::memcpy(lanes, p, static_cast<std::size_t>(n) * sizeof *p);
    return load_half(lanes);
  }
  static void store_half(std::uint16_t* p, Float v) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
  }
  static void store_half_first(std::uint16_t* p, Float v, int n) {
    std::uint16_t lanes[kWidth];
    store_half(lanes, v);
    std::memcpy(p, lanes, static_cast<std::size_t>(n) * sizeof *p);
  }
};

}  // namespace
}  // namespace millrace::kernels
