// Products by heads; contract in latent.h. Few rows: a warp has outputs side by side, their weights decoded once for up
// to eight rows. Rows of prompts: the bfloat16 tensor cores, with weights decoded once for 128 rows.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/launchers.h"
#include "kernels/cuda/pdl.cuh"
#include "kernels/cuda/tensor_core.cuh"

namespace millrace::kernels::cuda {
namespace {

constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xffffffffu;
constexpr int kAny = -1;  // of dtypes: read when the kernel runs

__device__ __forceinline__ float tree_sum(float v) {
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) v += __shfl_down_sync(kAllLanes, v, step);
  return v;  // lane 0's counts
}

constexpr int kProductThreads = 256, kProductWarps = kProductThreads / kWarp;
constexpr int kProductRows = 8;      // of activations that a block works on: each weight is decoded once for them
constexpr int kProductOutputs = 16;  // of a block

/// Row `row` of head h's matrix.
__device__ __forceinline__ const std::byte* matrix_row(const HeadProductCall& call, int head, int row,
                                                       std::int64_t row_bytes) {
  if (call.parts) return call.weight.address[head] + row * row_bytes;
  return *call.weight.address + (static_cast<std::int64_t>(head) * call.n + row) * row_bytes;
}

/// kType: the weights' dtype, or kAny. kRows: of activations that are there, at most.
template <int kType, int kRows>
__global__ void __launch_bounds__(kProductThreads) head_product_kernel(HeadProductCall call, std::int64_t row_bytes) {
  extern __shared__ float x[];  // [kRows, k]
  allow_successor();
  wait_for_predecessor();
  const DType dtype = kType == kAny ? call.weight.dtype : static_cast<DType>(kType);
  const int thread = static_cast<int>(threadIdx.x), warp = thread / kWarp, lane = thread % kWarp;
  const int head = static_cast<int>(blockIdx.y), first_row = static_cast<int>(blockIdx.z) * kRows;
  const int rows = min(kRows, call.rows - first_row), left = call.x_head - call.k, out_head = call.n + left;
  const auto x_of = [&](int r) {
    return call.x + (static_cast<std::int64_t>(first_row + r) * call.heads + head) * call.x_head;
  };
  const auto out_of = [&](int r) {
    return call.out + (static_cast<std::int64_t>(first_row + r) * call.heads + head) * out_head;
  };
  for (int r = 0; r < kRows; ++r)
    for (int i = thread; i < call.k; i += kProductThreads) x[r * call.k + i] = r < rows ? x_of(r)[i] : 0;
  if (blockIdx.x == 0)
    for (int i = thread; i < rows * left; i += kProductThreads)
      out_of(i / left)[call.n + i % left] = x_of(i / left)[call.k + i % left];
  __syncthreads();
  // Outputs of a warp side by side: their weights come together.
  constexpr int kEach = kProductOutputs / kProductWarps;
  const int first = static_cast<int>(blockIdx.x) * kProductOutputs + warp;
  const std::byte* row[kEach];
#pragma unroll
  for (int j = 0; j < kEach; ++j)
    row[j] = matrix_row(call, head, min(first + j * kProductWarps, call.n - 1), row_bytes);
  float acc[kEach][kRows] = {};
#pragma unroll 8
  for (int e = lane; e < call.k; e += kWarp) {
    float w[kEach];
#pragma unroll
    for (int j = 0; j < kEach; ++j) w[j] = element(dtype, row[j], e);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float factor = x[r * call.k + e];
#pragma unroll
      for (int j = 0; j < kEach; ++j) acc[j][r] = __fmaf_rn(w[j], factor, acc[j][r]);
    }
  }
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    const int n = first + j * kProductWarps;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float sum = tree_sum(acc[j][r]);
      if (lane == 0 && r < rows && n < call.n) out_of(r)[n] = sum;
    }
  }
}

constexpr int kTransposedThreads = 64;  // a channel of the result each

