// A head's matrix in the registers of a block: what kernels over states share (recurrent.h has the contract). Eight
// lanes share two columns, each with every eighth four of their keys.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/launchers.h"
#include "kernels/cuda/warp.cuh"

namespace millrace::kernels::cuda {

constexpr int kParts = 8;       // lanes that share columns
constexpr int kOwnColumns = 2;  // of a thread
constexpr int kWarpColumns = kWarp / kParts * kOwnColumns;

__device__ __forceinline__ const float* floats_at(const std::byte* block, std::int64_t offset) {
  return reinterpret_cast<const float*>(block + offset);
}
__device__ __forceinline__ float* floats_at(std::byte* block, std::int64_t offset) {
  return reinterpret_cast<float*>(block + offset);
}

__device__ __forceinline__ bool is_empty(const StateRun& run) { return run.rows == 0 && run.after == nullptr; }

/// Where a thread's columns lie, and how their keys are shared: with j from 0 on, keys 4 (8 j + part) to + 3.
struct Seat {
  int part, column, warp, lane;

  __device__ __forceinline__ Seat()
      : part(static_cast<int>(threadIdx.x) % kParts),
        warp(static_cast<int>(threadIdx.x) / kWarp),
        lane(static_cast<int>(threadIdx.x) % kWarp) {
    column = warp * kWarpColumns + lane / kParts * kOwnColumns;  // of the block
  }
  /// The key of a thread's i-th.
  __device__ __forceinline__ int key(int i) const { return 4 * (kParts * (i / 4) + part) + i % 4; }
};

/// A thread's part of a matrix.
template <int kEach>
struct Slice {
  float s[kEach][kOwnColumns];

  /// from: the thread's first column, key 0; pitch: floats between keys.
  __device__ __forceinline__ void load(const float* from, int pitch, int keys, const Seat& seat) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const bool there = from != nullptr && seat.key(i) < keys;
      const float2 two = there ? *reinterpret_cast<const float2*>(from + seat.key(i) * pitch) : make_float2(0, 0);
      s[i][0] = two.x, s[i][1] = two.y;
    }
  }
  __device__ __forceinline__ void store(float* to, int pitch, int keys, const Seat& seat) const {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (seat.key(i) < keys) *reinterpret_cast<float2*>(to + seat.key(i) * pitch) = make_float2(s[i][0], s[i][1]);
    }
  }
  /// The lane's sums over its keys of s times v.
  __device__ __forceinline__ void dot(const float (&v)[kEach], float (&sum)[kOwnColumns]) const {
    float odd[kOwnColumns];
#pragma unroll
    for (int c = 0; c < kOwnColumns; ++c) sum[c] = odd[c] = 0;
#pragma unroll
    for (int i = 0; i < kEach; i += 2) {
#pragma unroll
      for (int c = 0; c < kOwnColumns; ++c) {
        sum[c] = __fmaf_rn(s[i][c], v[i], sum[c]);
        odd[c] = __fmaf_rn(s[i + 1][c], v[i + 1], odd[c]);
      }
    }
#pragma unroll
    for (int c = 0; c < kOwnColumns; ++c) sum[c] += odd[c];
  }
  __device__ __forceinline__ void forget(float decay) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
#pragma unroll
      for (int c = 0; c < kOwnColumns; ++c) s[i][c] *= decay;
    }
  }
  /// Key i by decay[i].
  __device__ __forceinline__ void forget(const float (&decay)[kEach]) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
#pragma unroll
      for (int c = 0; c < kOwnColumns; ++c) s[i][c] *= decay[i];
    }
  }
  __device__ __forceinline__ void add(const float (&difference)[kOwnColumns], const float (&v)[kEach]) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
#pragma unroll
      for (int c = 0; c < kOwnColumns; ++c) s[i][c] = __fmaf_rn(difference[c], v[i], s[i][c]);
    }
  }
};

/// The sums of all lanes that share columns, in each of them.
__device__ __forceinline__ void sum_everywhere(float (&sum)[kOwnColumns]) {
#pragma unroll
  for (int step = kParts / 2; step > 0; step /= 2) {
#pragma unroll
    for (int c = 0; c < kOwnColumns; ++c) sum[c] += __shfl_xor_sync(kAllLanes, sum[c], step);
  }
}
/// Of lanes with part < 4 the first column's, of the others the second's.
__device__ __forceinline__ float sum_of_one(const float (&sum)[kOwnColumns], int part) {
  const bool second = part >= kParts / 2;
  const float kept = second ? sum[1] : sum[0], given = second ? sum[0] : sum[1];
  float total = kept + __shfl_xor_sync(kAllLanes, given, kParts / 2);
#pragma unroll
  for (int step = kParts / 4; step > 0; step /= 2) total += __shfl_xor_sync(kAllLanes, total, step);
  return total;
}

/// A thread's keys of a row.
template <int kEach>
__device__ __forceinline__ void take_keys(const float* row, const Seat& seat, float (&v)[kEach]) {
#pragma unroll
  for (int i = 0; i < kEach; i += 4) {
    const float4 four = *reinterpret_cast<const float4*>(row + seat.key(i));
    v[i] = four.x, v[i + 1] = four.y, v[i + 2] = four.z, v[i + 3] = four.w;
  }
}

}  // namespace millrace::kernels::cuda
