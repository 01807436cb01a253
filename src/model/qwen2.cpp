// Qwen2 and what is made of it, Qwen2-VL's text among it: Llama's layers with biases on queries, keys and values, and
// RoPE over half-split pairs. EXAONE 3 has no biases, Seed-OSS another name for a norm; openPangu Embedded has a bias
// behind attention, too. Qwen, the first, counts gate and up together as the feed-forward's width. Sources: Qwen
// (arXiv:2309.16609), Qwen2 (arXiv:2407.10671).
#include "model/architectures.h"
#include "model/rope.h"

namespace millrace::model {

Expected<DecoderSpec> qwen2_spec(const modelfile::Model& file, const Hyperparameters& hp) {
  MR_ASSIGN_OR_RETURN(DecoderSpec spec, llama_spec(file, hp));
  for (RopeSpec& rope : spec.ropes) {
    rope.neox = true;
    // Qwen2-VL's files alone have such axes.
    MR_ASSIGN_OR_RETURN(rope.axes, read_rope_axes(file, rope.rotary, RopeSections::apart));
  }
  return spec;
}

Expected<DecoderSpec> qwen_spec(const modelfile::Model& file, const Hyperparameters& hp) {
  if (hp.ff_dim % 2 != 0)
    return error(Code::corrupt, "qwen.feed_forward_length is {}, and cannot be cut in two", hp.ff_dim);
  MR_ASSIGN_OR_RETURN(DecoderSpec spec, qwen2_spec(file, hp));
  for (LayerSpec& layer : spec.layers) layer.ff_dim = hp.ff_dim / 2;
  return spec;
}

Expected<DecoderSpec> seed_oss_spec(const modelfile::Model& file, const Hyperparameters& hp) {
  MR_ASSIGN_OR_RETURN(DecoderSpec spec, qwen2_spec(file, hp));
  for (LayerSpec& layer : spec.layers) layer.ffn_norm = "post_attention_norm";
  return spec;
}

}  // namespace millrace::model
