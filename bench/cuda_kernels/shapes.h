// Shapes of real models, and what several kinds of launchers need: rows of a pass, a cache, experts that a router
// chose.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "cuda_kernels/suite.h"
#include "kernels/rotation.h"
#include "tensor/kv_codec.h"

namespace millrace::bench {

/// Rows of a pass: of one, of some and of many sequences, and of a prompt.
constexpr int kFewRows[] = {1, 8, 64};
constexpr int kPromptRows = 512;
constexpr int kAllRows[] = {1, 8, 64, kPromptRows};

struct Dense {
  std::string_view name;
  int dim, heads, kv_heads, head_dim, hidden, vocab;
};
constexpr Dense kLlama8b = {"8B", 4096, 32, 8, 128, 14336, 128256};
constexpr Dense kLlama70b = {"70B", 8192, 64, 8, 128, 28672, 128256};
constexpr Dense kQwen3Moe = {"30B-A3B", 2048, 32, 4, 128, 0, 151936};
constexpr Dense kGptOss = {"gpt-oss", 2880, 64, 8, 64, 0, 201088};
constexpr Dense kGemma = {"Gemma 27B", 5376, 32, 16, 128, 21504, 262144};
constexpr Dense kHybrid = {"35B-A3B", 2048, 16, 2, 256, 0, 248320};  // Qwen3.6: every fourth layer attends

struct Mixture {
  std::string_view name;
  int dim, experts, top_k, hidden;
  DType dtype;
};
constexpr Mixture kMixtures[] = {{"30B-A3B", 2048, 128, 8, 768, DType::q4_k},
                                 {"gpt-oss-120b", 2880, 128, 4, 2880, DType::mxfp4},
                                 {"35B-A3B", 2048, 256, 8, 512, DType::q4_k},
                                 {"DeepSeek", 7168, 256, 8, 2048, DType::q4_k}};

/// Latents: of rank channels, and rotary ones of a key beside them; q_head = nope + rotary.
struct Latent {
  std::string_view name;
  int dim, heads, rank, rotary, nope, v_head, q_rank;
};
constexpr Latent kLatents[] = {{"DeepSeek", 7168, 128, 512, 64, 128, 128, 1536},
                               {"GLM-4.7-Flash", 2048, 20, 512, 64, 192, 256, 768}};

/// An indexer beside latents: heads of 128 channels, and the keys that it chooses.
struct IndexShape {
  std::string_view name;
  int heads, top_k;
};
constexpr IndexShape kIndexers[] = {{"DeepSeek V3.2", 64, 2048}, {"GLM-5", 32, 2048}};

/// A cache's size, in words.
inline std::string context(int tokens) {
  return tokens % 1000 == 0 ? std::to_string(tokens / 1000) + "K" : std::to_string(tokens);
}

/// Rows of a pass: each the token behind `before` of a sequence of its own, or all of one sequence's prompt.
struct PassRows {
  kernels::cuda::RowView view;
  int sequences = 1, longest = 0;  // longest: tokens of a sequence behind the pass
  double visible = 0;              // keys that rows see, all together
};
inline PassRows pass_rows(Case& c, int rows, int before, bool prompt) {
  PassRows pass;
  std::vector<std::int32_t> token, sequence, position;
  for (int r = 0; r < rows; ++r) {
    token.push_back(r * 7919 % 32000);
    sequence.push_back(prompt ? 0 : r);
    position.push_back(prompt ? before + r : before);
    pass.visible += position.back() + 1;
  }
  pass.sequences = prompt ? 1 : rows;
  pass.longest = position.back() + 1;
  pass.view = {rows, c.holds(token), c.holds(sequence), c.holds(position)};
  return pass;
}

constexpr int kBlockTokens = 64;

/// Blocks of `layer_bytes` each for so many tokens of every sequence; counts nothing.
inline kernels::cuda::KvView::Blocks kv_blocks(Case& c, int sequences, int max_blocks, std::int64_t block_bytes) {
  const std::int64_t each = (block_bytes + 255) / 256 * 256;
  const auto* memory = c.room<std::byte>(each * sequences * max_blocks);
  std::vector<const std::byte*> table;
  if (!c.too_large())
    for (int i = 0; i < sequences * max_blocks; ++i) table.push_back(memory + i * each);
  kernels::cuda::KvView::Blocks blocks;
  blocks.table = c.holds(table);
  return blocks;
}

/// A layer's keys and values of a pass's sequences; counts nothing. As the executor has them: rotated where they lose
/// bits, with plain blocks beside few bits.
inline kernels::cuda::KvView kv_view(Case& c, const PassRows& pass, DType dtype, int kv_heads, int head_dim) {
  kernels::cuda::KvView view;
  view.dtype = dtype;
  view.kv_heads = kv_heads;
  view.head_dim = head_dim;
  view.max_blocks = (pass.longest + kBlockTokens - 1) / kBlockTokens;
  view.rotation = kv_is_rotated(dtype) ? static_cast<std::int32_t>(kernels::rotation_span(head_dim)) : 0;
  const auto blocks = [&](DType of) {
    const std::int64_t head = kv_row_bytes(of, head_dim) * kBlockTokens;
    auto made = kv_blocks(c, pass.sequences, view.max_blocks, 2 * head * kv_heads);
    made.v_offset = head * kv_heads;
    made.head_bytes = head;
    return made;
  };
  view.blocks = blocks(dtype);
  if (kv_has_few_bits(dtype)) view.plain = blocks(DType::q8_0);
  return view;
}

/// A layer's latents of a pass's sequences, likewise.
inline kernels::cuda::KvView latent_view(Case& c, const PassRows& pass, DType dtype, int head_dim) {
  kernels::cuda::KvView view;
  view.dtype = dtype;
  view.kv_heads = 1;
  view.head_dim = head_dim;
  view.max_blocks = (pass.longest + kBlockTokens - 1) / kBlockTokens;
  view.blocks = kv_blocks(c, pass.sequences, view.max_blocks, kv_row_bytes(dtype, head_dim) * kBlockTokens);
  view.blocks.head_bytes = kv_row_bytes(dtype, head_dim) * kBlockTokens;
  return view;
}

/// What a uniform router chooses: top_k different experts of each row.
struct Chosen {
  std::vector<std::int32_t> chosen;         // [rows, top_k]
  std::vector<std::int32_t> sorted, first;  // as sort_entries() has them
  int touched = 0;                          // experts that at least one row chose
};
inline Chosen choose_experts(int rows, int experts, int top_k) {
  Chosen all;
  std::mt19937 random(20261127);
  std::vector<std::int32_t> order(static_cast<std::size_t>(experts));
  for (int e = 0; e < experts; ++e) order[static_cast<std::size_t>(e)] = e;
  for (int r = 0; r < rows; ++r) {
    std::shuffle(order.begin(), order.end(), random);
    all.chosen.insert(all.chosen.end(), order.begin(), order.begin() + top_k);
  }
  for (int e = 0; e < experts; ++e) {
    all.first.push_back(static_cast<std::int32_t>(all.sorted.size()));
    for (std::size_t i = 0; i < all.chosen.size(); ++i)
      if (all.chosen[i] == e) all.sorted.push_back(static_cast<std::int32_t>(i));
    if (static_cast<std::int32_t>(all.sorted.size()) > all.first.back()) ++all.touched;
  }
  all.first.push_back(static_cast<std::int32_t>(all.sorted.size()));
  return all;
}

}  // namespace millrace::bench
