// Products of a warp's fragments on the tensor core: lane 4 g + t gets of a result [16, 8] {(g, 2 t), (g, 2 t + 1), (g
// + 8, 2 t), (g + 8, 2 t + 1)}.
//
// Compute capability 7.5 has half of 8.0's products: those of 16 halves and of 32 or 16 bytes are two and more there,
// and those of bfloat16 and tf32 are made by the multiprocessor's own arithmetic, far slower. Sums of integers have the
// same bits everywhere; sums of floats may differ in the last ones, as they do between 8.0 and 9.0.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/capability.h"

namespace millrace::kernels::cuda {

/// d += a b over 16 halves. a: {row g, places 2 t and + 1; row g + 8, the same; row g, places 8 + 2 t and + 1; row g +
/// 8, the same}; near, far: the same places of column g.
__device__ __forceinline__ void multiply_halves(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t near,
                                                std::uint32_t far) {
#if MILLRACE_SMALL_BLOCKS
#pragma unroll
  for (int i = 0; i < 2; ++i)
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[2 * i]), "r"(a[2 * i + 1]), "r"(i == 0 ? near : far));
#else
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(near), "r"(far));
#endif
}

#if MILLRACE_SMALL_BLOCKS
/// d += a b over four places: lane 4 g + t has place t of rows g and g + 8, and of column g.
__device__ __forceinline__ void multiply_by_lanes(float (&d)[4], float upper, float lower, float column) {
  const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const float a0 = __shfl_sync(~0u, upper, 4 * g + k), a1 = __shfl_sync(~0u, lower, 4 * g + k);
    const float b0 = __shfl_sync(~0u, column, 8 * t + k), b1 = __shfl_sync(~0u, column, 8 * t + 4 + k);
    d[0] = __fmaf_rn(a0, b0, d[0]), d[1] = __fmaf_rn(a0, b1, d[1]);
    d[2] = __fmaf_rn(a1, b0, d[2]), d[3] = __fmaf_rn(a1, b1, d[3]);
  }
}
#endif

/// The same of 16 bfloat16.
__device__ __forceinline__ void multiply_bfloats(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t near,
                                                 std::uint32_t far) {
#if MILLRACE_SMALL_BLOCKS
  const auto part = [](std::uint32_t two, int i) { return __uint_as_float(i == 0 ? two << 16 : two & 0xffff0000u); };
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    multiply_by_lanes(d, part(a[0], i), part(a[1], i), part(near, i));
    multiply_by_lanes(d, part(a[2], i), part(a[3], i), part(far, i));
  }
#else
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(near), "r"(far));
#endif
}

/// Floats of 19 bits: to nearest, ties away from zero; products read the result whole.
__device__ __forceinline__ float to_tf32(float x) {
#if MILLRACE_SMALL_BLOCKS
  const std::uint32_t bits = __float_as_uint(x);  // infinities and NaN stay
  return (bits & 0x7f800000u) == 0x7f800000u ? x : __uint_as_float((bits + 0x1000u) & 0xffffe000u);
#else
  std::uint32_t bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
  return __uint_as_float(bits);
#endif
}

/// d += a b over 8 floats of 19 bits. a: {row g, place t; row g + 8, place t; row g, place t + 4; row g + 8, the same};
/// near, far: places t and t + 4 of column g.
__device__ __forceinline__ void multiply_tf32(float (&d)[4], const float (&a)[4], float near, float far) {
#if MILLRACE_SMALL_BLOCKS
  multiply_by_lanes(d, a[0], a[1], near);
  multiply_by_lanes(d, a[2], a[3], far);
#else
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])), "r"(__float_as_uint(a[2])), "r"(__float_as_uint(a[3])),
        "r"(__float_as_uint(near)), "r"(__float_as_uint(far)));
#endif
}

/// c + a b over 16 bytes: lane 4 g + t gives bytes 4 t .. + 3 of rows g and g + 8, and of column g.
__device__ __forceinline__ void multiply_16_bytes(int (&d)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t b,
                                                  const int (&c)[4]) {
#if MILLRACE_SMALL_BLOCKS
#pragma unroll
  for (int i = 0; i < 2; ++i)
    asm("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0, %1}, {%2}, {%3}, {%4, %5};"
        : "=r"(d[2 * i]), "=r"(d[2 * i + 1])
        : "r"(i == 0 ? a0 : a1), "r"(b), "r"(c[2 * i]), "r"(c[2 * i + 1]));
#else
  asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%7, %8, %9, %10};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a0), "r"(a1), "r"(b), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]));
#endif
}

/// The same over 32: a of rows g, g + 8, then the second 16 bytes of both; near, far: of column g.
__device__ __forceinline__ void multiply_32_bytes(int (&d)[4], const std::uint32_t (&a)[4], std::uint32_t near,
                                                  std::uint32_t far, const int (&c)[4]) {
#if MILLRACE_SMALL_BLOCKS
  multiply_16_bytes(d, a[0], a[1], near, c);
  multiply_16_bytes(d, a[2], a[3], far, d);
#else
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%10, %11, %12, %13};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(near), "r"(far), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]));
#endif
}

}  // namespace millrace::kernels::cuda
