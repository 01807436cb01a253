// Attention over one chunk of latents, written once over a vector type: all queries of a tile share the keys, which lie
// like values, [64, head_dim], and are values, too, by their first v_dim channels.
//
// Queries are worked in groups of a vector's width. In the scores, lanes are queries; in the weighted values they are
// channels, as elsewhere (attention_body.h), so that a block is read where it lies, or once decoded, and never turned.
// Each sum runs in the order of NUMERICS, and no query's depends on its neighbours.
// Source: DeepSeek-V2 (arXiv:2405.04434), section 2.1.2, the absorbed form.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <utility>

#include "kernels/cpu/attention_body.h"

namespace millrace::kernels {
namespace {

/// The first `keys` latents of a block as floats, [keys, head_dim]; where they lie if they are floats.
template <typename V>
const float* plain_latents(const AttentionArgs& args, const std::byte* block, std::int64_t keys) {
  if (args.kv_dtype == DType::f32) return reinterpret_cast<const float*>(block);
  if (args.kv_dtype == DType::q8_0) {
    decode_values(block, args.head_dim, keys, args.latents);
  } else {
    const auto* halves = reinterpret_cast<const std::uint16_t*>(block);
    for_each_vector<V>(keys * args.head_dim, [&](std::int64_t i, int n) {
      store_n<V>(args.latents + i, n == V::kWidth ? V::load_half(halves + i) : V::load_half_first(halves + i, n), n);
    });
  }
  return args.latents;
}

/// Scores of kKeys keys with a vector of queries: out[key][query] = sum over channels, ascending, of key * query.
/// q: [head_dim, kWidth].
template <typename V, int kKeys>
void score_keys(const float* keys, const float* q, std::int64_t head_dim, float* out) {
  typename V::Float acc[kKeys];
#pragma GCC unroll 16
  for (int k = 0; k < kKeys; ++k) acc[k] = V::set(0);
  for (std::int64_t d = 0; d < head_dim; ++d) {
    const auto query = V::load(q + d * V::kWidth);
#pragma GCC unroll 16
    for (int k = 0; k < kKeys; ++k) acc[k] = V::fma(V::set(keys[k * head_dim + d]), query, acc[k]);
  }
#pragma GCC unroll 16
  for (int k = 0; k < kKeys; ++k) V::store(out + k * V::kWidth, acc[k]);
}

/// Weights times values of `count` queries, as many at a time as fit the registers.
template <typename V, int... kGroups>
void add_latents(const float* weights, const float* latents, const Visible* seen, int count, const AttentionArgs& args,
                 float* acc, std::integer_sequence<int, kGroups...>) {
  using Add = void (*)(const float*, const std::byte*, std::int64_t, const Visible*, float*, std::int64_t);
  static constexpr std::array<Add, sizeof...(kGroups)> kAdd = {add_values<V, kGroups + 1, false>...};
  constexpr int kMost = sizeof...(kGroups);
  const int groups = (count + kMost - 1) / kMost;
  for (int i = 0, first = 0; i < groups; ++i) {  // groups of even size
    const int size = (count - first + groups - i - 1) / (groups - i);
    kAdd[static_cast<std::size_t>(size - 1)](weights + first * kKvBlock, reinterpret_cast<const std::byte*>(latents),
                                             args.head_dim, seen + first, acc + first * args.v_dim, args.v_dim);
    first += size;
  }
}

/// Queries [first, first + count) of the flattened tile over the whole chunk; count <= kWidth.
template <typename V>
void attend_latents(const AttentionArgs& args, std::int64_t first, int count) {
  constexpr int kTogether = V::kRegisters >= 32 ? 16 : 8;  // keys: independent sums for the fmas' latency
  static_assert(kKvBlock % kTogether == 0);
  alignas(64) float q[kMostLatentDim * V::kWidth];
  alignas(64) float by_key[kKvBlock * V::kWidth];
  alignas(64) float weights[V::kWidth * kKvBlock];
  std::fill(q, q + args.head_dim * V::kWidth, 0.0f);
  Visible whole[V::kWidth];
  std::int64_t begin = std::numeric_limits<std::int64_t>::max(), end = 0;
  for (int m = 0; m < count; ++m) {
    const std::int64_t row = (first + m) / args.group, head = (first + m) % args.group;
    const float* from = args.q + row * args.q_row_stride + head * args.q_head_stride;
    for (std::int64_t d = 0; d < args.head_dim; ++d) q[d * V::kWidth + m] = from[d];
    whole[m] = visible_keys(args, row);
    if (whole[m].empty()) continue;
    begin = std::min(begin, whole[m].begin);
    end = std::max(end, whole[m].end);
  }
  float* acc = args.acc + first * args.v_dim;
  std::fill(acc, acc + count * args.v_dim, 0.0f);
  std::fill(args.max + first, args.max + first + count, kMinusInfinity);
  std::fill(args.sum + first, args.sum + first + count, 0.0f);
  const std::int64_t first_block = args.chunk * (kAttentionChunk / kKvBlock);
  for (std::int64_t block = begin / kKvBlock; block * kKvBlock < end; ++block) {
    const std::int64_t needed = std::min(kKvBlock, end - block * kKvBlock);
    const std::int64_t keys = (needed + kTogether - 1) / kTogether * kTogether;
    const float* plain = plain_latents<V>(args, args.v_blocks[block - first_block], keys);
    for (std::int64_t k = 0; k < keys; k += kTogether)
      score_keys<V, kTogether>(plain + k * args.head_dim, q, args.head_dim, by_key + k * V::kWidth);
    Visible seen[V::kWidth];
    for (int m = 0; m < count; ++m) {
      seen[m] = within_block(whole[m], block);
      for (std::int64_t k = seen[m].begin; k < seen[m].end; ++k)
        weights[m * kKvBlock + k] = by_key[k * V::kWidth + m] * args.scale;
    }
    soften<V>(args, first, count, block, seen, weights, acc);
    add_latents<V>(weights, plain, seen, count, args, acc, std::make_integer_sequence<int, max_group<V>()>());
  }
}

template <typename V>
void attention_chunk(const AttentionArgs& args) {
  if (args.k_blocks != nullptr) return attend_keys_and_values<V>(args);
  const std::int64_t queries = args.rows * args.group;
  for (std::int64_t first = 0; first < queries; first += V::kWidth)
    attend_latents<V>(args, first, static_cast<int>(std::min<std::int64_t>(V::kWidth, queries - first)));
}

}  // namespace
}  // namespace millrace::kernels
