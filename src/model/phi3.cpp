// Phi-3, 3.5 and 4: Llama's layers with Q, K and V in one tensor, gate and up in another, and RoPE over half-split
// pairs of a part of a head's channels. Sources: Phi-3 (arXiv:2404.14219), Phi-4 (arXiv:2412.08905).
#include "model/architectures.h"

namespace millrace::model {

Expected<DecoderSpec> phi3_spec(const modelfile::Model& file, const Hyperparameters& hp) {
  MR_ASSIGN_OR_RETURN(DecoderSpec spec, llama_spec(file, hp));
  for (RopeSpec& rope : spec.ropes) rope.neox = true;
  return spec;
}

}  // namespace millrace::model
