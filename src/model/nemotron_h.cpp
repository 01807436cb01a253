// Nemotron-H and Nemotron 3 Nano: each layer is one thing alone, behind one norm: Mamba-2, attention without a
// rotation, or a feed-forward, dense or a mixture with a shared expert, all of them by squared ReLU without a gate.
// What a layer is its numbers of KV heads and of feed-forward channels say. Sources: Nemotron-H (arXiv:2504.03624),
// the model card of Nemotron 3 Nano.
#include <algorithm>

#include "model/architectures.h"
#include "model/hyperparameters.h"
#include "model/mamba2.h"

namespace millrace::model {
namespace {

/// A file's layers; `mixture` in the place of a dense feed-forward, if it has experts.
Expected<DecoderSpec> decoder_of(const modelfile::Model& file, const Hyperparameters& hp, const MixtureSpec& mixture) {
  Keys keys(file);
  const auto ff_dims = keys.of_layers("feed_forward_length", hp.layers, 0, 0, hp.ff_dim);
  MR_RETURN_IF_ERROR(keys.status());
  MR_ASSIGN_OR_RETURN(const std::vector<std::int64_t> kv_heads, read_kv_heads(file, hp));
  MR_ASSIGN_OR_RETURN(const Mamba2Spec mamba2, read_mamba2(file));
  LayerSpec common;
  common.mamba2 = mamba2;
  common.attention = plain_attention(hp);
  common.attention.may_have_biases = true;
  common.attention.rope = kNoRope;
  common.activation = kernels::Activation::relu_squared;
  common.gated = false;
  common.ffn_norm = "attn_norm";
  DecoderSpec spec;
  for (std::size_t index = 0; index < ff_dims.size(); ++index) {
    LayerSpec& layer = spec.layers.emplace_back(common);
    layer.attention.kv_heads = kv_heads[index];
    layer.mixer = ff_dims[index] > 0 ? Mixer::none : kv_heads[index] > 0 ? Mixer::attention : Mixer::mamba2;
    if (layer.mixer != Mixer::none) continue;
    if (mixture.experts > 0)
      layer.mixture = mixture;
    else
      layer.ff_dim = ff_dims[index];
  }
  if (std::none_of(spec.layers.begin(), spec.layers.end(),
                   [](const LayerSpec& layer) { return layer.mixer != Mixer::none; }))
    return error(Code::corrupt, "{}: every layer is a feed-forward", arch_key(file, "feed_forward_length"));
  return spec;
}

}  // namespace

Expected<DecoderSpec> nemotron_h_spec(const modelfile::Model& file, const Hyperparameters& hp) {
  return decoder_of(file, hp, {});
}

Expected<DecoderSpec> nemotron_h_moe_spec(const modelfile::Model& file, const Hyperparameters& hp) {
  MixtureSpec mixture;
  mixture.gating = exec::Gating::sigmoid;
  MR_ASSIGN_OR_RETURN(mixture, read_mixture(file, hp, mixture));
  mixture.selection_bias = true;
  Keys keys(file);
  mixture.latent_dim = keys.optional("moe_latent_size", 0, 0, 1 << 20);
  MR_RETURN_IF_ERROR(keys.status());
  return decoder_of(file, hp, mixture);
}

}  // namespace millrace::model