__global__ void __launch_bounds__(kTransposedThreads)
    head_transposed_kernel(HeadProductCall call, std::int64_t row_bytes) {
  extern __shared__ float x[];  // [kProductRows, n]
  allow_successor();
  wait_for_predecessor();
  const int thread = static_cast<int>(threadIdx.x), head = static_cast<int>(blockIdx.y);
  const int first_row = static_cast<int>(blockIdx.z) * kProductRows;
  const int rows = min(kProductRows, call.rows - first_row), left = call.x_head - call.n, out_head = call.k + left;
  const auto x_of = [&](int r) {
    return call.x + (static_cast<std::int64_t>(first_row + r) * call.heads + head) * call.x_head;
  };
  const auto out_of = [&](int r) {
    return call.out + (static_cast<std::int64_t>(first_row + r) * call.heads + head) * out_head;
  };
  for (int i = thread; i < kProductRows * call.n; i += kTransposedThreads)
    x[i] = i / call.n < rows ? x_of(i / call.n)[i % call.n] : 0;
  if (blockIdx.x == 0)
    for (int i = thread; i < rows * left; i += kTransposedThreads)
      out_of(i / left)[call.k + i % left] = x_of(i / left)[call.n + i % left];
  __syncthreads();
  const int channel = static_cast<int>(blockIdx.x) * kTransposedThreads + thread;
  if (channel >= call.k) return;
  float acc[kProductRows] = {};
#pragma unroll 4
  for (int i = 0; i < call.n; ++i) {
    const float w = element(call.weight.dtype, matrix_row(call, head, i, row_bytes), channel);
#pragma unroll
    for (int r = 0; r < kProductRows; ++r) acc[r] = __fmaf_rn(w, x[r * call.n + i], acc[r]);
  }
#pragma unroll
  for (int r = 0; r < kProductRows; ++r)
    if (r < rows) out_of(r)[channel] = acc[r];
}

// ---------------------------------------------------------------------------------------------------------------------
// Rows of prompts: a block takes 128 rows and 128 outputs of a head, 32 of what is summed at a time; a warp 32 and 64.

constexpr int kTileRows = 128, kTileOutputs = 128, kTileTerms = 32;
constexpr int kTilePitch = kTileTerms + 8;  // so that eight rows meet all banks
constexpr int kWarpRows = 32, kWarpOutputs = 64;

/// {row lane / 4: columns 2 quarter and + 1} of four blocks of eight rows and eight columns; lane l gives row l % 8 of
/// block l / 8.
__device__ __forceinline__ void load_blocks(unsigned (&r)[4], const __nv_bfloat16* from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(static_cast<unsigned>(__cvta_generic_to_shared(from)))
               : "memory");
}
/// A value as two bfloat16, high + low; kSplit false: the first alone.
template <bool kSplit>
struct Rounded {
  static constexpr int kParts = kSplit ? 2 : 1;
  __device__ static void put(__nv_bfloat16* to, int part_size, float value) {
    const __nv_bfloat16 high = __float2bfloat16_rn(value);
    to[0] = high;
    if constexpr (kSplit) to[part_size] = __float2bfloat16_rn(value - __bfloat162float(high));
  }
};

