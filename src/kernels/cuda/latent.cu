// The store of latents, and attention over them where they are f32 or of odd dims (else: latent_tile.cu); contracts in
// latent.h. Attention takes a row and kHeads of its heads a block, because all heads share the keys: a thread has a
// key's scores with all of them, then four channels of their values.
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/exp.cuh"
#include "kernels/cuda/kv_view.cuh"
#include "kernels/cuda/latent_tile.cuh"
#include "kernels/cuda/launchers.h"
#include "kernels/cuda/norm_sum.cuh"
#include "kernels/cuda/pdl.cuh"
#include "tensor/encode_blocks.h"

namespace millrace::kernels::cuda {
namespace {

constexpr int kQ8Group = 32;  // channels with one scale

__device__ __forceinline__ float tree_sum(float v) {
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) v += __shfl_down_sync(kAllLanes, v, step);
  return v;  // lane 0's counts
}

/// Slot `slot` of the block that holds a position: its channel 0.
__device__ __forceinline__ std::byte* block_of(const KvView& kv, int sequence, int position) {
  return const_cast<std::byte*>(kv.blocks.table[kv_entry(kv, sequence, position)]) + kv.blocks.v_offset;
}

// ---------------------------------------------------------------------------------------------------------------------
// RoPE and the store

constexpr int kStoreThreads = 256;
constexpr int kMostRotary = 256;
static_assert(kMostNormedLatent <= 4 * kStoreThreads);

__device__ __forceinline__ float2 turned(float a, float b, float2 cos_sin) {
  return make_float2(__fmaf_rn(a, cos_sin.x, -(b * cos_sin.y)), __fmaf_rn(a, cos_sin.y, b * cos_sin.x));
}

/// A group of 32 channels by a warp, a channel a lane.
__device__ __forceinline__ void store_q8(float x, std::int8_t* to, __half* scale) {
  x = x == x ? fminf(fmaxf(x, -kLargestEncodable), kLargestEncodable) : 0.0f;
  float amax = fabsf(x);
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) amax = fmaxf(amax, __shfl_xor_sync(kAllLanes, amax, step));
  const __half d = __float2half_rn(fminf(amax / 127.0f, 65504.0f));
  const float stored = __half2float(d), inverse = stored != 0 ? 1.0f / stored : 0.0f;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  to[lane] = static_cast<std::int8_t>(__float2int_rn(fminf(fmaxf(x * inverse, -127.0f), 127.0f)));
  if (lane == 0) *scale = d;
}

