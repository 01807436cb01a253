// Gemma: Llama's layers with embeddings scaled by the root of their width, GELU, and RoPE over half-split pairs. Gemma
// 2: results are normalised, too; each second layer sees a window; scores and logits have a cap. Sources: Gemma
// (arXiv:2403.08295), Gemma 2 (arXiv:2408.00118).
#include <cmath>

#include "model/architectures.h"
#include "model/keys.h"

namespace millrace::model {

Expected<DecoderSpec> gemma_spec(const modelfile::Model& file, const Hyperparameters& hp) {
  MR_ASSIGN_OR_RETURN(DecoderSpec spec, llama_spec(file, hp));
  for (RopeSpec& rope : spec.ropes) rope.neox = true;
  for (LayerSpec& layer : spec.layers) layer.activation = kernels::Activation::gelu;
  spec.embedding_scale = std::sqrt(static_cast<float>(hp.model_dim));
  return spec;
}

Expected<DecoderSpec> gemma2_spec(const modelfile::Model& file, const Hyperparameters& hp) {
  constexpr std::int64_t kLayersOf27B = 46;  // whose queries are scaled by another width than their own
  Keys keys(file);
  const std::int64_t window = keys.optional("attention.sliding_window", 4096, 1, 1 << 28);
  const double score_cap = keys.optional_float("attn_logit_softcapping", 50, -1e-30, 1e6);
  const double logit_cap = keys.optional_float("final_logit_softcapping", 30, -1e-30, 1e6);
  MR_RETURN_IF_ERROR(keys.status());
  MR_ASSIGN_OR_RETURN(DecoderSpec spec, gemma_spec(file, hp));
  const std::int64_t width = hp.layers == kLayersOf27B ? hp.model_dim / hp.heads : hp.head_dim;
  for (std::size_t index = 0; index < spec.layers.size(); ++index) {
    LayerSpec& layer = spec.layers[index];
    layer.norms_results = true;
    layer.attention.scale = 1.0f / std::sqrt(static_cast<float>(width));
    layer.attention.score_cap = static_cast<float>(score_cap);
    layer.attention.window = index % 2 == 0 ? window : 0;
  }
  spec.logit_cap = static_cast<float>(logit_cap);
  return spec;
}

}  // namespace millrace::model
