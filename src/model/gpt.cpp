// Decoders of before Llama: LayerNorm with biases, feed-forwards without a gate through GELU, queries, keys and values
// as rows of one tensor. GPT-2 and StarCoder have a table of positions, BLOOM and MPT scores that fall with distance.
// In GPT-NeoX and Falcon attention and feed-forward are parallel; Falcon's larger models have a norm for each. Sources:
// GPT-2 (Radford et al., 2019), StarCoder (arXiv:2305.06161), GPT-NeoX (arXiv:2204.06745), Falcon (arXiv:2311.16867),
// BLOOM (arXiv:2211.05100), MPT (MosaicML, 2023).
#include "model/architectures.h"
#include "model/hyperparameters.h"
#include "model/unit_builder.h"

namespace millrace::model {
namespace {

constexpr float kUsualMaxBias = 8;

/// Nothing is rotated.
Expected<DecoderSpec> unrotated(const modelfile::Model& file, const Hyperparameters& hp) {
  MR_ASSIGN_OR_RETURN(DecoderSpec spec, starcoder2_spec(file, hp));
  for (LayerSpec& layer : spec.layers) layer.attention.rope = kNoRope;
  return spec;
}

}  // namespace

Expected<DecoderSpec> gpt2_spec(const modelfile::Model& file, const Hyperparameters& hp) {
  MR_ASSIGN_OR_RETURN(DecoderSpec spec, unrotated(file, hp));
  spec.position_table = true;
  return spec;
}

Expected<DecoderSpec> bloom_spec(const modelfile::Model& file, const Hyperparameters& hp) {
  MR_ASSIGN_OR_RETURN(DecoderSpec spec, unrotated(file, hp));
  spec.embedding_norm = true;
  for (LayerSpec& layer : spec.layers) layer.attention.max_bias = kUsualMaxBias;
  return spec;
}

Expected<DecoderSpec> mpt_spec(const modelfile::Model& file, const Hyperparameters& hp) {
  Keys keys(file);
  const double max_bias = keys.optional_float("attention.max_alibi_bias", 0, -1e-30, 1e3);
  const double clamp = keys.optional_float("attention.clamp_kqv", 0, -1e-30, 1e6);
  if (clamp > 0)
    keys.fail(error(Code::unsupported, "{} is {}: this version does not clamp queries, keys and values",
                    arch_key(file, "attention.clamp_kqv"), clamp));
  MR_RETURN_IF_ERROR(keys.status());
  MR_ASSIGN_OR_RETURN(DecoderSpec spec, unrotated(file, hp));
  spec.position_table = file.find("position_embd.weight") != nullptr;
  for (LayerSpec& layer : spec.layers) {
    layer.attention.max_bias = static_cast<float>(max_bias);
    layer.activation = kernels::Activation::gelu_erf;
  }
  return spec;
}

Expected<DecoderSpec> gptneox_spec(const modelfile::Model& file, const Hyperparameters& hp) {
  Keys keys(file);
  const bool parallel = keys.optional_bool("use_parallel_residual", true);
  MR_RETURN_IF_ERROR(keys.status());
  MR_ASSIGN_OR_RETURN(DecoderSpec spec, starcoder2_spec(file, hp));
  for (LayerSpec& layer : spec.layers) {
    layer.parallel = parallel;
    layer.activation = kernels::Activation::gelu_erf;
  }
  return spec;
}

Expected<DecoderSpec> falcon_spec(const modelfile::Model& file, const Hyperparameters& hp) {
  MR_ASSIGN_OR_RETURN(DecoderSpec spec, starcoder2_spec(file, hp));
  for (std::size_t index = 0; index < spec.layers.size(); ++index) {
    LayerSpec& layer = spec.layers[index];
    layer.parallel = true;
    layer.activation = kernels::Activation::gelu_erf;
    if (file.find(layer_tensor(static_cast<int>(index), "attn_norm_2.weight")) == nullptr) continue;
    layer.attn_norm = "attn_norm_2";
    layer.ffn_norm = "attn_norm";
  }
  return spec;
}

}  // namespace millrace::model
