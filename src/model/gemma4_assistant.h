// Gemma 4's assistant: a small model in a file of its own that guesses for a larger one, whose keys and values it
// reads. A row is a token's embedding and the model's final states of the position before it; its layers have queries
// alone, over the keys of the model's last layer of the same kind (with a window, or without); it gives logits of the
// model's vocabulary, and states that stand in the model's place for one guess more. All guesses are made at one
// position, that of the last token, over the keys of the tokens before it. Source: Gemma 4's model cards (2026); the
// files are GGUF's as llama.cpp converts them:
//   gemma4-assistant.embedding_length_out  the model's dimension
//   gemma4-assistant.attention.sliding_window_pattern  which of its layers see a window
//   nextn.pre_projection.weight [2 * model_dim, dim], nextn.post_projection.weight [dim, model_dim]
//   token_embd.weight is the head; masked_embd_* would leave parts of it out, and are not read
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

struct Gemma4Assistant {
  Hyperparameters hp;
  DecoderSpec spec;  // its layers read the model's (AttentionSpec::reads)
};

/// general.architecture of such a file.
constexpr std::string_view kGemma4Assistant = "gemma4-assistant";
/// Whether the file is one. False also where it cannot be read.
bool is_gemma4_assistant(const modelfile::Model& file);

/// The assistant, for this model. Errors: invalid_argument (it was trained for a model of another dimension, of another
/// vocabulary or of other heads), unsupported (the model is no Gemma 4; a key or a tensor, named), corrupt, not_found,
/// io_error.
Expected<Gemma4Assistant> read_gemma4_assistant(const modelfile::Model& file, const Hyperparameters& target,
                                                const DecoderSpec& target_spec);

}  // namespace millrace::model
