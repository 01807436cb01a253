#include <algorithm>

#include "kernels/cuda/exchange.h"
#include "kernels/cuda/pdl.cuh"

namespace millrace::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kFloatsPerBlock = 4 * kThreads;  // a wide access a thread keeps the link busy

int blocks_for(std::int64_t floats) {
  constexpr std::int64_t kMost = 64;
  return static_cast<int>(std::clamp((floats + kFloatsPerBlock - 1) / kFloatsPerBlock, std::int64_t{1}, kMost));
}

__global__ void __launch_bounds__(kThreads)
    hand_out_kernel(const float* from, std::int64_t count, float* to, std::uint32_t* flag, std::uint32_t number,
                    std::uint32_t* arrived) {
  wait_for_predecessor();
  allow_successor();
  const std::int64_t first = std::int64_t{blockIdx.x} * kThreads + threadIdx.x,
                     step = std::int64_t{gridDim.x} * kThreads;
  const std::int64_t wide = count / 4;
  for (std::int64_t i = first; i < wide; i += step)
    reinterpret_cast<float4*>(to)[i] = reinterpret_cast<const float4*>(from)[i];
  for (std::int64_t i = wide * 4 + first; i < count; i += step) to[i] = from[i];
  __threadfence_system();
  __syncthreads();
  if (threadIdx.x != 0) return;
  // The block that comes last has seen all others' fences.
  if (atomicAdd(arrived, 1u) + 1 < gridDim.x) return;
  *arrived = 0;
  __threadfence_system();
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(flag), "r"(number) : "memory");
}

__global__ void __launch_bounds__(kThreads) take_in_kernel(const __grid_constant__ TakeInCall call) {
  wait_for_predecessor();
  allow_successor();
  if (threadIdx.x == 0) {
    // One block asks across the link, which is busy with weights; the others ask that block.
    const bool asks = blockIdx.x == 0;
    std::uint32_t found = 0;
    while (true) {
      if (asks)
        asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(found) : "l"(call.flag) : "memory");
      else
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(found) : "l"(call.seen) : "memory");
      if (static_cast<std::int32_t>(found - call.number) >= 0) break;
      __nanosleep(50);
    }
    if (asks) asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(call.seen), "r"(call.number) : "memory");
    __threadfence_system();
  }
  __syncthreads();
  const std::int64_t first = std::int64_t{blockIdx.x} * kThreads + threadIdx.x,
                     step = std::int64_t{gridDim.x} * kThreads;
  for (int p = 0; p < call.count; ++p) {
    const TakenIn& part = call.parts[p];
    const std::int64_t count = std::int64_t{call.rows} * part.cols;
    for (std::int64_t i = first; i < count; i += step) {
      const std::int64_t row = i / part.cols;
      float* to = part.to + row * part.to_stride + (i - row * part.cols);
      const float came = __ldcv(part.from + i);
      *to = call.add ? *to + came : came;
    }
  }
}

}  // namespace

cudaError_t hand_out(const float* from, std::int64_t count, float* to, std::uint32_t* flag, std::uint32_t number,
                     std::uint32_t* arrived, cudaStream_t stream) {
  return launch(hand_out_kernel, dim3(static_cast<unsigned>(blocks_for(count))), dim3(kThreads), 0, stream, from, count,
                to, flag, number, arrived);
}

cudaError_t take_in(const TakeInCall& call, cudaStream_t stream) {
  std::int64_t floats = 0;
  for (int p = 0; p < call.count; ++p) floats += std::int64_t{call.rows} * call.parts[p].cols;
  return launch(take_in_kernel, dim3(static_cast<unsigned>(blocks_for(floats))), dim3(kThreads), 0, stream, call);
}

}  // namespace millrace::kernels::cuda
