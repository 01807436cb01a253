// Reads the hyperparameters every architecture shares from a GGUF file's metadata and refuses absurd ones, so that
// nothing computed from them overflows or divides by zero. Source: the GGUF specification's standardized keys.
// Thread-safe (pure functions).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "model/keys.h"
#include "model/layer_spec.h"
#include "model/model.h"
#include "modelfile/gguf.h"

namespace millrace::model {

/// Reads layers, dimensions, heads, experts, eps and RoPE base; `vocab` from the key or from token_embd's rows.
/// Errors: not_found (a key, named), corrupt (a value that cannot be, named with its key).
/// context_tokens: LoadOptions.
Expected<Hyperparameters> read_hyperparameters(const modelfile::Model& file, std::int64_t context_tokens = 0);

/// Attention over all keys, with the file's heads and scores scaled by 1 / sqrt(head_dim).
AttentionSpec plain_attention(const Hyperparameters& hp);

/// What queries grow by with their position: nothing where the file does not say so. Errors go to `keys`.
exec::Temperature read_temperature(Keys& keys);

/// KV heads by layer; 0: it does not attend. Errors: corrupt (the key, named: heads cannot share them evenly).
Expected<std::vector<std::int64_t>> read_kv_heads(const modelfile::Model& file, const Hyperparameters& hp);

/// Which layer of a period sees all keys.
enum class SeesAll { first, last };

/// The window of each layer, 0 for those that see all keys. All see all where attention.sliding_window is absent or 0.
/// Which layers have one attention.sliding_window_pattern says, as a list of flags or as a period, one of which sees
/// all; `period`: where it is absent. Errors: corrupt (a key, named).
Expected<std::vector<std::int64_t>> read_windows(const modelfile::Model& file, const Hyperparameters& hp,
                                                 std::int64_t period, SeesAll sees_all = SeesAll::last);

/// Of models some of whose layers have a window: the others have no rotation.
void leave_unrotated_where_all_is_seen(DecoderSpec& spec);

/// A dense feed-forward's inner dimension. Errors: corrupt (the key, named: it is missing or 0).
Expected<std::int64_t> read_ff_dim(const modelfile::Model& file, const Hyperparameters& hp);

/// Experts, their size and number a token, and what the chosen ones' weights are multiplied by after normalisation.
/// `defaults`: gating and normalisation where the file does not say. Errors: corrupt (a key, named).
Expected<MixtureSpec> read_mixture(const modelfile::Model& file, const Hyperparameters& hp, MixtureSpec defaults = {});

}  // namespace millrace::model
