// Attention of few rows: a block takes a row, a KV head and a chunk of keys; chunks meet in device memory and are
// merged in order, by the last block of a row and head to finish, or by a kernel of its own where chunks are many.
// Source: Dao et al., FlashAttention (2022), and its split over the keys. Contract and order of sums: cuda_kernels.h.
#include <cuda_pipeline.h>

#include <algorithm>
#include <cstddef>

#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/exp.cuh"
#include "kernels/cuda/pdl.cuh"
#include "kernels/cuda/quantize.cuh"

namespace millrace::kernels::cuda {
namespace {

constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xffffffffu;
constexpr int kThreads = 128;  // one a key of the chunk
static_assert(kThreads == kAttentionChunk);
constexpr int kWarps = kThreads / kWarp;
constexpr std::size_t kMostShared = 99 * 1024;  // that every device since 8.0 gives a block
constexpr int kTileRowHeads = 64;               // pairs of a row and a head of the group in a tile

// The last block to finish merges up to this many chunks; more are spread better by merge_kernel.
constexpr int kTicketChunks = 32;
// Tickets, one a (row, KV head), at the start of the workspace.
constexpr int kTickets = 16384;
constexpr std::size_t kTicketBytes = kTickets * sizeof(unsigned);
// merge_kernel holds this many chunks in shared memory, and loads as many more meanwhile.
constexpr int kMergeChunks = 32;
constexpr int kMergeThreads = 256;

/// A chunk's maximum and sum for one head.
struct alignas(8) ChunkSum {
  float m, l;
};
/// What a merge multiplies by when a chunk joins: the sums so far, and the chunk's.
struct alignas(8) Factors {
  float before, chunk;
};
/// M and L of a merge.
struct Merged {
  float m = -INFINITY, l = 0;
};

struct DecodeArgs {
  RowView rows;
  KvView kv;
  const float* q;
  int heads, group;
  float scale;
  int window;
  int max_chunks;
  unsigned* tickets;  // null: merge_kernel merges
  float* part;        // [rows, heads, max_chunks, head_dim]
  ChunkSum* sums;     // [rows, heads, max_chunks]
  float* out;         // may be null
  Q8 q8;              // may be none
  bool both;          // K and V are in shared memory together, else one after the other in one place
};

/// One warp's step of a merge: chunks [0, count), count <= 32, of one head. Writes their factors and moves `merged` on,
/// which all lanes hold.
__device__ __forceinline__ void merge_factors(const ChunkSum* sums, int count, Factors* factors, Merged& merged) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  float2 mine = make_float2(-INFINITY, 0);
  if (lane < count) mine = __ldcg(reinterpret_cast<const float2*>(sums) + lane);
  float most = mine.x;  // of chunks up to this lane's
#pragma unroll
  for (int step = 1; step < kWarp; step *= 2) {
    const float other = __shfl_up_sync(kAllLanes, most, step);
    if (lane >= step) most = fmaxf(most, other);
  }
  most = fmaxf(most, merged.m);
  float before = __shfl_up_sync(kAllLanes, most, 1);
  if (lane == 0) before = merged.m;
  const Factors f = {exp_f32(before - most), exp_f32(mine.x - most)};
  const float l = mine.y * f.chunk;
  for (int i = 0; i < count; ++i) {
    merged.l = __fmaf_rn(merged.l, __shfl_sync(kAllLanes, f.before, i), __shfl_sync(kAllLanes, l, i));
  }
  merged.m = __shfl_sync(kAllLanes, most, count - 1);
  if (lane < count) factors[lane] = f;
}

// The last block of a row and KV head merges its chunks [first, first + count), count <= kTicketChunks. shared:
// scratch.
__device__ void merge_by_ticket(const DecodeArgs& args, int row, int kv_head, int first, int count, std::byte* shared) {
  static_assert(kTicketChunks <= kWarp);
  auto* factors = reinterpret_cast<Factors*>(shared);                             // [group, kTicketChunks]
  auto* totals = reinterpret_cast<float*>(factors + args.group * kTicketChunks);  // [group]
  const std::int64_t row_head = static_cast<std::int64_t>(row) * args.heads + kv_head * args.group;
  for (int h = static_cast<int>(threadIdx.x) / kWarp; h < args.group; h += kWarps) {
    Merged merged;
    merge_factors(args.sums + (row_head + h) * args.max_chunks + first, count, factors + h * kTicketChunks, merged);
    if (threadIdx.x % kWarp == 0) totals[h] = merged.l;
  }
  __syncthreads();
  const int quads = args.kv.head_dim / 4;
  for (int i = static_cast<int>(threadIdx.x); i < args.group * quads; i += kThreads) {
    const int h = i / quads, quad = i % quads;
    const auto* part =
        reinterpret_cast<const float4*>(args.part) + ((row_head + h) * args.max_chunks + first) * quads + quad;
    float a[4] = {0, 0, 0, 0};
#pragma unroll 8
    for (int c = 0; c < count; ++c) {
      const float4 v = __ldcg(part + static_cast<std::int64_t>(c) * quads);
      const Factors f = factors[h * kTicketChunks + c];
      a[0] = __fmaf_rn(a[0], f.before, v.x * f.chunk);
      a[1] = __fmaf_rn(a[1], f.before, v.y * f.chunk);
      a[2] = __fmaf_rn(a[2], f.before, v.z * f.chunk);
      a[3] = __fmaf_rn(a[3], f.before, v.w * f.chunk);
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) a[j] = a[j] / totals[h];
    const std::int64_t at = (row_head + h) * args.kv.head_dim + 4 * quad;
    if (args.out) *reinterpret_cast<float4*>(args.out + at) = make_float4(a[0], a[1], a[2], a[3]);
    if (args.q8.q) quantize_block(a, args.q8.q + at / 32 * 32, args.q8.scale + at / 32);
  }
}

// 16 bytes from device memory to shared memory, on their way until the pipeline's wait.
__device__ __forceinline__ void copy16(std::byte* to, const std::byte* from) { __pipeline_memcpy_async(to, from, 16); }

// Starts copying what keys [begin, end) of the chunk need. K to [head_dim, 128], V to [128, head_dim].
template <typename T>
__device__ __forceinline__ void copy_keys(const KvView& kv, const std::byte* const (&block)[2], int begin, int end,
                                          std::byte* to) {
  constexpr int kPiece = 16 / sizeof(T), kPieces = kKvBlock / kPiece;  // keys a piece, pieces a channel of a block
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (!block[half]) continue;
    for (int i = static_cast<int>(threadIdx.x); i < kv.head_dim * kPieces; i += kThreads) {
      const int channel = i / kPieces, piece = i % kPieces, key = half * kKvBlock + piece * kPiece;
      if (key + kPiece <= begin || key >= end) continue;
      copy16(to + (channel * kAttentionChunk + key) * sizeof(T), block[half] + i * 16);
    }
  }
}
template <typename T>
__device__ __forceinline__ void copy_values(const KvView& kv, const std::byte* const (&block)[2], int begin, int end,
                                            std::byte* to) {
  const int row_bytes = kv.head_dim * static_cast<int>(sizeof(T));
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (!block[half]) continue;
    const int from = max(begin - half * kKvBlock, 0) * row_bytes,
              until = min(end - half * kKvBlock, kKvBlock) * row_bytes;
    for (int i = from + 16 * static_cast<int>(threadIdx.x); i < until; i += 16 * kThreads) {
      copy16(to + half * kKvBlock * row_bytes + i, block[half] + i);
    }
  }
}

