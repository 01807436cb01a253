// Mixtures that differ in a few points: where dense layers stand, how the router's scores become weights, whether heads
// are normalised; Phi-3.5-MoE has LayerNorm and SparseMixer; Command A's halves what its experts give together, and
// rotates in its dense layers whatever these see. Sources: Qwen1.5-MoE's, dots.llm1's, Ling's, Hunyuan's, Trinity's,
// K-EXAONE's and Command A's model cards; OLMoE (arXiv:2409.02060), DeepSeekMoE (arXiv:2401.06066), ERNIE 4.5 (2025);
// keys and names as in the GGUF specification.
#include <cmath>

#include "model/architectures.h"
#include "model/hyperparameters.h"
#include "model/rope.h"
#include "model/unit_builder.h"

namespace millrace::model {
namespace {

/// What one of them is.
struct Kind {
  bool neox = true;
  HeadNorm norm = HeadNorm::none;
  bool may_have_biases = false;  // of attention
  exec::Gating gating = exec::Gating::softmax;
  bool normalizes = true;   // where the file does not say
  bool by_routers = false;  // layers without a router are dense; elsewhere keys say which
};

/// Whether layer `index` is a mixture.
Expected<std::vector<bool>> read_places(const modelfile::Model& file, const Hyperparameters& hp, const Kind& kind) {
  Keys keys(file);
  const std::int64_t leading = keys.optional("leading_dense_block_count", 0, 0, hp.layers);
  const std::int64_t step = keys.optional("interleave_moe_layer_step", 1, 1, 1 << 16);
  MR_RETURN_IF_ERROR(keys.status());
  std::vector<bool> mixes;
  for (std::int64_t index = 0; index < hp.layers; ++index)
    mixes.push_back(kind.by_routers ? file.find(layer_tensor(static_cast<int>(index), "ffn_gate_inp.weight")) != nullptr
                                    : index >= leading && (index + 1) % step == 0);
  return mixes;
}

Expected<DecoderSpec> read(const modelfile::Model& file, const Hyperparameters& hp, const Kind& kind) {
  LayerSpec dense;
  dense.attention = plain_attention(hp);
  dense.attention.norm = kind.norm;
  dense.attention.may_have_biases = kind.may_have_biases;
  LayerSpec layer = dense;
  MixtureSpec defaults;
  defaults.gating = kind.gating;
  defaults.normalize = kind.normalizes;
  MR_ASSIGN_OR_RETURN(layer.mixture, read_mixture(file, hp, defaults));
  MR_ASSIGN_OR_RETURN(const std::vector<bool> mixes, read_places(file, hp, kind));
  DecoderSpec spec;
  for (std::int64_t index = 0; index < hp.layers; ++index) {
    LayerSpec& added = spec.layers.emplace_back(mixes[static_cast<std::size_t>(index)] ? layer : dense);
    if (!added.mixes()) {
      MR_ASSIGN_OR_RETURN(added.ff_dim, read_ff_dim(file, hp));
      continue;
    }
    const auto number = static_cast<int>(index);
    added.mixture.selection_bias = file.find(layer_tensor(number, "exp_probs_b.bias")) != nullptr ||
                                   file.find(layer_tensor(number, "exp_probs_b")) != nullptr;
  }
  MR_ASSIGN_OR_RETURN(spec.ropes.emplace_back(), read_rope(file, hp));
  spec.ropes.back().neox = kind.neox;
  return spec;
}

/// Of those whose files may leave the shared expert's width out.
void share(DecoderSpec& spec, std::int64_t usual_ff_dim) {
  for (LayerSpec& layer : spec.layers)
    if (layer.mixes() && layer.mixture.shared_ff_dim == 0) layer.mixture.shared_ff_dim = usual_ff_dim;
}

}  // namespace

Expected<DecoderSpec> olmoe_spec(const modelfile::Model& file, const Hyperparameters& hp) {
  return read(file, hp, {.norm = HeadNorm::together, .normalizes = false});
}

Expected<DecoderSpec> qwen2moe_spec(const modelfile::Model& file, const Hyperparameters& hp) {
  MR_ASSIGN_OR_RETURN(DecoderSpec spec, read(file, hp, {.may_have_biases = true, .normalizes = false}));
  share(spec, hp.ff_dim);
  for (LayerSpec& layer : spec.layers) layer.mixture.shared_gate = true;
  return spec;
}

Expected<DecoderSpec> deepseek_spec(const modelfile::Model& file, const Hyperparameters& hp) {
  return read(file, hp, {.neox = false, .normalizes = false});
}

Expected<DecoderSpec> ernie4_5_moe_spec(const modelfile::Model& file, const Hyperparameters& hp) {
  return read(file, hp, {.neox = false, .may_have_biases = true});
}

Expected<DecoderSpec> dots1_spec(const modelfile::Model& file, const Hyperparameters& hp) {
  return read(file, hp, {.norm = HeadNorm::each, .gating = exec::Gating::sigmoid, .normalizes = false});
}

Expected<DecoderSpec> bailingmoe_spec(const modelfile::Model& file, const Hyperparameters& hp) {
  return read(file, hp, {.neox = false, .may_have_biases = true, .normalizes = false});
}

Expected<DecoderSpec> hunyuan_moe_spec(const modelfile::Model& file, const Hyperparameters& hp) {
  MR_ASSIGN_OR_RETURN(DecoderSpec spec, read(file, hp, {.norm = HeadNorm::each}));
  share(spec, hp.ff_dim);
  for (LayerSpec& layer : spec.layers) layer.attention.norms_rotated = true;
  return spec;
}

Expected<DecoderSpec> hy_v3_spec(const modelfile::Model& file, const Hyperparameters& hp) {
  MR_ASSIGN_OR_RETURN(DecoderSpec spec,
                      read(file, hp, {.norm = HeadNorm::each, .gating = exec::Gating::sigmoid, .by_routers = true}));
  share(spec, hp.expert_ff);
  return spec;
}

/// Trinity. Results are normalised, too.
Expected<DecoderSpec> afmoe_spec(const modelfile::Model& file, const Hyperparameters& hp) {
  constexpr std::int64_t kPeriod = 4;
  MR_ASSIGN_OR_RETURN(DecoderSpec spec, read(file, hp, {.norm = HeadNorm::each, .gating = exec::Gating::sigmoid}));
  MR_ASSIGN_OR_RETURN(const std::vector<std::int64_t> windows, read_windows(file, hp, kPeriod));
  for (std::size_t index = 0; index < spec.layers.size(); ++index) {
    LayerSpec& layer = spec.layers[index];
    layer.attention.window = windows[index];
    layer.attention.own_gate = true;
    layer.norms_results = true;
  }
  leave_unrotated_where_all_is_seen(spec);
  spec.embedding_scale = std::sqrt(static_cast<float>(hp.model_dim));
  return spec;
}

Expected<DecoderSpec> exaone_moe_spec(const modelfile::Model& file, const Hyperparameters& hp) {
  constexpr std::int64_t kPeriod = 4;
  MR_ASSIGN_OR_RETURN(DecoderSpec spec,
                      read(file, hp, {.norm = HeadNorm::each, .gating = exec::Gating::sigmoid, .by_routers = true}));
  MR_ASSIGN_OR_RETURN(const std::vector<std::int64_t> windows, read_windows(file, hp, kPeriod));
  for (std::size_t index = 0; index < spec.layers.size(); ++index) spec.layers[index].attention.window = windows[index];
  leave_unrotated_where_all_is_seen(spec);
  return spec;
}

Expected<DecoderSpec> phimoe_spec(const modelfile::Model& file, const Hyperparameters& hp) {
  MR_ASSIGN_OR_RETURN(DecoderSpec spec, read(file, hp, {.may_have_biases = true, .normalizes = false}));
  spec.layer_norms = true;
  for (LayerSpec& layer : spec.layers) layer.mixture.gating = exec::Gating::sparse_mixer;  // files name none
  return spec;
}

Expected<DecoderSpec> cohere2moe_spec(const modelfile::Model& file, const Hyperparameters& hp) {
  MR_ASSIGN_OR_RETURN(DecoderSpec spec, cohere2_spec(file, hp));
  Keys keys(file);
  const std::int64_t leading = keys.optional("leading_dense_block_count", 0, 0, hp.layers);
  spec.layer_norms = !keys.has("attention.layer_norm_rms_epsilon");
  MR_RETURN_IF_ERROR(keys.status());
  MixtureSpec defaults;
  defaults.gating = exec::Gating::sigmoid;
  defaults.normalize = false;
  MR_ASSIGN_OR_RETURN(MixtureSpec mixture, read_mixture(file, hp, defaults));
  if (mixture.shared_ff_dim > 0) mixture.sum_scale = 0.5f;
  for (std::size_t index = 0; index < spec.layers.size(); ++index) {
    LayerSpec& layer = spec.layers[index];
    layer.mixture = mixture;
    if (static_cast<std::int64_t>(index) >= leading) continue;
    layer.mixture = {};
    layer.attention.rope = 0;  // whatever they see
    MR_ASSIGN_OR_RETURN(layer.ff_dim, read_ff_dim(file, hp));
  }
  spec.guesses = false;  // its block is another one
  return spec;
}

}  // namespace millrace::model
