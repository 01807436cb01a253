// matmul_half() of whole_rows.h: products of many rows with weights in 16 bits by mma.m16n8k16. A block makes a tile of
// rows of x by rows of the matrix. Pieces of kDepth channels of both come into shared memory by asynchronous copies,
// kStages - 1 of them ahead, and reach the tensor cores by ldmatrix; bfloat16 becomes f16 behind it, in registers. Of a
// pair, half of a block's rows of weights are the gate's and half the up's, sixteen of each a warp, so that a thread
// has both of what it makes one of.
//
// Rows and weights past the end are the last ones again, whose results nobody stores; channels past the end are zeros,
// which change no sum. So a row's bits depend on neither its tile nor the tile's size.
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/async_copy.cuh"
#include "kernels/cuda/exp.cuh"
#include "kernels/cuda/launchers.h"
#include "kernels/cuda/pdl.cuh"
#include "kernels/cuda/tensor_core.cuh"
#include "kernels/cuda/warp.cuh"

namespace millrace::kernels::cuda {
namespace {

constexpr int kStages = 3;
constexpr int kWarpCols = 32;  // rows of weights of a warp

/// kM rows of x by kN rows of weights, kDepth channels at a time, by warps of kWarpRows x kWarpCols.
template <int kTileM, int kTileN, int kTileDepth, int kTileWarpRows, int kLeastBlocks>
struct HalfTile {
  static constexpr int kM = kTileM, kN = kTileN, kDepth = kTileDepth, kWarpRows = kTileWarpRows;
  static constexpr int kBlocks = kLeastBlocks;  // of a multiprocessor
  static constexpr int kWarpsN = kN / kWarpCols, kThreads = kM / kWarpRows * kWarpsN * kWarp;
  static constexpr int kPitch = 2 * kDepth;          // bytes of a line of shared memory
  static constexpr int kChunks = kPitch / 16;        // of a line
  static constexpr int kLines = kThreads / kChunks;  // that the block's threads copy at once
  static constexpr int kStage = (kM + kN) * kPitch;  // bytes; x, then weights
  static constexpr int kRowParts = kM / kLines, kWeightParts = kN / kLines;
  static_assert(kStages * kStage <= 48 * 1024 && kLines % 16 == 0 && kM % kLines == 0 && kN % kLines == 0);

