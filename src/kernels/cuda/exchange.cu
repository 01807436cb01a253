#include <algorithm>

#include "kernels/claimed.h"
#include "kernels/cuda/launchers.h"
#include "kernels/cuda/pdl.cuh"

namespace millrace::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kFloatsPerBlock = 4 * kThreads;  // a wide access a thread keeps the link busy

int blocks_for(std::int64_t floats) {
  constexpr std::int64_t kMost = 64;
  return static_cast<int>(std::clamp((floats + kFloatsPerBlock - 1) / kFloatsPerBlock, std::int64_t{1}, kMost));
}

/// All blocks have written what they hand out: the last one says so.
__device__ void tell(std::uint32_t* flag, std::uint32_t number, std::uint32_t* arrived) {
  __threadfence_system();
  __syncthreads();
  if (threadIdx.x != 0) return;
  // The block that comes last has seen all others' fences.
  if (atomicAdd(arrived, 1u) + 1 < gridDim.x) return;
  *arrived = 0;
  __threadfence_system();
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(flag), "r"(number) : "memory");
}

/// Until *flag has reached `number`.
__device__ void await(const std::uint32_t* flag, std::uint32_t number, std::uint32_t* seen) {
  if (threadIdx.x == 0) {
    // One block asks across the link, which is busy with weights; the others ask that block.
    const bool asks = blockIdx.x == 0;
    std::uint32_t found = 0;
    while (true) {
      if (asks)
        asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(found) : "l"(flag) : "memory");
      else
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(found) : "l"(seen) : "memory");
      if (static_cast<std::int32_t>(found - number) >= 0) break;
      __nanosleep(50);
    }
    if (asks) asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(seen), "r"(number) : "memory");
    __threadfence_system();
  }
  __syncthreads();
}

__device__ void copy_floats(const float* from, std::int64_t count, float* to) {
  const std::int64_t first = std::int64_t{blockIdx.x} * kThreads + threadIdx.x,
                     step = std::int64_t{gridDim.x} * kThreads;
  const std::int64_t wide = count / 4;
  for (std::int64_t i = first; i < wide; i += step)
    reinterpret_cast<float4*>(to)[i] = reinterpret_cast<const float4*>(from)[i];
  for (std::int64_t i = wide * 4 + first; i < count; i += step) to[i] = from[i];
}

__global__ void __launch_bounds__(kThreads)
    hand_out_kernel(const float* from, std::int64_t count, float* to, std::uint32_t* flag, std::uint32_t number,
                    std::uint32_t* arrived) {
  wait_for_predecessor();
  allow_successor();
  copy_floats(from, count, to);
  tell(flag, number, arrived);
}

__global__ void __launch_bounds__(kThreads) hand_out_experts_kernel(const __grid_constant__ HandOutExpertsCall call) {
  wait_for_predecessor();
  allow_successor();
  copy_floats(call.from, call.count, call.to);
  for (int i = static_cast<int>(blockIdx.x * kThreads + threadIdx.x); i < call.entries;
       i += static_cast<int>(gridDim.x) * kThreads)
    call.to_chosen[i] = call.chosen[i];
  tell(call.flag, call.number, call.arrived);
}

