// Decoders with LayerNorm. Command R and R7B, whose attention and feed-forward read one norm and are added together;
// R7B sees a window in three of four layers, and rotates in these alone. StableLM, which has both kinds of layers.
// StarCoder 2 and CodeShell, Nemotron and Jais 2, and Phi-2, whose feed-forwards have no gate; Phi-2's layers are
// parallel. Orion. Sources: the model cards of Command R (2024), R7B (2024) and Jais 2 (2025); Stable LM 2
// (arXiv:2402.17834), StarCoder 2 (arXiv:2402.19173), CodeShell (arXiv:2403.15747), Nemotron-4 (arXiv:2402.16819).
#include "model/architectures.h"
#include "model/hyperparameters.h"
#include "model/unit_builder.h"

namespace millrace::model {
namespace {

constexpr std::int64_t kPeriod = 4;

Expected<DecoderSpec> half_split(const modelfile::Model& file, const Hyperparameters& hp) {
  MR_ASSIGN_OR_RETURN(DecoderSpec spec, qwen2_spec(file, hp));
  spec.layer_norms = true;
  return spec;
}

}  // namespace

Expected<DecoderSpec> command_r_spec(const modelfile::Model& file, const Hyperparameters& hp) {
  Keys keys(file);
  const double scale = keys.optional_float("logit_scale", 1, 0, 1e6);
  MR_RETURN_IF_ERROR(keys.status());
  MR_ASSIGN_OR_RETURN(DecoderSpec spec, llama_spec(file, hp));
  spec.layer_norms = true;
  spec.logit_scale = static_cast<float>(scale);
  for (LayerSpec& layer : spec.layers) layer.parallel = true;
  return spec;
}

Expected<DecoderSpec> cohere2_spec(const modelfile::Model& file, const Hyperparameters& hp) {
  MR_ASSIGN_OR_RETURN(DecoderSpec spec, command_r_spec(file, hp));
  MR_ASSIGN_OR_RETURN(const std::vector<std::int64_t> windows, read_windows(file, hp, kPeriod));
  for (std::size_t index = 0; index < spec.layers.size(); ++index) spec.layers[index].attention.window = windows[index];
  leave_unrotated_where_all_is_seen(spec);
  return spec;
}

Expected<DecoderSpec> stablelm_spec(const modelfile::Model& file, const Hyperparameters& hp) {
  MR_ASSIGN_OR_RETURN(DecoderSpec spec, half_split(file, hp));
  for (std::size_t index = 0; index < spec.layers.size(); ++index)
    spec.layers[index].parallel = file.find(layer_tensor(static_cast<int>(index), "ffn_norm.weight")) == nullptr;
  return spec;
}

Expected<DecoderSpec> starcoder2_spec(const modelfile::Model& file, const Hyperparameters& hp) {
  MR_ASSIGN_OR_RETURN(DecoderSpec spec, half_split(file, hp));
  for (LayerSpec& layer : spec.layers) {
    layer.gated = false;
    layer.ff_biases = true;
    layer.activation = kernels::Activation::gelu;
  }
  return spec;
}

Expected<DecoderSpec> phi2_spec(const modelfile::Model& file, const Hyperparameters& hp) {
  MR_ASSIGN_OR_RETURN(DecoderSpec spec, starcoder2_spec(file, hp));
  for (LayerSpec& layer : spec.layers) layer.parallel = true;
  return spec;
}

Expected<DecoderSpec> orion_spec(const modelfile::Model& file, const Hyperparameters& hp) {
  return half_split(file, hp);
}

Expected<DecoderSpec> nemotron_spec(const modelfile::Model& file, const Hyperparameters& hp) {
  MR_ASSIGN_OR_RETURN(DecoderSpec spec, starcoder2_spec(file, hp));
  for (LayerSpec& layer : spec.layers) layer.activation = kernels::Activation::relu_squared;
  return spec;
}

}  // namespace millrace::model
