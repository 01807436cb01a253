// Encoders: BERT and its derivatives, RoBERTa and XLM-RoBERTa, Nomic's, ModernBERT. Tensors that embeddings do not use
// (poolers, masked-token heads) are skipped. Encoders are not exported.
#include <algorithm>

#include "convert/names.h"
#include "model/model.h"
#include "modelfile/escape.h"

namespace millrace::convert {
namespace {

using nlohmann::json;

constexpr NameRule kBertTop[] = {
    {"embeddings.word_embeddings.weight", "token_embd.weight"},
    {"embeddings.token_type_embeddings.weight", "token_types.weight"},
    {"embeddings.LayerNorm.weight", "token_embd_norm.weight"},
    {"embeddings.LayerNorm.bias", "token_embd_norm.bias"},
    {"embeddings.LayerNorm.gamma", "token_embd_norm.weight"},  // of before PyTorch's own LayerNorm
    {"embeddings.LayerNorm.beta", "token_embd_norm.bias"},
};
constexpr NameRule kPositions[] = {{"embeddings.position_embeddings.weight", "position_embd.weight", Form::positions}};
constexpr NameRule kPositionsBehindPadding[] = {
    {"embeddings.position_embeddings.weight", "position_embd.weight", Form::behind_padding}};
constexpr NameRule kBertLayers[] = {
    {"encoder.layer.#.attention.self.query.weight", "blk.#.attn_q.weight"},
    {"encoder.layer.#.attention.self.query.bias", "blk.#.attn_q.bias"},
    {"encoder.layer.#.attention.self.key.weight", "blk.#.attn_k.weight"},
    {"encoder.layer.#.attention.self.key.bias", "blk.#.attn_k.bias"},
    {"encoder.layer.#.attention.self.value.weight", "blk.#.attn_v.weight"},
    {"encoder.layer.#.attention.self.value.bias", "blk.#.attn_v.bias"},
    {"encoder.layer.#.attention.output.dense.weight", "blk.#.attn_output.weight"},
    {"encoder.layer.#.attention.output.dense.bias", "blk.#.attn_output.bias"},
    {"encoder.layer.#.attention.output.LayerNorm.weight", "blk.#.attn_output_norm.weight"},
    {"encoder.layer.#.attention.output.LayerNorm.bias", "blk.#.attn_output_norm.bias"},
    {"encoder.layer.#.attention.output.LayerNorm.gamma", "blk.#.attn_output_norm.weight"},
    {"encoder.layer.#.attention.output.LayerNorm.beta", "blk.#.attn_output_norm.bias"},
    {"encoder.layer.#.intermediate.dense.weight", "blk.#.ffn_up.weight"},
    {"encoder.layer.#.intermediate.dense.bias", "blk.#.ffn_up.bias"},
    {"encoder.layer.#.output.dense.weight", "blk.#.ffn_down.weight"},
    {"encoder.layer.#.output.dense.bias", "blk.#.ffn_down.bias"},
    {"encoder.layer.#.output.LayerNorm.weight", "blk.#.layer_output_norm.weight"},
    {"encoder.layer.#.output.LayerNorm.bias", "blk.#.layer_output_norm.bias"},
    {"encoder.layer.#.output.LayerNorm.gamma", "blk.#.layer_output_norm.weight"},
    {"encoder.layer.#.output.LayerNorm.beta", "blk.#.layer_output_norm.bias"},
};
constexpr Names kBertNames[] = {kBertTop, kPositions, kBertLayers};
constexpr Names kRobertaNames[] = {kBertTop, kPositionsBehindPadding, kBertLayers};
constexpr KeyRule kBertKeys[] = {{"layer_norm_eps", "attention.layer_norm_epsilon", KeyRule::Kind::number}};
constexpr std::string_view kBertUnused[] = {"pooler.", "cls.", "lm_head."};

void read_bert(Config& config, Header& header) {
  config.expect("hidden_act", "gelu");  // the erf form, which GGUF's architecture implies
  config.expect("position_embedding_type", "absolute");
  config.expect("is_decoder", false);
  config.expect("add_cross_attention", false);
  config.disregard({"attention_probs_dropout_prob", "hidden_dropout_prob", "classifier_dropout", "type_vocab_size",
                    "chunk_size_feed_forward", "use_cache"});
  header.set("attention.causal", false);
}

void read_roberta(Config& config, Header& header) {
  read_bert(config, header);
  config.expect("pad_token_id", 1);
  header.set_integer("context_length", config.required("max_position_embeddings", 3, 1 << 28) - 2);
}

// transformers' names, and those of Nomic's own code, which its published models use.
constexpr NameRule kNomicNames[] = {
    {"emb_ln.weight", "token_embd_norm.weight"},
    {"emb_ln.bias", "token_embd_norm.bias"},
    {"layers.#.self_attn.q_proj.weight", "blk.#.attn_q.weight"},
    {"layers.#.self_attn.k_proj.weight", "blk.#.attn_k.weight"},
    {"layers.#.self_attn.v_proj.weight", "blk.#.attn_v.weight"},
    {"layers.#.self_attn.o_proj.weight", "blk.#.attn_output.weight"},
    {"layers.#.post_attention_layernorm.weight", "blk.#.attn_output_norm.weight"},
    {"layers.#.post_attention_layernorm.bias", "blk.#.attn_output_norm.bias"},
    {"layers.#.mlp.gate_proj.weight", "blk.#.ffn_gate.weight"},
    {"layers.#.mlp.up_proj.weight", "blk.#.ffn_up.weight"},
    {"layers.#.mlp.down_proj.weight", "blk.#.ffn_down.weight"},
    {"layers.#.post_mlp_layernorm.weight", "blk.#.layer_output_norm.weight"},
    {"layers.#.post_mlp_layernorm.bias", "blk.#.layer_output_norm.bias"},
    {"encoder.layers.#.attn.Wqkv.weight", "blk.#.attn_qkv.weight"},
    {"encoder.layers.#.attn.out_proj.weight", "blk.#.attn_output.weight"},
    {"encoder.layers.#.norm1.weight", "blk.#.attn_output_norm.weight"},
    {"encoder.layers.#.norm1.bias", "blk.#.attn_output_norm.bias"},
    {"encoder.layers.#.mlp.fc12.weight", "blk.#.ffn_gate.weight"},
    {"encoder.layers.#.mlp.fc11.weight", "blk.#.ffn_up.weight"},
    {"encoder.layers.#.mlp.fc2.weight", "blk.#.ffn_down.weight"},
    {"encoder.layers.#.norm2.weight", "blk.#.layer_output_norm.weight"},
    {"encoder.layers.#.norm2.bias", "blk.#.layer_output_norm.bias"},
};
constexpr Names kNomic[] = {kBertTop, kNomicNames};
constexpr std::string_view kNomicUnused[] = {"pooler.", "cls."};

void rename(Config& config, std::string_view from, std::string_view to) {
  if (const json* value = config.find(from); value != nullptr) config.set(to, json(*value));
}

/// The keys of Nomic's own code, which are GPT-2's with some more.
void prepare_nomic(Config& config) {
  if (!config.has("n_embd")) return;
  constexpr std::string_view kSame[][2] = {{"n_embd", "hidden_size"},
                                           {"n_head", "num_attention_heads"},
                                           {"n_layer", "num_hidden_layers"},
                                           {"n_inner", "intermediate_size"},
                                           {"n_positions", "max_position_embeddings"},
                                           {"layer_norm_epsilon", "layer_norm_eps"},
                                           {"rotary_emb_base", "rope_theta"},
                                           {"activation_function", "hidden_act"}};
  for (const auto& [from, to] : kSame) rename(config, from, to);
  if (config.text("hidden_act", "") == "swiglu") config.set("hidden_act", "silu");
  constexpr std::int64_t kMost = 1 << 28;
  // Beyond the trained context, Nomic's code scales RoPE dynamically, which GGUF cannot express.
  const std::int64_t trained = config.optional("max_trained_positions", kMost, 1, kMost);
  config.set("max_position_embeddings", std::min(trained, config.required("max_position_embeddings", 1, kMost)));
  for (const char* key : {"qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias", "prenorm", "parallel_block", "causal",
                          "rotary_emb_interleaved", "use_rms_norm"})
    config.expect(key, false);
  config.expect("rotary_emb_fraction", 1.0);
  config.expect("rotary_emb_scale_base", nullptr);
  config.expect("scale_attn_weights", true);
}

void read_nomic(Config& config, Header& header) {
  config.expect("hidden_act", "silu");
  config.disregard({"attention_probs_dropout_prob", "hidden_dropout_prob", "classifier_dropout", "type_vocab_size"});
  header.set("attention.causal", false);
}

// Jina's own names, which its published models use, and transformers'.
constexpr NameRule kJinaLayers[] = {
    {"emb_ln.weight", "token_embd_norm.weight"},
    {"emb_ln.bias", "token_embd_norm.bias"},
    {"encoder.layers.#.mixer.Wqkv.weight", "blk.#.attn_qkv.weight"},
    {"encoder.layers.#.mixer.Wqkv.bias", "blk.#.attn_qkv.bias"},
    {"encoder.layers.#.mixer.out_proj.weight", "blk.#.attn_output.weight"},
    {"encoder.layers.#.mixer.out_proj.bias", "blk.#.attn_output.bias"},
    {"encoder.layers.#.norm1.weight", "blk.#.attn_output_norm.weight"},
    {"encoder.layers.#.norm1.bias", "blk.#.attn_output_norm.bias"},
    {"encoder.layers.#.mlp.fc1.weight", "blk.#.ffn_up.weight"},
    {"encoder.layers.#.mlp.fc1.bias", "blk.#.ffn_up.bias"},
    {"encoder.layers.#.mlp.fc2.weight", "blk.#.ffn_down.weight"},
    {"encoder.layers.#.mlp.fc2.bias", "blk.#.ffn_down.bias"},
    {"encoder.layers.#.norm2.weight", "blk.#.layer_output_norm.weight"},
    {"encoder.layers.#.norm2.bias", "blk.#.layer_output_norm.bias"},
    {"layers.#.self_attn.q_proj.weight", "blk.#.attn_q.weight"},
    {"layers.#.self_attn.q_proj.bias", "blk.#.attn_q.bias"},
    {"layers.#.self_attn.k_proj.weight", "blk.#.attn_k.weight"},
    {"layers.#.self_attn.k_proj.bias", "blk.#.attn_k.bias"},
    {"layers.#.self_attn.v_proj.weight", "blk.#.attn_v.weight"},
    {"layers.#.self_attn.v_proj.bias", "blk.#.attn_v.bias"},
    {"layers.#.self_attn.o_proj.weight", "blk.#.attn_output.weight"},
    {"layers.#.self_attn.o_proj.bias", "blk.#.attn_output.bias"},
    {"layers.#.post_attention_layernorm.weight", "blk.#.attn_output_norm.weight"},
    {"layers.#.post_attention_layernorm.bias", "blk.#.attn_output_norm.bias"},
    {"layers.#.mlp.fc1.weight", "blk.#.ffn_up.weight"},
    {"layers.#.mlp.fc1.bias", "blk.#.ffn_up.bias"},
    {"layers.#.mlp.fc2.weight", "blk.#.ffn_down.weight"},
    {"layers.#.mlp.fc2.bias", "blk.#.ffn_down.bias"},
    {"layers.#.post_mlp_layernorm.weight", "blk.#.layer_output_norm.weight"},
    {"layers.#.post_mlp_layernorm.bias", "blk.#.layer_output_norm.bias"},
};
constexpr Names kJinaNames[] = {kBertTop, kJinaLayers};

constexpr NameRule kModernNames[] = {
    {"embeddings.tok_embeddings.weight", "token_embd.weight"},
    {"embeddings.norm.weight", "token_embd_norm.weight"},
    {"layers.#.attn_norm.weight", "blk.#.attn_norm.weight"},
    {"layers.#.attn.Wqkv.weight", "blk.#.attn_qkv.weight"},
    {"layers.#.attn.Wo.weight", "blk.#.attn_output.weight"},
    {"layers.#.mlp_norm.weight", "blk.#.ffn_norm.weight"},
    {"layers.#.mlp.Wi.weight", "blk.#.ffn_up.weight"},
    {"layers.#.mlp.Wo.weight", "blk.#.ffn_down.weight"},
    {"final_norm.weight", "output_norm.weight"},
};
constexpr Names kModern[] = {kModernNames};
constexpr KeyRule kModernKeys[] = {{"norm_eps", "attention.layer_norm_epsilon", KeyRule::Kind::number},
                                   {"local_attention", "attention.sliding_window"}};
constexpr std::string_view kModernUnused[] = {"head.", "decoder."};

void prepare_modern(Config& config) {
  rename(config, "global_rope_theta", "rope_theta");
  rename(config, "local_rope_theta", "rope_local_base_freq");
}

void read_modern(Config& config, Header& header) {
  config.expect("global_attn_every_n_layers", 3);  // GGUF has no key for it
  const auto kinds = config.texts("layer_types");
  for (std::size_t i = 0; i < kinds.size(); ++i)
    if ((kinds[i] == "full_attention") != (i % 3 == 0))
      config.fail(error(Code::unsupported,
                        "layer_types in config.json: layer {} is '{}'; every third layer of such models sees all, the "
                        "first of them the first one",
                        i, modelfile::escape(kinds[i], 40)));
  for (const char* kind : {"full_attention", "sliding_attention"}) {
    Config rope = config.within("rope_parameters").within(kind);
    rope.expect("rope_type", "default");
    config.fail(rope.status());
  }
  config.expect("hidden_activation", "gelu");
  config.expect("norm_bias", false);
  config.disregard({"classifier_activation", "classifier_bias", "classifier_dropout", "classifier_pooling",
                    "decoder_bias", "deterministic_flash_attn", "embedding_dropout", "initializer_cutoff_factor",
                    "mlp_dropout", "sparse_pred_ignore_index", "sparse_prediction"});
  header.set("attention.causal", false);
}

void read_eurobert(Config& config, Header& header) {
  config.expect("hidden_act", "silu");
  config.disregard({"classifier_pooling", "mask_token_id"});
  header.set("attention.causal", false);
}
constexpr std::string_view kEuroUnused[] = {"lm_head."};
constexpr Names kEuroNames[] = {kTopNames, kAttentionNames, kFfnNorm, kDenseNames};

bool never(const Header&) { return false; }

// Cross-encoders score a pair of texts. BERT's head reads the first token's state through the pooler.
constexpr NameRule kBertHead[] = {
    {"pooler.dense.weight", "cls.weight"},
    {"pooler.dense.bias", "cls.bias"},
    {"classifier.weight", "cls.output.weight"},
    {"classifier.bias", "cls.output.bias"},
};
constexpr NameRule kRobertaHead[] = {
    {"classifier.dense.weight", "cls.weight"},
    {"classifier.dense.bias", "cls.bias"},
    {"classifier.out_proj.weight", "cls.output.weight"},
    {"classifier.out_proj.bias", "cls.output.bias"},
};
constexpr NameRule kModernHead[] = {
    {"head.dense.weight", "cls.weight"},     {"head.dense.bias", "cls.bias"},
    {"head.norm.weight", "cls.norm.weight"}, {"classifier.weight", "cls.output.weight"},
    {"classifier.bias", "cls.output.bias"},
};
constexpr Names kBertClassifierNames[] = {kBertTop, kPositions, kBertLayers, kBertHead};
constexpr Names kRobertaClassifierNames[] = {kBertTop, kPositionsBehindPadding, kBertLayers, kRobertaHead};
constexpr Names kModernClassifierNames[] = {kModernNames, kModernHead};
constexpr std::string_view kRobertaClassifierUnused[] = {"pooler."};

void rank_pairs(Header& header) { header.set_integer("pooling_type", static_cast<std::int64_t>(model::Pooling::rank)); }

void read_bert_classifier(Config& config, Header& header) {
  read_bert(config, header);
  rank_pairs(header);
}

void read_roberta_classifier(Config& config, Header& header) {
  read_roberta(config, header);
  rank_pairs(header);
}

void read_modern_classifier(Config& config, Header& header) {
  read_modern(config, header);
  const std::string pooling = config.text("classifier_pooling", "");
  if (pooling != "mean")
    config.fail(error(Code::unsupported,
                      "classifier_pooling in config.json is '{}': readers of GGUF take the mean for such models",
                      modelfile::escape(pooling, 40)));
  config.expect("classifier_activation", "gelu");
  rank_pairs(header);
}

const Family kBertClassifier{.model_type = "bert",
                             .model_class = "BertForSequenceClassification",
                             .architecture = "bert",
                             .names = kBertClassifierNames,
                             .keys = {kBertKeys},
                             .wrapper = "bert.",
                             .has_head = false,
                             .read = read_bert_classifier,
                             .matches = never};
const Family kRobertaClassifier{.model_type = "roberta",
                                .model_class = "RobertaForSequenceClassification",
                                .architecture = "bert",
                                .names = kRobertaClassifierNames,
                                .keys = {kBertKeys},
                                .wrapper = "roberta.",
                                .unused = kRobertaClassifierUnused,
                                .has_head = false,
                                .pre = "roberta-bpe",
                                .read = read_roberta_classifier,
                                .matches = never};
const Family kModernClassifier{.model_type = "modernbert",
                               .model_class = "ModernBertForSequenceClassification",
                               .architecture = "modern-bert",
                               .names = kModernClassifierNames,
                               .keys = {kModernKeys},
                               .wrapper = "model.",
                               .has_head = false,
                               .pre = "modern-bert",
                               .prepare = prepare_modern,
                               .read = read_modern_classifier,
                               .matches = never};

}  // namespace

const Family kBert{.model_type = "bert",
                   .model_class = "BertModel",
                   .architecture = "bert",
                   .names = kBertNames,
                   .keys = {kBertKeys},
                   .wrapper = "bert.",
                   .unused = kBertUnused,
                   .has_head = false,
                   .classifier = &kBertClassifier,
                   .read = read_bert,
                   .matches = never};
const Family kXlmRoberta{.model_type = "xlm-roberta",
                         .model_class = "XLMRobertaModel",
                         .architecture = "bert",
                         .names = kRobertaNames,
                         .keys = {kBertKeys},
                         .wrapper = "roberta.",
                         .unused = kBertUnused,
                         .has_head = false,
                         .classifier = &kRobertaClassifier,
                         .read = read_roberta,
                         .matches = never};
const Family kRoberta{.model_type = "roberta",
                      .model_class = "RobertaModel",
                      .architecture = "bert",
                      .names = kRobertaNames,
                      .keys = {kBertKeys},
                      .wrapper = "roberta.",
                      .unused = kBertUnused,
                      .has_head = false,
                      .pre = "roberta-bpe",
                      .classifier = &kRobertaClassifier,
                      .read = read_roberta,
                      .matches = never};
const Family kNomicBert{.model_type = "nomic_bert",
                        .model_class = "NomicBertModel",
                        .architecture = "nomic-bert",
                        .names = kNomic,
                        .keys = {kBertKeys},
                        .wrapper = "nomic_bert.",
                        .unused = kNomicUnused,
                        .has_head = false,
                        .prepare = prepare_nomic,
                        .read = read_nomic,
                        .matches = never};
const Family kJinaV3{.model_type = "jina_embeddings_v3",
                     .model_class = "JinaEmbeddingsV3Model",
                     .architecture = "jina-bert-v3",
                     .names = kJinaNames,
                     .keys = {kBertKeys},
                     .wrapper = "roberta.",
                     .unused = kBertUnused,
                     .has_head = false,
                     .read = read_bert,
                     .matches = never};
const Family kEuroBert{.model_type = "eurobert",
                       .model_class = "EuroBertModel",
                       .architecture = "eurobert",
                       .names = kEuroNames,
                       .prefix = "model.",
                       .unused = kEuroUnused,
                       .has_head = false,
                       .read = read_eurobert,
                       .matches = never};
const Family kModernBert{.model_type = "modernbert",
                         .model_class = "ModernBertModel",
                         .architecture = "modern-bert",
                         .names = kModern,
                         .keys = {kModernKeys},
                         .wrapper = "model.",
                         .unused = kModernUnused,
                         .has_head = false,
                         .pre = "modern-bert",
                         .prepare = prepare_modern,
                         .classifier = &kModernClassifier,
                         .read = read_modern,
                         .matches = never};

}  // namespace millrace::convert
