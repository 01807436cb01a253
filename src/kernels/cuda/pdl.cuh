// Programmatic dependent launch: a kernel's blocks may be placed while its predecessor in the stream still runs, which
// hides launch gaps. Rules for every kernel launched so: all threads call wait_for_predecessor() before they touch what
// an earlier kernel wrote or still reads, and in every block (a kernel that ends has then waited for all before it);
// allow_successor() may come at any time, best first of all. In code for less than compute capability 9.0 both do
// nothing and launches are plain. Thread-safety: pure but for the stream.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/capability.h"
#include "kernels/gpu/launches.h"

namespace millrace::kernels::cuda {

__device__ __forceinline__ void wait_for_predecessor() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ __forceinline__ void allow_successor() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/// By one thread, once it has waited: what the kernels before wrote may be read by who sees *ready.
__device__ __forceinline__ void tell_ready(std::int32_t* ready) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 700
  asm volatile("st.release.gpu.s32 [%0], 1;" ::"l"(ready) : "memory");
#endif
}
/// In place of wait_for_predecessor(), by all threads of a warp, where the kernel before tells when it has waited: what
/// that one writes comes later. REQUIRES: its blocks all run when this one is launched, as allow_successor() has it.
__device__ __forceinline__ void wait_until_ready(const std::int32_t* ready) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  if (threadIdx.x % 32 == 0) {
    std::int32_t seen = 0;
    for (;;) {
      asm volatile("ld.acquire.gpu.s32 %0, [%1];" : "=r"(seen) : "l"(ready) : "memory");
      if (seen != 0) break;
      __nanosleep(32);
    }
  }
  __syncwarp();
#endif
}

/// True if the current device overlaps dependent launches, and has clusters, with the code that it runs.
inline bool overlaps_launches() { return compiled_capability() >= 90; }

/// `cluster`: blocks of a cluster, along y; more than 1 only where overlaps_launches().
template <typename... Params, typename... Args>
cudaError_t launch_clusters(void (*kernel)(Params...), dim3 grid, dim3 block, std::size_t shared_bytes,
                            cudaStream_t stream, int cluster, const Args&... args) {
  if (pretends_less_shared() && !fits_block_shared(reinterpret_cast<const void*>(kernel), shared_bytes))
    return cudaErrorInvalidValue;
  cudaLaunchAttribute attributes[2] = {};
  unsigned count = 0;
  if (overlaps_launches() && !PlainLaunches::wanted()) {
    attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (cluster > 1) {
    attributes[count].id = cudaLaunchAttributeClusterDimension;
    attributes[count].val.clusterDim.x = 1;
    attributes[count].val.clusterDim.y = static_cast<unsigned>(cluster);
    attributes[count++].val.clusterDim.z = 1;
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = count;
  return cudaLaunchKernelEx(&config, kernel, Params(args)...);
}

template <typename... Params, typename... Args>
cudaError_t launch(void (*kernel)(Params...), dim3 grid, dim3 block, std::size_t shared_bytes, cudaStream_t stream,
                   const Args&... args) {
  return launch_clusters(kernel, grid, block, shared_bytes, stream, 1, args...);
}

/// As launch_clusters, for a kernel that takes more than 48 KiB of shared memory.
template <typename... Params, typename... Args>
cudaError_t launch_large(void (*kernel)(Params...), dim3 grid, dim3 block, std::size_t shared_bytes,
                         cudaStream_t stream, int cluster, const Args&... args) {
  if (shared_bytes > 48 * 1024) {
    const cudaError_t error =
        cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(shared_bytes));
    if (error != cudaSuccess) return error;
  }
  return launch_clusters(kernel, grid, block, shared_bytes, stream, cluster, args...);
}

}  // namespace millrace::kernels::cuda
