// Ops that work row by row: embedding, RMS norm with int8 quantization, sums, and what prepares queries, keys and
// values for attention. Contracts in ops.h.
//
// A row's result does not depend on how many rows share the launch: whatever is summed is summed inside one block (RMS
// norm) or one warp (the norm of a head), in an order that follows from the row's length alone.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/capability.h"
#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/exp.cuh"
#include "kernels/cuda/gated_norm.cuh"
#include "kernels/cuda/kv_bits.cuh"
#include "kernels/cuda/kv_view.cuh"
#include "kernels/cuda/launchers.h"
#include "kernels/cuda/norm_sum.cuh"
#include "kernels/cuda/pdl.cuh"
#include "kernels/cuda/quantize.cuh"
#include "kernels/rotation.h"
#include "tensor/blocks.h"

namespace millrace::kernels::cuda {
namespace {

// ---------------------------------------------------------------------------------------------------------------------
// Embedding: one thread an element.

constexpr int kEmbedThreads = 256;

__global__ void embed_kernel(const std::byte* const* address, DType dtype, std::int64_t row_bytes,
                             const std::int32_t* tokens, int cols, float* out) {
  allow_successor();
  wait_for_predecessor();
  const int i = static_cast<int>(blockIdx.y) * kEmbedThreads + static_cast<int>(threadIdx.x);
  if (i >= cols) return;
  const std::int64_t row = blockIdx.x;
  out[row * cols + i] = element(dtype, *address + tokens[row] * row_bytes, i);
}

// ---------------------------------------------------------------------------------------------------------------------
// RMS norm

constexpr int kNormThreads = 512;

// A block a row, held in registers: float4 number tid + kNormThreads * i in v[i]. cols is a multiple of 4, and of 32 if
// there is an int8 result.
template <int kVectors>
__global__ void __launch_bounds__(kNormThreads) rms_norm_kernel(const __grid_constant__ NormCall call) {
  allow_successor();
  const int count = call.cols / 4;
  const auto* w_at = reinterpret_cast<const float4*>(*call.weight);
  float4 w[kVectors], v[kVectors];
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {  // a weight, that no earlier kernel of the pass writes
    const int at = static_cast<int>(threadIdx.x) + kNormThreads * i;
    w[i] = at < count ? w_at[at] : make_float4(0, 0, 0, 0);
  }
  wait_for_predecessor();
  const std::int64_t row = blockIdx.x;
  const auto* x_at = reinterpret_cast<const float4*>(call.x + (call.x_index ? call.x_index[row] : row) * call.cols);
  float squares = 0;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int at = static_cast<int>(threadIdx.x) + kNormThreads * i;
    v[i] = at < count ? x_at[at] : make_float4(0, 0, 0, 0);
  }
#pragma unroll
  for (int i = 0; i < kVectors; ++i) squares = add_squares(v[i], squares);
  const float scale = norm_scale(sum_over_block<kNormThreads>(squares), call.cols, call.eps);
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int at = static_cast<int>(threadIdx.x) + kNormThreads * i;
    if (at >= count) continue;
    const float y[4] = {v[i].x * scale * w[i].x, v[i].y * scale * w[i].y, v[i].z * scale * w[i].z,
                        v[i].w * scale * w[i].w};
    if (call.out) reinterpret_cast<float4*>(call.out)[row * count + at] = make_float4(y[0], y[1], y[2], y[3]);
    if (call.out_bf16) store_bf16(call.out_bf16, row * count + at, y);
    if (call.out_q8.q) {
      const std::int64_t block = row * (call.cols / 32) + at / 8;
      quantize_block(y, call.out_q8.q + 32 * block, call.out_q8.scale + block);
    }
  }
}

