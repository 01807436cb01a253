// RoPE's inverse frequencies with the scaling a model file asks for. Sources: RoFormer (arXiv:2104.09864); linear
// position interpolation (arXiv:2306.15595); llama-3's per-frequency factors, which GGUF stores in rope_freqs.weight.
#pragma once

#include <vector>

#include "base/status.h"
#include "model/layer_spec.h"
#include "model/model.h"
#include "modelfile/gguf.h"

namespace millrace::model {

/// [rotary / 2]: theta^(-2 i / rotary), divided by the linear factor and by the file's per-frequency factors.
/// Errors: unsupported (another scaling, named), corrupt (factors that cannot be), io_error.
Expected<std::vector<float>> rope_inverse_frequencies(const modelfile::Model& file, const Hyperparameters& hp);

/// The same with the channels that are rotated, in interleaved pairs.
Expected<RopeSpec> read_rope(const modelfile::Model& file, const Hyperparameters& hp);

}  // namespace millrace::model
