// Granite 3, dense and with experts: Llama's layers with four factors of its own, on embeddings, scores, what blocks
// add, and logits. MiniCPM has them too, and files that leave them out. Granite 4
// H: the same factors on layers of Mamba-2, of which few attend instead, mostly without a rotation; each has a dense
// feed-forward or a mixture with a shared expert. Sources: IBM's Granite 3.0 language models (2024), the model cards;
// keys as in the GGUF specification.
#include <cmath>

#include "model/architectures.h"
#include "model/hyperparameters.h"
#include "model/mamba2.h"

namespace millrace::model {
namespace {

/// Where the file says nothing.
struct Factors {
  double embedding = 1, residual = 1, logits = 1;  // logits are divided by theirs
};

Status read_factors(Keys& keys, DecoderSpec& spec, const Factors& usual = {}) {
  spec.embedding_scale = static_cast<float>(keys.optional_float("embedding_scale", usual.embedding, 0, 1e6));
  spec.logit_scale = static_cast<float>(1 / keys.optional_float("logit_scale", usual.logits, 0, 1e6));
  const auto residual = static_cast<float>(keys.optional_float("residual_scale", usual.residual, 0, 1e6));
  const double scores = keys.optional_float("attention.scale", spec.layers.front().attention.scale, 0, 1e6);
  MR_RETURN_IF_ERROR(keys.status());
  for (LayerSpec& layer : spec.layers) {
    layer.residual_scale = residual;
    layer.attention.scale = static_cast<float>(scores);
  }
  return {};
}

}  // namespace

Expected<DecoderSpec> granite_spec(const modelfile::Model& file, const Hyperparameters& hp) {
  MR_ASSIGN_OR_RETURN(DecoderSpec spec, llama_spec(file, hp));
  Keys keys(file);
  if (!keys.optional_bool("rope.scaling.finetuned", true))
    keys.fail(error(Code::unsupported, "{} is false: this version has no Granite without positions",
                    arch_key(file, "rope.scaling.finetuned")));
  MR_RETURN_IF_ERROR(read_factors(keys, spec));
  return spec;
}

Expected<DecoderSpec> minicpm_spec(const modelfile::Model& file, const Hyperparameters& hp) {
  MR_ASSIGN_OR_RETURN(DecoderSpec spec, llama_spec(file, hp));
  Keys keys(file);
  MR_RETURN_IF_ERROR(read_factors(
      keys, spec, {12, 1.4 / std::sqrt(static_cast<double>(hp.layers)), static_cast<double>(hp.model_dim) / 256}));
  return spec;
}

Expected<DecoderSpec> granitehybrid_spec(const modelfile::Model& file, const Hyperparameters& hp) {
  MR_ASSIGN_OR_RETURN(DecoderSpec spec, llama_spec(file, hp));
  MR_ASSIGN_OR_RETURN(const Mamba2Spec mamba2, read_mamba2(file));
  MR_ASSIGN_OR_RETURN(const std::vector<std::int64_t> kv_heads, read_kv_heads(file, hp));
  Keys keys(file);
  const bool rotates = keys.optional_bool("rope.scaling.finetuned", true);
  for (std::size_t index = 0; index < spec.layers.size(); ++index) {
    LayerSpec& layer = spec.layers[index];
    layer.mixer = kv_heads[index] == 0 ? Mixer::mamba2 : Mixer::attention;
    layer.mamba2 = mamba2;
    layer.attention.kv_heads = kv_heads[index];
    if (!rotates) layer.attention.rope = kNoRope;
  }
  MR_RETURN_IF_ERROR(read_factors(keys, spec));
  return spec;
}

}  // namespace millrace::model