__global__ void __launch_bounds__(kStoreThreads) store_latent_kernel(LatentStoreCall call) {
  __shared__ float key[kMostRotary];
  __shared__ alignas(16) float normal[kMostNormedLatent];
  allow_successor();
  const std::int64_t row = blockIdx.x;
  const int thread = static_cast<int>(threadIdx.x), half = call.rotary / 2, dim = call.kv.head_dim;
  const int rank = dim - call.rotary;
  const int step = call.neox ? 1 : 2, apart = call.neox ? half : 1;  // of pairs, and of the two of one
  const bool norms = call.norm != nullptr && 4 * thread < rank;
  const float4 w = norms ? reinterpret_cast<const float4*>(*call.norm)[thread] : make_float4(0, 0, 0, 0);
  wait_for_predecessor();
  const float* c = call.c + row * rank;
  if (call.norm != nullptr) {
    const float4 v = norms ? reinterpret_cast<const float4*>(c)[thread] : make_float4(0, 0, 0, 0);
    const float scale = norm_scale(sum_over_block<kStoreThreads>(add_squares(v, 0)), rank, call.eps);
    if (norms)
      reinterpret_cast<float4*>(normal)[thread] =
          make_float4(v.x * scale * w.x, v.y * scale * w.y, v.z * scale * w.z, v.w * scale * w.w);
    c = normal;
  }
  const auto* angles = reinterpret_cast<const float2*>(call.cos_sin) + row * half;
  for (int i = thread; i < half; i += kStoreThreads) {
    const int at = i * step;
    const float* pair = call.key + row * call.rotary + at;
    const float2 now = turned(pair[0], pair[apart], angles[i]);
    key[at] = now.x;
    key[at + apart] = now.y;
  }
  for (int i = thread; i < call.heads * half; i += kStoreThreads) {
    float* pair = call.q + (row * call.heads + i / half) * call.q_head + call.q_head - call.rotary + step * (i % half);
    const float2 now = turned(pair[0], pair[apart], angles[i % half]);
    pair[0] = now.x;
    pair[apart] = now.y;
  }
  __syncthreads();
  const int position = call.rows.position[row], slot = position % kKvBlock;
  std::byte* const block = block_of(call.kv, call.rows.sequence[row], position);
  auto* const scales = reinterpret_cast<__half*>(block + kKvBlock * dim);
  for (int first = 0; first < dim; first += kStoreThreads) {  // whole warps go on: a group is theirs together
    const int d = first + thread;
    const float x = d >= dim ? 0 : d < rank ? c[d] : key[d - rank];
    const std::int64_t at = static_cast<std::int64_t>(slot) * dim + d;
    if (call.kv.dtype == DType::q8_0) {
      const int group = d / kQ8Group;
      if (group * kQ8Group < dim)
        store_q8(x, reinterpret_cast<std::int8_t*>(block) + slot * dim + group * kQ8Group,
                 scales + slot * (dim / kQ8Group) + group);
    } else if (d < dim && call.kv.dtype == DType::f16) {
      reinterpret_cast<__half*>(block)[at] = __float2half_rn(x);
    } else if (d < dim) {
      reinterpret_cast<float*>(block)[at] = x;
    }
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// Attention

constexpr int kThreads = 128;  // one a key of a chunk
static_assert(kThreads == kAttentionChunk && kLatentSpan % kAttentionChunk == 0);
constexpr int kWarps = kThreads / kWarp;
constexpr int kHeads = 8;
constexpr int kChannels = kMostLatentValues / kThreads;  // of a thread
static_assert(kChannels == 4);

/// kCount channels from d on of the latent in `slot`; kCount and d are such that they lie in one group of q8_0.
template <typename T, int kCount>
__device__ __forceinline__ void load_channels(const std::byte* block, int slot, int dim, int d, float* out) {
  const auto* values = reinterpret_cast<const T*>(block) + static_cast<std::int64_t>(slot) * dim + d;
  if constexpr (std::is_same_v<T, std::int8_t>) {
    const auto* scales = reinterpret_cast<const __half*>(block + kKvBlock * dim);
    const float scale = __half2float(scales[slot * (dim / kQ8Group) + d / kQ8Group]);
#pragma unroll
    for (int i = 0; i < kCount; i += 4) {
      const char4 four = *reinterpret_cast<const char4*>(values + i);
      out[i] = static_cast<float>(four.x) * scale;
      out[i + 1] = static_cast<float>(four.y) * scale;
      out[i + 2] = static_cast<float>(four.z) * scale;
      out[i + 3] = static_cast<float>(four.w) * scale;
    }
  } else if constexpr (std::is_same_v<T, __half>) {
#pragma unroll
    for (int i = 0; i < kCount; i += 4) {
      const uint2 four = *reinterpret_cast<const uint2*>(values + i);
      const float2 low = __half22float2(*reinterpret_cast<const __half2*>(&four.x));
      const float2 high = __half22float2(*reinterpret_cast<const __half2*>(&four.y));
      out[i] = low.x, out[i + 1] = low.y, out[i + 2] = high.x, out[i + 3] = high.y;
    }
  } else {
#pragma unroll
    for (int i = 0; i < kCount; i += 4) {
      const float4 four = *reinterpret_cast<const float4*>(values + i);
      out[i] = four.x, out[i + 1] = four.y, out[i + 2] = four.z, out[i + 3] = four.w;
    }
  }
}

/// Maximum and sum of a head, and what its values add up to in this thread's channels.
struct Sums {
  float most[kHeads], total[kHeads], values[kHeads][kChannels];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      most[h] = -INFINITY;
      total[h] = 0;
#pragma unroll
      for (int i = 0; i < kChannels; ++i) values[h][i] = 0;
    }
  }
  __device__ __forceinline__ void merge(int h, float m, float l, const float* acc) {
    const float now = fmaxf(most[h], m), before = exp_to_one(most[h] - now), joins = exp_to_one(m - now);
    total[h] = __fmaf_rn(total[h], before, l * joins);
#pragma unroll
    for (int i = 0; i < kChannels; ++i) values[h][i] = __fmaf_rn(values[h][i], before, acc[i] * joins);
    most[h] = now;
  }
};

