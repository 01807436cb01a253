// What families with Mamba-2 layers have in common.
// Thread-safety: constants and pure functions.
#pragma once

#include "convert/family.h"

namespace millrace::convert {

/// What stands before, between and behind the layers, in files of the models' makers.
inline constexpr NameRule kBackboneNames[] = {
    {"backbone.embeddings.weight", "token_embd.weight"},
    {"backbone.norm_f.weight", "output_norm.weight"},
    {"lm_head.weight", "output.weight"},
    {"backbone.layers.#.norm.weight", "blk.#.attn_norm.weight"},
};

// Rows of a table of names: the mixer's tensors behind `prefix`, a literal such as "model.layers.#.mamba.".
#define MR_MAMBA2_NAMES(prefix)                                                                                      \
  {prefix "in_proj.weight", "blk.#.ssm_in.weight"}, {prefix "conv1d.weight", "blk.#.ssm_conv1d.weight", Form::taps}, \
      {prefix "conv1d.bias", "blk.#.ssm_conv1d.bias"}, {prefix "dt_bias", "blk.#.ssm_dt.bias"},                      \
      {prefix "A_log", "blk.#.ssm_a", Form::decay_column}, {prefix "D", "blk.#.ssm_d", Form::column},                \
      {prefix "norm.weight", "blk.#.ssm_norm.weight", Form::groups}, {                                               \
    prefix "out_proj.weight", "blk.#.ssm_out.weight"                                                                 \
  }

/// Fails unless time_step_limit bounds no time step.
void expect_endless_time_steps(Config& config);

}  // namespace millrace::convert
