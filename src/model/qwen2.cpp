// Qwen2 and what is made of it, Qwen2-VL's text among it: Llama's layers with biases on queries, keys and values, and
// RoPE over half-split pairs. EXAONE 3 has no biases, Seed-OSS another name for a norm. Source: Qwen2 technical report
// (arXiv:2407.10671).
#include "model/architectures.h"

namespace millrace::model {

Expected<DecoderSpec> qwen2_spec(const modelfile::Model& file, const Hyperparameters& hp) {
  MR_ASSIGN_OR_RETURN(DecoderSpec spec, llama_spec(file, hp));
  for (RopeSpec& rope : spec.ropes) rope.neox = true;
  return spec;
}

Expected<DecoderSpec> seed_oss_spec(const modelfile::Model& file, const Hyperparameters& hp) {
  MR_ASSIGN_OR_RETURN(DecoderSpec spec, qwen2_spec(file, hp));
  for (LayerSpec& layer : spec.layers) layer.ffn_norm = "post_attention_norm.weight";
  return spec;
}

}  // namespace millrace::model