// The same for rows of any length, read twice.
__global__ void __launch_bounds__(kNormThreads) rms_norm_any_kernel(const __grid_constant__ NormCall call) {
  allow_successor();
  wait_for_predecessor();
  const std::int64_t row = blockIdx.x;
  const int cols = call.cols;
  const float* from = call.x + (call.x_index ? call.x_index[row] : row) * cols;
  const float* w = reinterpret_cast<const float*>(*call.weight);
  float squares = 0;
  for (int i = static_cast<int>(threadIdx.x); i < cols; i += kNormThreads) {
    squares = __fmaf_rn(from[i], from[i], squares);
  }
  const float scale = norm_scale(sum_over_block<kNormThreads>(squares), cols, call.eps);
  for (int i = static_cast<int>(threadIdx.x); i < cols; i += kNormThreads) {
    const float y[1] = {from[i] * scale * w[i]};
    if (call.out) call.out[row * cols + i] = y[0];
    if (call.out_bf16) reinterpret_cast<__nv_bfloat16*>(call.out_bf16)[row * cols + i] = __float2bfloat16_rn(y[0]);
    if (call.out_q8.q) {
      const std::int64_t block = row * (cols / 32) + i / 32;
      quantize_block(y, call.out_q8.q + 32 * block, call.out_q8.scale + block);
    }
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// Elementwise ops

constexpr int kThreads = 256;

// Eight threads a block of 32. `aligned`: rows start at multiples of 16 bytes.
__global__ void quantize_q8_kernel(const float* x, std::int64_t x_stride, std::int64_t blocks, int row_blocks,
                                   bool aligned, Q8 out) {
  allow_successor();
  wait_for_predecessor();
  const std::int64_t thread = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const std::int64_t block = thread / 8;
  if (block >= blocks) return;
  const float* from = x + block / row_blocks * x_stride + block % row_blocks * 32 + thread % 8 * 4;
  float v[4];
  if (aligned) {
    const float4 all = *reinterpret_cast<const float4*>(from);
    v[0] = all.x, v[1] = all.y, v[2] = all.z, v[3] = all.w;
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i] = from[i];
  }
  quantize_block(v, out.q + 32 * block, out.scale + block);
}

struct Add {
  __device__ float of(float x, float y) const { return x + y; }
};
template <Activation kActivation>
struct GateMul {
  Gate limits;
  __device__ float of(float gate, float up) const { return gated<kActivation>(gate, up, limits); }
};

/// x = op(x, y), four elements a thread.
template <typename Op>
__global__ void elementwise_kernel(Op op, float* x, const float* y, std::int64_t n) {
  allow_successor();
  wait_for_predecessor();
  const std::int64_t i = 4 * (static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x);
  if (i + 4 <= n) {
    auto* at = reinterpret_cast<float4*>(x + i);
    const float4 a = *at, b = *reinterpret_cast<const float4*>(y + i);
    *at = make_float4(op.of(a.x, b.x), op.of(a.y, b.y), op.of(a.z, b.z), op.of(a.w, b.w));
  } else {
    for (std::int64_t j = i; j < n; ++j) x[j] = op.of(x[j], y[j]);
  }
}

unsigned blocks_for(std::int64_t threads) { return static_cast<unsigned>((threads + kThreads - 1) / kThreads); }

template <typename Op>
cudaError_t elementwise(Op op, float* x, const float* y, std::int64_t n, cudaStream_t stream) {
  if (n <= 0) return cudaSuccess;
  return launch(elementwise_kernel<Op>, dim3(blocks_for((n + 3) / 4)), dim3(kThreads), 0, stream, op, x, y, n);
}

__global__ void to_bf16_kernel(const float* x, std::int64_t n, Bf16* out) {
  wait_for_predecessor();
  allow_successor();
  const std::int64_t at = (std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * 8;
  if (at >= n) return;
  const float4 a = reinterpret_cast<const float4*>(x + at)[0], b = reinterpret_cast<const float4*>(x + at)[1];
  alignas(16) const __nv_bfloat162 two[4] = {__floats2bfloat162_rn(a.x, a.y), __floats2bfloat162_rn(a.z, a.w),
                                             __floats2bfloat162_rn(b.x, b.y), __floats2bfloat162_rn(b.z, b.w)};
  *reinterpret_cast<uint4*>(out + at) = *reinterpret_cast<const uint4*>(two);
}

__global__ void gather_rows_kernel(const float* x, const std::int32_t* index, int cols, float* out) {
  allow_successor();
  wait_for_predecessor();
  const std::int64_t row = blockIdx.x;
  const float* from = x + static_cast<std::int64_t>(index[row]) * cols;
  for (int i = static_cast<int>(threadIdx.x); i < cols; i += kThreads) out[row * cols + i] = from[i];
}

// ---------------------------------------------------------------------------------------------------------------------
// Queries, keys and values before attention

constexpr int kRopeThreads = 256;

__device__ __forceinline__ void store_four(float* to, const float4& v) { *reinterpret_cast<float4*>(to) = v; }
__device__ __forceinline__ void store_four(__half* to, const float4& v) {
  uint2 bits;
  *reinterpret_cast<__half2*>(&bits.x) = __floats2half2_rn(v.x, v.y);
  *reinterpret_cast<__half2*>(&bits.y) = __floats2half2_rn(v.z, v.w);
  *reinterpret_cast<uint2*>(to) = bits;
}

/// Where a key or value goes: its channel 0, and in q8_0 and q4_0 the scale of its first 32 channels.
template <typename T>
struct KvPlace {
  T* to;  // null: nowhere
  __half* scale;
};

/// The same in few bits, whose signs, of a value, lie elsewhere; and in q8_0 in a plain block.
template <bool kSigns>
struct KvPlace<FewBits<kSigns>> {
  FewBits<kSigns>* to;
  __half* scale;
  std::uint8_t* signs;
  std::int8_t* plain;
  __half* plain_scale;
};

/// Where a token's key or value of few bits goes. entry: of its block in the tables.
template <bool kSigns>
__device__ __forceinline__ KvPlace<FewBits<kSigns>> few_bits_place(const KvView& kv, std::int64_t entry, int slot,
                                                                   int kv_head, bool is_key) {
  const int head_dim = kv.head_dim, groups = static_cast<int>(head_dim / kv_few_group(head_dim));
  const int fields = head_dim / 4, sign_bytes = kSigns ? head_dim / 8 : 0;  // of a token
  const auto part = [&](const KvView::Blocks& blocks) {
    return const_cast<std::byte*>(blocks.table[entry]) + kv_part(blocks, is_key, kv_head);
  };
  std::byte *const few = part(kv.blocks), *const plain = part(kv.plain);
  KvPlace<FewBits<kSigns>> place;
  place.to = reinterpret_cast<FewBits<kSigns>*>(few) + (is_key ? slot : slot * fields);
  place.signs = reinterpret_cast<std::uint8_t*>(few) + kKvBlock * fields + (is_key ? slot : slot * sign_bytes);
  place.scale = reinterpret_cast<__half*>(few + kKvBlock * (fields + sign_bytes)) + (is_key ? slot : slot * groups);
  place.plain = reinterpret_cast<std::int8_t*>(plain) + (is_key ? slot : slot * head_dim);
  place.plain_scale = reinterpret_cast<__half*>(plain + kKvBlock * head_dim) + (is_key ? slot : slot * (head_dim / 32));
  return place;
}

/// What a warp has encoded of a key, in its tile: the plain int8, the bytes of few bits, and the scales of both.
template <bool kSigns>
struct FewBitsTile {
  std::byte* at;
  int head_dim;
  static __device__ __forceinline__ int few_bytes(int head_dim) { return head_dim / 4 + (kSigns ? head_dim / 8 : 0); }
  __device__ __forceinline__ unsigned& word(int byte) const { return *reinterpret_cast<unsigned*>(at + byte); }
  __device__ __forceinline__ __half& plain_scale(int i) const {
    return reinterpret_cast<__half*>(at + head_dim + few_bytes(head_dim))[i];
  }
  __device__ __forceinline__ __half& scale(int g) const { return (&plain_scale(head_dim / 32))[g]; }
};

/// The plain bytes of a head: put(channel, int8 of four from it on) and scale(i, that of channels 32 i to 32 i + 31);
/// for the whole warp.
template <int kVectors, typename Put, typename PutScale>
__device__ __forceinline__ void give_plain(const float4 (&v)[kVectors], int head_dim, const Put& put,
                                           const PutScale& put_scale) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int channel = 4 * (lane + kWarp * i);
    const KvFour four = encode_q8_four(v[i]);
    if (channel >= head_dim) continue;
    put(channel, four.quants);
    if (channel % 32 == 0) put_scale(channel / 32, four.scale);
  }
}

