// OLMo 2, OLMo 3 and EXAONE 4: what attention and feed-forward give is normalised, what they read is not. OLMo 2
// normalises all heads of queries and of keys as one vector, EXAONE 4 each by itself. OLMo 3 has windows, in whose
// layers the rotation is not stretched. EXAONE 4's larger model has windows, and rotates in the layers that have one
// alone. Sources: OLMo 2 (arXiv:2501.00656), EXAONE 4.0 (arXiv:2507.11407).
#include "model/architectures.h"
#include "model/hyperparameters.h"
#include "model/rope.h"

namespace millrace::model {

Expected<DecoderSpec> olmo2_spec(const modelfile::Model& file, const Hyperparameters& hp) {
  constexpr std::int64_t kPeriod = 4;
  MR_ASSIGN_OR_RETURN(DecoderSpec spec, qwen2_spec(file, hp));
  MR_ASSIGN_OR_RETURN(const std::vector<std::int64_t> windows, read_windows(file, hp, kPeriod));
  Keys keys(file);
  const double local_theta = keys.optional_float("rope.freq_base_swa", hp.rope_theta, 0, 1e12);
  MR_RETURN_IF_ERROR(keys.status());
  spec.ropes.push_back(plain_rope(local_theta, hp.rotary));
  spec.ropes.back().neox = true;
  for (std::size_t index = 0; index < spec.layers.size(); ++index) {
    LayerSpec& layer = spec.layers[index];
    layer.norms_inputs = false;
    layer.norms_results = true;
    layer.attention.norm = HeadNorm::together;
    layer.attention.window = windows[index];
    if (windows[index] > 0) layer.attention.rope = 1;
  }
  return spec;
}

Expected<DecoderSpec> exaone4_spec(const modelfile::Model& file, const Hyperparameters& hp) {
  constexpr std::int64_t kPeriod = 4;
  MR_ASSIGN_OR_RETURN(DecoderSpec spec, qwen2_spec(file, hp));
  MR_ASSIGN_OR_RETURN(const std::vector<std::int64_t> windows, read_windows(file, hp, kPeriod));
  for (std::size_t index = 0; index < spec.layers.size(); ++index) {
    LayerSpec& layer = spec.layers[index];
    layer.norms_inputs = false;
    layer.norms_results = true;
    layer.attention.norm = HeadNorm::each;
    layer.attention.window = windows[index];
  }
  leave_unrotated_where_all_is_seen(spec);
  return spec;
}

}  // namespace millrace::model
