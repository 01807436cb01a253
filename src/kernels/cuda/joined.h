// The contract of launches that hold more than matvec() and matvec_experts() do, for few rows. Rules as in
// cuda_kernels.h.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/cuda_kernels.h"

namespace millrace::kernels::cuda {

constexpr int kMostMatvecProducts = 4;

/// matvec() of three products that are stored, and one more of the same dtype.
cudaError_t matvec_joined(const MatmulCall& call, const Product& fourth, cudaStream_t stream);

/// A matrix beside those of the experts, with their shape and dtypes, that every row goes through.
struct SharedMatrix {
  const std::byte* const* weight = nullptr;
  const std::byte* const* up = nullptr;  // gated
  std::int32_t places = 0;               // entries of a row, the last of them this matrix's
};
/// matvec_experts() without biases, and with a shared matrix: a row has one entry more than it has chosen experts, so
/// that call.entries is rows * places where call.chosen is [rows, places - 1].
cudaError_t matvec_experts_joined(const ExpertCall& call, const SharedMatrix& shared, cudaStream_t stream);

}  // namespace millrace::kernels::cuda
