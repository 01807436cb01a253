// The gated delta rule over the rows of prompts, in chunks on the tensor cores. What it computes and how a state lies
// says kernels/recurrent.h; runs are those of recurrent.h. Rules as in ops.h. Source: the form with chunks of
// Gated Delta Networks (arXiv:2412.06464).
//
// A run is a chunk. With its rows' decays multiplied up to row i as G[i], S the state before it, and
//   A[i, j] = beta[i] (G[i] / G[j]) (key[i] key[j]) for j < i,  T = (1 + A)^-1,  P[i, j] = (G[i] / G[j]) (query[i]
//   key[j]) for j <= i:
//   D = T (beta (value - G (S key))),  out = scale (G (S query) + P D),  S = G[last] S + sum of (G[last] / G[j]) D[j]
//   key[j]
//
// NUMERICS. Products are those of the tensor cores in float16: operands are rounded to 11 bits, sums are float32. A is
// made of keys that were rounded, so that the rounding of a key is one change of it everywhere; it and its inverse are
// float32. Values, states and differences of a chunk's 16 columns are scaled by the power of two that keeps them within
// float16. A row's bits follow from its chunk's rows and from the state before: whoever cuts prompts into passes cuts
// them where runs end.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/gpu/recurrent.h"

namespace millrace::kernels::gpu {

constexpr std::int32_t kChunkRows = 64, kMostChunkKeys = 128;

/// Whether it has heads of such a shape.
constexpr bool delta_chunks_fit(std::int64_t key_dim, std::int64_t value_dim) {
  return key_dim > 0 && key_dim % 4 == 0 && key_dim <= kMostChunkKeys && value_dim % kStateLanes == 0;
}
/// Whether the current device has room for it: compute capability 9.0 and 10.0.
bool has_delta_chunks();

/// Of each run: the key heads' queries and keys, and of its value heads T, P, G, G[last] / G and beta.
std::size_t delta_chunks_workspace_bytes(std::int64_t runs, std::int64_t key_heads, std::int64_t value_heads,
                                         std::int64_t key_dim);

/// out = the rule over every head's state.
/// REQUIRES: has_delta_chunks(); a head has one decay; runs of at most kChunkRows rows; qkv and the workspace lie at
/// multiples of 16 bytes.
struct DeltaChunksCall {
  DeltaRuleCall rule;
  std::byte* workspace = nullptr;  // delta_chunks_workspace_bytes() of all runs of the table
};
Status delta_chunks(const DeltaChunksCall& call, device::StreamRef stream);

}  // namespace millrace::kernels::gpu
