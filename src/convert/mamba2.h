// Shared by families with Mamba-2 layers.
// Thread-safety: constants and pure functions.
#pragma once

#include "convert/family.h"

namespace millrace::convert {

/// Tensors outside the mixers, as in the original checkpoints.
inline constexpr NameRule kBackboneNames[] = {
    {"backbone.embeddings.weight", "token_embd.weight"},
    {"backbone.norm_f.weight", "output_norm.weight"},
    {"lm_head.weight", "output.weight"},
    {"backbone.layers.#.norm.weight", "blk.#.attn_norm.weight"},
};

// NameRules of a mixer's tensors; `prefix` is a literal such as "model.layers.#.mamba.".
#define MR_MAMBA2_NAMES(prefix)                                                                                      \
  {prefix "in_proj.weight", "blk.#.ssm_in.weight"}, {prefix "conv1d.weight", "blk.#.ssm_conv1d.weight", Form::taps}, \
      {prefix "conv1d.bias", "blk.#.ssm_conv1d.bias"}, {prefix "dt_bias", "blk.#.ssm_dt.bias"},                      \
      {prefix "A_log", "blk.#.ssm_a", Form::decay_column}, {prefix "D", "blk.#.ssm_d", Form::column},                \
      {prefix "norm.weight", "blk.#.ssm_norm.weight", Form::groups}, {                                               \
    prefix "out_proj.weight", "blk.#.ssm_out.weight"                                                                 \
  }

/// Fails with `unsupported` if time_step_limit bounds time steps.
void expect_endless_time_steps(Config& config);

}  // namespace millrace::convert
