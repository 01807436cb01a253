// Products with weights on the CPU, one implementation an instruction set; cpu/table.cpp puts them into the tables.
// The contract, bit for bit, is NUMERICS in kernels/kernels.h. Thread-safety: pure functions; nothing allocates; calls
// on disjoint weight rows may run at once, each with its own workspace.
#pragma once

#include <cstdint>

#include "kernels/kernels.h"

// Declares what every instruction set has; avx_vnni is AVX2 with AVX-VNNI.
//   quantize_q8             x [rows, cols] (x_stride floats between rows) -> out. In each block of 32: amax = the
//   largest
//                           |x|, d = amax / 127, q = x * (127 / amax) rounded to nearest even. A block with amax below
//                           2^-120 is zero; one with an infinity or NaN has d = NaN and q = 0, so that it shows in
//                           every product. REQUIRES: cols % 32 == 0.
//   matmul                  see MatmulArgs. REQUIRES: a computable dtype.
//   matmul_workspace_bytes  what MatmulArgs::workspace must hold for rows of `cols`, whatever the dtype and x_rows.
//   matmul_segments         the same products, of the other class; and what its workspace must hold.
#define MILLRACE_QUANTIZE_DECLARATION \
  void quantize_q8(const float* x, std::int64_t x_stride, std::int64_t rows, std::int64_t cols, Q8Rows out);
#define MILLRACE_MATMUL_DECLARATIONS                      \
  void matmul(const MatmulArgs& args);                    \
  std::int64_t matmul_workspace_bytes(std::int64_t cols); \
  void matmul_segments(const MatmulArgs& args);           \
  std::int64_t matmul_segments_workspace_bytes(std::int64_t cols);

namespace millrace::kernels::plain {
MILLRACE_QUANTIZE_DECLARATION
MILLRACE_MATMUL_DECLARATIONS
}  // namespace millrace::kernels::plain
namespace millrace::kernels::avx2 {
MILLRACE_QUANTIZE_DECLARATION
MILLRACE_MATMUL_DECLARATIONS
}  // namespace millrace::kernels::avx2
namespace millrace::kernels::avx_vnni {  // quantizes as avx2 does
MILLRACE_MATMUL_DECLARATIONS
}
namespace millrace::kernels::avx512 {
MILLRACE_QUANTIZE_DECLARATION
MILLRACE_MATMUL_DECLARATIONS
}  // namespace millrace::kernels::avx512

#undef MILLRACE_MATMUL_DECLARATIONS
#undef MILLRACE_QUANTIZE_DECLARATION
