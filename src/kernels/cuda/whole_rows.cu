// Contracts in whole_rows.h. What is summed over a row is summed by one block, over a head by one warp, in an order
// that follows from its length alone.
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/exp.cuh"
#include "kernels/cuda/launchers.h"
#include "kernels/cuda/norm_sum.cuh"
#include "kernels/cuda/pdl.cuh"
#include "kernels/cuda/warp.cuh"

namespace millrace::kernels::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;

unsigned blocks_for(std::int64_t n, int each = kThreads) { return static_cast<unsigned>((n + each - 1) / each); }

__device__ __forceinline__ const float* floats_at(const std::byte* const* entry) {
  return entry == nullptr ? nullptr : reinterpret_cast<const float*>(*entry);
}

__device__ __forceinline__ std::int64_t thread_number() {
  return static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
}

// ---------------------------------------------------------------------------------------------------------------------
// LayerNorm: a row a block.

struct LayerNormArgs {
  const float* x;
  const std::byte* const* weight;
  const std::byte* const* bias;
  float* out;
  int cols;
  float eps;
};

__device__ __forceinline__ float4 minus(const float4& a, float b) {
  return make_float4(a.x - b, a.y - b, a.z - b, a.w - b);
}
__device__ __forceinline__ float4 times(const float4& a, float by, const float4& w) {
  return make_float4(a.x * by * w.x, a.y * by * w.y, a.z * by * w.z, a.w * by * w.w);
}
__device__ __forceinline__ float4 plus(const float4& a, const float4& b) {
  return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

// Held in registers: float4 number tid + kThreads * i in v[i]. cols is a multiple of 4.
template <int kVectors>
__global__ void __launch_bounds__(kThreads) layer_norm_kernel(const __grid_constant__ LayerNormArgs a) {
  allow_successor();
  const int count = a.cols / 4, first = static_cast<int>(threadIdx.x);
  const auto* const weight = reinterpret_cast<const float4*>(floats_at(a.weight));
  const auto* const bias = reinterpret_cast<const float4*>(floats_at(a.bias));
  wait_for_predecessor();
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * count;
  const auto* const x = reinterpret_cast<const float4*>(a.x) + row;
  float4 v[kVectors];
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int at = first + kThreads * i;
    v[i] = at < count ? x[at] : make_float4(0, 0, 0, 0);
  }
#pragma unroll
  for (int i = 0; i < kVectors; ++i) sum += (v[i].x + v[i].y) + (v[i].z + v[i].w);
  const float mean = sum_over_block<kThreads>(sum) / static_cast<float>(a.cols);
  float squares = 0;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    v[i] = minus(v[i], mean);
    if (first + kThreads * i < count) squares = add_squares(v[i], squares);
  }
  __syncthreads();  // the first sum is read
  const float scale = norm_scale(sum_over_block<kThreads>(squares), a.cols, a.eps);
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int at = first + kThreads * i;
    if (at >= count) continue;
    float4 y = times(v[i], scale, weight[at]);
    if (bias != nullptr) y = plus(y, bias[at]);
    reinterpret_cast<float4*>(a.out)[row + at] = y;
  }
}