/// A head of a value to its place; for the whole warp.
template <bool kSigns, int kVectors>
__device__ __forceinline__ void store_few_bits(const float4 (&v)[kVectors], int head_dim,
                                               const KvPlace<FewBits<kSigns>>& place) {
  const int fields = head_dim / 4;
  give_plain(
      v, head_dim, [&](int channel, unsigned word) { *reinterpret_cast<unsigned*>(place.plain + channel) = word; },
      [&](int i, __half scale) { place.plain_scale[i] = scale; });
  give_few_bits<kSigns>(
      v, head_dim,
      [&](int at, unsigned word) {
        auto* const to = at < fields ? reinterpret_cast<std::uint8_t*>(place.to) + at : place.signs + (at - fields);
        *reinterpret_cast<unsigned*>(to) = word;
      },
      [&](int g, __half scale) { place.scale[g] = scale; });
}

/// A head of a key into its tile; for the whole warp, whose lanes have read the tile.
template <bool kSigns, int kVectors>
__device__ __forceinline__ void keep_few_bits(const float4 (&v)[kVectors], const FewBitsTile<kSigns>& tile) {
  const int head_dim = tile.head_dim;
  give_plain(
      v, head_dim, [&](int channel, unsigned word) { tile.word(channel) = word; },
      [&](int i, __half scale) { tile.plain_scale(i) = scale; });
  give_few_bits<kSigns>(
      v, head_dim, [&](int at, unsigned word) { tile.word(head_dim + at) = word; },
      [&](int g, __half scale) { tile.scale(g) = scale; });
}