  /// Chunk c of a line lies at place c ^ place_of(line), so that eight lines' chunks meet all banks.
  static __device__ __forceinline__ int place_of(int line) { return kChunks == 8 ? line % 8 : line / 2 % 4; }
};
using LargeTile = HalfTile<128, 128, 32, 64, 2>;
using SmallTile = HalfTile<64, 64, 64, 32, 4>;

struct HalfArgs {
  const std::byte* const* weight[2];  // the second: a pair's up
  const std::byte* const* bias[2];
  bool is_bf16[2];
  Effect effect;
  Gate gate;
  std::int32_t rows, cols, x_rows;
  const __half* x;
  const float* unit;
  float* y;
  std::int64_t y_stride;
  bool twos;  // every second float of y can be stored with the next
};

__device__ __forceinline__ void load_four(unsigned (&to)[4], unsigned from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(from)
               : "memory");
}

/// Two bfloat16 as f16, at most the largest of those; NaN stays.
__device__ __forceinline__ unsigned halves_of_bf16(unsigned two) {
  const __half2 most = __half2half2(__ushort_as_half(0x7bff)), least = __half2half2(__ushort_as_half(0xfbff));
  __half2 h = __floats2half2_rn(__uint_as_float(two << 16), __uint_as_float(two & 0xffff0000u));
  h = __hmin2_nan(__hmax2_nan(h, least), most);
  return *reinterpret_cast<const unsigned*>(&h);
}

template <typename T>
using Sums = float[T::kWarpRows / 16][kWarpCols / 8][4];

/// The block's sums; kConvert: weights may be bfloat16.
template <typename T, bool kPair, bool kConvert>
__device__ __forceinline__ void multiply_tile(const HalfArgs& a, std::byte* shared, int m0, int n0, Sums<T>& sums) {
  constexpr int kMs = T::kWarpRows / 16, kNs = kWarpCols / 8;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / kWarp, lane = thread % kWarp;

  // What this thread copies: chunk `chunk` of lines `line`, `line` + kLines, ...
  const int line = thread / T::kChunks, chunk = thread % T::kChunks;
  const __half *x_from[T::kRowParts], *w_from[T::kWeightParts];
#pragma unroll
  for (int i = 0; i < T::kRowParts; ++i) {
    const int row = min(m0 + line + i * T::kLines, a.x_rows - 1);
    x_from[i] = a.x + static_cast<std::int64_t>(row) * a.cols + chunk * 8;
  }
#pragma unroll
  for (int i = 0; i < T::kWeightParts; ++i) {
    const int place = line + i * T::kLines;
    const bool up = kPair && place % kWarpCols >= kWarpCols / 2;
    const int n = kPair ? place / kWarpCols * (kWarpCols / 2) + place % (kWarpCols / 2) : place;
    const auto* const matrix = reinterpret_cast<const __half*>(*a.weight[up ? 1 : 0]);
    w_from[i] = matrix + static_cast<std::int64_t>(min(n0 + n, a.rows - 1)) * a.cols + chunk * 8;
  }
  std::byte* const to = shared + line * T::kPitch + (chunk ^ T::place_of(line)) * 16;
  const auto bring = [&](int step) {
    const int k = step * T::kDepth;
    const bool there = k + chunk * 8 < a.cols;
    std::byte* const stage = to + step % kStages * T::kStage;
#pragma unroll
    for (int i = 0; i < T::kRowParts; ++i) copy_16(stage + i * T::kLines * T::kPitch, x_from[i] + k, there);
#pragma unroll
    for (int i = 0; i < T::kWeightParts; ++i)
      copy_16(stage + (T::kM + i * T::kLines) * T::kPitch, w_from[i] + k, there);
  };

  // What this lane's row of ldmatrix's matrices is: of x rows 0 to 15 of channels 0 to 7, then of 8 to 15; of weights
  // rows 0 to 7 of both, then rows 8 to 15.
  const int x_line = lane % 16, w_line = lane / 16 * 8 + lane % 8;
  const unsigned x_at =
      (warp / T::kWarpsN * T::kWarpRows + x_line) * T::kPitch + ((lane / 16) ^ T::place_of(x_line)) * 16;
  const unsigned w_at =
      (T::kM + warp % T::kWarpsN * kWarpCols + w_line) * T::kPitch + ((lane / 8 % 2) ^ T::place_of(w_line)) * 16;
  const unsigned base = shared_address(shared);

#pragma unroll
  for (int m = 0; m < kMs; ++m) {
#pragma unroll
    for (int n = 0; n < kNs; ++n) sums[m][n][0] = sums[m][n][1] = sums[m][n][2] = sums[m][n][3] = 0;
  }
  const int steps = (a.cols + T::kDepth - 1) / T::kDepth;
#pragma unroll
  for (int s = 0; s < kStages - 1; ++s) {
    if (s < steps) bring(s);
    copies_commit();
  }
  for (int step = 0; step < steps; ++step) {
    copies_wait<kStages - 2>();
    __syncthreads();  // this step's pieces are there, and nobody reads those of the step before
    if (step + kStages - 1 < steps) bring(step + kStages - 1);
    copies_commit();
    const unsigned stage = base + step % kStages * T::kStage;
#pragma unroll
    for (int k = 0; k < T::kDepth / 16; ++k) {
      unsigned x[kMs][4], w[kNs / 2][4];
#pragma unroll
      for (int n = 0; n < kNs / 2; ++n) load_four(w[n], stage + (w_at ^ (k * 32)) + n * 16 * T::kPitch);
#pragma unroll
      for (int m = 0; m < kMs; ++m) load_four(x[m], stage + (x_at ^ (k * 32)) + m * 16 * T::kPitch);
      if constexpr (kConvert) {
#pragma unroll
        for (int n = 0; n < kNs / 2; ++n) {
          if (kPair && !a.is_bf16[n]) continue;  // of a pair the first sixteen are the gate's, the others the up's
#pragma unroll
          for (int i = 0; i < 4; ++i) w[n][i] = halves_of_bf16(w[n][i]);
        }
      }
#pragma unroll
      for (int m = 0; m < kMs; ++m) {
#pragma unroll
        for (int n = 0; n < kNs; ++n) multiply_halves(sums[m][n], x[m], w[n / 2][n % 2 * 2], w[n / 2][n % 2 * 2 + 1]);
      }
    }
  }
}

/// Two neighbours of y; `second`: the latter is of the row, too.
__device__ __forceinline__ void put(const HalfArgs& a, float* y, float2 v, bool second) {
  if (a.twos && second) {
    if (a.effect == Effect::add) {
      const float2 before = *reinterpret_cast<const float2*>(y);
      v = make_float2(before.x + v.x, before.y + v.y);
    }
    *reinterpret_cast<float2*>(y) = v;
    return;
  }
  y[0] = a.effect == Effect::add ? y[0] + v.x : v.x;
  if (second) y[1] = a.effect == Effect::add ? y[1] + v.y : v.y;
}

template <typename T, bool kPair, bool kConvert>
__global__ void __launch_bounds__(T::kThreads, T::kBlocks) half_matmul_kernel(const __grid_constant__ HalfArgs a) {
  constexpr int kMs = T::kWarpRows / 16, kNs = kWarpCols / 8 / (kPair ? 2 : 1);  // kNs: of results
  __shared__ __align__(128) std::byte shared[kStages * T::kStage];
  allow_successor();
  wait_for_predecessor();
  const int m0 = static_cast<int>(blockIdx.y) * T::kM, n0 = static_cast<int>(blockIdx.x) * T::kN / (kPair ? 2 : 1);
  Sums<T> sums;
  multiply_tile<T, kPair, kConvert>(a, shared, m0, n0, sums);

  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const int first_row = m0 + warp / T::kWarpsN * T::kWarpRows + lane / 4;  // and every eighth
  const int first_col = n0 + (warp % T::kWarpsN * kNs) * 8 + lane % 4 * 2;
  float unit[2 * kMs];
#pragma unroll
  for (int i = 0; i < 2 * kMs; ++i) unit[i] = first_row + 8 * i < a.x_rows ? a.unit[first_row + 8 * i] : 0.0f;
  const auto bias_of = [&](int side, int col) {
    if (a.bias[side] == nullptr) return make_float2(0, 0);
    const float* const bias = reinterpret_cast<const float*>(*a.bias[side]) + col;
    return make_float2(bias[0], col + 1 < a.rows ? bias[1] : 0.0f);
  };
  const auto finish = [&](const float(&four)[4], int i, bool has_bias, float2 bias) {
    float2 v = make_float2(four[i % 2 * 2] * unit[i], four[i % 2 * 2 + 1] * unit[i]);
    return has_bias ? make_float2(v.x + bias.x, v.y + bias.y) : v;
  };
  const auto put_all = [&](auto gate) {
#pragma unroll
    for (int n = 0; n < kNs; ++n) {
      const int col = first_col + 8 * n;
      if (col >= a.rows) continue;
      const float2 bias = bias_of(0, col), up_bias = kPair ? bias_of(1, col) : bias;
#pragma unroll
      for (int i = 0; i < 2 * kMs; ++i) {
        if (first_row + 8 * i >= a.x_rows) continue;
        float2 v = finish(sums[i / 2][n], i, a.bias[0] != nullptr, bias);
        if constexpr (kPair) {
          const float2 up = finish(sums[i / 2][n + kNs], i, a.bias[1] != nullptr, up_bias);
          v = make_float2(gate(v.x, up.x), gate(v.y, up.y));
        }
        put(a, a.y + (first_row + 8 * i) * a.y_stride + col, v, col + 1 < a.rows);
      }
    }
  };
  if constexpr (kPair) {
    for_activation_or_erf(a.gate.activation, [&](auto which) {
      put_all([&a](float g, float u) { return gated<decltype(which)::value>(g, u, a.gate); });
    });
  } else {
    put_all(0);
  }
}

template <typename T, bool kPair>
cudaError_t launch_tile(const HalfArgs& a, dim3 grid, cudaStream_t stream) {
  auto* const kernel = a.is_bf16[0] || (kPair && a.is_bf16[1]) ? half_matmul_kernel<T, kPair, true>
                                                               : half_matmul_kernel<T, kPair, false>;
  return launch(kernel, grid, dim3(T::kThreads), 0, stream, a);
}

template <bool kPair>
cudaError_t launch_half(const HalfArgs& a, cudaStream_t stream) {
  const auto grid = [&](int tile_rows, int tile_cols) {
    const int each = tile_cols / (kPair ? 2 : 1);
    return dim3(static_cast<unsigned>((a.rows + each - 1) / each),
                static_cast<unsigned>((a.x_rows + tile_rows - 1) / tile_rows));
  };
  const dim3 large = grid(LargeTile::kM, LargeTile::kN);
  if (a.x_rows > SmallTile::kM && large.x * large.y >= static_cast<unsigned>(multiprocessor_count()))
    return launch_tile<LargeTile, kPair>(a, large, stream);
  return launch_tile<SmallTile, kPair>(a, grid(SmallTile::kM, SmallTile::kN), stream);
}

}  // namespace