__global__ void __launch_bounds__(kThreads) take_in_kernel(const __grid_constant__ TakeInCall call) {
  wait_for_predecessor();
  allow_successor();
  await(call.flag, call.number, call.seen);
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

/// An entry's columns, kFloatsPerBlock of them, are a block's at a time. One thread asks for the place: reads of one
/// line of the host's memory come one after the other, and those of all warps took a hundred microseconds.
__global__ void __launch_bounds__(kThreads) take_in_experts_kernel(const __grid_constant__ TakeInExpertsCall call) {
  __shared__ std::int32_t shared_place;
  wait_for_predecessor();
  allow_successor();
  await(call.flag, call.number, call.seen);
  const int pieces = (call.cols + kFloatsPerBlock - 1) / kFloatsPerBlock;
  for (int p = static_cast<int>(blockIdx.x); p < call.entries * pieces; p += static_cast<int>(gridDim.x)) {
    const int entry = p / pieces;
    const int col = (p - entry * pieces) * kFloatsPerBlock + static_cast<int>(threadIdx.x) * 4;
    if (threadIdx.x == 0) shared_place = __ldcv(call.place + entry);
    __syncthreads();
    const std::int64_t place = shared_place;
    __syncthreads();
    if (place < 0 || col >= call.cols) continue;
    const float4 came = __ldcv(reinterpret_cast<const float4*>(call.from + place * call.from_stride + col));
    *reinterpret_cast<float4*>(call.to + std::int64_t{entry} * call.cols + col) = came;
  }
}

constexpr int kWarp = 32;

/// One block; its first warp decides, 32 experts at a time.
__global__ void __launch_bounds__(kThreads) claim_experts_kernel(const __grid_constant__ ClaimExpertsCall call) {
  __shared__ bool chosen[kMostClaimedExperts], crosses[kMostClaimedExperts];
  allow_successor();
  wait_for_predecessor();
  for (int e = static_cast<int>(threadIdx.x); e < call.experts; e += kThreads) chosen[e] = crosses[e] = false;
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < call.entries; i += kThreads) chosen[call.chosen[i]] = true;
  __syncthreads();
  if (threadIdx.x < kWarp) {
    const int lane = static_cast<int>(threadIdx.x);
    const auto missed = [&](int e) {
      return e < call.experts && chosen[e] && call.here[e * call.parts] == call.absent;
    };
    int all = 0;
    for (int base = 0; base < call.experts; base += kWarp) all += __popc(__ballot_sync(~0u, missed(base + lane)));
    const int most = claimed_of(all, call.permille);
    int taken = 0;
    for (int base = 0; base < call.experts && taken < most; base += kWarp) {
      const int e = base + lane;
      const bool may = missed(e) && call.in_ram[e * call.parts] != nullptr;
      const unsigned who = __ballot_sync(~0u, may);
      if (may && taken + __popc(who & ((1u << lane) - 1)) < most) crosses[e] = true;
      taken += __popc(who);
    }
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < call.experts * call.parts; i += kThreads)
    call.table[i] = crosses[i / call.parts] ? call.in_ram[i] : call.here[i];
}

}  // namespace

cudaError_t claim_experts(const ClaimExpertsCall& call, cudaStream_t stream) {
  if (call.experts > kMostClaimedExperts) return cudaErrorInvalidValue;
  return launch(claim_experts_kernel, dim3(1), dim3(kThreads), 0, stream, call);
}

cudaError_t hand_out(const float* from, std::int64_t count, float* to, std::uint32_t* flag, std::uint32_t number,
                     std::uint32_t* arrived, cudaStream_t stream) {
  return launch(hand_out_kernel, dim3(static_cast<unsigned>(blocks_for(count))), dim3(kThreads), 0, stream, from, count,
                to, flag, number, arrived);
}

cudaError_t hand_out_experts(const HandOutExpertsCall& call, cudaStream_t stream) {
  return launch(hand_out_experts_kernel, dim3(static_cast<unsigned>(blocks_for(call.count))), dim3(kThreads), 0, stream,
                call);
}

cudaError_t take_in(const TakeInCall& call, cudaStream_t stream) {
  std::int64_t floats = 0;
  for (int p = 0; p < call.count; ++p) floats += std::int64_t{call.rows} * call.parts[p].cols;
  return launch(take_in_kernel, dim3(static_cast<unsigned>(blocks_for(floats))), dim3(kThreads), 0, stream, call);
}

cudaError_t take_in_experts(const TakeInExpertsCall& call, cudaStream_t stream) {
  return launch(take_in_experts_kernel, dim3(static_cast<unsigned>(blocks_for(std::int64_t{call.entries} * call.cols))),
                dim3(kThreads), 0, stream, call);
}

}  // namespace millrace::kernels::cuda
