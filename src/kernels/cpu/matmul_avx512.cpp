// Products with AVX-512 (F, BW, VL, DQ, VNNI): sixteen weight rows a panel, four int8 products a lane and instruction.
// GCC 12 calls the undefined operands inside its own AVX-512 headers uninitialized (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wuninitialized"
#ifndef __clang__
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>

#include "kernels/cpu/matmul.h"
#include "kernels/cpu/matmul_few.h"
#include "kernels/cpu/matmul_floats.h"
#include "kernels/cpu/matmul_panel.h"
#include "kernels/cpu/matmul_segments.h"
#include "kernels/cpu/segments_blocks.h"

namespace millrace::kernels::avx512 {
namespace {

struct V512 {
  using I = __m512i;
  using F = __m512;
  static constexpr int kRows = 16, kBytes = 64, kRegisters = 32;
  static constexpr int kTile = 12, kFew = 8;
  static constexpr int kFloatRows = 4;
  static constexpr bool kSigned = false;
  static constexpr int block_bytes(panel::Kind kind) { return (8 + panel::scale_count(kind)) * kBytes; }

  static I load(const void* p) { return _mm512_loadu_si512(p); }
  static void store(void* p, I v) { _mm512_storeu_si512(p, v); }
  static F load_float(const void* p) { return _mm512_loadu_ps(p); }
  static void store_float(void* p, F v) { _mm512_storeu_ps(p, v); }
  static void store_partial(float* p, F v, int count) {
    _mm512_mask_storeu_ps(p, static_cast<__mmask16>((1U << count) - 1), v);
  }
  static I broadcast(const void* p) {
    std::int32_t value;
    std::memcpy(&value, p, sizeof value);
    return _mm512_set1_epi32(value);
  }
  static F broadcast_float(const void* p) {
    float value;
    std::memcpy(&value, p, sizeof value);
    return _mm512_set1_ps(value);
  }
  static I set1(int value) { return _mm512_set1_epi32(value); }
  static F set1_float(float value) { return _mm512_set1_ps(value); }
  static I and_(I a, I b) { return _mm512_and_si512(a, b); }
  static I or_(I a, I b) { return _mm512_or_si512(a, b); }
  static I xor_(I a, I b) { return _mm512_xor_si512(a, b); }
  static I add(I a, I b) { return _mm512_add_epi32(a, b); }
  static I add_bytes(I a, I b) { return _mm512_add_epi8(a, b); }
  static I mul16(I a, I b) { return _mm512_mullo_epi16(a, b); }
  static I mul32(I a, I b) { return _mm512_mullo_epi32(a, b); }
  template <int n>
  static I srl(I v) {
    return _mm512_srli_epi32(v, n);
  }
  template <int n>
  static I sll(I v) {
    return _mm512_slli_epi32(v, n);
  }
  template <int n>
  static I sra(I v) {
    return _mm512_srai_epi32(v, n);
  }
  static I srl_by(I v, int n) { return _mm512_srl_epi32(v, _mm_cvtsi32_si128(n)); }
  /// Bytes 0..15 to table entries.
  static I lookup(const std::int8_t* table, I indices) {
    const __m128i entries = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(entries), indices);
  }
  static F to_float(I v) { return _mm512_cvtepi32_ps(v); }
  static F as_float(I v) { return _mm512_castsi512_ps(v); }
  static F halves(const void* p) { return _mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p))); }
  /// The float16 in the low half of every lane.
  static F half(I v) { return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(v)); }
  static F bfloats(const void* p) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
  }
  static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static F add_float(F a, F b) { return _mm512_add_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static F negate(F v) { return _mm512_xor_ps(v, _mm512_set1_ps(-0.0F)); }

  /// Four bytes a lane from 16 bytes of each row: out[j] lane r = bytes 4j..4j+3 of row r.
  static void columns(const std::byte* const* rows, std::int64_t offset, I out[4]) {
    const auto row = [=](int r) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows[r] + offset)); };
    I v[4];
