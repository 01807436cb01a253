// DeepSeek V2, V3 and R1, Kimi K2, GLM-4.7-Flash, Mistral Small 4: latent attention; after some dense layers a mixture
// with shared experts, whose router takes a softmax (V2) or sigmoids with a bias for the choice, within the best groups
// of experts. Mistral's queries grow with their position. MiniCPM 3 is dense, and has MiniCPM's factors. Sources:
// DeepSeek-V2 (arXiv:2405.04434), DeepSeek-V3 (arXiv:2412.19437), MiniCPM (arXiv:2404.06395).
#include <cmath>

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
                              : keys.optional("attention.value_length", hp.model_dim / hp.heads, 1, 512);
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

Expected<DecoderSpec> decoder_of(const modelfile::Model& file, const Hyperparameters& hp, exec::Gating usual) {
  Keys keys(file);
  LayerSpec layer;
  layer.attention = plain_attention(hp);
  layer.attention.kv_heads = 1;
  MR_RETURN_IF_ERROR(read_latent(keys, file, hp, layer.attention.latent));
  const std::int64_t leading = keys.optional("leading_dense_block_count", 0, 0, hp.layers);
  layer.attention.temperature = read_temperature(keys);
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
  defaults.gating = usual;
  defaults.normalize = false;
  MR_ASSIGN_OR_RETURN(layer.mixture, read_mixture(file, hp, defaults));
  if (layer.mixture.gating == exec::Gating::softmax) layer.mixture.group_best = 1;  // V2's groups
  layer.mixture.selection_bias = file.find(layer_tensor(static_cast<int>(leading), "exp_probs_b.bias")) != nullptr;
  spec.layers.insert(spec.layers.end(), static_cast<std::size_t>(hp.layers - leading), layer);
  return spec;
}

/// The same with an indexer, in the layers where `own` is not 0; the others see what the last of these chose.
Expected<DecoderSpec> indexed(const modelfile::Model& file, const Hyperparameters& hp,
                              const std::vector<std::int64_t>& own, bool neox) {
  MR_ASSIGN_OR_RETURN(DecoderSpec spec, decoder_of(file, hp, exec::Gating::sigmoid));
  const LatentSpec& latent = spec.layers.front().attention.latent;
  Keys keys(file);
  IndexerSpec index;
  index.indexer.heads = keys.required("attention.indexer.head_count", 1, 1024);
  index.indexer.head_dim = keys.required("attention.indexer.key_length", latent.rotated, kernels::kMostIndexDim);
  index.indexer.top_k = keys.required("attention.indexer.top_k", 1, 1 << 20);
  index.rope = 1;
  MR_RETURN_IF_ERROR(keys.status());
  if (latent.q_rank == 0)
    return error(Code::corrupt, "{} is missing or 0, and the indexer's queries are made of that latent",
                 arch_key(file, "attention.q_lora_rank"));
  if (own.front() == 0)
    return error(Code::corrupt, "{}: the first layer has no layer before it whose choice it could share",
                 arch_key(file, "attention.indexer.types"));
  for (std::size_t i = 0; i < spec.layers.size(); ++i) {
    index.own = own[i] != 0;
    spec.layers[i].attention.index = index;
  }
  RopeSpec rope = spec.ropes.front();
  rope.last = false;
  rope.neox = neox;
  spec.ropes.push_back(rope);
  spec.guesses = false;  // its blocks attend without an indexer
  return spec;
}

}  // namespace

Expected<DecoderSpec> deepseek2_spec(const modelfile::Model& file, const Hyperparameters& hp) {
  return decoder_of(file, hp, usual_gating(hp));
}

Expected<DecoderSpec> minicpm3_spec(const modelfile::Model& file, const Hyperparameters& hp) {
  Keys keys(file);
  LayerSpec layer;
  layer.attention = plain_attention(hp);
  layer.attention.kv_heads = 1;
  MR_RETURN_IF_ERROR(read_latent(keys, file, hp, layer.attention.latent));
  MR_ASSIGN_OR_RETURN(layer.ff_dim, read_ff_dim(file, hp));
  // No key has the factors, which all published models share.
  layer.residual_scale = 1.4f / std::sqrt(static_cast<float>(hp.layers));
  DecoderSpec spec;
  spec.layers.assign(static_cast<std::size_t>(hp.layers), layer);
  spec.embedding_scale = 12;
  spec.logit_scale = 256.0f / static_cast<float>(hp.model_dim);
  MR_ASSIGN_OR_RETURN(spec.ropes.emplace_back(), read_rope(file, hp));
  spec.ropes.back().last = true;
  spec.ropes.back().neox = true;
  return spec;
}

Expected<DecoderSpec> deepseek32_spec(const modelfile::Model& file, const Hyperparameters& hp) {
  return indexed(file, hp, std::vector<std::int64_t>(static_cast<std::size_t>(hp.layers), 1), true);
}

Expected<DecoderSpec> glm_dsa_spec(const modelfile::Model& file, const Hyperparameters& hp) {
  Keys keys(file);
  std::vector<std::int64_t> own = keys.of_layers("attention.indexer.types", hp.layers, 1, 0, 1);
  MR_RETURN_IF_ERROR(keys.status());
  constexpr std::int64_t kSharingContext = 1 << 20;  // models for such contexts share, also where the key is absent
  if (!keys.has("attention.indexer.types") && hp.context_length >= kSharingContext)
    for (std::int64_t i = 3; i < hp.layers; ++i) own[static_cast<std::size_t>(i)] = i % 4 == 2;
  return indexed(file, hp, own, false);
}

}  // namespace millrace::model