// Scores of one key for kHeads heads. q: [head_dim, kHeads]; k: this key's channel 0 in [head_dim, 128].
template <typename T, int kHeads>
__device__ __forceinline__ void score_key(const float* q, const T* k, int head_dim, float (&s)[kHeads]) {
#pragma unroll
  for (int h = 0; h < kHeads; ++h) s[h] = 0;
#pragma unroll 4
  for (int d = 0; d < head_dim; d += 4) {
    float q4[4 * kHeads];
#pragma unroll
    for (int i = 0; i < kHeads; ++i) {
      reinterpret_cast<float4*>(q4)[i] = reinterpret_cast<const float4*>(q + d * kHeads)[i];
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float key = widen(k[(d + i) * kAttentionChunk]);
#pragma unroll
      for (int h = 0; h < kHeads; ++h) s[h] = __fmaf_rn(q4[i * kHeads + h], key, s[h]);
    }
  }
}

// A warp turns one head's scores into weights. Key j belongs to lane j % 32. Keys outside [begin, end) get no weight.
// weights: this head's of key 0; kHeads apart.
template <int kHeads>
__device__ __forceinline__ ChunkSum soften(const float* scores, int begin, int end, float* weights) {
  constexpr int kEach = kAttentionChunk / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  float s[kEach], m = -INFINITY, l = 0;
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    const int key = lane + kWarp * k;
    s[k] = key >= begin && key < end ? scores[key] : -INFINITY;
    m = fmaxf(m, s[k]);
  }
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) m = fmaxf(m, __shfl_xor_sync(kAllLanes, m, step));
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    const int key = lane + kWarp * k;
    const float e = exp_f32(s[k] - m);
    if (key >= begin && key < end) {
      l += e;
      weights[key * kHeads] = e;
    }
  }
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) l += __shfl_xor_sync(kAllLanes, l, step);
  return {m, l};
}

