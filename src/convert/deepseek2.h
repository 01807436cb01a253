// Shared by families with latent attention.
// Thread-safety: constants and pure functions.
#pragma once

#include "convert/family.h"

namespace millrace::convert {

// NameRules of latent attention's own tensors, with MLX's names of two; `prefix` is a literal such as
// "model.layers.#.self_attn.".
#define MR_LATENT_NAMES(prefix)                                                                                       \
  {prefix "q_a_proj.weight", "blk.#.attn_q_a.weight"}, {prefix "q_a_layernorm.weight", "blk.#.attn_q_a_norm.weight"}, \
      {prefix "q_b_proj.weight", "blk.#.attn_q_b.weight"},                                                            \
      {prefix "kv_a_proj_with_mqa.weight", "blk.#.attn_kv_a_mqa.weight"},                                             \
      {prefix "kv_a_layernorm.weight", "blk.#.attn_kv_a_norm.weight"},                                                \
      {prefix "kv_b_proj.weight", "blk.#.attn_k_b.weight", Form::latent_keys},                                        \
      {prefix "kv_b_proj.weight", "blk.#.attn_v_b.weight", Form::latent_values},                                      \
      {prefix "embed_q.weight", "blk.#.attn_k_b.weight"}, {                                                           \
    prefix "unembed_out.weight", "blk.#.attn_v_b.weight"                                                              \
  }

inline constexpr std::int64_t kMostLatent = 1 << 16;  // of config.json's numbers of channels and layers

/// Latent attention's keys: ranks, and the channels of heads. Errors: by Config::fail().
void read_deepseek2(Config& config, Header& header);
/// The inverse, with the router's and the mixtures' keys. Errors: unsupported (a file of 2024, whose kv_b_proj is
/// whole).
Status write_deepseek2(const Header& header, nlohmann::json& config);

}  // namespace millrace::convert