/// Addresses beyond what there is are bent back, so that loads need no branch and come side by side.
template <int kType, bool kSplit>
__global__ void __launch_bounds__(kProductThreads, kSplit ? 1 : 2)
    head_prompt_kernel(const __grid_constant__ HeadProductCall call, std::int64_t row_bytes) {
  using Parts = Rounded<kSplit>;
  constexpr int kXPart = kTileRows * kTilePitch, kWPart = kTileOutputs * kTilePitch;
  __shared__ __align__(16) __nv_bfloat16 x[Parts::kParts * kXPart], w[Parts::kParts * kWPart];
  allow_successor();
  wait_for_predecessor();
  const DType dtype = kType == kAny ? call.weight.dtype : static_cast<DType>(kType);
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const int head = static_cast<int>(blockIdx.y);
  const int first_row = static_cast<int>(blockIdx.z) * kTileRows;
  const int first_out = static_cast<int>(blockIdx.x) * kTileOutputs;
  const int terms = call.transposed ? call.n : call.k, made = call.transposed ? call.k : call.n;
  const int left = call.x_head - terms, out_head = made + left;
  const auto x_of = [&](int row) {
    return call.x + (static_cast<std::int64_t>(row) * call.heads + head) * call.x_head;
  };
  const auto out_of = [&](int row) {
    return call.out + (static_cast<std::int64_t>(row) * call.heads + head) * out_head;
  };
  if (blockIdx.x == 0)
    for (int r = first_row + warp; r < min(first_row + kTileRows, call.rows); r += kProductWarps)
      for (int i = lane; i < left; i += kWarp) out_of(r)[made + i] = x_of(r)[terms + i];
  const int warp_row = warp % (kTileRows / kWarpRows) * kWarpRows;
  const int warp_out = warp / (kTileRows / kWarpRows) * kWarpOutputs;
  constexpr int kXEach = kTileRows / kProductWarps, kWEach = kTileOutputs * kTileTerms / kProductThreads;
  float sums[kWarpRows / 16][kWarpOutputs / 8][4] = {};
  for (int first = 0; first < terms; first += kTileTerms) {
    const int term = first + lane;
    __syncthreads();
    float x_new[kXEach];
#pragma unroll
    for (int i = 0; i < kXEach; ++i)
      x_new[i] = x_of(min(first_row + warp + i * kProductWarps, call.rows - 1))[min(term, terms - 1)];
#pragma unroll
    for (int i = 0; i < kXEach; ++i) {
      const int r = warp + i * kProductWarps;
      Parts::put(x + r * kTilePitch + lane, kXPart, first_row + r < call.rows && term < terms ? x_new[i] : 0.0f);
    }
    // Neighbouring lanes have neighbours in a row of the weights.
    const auto place_of = [&](int i) {
      constexpr int kAcross = kTileOutputs / kWarp;  // warps that share a row of a transposed matrix
      return call.transposed ? make_int2(i * kProductWarps / kAcross + warp / kAcross, warp % kAcross * kWarp + lane)
                             : make_int2(lane, warp + i * kProductWarps);  // term, output
    };
#pragma unroll
    for (int some = 0; some < kWEach; some += kWEach / 2) {
      float w_new[kWEach / 2];
#pragma unroll
      for (int i = 0; i < kWEach / 2; ++i) {
        const int2 at = place_of(some + i);
        const int row = call.transposed ? first + at.x : first_out + at.y;
        const int col = call.transposed ? first_out + at.y : first + at.x;
        w_new[i] = element(dtype, matrix_row(call, head, min(row, call.n - 1), row_bytes), min(col, call.k - 1));
      }
#pragma unroll
      for (int i = 0; i < kWEach / 2; ++i) {
        const int2 at = place_of(some + i);
        const bool there = first + at.x < terms && first_out + at.y < made;
        Parts::put(w + at.y * kTilePitch + at.x, kWPart, there ? w_new[i] : 0.0f);
      }
    }
    __syncthreads();
#pragma unroll
    for (int step = 0; step < kTileTerms; step += 16) {
#pragma unroll
      for (int part = 0; part < (kSplit ? 3 : 1); ++part) {  // high high, high low, low high
        const __nv_bfloat16* const x_part = x + (part == 2 ? kXPart : 0);
        const __nv_bfloat16* const w_part = w + (part == 1 ? kWPart : 0);
        unsigned a[kWarpRows / 16][4];
#pragma unroll
        for (int m = 0; m < kWarpRows / 16; ++m)
          load_blocks(a[m], x_part + (warp_row + m * 16 + lane % 16) * kTilePitch + step + lane / 16 * 8);
#pragma unroll
        for (int n = 0; n < kWarpOutputs / 8; n += 2) {
          unsigned b[4];
          load_blocks(b, w_part + (warp_out + n * 8 + lane / 16 * 8 + lane % 8) * kTilePitch + step + lane / 8 % 2 * 8);
#pragma unroll
          for (int m = 0; m < kWarpRows / 16; ++m) {
            multiply_bfloats(sums[m][n], a[m], b[0], b[1]);
            multiply_bfloats(sums[m][n + 1], a[m], b[2], b[3]);
          }
        }
      }
    }
  }
#pragma unroll
  for (int m = 0; m < kWarpRows / 16; ++m) {
#pragma unroll
    for (int n = 0; n < kWarpOutputs / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = first_row + warp_row + m * 16 + lane / 4 + i / 2 * 8;
        const int o = first_out + warp_out + n * 8 + lane % 4 * 2 + i % 2;
        if (row < call.rows && o < made) out_of(row)[o] = sums[m][n][i];
      }
    }
  }
}

