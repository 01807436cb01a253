// MiMo-V2-Flash, V2.5 and V2.6: layers that see all tokens and layers that see a window in a pattern, the latter with
// more KV heads and a sink for each head; values have fewer channels than keys and are scaled. Layers have a mixture
// whose router takes sigmoids and chooses with a bias, or are dense, as their tensors say. The blocks behind the
// layers, which guess one token each, are not read. Source: the model card of MiMo-V2-Flash (2025).
#include "model/architectures.h"
#include "model/hyperparameters.h"
#include "model/rope.h"
#include "model/unit_builder.h"

namespace millrace::model {

Expected<DecoderSpec> mimo2_spec(const modelfile::Model& file, const Hyperparameters& hp) {
  Keys keys(file);
  const std::int64_t window = keys.required("attention.sliding_window", 1, 1 << 28);
  if (!keys.has("attention.sliding_window_pattern")) keys.required("attention.sliding_window_pattern", 0, 1);
  const auto local = keys.of_layers("attention.sliding_window_pattern", hp.layers, 0, 0, 1);
  const double local_theta = keys.optional_float("rope.freq_base_swa", 10000, 0, 1e12);
  LayerSpec common;
  common.attention = plain_attention(hp);
  common.attention.value_scale = static_cast<float>(keys.optional_float("attention.value_scale", 1, 0, 1e3));
  MR_RETURN_IF_ERROR(keys.status());
  MR_ASSIGN_OR_RETURN(const std::vector<std::int64_t> kv_heads, read_kv_heads(file, hp));

  DecoderSpec spec;
  for (std::int64_t index = 0; index < hp.layers; ++index) {
    const auto at = static_cast<std::size_t>(index);
    const auto has = [&](const char* tensor) {
      return file.find(layer_tensor(static_cast<int>(index), tensor)) != nullptr;
    };
    LayerSpec& layer = spec.layers.emplace_back(common);
    if (kv_heads[at] == 0)
      return error(Code::corrupt, "{}: layer {} has none", arch_key(file, "attention.head_count_kv"), index);
    layer.attention.kv_heads = kv_heads[at];
    layer.attention.window = local[at] != 0 ? window : 0;
    layer.attention.rope = local[at] != 0 ? 0 : 1;
    layer.attention.sinks = local[at] != 0 || has("attn_sinks.weight");
    if (!has("ffn_gate_inp.weight")) {
      MR_ASSIGN_OR_RETURN(layer.ff_dim, read_ff_dim(file, hp));
      continue;
    }
    layer.mixture.gating = exec::Gating::sigmoid;
    MR_ASSIGN_OR_RETURN(layer.mixture, read_mixture(file, hp, layer.mixture));
    layer.mixture.selection_bias = true;
  }
  spec.ropes.push_back(plain_rope(local_theta, hp.rotary));
  MR_ASSIGN_OR_RETURN(spec.ropes.emplace_back(), read_rope(file, hp));
  for (RopeSpec& rope : spec.ropes) rope.neox = true;
  spec.guesses = false;  // each of its blocks guesses one token, the next block the one behind
  return spec;
}

}  // namespace millrace::model