// One channel's weighted sum over keys [begin, end) for kHeads heads. weights: [128, kHeads]; v: this channel of key 0.
template <typename T, int kHeads>
__device__ __forceinline__ void add_values(const float* weights, const T* v, int head_dim, int begin, int end,
                                           float (&acc)[kHeads]) {
  constexpr int kVector = kHeads < 4 ? kHeads : 4;
  struct alignas(kVector * sizeof(float)) Vector {
    float f[kVector];
  };
#pragma unroll
  for (int h = 0; h < kHeads; ++h) acc[h] = 0;
#pragma unroll 8
  for (int key = begin; key < end; ++key) {
    const float value = widen(v[key * head_dim]);
#pragma unroll
    for (int i = 0; i < kHeads / kVector; ++i) {
      const Vector w = reinterpret_cast<const Vector*>(weights + key * kHeads)[i];
#pragma unroll
      for (int j = 0; j < kVector; ++j) acc[i * kVector + j] = __fmaf_rn(w.f[j], value, acc[i * kVector + j]);
    }
  }
}

/// kHeads: heads of the group worked at once (more take more rounds over the same keys).
template <typename T, int kHeads>
__global__ void __launch_bounds__(kThreads, 3) decode_kernel(const DecodeArgs args) {
  extern __shared__ __align__(16) std::byte shared[];
  __shared__ ChunkSum sums[kHeads];
  __shared__ bool last;
  allow_successor();
  wait_for_predecessor();
  const int thread = static_cast<int>(threadIdx.x);
  const int row = static_cast<int>(blockIdx.x) / args.kv.kv_heads;
  const int kv_head = static_cast<int>(blockIdx.x) % args.kv.kv_heads, chunk = static_cast<int>(blockIdx.y);
  const int position = args.rows.position[row], sequence = args.rows.sequence[row];
  const int oldest = first_visible(position, args.window);
  const int first_chunk = oldest / kAttentionChunk, chunks = position / kAttentionChunk - first_chunk + 1;
  if (chunk < first_chunk || chunk >= first_chunk + chunks) return;
  const int begin = max(oldest - chunk * kAttentionChunk, 0),
            end = min(position + 1 - chunk * kAttentionChunk, kAttentionChunk);
  const int head_dim = args.kv.head_dim;

  auto* k = reinterpret_cast<T*>(shared);
  auto* v = args.both ? k + kAttentionChunk * head_dim : k;
  auto* q = reinterpret_cast<float*>(v + kAttentionChunk * head_dim);  // [head_dim, kHeads]
  float* weights = q;                                                  // [128, kHeads]: q is not needed any more then
  float* scores = q + kHeads * max(head_dim, kAttentionChunk);         // [kHeads, 128]
  const std::byte *k_block[2] = {}, *v_block[2] = {};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (end <= half * kKvBlock || begin >= (half + 1) * kKvBlock) continue;
    k_block[half] = kv_block(args.kv, sequence, 2 * chunk + half, args.kv.k_offset, kv_head);
    v_block[half] = k_block[half] + (args.kv.v_offset - args.kv.k_offset);
  }
  copy_keys<T>(args.kv, k_block, begin, end, reinterpret_cast<std::byte*>(k));
  __pipeline_commit();
  if (args.both) copy_values<T>(args.kv, v_block, begin, end, reinterpret_cast<std::byte*>(v));
  __pipeline_commit();

  const std::int64_t row_head = static_cast<std::int64_t>(row) * args.heads + kv_head * args.group;
  for (int h0 = 0; h0 < args.group; h0 += kHeads) {
    const int heads = min(args.group - h0, kHeads);
    const float* from = args.q + (row_head + h0) * head_dim;
    if (h0 > 0) {
      __syncthreads();
      if (!args.both) {
        copy_keys<T>(args.kv, k_block, begin, end, reinterpret_cast<std::byte*>(k));
        __pipeline_commit();
      }
    }
    for (int i = thread; i < kHeads * head_dim; i += kThreads) {
      const int h = i / head_dim, d = i % head_dim;
      q[d * kHeads + h] = h < heads ? from[i] : 0.0f;
    }
    if (args.both) {
      __pipeline_wait_prior(1);
    } else {
      __pipeline_wait_prior(0);
    }
    __syncthreads();
    if (thread >= begin && thread < end) {
      float s[kHeads];
      score_key<T, kHeads>(q, k + thread, head_dim, s);
#pragma unroll
      for (int h = 0; h < kHeads; ++h) scores[h * kAttentionChunk + thread] = s[h] * args.scale;
    }
    __syncthreads();
    if (!args.both) {
      copy_values<T>(args.kv, v_block, begin, end, reinterpret_cast<std::byte*>(v));
      __pipeline_commit();
    }
    for (int h = thread / kWarp; h < kHeads; h += kWarps) {
      const ChunkSum sum = soften<kHeads>(scores + h * kAttentionChunk, begin, end, weights + h);
      if (thread % kWarp != 0 || h >= heads) continue;
      sums[h] = sum;
      if (chunks > 1) args.sums[(row_head + h0 + h) * args.max_chunks + chunk] = sum;
    }
    __pipeline_wait_prior(0);
    __syncthreads();
    for (int c = thread; c < head_dim; c += kThreads) {
      float acc[kHeads];
      add_values<T, kHeads>(weights, v + c, head_dim, begin, end, acc);
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        if (h >= heads) break;
        if (chunks > 1) {
          args.part[((row_head + h0 + h) * args.max_chunks + chunk) * head_dim + c] = acc[h];
          continue;
        }
        const float result[1] = {acc[h] / sums[h].l};
        const std::int64_t at = (row_head + h0 + h) * head_dim + c;
        if (args.out) args.out[at] = result[0];
        if (args.q8.q) quantize_block(result, args.q8.q + at / 32 * 32, args.q8.scale + at / 32);
      }
    }
  }
  if (chunks == 1 || !args.tickets) return;
  __threadfence();
  __syncthreads();
  if (thread == 0) {
    unsigned* ticket = args.tickets + blockIdx.x;
    last = atomicAdd(ticket, 1u) + 1 == static_cast<unsigned>(chunks);
    if (last) *ticket = 0;  // as the next launch expects it
  }
  __syncthreads();
  if (!last) return;
  __threadfence();
  merge_by_ticket(args, row, kv_head, first_chunk, chunks, shared);
}

