// softplus_f32 of kernels.h on the device.
#pragma once

#include "kernels/cuda/exp.cuh"

namespace millrace::kernels::cuda {

/// max(x, 0) + ln(1 + y), y = e^-|x|: the CPU's softplus_f32, operation for operation.
__device__ __forceinline__ float softplus(float x) {
  const double y = exp_f32(-fabsf(x)), z = y / (2 + y), square = z * z;
  constexpr int kTerms = 12;
  double sum = 0;
#pragma unroll
  for (int n = kTerms; n >= 0; --n) sum = sum * square + 1.0 / (2 * n + 1);
  return static_cast<float>((x > 0 ? x : 0) + 2 * z * sum);
}

}  // namespace millrace::kernels::cuda