using HeadKernel = void (*)(HeadProductCall, std::int64_t);

/// Which kernel takes such a call's weights.
template <int kType>
HeadKernel kernel_of(const HeadProductCall& call) {
  constexpr bool kFloat = kType == static_cast<int>(DType::f16) || kType == static_cast<int>(DType::bf16) ||
                          kType == static_cast<int>(DType::f32);
  if (call.prompt) return head_prompt_kernel<kType, kFloat>;
  if (call.transposed) return head_transposed_kernel;
  return call.rows == 1 ? head_product_kernel<kType, 1> : head_product_kernel<kType, kProductRows>;
}
HeadKernel kernel_for(const HeadProductCall& call) {
  switch (call.weight.dtype) {
    case DType::q8_0:
      return kernel_of<static_cast<int>(DType::q8_0)>(call);
    case DType::q4_0:
      return kernel_of<static_cast<int>(DType::q4_0)>(call);
    case DType::q4_k:
      return kernel_of<static_cast<int>(DType::q4_k)>(call);
    case DType::f16:
      return kernel_of<static_cast<int>(DType::f16)>(call);
    case DType::bf16:
      return kernel_of<static_cast<int>(DType::bf16)>(call);
    case DType::f32:
      return kernel_of<static_cast<int>(DType::f32)>(call);
    default:
      return kernel_of<kAny>(call);
  }
}

}  // namespace

cudaError_t head_product(const HeadProductCall& call, cudaStream_t stream) {
  if (call.rows <= 0) return cudaSuccess;
  const int taken = call.transposed ? call.n : call.k, made = call.transposed ? call.k : call.n;
  if (taken > kMostLatentDim || taken > call.x_head) return cudaErrorInvalidValue;
  const auto pieces = [](int all, int each) { return static_cast<unsigned>((all + each - 1) / each); };
  const auto heads = static_cast<unsigned>(call.heads);
  const std::int64_t bytes = row_bytes(call.weight.dtype, call.k);
  if (call.prompt)
    return launch(kernel_for(call), dim3(pieces(made, kTileOutputs), heads, pieces(call.rows, kTileRows)),
                  dim3(kProductThreads), 0, stream, call, bytes);
  const int threads = call.transposed ? kTransposedThreads : kProductThreads,
            outputs = call.transposed ? kTransposedThreads : kProductOutputs,
            rows = call.transposed || call.rows > 1 ? kProductRows : 1;
  const dim3 grid(pieces(made, outputs), heads, pieces(call.rows, rows));
  const std::size_t shared = static_cast<std::size_t>(rows * taken) * sizeof(float);
  return launch(kernel_for(call), grid, dim3(static_cast<unsigned>(threads)), shared, stream, call, bytes);
}

}  // namespace millrace::kernels::cuda