#pragma GCC unroll 4
    for (int e = 0; e < 4; ++e) {
      v[e] = _mm512_inserti32x4(_mm512_castsi128_si512(row(e)), row(e + 4), 1);
      v[e] = _mm512_inserti32x4(_mm512_inserti32x4(v[e], row(e + 8), 2), row(e + 12), 3);
    }
    const I a = _mm512_unpacklo_epi32(v[0], v[1]), b = _mm512_unpackhi_epi32(v[0], v[1]);
    const I c = _mm512_unpacklo_epi32(v[2], v[3]), d = _mm512_unpackhi_epi32(v[2], v[3]);
    out[0] = _mm512_unpacklo_epi64(a, c);
    out[1] = _mm512_unpackhi_epi64(a, c);
    out[2] = _mm512_unpacklo_epi64(b, d);
    out[3] = _mm512_unpackhi_epi64(b, d);
  }

  /// sum[r] += vectors j0..j1-1 of the panel's block (unsigned bytes) times x(r, j), for R rows of activations.
  template <int R, int j0, int j1, int, class X>
  static inline __attribute__((always_inline)) void dot(I sum[R], const std::uint8_t* w, const X& x) {
#pragma GCC unroll 16
    for (int j = j0; j < j1; ++j) {
      const I weights = load(w + j * kBytes);
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) sum[r] = _mm512_dpbusd_epi32(sum[r], weights, x(r, j));
    }
  }

  /// The contract's tree; lanes 0..15, 16..31.
  static float add_32_lanes(const F v[2]) {
    const __m512 s16 = _mm512_add_ps(v[0], v[1]);
    const __m256 s8 = _mm256_add_ps(_mm512_castps512_ps256(s16), _mm512_extractf32x8_ps(s16, 1));
    const __m128 s4 = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
    const __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
    return _mm_cvtss_f32(_mm_add_ss(s2, _mm_movehdup_ps(s2)));
  }
  /// The same of lanes[0], [step], [2 step] and [3 step], next to each other.
  static void add_lanes_of_rows(const F (*lanes)[2], int step, float* out) {
    F s16[kFloatRows];
#pragma GCC unroll 4
    for (int n = 0; n < kFloatRows; ++n) s16[n] = _mm512_add_ps(lanes[n * step][0], lanes[n * step][1]);
    const auto halves_of = [](F a, F b) {  // [a's halves added | b's]
      return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
    };
    const F a = halves_of(s16[0], s16[1]), b = halves_of(s16[2], s16[3]);
    const F s4 = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
    const F s2 = _mm512_add_ps(s4, _mm512_permute_ps(s4, 0x4e));
    const F s1 = _mm512_add_ps(s2, _mm512_permute_ps(s2, 0xb1));
    const I firsts = _mm512_castsi128_si512(_mm_setr_epi32(0, 4, 8, 12));
    _mm_storeu_ps(out, _mm512_castps512_ps128(_mm512_permutexvar_ps(firsts, s1)));
  }
};

}  // namespace

void matmul(const MatmulArgs& few_args) {
  if (few_args.x_rows <= kFewRows && matmul_few(few_args)) return;
  *reinterpret_cast<Arranged*>(few_args.workspace) = {};  // what lies behind it is about to be written over
  MatmulArgs args = few_args;
  args.workspace += kArrangedBytes;
  switch (args.dtype) {
    case DType::f32:
      return floats::product<V512, floats::F32<V512>>(args);
    case DType::f16:
      return floats::product<V512, floats::F16<V512>>(args);
    case DType::bf16:
      return floats::product<V512, floats::BF16<V512>>(args);
    default:
      return panel::quantized<V512>(args);
  }
}

std::int64_t matmul_workspace_bytes(std::int64_t cols) {
  std::int64_t bytes = panel::workspace_bytes<V512>(cols) + kArrangedBytes;
  for (const std::int64_t other :
       {floats::workspace_bytes<V512>(cols) + kArrangedBytes, matmul_few_workspace_bytes(cols)}) {
    bytes = bytes > other ? bytes : other;
  }
  return bytes;
}

void matmul_segments(const MatmulArgs& args) {
  if (segments_blocks(args)) return;
  segments::multiply<V512>(args);
}

std::int64_t matmul_segments_workspace_bytes(std::int64_t cols) {
  const std::int64_t many = segments::workspace_bytes<V512>(cols), few = segments_blocks_workspace_bytes(cols);
  return many > few ? many : few;
}

}  // namespace millrace::kernels::avx512
