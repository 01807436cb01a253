// Llama: pre-norm decoder layers of grouped-query attention with RoPE (interleaved pairs) and a SwiGLU feed-forward,
// or a mixture of them; InternLM 2, ERNIE 4.5, XVERSE and Baichuan 7B are the same. SmolLM3 leaves every fourth layer
// without a rotation; AFM (arcee) has feed-forwards without a gate, through a squared ReLU; GLM-4 of 2025 normalises
// results, too, and has gate and up in one tensor. Sources: LLaMA (arXiv:2302.13971), Llama 2 (arXiv:2307.09288),
// Mixtral (arXiv:2401.04088); the model cards of SmolLM3, AFM-4.5B and GLM-4-0414 (2025).
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

Expected<DecoderSpec> baichuan_spec(const modelfile::Model& file, const Hyperparameters& hp) {
  constexpr std::int64_t kLayersOf13B = 40;
  if (hp.layers == kLayersOf13B)
    return error(Code::unsupported,
                 "Baichuan of {} layers adds distances to scores (ALiBi), which was never compared with another "
                 "program; Baichuan "
                 "7B runs",
                 hp.layers);
  return llama_spec(file, hp);
}

Expected<DecoderSpec> smollm3_spec(const modelfile::Model& file, const Hyperparameters& hp) {
  constexpr std::size_t kPeriod = 4;
  MR_ASSIGN_OR_RETURN(DecoderSpec spec, llama_spec(file, hp));
  for (std::size_t index = kPeriod - 1; index < spec.layers.size(); index += kPeriod)
    spec.layers[index].attention.rope = kNoRope;
  return spec;
}

Expected<DecoderSpec> arcee_spec(const modelfile::Model& file, const Hyperparameters& hp) {
  MR_ASSIGN_OR_RETURN(DecoderSpec spec, llama_spec(file, hp));
  for (LayerSpec& layer : spec.layers) {
    layer.gated = false;
    layer.activation = kernels::Activation::relu_squared;
  }
  return spec;
}

/// GLM-4.1V and 4.6V Flash turn by a picture's three places; their files have heads for rotations of halves.
Expected<DecoderSpec> glm4_spec(const modelfile::Model& file, const Hyperparameters& hp) {
  MR_ASSIGN_OR_RETURN(DecoderSpec spec, llama_spec(file, hp));
  for (LayerSpec& layer : spec.layers) layer.norms_results = true;
  RopeSpec& rope = spec.ropes.back();
  MR_ASSIGN_OR_RETURN(rope.axes, read_rope_axes(file, rope.rotary, RopeSections::apart));
  if (!rope.axes.empty()) rope.neox = true;
  return spec;
}

}  // namespace millrace::model
