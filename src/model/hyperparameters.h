// Reads the hyperparameters every architecture shares from a GGUF file's metadata and refuses absurd ones, so that
// nothing computed from them overflows or divides by zero. Source: the GGUF specification's standardized keys.
// Thread-safe (pure functions).
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"
#include "model/model.h"
#include "modelfile/gguf.h"

namespace millrace::model {

/// "<architecture>.<key>", as GGUF names its keys.
std::string arch_key(const modelfile::Model& file, std::string_view key);

/// Reads layers, dimensions, heads, experts, eps and RoPE base; `vocab` from the key or from token_embd's rows.
/// Errors: not_found (a key, named), corrupt (a value that cannot be, named with its key), unsupported (K and V of
/// different head size, attention that is not causal).
Expected<Hyperparameters> read_hyperparameters(const modelfile::Model& file);

/// What the chosen experts' weights are multiplied by after normalisation; 1 where the file does not say.
/// Errors: corrupt.
Expected<double> expert_weights_scale(const modelfile::Model& file);

}  // namespace millrace::model