// A block merges the chunks of a row and head; a thread has a channel. Rows of a single chunk are finished already.
__global__ void __launch_bounds__(kMergeThreads) merge_kernel(const DecodeArgs args) {
  extern __shared__ __align__(16) std::byte shared[];
  __shared__ Factors factors[2][kMergeChunks];
  __shared__ float total;
  allow_successor();
  wait_for_predecessor();
  const int thread = static_cast<int>(threadIdx.x), head_dim = args.kv.head_dim;
  const int row = static_cast<int>(blockIdx.x) / args.heads;
  const int position = args.rows.position[row];
  const int first = first_visible(position, args.window) / kAttentionChunk;
  const int chunks = position / kAttentionChunk - first + 1;
  if (chunks == 1) return;
  const std::int64_t row_head = blockIdx.x;
  const auto* part = reinterpret_cast<const std::byte*>(args.part + (row_head * args.max_chunks + first) * head_dim);
  const int chunk_bytes = head_dim * static_cast<int>(sizeof(float)), stage_bytes = kMergeChunks * chunk_bytes;
  const auto fetch = [&](int base, int stage) {
    const int bytes = min(chunks - base, kMergeChunks) * chunk_bytes;
    const std::byte* from = part + static_cast<std::int64_t>(base) * chunk_bytes;
    for (int i = 16 * thread; i < bytes; i += 16 * kMergeThreads) copy16(shared + stage * stage_bytes + i, from + i);
    __pipeline_commit();
  };
  Merged merged;  // in warp 0
  float a = 0;
  fetch(0, 0);
  int stage = 0;
  for (int base = 0; base < chunks; base += kMergeChunks, stage ^= 1) {
    const int count = min(chunks - base, kMergeChunks);
    if (base + kMergeChunks < chunks) fetch(base + kMergeChunks, stage ^ 1);
    if (thread < kWarp) {
      merge_factors(args.sums + row_head * args.max_chunks + first + base, count, factors[stage], merged);
      if (thread == 0) total = merged.l;
    }
    __pipeline_wait_prior(base + kMergeChunks < chunks ? 1 : 0);
    __syncthreads();
    if (thread < head_dim) {
      const float* from = reinterpret_cast<const float*>(shared + stage * stage_bytes) + thread;
#pragma unroll 8
      for (int c = 0; c < count; ++c) {
        const Factors f = factors[stage][c];
        a = __fmaf_rn(a, f.before, from[c * head_dim] * f.chunk);
      }
    }
    __syncthreads();  // the next fetch overwrites this stage
  }
  if (thread >= head_dim) return;
  const float result[1] = {a / total};
  const std::int64_t at = row_head * head_dim + thread;
  if (args.out) args.out[at] = result[0];
  if (args.q8.q) quantize_block(result, args.q8.q + at / 32 * 32, args.q8.scale + at / 32);
}

