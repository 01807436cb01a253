// The contract of an indexer on a GPU: what prepares its queries and stores index keys, and what chooses the keys that
// a row's attention sees (latent_attention() reads the list). Rules as in ops.h. Everything here has the CPU's bits
// (kernels/kernels.h) but for the scores of prompts, so that equal queries and keys choose the same tokens on both.
// Source: DeepSeek-V3.2 (arXiv:2512.02556), section 2.1.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/gpu/ops.h"

namespace millrace::kernels::gpu {

constexpr std::int32_t kMostIndexDim = 256, kIndexDimStep = 32;  // an index key has a multiple of the latter
constexpr std::int32_t kMostIndexHeads = 1024;

/// Where the index keys of a layer lie: in blocks of 64 tokens, [dim, 64] each.
struct IndexView {
  const std::byte* const* table = nullptr;  // device: [sequences, max_blocks] addresses
  std::int64_t offset = 0;                  // bytes from a block's start, a multiple of 16
  std::int32_t max_blocks = 0, dim = 0;
  DType dtype = DType::f16;  // f16 or f32
};

/// The key of each row goes through layer_norm(), is rotated, and is stored at the row's position; each head of q is
/// rotated in place. Of a head and of a key the channels [first, first + rotary) turn.
struct IndexStoreCall {
  RowView rows;
  IndexView index;
  float* q = nullptr;          // [rows, heads, dim]
  const float* key = nullptr;  // [rows, dim]
  std::int32_t heads = 0;
  const std::byte* const* weight = nullptr;  // entries of float32 [dim]; bias may be none
  const std::byte* const* bias = nullptr;
  float eps = 0;
  const float* cos_sin = nullptr;  // [rows, rotary / 2, 2]
  std::int32_t rotary = 0, first = 0;
  bool neox = false;  // pairs (i, i + rotary / 2) instead of (2i, 2i + 1)
};
Status store_index(const IndexStoreCall& call, device::StreamRef stream);

/// The score of key s for a row: the sum over heads h, ascending, of (weights[h] * factor) * max(0, q_h . k_s), each an
/// fma, from +0; the dot product by ascending channel, an fma each, from +0. A row that sees more than top_k keys
/// chooses the top_k largest scores; of equal ones the lower positions; NaN counts as -infinity. chosen: their
/// positions in ascending order. A row that sees no more lists all of them, and what lies behind is not written.
///
/// Rows of prompts over keys in f16 of up to 128 channels, with up to 64 heads: q_h 2^n, n as AttentionCall has it,
/// becomes the sum of two f16, and dot products are mma.m16n8k16 with float32 sums from +0, of sixteen channels of the
/// first and then of the second by ascending channel, times 2^-n. Of eight neighbouring heads, lane l of four has the
/// heads 2 l and 2 l + 1; each adds its own by ascending head, and the lanes are added as (0 + 1) + (2 + 3).
struct ChooseKeysCall {
  RowView rows;
  IndexView index;
  const float* q = nullptr;        // [rows, heads, dim]
  const float* weights = nullptr;  // [rows, heads]
  float factor = 1;
  std::int32_t heads = 0, top_k = 0;
  std::int32_t* chosen = nullptr;  // [rows, top_k]
  std::int32_t max_position = 0;   // every position is below it: a host's bound, kept by captured graphs
  bool prompt = false;             // rows of prompts
  /// For so many rows at once: choose_workspace_bytes(), for one row at least. Where that is all, their scores are left
  /// there, [rows, max_position rounded up to a multiple of 128], of rows that choose.
  std::byte* workspace = nullptr;
  std::size_t workspace_bytes = 0;
};
/// For `rows` rows at once, or as many as take no more than 32 MiB, and for one at least.
std::size_t choose_workspace_bytes(std::int32_t rows, std::int32_t max_position);
Status choose_keys(const ChooseKeysCall& call, device::StreamRef stream);

}  // namespace millrace::kernels::gpu
