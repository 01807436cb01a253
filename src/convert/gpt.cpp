// Decoders from before Llama: GPT-2 and StarCoder, GPT-NeoX, Falcon, BLOOM, MPT. Most have q, k and v in one matrix,
// grouped by head or group of heads.
#include "convert/names.h"

namespace millrace::convert {
namespace {

constexpr std::int64_t kMost = 1 << 20;
constexpr std::string_view kPrefix = "transformer.";

constexpr NameRule kGptTop[] = {
    {"transformer.wte.weight", "token_embd.weight"},     {"transformer.wpe.weight", "position_embd.weight"},
    {"transformer.ln_f.weight", "output_norm.weight"},   {"transformer.ln_f.bias", "output_norm.bias"},
    {"transformer.norm_f.weight", "output_norm.weight"}, {"lm_head.weight", "output.weight"},
};
constexpr NameRule kGptNorms[] = {
    {"transformer.h.#.ln_1.weight", "blk.#.attn_norm.weight"},
    {"transformer.h.#.ln_1.bias", "blk.#.attn_norm.bias"},
    {"transformer.h.#.ln_2.weight", "blk.#.ffn_norm.weight"},
    {"transformer.h.#.ln_2.bias", "blk.#.ffn_norm.bias"},
    {"transformer.h.#.attn.c_attn.bias", "blk.#.attn_qkv.bias"},
    {"transformer.h.#.attn.c_proj.bias", "blk.#.attn_output.bias"},
    {"transformer.h.#.mlp.c_fc.bias", "blk.#.ffn_up.bias"},
    {"transformer.h.#.mlp.c_proj.bias", "blk.#.ffn_down.bias"},
};
constexpr NameRule kGpt2Matrices[] = {
    {"transformer.h.#.attn.c_attn.weight", "blk.#.attn_qkv.weight", Form::transposed},
    {"transformer.h.#.attn.c_proj.weight", "blk.#.attn_output.weight", Form::transposed},
    {"transformer.h.#.mlp.c_fc.weight", "blk.#.ffn_up.weight", Form::transposed},
    {"transformer.h.#.mlp.c_proj.weight", "blk.#.ffn_down.weight", Form::transposed},
};
constexpr NameRule kBigCodeMatrices[] = {
    {"transformer.h.#.attn.c_attn.weight", "blk.#.attn_qkv.weight"},
    {"transformer.h.#.attn.c_proj.weight", "blk.#.attn_output.weight"},
    {"transformer.h.#.mlp.c_fc.weight", "blk.#.ffn_up.weight"},
    {"transformer.h.#.mlp.c_proj.weight", "blk.#.ffn_down.weight"},
};
constexpr Names kGpt2Names[] = {kGptTop, kGptNorms, kGpt2Matrices};
constexpr Names kBigCodeNames[] = {kGptTop, kGptNorms, kBigCodeMatrices};

constexpr NameRule kNeox[] = {
    {"gpt_neox.embed_in.weight", "token_embd.weight"},
    {"gpt_neox.final_layer_norm.weight", "output_norm.weight"},
    {"gpt_neox.final_layer_norm.bias", "output_norm.bias"},
    {"lm_head.weight", "output.weight"},
    {"embed_out.weight", "output.weight"},
    {"gpt_neox.layers.#.input_layernorm.weight", "blk.#.attn_norm.weight"},
    {"gpt_neox.layers.#.input_layernorm.bias", "blk.#.attn_norm.bias"},
    {"gpt_neox.layers.#.post_attention_layernorm.weight", "blk.#.ffn_norm.weight"},
    {"gpt_neox.layers.#.post_attention_layernorm.bias", "blk.#.ffn_norm.bias"},
    {"gpt_neox.layers.#.attention.query_key_value.weight", "blk.#.attn_qkv.weight", Form::grouped_qkv},
    {"gpt_neox.layers.#.attention.query_key_value.bias", "blk.#.attn_qkv.bias", Form::grouped_qkv},
    {"gpt_neox.layers.#.attention.dense.weight", "blk.#.attn_output.weight"},
    {"gpt_neox.layers.#.attention.dense.bias", "blk.#.attn_output.bias"},
    {"gpt_neox.layers.#.mlp.dense_h_to_4h.weight", "blk.#.ffn_up.weight"},
    {"gpt_neox.layers.#.mlp.dense_h_to_4h.bias", "blk.#.ffn_up.bias"},
    {"gpt_neox.layers.#.mlp.dense_4h_to_h.weight", "blk.#.ffn_down.weight"},
    {"gpt_neox.layers.#.mlp.dense_4h_to_h.bias", "blk.#.ffn_down.bias"},
};
constexpr Names kNeoxNames[] = {kNeox};

/// BLOOM's and Falcon's.
constexpr NameRule kSelfAttention[] = {
    {"transformer.word_embeddings.weight", "token_embd.weight"},
    {"transformer.word_embeddings_layernorm.weight", "token_embd_norm.weight"},
    {"transformer.word_embeddings_layernorm.bias", "token_embd_norm.bias"},
    {"transformer.h.#.input_layernorm.weight", "blk.#.attn_norm.weight"},
    {"transformer.h.#.input_layernorm.bias", "blk.#.attn_norm.bias"},
    {"transformer.h.#.self_attention.query_key_value.weight", "blk.#.attn_qkv.weight", Form::grouped_qkv},
    {"transformer.h.#.self_attention.query_key_value.bias", "blk.#.attn_qkv.bias", Form::grouped_qkv},
    {"transformer.h.#.self_attention.dense.weight", "blk.#.attn_output.weight"},
    {"transformer.h.#.self_attention.dense.bias", "blk.#.attn_output.bias"},
    {"transformer.h.#.post_attention_layernorm.weight", "blk.#.ffn_norm.weight"},
    {"transformer.h.#.post_attention_layernorm.bias", "blk.#.ffn_norm.bias"},
    {"transformer.h.#.mlp.dense_h_to_4h.weight", "blk.#.ffn_up.weight"},
    {"transformer.h.#.mlp.dense_h_to_4h.bias", "blk.#.ffn_up.bias"},
    {"transformer.h.#.mlp.dense_4h_to_h.weight", "blk.#.ffn_down.weight"},
    {"transformer.h.#.mlp.dense_4h_to_h.bias", "blk.#.ffn_down.bias"},
};
constexpr Names kBloomNames[] = {kSelfAttention, kGptTop};

/// Falcon 40B and 180B have separate norms: GGUF's attn_norm is the feed-forward's, attn_norm_2 that of attention.
constexpr NameRule kTwoNorms[] = {
    {"transformer.h.#.ln_mlp.weight", "blk.#.attn_norm.weight"},
    {"transformer.h.#.ln_mlp.bias", "blk.#.attn_norm.bias"},
    {"transformer.h.#.ln_attn.weight", "blk.#.attn_norm_2.weight"},
    {"transformer.h.#.ln_attn.bias", "blk.#.attn_norm_2.bias"},
};
constexpr Names kFalconNames[] = {kSelfAttention, kTwoNorms, kGptTop};

constexpr NameRule kMptOwn[] = {
    {"transformer.blocks.#.norm_1.weight", "blk.#.attn_norm.weight"},
    {"transformer.blocks.#.norm_2.weight", "blk.#.ffn_norm.weight"},
    {"transformer.blocks.#.attn.Wqkv.weight", "blk.#.attn_qkv.weight"},
    {"transformer.blocks.#.attn.out_proj.weight", "blk.#.attn_output.weight"},
    {"transformer.blocks.#.ffn.up_proj.weight", "blk.#.ffn_up.weight"},
    {"transformer.blocks.#.ffn.down_proj.weight", "blk.#.ffn_down.weight"},
};
constexpr Names kMptNames[] = {kMptOwn, kGptTop};

/// These families' spellings of common keys.
struct Spelling {
  const char *theirs, *common;
};
constexpr Spelling kGptSpelling[] = {{"n_layer", "num_hidden_layers"},
                                     {"n_embd", "hidden_size"},
                                     {"n_head", "num_attention_heads"},
                                     {"n_positions", "max_position_embeddings"},
                                     {"n_inner", "intermediate_size"}};
constexpr Spelling kBloomSpelling[] = {
    {"n_layer", "num_hidden_layers"}, {"n_head", "num_attention_heads"}, {"seq_length", "max_position_embeddings"}};
constexpr Spelling kEarlyBloomSpelling[] = {{"n_embed", "hidden_size"}};  // read, and not written any more
constexpr Spelling kMptSpelling[] = {{"n_layers", "num_hidden_layers"},
                                     {"d_model", "hidden_size"},
                                     {"n_heads", "num_attention_heads"},
                                     {"max_seq_len", "max_position_embeddings"}};
constexpr Spelling kFalconSpelling[] = {{"ffn_hidden_size", "intermediate_size"}};

void spell(Config& config, std::span<const Spelling> spellings) {
  for (const Spelling& one : spellings)
    if (const nlohmann::json* value = config.find(one.theirs); value != nullptr) config.set(one.common, *value);
}

void spell_back(std::span<const Spelling> spellings, nlohmann::json& config) {
  for (const Spelling& one : spellings) {
    if (config.contains(one.common)) config[one.theirs] = config[one.common];
    config.erase(one.common);
  }
}

/// No RoPE; the head dim is the model dim divided by the heads.
void leave_out_what_they_lack(nlohmann::json& config) {
  for (const char* key : {"rope_parameters", "rope_theta", "rope_scaling", "head_dim", "hidden_act"}) config.erase(key);
}

void prepare_gpt(Config& config) { spell(config, kGptSpelling); }
void prepare_bloom(Config& config) {
  spell(config, kBloomSpelling);
  spell(config, kEarlyBloomSpelling);
}
void prepare_mpt(Config& config) { spell(config, kMptSpelling); }
void prepare_falcon(Config& config) { spell(config, kFalconSpelling); }

/// The feed-forward is four times as wide as the model by default.
void set_ff(Config& config, Header& header) {
  const std::int64_t usual = 4 * header.integer("embedding_length");
  header.set_integer("feed_forward_length", config.optional("intermediate_size", usual, 1, kMost));
}

constexpr KeyRule kEps[] = {{"layer_norm_epsilon", "attention.layer_norm_epsilon", KeyRule::Kind::number}};
constexpr KeyRule kNeoxKeys[] = {{"layer_norm_eps", "attention.layer_norm_epsilon", KeyRule::Kind::number},
                                 {"use_parallel_residual", "use_parallel_residual", KeyRule::Kind::flag}};

/// Readers of GGUF compute GELU in its tanh form.
void expect_tanh(Config& config, std::string_view key) {
  const std::string activation = config.text(key, "gelu_new");
  if (activation != "gelu_new" && activation != "gelu_fast") config.expect(key, "gelu_pytorch_tanh");
}

void read_gpt2(Config& config, Header& header) {
  set_ff(config, header);
  expect_tanh(config, "activation_function");
  config.expect("scale_attn_weights", true);
  config.expect("add_cross_attention", false);
  config.expect("scale_attn_by_inverse_layer_idx", false);
  config.disregard({"reorder_and_upcast_attn", "summary_first_dropout", "summary_activation", "summary_proj_to_labels",
                    "summary_type", "summary_use_proj"});  // of precision, of training, of other heads
}

void read_big_code(Config& config, Header& header) {
  set_ff(config, header);
  expect_tanh(config, "activation_function");
  config.expect("scale_attn_weights", true);
  config.expect("add_cross_attention", false);
  config.expect("multi_query", true);
  header.set_integer("attention.head_count_kv", 1);
  config.disregard({"attention_softmax_in_fp32", "scale_attention_softmax_in_fp32"});
}

Status write_gpt(const Header&, nlohmann::json& config) {
  spell_back(kGptSpelling, config);
  leave_out_what_they_lack(config);
  config["activation_function"] = "gelu_new";
  return {};
}

void read_neox(Config& config, Header&) {
  config.expect("hidden_act", "gelu");
  config.disregard({"attention_bias", "classifier_dropout"});  // told by the tensors; of training
}

Status write_neox(const Header&, nlohmann::json& config) {
  config["hidden_act"] = "gelu";
  config["attention_bias"] = true;
  return {};
}

void read_falcon(Config& config, Header& header) {
  const std::int64_t heads = header.integer("attention.head_count");
  const bool grouped = config.flag("new_decoder_architecture", false), shared = config.flag("multi_query", true);
  const std::int64_t kv_heads = config.optional("num_kv_heads", heads, 1, kMost);
  header.set_integer("attention.head_count_kv", grouped ? kv_heads : shared ? 1 : heads);
  set_ff(config, header);
  config.expect("alibi", false);
  config.expect("activation", "gelu");
  if (!grouped) config.expect("parallel_attn", true);
  config.disregard({"bias", "num_ln_in_parallel_attn", "parallel_attn"});  // told by the tensors
}

Status write_falcon(const Header& header, nlohmann::json& config) {
  const std::int64_t kv_heads = header.integer("attention.head_count_kv", 1);
  if (kv_heads > 1 && kv_heads < header.integer("attention.head_count"))
    return error(Code::unsupported, "Falcon with {} KV heads is not written in the form of a checkpoint", kv_heads);
  spell_back(kFalconSpelling, config);
  for (const char* key : {"head_dim", "hidden_act"}) config.erase(key);  // the first is made of others there
  config["activation"] = "gelu";
  config["new_decoder_architecture"] = false;
  config["multi_query"] = kv_heads == 1;
  config["parallel_attn"] = true;
  config["num_kv_heads"] = kv_heads;
  return {};
}

void read_bloom(Config& config, Header& header) {
  constexpr std::int64_t kUsualContext = 2048;
  if (!header.has("context_length")) header.set_integer("context_length", kUsualContext);
  set_ff(config, header);
  config.expect("apply_residual_connection_post_layernorm", false);
  config.disregard({"slow_but_exact"});
}

Status write_bloom(const Header&, nlohmann::json& config) {
  spell_back(kBloomSpelling, config);
  config.erase("intermediate_size");
  leave_out_what_they_lack(config);
  return {};
}

void read_mpt(Config& config, Header& header) {
  Config attention = config.within("attn_config");
  const std::int64_t ratio = config.optional("expansion_ratio", 4, 1, 1024);
  header.set_integer("feed_forward_length", ratio * header.integer("embedding_length"));
  header.set_number("attention.max_alibi_bias", attention.number("alibi_bias_max", 8));
  attention.expect("alibi", true);
  attention.expect("qk_ln", false);
  attention.expect("prefix_lm", false);
  for (const char* key : {"clip_qkv", "softmax_scale"})
    if (attention.has(key))
      config.fail(error(Code::unsupported, "attn_config.{} in config.json: this version knows no model with it", key));
  config.fail(attention.status());
  config.expect("no_bias", true);
  config.disregard({"learned_pos_emb", "logit_scale"});  // transformers' class has none of both
}

Status write_mpt(const Header& header, nlohmann::json& config) {
  const auto most = static_cast<std::int64_t>(header.number("attention.max_alibi_bias", 8));
  config["attn_config"] = {{"alibi", true}, {"alibi_bias_max", most}};
  config["expansion_ratio"] = header.integer("feed_forward_length") / header.integer("embedding_length", 1);
  spell_back(kMptSpelling, config);
  config["no_bias"] = true;
  config.erase("intermediate_size");
  leave_out_what_they_lack(config);
  return {};
}

}  // namespace

const Family kGpt2{.model_type = "gpt2",
                   .model_class = "GPT2LMHeadModel",
                   .architecture = "gpt2",
                   .names = kGpt2Names,
                   .keys = {kEps},
                   .prefix = kPrefix,
                   .pre = "gpt-2",
                   .prepare = prepare_gpt,
                   .read = read_gpt2,
                   .write = write_gpt};
const Family kGptBigCode{.model_type = "gpt_bigcode",
                         .model_class = "GPTBigCodeForCausalLM",
                         .architecture = "starcoder",
                         .names = kBigCodeNames,
                         .keys = {kEps},
                         .prefix = kPrefix,
                         .pre = "starcoder",
                         .prepare = prepare_gpt,
                         .read = read_big_code,
                         .write = write_gpt};
const Family kGptNeox{.model_type = "gpt_neox",
                      .model_class = "GPTNeoXForCausalLM",
                      .architecture = "gptneox",
                      .names = kNeoxNames,
                      .keys = {kNeoxKeys},
                      .pre = "olmo",
                      .read = read_neox,
                      .write = write_neox};
const Family kFalcon{.model_type = "falcon",
                     .model_class = "FalconForCausalLM",
                     .architecture = "falcon",
                     .names = kFalconNames,
                     .keys = {kEps},
                     .prefix = kPrefix,
                     .pre = "falcon",
                     .prepare = prepare_falcon,
                     .read = read_falcon,
                     .write = write_falcon};
const Family kBloom{.model_type = "bloom",
                    .model_class = "BloomForCausalLM",
                    .architecture = "bloom",
                    .names = kBloomNames,
                    .keys = {kEps},
                    .prefix = kPrefix,
                    .pre = "bloom",
                    .prepare = prepare_bloom,
                    .read = read_bloom,
                    .write = write_bloom};
const Family kMpt{.model_type = "mpt",
                  .model_class = "MptForCausalLM",
                  .architecture = "mpt",
                  .names = kMptNames,
                  .keys = {kEps},
                  .prefix = kPrefix,
                  .pre = "mpt",
                  .prepare = prepare_mpt,
                  .read = read_mpt,
                  .write = write_mpt};

}  // namespace millrace::convert
