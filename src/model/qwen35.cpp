// Qwen3-Next, Qwen3.5 and Qwen3.6, dense and with experts: of each four layers three are gated delta nets, which keep a
// state, and one attends, with a gate on what comes of it and a quarter of a head's channels rotated. Experts have a
// shared one beside them, with a gate of its own. Blocks behind the layers draft and are not read. Sources: Gated Delta
// Networks (arXiv:2412.06464), Gated Attention (arXiv:2505.06708), the model cards.
#include <cmath>

#include "kernels/recurrent.h"
#include "model/architectures.h"
#include "model/hyperparameters.h"
#include "model/rope.h"

namespace millrace::model {
namespace {

constexpr std::int64_t kMostHeads = 1 << 12, kMostHeadDim = 1 << 10, kMostInner = 1 << 20;

Expected<DeltaNetSpec> read_delta_net(const modelfile::Model& file) {
  Keys keys(file);
  DeltaNetSpec net;
  net.taps = keys.required("ssm.conv_kernel", 2, kernels::kMostTaps);
  net.key_dim = keys.required("ssm.state_size", 2, kMostHeadDim);
  net.key_heads = keys.required("ssm.group_count", 1, kMostHeads);
  net.value_heads = keys.required("ssm.time_step_rank", 1, kMostHeads);
  const std::int64_t inner = keys.required("ssm.inner_size", 1, kMostInner);
  MR_RETURN_IF_ERROR(keys.status());
  if (net.value_heads % net.key_heads != 0)
    return error(Code::corrupt, "{}: {} heads of values cannot share {} heads of keys evenly",
                 arch_key(file, "ssm.group_count"), net.value_heads, net.key_heads);
  if (inner % net.value_heads != 0)
    return error(Code::corrupt, "{}: {} channels are not {} heads", arch_key(file, "ssm.inner_size"), inner,
                 net.value_heads);
  net.value_dim = inner / net.value_heads;
  if (net.value_dim % kernels::kStateLanes != 0 || net.key_dim % 2 != 0)
    return error(Code::unsupported, "{}: states of {} x {} (this version wants a multiple of 2 x {})",
                 arch_key(file, "ssm.state_size"), net.key_dim, net.value_dim, kernels::kStateLanes);
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

Expected<DecoderSpec> decoder_of(const modelfile::Model& file, const Hyperparameters& hp, LayerSpec layer,
                                 const DeltaNetSpec& net) {
  layer.attention = plain_attention(hp);
  layer.attention.norm = HeadNorm::each;
  layer.attention.gated = true;
  layer.delta_net = net;
  layer.ffn_norm = "post_attention_norm.weight";
  MR_ASSIGN_OR_RETURN(const std::vector<std::int64_t> recurrent, read_recurrent(file, hp));
  DecoderSpec spec;
  for (const std::int64_t is_recurrent : recurrent) {
    layer.mixer = is_recurrent != 0 ? Mixer::delta_net : Mixer::attention;
    spec.layers.push_back(layer);
  }
  MR_ASSIGN_OR_RETURN(spec.ropes.emplace_back(), read_rope(file, hp));
  spec.ropes.back().neox = true;
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
  return decoder_of(file, hp, layer, net);
}

Expected<DecoderSpec> qwen35_spec(const modelfile::Model& file, const Hyperparameters& hp) {
  LayerSpec layer;
  MR_ASSIGN_OR_RETURN(layer.ff_dim, read_ff_dim(file, hp));
  MR_ASSIGN_OR_RETURN(DeltaNetSpec net, read_delta_net(file));
  net.tiled = true;
  return decoder_of(file, hp, layer, net);
}

Expected<DecoderSpec> qwen35moe_spec(const modelfile::Model& file, const Hyperparameters& hp) {
  MR_ASSIGN_OR_RETURN(const LayerSpec layer, mixture_layer(file, hp));
  MR_ASSIGN_OR_RETURN(DeltaNetSpec net, read_delta_net(file));
  net.tiled = true;
  return decoder_of(file, hp, layer, net);
}

}  // namespace millrace::model