struct LatentArgs {
  RowView rows;
  KvView kv;
  const float* q;
  int heads;
  float scale;
  int v_dim;
  float* out;
  const std::int32_t* chosen;  // [rows, top_k], or null
  int top_k;
  int max_spans;  // in blocks of their own; 0: one after another
  float* part;    // [rows, heads, max_spans, v_dim]
  float2* sums;   // [rows, heads, max_spans]: maximum, sum
};

/// What a row sees: so many keys, at the positions of its list or, where that is null, at all from 0 on.
struct RowKeys {
  __device__ RowKeys(const LatentArgs& args, int row)
      : sequence(args.rows.sequence[row]),
        count(args.rows.position[row] + 1),
        list(args.chosen == nullptr ? nullptr : args.chosen + static_cast<std::int64_t>(row) * args.top_k) {
    if (list != nullptr) count = min(count, args.top_k);
  }
  int sequence, count;
  const std::int32_t* list;
};

/// What a block has of a chunk: scores, then weights [128, kHeads]; each head's maximum and sum.
struct ChunkShared {
  int positions[kAttentionChunk];  // of its keys
  float scores[kAttentionChunk][kHeads];
  float most[kHeads], total[kHeads];
};

/// A chunk of `visible` keys from key number `first` on: its sums into shared memory, its values into acc.
template <typename T>
__device__ void attend_chunk(const LatentArgs& args, const RowKeys& keys, int first, int visible, const float* q,
                             ChunkShared& shared, float (&acc)[kHeads][kChannels]) {
  const int thread = static_cast<int>(threadIdx.x), warp = thread / kWarp, lane = thread % kWarp;
  const int dim = args.kv.head_dim;
  if (thread < visible) {
    const int position = keys.list != nullptr ? keys.list[first + thread] : first + thread;
    shared.positions[thread] = position;
    const std::byte* const block = block_of(args.kv, keys.sequence, position);
    float s[kHeads] = {};
    constexpr int kStep = 8;
    for (int d = 0; d < dim; d += kStep) {
      float key[kStep];
      load_channels<T, kStep>(block, position % kKvBlock, dim, d, key);
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
#pragma unroll
        for (int i = 0; i < kStep; ++i) s[h] = __fmaf_rn(q[h * dim + d + i], key[i], s[h]);
      }
    }
#pragma unroll
    for (int h = 0; h < kHeads; ++h) shared.scores[thread][h] = s[h] * args.scale;
  }
  __syncthreads();
  for (int h = warp; h < kHeads; h += kWarps) {
    float most = -INFINITY, sum = 0;
    for (int key = lane; key < visible; key += kWarp) most = fmaxf(most, shared.scores[key][h]);
#pragma unroll
    for (int step = kWarp / 2; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, step));
    for (int key = lane; key < visible; key += kWarp) {
      const float e = exp_to_one(shared.scores[key][h] - most);
      shared.scores[key][h] = e;
      sum += e;
    }
    sum = tree_sum(sum);
    if (lane == 0) shared.most[h] = most, shared.total[h] = sum;
  }
  __syncthreads();
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
#pragma unroll
    for (int i = 0; i < kChannels; ++i) acc[h][i] = 0;
  }
  if (kChannels * thread < args.v_dim) {
    for (int key = 0; key < visible; ++key) {
      float value[kChannels];
      const int position = shared.positions[key];
      load_channels<T, kChannels>(block_of(args.kv, keys.sequence, position), position % kKvBlock, dim,
                                  kChannels * thread, value);
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        const float e = shared.scores[key][h];
#pragma unroll
        for (int i = 0; i < kChannels; ++i) acc[h][i] = __fmaf_rn(e, value[i], acc[h][i]);
      }
    }
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads) latent_kernel(LatentArgs args) {
  extern __shared__ __align__(16) float q[];  // [kHeads, head_dim]
  __shared__ ChunkShared shared;
  allow_successor();
  wait_for_predecessor();
  const int row = static_cast<int>(blockIdx.x), first_head = static_cast<int>(blockIdx.y) * kHeads;
  const int heads = min(kHeads, args.heads - first_head), dim = args.kv.head_dim;
  const int thread = static_cast<int>(threadIdx.x), channel = kChannels * thread;
  const RowKeys keys(args, row);
  const int spans = (keys.count - 1) / kLatentSpan + 1;
  const bool apart = args.max_spans > 0;
  if (apart && static_cast<int>(blockIdx.z) >= spans) return;
  const float* from = args.q + (static_cast<std::int64_t>(row) * args.heads + first_head) * dim;
  for (int i = thread; i < kHeads * dim; i += kThreads) q[i] = i < heads * dim ? from[i] : 0;
  __syncthreads();
  Sums whole;
  whole.clear();
  for (int span = apart ? static_cast<int>(blockIdx.z) : 0; span < spans; ++span) {
    Sums of_span;
    of_span.clear();
    const int end = min((span + 1) * kLatentSpan, keys.count);
    for (int first = span * kLatentSpan; first < end; first += kAttentionChunk) {
      float acc[kHeads][kChannels];
      attend_chunk<T>(args, keys, first, min(kAttentionChunk, end - first), q, shared, acc);
#pragma unroll
      for (int h = 0; h < kHeads; ++h) of_span.merge(h, shared.most[h], shared.total[h], acc[h]);
      __syncthreads();  // before the next chunk's scores
    }
    if (apart) {
      for (int h = 0; h < heads; ++h) {
        const std::int64_t at = (static_cast<std::int64_t>(row) * args.heads + first_head + h) * args.max_spans + span;
        if (thread == 0) args.sums[at] = make_float2(of_span.most[h], of_span.total[h]);
        for (int i = 0; i < kChannels && channel + i < args.v_dim; ++i)
          args.part[at * args.v_dim + channel + i] = of_span.values[h][i];
      }
      return;
    }
#pragma unroll
    for (int h = 0; h < kHeads; ++h) whole.merge(h, of_span.most[h], of_span.total[h], of_span.values[h]);
  }
  float* to = args.out + (static_cast<std::int64_t>(row) * args.heads + first_head) * args.v_dim + channel;
  for (int h = 0; h < heads; ++h)
    for (int i = 0; i < kChannels && channel + i < args.v_dim; ++i)
      to[h * args.v_dim + i] = whole.values[h][i] / whole.total[h];
}

