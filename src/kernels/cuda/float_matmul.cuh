// Products of many rows with float weights (F32, F16, BF16), which matmul() and matmul_experts() hand over.
#pragma once

#include "kernels/cuda/launchers.h"

namespace millrace::kernels::cuda {

/// REQUIRES: every product's dtype is a float one.
cudaError_t matmul_float(const MatmulCall& call, cudaStream_t stream);
/// REQUIRES: dtype and, for pairs, up_dtype are float ones.
cudaError_t matmul_experts_float(const ExpertCall& call, cudaStream_t stream);

}  // namespace millrace::kernels::cuda
