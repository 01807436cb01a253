// Llama 4: three layers that rotate heads and see the tokens of their chunk of 8192 alone, then one that does neither
// and lets queries grow with their position. Heads are normalised behind their rotation, without weights, but for the
// model of 128 experts, whose files do not say so. Every layer, or every second one, is a mixture of which a token uses
// one expert, weighed by a sigmoid where it is read, beside a shared one. Source: the model card of Llama 4.
#include "model/architectures.h"
#include "model/hyperparameters.h"

namespace millrace::model {
namespace {

constexpr std::int64_t kPeriod = 4, kUsualChunk = 8192, kExpertsOfMaverick = 128;
constexpr float kUsualTemperature = 0.1f;

/// The chunk of each layer, 0 for those that see all. Readers take it for the usual one; 0 in the file: all see all.
Expected<std::vector<std::int64_t>> read_chunks(const modelfile::Model& file, const Hyperparameters& hp) {
  if (file.has(arch_key(file, "attention.sliding_window"))) return read_windows(file, hp, kPeriod);
  std::vector<std::int64_t> chunks;
  for (std::int64_t index = 0; index < hp.layers; ++index)
    chunks.push_back(index % kPeriod < kPeriod - 1 ? kUsualChunk : 0);
  return chunks;
}

}  // namespace

Expected<DecoderSpec> llama4_spec(const modelfile::Model& file, const Hyperparameters& hp) {
  MR_ASSIGN_OR_RETURN(DecoderSpec spec, llama_spec(file, hp));
  MR_ASSIGN_OR_RETURN(const std::vector<std::int64_t> chunks, read_chunks(file, hp));
  MR_ASSIGN_OR_RETURN(MixtureSpec mixture, read_mixture(file, hp));
  mixture.gating = exec::Gating::softmax_chosen;  // of one, which gives 1
  mixture.weighs_inputs = true;
  mixture.shared_ff_dim = mixture.ff_dim;
  MR_ASSIGN_OR_RETURN(const std::int64_t ff_dim, read_ff_dim(file, hp));
  Keys keys(file);
  const std::int64_t step = keys.required("interleave_moe_layer_step", 1, hp.layers);
  exec::Temperature temperature = read_temperature(keys);
  if (!keys.has("attention.temperature_scale")) temperature = {kUsualTemperature, kUsualChunk, 0};
  temperature.offset = 1;
  if (hp.top_k != 1)
    keys.fail(error(Code::unsupported, "{} is {}: this version has one expert a token in models of llama4",
                    arch_key(file, "expert_used_count"), hp.top_k));
  MR_RETURN_IF_ERROR(keys.status());
  for (std::size_t index = 0; index < spec.layers.size(); ++index) {
    LayerSpec& layer = spec.layers[index];
    layer.attention.window = chunks[index];
    layer.attention.chunks = chunks[index] > 0;
    layer.attention.whole_pictures = false;
    layer.attention.norms_rotated = true;
    if (hp.experts != kExpertsOfMaverick) layer.attention.norm = HeadNorm::bare;
    const bool mixes = (static_cast<std::int64_t>(index) + 1) % step == 0;
    layer.mixture = mixes ? mixture : MixtureSpec();
    layer.ff_dim = mixes ? 0 : ff_dim;
  }
  leave_unrotated_where_all_is_seen(spec);
  for (LayerSpec& layer : spec.layers) {
    if (layer.attention.rope != kNoRope) continue;
    layer.attention.norm = HeadNorm::none;
    layer.attention.temperature = temperature;
  }
  return spec;
}

}  // namespace millrace::model