__global__ void __launch_bounds__(kThreads) merge_spans_kernel(LatentArgs args) {
  allow_successor();
  wait_for_predecessor();
  const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * args.heads + blockIdx.y;
  const int spans = (RowKeys(args, static_cast<int>(blockIdx.x)).count - 1) / kLatentSpan + 1;
  for (int d = static_cast<int>(threadIdx.x); d < args.v_dim; d += kThreads) {
    float most = -INFINITY, total = 0, value = 0;
    for (int span = 0; span < spans; ++span) {
      const float2 sum = args.sums[at * args.max_spans + span];
      const float now = fmaxf(most, sum.x), before = exp_to_one(most - now), joins = exp_to_one(sum.x - now);
      total = __fmaf_rn(total, before, sum.y * joins);
      value = __fmaf_rn(value, before, args.part[(at * args.max_spans + span) * args.v_dim + d] * joins);
      most = now;
    }
    args.out[at * args.v_dim + d] = value / total;
  }
}

int most_spans(std::int32_t max_position) { return (max_position + kLatentSpan - 1) / kLatentSpan; }

}  // namespace

std::int32_t most_latent_keys(const LatentAttentionCall& call) {
  return call.chosen == nullptr ? call.max_position : std::min(call.max_position, call.top_k);
}

cudaError_t store_latent(const LatentStoreCall& call, cudaStream_t stream) {
  if (call.rows.rows <= 0) return cudaSuccess;
  if (call.rotary > kMostRotary || call.rotary > call.q_head) return cudaErrorInvalidValue;
  if (call.kv.dtype == DType::q8_0 && call.kv.head_dim % kQ8Group != 0) return cudaErrorInvalidValue;
  const int rank = call.kv.head_dim - call.rotary;
  if (call.norm != nullptr && (rank > kMostNormedLatent || rank % 4 != 0)) return cudaErrorInvalidValue;
  return launch(store_latent_kernel, dim3(static_cast<unsigned>(call.rows.rows)), dim3(kStoreThreads), 0, stream, call);
}

