// The contract of latent attention on a GPU, in its absorbed form: what prepares queries and stores latents,
// products by heads, and attention over latents. Rules as in ops.h. A view of the cache has one KV head of
// head_dim channels a token, which lie as values do: [64, head_dim] at v_offset, in q8_0 int8 and behind them their
// scales, [64, head_dim / 32]; k_offset counts nothing.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/gpu/ops.h"

namespace millrace::kernels::gpu {

/// The last `rotary` channels of each head of q, in place, and the shared key turn by cos_sin ([rows, rotary / 2]
/// pairs); then [c | key] goes into the cache at each row's position, as q8_0 with
/// the bits of encode_row (tensor/codec.h). Where there is a norm, c goes through rms_norm() first, which c itself does
/// not show.
struct LatentStoreCall {
  RowView rows;
  KvView kv;
  float* q = nullptr;  // [rows, heads, q_head]
  std::int32_t heads = 0, q_head = 0;
  const float* c = nullptr;    // [rows, head_dim - rotary]
  const float* key = nullptr;  // [rows, rotary]
  const float* cos_sin = nullptr;
  std::int32_t rotary = 0;                 // at most 256
  bool neox = false;                       // pairs (i, i + rotary / 2) instead of (2i, 2i + 1)
  const std::byte* const* norm = nullptr;  // entry of float32 [head_dim - rotary], at most kMostNormedLatent; or none
  float eps = 0;
};
constexpr std::int32_t kMostNormedLatent = 1024;  // and a multiple of 4
Status store_latent(const LatentStoreCall& call, device::StreamRef stream);

/// Head h of a row of out is the product of matrix h with the first k channels of head h of x; behind its n channels
/// comes what x has left of the head. Lane l of 32 takes the elements e with e % 32 == l in ascending order from +0,
/// acc = fma(w, x, acc), w being what decode_row makes of it; the lanes are added by a tree (16, 8, 4, 2, 1).
/// transposed: of the transpose of matrix h with the first n channels, whose k channels are sums over the matrix's rows
/// in ascending order from +0, by one fma each: the CPU's bits.
struct HeadProductCall {
  Matrix weight;                     // [heads * n, k]; parts: of head 0, [n, k]
  const float* x = nullptr;          // [rows, heads, x_head]
  float* out = nullptr;              // [rows, heads, n + x_head - k]; transposed: [rows, heads, k + x_head - n]
  std::int32_t rows = 0, heads = 0;  // rows of activations
  std::int32_t n = 0, k = 0;         // of a head's matrix; k (transposed: n) at most 1024
  std::int32_t x_head = 0;
  bool parts = false;  // head h's matrix has the h-th entry from weight.address on
  bool transposed = false;
  /// Of rows of prompts: weights and activations are rounded to bfloat16, and the products are mma.m16n8k16 with
  /// float32 sums, sixteen terms a step in ascending order from +0. Where weights are floats, both are bfloat16 high +
  /// low, and a step adds high high, high low and low high.
  bool prompt = false;
};
Status head_product(const HeadProductCall& call, device::StreamRef stream);

constexpr std::int32_t kLatentSpan = 128;  // keys at absolute positions
constexpr std::int32_t kMostLatentDim = 1024, kMostLatentValues = 512;

/// out[r, h] = softmax(scale * q[r, h] C^T) C', C being the latents that row r sees, those up to its position, and C'
/// their first v_dim channels.
/// Over f16 and q8_0 (whose values are rounded to f16), where head_dim and v_dim are multiples of 16 and head_dim is at
/// most 640: both products are mma.m16n8k16 with float32 sums. Scores: q 2^n, n as AttentionCall has it, rounded to
/// f16; sixteen channels a step, even and odd steps from +0 each, added at the end; then times (scale 2^-n). Tiles of
/// 32 keys at absolute positions are merged in ascending order into (M, L, A) that start at (-inf, 0, 0): M' = max(M,
/// m); e_j = exp(s_j - M') rounded to f16; L = fma(L, exp(M - M'), sum of e_j); A = A exp(M - M'), to which the product
/// adds. Rows of prompts merge all of their keys so; others those of a span of kLatentSpan keys, and then spans: M the
/// largest of theirs, L the sum of L_i exp(M_i - M) in ascending order, an fma each from +0, and A likewise.
///
/// Else: as attention() over f32, whatever the cache's format (its values widened or decoded): chunks of
/// kAttentionChunk keys are merged within a span, and so are the spans.
///
/// With a list of chosen keys (indexer.h) row r sees the first min(position + 1, top_k) keys of its list. What is said
/// above of a position is said of a place in the list: a list of all positions gives the bits of no list.
struct LatentAttentionCall {
  RowView rows;
  KvView kv;                 // head_dim: a multiple of 8, of 32 in q8_0, at most kMostLatentDim
  const float* q = nullptr;  // [rows, heads, head_dim]
  std::int32_t heads = 0;
  float scale = 1;
  std::int32_t v_dim = 0;                // a multiple of 4, at most kMostLatentValues
  float* out = nullptr;                  // [rows, heads, v_dim]
  std::int32_t max_position = 0;         // every position is below it: a host's bound, kept by captured graphs
  bool prompt = false;                   // rows of prompts
  const std::int32_t* chosen = nullptr;  // [rows, top_k] positions; null: all keys are seen
  std::int32_t top_k = 0;
  /// Spans of so many rows have blocks of their own at once; latent_workspace_bytes(), for one row at least.
  std::byte* workspace = nullptr;
  std::size_t workspace_bytes = 0;
};
/// For `rows` rows at once, or as many as take no more than 32 MiB, and for one at least.
std::size_t latent_workspace_bytes(std::int32_t rows, std::int32_t heads, std::int32_t v_dim,
                                   std::int32_t max_position);
Status latent_attention(const LatentAttentionCall& call, device::StreamRef stream);

}  // namespace millrace::kernels::gpu
