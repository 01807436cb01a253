// A number that orders as logits do.
#pragma once

#include <cuda_runtime.h>

namespace millrace::kernels::cuda {

/// NaN comes before everything; both zeros are one.
__device__ __forceinline__ unsigned order_of(float logit) {
  const unsigned bits = __float_as_uint(logit == 0 ? 0.0f : logit);
  return logit != logit ? 0u : bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

}  // namespace millrace::kernels::cuda
