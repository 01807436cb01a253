// Products with AVX2, FMA and F16C: eight weight rows a panel. Without a byte dot product of 32 bits, pairs of byte
// products are summed in int16: several of them where the weights are small enough never to saturate, and for 8-bit
// weights |w| times x with w's sign, whose pairs just fit (2 * 128 * 127 < 32768). With AVX-VNNI (isa_avx2.h) there is
// one.
#pragma once

#include <immintrin.h>

#include "kernels/cpu/isa_avx2.h"
#include "kernels/cpu/matmul.h"
#include "kernels/cpu/matmul_few.h"
#include "kernels/cpu/matmul_floats.h"
#include "kernels/cpu/matmul_panel.h"
#include "kernels/cpu/matmul_segments.h"
#include "kernels/cpu/segments_blocks.h"

namespace millrace::kernels::MR_AVX2 {
namespace {

struct V256 {
  using I = __m256i;
  using F = __m256;
  static constexpr int kRows = 8, kBytes = 32, kRegisters = 16;
  static constexpr int kTile = 4, kFew = 4;
  static constexpr int kFloatRows = 2;
#ifdef __AVXVNNI__
  static constexpr bool kSigned = false;
#else
  static constexpr bool kSigned = true;
#endif
  static constexpr int block_bytes(panel::Kind kind) { return (8 + panel::scale_count(kind)) * kBytes; }

  static I load(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
  static void store(void* p, I v) { _mm256_storeu_si256(static_cast<__m256i*>(p), v); }
  static F load_float(const void* p) { return _mm256_loadu_ps(static_cast<const float*>(p)); }
  static void store_float(void* p, F v) { _mm256_storeu_ps(static_cast<float*>(p), v); }
  static void store_partial(float* p, F v, int count) {
    if (count == kRows) return store_float(p, v);
    const I lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    _mm256_maskstore_ps(p, _mm256_cmpgt_epi32(set1(count), lane), v);
  }
  static I broadcast(const void* p) {
    std::int32_t value;
    std::memcpy(&value, p, sizeof value);
    return _mm256_set1_epi32(value);
  }
  static F broadcast_float(const void* p) { return _mm256_broadcast_ss(static_cast<const float*>(p)); }
  static I set1(int value) { return _mm256_set1_epi32(value); }
  static F set1_float(float value) { return _mm256_set1_ps(value); }
  static I and_(I a, I b) { return _mm256_and_si256(a, b); }
  static I or_(I a, I b) { return _mm256_or_si256(a, b); }
  static I xor_(I a, I b) { return _mm256_xor_si256(a, b); }
  static I add(I a, I b) { return _mm256_add_epi32(a, b); }
  static I add_bytes(I a, I b) { return _mm256_add_epi8(a, b); }
  static I mul16(I a, I b) { return _mm256_mullo_epi16(a, b); }
  static I mul32(I a, I b) { return _mm256_mullo_epi32(a, b); }
  template <int n>
  static I srl(I v) {
    return _mm256_srli_epi32(v, n);
  }
  template <int n>
  static I sll(I v) {
    return _mm256_slli_epi32(v, n);
  }
  template <int n>
  static I sra(I v) {
    return _mm256_srai_epi32(v, n);
  }
  static I srl_by(I v, int n) { return _mm256_srl_epi32(v, _mm_cvtsi32_si128(n)); }
  /// Bytes 0..15 to table entries.
  static I lookup(const std::int8_t* table, I indices) {
    const __m128i entries = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(entries), indices);
  }
  static F to_float(I v) { return _mm256_cvtepi32_ps(v); }
  static F as_float(I v) { return _mm256_castsi256_ps(v); }
  static F halves(const void* p) { return _mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(p))); }
  /// The float16 in the low half of every lane.
  static F half(I v) {
    const I low = and_(v, set1(0xffff));
    return _mm256_cvtph_ps(_mm_packus_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1)));
  }
  static F bfloats(const void* p) {
    const I wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
  }
  static F mul(F a, F b) { return _mm256_mul_ps(a, b); }
  static F sub(F a, F b) { return _mm256_sub_ps(a, b); }
  static F add_float(F a, F b) { return _mm256_add_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  static F negate(F v) { return _mm256_xor_ps(v, _mm256_set1_ps(-0.0F)); }

  /// Four bytes a lane from 16 bytes of each row: out[j] lane r = bytes 4j..4j+3 of row r.
  static void columns(const std::byte* const* rows, std::int64_t offset, I out[4]) {
    const auto row = [=](int r) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows[r] + offset)); };
    I v[4];
