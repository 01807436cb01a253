// Gemma: Llama's layers with embeddings scaled by the root of their width, GELU, and RoPE over half-split pairs.
// Source: Gemma (arXiv:2403.08295).
#include <cmath>

#include "model/architectures.h"

namespace millrace::model {

Expected<DecoderSpec> gemma_spec(const modelfile::Model& file, const Hyperparameters& hp) {
  MR_ASSIGN_OR_RETURN(DecoderSpec spec, llama_spec(file, hp));
  for (RopeSpec& rope : spec.ropes) rope.neox = true;
  for (LayerSpec& layer : spec.layers) layer.activation = kernels::Activation::gelu;
  spec.embedding_scale = std::sqrt(static_cast<float>(hp.model_dim));
  return spec;
}

}  // namespace millrace::model