cudaError_t matmul_half(const MatmulCall& call, HalfRows x, cudaStream_t stream) {
  const bool pair = call.effect == Effect::gated;
  if (call.y_q8.q != nullptr || call.y_bf16 != nullptr || call.also.count > 0) return cudaErrorInvalidValue;
  if (pair && call.count != 2) return cudaErrorInvalidValue;
  for (int p = 0; p < call.count; ++p)
    if (!has_half_product(call.products[p].weight.dtype, call.cols)) return cudaErrorInvalidValue;
  if (call.x_rows <= 0 || call.cols <= 0) return cudaSuccess;
  for (int p = 0; p < (pair ? 1 : call.count); ++p) {
    const Product& product = call.products[p];
    if (product.weight.rows <= 0) continue;
    HalfArgs a{};
    for (int side = 0; side < (pair ? 2 : 1); ++side) {
      const Product& of = call.products[p + side];
      a.weight[side] = of.weight.address;
      a.bias[side] = of.bias;
      a.is_bf16[side] = of.weight.dtype == DType::bf16;
    }
    a.effect = call.effect;
    a.gate = gate_of(call.activation, call.limit);
    a.rows = product.weight.rows;
    a.cols = call.cols;
    a.x_rows = call.x_rows;
    a.x = reinterpret_cast<const __half*>(x.x);
    a.unit = x.unit;
    a.y = product.y;
    a.y_stride = product.y_stride;
    a.twos = a.y_stride % 2 == 0 && reinterpret_cast<std::uintptr_t>(a.y) % sizeof(float2) == 0;
    const cudaError_t error = pair ? launch_half<true>(a, stream) : launch_half<false>(a, stream);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace millrace::kernels::cuda