// The same for rows of any length, read three times.
__global__ void __launch_bounds__(kThreads) layer_norm_any_kernel(const __grid_constant__ LayerNormArgs a) {
  allow_successor();
  const float *const weight = floats_at(a.weight), *const bias = floats_at(a.bias);
  wait_for_predecessor();
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * a.cols;
  const float* const x = a.x + row;
  float sum = 0, squares = 0;
  for (int i = static_cast<int>(threadIdx.x); i < a.cols; i += kThreads) sum += x[i];
  const float mean = sum_over_block<kThreads>(sum) / static_cast<float>(a.cols);
  for (int i = static_cast<int>(threadIdx.x); i < a.cols; i += kThreads) {
    const float v = x[i] - mean;
    squares = __fmaf_rn(v, v, squares);
  }
  __syncthreads();  // the first sum is read
  const float scale = norm_scale(sum_over_block<kThreads>(squares), a.cols, a.eps);
  for (int i = static_cast<int>(threadIdx.x); i < a.cols; i += kThreads) {
    const float y = (x[i] - mean) * scale * weight[i];
    a.out[row + i] = bias == nullptr ? y : y + bias[i];
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// RMS norm of heads: a head a warp. Element i is lane i % 32's.

constexpr int kHeld = 8;  // elements of a lane that stay in registers

__global__ void __launch_bounds__(kThreads)
    norm_heads_kernel(float* x, const std::byte* const* weight, int heads, int head_dim, float eps) {
  allow_successor();
  const float* const by = floats_at(weight);
  wait_for_predecessor();
  const std::int64_t number = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  if (number >= heads) return;
  float* const head = x + number * head_dim;
  float held[kHeld], squares = 0;
#pragma unroll
  for (int i = 0; i < kHeld; ++i) held[i] = lane + kWarp * i < head_dim ? head[lane + kWarp * i] : 0;
#pragma unroll
  for (int i = 0; i < kHeld; ++i) squares = __fmaf_rn(held[i], held[i], squares);
  for (int e = lane + kWarp * kHeld; e < head_dim; e += kWarp) squares = __fmaf_rn(head[e], head[e], squares);
  const float scale = norm_scale(sum_over_warp(squares), head_dim, eps);
  const auto normal = [&](float v, int e) { return by == nullptr ? v * scale : v * scale * by[e]; };
#pragma unroll
  for (int i = 0; i < kHeld; ++i)
    if (lane + kWarp * i < head_dim) head[lane + kWarp * i] = normal(held[i], lane + kWarp * i);
  for (int e = lane + kWarp * kHeld; e < head_dim; e += kWarp) head[e] = normal(head[e], e);
}

// ---------------------------------------------------------------------------------------------------------------------
// Elementwise: an element a thread, of turned heads a pair.

__global__ void turn_heads_kernel(const __grid_constant__ TurnCall call) {
  allow_successor();
  wait_for_predecessor();
  const int half = call.rotary / 2;
  const int i = static_cast<int>(blockIdx.y) * kThreads + static_cast<int>(threadIdx.x);
  if (i >= call.heads * half) return;
  const std::int64_t row = blockIdx.x;
  const int head = i / half, pair = i % half;
  float* const x = call.x + (row * call.heads + head) * call.head_dim + call.first;
  float* const near = x + (call.neox ? pair : 2 * pair);
  float* const far = near + (call.neox ? half : 1);
  const float2 turn = reinterpret_cast<const float2*>(call.cos_sin)[row * half + pair];
  const float a = *near, b = *far;
  *near = __fmaf_rn(a, turn.x, -(b * turn.y));
  *far = __fmaf_rn(a, turn.y, b * turn.x);
}

__global__ void clamp_kernel(float* x, float least, float most, std::int64_t n) {
  allow_successor();
  wait_for_predecessor();
  const std::int64_t i = thread_number();
  if (i < n) x[i] = min_or_nan(max_or_nan(x[i], least), most);
}

__global__ void standardize_kernel(float* x, const std::byte* const* bias, const std::byte* const* scale,
                                   std::int64_t n, int cols) {
  allow_successor();
  const std::int64_t i = thread_number();
  const auto c = i % cols;
  const float* const less = floats_at(bias);
  const float factor = floats_at(scale)[c];
  wait_for_predecessor();
  if (i < n) x[i] = (less == nullptr ? x[i] : x[i] - less[c]) * factor;
}

__global__ void merge_channels_kernel(const float* x, std::int64_t n, int cols, int merge, float* out) {
  allow_successor();
  wait_for_predecessor();
  const std::int64_t i = thread_number();
  if (i >= n) return;
  const std::int64_t merged = static_cast<std::int64_t>(merge) * cols, row = i / merged, place = i % merged;
  out[i] = x[row * merged + place % merge * cols + place / merge];
}

__global__ void copy_kernel(const float* x, std::int64_t n, float* out) {
  allow_successor();
  wait_for_predecessor();
  const std::int64_t i = thread_number();
  if (i < n) out[i] = x[i];
}

__global__ void mean_rows_kernel(const float* x, std::int64_t n, int cols, int merge, float* out) {
  allow_successor();
  wait_for_predecessor();
  const std::int64_t i = thread_number();
  if (i >= n) return;
  const float* from = x + i / cols * merge * cols + i % cols;
  float sum = *from;
  for (int r = 1; r < merge; ++r) sum += from[static_cast<std::int64_t>(r) * cols];
  out[i] = sum / static_cast<float>(merge);
}

// ---------------------------------------------------------------------------------------------------------------------
// Rows as f16: a row a block, read twice.

constexpr int kHalfExponent = 13;     // of a row's largest magnitude
constexpr int kLeastExponent = -113;  // whose units are floats that are not subnormal

/// The largest over a block; the same in every thread.
__device__ __forceinline__ unsigned max_over_block(unsigned v) {
  __shared__ unsigned warps[kWarps];
  v = max_over_warp(v);
  if (threadIdx.x % kWarp == 0) warps[threadIdx.x / kWarp] = v;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kWarps; ++i) v = max(v, warps[i]);
  return v;
}

/// Magnitudes compare as integers do, and so NaN is the largest of all.
__device__ __forceinline__ unsigned magnitude(float v) { return __float_as_uint(v) & 0x7fffffffu; }

template <bool kFours>  // cols is a multiple of 4
__global__ void __launch_bounds__(kThreads) to_half_rows_kernel(const float* x, int cols, HalfRows out) {
  allow_successor();
  wait_for_predecessor();
  const std::int64_t row = blockIdx.x;
  const float* const from = x + row * cols;
  const auto* const fours = reinterpret_cast<const float4*>(from);
  unsigned most = 0;
  if constexpr (kFours) {
    for (int i = static_cast<int>(threadIdx.x); i < cols / 4; i += kThreads) {
      const float4 v = fours[i];
      most = max(max(most, max(magnitude(v.x), magnitude(v.y))), max(magnitude(v.z), magnitude(v.w)));
    }
  } else {
    for (int i = static_cast<int>(threadIdx.x); i < cols; i += kThreads) most = max(most, magnitude(from[i]));
  }
  most = max_over_block(most);
  const int exponent = max(static_cast<int>(most >> 23) - 127, kLeastExponent);
  // What is not finite stays so, by whatever unit.
  const int up = most == 0 || exponent > 127 ? 0 : kHalfExponent - exponent;
  const float power = power_of_two(static_cast<unsigned>(up));
  if (threadIdx.x == 0) out.unit[row] = power_of_two(static_cast<unsigned>(-up));
  auto* const to = reinterpret_cast<__half*>(out.x) + row * cols;
  if constexpr (kFours) {
    for (int i = static_cast<int>(threadIdx.x); i < cols / 4; i += kThreads) {
      const float4 v = fours[i];
      alignas(8) const __half2 two[2] = {__floats2half2_rn(v.x * power, v.y * power),
                                         __floats2half2_rn(v.z * power, v.w * power)};
      reinterpret_cast<uint2*>(to)[i] = *reinterpret_cast<const uint2*>(two);
    }
  } else {
    for (int i = static_cast<int>(threadIdx.x); i < cols; i += kThreads) to[i] = __float2half_rn(from[i] * power);
  }
}

}  // namespace

