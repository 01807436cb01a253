// gpt-oss: layers that see a window of the nearest keys and layers that see all in turn, each head with a sink; a
// mixture whose router, experts and gates have biases, the gates clamped, the chosen experts' weights a softmax of
// their scores. YaRN blends between bounds that are not rounded, as in training (other programs round them).
// Source: gpt-oss model card (arXiv:2508.10925).
#include "model/architectures.h"
#include "model/hyperparameters.h"
#include "model/rope.h"

namespace millrace::model {

Expected<DecoderSpec> gpt_oss_spec(const modelfile::Model& file, const Hyperparameters& hp) {
  Keys keys(file);
  const std::int64_t window = keys.required("attention.sliding_window", 1, 1 << 28);
  MR_RETURN_IF_ERROR(keys.status());

  LayerSpec layer;
  layer.attention = plain_attention(hp);
  layer.attention.may_have_biases = true;
  layer.attention.sinks = true;
  layer.ffn_norm = "post_attention_norm";
  layer.activation = kernels::Activation::clamped;
  MR_ASSIGN_OR_RETURN(layer.mixture, read_mixture(file, hp));
  layer.mixture.gating = exec::Gating::softmax_chosen;
  layer.mixture.normalize = false;  // a softmax is
  layer.mixture.biases = true;

  DecoderSpec spec;
  for (std::int64_t index = 0; index < hp.layers; ++index) {
    layer.attention.window = index % 2 == 0 ? window : 0;
    spec.layers.push_back(layer);
  }
  MR_ASSIGN_OR_RETURN(spec.ropes.emplace_back(), read_rope(file, hp, YarnRamp::exact));
  spec.ropes.back().neox = true;
  return spec;
}

}  // namespace millrace::model