template <typename T>
cudaError_t decode(DecodeArgs args, cudaStream_t stream) {
  const dim3 grid(args.rows.rows * args.kv.kv_heads, args.max_chunks);
  const auto run = [&](auto* kernel, int heads) {
    const std::size_t head_dim = static_cast<std::size_t>(args.kv.head_dim);
    const std::size_t keys = sizeof(T) * kAttentionChunk * head_dim;
    const std::size_t rest =
        sizeof(float) * heads * (std::max<std::size_t>(head_dim, kAttentionChunk) + kAttentionChunk);
    args.both = 2 * keys + rest <= kMostShared;
    std::size_t bytes = (args.both ? 2 : 1) * keys + rest;
    // The merge needs factors and totals there.
    bytes = std::max(bytes, args.group * (kTicketChunks * sizeof(Factors) + sizeof(float)));
    return launch_large(kernel, grid, dim3(kThreads), bytes, stream, args);
  };
  if (args.group == 1) return run(decode_kernel<T, 1>, 1);
  if (args.group == 2) return run(decode_kernel<T, 2>, 2);
  if (args.group <= 4) return run(decode_kernel<T, 4>, 4);
  return run(decode_kernel<T, 8>, 8);
}

int chunks_of(int max_position) { return (max_position + kAttentionChunk - 1) / kAttentionChunk; }