cudaError_t layer_norm(const float* x, const std::byte* const* weight, const std::byte* const* bias, std::int32_t rows,
                       std::int32_t cols, float eps, float* out, cudaStream_t stream) {
  if (rows <= 0) return cudaSuccess;
  const LayerNormArgs args{x, weight, bias, out, cols, eps};
  const auto run = [&](auto* kernel) {
    return launch(kernel, dim3(static_cast<unsigned>(rows)), dim3(kThreads), 0, stream, args);
  };
  if (cols % 4 != 0 || cols > 32 * kThreads) return run(layer_norm_any_kernel);
  if (cols <= 4 * kThreads) return run(layer_norm_kernel<1>);
  if (cols <= 8 * kThreads) return run(layer_norm_kernel<2>);
  if (cols <= 16 * kThreads) return run(layer_norm_kernel<4>);
  return run(layer_norm_kernel<8>);
}

cudaError_t norm_heads(float* x, const std::byte* const* weight, std::int32_t heads, std::int32_t head_dim, float eps,
                       cudaStream_t stream) {
  if (heads <= 0) return cudaSuccess;
  return launch(norm_heads_kernel, dim3(blocks_for(heads, kWarps)), dim3(kThreads), 0, stream, x, weight, heads,
                head_dim, eps);
}