/// Four bytes of a key from its tile, by their number there, to its place, and the scales of that number.
template <bool kSigns>
__device__ __forceinline__ void store_key_bytes(const FewBitsTile<kSigns>& tile, int number,
                                                const KvPlace<FewBits<kSigns>>& place) {
  const int head_dim = tile.head_dim, at = 4 * number;
  const unsigned word = tile.word(at);
  auto* const to = at < head_dim ? reinterpret_cast<std::uint8_t*>(place.plain) + at * kKvBlock
                                 : reinterpret_cast<std::uint8_t*>(place.to) + (at - head_dim) * kKvBlock;
#pragma unroll
  for (int i = 0; i < 4; ++i) to[i * kKvBlock] = static_cast<std::uint8_t>(word >> (8 * i));
  if (number < head_dim / 32) place.plain_scale[number * kKvBlock] = tile.plain_scale(number);
  if (number < head_dim / kv_few_group(head_dim)) place.scale[number * kKvBlock] = tile.scale(number);
}

template <typename T>
__device__ __forceinline__ KvFour encode_four(const float4& four) {
  if constexpr (std::is_same_v<T, Nibbles>) {
    return encode_q4_four(four);
  } else {
    return encode_q8_four(four);
  }
}

/// A head of a value to its place; for the whole warp.
template <typename T, int kVectors>
__device__ __forceinline__ void store_value(const float4 (&v)[kVectors], int head_dim, const KvPlace<T>& place) {
  constexpr bool kQ4 = std::is_same_v<T, Nibbles>, kQuantized = kQ4 || std::is_same_v<T, std::int8_t>;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int channel = 4 * lane + 4 * kWarp * i;
    if constexpr (kQuantized) {
      const KvFour four = encode_four<T>(v[i]);
      unsigned bytes = four.quants;
      if constexpr (kQ4) bytes |= __shfl_xor_sync(kAllLanes, bytes, 4) << 4;  // the channels 16 behind
      if (channel >= head_dim) continue;
      if (!kQ4 || lane % 8 < 4) {
        const int at = kQ4 ? channel / 32 * 16 + channel % 32 : channel;
        *reinterpret_cast<unsigned*>(place.to + at) = bytes;
      }
      if (lane % 8 == 0) place.scale[channel / 32] = four.scale;
    } else {
      if (channel < head_dim) store_four(place.to + channel, v[i]);
    }
  }
}

