// Gemma 3: five layers that see a window of the nearest keys, then one that sees all, with rotations of two bases;
// four norms a layer, heads normalised one by one, GELU. Source: Gemma 3 technical report (arXiv:2503.19786).
#include <cmath>

#include "model/architectures.h"
#include "model/hyperparameters.h"
#include "model/rope.h"

namespace millrace::model {

Expected<DecoderSpec> gemma3_spec(const modelfile::Model& file, const Hyperparameters& hp) {
  constexpr std::int64_t kLayersOf27B = 62;  // whose queries are scaled by another width than their own
  Keys keys(file);
  const std::int64_t window = keys.required("attention.sliding_window", 1, 1 << 28);
  const std::int64_t period = keys.optional("attention.sliding_window_pattern", 6, 1, 1 << 16);
  const double local_theta = keys.optional_float("rope.freq_base_swa", 10000, 0, 1e12);
  const double logit_cap = keys.optional_float("final_logit_softcapping", 0, -1e-30, 1e6);
  MR_RETURN_IF_ERROR(keys.status());

  LayerSpec layer;
  layer.attention = plain_attention(hp);
  layer.attention.norm = HeadNorm::each;
  const std::int64_t width = hp.layers == kLayersOf27B ? hp.model_dim / hp.heads : hp.head_dim;
  layer.attention.scale = 1.0f / std::sqrt(static_cast<float>(width));
  MR_ASSIGN_OR_RETURN(layer.ff_dim, read_ff_dim(file, hp));
  layer.activation = kernels::Activation::gelu;
  layer.norms_results = true;

  DecoderSpec spec;
  spec.ropes.push_back(plain_rope(local_theta, hp.rotary));
  MR_ASSIGN_OR_RETURN(spec.ropes.emplace_back(), read_rope(file, hp));
  for (RopeSpec& rope : spec.ropes) rope.neox = true;
  for (std::int64_t index = 0; index < hp.layers; ++index) {
    const bool local = index % period < period - 1;
    layer.attention.window = local ? window : 0;
    layer.attention.rope = local ? 0 : 1;
    spec.layers.push_back(layer);
  }
  spec.logit_cap = static_cast<float>(logit_cap);
  spec.embedding_scale = std::sqrt(static_cast<float>(hp.model_dim));
  return spec;
}

}  // namespace millrace::model
