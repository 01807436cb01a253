// What the two paths of attention share: few rows (attention.cu) and tiles of rows (attention_tile.cu for caches in
// f32, attention_half_tile.cu, attention_q8_tile.cu). Both compute the same sums in the same order, so a row gets the
// same bits from either; the order stands at AttentionCall.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/capability.h"
#include "kernels/cuda/kv_view.cuh"
#include "kernels/cuda/launchers.h"

namespace millrace::kernels::cuda {

static_assert(kAttentionChunk == 2 * kKvBlock);

/// The first key of the cache that a row at `position` sees.
__device__ __forceinline__ int first_visible(int position, int window) {
  return window > 0 ? max(position - window + 1, 0) : 0;
}

/// What every path's kernel takes.
struct HeadArgs {
  RowView rows;
  const SeenKeys* seen;  // may be null
  KvView kv;
  const float* q;
  int heads, group;
  float scale;
  int window;
  const std::byte* const* sinks;  // may be null
  float* out;                     // may be null
  Q8 q8;                          // may be none
};
inline HeadArgs head_args(const AttentionCall& call, float* out, Q8 q8) {
  return {call.rows,  call.seen,   call.kv,    call.q, call.heads, call.heads / call.kv.kv_heads,
          call.scale, call.window, call.sinks, out,    q8};
}

/// The keys of the cache that a row sees.
__device__ __forceinline__ SeenKeys seen_by(const HeadArgs& args, int row) {
  if (args.seen != nullptr) return args.seen[row];
  const int position = args.rows.position[row];
  return {first_visible(position, args.window), position};
}
constexpr SeenKeys kSeesNothing = {0, -1};

/// M and L of the chunks merged so far.
struct Merged {
  float most, total;
};
/// Where they start for a head. A starts at zero.
__device__ __forceinline__ Merged merge_start(const HeadArgs& args, int head) {
  if (args.sinks == nullptr) return {-INFINITY, 0};
  return {reinterpret_cast<const float*>(*args.sinks)[head], 1};
}

/// The tile path, for caches in f32, f16 and what is multiplied as integers. f32_out: where the float32 result goes
/// (call.out or workspace), or null; q8: call.out_q8 or none.
cudaError_t attention_tiles(const AttentionCall& call, float* f32_out, Q8 q8, cudaStream_t stream);
cudaError_t attention_half_tiles(const AttentionCall& call, float* f32_out, Q8 q8, cudaStream_t stream);
cudaError_t attention_q8_tiles(const AttentionCall& call, float* f32_out, Q8 q8, cudaStream_t stream);

}  // namespace millrace::kernels::cuda
