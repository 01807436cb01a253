// Activations to int8 inside a kernel: a block of 32 that neighbouring lanes of a warp hold in registers. The bits of
// the CPU's quantize_q8 (kernels/cpu/quantize_q8.cpp).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/launchers.h"

namespace millrace::kernels::cuda {

/// The i-th lane of an aligned group of 32 / N lanes holds elements N i .. N i + N - 1 of the block in v. q: the
/// block's first byte, scale: its Q8Scale. All lanes of the group call together. kStep 2: a group is every other lane.
template <int N, int kStep = 1>
__device__ __forceinline__ void quantize_block(const float (&v)[N], std::int8_t* q, Q8Scale* scale) {
  static_assert((N == 1 && kStep == 1) || N == 2 || N == 4 || (N == 8 && kStep == 1));
  static_assert(kStep == 1 || kStep == 2);
  constexpr int kGroup = 32 / N;
  constexpr unsigned kSpan = kGroup * kStep == 32 ? 0xffffffffu : (1u << (kGroup * kStep % 32)) - 1;
  const unsigned lane = threadIdx.x % 32, place = lane / kStep % kGroup;
  const unsigned mask = (kStep == 1 ? kSpan : kSpan & 0x55555555u) << (lane - place * kStep);
  // Magnitudes compare as integers do, and so NaN is the largest of all.
  unsigned amax_bits = 0;
#pragma unroll
  for (int i = 0; i < N; ++i) amax_bits = max(amax_bits, __float_as_uint(v[i]) & 0x7fffffffu);
#pragma unroll
  for (int step = kGroup / 2; step > 0; step /= 2)
    amax_bits = max(amax_bits, __shfl_xor_sync(mask, amax_bits, kStep * step));
  const float amax = __uint_as_float(amax_bits);
  const bool finite = amax_bits < 0x7f800000u;
  const float inverse = finite && amax >= 0x1p-120f ? 127.0f / amax : 0.0f;
  int value[N], sum = 0;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    // Adding 1.5 * 2^23 rounds to nearest even and leaves the integer in the low bits.
    const float shifted = (inverse == 0 ? 0.0f : v[i] * inverse) + 12582912.0f;
    value[i] = __float_as_int(shifted) - 0x4b400000;
    sum += value[i];
  }
#pragma unroll
  for (int step = kGroup / 4; step > 0; step /= 2) sum += __shfl_xor_sync(mask, sum, kStep * step);
  const int other = __shfl_xor_sync(mask, sum, kStep * kGroup / 2);  // of the other half of 16
  if constexpr (N == 8) {
    char4* const to = reinterpret_cast<char4*>(q) + 2 * place;
    to[0] = make_char4(value[0], value[1], value[2], value[3]);
    to[1] = make_char4(value[4], value[5], value[6], value[7]);
  } else if constexpr (N == 4) {
    reinterpret_cast<char4*>(q)[place] = make_char4(value[0], value[1], value[2], value[3]);
  } else if constexpr (N == 2) {
    reinterpret_cast<char2*>(q)[place] = make_char2(value[0], value[1]);
  } else {
    q[place] = static_cast<std::int8_t>(value[0]);
  }
  if (place == 0) {
    Q8Scale s;
    s.d = !finite ? __uint_as_float(0x7fc00000) : inverse == 0 ? 0.0f : amax / 127.0f;
    s.s = sum + other;
    s.ds = s.d * static_cast<float>(s.s);
    s.s16[0] = static_cast<std::int16_t>(sum);
    s.s16[1] = static_cast<std::int16_t>(other);
    *scale = s;
  }
}

}  // namespace millrace::kernels::cuda