cudaError_t turn_heads(const TurnCall& call, cudaStream_t stream) {
  const std::int64_t pairs = std::int64_t{call.heads} * (call.rotary / 2);  // of a row
  if (call.rows <= 0 || pairs <= 0) return cudaSuccess;
  if (call.first < 0 || call.first + call.rotary > call.head_dim) return cudaErrorInvalidValue;
  const dim3 grid(static_cast<unsigned>(call.rows), blocks_for(pairs));
  return launch(turn_heads_kernel, grid, dim3(kThreads), 0, stream, call);
}

cudaError_t clamp(float* x, float least, float most, std::int64_t n, cudaStream_t stream) {
  if (n <= 0) return cudaSuccess;
  return launch(clamp_kernel, dim3(blocks_for(n)), dim3(kThreads), 0, stream, x, least, most, n);
}

cudaError_t standardize(float* x, const std::byte* const* bias, const std::byte* const* scale, std::int64_t rows,
                        std::int32_t cols, cudaStream_t stream) {
  const std::int64_t n = rows * cols;
  if (n <= 0) return cudaSuccess;
  return launch(standardize_kernel, dim3(blocks_for(n)), dim3(kThreads), 0, stream, x, bias, scale, n, cols);
}

cudaError_t merge_rows(const float* x, std::int32_t rows, std::int32_t cols, std::int32_t merge, bool by_channel,
                       float* out, cudaStream_t stream) {
  if (merge <= 0) return cudaErrorInvalidValue;
  const std::int64_t n = std::int64_t{rows / merge} * merge * cols;
  if (n <= 0) return cudaSuccess;
  const dim3 grid(blocks_for(n)), block(kThreads);
  if (!by_channel) return launch(copy_kernel, grid, block, 0, stream, x, n, out);  // as they lie
  return launch(merge_channels_kernel, grid, block, 0, stream, x, n, cols, merge, out);
}

cudaError_t mean_rows(const float* x, std::int32_t rows, std::int32_t cols, std::int32_t merge, float* out,
                      cudaStream_t stream) {
  if (merge <= 0) return cudaErrorInvalidValue;
  const std::int64_t n = std::int64_t{rows / merge} * cols;
  if (n <= 0) return cudaSuccess;
  return launch(mean_rows_kernel, dim3(blocks_for(n)), dim3(kThreads), 0, stream, x, n, cols, merge, out);
}

cudaError_t to_half_rows(const float* x, std::int32_t rows, std::int32_t cols, HalfRows out, cudaStream_t stream) {
  if (rows <= 0) return cudaSuccess;
  auto* const kernel = cols % 4 == 0 ? to_half_rows_kernel<true> : to_half_rows_kernel<false>;
  return launch(kernel, dim3(static_cast<unsigned>(rows)), dim3(kThreads), 0, stream, x, cols, out);
}

}  // namespace millrace::kernels::cuda
