// The blocks of a cluster: what they read of one another's shared memory, and where they wait for each other. In code
// for less than compute capability 9.0, which has no clusters (overlaps_launches()), none of it does anything.
#pragma once

#include <cuda_runtime.h>

namespace millrace::kernels::cuda {

/// The address in the cluster of what lies at `shared` in the memory of its block number `rank`.
__device__ __forceinline__ unsigned in_cluster(const void* shared, int rank) {
  unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(shared));
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("mapa.shared::cluster.u32 %0, %0, %1;" : "+r"(address) : "r"(rank));
#endif
  return address;
}
__device__ __forceinline__ float load_in_cluster(unsigned address) {
  float value = 0;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(address) : "memory");
#endif
  return value;
}
/// address: a multiple of 16.
__device__ __forceinline__ uint4 load_four_in_cluster(unsigned address) {
  uint4 four = {0, 0, 0, 0};
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("ld.shared::cluster.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(four.x), "=r"(four.y), "=r"(four.z), "=r"(four.w)
               : "r"(address)
               : "memory");
#endif
  return four;
}
/// All threads of the cluster's blocks that have not ended. In two steps: between them nothing waits.
__device__ __forceinline__ void arrive_in_cluster() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive;" ::: "memory");
#endif
}
__device__ __forceinline__ void wait_for_cluster() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait;" ::: "memory");
#endif
}
__device__ __forceinline__ void sync_cluster() {
  arrive_in_cluster();
  wait_for_cluster();
}

}  // namespace millrace::kernels::cuda
