// What the two paths of attention share: few rows (attention.cu) and tiles of rows (attention_tile.cu for caches in
// f32, attention_half_tile.cu, attention_q8_tile.cu). Both compute the same sums in the same order, so a row gets the
// same bits from either; the order stands at AttentionCall.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/capability.h"
#include "kernels/cuda/exp.cuh"
#include "kernels/cuda/kv_view.cuh"
#include "kernels/cuda/launchers.h"

namespace millrace::kernels::cuda {

static_assert(kAttentionChunk == 2 * kKvBlock);

// Kernels have two forms each. Those with kRare do what few models ask for: chunks of positions, and scores with a cap
// or slopes (HeadArgs::is_rare); the others do not pay for it.

/// The first key of the cache that a row at `position` sees. A negative window stands for chunks of so many positions.
template <bool kRare>
__device__ __forceinline__ int first_visible(int position, int window) {
  if (kRare && window < 0) return position / -window * -window;
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
  int window;                     // as first_visible() has it
  const std::byte* const* sinks;  // may be null
  float* out;                     // may be null
  Q8 q8;                          // may be none
  float cap;
  const float* slopes;  // may be null

  bool is_rare() const { return window < 0 || cap > 0 || slopes != nullptr; }
};
inline HeadArgs head_args(const AttentionCall& call, float* out, Q8 q8) {
  return {call.rows,  call.seen,
          call.kv,    call.q,
          call.heads, call.heads / call.kv.kv_heads,
          call.scale, call.chunks ? -call.window : call.window,
          call.sinks, out,
          q8,         call.cap,
          call.slopes};
}

/// What a head's scores become by the cap and its slope; without slopes that is 0, which leaves them as they are.
struct ScoreBend {
  float cap, slope;

  __device__ __forceinline__ ScoreBend(const HeadArgs& args, int head)
      : cap(args.cap), slope(args.slopes == nullptr ? 0.0f : args.slopes[head]) {}
  /// ahead: the query's position less the key's.
  __device__ __forceinline__ float operator()(float s, int ahead) const {
    if (cap > 0) {
      const float y = s / cap;
      s = cap * (1.0f - 2.0f / (1.0f + exp_f32(y + y)));
    }
    return __fmaf_rn(slope, -static_cast<float>(abs(ahead)), s);
  }
};

/// launch(std::bool_constant<args.is_rare()>()).
template <typename Launch>
cudaError_t launch_rare_or_not(const HeadArgs& args, const Launch& launch) {
  return args.is_rare() ? launch(std::true_type()) : launch(std::false_type());
}

/// The keys of the cache that a row sees.
template <bool kRare>
__device__ __forceinline__ SeenKeys seen_by(const HeadArgs& args, int row) {
  if (args.seen != nullptr) return args.seen[row];
  const int position = args.rows.position[row];
  return {first_visible<kRare>(position, args.window), position};
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