std::size_t latent_workspace_bytes(std::int32_t rows, std::int32_t heads, std::int32_t v_dim,
                                   std::int32_t max_position) {
  constexpr std::size_t kMost = 32u << 20;
  const std::size_t spans = static_cast<std::size_t>(heads) * static_cast<std::size_t>(most_spans(max_position));
  const std::size_t row = spans * (static_cast<std::size_t>(v_dim) * sizeof(float) + sizeof(float2));
  return std::clamp<std::size_t>(kMost / std::max<std::size_t>(1, row), 1, static_cast<std::size_t>(rows)) * row;
}

cudaError_t latent_attention(const LatentAttentionCall& call, cudaStream_t stream) {
  if (call.rows.rows <= 0) return cudaSuccess;
  const int dim = call.kv.head_dim;
  if (dim % 8 != 0 || dim > kMostLatentDim || call.v_dim % 4 != 0 || call.v_dim > std::min(dim, kMostLatentValues))
    return cudaErrorInvalidValue;
  if (call.kv.dtype == DType::q8_0 && dim % kQ8Group != 0) return cudaErrorInvalidValue;
  if (call.chosen != nullptr && call.top_k <= 0) return cudaErrorInvalidValue;
  if (latent_tiles_take(call)) return latent_tiles(call, stream);
  const std::int32_t most_keys = most_latent_keys(call);
  const std::size_t row_bytes = latent_workspace_bytes(1, call.heads, call.v_dim, most_keys);
  const bool apart = call.workspace_bytes / row_bytes >= static_cast<std::size_t>(call.rows.rows);
  const int spans = apart ? most_spans(most_keys) : 0;
  const std::int64_t parts = static_cast<std::int64_t>(call.rows.rows) * call.heads * spans;
  auto* part = reinterpret_cast<float*>(call.workspace);
  const LatentArgs args{call.rows,  call.kv,    call.q,   call.heads,
                        call.scale, call.v_dim, call.out, call.chosen,
                        call.top_k, spans,      part,     reinterpret_cast<float2*>(part + parts * call.v_dim)};
  const dim3 grid(static_cast<unsigned>(call.rows.rows), static_cast<unsigned>((call.heads + kHeads - 1) / kHeads),
                  static_cast<unsigned>(std::max(1, spans)));
  const std::size_t shared = static_cast<std::size_t>(kHeads * dim) * sizeof(float);
  auto* kernel = call.kv.dtype == DType::f16    ? latent_kernel<__half>
                 : call.kv.dtype == DType::q8_0 ? latent_kernel<std::int8_t>
                                                : latent_kernel<float>;
  const cudaError_t error = launch(kernel, grid, dim3(kThreads), shared, stream, args);
  if (error != cudaSuccess || spans == 0) return error;
  return launch(merge_spans_kernel, dim3(static_cast<unsigned>(call.rows.rows), static_cast<unsigned>(call.heads)),
                dim3(kThreads), 0, stream, args);
}

}  // namespace millrace::kernels::cuda
