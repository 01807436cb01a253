// An indexer's scores on the f16 tensor cores. A block takes 128 keys and goes through some rows of a prompt; a warp
// has 32 keys, all of whose channels stay in its registers as the rows of the products, and all heads as the columns.
// So a lane adds up the heads of its own columns, and four lanes have a key's score. Contract: indexer.h.
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/async_copy.cuh"
#include "kernels/cuda/attention_half.cuh"
#include "kernels/cuda/index_tile.cuh"
#include "kernels/cuda/pdl.cuh"
#include "kernels/cuda/warp.cuh"

namespace millrace::kernels::cuda {
namespace {

constexpr int kLanes = 32;
constexpr int kTileKeys = 128, kTileThreads = 128, kKeysOfWarp = 32;
constexpr int kMostDim = 128, kMostSteps = kMostDim / 16;
constexpr int kHeads = 64;  // columns: zeros behind the last head
constexpr int kRowsOfBlock = 32;
constexpr int kKeyPitch = kTileKeys + 8;  // halves
constexpr int kParts = 2;                 // of a query: high, and what that leaves

/// A row's queries: [kHeads, kParts, dim] halves, then [kHeads] weights.
__host__ __device__ constexpr int factor_pitch(int dim) { return kParts * dim + 8; }  // halves, in shared memory
struct Factors {
  __device__ Factors(std::byte* memory, int row, int dim)
      : halves(reinterpret_cast<__half*>(memory + static_cast<std::int64_t>(row) * kIndexFactorBytes)),
        weights(reinterpret_cast<float*>(halves + kHeads * kParts * dim)) {}
  __half* halves;
  float* weights;
};
static_assert(kIndexFactorBytes == kHeads * (kParts * kMostDim * sizeof(__half) + sizeof(float)));

__device__ __forceinline__ void load_matrices(unsigned (&r)[4], unsigned from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(from)
               : "memory");
}

/// A warp a head of a row.
__global__ void __launch_bounds__(kTileThreads)
    index_factors_kernel(const __grid_constant__ ScoreArgs args, std::byte* memory) {
  allow_successor();
  wait_for_predecessor();
  const ChooseKeysCall& call = args.call;
  const int lane = static_cast<int>(threadIdx.x) % kLanes, dim = call.index.dim;
  const int head = static_cast<int>(blockIdx.y) * (kTileThreads / kLanes) + static_cast<int>(threadIdx.x) / kLanes;
  const int row = args.first_row + static_cast<int>(blockIdx.x);
  if (call.rows.position[row] < call.top_k) return;
  const Factors to(memory, static_cast<int>(blockIdx.x), dim);
  const bool exists = head < call.heads;
  const float* const from = call.q + (static_cast<std::int64_t>(row) * call.heads + head) * dim;
  float x[kMostDim / kLanes];
  unsigned bits = 0;
#pragma unroll
  for (int i = 0; i < kMostDim / kLanes; ++i) {
    const int c = i * kLanes + lane;
    x[i] = exists && c < dim ? from[c] : 0;
    bits = max(bits, __float_as_uint(x[i]) & 0x7fffffffu);
  }
  bits = max_over_warp(bits);
  const int exponent = static_cast<int>(bits >> 23) - 127;
  const int up = exponent >= -100 && exponent < 128 ? 10 - exponent : 0;
  const float power = power_of_two(static_cast<unsigned>(up));
#pragma unroll
  for (int i = 0; i < kMostDim / kLanes; ++i) {
    const int c = i * kLanes + lane;
    if (c >= dim) continue;
    const __half high = __float2half_rn(x[i] * power);
    to.halves[head * kParts * dim + c] = high;
    to.halves[(head * kParts + 1) * dim + c] = __float2half_rn(x[i] * power - __half2float(high));
  }
  if (lane == 0)
    to.weights[head] = exists ? call.weights[static_cast<std::int64_t>(row) * call.heads + head] * call.factor *
                                    power_of_two(static_cast<unsigned>(-up))
                              : 0;
}

std::size_t shared_bytes(int dim) {
  const std::size_t factors = kHeads * (factor_pitch(dim) * sizeof(__half) + sizeof(float));
  return std::max(2 * factors, dim * kKeyPitch * sizeof(__half));
}

/// Of a row, one of two places in shared memory.
struct RowPlace {
  __device__ RowPlace(std::byte* memory, int which, int dim)
      : halves(
            reinterpret_cast<__half*>(memory + which * kHeads * (factor_pitch(dim) * sizeof(__half) + sizeof(float)))),
        weights(reinterpret_cast<float*>(halves + kHeads * factor_pitch(dim))) {}
  __half* halves;
  float* weights;
};

__device__ __forceinline__ void load_row(const RowPlace& to, std::byte* memory, int row, int dim) {
  const Factors from(memory, row, dim);
  const int units = kParts * dim / 8;  // of a head
  for (int u = static_cast<int>(threadIdx.x); u < kHeads * units; u += kTileThreads) {
    const int head = u / units, at = u % units * 8;
    copy_16(to.halves + head * factor_pitch(dim) + at, from.halves + head * kParts * dim + at);
  }
  if (threadIdx.x < kHeads / 4) copy_16(to.weights + 4 * threadIdx.x, from.weights + 4 * threadIdx.x);
  copies_commit();
}

/// The keys of a tile of a sequence as a warp's factors: {key lane / 4, channels 2 (lane % 4) and + 1; key + 8; the
/// same, channels + 8} of sixteen keys and channels.
using KeyFactors = unsigned[2][kMostSteps][4];
__device__ __forceinline__ void load_keys(KeyFactors& keys, const ChooseKeysCall& call, std::byte* memory, int sequence,
                                          int first_key, int last_position) {
  const int dim = call.index.dim, lane = static_cast<int>(threadIdx.x) % kLanes;
  const std::byte* const near = index_block(call.index, sequence, first_key);
  const std::byte* const far =
      first_key + kKvBlock > last_position ? near : index_block(call.index, sequence, first_key + kKvBlock);
  auto* const to = reinterpret_cast<__half*>(memory);
  constexpr int kUnits = kTileKeys / 8;
  for (int u = static_cast<int>(threadIdx.x); u < dim * kUnits; u += kTileThreads) {
    const int channel = u / kUnits, key = u % kUnits * 8;
    const auto* const from = reinterpret_cast<const __half*>(key < kKvBlock ? near : far);
    copy_16(to + channel * kKeyPitch + key, from + channel * kKvBlock + key % kKvBlock);
  }
  copies_commit();
  copies_wait<0>();
  __syncthreads();
  const int of_warp = static_cast<int>(threadIdx.x) / kLanes * kKeysOfWarp;
  const unsigned from = shared_address(to + (lane / 16 * 8 + lane % 8) * kKeyPitch + of_warp + lane / 8 % 2 * 8);
#pragma unroll
  for (int t = 0; t < kMostSteps; ++t) {
    if (16 * t >= dim) continue;
#pragma unroll
    for (int m = 0; m < 2; ++m)
      load_columns(keys[m][t], from + static_cast<unsigned>((16 * t * kKeyPitch + 16 * m) * sizeof(__half)));
  }
  __syncthreads();
}

/// Scores of the warp's keys with one row: of the lane's columns, then of all four lanes.
__device__ __forceinline__ void score_row(const KeyFactors& keys, const RowPlace& row, int dim, float (&scores)[2][2]) {
  const int lane = static_cast<int>(threadIdx.x) % kLanes, quarter = lane % 4;
  const unsigned from = shared_address(row.halves + (lane / 16 * 8 + lane % 8) * factor_pitch(dim) + lane / 8 % 2 * 8);
#pragma unroll
  for (int m = 0; m < 2; ++m) scores[m][0] = scores[m][1] = 0;
#pragma unroll 1
  for (int first = 0; first < kHeads; first += 32) {
    float dots[2][4][4] = {};
#pragma unroll
    for (int t = 0; t < kMostSteps; ++t) {
      if (16 * t >= dim) continue;
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
#pragma unroll
        for (int pair = 0; pair < 2; ++pair) {
          unsigned b[4];
          const int at = (first + 16 * pair) * factor_pitch(dim) + part * dim + 16 * t;
          load_matrices(b, from + static_cast<unsigned>(at * static_cast<int>(sizeof(__half))));
#pragma unroll
          for (int m = 0; m < 2; ++m) {
            multiply_halves(dots[m][2 * pair], keys[m][t], b[0], b[1]);
            multiply_halves(dots[m][2 * pair + 1], keys[m][t], b[2], b[3]);
          }
        }
      }
    }
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const float2 weight = *reinterpret_cast<const float2*>(row.weights + first + 8 * n + 2 * quarter);
#pragma unroll
      for (int m = 0; m < 2; ++m) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float& sum = scores[m][half];
          sum = __fmaf_rn(weight.x, fmaxf(dots[m][n][2 * half], 0.0f), sum);
          sum = __fmaf_rn(weight.y, fmaxf(dots[m][n][2 * half + 1], 0.0f), sum);
        }
      }
    }
  }
