// Llama: pre-norm decoder layers of grouped-query attention with RoPE (interleaved pairs) and a SwiGLU feed-forward,
// or a mixture of them. Sources: LLaMA (arXiv:2302.13971), Llama 2 (arXiv:2307.09288), Mixtral (arXiv:2401.04088).
#include "model/architectures.h"
#include "model/hyperparameters.h"
#include "model/rope.h"

namespace millrace::model {

Expected<DecoderSpec> llama_spec(const modelfile::Model& file, const Hyperparameters& hp) {
  LayerSpec layer;
  layer.attention = plain_attention(hp);
  layer.attention.may_have_biases = true;
  if (hp.experts > 0) {
    MR_ASSIGN_OR_RETURN(layer.mixture, read_mixture(file, hp));
  } else {
    MR_ASSIGN_OR_RETURN(layer.ff_dim, read_ff_dim(file, hp));
  }
  DecoderSpec spec;
  spec.layers.assign(static_cast<std::size_t>(hp.layers), layer);
  MR_ASSIGN_OR_RETURN(spec.ropes.emplace_back(), read_rope(file, hp));
  return spec;
}

}  // namespace millrace::model