/// The workspace: tickets, sums and results of chunks, the float32 result where it is wanted as int8 only and a block
/// of 32 spans heads.
struct Workspace {
  std::size_t sums = 0, part = 0, result = 0, bytes = 0;
};
Workspace workspace_of(std::int64_t rows, std::int64_t heads, std::int64_t head_dim, int max_position) {
  const auto up = [](std::int64_t n) { return (static_cast<std::size_t>(n) + 255) / 256 * 256; };
  const std::int64_t chunks = rows * heads * chunks_of(max_position);
  Workspace w;
  w.sums = kTicketBytes;
  w.part = w.sums + up(chunks * static_cast<std::int64_t>(sizeof(ChunkSum)));
  w.result = w.part + up(chunks * head_dim * static_cast<std::int64_t>(sizeof(float)));
  w.bytes = w.result + up(head_dim % 32 == 0 ? 0 : rows * heads * head_dim * static_cast<std::int64_t>(sizeof(float)));
  return w;
}

cudaError_t attention_few(const AttentionCall& call, const Workspace& w, float* out, Q8 q8, cudaStream_t stream) {
  DecodeArgs args = {};
  args.rows = call.rows;
  args.kv = call.kv;
  args.q = call.q;
  args.heads = call.heads;
  args.group = call.heads / call.kv.kv_heads;
  args.scale = call.scale;
  args.window = call.window;
  args.max_chunks = chunks_of(call.max_position);
  const bool by_ticket = args.max_chunks <= kTicketChunks && call.rows.rows * call.kv.kv_heads <= kTickets;
  args.tickets = by_ticket ? reinterpret_cast<unsigned*>(call.workspace) : nullptr;
  args.sums = reinterpret_cast<ChunkSum*>(call.workspace + w.sums);
  args.part = reinterpret_cast<float*>(call.workspace + w.part);
  args.out = out;
  args.q8 = q8;
  const cudaError_t error = call.kv.dtype == DType::f16 ? decode<__half>(args, stream) : decode<float>(args, stream);
  if (error != cudaSuccess || by_ticket) return error;
  const std::size_t bytes = 2 * kMergeChunks * sizeof(float) * static_cast<std::size_t>(call.kv.head_dim);
  return launch_large(merge_kernel, dim3(call.rows.rows * call.heads), dim3(kMergeThreads), bytes, stream, args);
}

}  // namespace

std::int32_t attention_tile_rows(std::int32_t group) { return std::max(kTileRowHeads / group, 1); }

std::size_t attention_tickets_bytes() { return kTicketBytes; }

std::size_t attention_workspace_bytes(std::int32_t rows, std::int32_t heads, std::int32_t head_dim,
                                      std::int32_t max_position) {
  return workspace_of(rows, heads, head_dim, max_position).bytes;
}

cudaError_t attention(const AttentionCall& call, cudaStream_t stream) {
  if (call.rows.rows <= 0) return cudaSuccess;
  const int head_dim = call.kv.head_dim, rows = call.rows.rows;
  const Workspace w = workspace_of(rows, call.heads, head_dim, call.tiles ? 0 : call.max_position);
  // Where a block of 32 spans heads, which different blocks of threads compute, quantization comes after.
  const bool later = call.out_q8.q && head_dim % 32 != 0;
  float* out = later && !call.out ? reinterpret_cast<float*>(call.workspace + w.result) : call.out;
  const Q8 q8 = later ? Q8{} : call.out_q8;
  const cudaError_t error =
      call.tiles ? attention_tiles(call, out, q8, stream) : attention_few(call, w, out, q8, stream);
  if (error != cudaSuccess || !later) return error;
  const int cols = call.heads * head_dim;
  return quantize_q8(out, cols, rows, cols, call.out_q8, stream);
}

}  // namespace millrace::kernels::cuda
