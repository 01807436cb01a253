// Attention over keys and values kept as f16, by a warp on the f16 tensor cores: sixteen pairs of a row and a head at a
// time. Contract and order of sums: AttentionCall in ops.h. A row of an instruction's result depends on that
// row alone, so a pair gets the same bits whoever the other fifteen are.
//
// A lane's place in all of this: row = lane / 4 and quarter = lane % 4. Of the sixteen rows of factors it holds row and
// row + 8, of eight columns of sums 2 quarter and 2 quarter + 1. Which channel or key stands at which of the sixteen
// places of a step is free, as long as every path has it the same; it is chosen so that weights are factors where
// scores became them, and so that eight 16-byte reads at once (ldmatrix) meet all banks of shared memory where only
// pieces of the cache, not its rows, lie 16 bytes off one another's banks:
//  * a channel of K is a row of 64 keys. Place p of step t has channel group_of(p) * head_dim / 16 + t; a sixteenth of
//    the channels is a piece.
//  * a key of V is a row of head_dim channels. Places 0 to 7 of step t have keys 16 t + 0, 9, 2, 11, 4, 13, 6, 15,
//    places 8 to 15 the others, 8, 1, 10, 3, 12, 5, 14, 7; two keys are a piece.
#pragma once

#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstddef>

#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/exp.cuh"
#include "kernels/cuda/landing.cuh"
#include "kernels/cuda/tensor_core.cuh"

namespace millrace::kernels::cuda {

constexpr unsigned kFullWarp = 0xffffffffu;

/// How a block of the cache lies in shared memory, in bytes.
template <int kHeadDim>
struct HalfLayout {
  static constexpr int kKeyPiece = kKvBlock * kHeadDim / 16 * 2, kKeyPitch = kKeyPiece + 16;
  static constexpr int kKeys = 16 * kKeyPitch;  // of a block
  static constexpr int kValueRow = 2 * kHeadDim, kValuePiece = 2 * kValueRow, kValuePitch = kValuePiece + 16;
  static constexpr int kValues = kKvBlock / 2 * kValuePitch;  // of a block; the chunk's second follows
};

/// A block's keys, or its values, to shared memory; for all kThreads threads.
template <int kHeadDim, int kThreads>
__device__ __forceinline__ void copy_half_keys(std::byte* to, const std::byte* from) {
  using L = HalfLayout<kHeadDim>;
  copy_pieces<L::kKeyPiece, L::kKeyPitch, 16, kThreads>(to, from);
}
template <int kHeadDim, int kThreads>
__device__ __forceinline__ void copy_half_values(std::byte* to, const std::byte* from) {
  using L = HalfLayout<kHeadDim>;
  copy_pieces<L::kValuePiece, L::kValuePitch, kKvBlock / 2, kThreads>(to, from);
}

/// {near, far} of sixteen columns as multiply_halves takes them, two for each eight columns. `from` (an address in
/// shared memory): the lane's row of eight columns: of lanes 0 to 7 places 0 to 7, of 8 to 15 places 8 to 15, of the
/// others the same of columns 8 to 15.
__device__ __forceinline__ void load_columns(unsigned (&b)[4], unsigned from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
               : "r"(from)
               : "memory");
}

/// Which sixteenth of the channels place p has: an arrangement in which a quarter's rows of queries meet other banks.
__device__ __forceinline__ int group_of(int place) { return place / 8 * 8 + place % 2 * 4 + place % 8 / 2; }

/// Where a lane begins to read a block's keys, and a chunk's values.
template <int kHeadDim>
__device__ __forceinline__ unsigned key_address(const std::byte* keys) {
  const int lane = static_cast<int>(threadIdx.x) % 32, place = lane % 16;
  return static_cast<unsigned>(__cvta_generic_to_shared(keys)) + group_of(place) * HalfLayout<kHeadDim>::kKeyPitch +
         lane / 16 * 16;
}
template <int kHeadDim>
__device__ __forceinline__ unsigned value_address(const std::byte* values) {
  const int lane = static_cast<int>(threadIdx.x) % 32, place = lane % 8;
  const int key = place + (place % 2 == lane / 8 % 2 ? 0 : 8);
  return static_cast<unsigned>(__cvta_generic_to_shared(values)) + key / 2 * HalfLayout<kHeadDim>::kValuePitch +
         key % 2 * HalfLayout<kHeadDim>::kValueRow + lane / 16 * 16;
}

__device__ __forceinline__ unsigned pack(__half2 two) { return *reinterpret_cast<const unsigned*>(&two); }

