// DeepSeek V2, V3 and R1, Kimi K2, GLM-4.7-Flash, Mistral Small 4: latent attention; after some dense layers a mixture
// with shared experts, whose router takes a softmax (V2) or sigmoids with a bias for the choice, within the best groups
// of experts. Mistral's queries grow with their position. MiniCPM 3 is dense, and has MiniCPM's factors. Of four layers
// of Kimi Linear, one attends to latents, without a rotation, and three keep a state; Ling 3 has such states, with a
// bound of their decays, beside latents that are rotated and heads with a gate. Sources: DeepSeek-V2
// (arXiv:2405.04434), DeepSeek-V3 (arXiv:2412.19437), MiniCPM (arXiv:2404.06395), Kimi Linear (arXiv:2510.26692), and
// of Ling 3 its model card.
#include <algorithm>
#include <cmath>

#include "kernels/recurrent.h"
#include "model/architectures.h"
#include "model/hyperparameters.h"
#include "model/rope.h"
#include "model/unit_builder.h"

namespace millrace::model {
namespace {

/// `attends`: the number of a layer that has a latent.
Status read_latent(Keys& keys, const modelfile::Model& file, const Hyperparameters& hp, LatentSpec& latent,
                   std::int64_t attends = 0) {
  latent.rotated = keys.required("rope.dimension_count", 2, hp.head_dim);
  latent.rank = keys.required("attention.kv_lora_rank", 1, kernels::kMostLatentDim - latent.rotated);
  latent.q_rank = keys.optional("attention.q_lora_rank", 0, 0, 1 << 20);
  const std::string joined = layer_tensor(static_cast<int>(attends), "attn_kv_b.weight");
  latent.split = file.find(joined) == nullptr;  // files of 2024 have it
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

MixtureSpec usual_mixture(exec::Gating gating, bool normalize) {
  MixtureSpec mixture;
  mixture.gating = gating;
  mixture.normalize = normalize;
  return mixture;
}

/// `usual`: what a mixture is where the file does not say; `attends`: as read_latent() has it.
Expected<DecoderSpec> decoder_of(const modelfile::Model& file, const Hyperparameters& hp, const MixtureSpec& usual,
                                 std::int64_t attends = 0) {
  Keys keys(file);
  LayerSpec layer;
  layer.attention = plain_attention(hp);
  layer.attention.kv_heads = 1;
  MR_RETURN_IF_ERROR(read_latent(keys, file, hp, layer.attention.latent, attends));
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
  MR_ASSIGN_OR_RETURN(layer.mixture, read_mixture(file, hp, usual));
  if (layer.mixture.gating == exec::Gating::softmax) layer.mixture.group_best = 1;  // V2's groups
  layer.mixture.selection_bias = file.find(layer_tensor(static_cast<int>(leading), "exp_probs_b.bias")) != nullptr;
  spec.layers.insert(spec.layers.end(), static_cast<std::size_t>(hp.layers - leading), layer);
  return spec;
}

/// The same with an indexer, in the layers where `own` is not 0; the others see what the last of these chose.
Expected<DecoderSpec> indexed(const modelfile::Model& file, const Hyperparameters& hp,
                              const std::vector<std::int64_t>& own, bool neox) {
  MR_ASSIGN_OR_RETURN(DecoderSpec spec, decoder_of(file, hp, usual_mixture(exec::Gating::sigmoid, false)));
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

/// Of all heads alike: as many as attend elsewhere.
Expected<DeltaNetSpec> read_kimi_delta(const modelfile::Model& file, const Hyperparameters& hp) {
  constexpr std::int64_t kMostHeadDim = 1024;
  Keys keys(file);
  DeltaNetSpec net;
  net.key_heads = net.value_heads = hp.heads;
  net.key_dim = net.value_dim = keys.required("kda.head_dim", 2, kMostHeadDim);
  net.taps = keys.required("ssm.conv_kernel", 2, kernels::kMostTaps);
  net.channel_decays = true;
  MR_RETURN_IF_ERROR(keys.status());
  if (net.value_dim % kernels::kStateLanes != 0)
    return error(Code::unsupported, "{} is {} (this version wants a multiple of {})", arch_key(file, "kda.head_dim"),
                 net.value_dim, kernels::kStateLanes);
  return net;
}

/// Latent attention where a layer has KV heads, and such states elsewhere.
Expected<DecoderSpec> beside_states(const modelfile::Model& file, const Hyperparameters& hp, const DeltaNetSpec& net) {
  MR_ASSIGN_OR_RETURN(const std::vector<std::int64_t> kv_heads, read_kv_heads(file, hp));
  const auto attends = std::find_if(kv_heads.begin(), kv_heads.end(), [](std::int64_t heads) { return heads > 0; });
  MR_ASSIGN_OR_RETURN(DecoderSpec spec,
                      decoder_of(file, hp, usual_mixture(exec::Gating::sigmoid, true), attends - kv_heads.begin()));
  for (std::size_t i = 0; i < spec.layers.size(); ++i) {
    spec.layers[i].delta_net = net;
    if (kv_heads[i] == 0) spec.layers[i].mixer = Mixer::delta_net;
  }
  spec.guesses = false;
  return spec;
}

}  // namespace

Expected<DecoderSpec> kimi_linear_spec(const modelfile::Model& file, const Hyperparameters& hp) {
  MR_ASSIGN_OR_RETURN(DeltaNetSpec net, read_kimi_delta(file, hp));
  net.gate_rank = net.key_dim;
  if (Keys(file).has("kda.gate_lower_bound"))
    return error(Code::unsupported, "{}: this version has this architecture without a bound of its decays alone",
                 arch_key(file, "kda.gate_lower_bound"));
  MR_ASSIGN_OR_RETURN(DecoderSpec spec, beside_states(file, hp, net));
  // The channels of positions are there, and turn by nothing: cos 1 and sin 0, which changes no bit.
  RopeSpec still;
  still.rotary = spec.ropes.front().rotary;
  still.inv_freq.assign(static_cast<std::size_t>(still.rotary / 2), 0);
  still.last = true;
  spec.ropes.front() = still;
  for (LayerSpec& layer : spec.layers) layer.attention.scale = plain_attention(hp).scale;
  return spec;
}

Expected<DecoderSpec> bailingmoe3_spec(const modelfile::Model& file, const Hyperparameters& hp) {
  MR_ASSIGN_OR_RETURN(DeltaNetSpec net, read_kimi_delta(file, hp));
  Keys keys(file);
  net.decay_bound = static_cast<float>(keys.optional_float("kda.gate_lower_bound", 0, -1e3, 0));
  if (net.decay_bound == 0)
    keys.fail(error(Code::corrupt, "{} is missing or 0, and this architecture's decays have a bound",
                    arch_key(file, "kda.gate_lower_bound")));
  if (!keys.optional_bool("kda.safe_gate", true))
    keys.fail(error(Code::unsupported, "{} is false: this version has this architecture with bounded decays alone",
                    arch_key(file, "kda.safe_gate")));
  for (const char* limit : {"swiglu_clamp_exp", "swiglu_clamp_shexp"})
    for (const double of_layer : keys.floats_of_layers(limit, hp.layers, 0, -1e-30, 1e6))
      if (of_layer != 0)
        keys.fail(error(Code::unsupported, "{}: this version has this architecture without limits alone",
                        arch_key(file, limit)));
  MR_RETURN_IF_ERROR(keys.status());
  MR_ASSIGN_OR_RETURN(DecoderSpec spec, beside_states(file, hp, net));
  for (LayerSpec& layer : spec.layers) layer.attention.gates_heads = true;
  return spec;
}

Expected<DecoderSpec> deepseek2_spec(const modelfile::Model& file, const Hyperparameters& hp) {
  return decoder_of(file, hp, usual_mixture(usual_gating(hp), false));
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
