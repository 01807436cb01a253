// DeepSeek V2, V3 and R1, Kimi K2, GLM-4.7-Flash: latent attention; after some dense layers a mixture with shared
// experts, whose router takes a softmax (V2) or sigmoids with a bias for the choice, within the best groups of experts.
// Sources: DeepSeek-V2 (arXiv:2405.04434), DeepSeek-V3 (arXiv:2412.19437).
#include "model/architectures.h"
#include "model/hyperparameters.h"
#include "model/rope.h"
#include "model/unit_builder.h"

namespace millrace::model {
namespace {

Status read_latent(Keys& keys, const modelfile::Model& file, const Hyperparameters& hp, LatentSpec& latent) {
  latent.rotated = keys.required("rope.dimension_count", 2, hp.head_dim);
  latent.rank = keys.required("attention.kv_lora_rank", 1, kernels::kMostLatentDim - latent.rotated);
  latent.q_rank = keys.optional("attention.q_lora_rank", 0, 0, 1 << 20);
  latent.split = file.find("blk.0.attn_kv_b.weight") == nullptr;  // files of 2024 have it
  latent.v_dim = latent.split ? keys.required("attention.value_length_mla", 1, 512)
                              : keys.required("attention.value_length", 1, 512);
  MR_RETURN_IF_ERROR(keys.status());
  if (latent.rotated == hp.head_dim)
    return error(Code::corrupt, "{} is {}, all of a query's channels, which cannot be",
                 arch_key(file, "rope.dimension_count"), latent.rotated);
  return {};
}

/// What files say nothing of that are older than the key: V2 has a softmax, GLM-4.7-Flash sigmoids.
exec::Gating usual_gating(const Hyperparameters& hp) {
  constexpr std::int64_t kGlmLayers = 47, kGlmVocab = 154880;
  return hp.vocab == kGlmVocab && (hp.layers == kGlmLayers || hp.layers == kGlmLayers + 1) ? exec::Gating::sigmoid
                                                                                           : exec::Gating::softmax;
}

}  // namespace

Expected<DecoderSpec> deepseek2_spec(const modelfile::Model& file, const Hyperparameters& hp) {
  Keys keys(file);
  LayerSpec layer;
  layer.attention = plain_attention(hp);
  layer.attention.kv_heads = 1;
  MR_RETURN_IF_ERROR(read_latent(keys, file, hp, layer.attention.latent));
  const std::int64_t leading = keys.optional("leading_dense_block_count", 0, 0, hp.layers);
  if (keys.optional_float("attention.temperature_scale", 0, -1e-9, 100) != 0)
    keys.fail(error(Code::unsupported,
                    "{}: this version has no latent attention whose queries grow with their position",
                    arch_key(file, "attention.temperature_scale")));
  MR_RETURN_IF_ERROR(keys.status());
  DecoderSpec spec;
  MR_ASSIGN_OR_RETURN(spec.ropes.emplace_back(), read_rope(file, hp, YarnRamp::whole_channels, YarnGrowth::scores));
  spec.ropes.back().last = true;
  layer.attention.scale *= spec.ropes.back().score_growth;

  LayerSpec dense = layer;
  if (leading > 0) {
    MR_ASSIGN_OR_RETURN(dense.ff_dim, read_ff_dim(file, hp));
  }
  spec.layers.assign(static_cast<std::size_t>(leading), dense);
  if (leading == hp.layers) return spec;
  MixtureSpec defaults;
  defaults.gating = usual_gating(hp);
  defaults.normalize = false;
  MR_ASSIGN_OR_RETURN(layer.mixture, read_mixture(file, hp, defaults));
  if (layer.mixture.gating == exec::Gating::softmax) layer.mixture.group_best = 1;  // V2's groups
  layer.mixture.selection_bias = file.find(layer_tensor(static_cast<int>(leading), "exp_probs_b.bias")) != nullptr;
  spec.layers.insert(spec.layers.end(), static_cast<std::size_t>(hp.layers - leading), layer);
  return spec;
}

}  // namespace millrace::model
