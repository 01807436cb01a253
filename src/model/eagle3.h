// EAGLE-3: a head in a file of its own that guesses for a larger model, from what three of that model's layers read.
// One decoder layer over [norm(embedding of a token) | norm(state)], the first states made of those three by a matrix,
// and logits of a vocabulary that may be a part of the model's. Source: arXiv:2503.01840; the files are GGUF's as
// llama.cpp converts them since 2026:
//   eagle3.target_layers    the layers whose inputs are read; absent: 2, layers / 2, layers - 3
//   eagle3.target_hidden_size  the model's dimension; absent: a third of fc's columns
//   eagle3.norm_before_residual, eagle3.norm_before_fc  flags
//   fc.weight [taps * model_dim, dim], enc.output_norm.weight [taps * model_dim] before it with the latter flag
//   blk.0.attn_norm.weight of the embedding, blk.0.attn_norm_2.weight of the state; attn_q, _k and _v have 2 * dim
//   columns token_embd.weight and output.weight, where they are not the model's d2t [logits], I64: the model's token of
//   each logit; absent: the same vocabulary
// Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "model/layer_spec.h"
#include "model/model.h"
#include "modelfile/gguf.h"

namespace millrace::model {

struct Eagle3 {
  Hyperparameters hp;                // one layer; vocab: its logits
  DecoderSpec spec;                  // likewise
  std::vector<std::int64_t> taps;    // DecoderSpec::taps of the model
  std::vector<std::int32_t> tokens;  // DraftPasses::tokens
};

/// general.architecture of such a file.
constexpr std::string_view kEagle3 = "eagle3";
/// Whether the file is one. False also where it cannot be read.
bool is_eagle3(const modelfile::Model& file);

/// The head, for a model of these hyperparameters. Errors: invalid_argument (it was trained for a model of another
/// dimension, of other layers or of another vocabulary: both named), corrupt, not_found, unsupported (a key or a
/// tensor, named), io_error.
Expected<Eagle3> read_eagle3(const modelfile::Model& file, const Hyperparameters& target);

}  // namespace millrace::model
