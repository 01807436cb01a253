// Qwen3, dense and with experts: pre-norm decoder layers of grouped-query attention whose queries and keys are
// normalised head by head, RoPE over half-split pairs, and a SwiGLU feed-forward or a mixture of them, the chosen
// experts' weights normalised to 1. The text of Qwen3-VL is the same. Hunyuan's dense models normalise queries and keys
// behind their rotation. Sources: Qwen3 technical report (arXiv:2505.09388), Hunyuan's model cards (2025).
#include "model/architectures.h"
#include "model/hyperparameters.h"
#include "model/rope.h"

namespace millrace::model {
namespace {

Expected<DecoderSpec> qwen3_decoder(const modelfile::Model& file, const Hyperparameters& hp, LayerSpec layer) {
  layer.attention = plain_attention(hp);
  layer.attention.norm = HeadNorm::each;
  DecoderSpec spec;
  spec.layers.assign(static_cast<std::size_t>(hp.layers), layer);
  MR_ASSIGN_OR_RETURN(spec.ropes.emplace_back(), read_rope(file, hp));
  spec.ropes.back().neox = true;
  // Qwen3-VL's files alone have such axes.
  MR_ASSIGN_OR_RETURN(spec.ropes.back().axes, read_rope_axes(file, hp.rotary, RopeSections::interleaved));
  return spec;
}

}  // namespace

Expected<DecoderSpec> qwen3_spec(const modelfile::Model& file, const Hyperparameters& hp) {
  LayerSpec layer;
  MR_ASSIGN_OR_RETURN(layer.ff_dim, read_ff_dim(file, hp));
  return qwen3_decoder(file, hp, layer);
}

Expected<DecoderSpec> qwen3moe_spec(const modelfile::Model& file, const Hyperparameters& hp) {
  LayerSpec layer;
  MR_ASSIGN_OR_RETURN(layer.mixture, read_mixture(file, hp));
  return qwen3_decoder(file, hp, layer);
}

Expected<DecoderSpec> hunyuan_dense_spec(const modelfile::Model& file, const Hyperparameters& hp) {
  MR_ASSIGN_OR_RETURN(DecoderSpec spec, qwen3_spec(file, hp));
  for (LayerSpec& layer : spec.layers) layer.attention.norms_rotated = true;
  return spec;
}

}  // namespace millrace::model
