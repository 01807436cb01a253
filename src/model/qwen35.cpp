// Qwen3-Next, Qwen3.5 and Qwen3.6, dense and with experts: of each four layers three are gated delta nets, which keep a
// state, and one attends, with a gate on what comes of it and a quarter of a head's channels rotated. Experts have a
// shared one beside them, with a gate of its own. Blocks behind the layers draft and are not read. Sources: Gated Delta
// Networks (arXiv:2412.06464), Gated Attention (arXiv:2505.06708), the model cards.
#include <cmath>

#include "kernels/recurrent.h"
#include "model/architectures.h"
#include "model/hyperparameters.h"
#include "model/rope.h"
#include "model/state_heads.h"

namespace millrace::model {
namespace {

Expected<DeltaNetSpec> read_delta_net(const modelfile::Model& file) {
  MR_ASSIGN_OR_RETURN(const StateHeads read, read_state_heads(file, kernels::kStateLanes));
  DeltaNetSpec net;
  net.key_heads = read.groups;
  net.value_heads = read.heads;
  net.key_dim = read.keys;
  net.value_dim = read.values;
  net.taps = read.taps;
  return net;
}

/// By layer: whether it keeps a state.
Expected<std::vector<std::int64_t>> read_recurrent(const modelfile::Model& file, const Hyperparameters& hp) {
  Keys keys(file);
  if (keys.has("attention.recurrent_layers")) {
    const auto listed = keys.of_layers("attention.recurrent_layers", hp.layers, 0, 0, 1);
    MR_RETURN_IF_ERROR(keys.status());
    return listed;
  }
  const std::int64_t interval = keys.optional("full_attention_interval", 4, 1, 1 << 16);
  MR_RETURN_IF_ERROR(keys.status());
  std::vector<std::int64_t> recurrent;
  for (std::int64_t index = 0; index < hp.layers; ++index) recurrent.push_back((index + 1) % interval != 0 ? 1 : 0);
  return recurrent;
}

Expected<DecoderSpec> qwen35_decoder(const modelfile::Model& file, const Hyperparameters& hp, LayerSpec layer,
                                     const DeltaNetSpec& net) {
  layer.attention = plain_attention(hp);
  layer.attention.norm = HeadNorm::each;
  layer.attention.gated = true;
  layer.delta_net = net;
  layer.ffn_norm = "post_attention_norm";
  MR_ASSIGN_OR_RETURN(const std::vector<std::int64_t> recurrent, read_recurrent(file, hp));
  DecoderSpec spec;
  for (const std::int64_t is_recurrent : recurrent) {
    layer.mixer = is_recurrent != 0 ? Mixer::delta_net : Mixer::attention;
    spec.layers.push_back(layer);
  }
  MR_ASSIGN_OR_RETURN(spec.ropes.emplace_back(), read_rope(file, hp));
  spec.ropes.back().neox = true;
  MR_ASSIGN_OR_RETURN(spec.ropes.back().axes, read_rope_axes(file, hp.rotary, RopeSections::interleaved));
  return spec;
}

Expected<LayerSpec> mixture_layer(const modelfile::Model& file, const Hyperparameters& hp) {
  LayerSpec layer;
  MR_ASSIGN_OR_RETURN(layer.mixture, read_mixture(file, hp));
  layer.mixture.shared_gate = layer.mixture.shared_ff_dim > 0;
  return layer;
}

}  // namespace

Expected<DecoderSpec> qwen3next_spec(const modelfile::Model& file, const Hyperparameters& hp) {
  MR_ASSIGN_OR_RETURN(const LayerSpec layer, mixture_layer(file, hp));
  MR_ASSIGN_OR_RETURN(DeltaNetSpec net, read_delta_net(file));
  net.gates_in_one = true;
  return qwen35_decoder(file, hp, layer, net);
}

Expected<DecoderSpec> qwen35_spec(const modelfile::Model& file, const Hyperparameters& hp) {
  LayerSpec layer;
  MR_ASSIGN_OR_RETURN(layer.ff_dim, read_ff_dim(file, hp));
  MR_ASSIGN_OR_RETURN(DeltaNetSpec net, read_delta_net(file));
  net.tiled = true;
  return qwen35_decoder(file, hp, layer, net);
}

Expected<DecoderSpec> qwen35moe_spec(const modelfile::Model& file, const Hyperparameters& hp) {
  MR_ASSIGN_OR_RETURN(const LayerSpec layer, mixture_layer(file, hp));
  MR_ASSIGN_OR_RETURN(DeltaNetSpec net, read_delta_net(file));
  net.tiled = true;
  return qwen35_decoder(file, hp, layer, net);
}

}  // namespace millrace::model