// Blocks take `block_heads` x `block_rows` pairs of the pass's rows and of the heads of q, k and v, these in this
// order; a warp works on a pair, four neighbouring channels a lane, kVectors times. For prompts a block takes many rows
// of one head: keys then lie next to each other in a channel of the cache, and are stored together though the cache is
// channel-major.
template <typename T, int kVectors>
__global__ void __launch_bounds__(kRopeThreads)
    rope_store_kernel(RopeStoreCall call, int block_heads, int block_rows, float factor) {
  extern __shared__ __align__(16) float tiles[];  // [block_heads * block_rows, head_dim + 4]
  __shared__ KvPlace<T> key_at[kWarp];            // where a pair's key goes, if it has one
  constexpr bool kQ4 = std::is_same_v<T, Nibbles>, kFew = kIsFewBits<T>, kSigns = kHasSigns<T>,
                 kQuantized = kQ4 || kFew || std::is_same_v<T, std::int8_t>;
  allow_successor();
  const int head_dim = call.kv.head_dim, heads = call.heads, stride = head_dim + 4;
  const int kv_heads = call.k == nullptr ? 0 : call.kv.kv_heads;
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const int first_row = static_cast<int>(blockIdx.x) * block_rows;
  const int first_head = static_cast<int>(blockIdx.y) * block_heads;
  const int pairs = block_heads * block_rows;
  const int element_rows = kQ4 ? head_dim / 2 : head_dim;  // of a block's keys; T of a value
  const bool rotates = kQuantized && call.kv.rotation > 0;
  const auto channel = [&](int i) { return 4 * lane + 4 * kWarp * i; };

  // All pairs of a warp are of one head: a block has one head, or one row and no more pairs than warps.
  const int head = first_head + (block_rows == 1 ? warp : 0);
  const bool is_q = head < heads, is_k = !is_q && head < heads + kv_heads;
  const int kv_head = is_q || kv_heads == 0 ? 0 : (head - heads) % kv_heads;
  const std::byte* const* norm = is_q ? call.q_norm : is_k ? call.k_norm : nullptr;
  float4 w[kVectors];
  if (norm) {  // no kernel of the pass writes it, nor what place_of reads
    const float* weight = reinterpret_cast<const float*>(*norm);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      w[i] = channel(i) < head_dim ? *reinterpret_cast<const float4*>(weight + channel(i)) : make_float4(0, 0, 0, 0);
    }
  }
  const auto place_of = [&](int pair) -> KvPlace<T> {
    const int row = first_row + pair % block_rows;
    if (is_q || pair >= pairs || row >= call.rows.rows || head >= heads + 2 * kv_heads) return {nullptr, nullptr};
    const int position = call.rows.position[row], slot = position % kKvBlock;
    const std::int64_t entry = kv_entry(call.kv, call.rows.sequence[row], position);
    if constexpr (kFew) return few_bits_place<kSigns>(call.kv, entry, slot, kv_head, is_k);
    auto* block = reinterpret_cast<T*>(const_cast<std::byte*>(call.kv.blocks.table[entry]) +
                                       kv_part(call.kv.blocks, is_k, kv_head));
    __half* scale = nullptr;
    if constexpr (kQuantized) {
      scale = reinterpret_cast<__half*>(block + kKvBlock * element_rows) + (is_k ? slot : slot * (head_dim / 32));
    }
    return {is_k ? block + slot : block + slot * element_rows, scale};
  };
  float2 turn[2 * kVectors];  // of rotations lane, lane + 32, ...
  const auto angles_of = [&](int pair) {
    const int row = first_row + pair % block_rows, half = call.rotary / 2;
    if (head >= heads + kv_heads || pair >= pairs || row >= call.rows.rows) return;
    const auto* cos_sin = reinterpret_cast<const float2*>(call.cos_sin) + static_cast<std::int64_t>(row) * half;
#pragma unroll
    for (int i = 0; i < 2 * kVectors; ++i) {
      if (lane + kWarp * i < half) turn[i] = cos_sin[lane + kWarp * i];
    }
  };
  KvPlace<T> place = place_of(warp);
  angles_of(warp);
  wait_for_predecessor();

  for (int pair = warp; pair < pairs; pair += static_cast<int>(blockDim.x) / kWarp) {
    if (pair != warp) {
      place = place_of(pair);
      angles_of(pair);
    }
    if (lane == 0) key_at[pair] = is_k ? place : KvPlace<T>{nullptr, nullptr};
    const int row = first_row + pair % block_rows;
    if (row >= call.rows.rows || head >= heads + 2 * kv_heads) continue;
    const std::int64_t kv_at = (static_cast<std::int64_t>(row) * kv_heads + kv_head) * head_dim;
    float* const q = call.q + (static_cast<std::int64_t>(row) * heads + head) * head_dim;
    const float* from = is_q ? q : is_k ? call.k + kv_at : call.v + kv_at;
    float4 v[kVectors];
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      v[i] = channel(i) < head_dim ? *reinterpret_cast<const float4*>(from + channel(i)) : make_float4(0, 0, 0, 0);
    }
    const auto root_mean_square = [&] {  // what a head is multiplied by
      float squares = 0;
#pragma unroll
      for (int i = 0; i < kVectors; ++i) squares = add_squares(v[i], squares);
      return norm_scale(sum_over_warp(squares), head_dim, call.eps);
    };
    if (!is_q && !is_k) {
      const float scale = call.normalize_v ? root_mean_square() : 1.0f;
      if (call.normalize_v) {
#pragma unroll
        for (int i = 0; i < kVectors; ++i) {
          v[i] = make_float4(v[i].x * scale, v[i].y * scale, v[i].z * scale, v[i].w * scale);
        }
      }
      if (rotates) rotate_head(v, call.kv.rotation, factor);
      if constexpr (kFew) {
        store_few_bits<kSigns>(v, head_dim, place);
      } else {
        store_value(v, head_dim, place);
      }
      continue;
    }
    const int half = call.rotary / 2, step = call.neox ? 1 : 2, distance = call.neox ? half : 1;
    if (norm) {
      const float scale = root_mean_square();
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        v[i] = make_float4(v[i].x * scale * w[i].x, v[i].y * scale * w[i].y, v[i].z * scale * w[i].z,
                           v[i].w * scale * w[i].w);
      }
    }
    float* tile = tiles + pair * stride;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if (channel(i) < head_dim) *reinterpret_cast<float4*>(tile + channel(i)) = v[i];
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 2 * kVectors; ++i) {
      const int at = step * (lane + kWarp * i);
      if (lane + kWarp * i >= half) break;
      const float a = tile[at], b = tile[at + distance];
      tile[at] = __fmaf_rn(a, turn[i].x, -(b * turn[i].y));
      tile[at + distance] = __fmaf_rn(a, turn[i].y, b * turn[i].x);
    }
    __syncwarp();
    if (!is_q && !kQuantized) continue;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if (channel(i) < head_dim) v[i] = *reinterpret_cast<const float4*>(tile + channel(i));
    }
    if (rotates) rotate_head(v, call.kv.rotation, factor);
    if (is_q) {
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        if (channel(i) < head_dim) *reinterpret_cast<float4*>(q + channel(i)) = v[i];
      }
      continue;
    }
    if constexpr (kFew) {  // what is stored below, in place of all four
      __syncwarp();        // everybody has read them
      keep_few_bits<kSigns>(v, {reinterpret_cast<std::byte*>(tile), head_dim});
    } else if constexpr (kQuantized) {  // what is stored below, in place of the first two of the four
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        const KvFour four = encode_four<T>(v[i]);
        if (channel(i) < head_dim) {
          *reinterpret_cast<uint2*>(tile + channel(i)) = make_uint2(four.quants, __half_as_ushort(four.scale));
        }
      }
    }
  }
  if (first_head + block_heads <= heads || first_head >= heads + kv_heads) return;  // no keys here
  __syncthreads();
  // Neighbouring threads store neighbouring rows of four channels; with one row a head, neighbouring channels.
  const int shift = 31 - __clz(block_rows);  // block_rows is a power of two
  int fours = element_rows / 4;              // of a pair
  if constexpr (kFew) fours = (head_dim + FewBitsTile<kSigns>::few_bytes(head_dim)) / 4;
  for (int first = 0; first < pairs; first += block_rows) {
    for (int e = static_cast<int>(threadIdx.x); e < block_rows * fours; e += static_cast<int>(blockDim.x)) {
      const int pair = first + (e & (block_rows - 1)), c = (e >> shift) * 4;
      T* const to = key_at[pair].to;
      if (!to) continue;
      if constexpr (kFew) {
        store_key_bytes<kSigns>({reinterpret_cast<std::byte*>(tiles + pair * stride), head_dim}, c / 4, key_at[pair]);
      } else if constexpr (kQ4) {
        const float* from = tiles + pair * stride + c / 16 * 32 + c % 16;
        const uint2 low = *reinterpret_cast<const uint2*>(from), high = *reinterpret_cast<const uint2*>(from + 16);
        const unsigned bytes = low.x | high.x << 4;
#pragma unroll
        for (int i = 0; i < 4; ++i) to[(c + i) * kKvBlock].two = static_cast<std::uint8_t>(bytes >> (8 * i));
        if (c % 16 == 0) {
          key_at[pair].scale[c / 16 * kKvBlock] = __ushort_as_half(static_cast<unsigned short>(low.y));
        }
      } else if constexpr (kQuantized) {
        const uint2 four = *reinterpret_cast<const uint2*>(tiles + pair * stride + c);
#pragma unroll
        for (int i = 0; i < 4; ++i) to[(c + i) * kKvBlock] = static_cast<std::int8_t>(four.x >> (8 * i));
        if (c % 32 == 0) {
          key_at[pair].scale[c / 32 * kKvBlock] = __ushort_as_half(static_cast<unsigned short>(four.y));
        }
      } else {
        const float4 four = *reinterpret_cast<const float4*>(tiles + pair * stride + c);
        to[c * kKvBlock] = static_cast<T>(four.x);
        to[(c + 1) * kKvBlock] = static_cast<T>(four.y);
        to[(c + 2) * kKvBlock] = static_cast<T>(four.z);
        to[(c + 3) * kKvBlock] = static_cast<T>(four.w);
      }
    }
  }
}

