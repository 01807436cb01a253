// Qwen2 and what is made of it: Llama's layers with biases on queries, keys and values, and RoPE over half-split pairs.
// Source: Qwen2 technical report (arXiv:2407.10671).
#include "model/architectures.h"

namespace millrace::model {

Expected<DecoderSpec> qwen2_spec(const modelfile::Model& file, const Hyperparameters& hp) {
  MR_ASSIGN_OR_RETURN(DecoderSpec spec, llama_spec(file, hp));
  for (RopeSpec& rope : spec.ropes) rope.neox = true;
  return spec;
}

}  // namespace millrace::model
