// Encoders, whose tokens see the whole text and which give its states instead of a next token. BERT and the models
// made of it (MiniLM, BGE, E5, XLM-RoBERTa): learned positions, a norm behind each addition to the residual stream,
// biases everywhere. Jina's second has ALiBi and gates, its third is XLM-RoBERTa that rotates. Nomic's rotates, has
// gates and no biases. ModernBERT is a pre-norm model whose layers see a window on both sides, but for each third.
// EuroBERT is Llama and EmbeddingGemma is Gemma 3, not causal. Sources: BERT (arXiv:1810.04805), Jina Embeddings 2 and
// 3 (arXiv:2310.19923, 2409.10173), Nomic Embed (arXiv:2402.01613), ModernBERT (arXiv:2412.13663), EuroBERT
// (arXiv:2503.05500), EmbeddingGemma (arXiv:2509.20354).
#include "model/architectures.h"
#include "model/hyperparameters.h"
#include "model/rope.h"

namespace millrace::model {
namespace {

/// What all have in common: no head, and norms of embeddings. A layer's norms stand behind each addition.
Expected<DecoderSpec> encoder(const modelfile::Model& file, const Hyperparameters& hp) {
  LayerSpec layer;
  layer.attention = plain_attention(hp);
  MR_ASSIGN_OR_RETURN(layer.ff_dim, read_ff_dim(file, hp));
  layer.norms_inputs = false;
  layer.norms_sums = true;
  DecoderSpec spec;
  spec.layers.assign(static_cast<std::size_t>(hp.layers), layer);
  spec.layer_norms = true;
  spec.token_types = file.find("token_types.weight") != nullptr;
  spec.embedding_norm = true;
  spec.output_norm = nullptr;
  spec.head = false;
  return spec;
}

/// BERT's layers without what says where tokens stand.
Expected<DecoderSpec> bert_layers(const modelfile::Model& file, const Hyperparameters& hp) {
  MR_ASSIGN_OR_RETURN(DecoderSpec spec, encoder(file, hp));
  for (LayerSpec& layer : spec.layers) {
    layer.attention.may_have_biases = true;
    layer.activation = kernels::Activation::gelu_erf;
    layer.gated = false;
    layer.ff_biases = true;
  }
  return spec;
}

}  // namespace

Expected<DecoderSpec> bert_spec(const modelfile::Model& file, const Hyperparameters& hp) {
  if (file.find("position_embd.weight") == nullptr)
    return error(Code::not_found, "the file has no tensor position_embd.weight");
  MR_ASSIGN_OR_RETURN(DecoderSpec spec, bert_layers(file, hp));
  spec.position_table = true;
  const modelfile::TensorInfo* types = file.find("token_types.weight");
  spec.pair_types = types != nullptr && types->rows() == 2;
  for (LayerSpec& layer : spec.layers) layer.attention.rope = kNoRope;
  return spec;
}

/// With a rotation in the place of a table of positions. What its tasks add are LoRA adapters in files of their own.
Expected<DecoderSpec> jina_bert_v3_spec(const modelfile::Model& file, const Hyperparameters& hp) {
  MR_ASSIGN_OR_RETURN(DecoderSpec spec, bert_layers(file, hp));
  MR_ASSIGN_OR_RETURN(spec.ropes.emplace_back(), read_rope(file, hp));
  spec.ropes.front().neox = true;
  return spec;
}

Expected<DecoderSpec> nomic_bert_spec(const modelfile::Model& file, const Hyperparameters& hp) {
  MR_ASSIGN_OR_RETURN(DecoderSpec spec, encoder(file, hp));
  MR_ASSIGN_OR_RETURN(spec.ropes.emplace_back(), read_rope(file, hp));
  spec.ropes.front().neox = true;
  return spec;
}

/// BERT's with gates, and with ALiBi in the place of a table of positions.
Expected<DecoderSpec> jina_bert_v2_spec(const modelfile::Model& file, const Hyperparameters& hp) {
  constexpr float kMaxBias = 8;
  MR_ASSIGN_OR_RETURN(DecoderSpec spec, encoder(file, hp));
  for (LayerSpec& layer : spec.layers) {
    layer.attention.may_have_biases = true;
    layer.attention.rope = kNoRope;
    layer.attention.max_bias = kMaxBias;
    layer.activation = kernels::Activation::gelu_erf;
    layer.ff_biases = true;
  }
  return spec;
}

/// Nomic's with biases, without gates, and with experts in each such layer behind the first of a period.
Expected<DecoderSpec> nomic_bert_moe_spec(const modelfile::Model& file, const Hyperparameters& hp) {
  Keys keys(file);
  const std::int64_t period = keys.required("moe_every_n_layers", 1, hp.layers + 1);
  MR_RETURN_IF_ERROR(keys.status());
  MR_ASSIGN_OR_RETURN(DecoderSpec spec, nomic_bert_spec(file, hp));
  MixtureSpec defaults;
  defaults.normalize = false;
  MR_ASSIGN_OR_RETURN(const MixtureSpec mixture, read_mixture(file, hp, defaults));
  for (std::size_t index = 0; index < spec.layers.size(); ++index) {
    LayerSpec& layer = spec.layers[index];
    layer.attention.may_have_biases = true;
    layer.activation = kernels::Activation::gelu_erf;
    layer.gated = false;
    layer.ff_biases = true;
    if (static_cast<std::int64_t>(index) % period != 1 % period) continue;
    layer.mixture = mixture;
    layer.ff_dim = 0;
  }
  return spec;
}

/// Llama's layers, whose tokens see the whole text.
Expected<DecoderSpec> eurobert_spec(const modelfile::Model& file, const Hyperparameters& hp) {
  MR_ASSIGN_OR_RETURN(DecoderSpec spec, llama_spec(file, hp));
  for (RopeSpec& rope : spec.ropes) rope.neox = true;
  spec.head = false;
  return spec;
}

/// Gemma 3's layers, whose windows reach to both sides, and two matrices behind the last norm.
Expected<DecoderSpec> gemma_embedding_spec(const modelfile::Model& file, const Hyperparameters& hp) {
  MR_ASSIGN_OR_RETURN(DecoderSpec spec, gemma3_spec(file, hp));
  for (LayerSpec& layer : spec.layers)
    if (layer.attention.window > 0) layer.attention.window = layer.attention.window / 2 + 1;
  spec.head = false;
  const modelfile::TensorInfo *up = file.find("dense_2.weight"), *down = file.find("dense_3.weight");
  if ((up == nullptr) != (down == nullptr))
    return error(Code::unsupported, "the file has one of dense_2.weight and dense_3.weight; this version knows both");
  if (up != nullptr) spec.dense_dim = up->rows();
  return spec;
}

Expected<DecoderSpec> modern_bert_spec(const modelfile::Model& file, const Hyperparameters& hp) {
  Keys keys(file);
  constexpr std::int64_t kPeriod = 3;
  const double local_theta = keys.optional_float("rope.freq_base_swa", 10000, 0, 1e12);
  const std::int64_t window = keys.optional("attention.sliding_window", 0, 0, 1 << 28);
  MR_RETURN_IF_ERROR(keys.status());
  MR_ASSIGN_OR_RETURN(DecoderSpec spec, encoder(file, hp));
  MR_ASSIGN_OR_RETURN(spec.ropes.emplace_back(), read_rope(file, hp));
  spec.ropes.push_back(plain_rope(local_theta, hp.rotary));
  for (RopeSpec& rope : spec.ropes) rope.neox = true;
  for (std::size_t index = 0; index < spec.layers.size(); ++index) {
    LayerSpec& layer = spec.layers[index];
    const bool local = static_cast<std::int64_t>(index) % kPeriod != 0 && window > 0;
    layer.attention.window = local ? window / 2 + 1 : 0;  // of one side, with the token itself
    layer.attention.rope = local ? 1 : 0;
    layer.activation = kernels::Activation::gelu_erf;
    layer.norms_inputs = true;
    layer.norms_sums = false;
    layer.norms_attended = index > 0;  // the first reads embeddings that are normalised
  }
  spec.output_norm = "output_norm.weight";
  return spec;
}

}  // namespace millrace::model