template <typename T>
cudaError_t rope_store_as(const RopeStoreCall& call, cudaStream_t stream) {
  const int heads = call.heads + (call.k == nullptr ? 0 : 2 * call.kv.kv_heads);
  const bool many = call.rows.rows >= 64;
  const int most_rows = has_small_blocks() && call.kv.head_dim > 448 ? 16 : 32;
  const int block_heads = many ? 1 : 4, block_rows = many ? most_rows : 1, threads = many ? kRopeThreads : 4 * kWarp;
  const dim3 grid((call.rows.rows + block_rows - 1) / block_rows, (heads + block_heads - 1) / block_heads);
  const std::size_t shared_bytes = sizeof(float) * block_heads * block_rows * (call.kv.head_dim + 4);
  auto* kernel = call.kv.head_dim <= 4 * kWarp   ? rope_store_kernel<T, 1>
                 : call.kv.head_dim <= 8 * kWarp ? rope_store_kernel<T, 2>
                                                 : rope_store_kernel<T, 4>;
  const float factor = call.kv.rotation > 0 ? rotation_factor(call.kv.rotation) : 1.0f;
  return launch_large(kernel, grid, dim3(threads), shared_bytes, stream, 1, call, block_heads, block_rows, factor);
}

// A warp a head of a row.
template <int kVectors>
__global__ void __launch_bounds__(kThreads)
    rotate_heads_kernel(float* x, int heads, int head_dim, int span, float factor, bool floats, Q8 out) {
  allow_successor();
  wait_for_predecessor();
  const int head = static_cast<int>(blockIdx.x) * (kThreads / kWarp) + static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  if (head >= heads) return;
  const std::int64_t first = static_cast<std::int64_t>(head) * head_dim + 4 * lane;
  float4 v[kVectors];
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const bool there = 4 * (lane + kWarp * i) < head_dim;
    v[i] = there ? *reinterpret_cast<const float4*>(x + first + 4 * kWarp * i) : make_float4(0, 0, 0, 0);
  }
  rotate_head(v, span, factor);
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    if (4 * (lane + kWarp * i) >= head_dim) break;  // of whole groups of eight lanes
    const std::int64_t at = first + 4 * kWarp * i;
    if (floats) *reinterpret_cast<float4*>(x + at) = v[i];
    const float four[4] = {v[i].x, v[i].y, v[i].z, v[i].w};
    if (out.q) quantize_block(four, out.q + at / 32 * 32, out.scale + at / 32);
  }
}

}  // namespace

