// Gemma 3n: Gemma 4's layers with a window and without, shared keys and per-layer embeddings, over several residual
// streams, with a learned residual beside attention, and gates that keep a few channels in the first layers. Source:
// the model card of Gemma 3n.
#include <algorithm>

#include "model/architectures.h"
#include "model/hyperparameters.h"

namespace millrace::model {
namespace {

constexpr std::int64_t kSparseLayers = 10;  // where the file does not say, and so many deviations: of 95 % of channels
constexpr double kUsualDeviations = 1.6448533535003662;
constexpr double kUsualCap = 30;

/// Standard deviations by layer, 0 for those whose gates keep all: files have -inf there.
std::vector<float> read_deviations(Keys& keys, const modelfile::Model& file, const Hyperparameters& hp) {
  std::vector<float> deviations(static_cast<std::size_t>(hp.layers), 0);
  const std::string key = arch_key(file, "activation_sparsity_scale");
  if (!file.has(key)) {
    std::fill_n(deviations.begin(), std::min(kSparseLayers, hp.layers), static_cast<float>(kUsualDeviations));
    return deviations;
  }
  const Expected<std::vector<float>> read = file.get_floats(key);
  if (!read.ok() || std::ssize(*read) < hp.layers) {
    keys.fail(read.ok() ? error(Code::corrupt, "{} has {} values for {} layers", key, read->size(), hp.layers)
                        : read.status());
    return deviations;
  }
  for (std::size_t i = 0; i < deviations.size(); ++i) deviations[i] = std::max(0.0f, (*read)[i]);
  return deviations;
}

}  // namespace

Expected<DecoderSpec> gemma3n_spec(const modelfile::Model& file, const Hyperparameters& hp) {
  MR_ASSIGN_OR_RETURN(DecoderSpec spec, gemma4_spec(file, hp));
  Keys keys(file);
  spec.streams = keys.optional("altup.num_inputs", 4, 2, 16);
  spec.logit_cap = static_cast<float>(keys.optional_float("final_logit_softcapping", kUsualCap, -1e-30, 1e6));
  if (const std::int64_t active = keys.optional("altup.active_idx", 0, 0, spec.streams - 1); active != 0)
    keys.fail(error(Code::unsupported, "{} is {}: this version has layers that work on the first stream alone",
                    arch_key(file, "altup.active_idx"), active));
  const std::vector<float> deviations = read_deviations(keys, file, hp);
  const modelfile::TensorInfo* const laurel = file.find("blk.0.laurel_l.weight");
  if (laurel == nullptr) keys.fail(error(Code::not_found, "the file has no blk.0.laurel_l.weight"));
  if (spec.per_layer_dim == 0)
    keys.fail(error(Code::not_found, "the file has no {}", arch_key(file, "embedding_length_per_layer_input")));
  MR_RETURN_IF_ERROR(keys.status());
  for (std::size_t index = 0; index < spec.layers.size(); ++index) {
    LayerSpec& layer = spec.layers[index];
    layer.output_scale = false;
    layer.gate_deviations = deviations[index];
    layer.laurel_rank = laurel->rows();
  }
  return spec;
}

}  // namespace millrace::model
