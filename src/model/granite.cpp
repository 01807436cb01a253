// Granite 3: Llama's layers with four factors of its own, on embeddings, scores, what blocks add, and logits.
// Source: IBM's Granite 3.0 language models (2024); keys as in the GGUF specification.
#include "model/architectures.h"
#include "model/hyperparameters.h"

namespace millrace::model {

Expected<DecoderSpec> granite_spec(const modelfile::Model& file, const Hyperparameters& hp) {
  MR_ASSIGN_OR_RETURN(DecoderSpec spec, llama_spec(file, hp));
  Keys keys(file);
  spec.embedding_scale = static_cast<float>(keys.optional_float("embedding_scale", 1, 0, 1e6));
  spec.logit_scale = static_cast<float>(1 / keys.optional_float("logit_scale", 1, 0, 1e6));
  const auto residual = static_cast<float>(keys.optional_float("residual_scale", 1, 0, 1e6));
  const double scores = keys.optional_float("attention.scale", spec.layers.front().attention.scale, 0, 1e6);
  if (!keys.optional_bool("rope.scaling.finetuned", true))
    keys.fail(error(Code::unsupported, "{} is false: this version has no Granite without positions",
                    arch_key(file, "rope.scaling.finetuned")));
  MR_RETURN_IF_ERROR(keys.status());
  for (LayerSpec& layer : spec.layers) {
    layer.residual_scale = residual;
    layer.attention.scale = static_cast<float>(scores);
  }
  return spec;
}

}  // namespace millrace::model