cudaError_t embed(const Matrix& table, const std::int32_t* tokens, std::int32_t rows, std::int32_t cols, float* out,
                  cudaStream_t stream) {
  if (rows <= 0) return cudaSuccess;
  const dim3 grid(rows, (cols + kEmbedThreads - 1) / kEmbedThreads);
  return launch(embed_kernel, grid, dim3(kEmbedThreads), 0, stream, table.address, table.dtype,
                row_bytes(table.dtype, cols), tokens, cols, out);
}

cudaError_t rms_norm(const NormCall& call, cudaStream_t stream) {
  if (call.rows <= 0) return cudaSuccess;
  const auto run = [&](auto* kernel) { return launch(kernel, dim3(call.rows), dim3(kNormThreads), 0, stream, call); };
  if (call.cols % 4 != 0 || call.cols > 16384) return run(rms_norm_any_kernel);
  if (call.cols <= 2048) return run(rms_norm_kernel<1>);
  if (call.cols <= 4096) return run(rms_norm_kernel<2>);
  if (call.cols <= 8192) return run(rms_norm_kernel<4>);
  return run(rms_norm_kernel<8>);
}

cudaError_t rms_norm(const float* x, const std::int32_t* x_index, const std::byte* const* weight, std::int32_t rows,
                     std::int32_t cols, float eps, float* out, Q8 q8, cudaStream_t stream) {
  return rms_norm({x, x_index, weight, rows, cols, eps, out, q8, nullptr}, stream);
}