#pragma GCC unroll 4
    for (int e = 0; e < 4; ++e) v[e] = _mm256_inserti128_si256(_mm256_castsi128_si256(row(e)), row(e + 4), 1);
    const I a = _mm256_unpacklo_epi32(v[0], v[1]), b = _mm256_unpackhi_epi32(v[0], v[1]);
    const I c = _mm256_unpacklo_epi32(v[2], v[3]), d = _mm256_unpackhi_epi32(v[2], v[3]);
    out[0] = _mm256_unpacklo_epi64(a, c);
    out[1] = _mm256_unpackhi_epi64(a, c);
    out[2] = _mm256_unpacklo_epi64(b, d);
    out[3] = _mm256_unpackhi_epi64(b, d);
  }

  /// sum[r] += vectors j0..j1-1 of the panel's block times row(r, j), for R rows of activations. `max16` pair sums fit
  /// into int16; 0: the panel's bytes are signed.
  template <int R, int j0, int j1, int max16, class X>
  static inline __attribute__((always_inline)) void dot(I sum[R], const std::uint8_t* w, const X& row) {
#ifdef __AVXVNNI__
#pragma GCC unroll 16
    for (int j = j0; j < j1; ++j) {
      const I weights = load(w + j * kBytes);
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
        static_assert(max16 != 0);
        sum[r] = _mm256_dpbusd_avx_epi32(sum[r], weights, row(r, j));
      }
    }
#else
    constexpr int kStep = max16 == 0 ? 1 : max16 < j1 - j0 ? max16 : j1 - j0;
    const I ones = _mm256_set1_epi16(1);
#pragma GCC unroll 16
    for (int j = j0; j < j1; j += kStep) {
      I pairs[R];
#pragma GCC unroll 16
      for (int i = j; i < j + kStep; ++i) {
        const I weights = load(w + i * kBytes);
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
          const I x = row(r, i);
          const I product = max16 == 0 ? _mm256_maddubs_epi16(_mm256_abs_epi8(weights), _mm256_sign_epi8(x, weights))
                                       : _mm256_maddubs_epi16(weights, x);
          pairs[r] = i == j ? product : _mm256_add_epi16(pairs[r], product);
        }
      }
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) sum[r] = _mm256_add_epi32(sum[r], _mm256_madd_epi16(pairs[r], ones));
    }
#endif
  }

  /// The contract's tree; eight lanes a vector.
  static float add_32_lanes(const F v[4]) {
    const __m256 s8 = _mm256_add_ps(_mm256_add_ps(v[0], v[2]), _mm256_add_ps(v[1], v[3]));
    const __m128 s4 = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
    const __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
    return _mm_cvtss_f32(_mm_add_ss(s2, _mm_movehdup_ps(s2)));
  }
  /// The same of lanes[0] and lanes[step], next to each other.
  static void add_lanes_of_rows(const F (*lanes)[4], int step, float* out) {
    F s8[kFloatRows];
#pragma GCC unroll 2
    for (int n = 0; n < kFloatRows; ++n) {
      const F* const v = lanes[n * step];
      s8[n] = _mm256_add_ps(_mm256_add_ps(v[0], v[2]), _mm256_add_ps(v[1], v[3]));
    }
    const F s4 = _mm256_add_ps(_mm256_permute2f128_ps(s8[0], s8[1], 0x20), _mm256_permute2f128_ps(s8[0], s8[1], 0x31));
    const F s2 = _mm256_add_ps(s4, _mm256_permute_ps(s4, 0x4e));
    const F s1 = _mm256_add_ps(s2, _mm256_permute_ps(s2, 0xb1));
    out[0] = _mm256_cvtss_f32(s1);
    out[1] = _mm_cvtss_f32(_mm256_extractf128_ps(s1, 1));
  }
};

}  // namespace

void matmul(const MatmulArgs& few_args) {
  if (few_args.x_rows <= kFewRows && matmul_few(few_args)) return;
  std::memset(few_args.workspace, 0, segments::kArrangedBytes);  // what lies behind it is about to be written over
  MatmulArgs args = few_args;
  args.workspace += segments::kArrangedBytes;
  switch (args.dtype) {
    case DType::f32:
      return floats::product<V256, floats::F32<V256>>(args);
    case DType::f16:
      return floats::product<V256, floats::F16<V256>>(args);
    case DType::bf16:
      return floats::product<V256, floats::BF16<V256>>(args);
    default:
      return panel::quantized<V256>(args);
  }
}

std::int64_t matmul_workspace_bytes(std::int64_t cols) {
  const std::int64_t quantized = panel::workspace_bytes<V256>(cols), floating = floats::workspace_bytes<V256>(cols);
  const std::int64_t many = segments::kArrangedBytes + (quantized > floating ? quantized : floating);
  const std::int64_t few = matmul_few_workspace_bytes(cols);
  return many > few ? many : few;
}

void matmul_segments(const MatmulArgs& args) {
  if (segments_blocks(args)) return;
  segments::multiply<V256>(args);
}

std::int64_t matmul_segments_workspace_bytes(std::int64_t cols) {
  const std::int64_t many = segments::workspace_bytes<V256>(cols), few = segments_blocks_workspace_bytes(cols);
  return many > few ? many : few;
}

}  // namespace millrace::kernels::MR_AVX2