/// A quarter's part of a pair's query as factors: f16 that stand for the query times the power of two which brings its
/// largest magnitude into [1024, 2048).
template <int kHeadDim>
struct HalfQuery {
  static constexpr int kSteps = kHeadDim / 16;
  unsigned factors[kSteps][2];  // of places 2 quarter and + 1, and of 8 + 2 quarter and + 1
  float unit;                   // what a score of these factors counts, times `scale`

  /// from: the pair's [head_dim], 16-byte aligned, or null: there is no such pair. For the whole warp.
  __device__ __forceinline__ void load(const float* from, float scale) {
    const int quarter = static_cast<int>(threadIdx.x) % 4;
    alignas(16) float x[4][kSteps] = {};
    if (from) {
#pragma unroll
      for (int place = 0; place < 4; ++place) {  // 2 quarter, 2 quarter + 1, 8 + 2 quarter, 9 + 2 quarter
        const float* run = from + (place / 2 * 8 + place % 2 * 4 + quarter) * kSteps;
        constexpr int kWide = kSteps % 4 == 0 ? 4 : kSteps % 2 == 0 ? 2 : 1;
#pragma unroll
        for (int t = 0; t < kSteps; t += kWide) {
          if constexpr (kWide == 4) {
            *reinterpret_cast<float4*>(x[place] + t) = *reinterpret_cast<const float4*>(run + t);
          } else if constexpr (kWide == 2) {
            *reinterpret_cast<float2*>(x[place] + t) = *reinterpret_cast<const float2*>(run + t);
          } else {
            x[place][t] = run[t];
          }
        }
      }
    }
    // Magnitudes compare as integers do, and so NaN is the largest of all.
    unsigned bits = 0;
#pragma unroll
    for (int place = 0; place < 4; ++place) {
#pragma unroll
      for (int t = 0; t < kSteps; ++t) bits = max(bits, __float_as_uint(x[place][t]) & 0x7fffffffu);
    }
    bits = max(bits, __shfl_xor_sync(kFullWarp, bits, 1));
    bits = max(bits, __shfl_xor_sync(kFullWarp, bits, 2));
    // Queries below 2^-100 become zero, and those that are not finite NaN.
    const int exponent = static_cast<int>(bits >> 23) - 127;
    const int up = exponent >= -100 && exponent < 128 ? 10 - exponent : 0;
    const float power = exponent < 128 ? power_of_two(static_cast<unsigned>(up)) : NAN;
    unit = power_of_two(static_cast<unsigned>(-up)) * scale;
#pragma unroll
    for (int t = 0; t < kSteps; ++t) {
#pragma unroll
      for (int far = 0; far < 2; ++far) {
        factors[t][far] = pack(__floats2half2_rn(x[2 * far][t] * power, x[2 * far + 1][t] * power));
      }
    }
  }
};

/// exp(x) for x that are not positive, to within 2^-19 of it (2^-22 of the instruction, the rest of the product), which
/// is then rounded to f16; 0 for -infinity.
template <int kCount>
__device__ __forceinline__ void exp_for_half(float (&x)[kCount]) {
  constexpr float kLog2E = 0x1.715476p+0f;
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(x[i]) : "f"(x[i] * kLog2E));
}

/// Values of keys [first, last) of a chunk become zero: they may be anything, and have weights of zero where a product
/// reads them. Threads `from`, `from` + `step` and so on share the work.
template <int kHeadDim>
__device__ __forceinline__ void clear_values(std::byte* values, int first, int last, int from, int step) {
  using L = HalfLayout<kHeadDim>;
  constexpr int kUnits = L::kValueRow / 16;
  if (first >= last) return;
  for (int i = first * kUnits + from; i < last * kUnits; i += step) {
    const int key = i / kUnits;
    *reinterpret_cast<uint4*>(values + key / 2 * L::kValuePitch + key % 2 * L::kValueRow + i % kUnits * 16) = {};
  }
}

/// What four lanes of a quad hold of 32 neighbouring columns, 8 j + 2 quarter and + 1 in x[2 j] and x[2 j + 1], becomes
/// 8 quarter to 8 quarter + 7. For the whole warp.
__device__ __forceinline__ void gather_columns(float (&x)[8]) {
  const int quarter = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
  for (int step = 1; step < 4; step *= 2) {
    const bool upper = (quarter & step) != 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if ((j & step) != 0) continue;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float& low = x[2 * j + i];
        float& high = x[2 * (j + step) + i];
        const float other = __shfl_xor_sync(kFullWarp, upper ? low : high, step);
        if (upper) {
          low = other;
        } else {
          high = other;
        }
      }
    }
  }
}

}  // namespace millrace::kernels::cuda