#pragma unroll
  for (int m = 0; m < 2; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      scores[m][half] += __shfl_xor_sync(kFullWarp, scores[m][half], 1);
      scores[m][half] += __shfl_xor_sync(kFullWarp, scores[m][half], 2);
    }
  }
}

__global__ void __launch_bounds__(kTileThreads)
    index_tile_kernel(const __grid_constant__ ScoreArgs args, std::byte* factors, int rows) {
  extern __shared__ __align__(128) std::byte memory[];
  allow_successor();
  wait_for_predecessor();
  const ChooseKeysCall& call = args.call;
  const int first_key = static_cast<int>(blockIdx.x) * kTileKeys, dim = call.index.dim;
  const std::int32_t* const position = call.rows.position + args.first_row;
  const std::int32_t* const sequence = call.rows.sequence + args.first_row;
  const int end = min(rows, static_cast<int>(blockIdx.y + 1) * kRowsOfBlock);
  // Rows that choose, and see some of the keys.
  const auto next = [&](int row) {
    while (row < end && (position[row] < call.top_k || position[row] < first_key)) ++row;
    return row;
  };
  int row = next(static_cast<int>(blockIdx.y) * kRowsOfBlock);
  while (row < end) {
    const int of = sequence[row];
    int last = position[row];
    for (int r = row; r < end && sequence[r] == of; ++r) last = max(last, position[r]);
    KeyFactors keys;
    load_keys(keys, call, memory, of, first_key, last);
    load_row(RowPlace(memory, 0, dim), factors, row, dim);
    for (int which = 0; row < end && sequence[row] == of; which ^= 1) {
      const int after = next(row + 1);
      if (after < end && sequence[after] == of)
        load_row(RowPlace(memory, which ^ 1, dim), factors, after, dim);
      else
        copies_commit();
      copies_wait<1>();
      __syncthreads();
      float scores[2][2];
      score_row(keys, RowPlace(memory, which, dim), dim, scores);
      const int lane = static_cast<int>(threadIdx.x) % kLanes;
      const int key = first_key + static_cast<int>(threadIdx.x) / kLanes * kKeysOfWarp + lane / 4;
      float* const out = args.scores + static_cast<std::int64_t>(row) * args.stride;
#pragma unroll
      for (int m = 0; m < 2; ++m) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int at = key + 16 * m + 8 * half;
          if (lane % 4 == 0 && at <= position[row]) out[at] = scores[m][half];
        }
      }
      __syncthreads();
      row = after;
    }
  }
}

}  // namespace

bool index_tiles_take(const ChooseKeysCall& call) {
  return call.prompt && call.index.dtype == DType::f16 && call.index.dim <= kMostDim && call.heads <= kHeads &&
         shared_bytes(call.index.dim) <= block_shared_bytes();
}

cudaError_t index_tiles(const ScoreArgs& args, std::byte* factors, int rows, cudaStream_t stream) {
  const cudaError_t error =
      launch(index_factors_kernel, dim3(static_cast<unsigned>(rows), kHeads / (kTileThreads / kLanes)),
             dim3(kTileThreads), 0, stream, args, factors);
  if (error != cudaSuccess) return error;
  const dim3 grid(static_cast<unsigned>(args.stride / kTileKeys),
                  static_cast<unsigned>((rows + kRowsOfBlock - 1) / kRowsOfBlock));
  return launch_large(index_tile_kernel, grid, dim3(kTileThreads), shared_bytes(args.call.index.dim), stream, 1, args,
                      factors, rows);
}

}  // namespace millrace::kernels::cuda
