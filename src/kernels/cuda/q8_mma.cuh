// The int8 tensor core as attention over q8_0 uses it.
#pragma once

#include <cuda_runtime.h>

namespace millrace::kernels::cuda {

/// d += a b: sixteen rows, 32 terms, eight columns; for the whole warp. Lane 4 r + q gives terms 4 q .. + 3 and
/// 16 + 4 q .. + 3 of rows r and r + 8, as a: {row r near, row r + 8 near, row r far, row r + 8 far}, and those of
/// column r, as near and far. It gets columns 2 q and 2 q + 1 of row r in d[0] and d[1], of row r + 8 in d[2] and d[3].
__device__ __forceinline__ void q8_multiply(int (&d)[4], const unsigned (&a)[4], unsigned near, unsigned far) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(near), "r"(far));
}

}  // namespace millrace::kernels::cuda
