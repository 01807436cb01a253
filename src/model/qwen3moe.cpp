// Qwen3-MoE: pre-norm decoder layers of grouped-query attention whose queries and keys are normalised head by head,
// RoPE over half-split pairs, and a mixture of SwiGLU experts, the chosen ones' weights normalised to 1.
// Source: Qwen3 technical report (arXiv:2505.09388).
#include "model/architectures.h"
#include "model/hyperparameters.h"
#include "model/rope.h"

namespace millrace::model {

Expected<DecoderSpec> qwen3moe_spec(const modelfile::Model& file, const Hyperparameters& hp) {
  LayerSpec layer;
  layer.attention = plain_attention(hp);
  layer.attention.norm_heads = true;
  MR_ASSIGN_OR_RETURN(layer.mixture, read_mixture(file, hp));
  DecoderSpec spec;
  spec.layers.assign(static_cast<std::size_t>(hp.layers), layer);
  MR_ASSIGN_OR_RETURN(spec.ropes.emplace_back(), read_rope(file, hp));
  spec.ropes.back().neox = true;
  return spec;
}

}  // namespace millrace::model
