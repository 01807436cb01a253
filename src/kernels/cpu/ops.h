// The ops other than products, one set an instruction set; table.cpp joins them with matmul.h's.
#pragma once

#include "kernels/kernels.h"

namespace millrace::kernels {

/// Everything of Table but its products (quantize_q8, matmul, matmul_workspace_bytes stay null).
Table plain_ops();
#if defined(__x86_64__)
Table avx2_ops();
Table avx512_ops();
#endif

}  // namespace millrace::kernels
