// Scores of an indexer's queries with the index keys of blocks, written once over a vector type: lanes are keys, as in
// the scores of attention (attention_body.h), and the keys of a block are read once for a group of heads.
// Source: DeepSeek-V3.2 (arXiv:2512.02556), section 2.1.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

#include "kernels/cpu/attention_body.h"

namespace millrace::kernels {
namespace {

/// Adds M heads' terms to the scores of a block. q: [M, dim]; scores: [kKvBlock].
template <typename V, int M, bool kHalf>
void add_index_scores(const float* q, const float* weights, std::int64_t dim, const std::byte* keys, float* scores) {
  alignas(64) float dots[M * kKvBlock];
  alignas(64) float packed[M * kMostIndexDim];  // [dim, M]
  for (int m = 0; m < M; ++m)
    for (std::int64_t d = 0; d < dim; ++d) packed[d * M + m] = q[m * dim + d];
  wide_product<V, M, Into::scores, kHalf, 1, M>(packed, keys, kKvBlock, kKvBlock, 0, dim, dots, kKvBlock, 1);
  for_each_vector<V>(kKvBlock, [&](std::int64_t i, int n) {
    auto sum = load_n<V>(scores + i, n);
    for (int m = 0; m < M; ++m)
      sum = V::fma(V::set(weights[m]), V::max(load_n<V>(dots + m * kKvBlock + i, n), V::set(0)), sum);
    store_n<V>(scores + i, sum, n);
  });
}

template <typename V, bool kHalf, int... kGroups>
void index_scores_of(const IndexScoresArgs& args, std::integer_sequence<int, kGroups...>) {
  using Add = void (*)(const float*, const float*, std::int64_t, const std::byte*, float*);
  static constexpr std::array<Add, sizeof...(kGroups)> kAdd = {add_index_scores<V, kGroups + 1, kHalf>...};
  constexpr std::int64_t kMost = sizeof...(kGroups);
  std::fill_n(args.out, args.count * kKvBlock, 0.0f);
  for (std::int64_t b = 0; b < args.count; ++b) {
    for (std::int64_t first = 0; first < args.heads; first += kMost) {
      const std::int64_t size = std::min(kMost, args.heads - first);
      kAdd[static_cast<std::size_t>(size - 1)](args.q + first * args.dim, args.weights + first, args.dim,
                                               args.blocks[b], args.out + b * kKvBlock);
    }
  }
}

template <typename V>
void index_scores(const IndexScoresArgs& args) {
  constexpr auto kGroups = std::make_integer_sequence<int, max_group<V>()>();
  if (args.dtype == DType::f16)
    index_scores_of<V, true>(args, kGroups);
  else
    index_scores_of<V, false>(args, kGroups);
}

}  // namespace
}  // namespace millrace::kernels