cudaError_t quantize_q8(const float* x, std::int64_t x_stride, std::int32_t rows, std::int32_t cols, Q8 out,
                        cudaStream_t stream) {
  const std::int64_t blocks = static_cast<std::int64_t>(rows) * (cols / 32);
  if (blocks <= 0) return cudaSuccess;
  const bool aligned = x_stride % 4 == 0 && reinterpret_cast<std::uintptr_t>(x) % 16 == 0;
  return launch(quantize_q8_kernel, dim3(blocks_for(blocks * 8)), dim3(kThreads), 0, stream, x, x_stride, blocks,
                cols / 32, aligned, out);
}

cudaError_t add(float* x, const float* y, std::int64_t n, cudaStream_t stream) {
  return elementwise(Add(), x, y, n, stream);
}

cudaError_t gate_mul(Activation activation, float limit, float* gate, const float* up, std::int64_t n,
                     cudaStream_t stream) {
  const Gate by = gate_of(activation, limit);
  return launch_for_activation(
      by.activation, [&](auto which) { return elementwise(GateMul<decltype(which)::value>{by}, gate, up, n, stream); });
}

cudaError_t to_bf16(const float* x, std::int64_t n, Bf16* out, cudaStream_t stream) {
  if (n <= 0) return cudaSuccess;
  constexpr std::int64_t kEach = 8 * kThreads;
  return launch(to_bf16_kernel, dim3(static_cast<unsigned>((n + kEach - 1) / kEach)), dim3(kThreads), 0, stream, x, n,
                out);
}

cudaError_t gather_rows(const float* x, const std::int32_t* index, std::int32_t rows, std::int32_t cols, float* out,
                        cudaStream_t stream) {
  if (rows <= 0) return cudaSuccess;
  return launch(gather_rows_kernel, dim3(rows), dim3(kThreads), 0, stream, x, index, cols, out);
}

cudaError_t rope_store(const RopeStoreCall& call, cudaStream_t stream) {
  if (call.rows.rows <= 0) return cudaSuccess;
  const bool few = kv_has_few_bits(call.kv.dtype);
  const bool quantized = few || call.kv.dtype == DType::q8_0 || call.kv.dtype == DType::q4_0;
  if (quantized ? call.kv.head_dim % 32 != 0 : call.kv.rotation != 0) return cudaErrorInvalidValue;
  if (few && call.k != nullptr && call.kv.plain.table == nullptr) return cudaErrorInvalidValue;
  return call.kv.dtype == DType::f16    ? rope_store_as<__half>(call, stream)
         : call.kv.dtype == DType::q8_0 ? rope_store_as<std::int8_t>(call, stream)
         : call.kv.dtype == DType::q4_0 ? rope_store_as<Nibbles>(call, stream)
         : call.kv.dtype == DType::q3_k ? rope_store_as<FewBits<true>>(call, stream)
         : call.kv.dtype == DType::q2_0 ? rope_store_as<FewBits<false>>(call, stream)
                                        : rope_store_as<float>(call, stream);
}

cudaError_t rotate_heads(float* x, std::int32_t heads, std::int32_t head_dim, std::int32_t span, bool floats, Q8 out,
                         cudaStream_t stream) {
  if (heads <= 0) return cudaSuccess;
  if (span < 32 || head_dim % span != 0 || head_dim > 16 * kWarp) return cudaErrorInvalidValue;
  auto* kernel = head_dim <= 4 * kWarp   ? rotate_heads_kernel<1>
                 : head_dim <= 8 * kWarp ? rotate_heads_kernel<2>
                                         : rotate_heads_kernel<4>;
  constexpr int kHeads = kThreads / kWarp;  // of a block
  return launch(kernel, dim3((heads + kHeads - 1) / kHeads), dim3(kThreads), 0, stream, x, heads, head_dim, span,
                rotation_factor(span), floats, out);
}

}  // namespace millrace::kernels::cuda
