// Step-3.5 and 3.7 Flash: layers that see all tokens, with half of a head's channels rotated, and between them layers
// that see a window and have more heads; each head has a gate of what its attention gives. After some dense layers a
// mixture with one that all tokens share, whose router takes sigmoids and chooses with a bias; some layers limit what
// their gates and ups give. The blocks behind the layers, which guess one token each, are not read. Source: the model
// cards of Step-3.5-Flash and Step-3.7-Flash (2026).
#include "model/architectures.h"
#include "model/hyperparameters.h"
#include "model/rope.h"

namespace millrace::model {
namespace {

/// What its layers differ in.
struct Layers {
  std::int64_t window = 0, leading = 0;
  std::vector<std::int64_t> local, heads, kv_heads;
  std::vector<double> limits, shared_limits;
};

Expected<Layers> read_layers(Keys& keys, const modelfile::Model& file, const Hyperparameters& hp) {
  Layers read;
  read.window = keys.required("attention.sliding_window", 1, 1 << 28);
  read.leading = keys.optional("leading_dense_block_count", 0, 0, hp.layers);
  read.local = keys.of_layers("attention.sliding_window_pattern", hp.layers, 0, 0, 1);
  if (!keys.has("attention.sliding_window_pattern"))
    for (std::int64_t i = 0; i < hp.layers; ++i) read.local[static_cast<std::size_t>(i)] = i % 4 != 0;
  read.heads = keys.of_layers("attention.head_count", hp.layers, 0, 1, hp.heads);
  read.kv_heads = keys.of_layers("attention.head_count_kv", hp.layers, 0, 1, hp.kv_heads);
  read.limits = keys.floats_of_layers("swiglu_clamp_exp", hp.layers, 0, -1e-30, 1e6);
  read.shared_limits = keys.floats_of_layers("swiglu_clamp_shexp", hp.layers, 0, -1e-30, 1e6);
  if (keys.optional("moe_every_n_layers", 1, 0, 1 << 16) > 1)
    keys.fail(error(Code::unsupported, "{}: this version has a mixture in every layer behind the dense ones",
                    arch_key(file, "moe_every_n_layers")));
  MR_RETURN_IF_ERROR(keys.status());
  for (std::size_t i = 0; i < read.heads.size(); ++i)
    if (read.heads[i] % read.kv_heads[i] != 0)
      return error(Code::corrupt, "{}: {} attention heads cannot share {} KV heads evenly",
                   arch_key(file, "attention.head_count_kv"), read.heads[i], read.kv_heads[i]);
  return read;
}

}  // namespace

Expected<DecoderSpec> step35_spec(const modelfile::Model& file, const Hyperparameters& hp) {
  Keys keys(file);
  MR_ASSIGN_OR_RETURN(const Layers layers, read_layers(keys, file, hp));
  const double local_theta = keys.optional_float("rope.freq_base_swa", 10000, 0, 1e12);
  MR_RETURN_IF_ERROR(keys.status());

  LayerSpec common;
  common.attention = plain_attention(hp);
  common.attention.norm = HeadNorm::each;
  common.attention.gates_heads = true;
  MixtureSpec mixture;
  mixture.gating = exec::Gating::sigmoid;
  if (layers.leading < hp.layers) {
    MR_ASSIGN_OR_RETURN(mixture, read_mixture(file, hp, mixture));
    mixture.selection_bias = true;
  }
  DecoderSpec spec;
  for (std::int64_t index = 0; index < hp.layers; ++index) {
    const auto at = static_cast<std::size_t>(index);
    LayerSpec& layer = spec.layers.emplace_back(common);
    const bool local = layers.local[at] != 0;
    layer.attention.heads = layers.heads[at];
    layer.attention.kv_heads = layers.kv_heads[at];
    layer.attention.window = local ? layers.window : 0;
    layer.attention.rope = local ? 0 : 1;
    layer.limit = static_cast<float>(layers.shared_limits[at]);
    if (index < layers.leading) {
      MR_ASSIGN_OR_RETURN(layer.ff_dim, read_ff_dim(file, hp));
      continue;
    }
    layer.mixture = mixture;
    layer.mixture.limit = static_cast<float>(layers.limits[at]);
  }
  Hyperparameters half = hp;
  half.rotary = hp.rotary / 2;
  if (half.rotary % 2 != 0)
    return error(Code::corrupt, "{} is {}, of which layers that see all tokens rotate half, in pairs",
                 arch_key(file, "rope.dimension_count"), hp.rotary);
  spec.ropes.push_back(plain_rope(local_theta, hp.rotary));
  // The file's factors are as many as the wider rotation of the other layers would take.
  MR_ASSIGN_OR_RETURN(spec.ropes.emplace_back(),
                      read_rope(file, half, YarnRamp::whole_channels, YarnGrowth::rotation, hp.rotary / 2));
  for (RopeSpec& rope : spec.ropes) rope.neox = true;
  spec.guesses = false;  // each of its blocks guesses one token, the next block the one behind
  return spec;
}

}  // namespace millrace::model
