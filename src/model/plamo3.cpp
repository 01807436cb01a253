// PLaMo 3: seven layers that see a window of the nearest keys, then one that sees all, with rotations of two bases;
// four norms a layer, heads normalised one by one. Sources: PLaMo 3's model card (2025), the GGUF files that llama.cpp
// reads.
#include "model/architectures.h"
#include "model/hyperparameters.h"
#include "model/rope.h"

namespace millrace::model {

Expected<DecoderSpec> plamo3_spec(const modelfile::Model& file, const Hyperparameters& hp) {
  constexpr std::int64_t kPeriod = 8;
  MR_ASSIGN_OR_RETURN(DecoderSpec spec, llama_spec(file, hp));
  MR_ASSIGN_OR_RETURN(const std::vector<std::int64_t> windows, read_windows(file, hp, kPeriod));
  Keys keys(file);
  const double local_theta = keys.optional_float("rope.freq_base_swa", hp.rope_theta, 0, 1e12);
  MR_RETURN_IF_ERROR(keys.status());
  spec.ropes.push_back(plain_rope(local_theta, hp.rotary));
  for (RopeSpec& rope : spec.ropes) rope.neox = true;
  for (std::size_t index = 0; index < spec.layers.size(); ++index) {
    LayerSpec& layer = spec.layers[index];
    layer.norms_results = true;
    layer.attention.may_have_biases = false;
    layer.attention.norm = HeadNorm::each;
    layer.attention.window = windows[index];
    if (windows[index] > 0) layer.attention.rope = 1;
  }
  return spec;
}

}  // namespace millrace::model
