// The scales of NVFP4 on the device, as tensor/blocks.h has them.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "tensor/blocks.h"

namespace millrace::kernels::cuda {

/// Half of the UE4M3 number in the low byte of `bits`: ue4m3_half(), by way of float16.
__device__ __forceinline__ float ue4m3_scale(std::uint32_t bits) {
  const std::uint32_t seven = bits & 0x7f;
  return __half2float(__ushort_as_half(static_cast<unsigned short>(seven == 0x7f ? 0 : seven << 7))) * kUe4m3Unit;
}

}  // namespace millrace::kernels::cuda
