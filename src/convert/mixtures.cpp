// Mixtures whose checkpoints differ by a few names and keys: OLMoE, ERNIE 4.5, dots.llm1, DeepSeek's of 2024, Ling 2,
// Hunyuan's, K-EXAONE, Trinity and Phi-3.5-MoE.

#include "convert/names.h"
#include "convert/rope.h"

namespace millrace::convert {
namespace {

constexpr Names kOlmoeNames[] = {kTopNames, kAttentionNames, kFfnNorm, kExpertNames};
constexpr Names kSharedNames[] = {kTopNames,    kAttentionNames,     kFfnNorm,   kDenseNames,
                                  kExpertNames, kSharedExpertsNames, kDraftNames};

constexpr KeyRule kOlmoeKeys[] = {{"num_experts", "expert_count"}, {"num_experts_per_tok", "expert_used_count"}};

/// The width of an expert is intermediate_size.
void read_olmoe(Config& config, Header& header) {
  header.set_integer("expert_feed_forward_length", header.integer("feed_forward_length"));
  config.expect("hidden_act", "silu");
  config.expect("norm_topk_prob", false);
  config.expect("clip_qkv", nullptr);
  config.disregard({"norm_topk_prob", "clip_qkv"});
}

Status write_olmoe(const Header&, nlohmann::json& config) {
  config["norm_topk_prob"] = false;
  config["clip_qkv"] = nullptr;
  return {};
}

// dots.llm1, DeepSeek's of 2024.
constexpr KeyRule kDotsKeys[] = {{"n_routed_experts", "expert_count"},
                                 {"num_experts_per_tok", "expert_used_count"},
                                 {"moe_intermediate_size", "expert_feed_forward_length"},
                                 {"n_shared_experts", "expert_shared_count"},
                                 {"first_k_dense_replace", "leading_dense_block_count"},
                                 {"routed_scaling_factor", "expert_weights_scale", KeyRule::Kind::number}};
constexpr KeyRule kGroupKeys[] = {{"norm_topk_prob", "expert_weights_norm", KeyRule::Kind::flag},
                                  {"n_group", "expert_group_count"},
                                  {"topk_group", "expert_group_used_count"}};

void read_dots1(Config& config, Header& header) {
  header.set_integer("expert_gating_func", kSigmoidGating);
  config.expect("hidden_act", "silu");
  for (const std::string& kind : config.texts("layer_types"))
    if (kind != "full_attention") config.expect("layer_types", "full_attention");
  config.disregard({"sliding_window", "max_window_layers"});  // of layers with a window, which are none
}

Status write_dots1(const Header& header, nlohmann::json& config) {
  config["first_k_dense_replace"] = header.integer("leading_dense_block_count");
  config["norm_topk_prob"] = header.flag("expert_weights_norm");
  config["n_group"] = header.integer("expert_group_count", 1);
  config["topk_group"] = header.integer("expert_group_used_count", 1);
  return {};
}

void read_deepseek(Config& config, Header& header) {
  header.set_integer("rope.dimension_count", header.integer("attention.key_length"));
  config.expect("hidden_act", "silu");
  config.expect("norm_topk_prob", false);
  config.expect("scoring_func", "softmax");
  config.expect("moe_layer_freq", 1);
}

Status write_deepseek(const Header& header, nlohmann::json& config) {
  config["first_k_dense_replace"] = header.integer("leading_dense_block_count");
  config["norm_topk_prob"] = false;
  config["scoring_func"] = "softmax";
  config["moe_layer_freq"] = 1;
  return {};
}

// Ling 2 and Ring 2.
constexpr NameRule kBailingTop[] = {
    {"model.word_embeddings.weight", "token_embd.weight"},
    {"model.norm.weight", "output_norm.weight"},
    {"lm_head.weight", "output.weight"},
};
constexpr NameRule kBailing[] = {
    {"model.layers.#.input_layernorm.weight", "blk.#.attn_norm.weight"},
    {"model.layers.#.attention.query_key_value.weight", "blk.#.attn_qkv.weight"},
    {"model.layers.#.attention.query_layernorm.weight", "blk.#.attn_q_norm.weight"},
    {"model.layers.#.attention.key_layernorm.weight", "blk.#.attn_k_norm.weight"},
    {"model.layers.#.attention.dense.weight", "blk.#.attn_output.weight"},
    {"model.layers.#.mlp.gate.expert_bias", "blk.#.exp_probs_b.bias"},
};
constexpr Names kBailingNames[] = {kBailingTop, kBailing, kFfnNorm, kDenseNames, kExpertNames, kSharedExpertsNames};
constexpr KeyRule kBailingKeys[] = {{"num_experts", "expert_count"},
                                    {"num_experts_per_tok", "expert_used_count"},
                                    {"moe_intermediate_size", "expert_feed_forward_length"},
                                    {"num_shared_experts", "expert_shared_count"},
                                    {"first_k_dense_replace", "leading_dense_block_count"},
                                    {"routed_scaling_factor", "expert_weights_scale", KeyRule::Kind::number}};

/// Ling 1 has the same model_type, and no norms of heads.
void read_bailing(Config& config, Header& header) {
  if (!config.flag("use_qk_norm", false))
    config.fail(error(Code::unsupported, "use_qk_norm in config.json is not true: this version converts Ling 2 alone"));
  header.set_integer("expert_gating_func", kSigmoidGating);
  const double part = config.number("partial_rotary_factor", 1);
  const std::int64_t dim = header.integer("attention.key_length");
  if (part != 1) header.set_integer("rope.dimension_count", static_cast<std::int64_t>(static_cast<double>(dim) * part));
  config.expect("hidden_act", "silu");
  config.expect("score_function", "sigmoid");
  config.expect("use_qkv_bias", false);
}

Status write_bailing(const Header& header, nlohmann::json& config) {
  config["use_qk_norm"] = true;
  config["score_function"] = "sigmoid";
  config["use_qkv_bias"] = config["use_bias"] = false;
  config["moe_router_enable_expert_bias"] = true;
  return write_dots1(header, config);
}

// ERNIE 4.5.
constexpr NameRule kErnie[] = {
    {"model.layers.#.mlp.moe_statics.e_score_correction_bias", "blk.#.exp_probs_b.bias", Form::vector},
    {"model.layers.#.mlp.gate.moe_statics.e_score_correction_bias", "blk.#.exp_probs_b.bias", Form::vector},
};
constexpr Names kErnieNames[] = {kErnie,      kTopNames,    kAttentionNames,    kFfnNorm,
                                 kDenseNames, kExpertNames, kSharedExpertsNames};
constexpr KeyRule kErnieKeys[] = {{"moe_num_experts", "expert_count"},
                                  {"moe_k", "expert_used_count"},
                                  {"moe_intermediate_size", "expert_feed_forward_length"},
                                  {"moe_num_shared_experts", "expert_shared_count"},
                                  {"moe_layer_start_index", "leading_dense_block_count"},
                                  {"moe_layer_interval", "interleave_moe_layer_step"}};

void read_ernie(Config& config, Header& header) {
  header.set_integer("rope.dimension_count", header.integer("attention.key_length"));
  header.set_integer("expert_shared_feed_forward_length",
                     header.integer("expert_shared_count") * header.integer("expert_feed_forward_length"));
  const std::int64_t end = config.has("moe_layer_end_index") ? config.required("moe_layer_end_index", -1, 1 << 16) : -1;
  if (end != -1 && end < header.layers() - 1)
    config.fail(error(Code::unsupported,
                      "moe_layer_end_index in config.json is {}: this version has no dense layers behind mixtures",
                      end));
  config.expect("hidden_act", "silu");
  config.disregard({"moe_norm_min", "use_bias"});  // far below any sum; follows from the tensors
}

Status write_ernie(const Header& header, nlohmann::json& config) {
  config["moe_layer_end_index"] = header.layers() - 1;
  config["use_bias"] = false;
  return {};
}

// Hunyuan A13B, and HY3, whose dense layers come first.
constexpr NameRule kHunyuanMoeOwn[] = {
    {"model.layers.#.self_attn.query_layernorm.weight", "blk.#.attn_q_norm.weight"},
    {"model.layers.#.self_attn.key_layernorm.weight", "blk.#.attn_k_norm.weight"},
    {"model.layers.#.mlp.gate.wg.weight", "blk.#.ffn_gate_inp.weight"},
    {"model.layers.#.mlp.shared_mlp.gate_proj.weight", "blk.#.ffn_gate_shexp.weight"},
    {"model.layers.#.mlp.shared_mlp.up_proj.weight", "blk.#.ffn_up_shexp.weight"},
    {"model.layers.#.mlp.shared_mlp.down_proj.weight", "blk.#.ffn_down_shexp.weight"},
};
constexpr Names kHunyuanMoeNames[] = {kTopNames, kAttentionNames, kHunyuanMoeOwn, kFfnNorm, kExpertNames};
constexpr KeyRule kHunyuanKeys[] = {{"num_experts", "expert_count"}, {"moe_topk", "expert_used_count"}};

/// Per-layer lists with equal elements.
void prepare_hunyuan(Config& config) {
  for (const char* key : {"num_experts", "moe_topk", "moe_intermediate_size", "num_shared_expert"}) {
    const nlohmann::json* list = config.find(key);
    if (list == nullptr || !list->is_array() || list->empty()) continue;
    const nlohmann::json first = list->front();
    for (const nlohmann::json& each : *list)
      if (each != first)
        config.fail(error(Code::unsupported,
                          "{} in config.json differs by layer: this version has such models with one "
                          "number for all alone",
                          key));
    config.set(key, first);
  }
}

void read_hunyuan(Config& config, Header& header) {
  const std::int64_t width = header.integer("feed_forward_length");
  header.set_integer("expert_feed_forward_length", config.optional("moe_intermediate_size", width, 1, 1 << 20));
  header.set_integer("expert_shared_feed_forward_length", config.optional("num_shared_expert", 1, 1, 64) * width);
  config.expect("hidden_act", "silu");
}

constexpr NameRule kHy3[] = {
    {"model.layers.#.mlp.e_score_correction_bias", "blk.#.exp_probs_b"},
    {"model.layers.#.mlp.expert_bias", "blk.#.exp_probs_b"},
    {"model.layers.#.mlp.router.gate.weight", "blk.#.ffn_gate_inp.weight"},
    {"model.layers.#.mlp.shared_mlp.gate_proj.weight", "blk.#.ffn_gate_shexp.weight"},
    {"model.layers.#.mlp.shared_mlp.up_proj.weight", "blk.#.ffn_up_shexp.weight"},
    {"model.layers.#.mlp.shared_mlp.down_proj.weight", "blk.#.ffn_down_shexp.weight"},
};
constexpr Names kHy3Names[] = {kTopNames,    kAttentionNames,     kFfnNorm, kDenseNames,
                               kExpertNames, kSharedExpertsNames, kHy3,     kDraftNames};
constexpr KeyRule kHy3Keys[] = {{"router_scaling_factor", "expert_weights_scale", KeyRule::Kind::number}};

void read_hy3(Config& config, Header& header) {
  header.set_integer("leading_dense_block_count", leading_dense(config, 1));
  header.set_integer("expert_shared_feed_forward_length",
                     config.optional("num_shared_experts", 1, 1, 64) * header.integer("expert_feed_forward_length"));
  header.set_integer("expert_gating_func", kSigmoidGating);
  header.set("expert_weights_norm", true);
  config.expect("hidden_act", "silu");
  config.disregard({"enable_moe_fp32_combine"});  // sums are in 32 bits
}

Status write_hy3(const Header& header, nlohmann::json& config) {
  write_leading_dense(header, config);
  config["num_shared_experts"] =
      header.integer("expert_shared_feed_forward_length", header.integer("expert_feed_forward_length")) /
      header.integer("expert_feed_forward_length");
  return {};
}

constexpr KeyRule kExaoneKeys[] = {{"num_shared_experts", "expert_shared_count"},
                                   {"routed_scaling_factor", "expert_weights_scale", KeyRule::Kind::number}};
constexpr NameRule kExaone[] = {
    {"model.layers.#.mlp.e_score_correction_bias", "blk.#.exp_probs_b.bias"},
};
constexpr Names kExaoneNames[] = {kTopNames,    kAttentionNames,     kFfnNorm, kDenseNames,
                                  kExpertNames, kSharedExpertsNames, kExaone,  kDraftNames};

void read_exaone(Config& config, Header& header) {
  header.set_integer("leading_dense_block_count", leading_dense(config, 1));
  header.set_integer("expert_gating_func", kSigmoidGating);
  read_windows(config, header);
  config.expect("hidden_act", "silu");
}

Status write_exaone(const Header& header, nlohmann::json& config) {
  write_leading_dense(header, config);
  write_windows(header, 4, config);
  config["norm_topk_prob"] = header.flag("expert_weights_norm", true);
  config["n_group"] = header.integer("expert_group_count", 1);
  config["topk_group"] = header.integer("expert_group_used_count", 1);
  return {};
}

constexpr KeyRule kTrinityKeys[] = {{"num_shared_experts", "expert_shared_count"},
                                    {"num_dense_layers", "leading_dense_block_count"},
                                    {"route_scale", "expert_weights_scale", KeyRule::Kind::number}};
constexpr NameRule kTrinity[] = {
    {"model.layers.#.self_attn.gate_proj.weight", "blk.#.attn_gate.weight"},
    {"model.layers.#.pre_mlp_layernorm.weight", "blk.#.ffn_norm.weight"},
    {"model.layers.#.post_mlp_layernorm.weight", "blk.#.post_ffw_norm.weight"},
    {"model.layers.#.mlp.router.gate.weight", "blk.#.ffn_gate_inp.weight"},
    {"model.layers.#.mlp.expert_bias", "blk.#.exp_probs_b.bias"},
};
constexpr Names kTrinityNames[] = {kTrinity,    kTopNames,    kAttentionNames,    kPostAttentionNorm,
                                   kDenseNames, kExpertNames, kSharedExpertsNames};

/// Readers scale embeddings by the square root of their width, and assume full attention in every fourth layer.
void read_trinity(Config& config, Header& header) {
  header.set_integer("expert_gating_func", kSigmoidGating);
  header.set("expert_weights_norm", true);
  read_windows(config, header);
  config.expect("mup_enabled", true);
  config.expect("hidden_act", "silu");
  config.expect("n_group", 1);
  config.disregard({"global_attn_every_n_layers"});  // layer_types takes precedence
  if (!config.flag("mup_enabled", false))
    config.fail(error(Code::unsupported, "mup_enabled in config.json is not true: such models' embeddings are scaled"));
}

Status write_trinity(const Header& header, nlohmann::json& config) {
  config["mup_enabled"] = true;
  write_windows(header, 4, config);
  return {};
}

// Command A's mixture.
constexpr Names kCohereNames[] = {kTopNames, kAttentionNames, kDenseNames, kExpertNames, kSharedExpertsNames};
constexpr KeyRule kCohereExpertKeys[] = {{"num_experts", "expert_count"}, {"num_experts_per_tok", "expert_used_count"}};
constexpr std::int64_t kSoftmaxOfChosen = 3;  // expert_gating_func

/// Leading dense layers, with their own key for the width, then experts beside a shared one.
void read_cohere2moe(Config& config, Header& header) {
  constexpr std::int64_t kMost = 1 << 20;
  header.set_integer("rope.dimension_count", header.integer("attention.key_length"));
  read_windows(config, header);
  config.expect("hidden_act", "silu");
  const std::int64_t width = header.integer("feed_forward_length"),
                     shared = config.optional("num_shared_experts", 0, 0, 64);
  const std::int64_t leading = leading_dense(config, 0);
  if (config.texts("layer_types").empty())
    config.fail(error(Code::unsupported, "layer_types in config.json is missing: this version wants the list"));
  const bool sigmoid = config.text("expert_selection_fn", "softmax") == "sigmoid";
  if (!sigmoid) config.expect("expert_selection_fn", "softmax");
  header.set_integer("leading_dense_block_count", leading);
  header.set_integer("feed_forward_length", config.optional("prefix_dense_intermediate_size", width, 1, kMost));
  header.set_integer("expert_feed_forward_length", width);
  header.set_integer("expert_shared_count", shared);
  header.set_integer("expert_shared_feed_forward_length", shared * width);
  header.set_integer("expert_gating_func", sigmoid ? kSigmoidGating : kSoftmaxOfChosen);
  header.set("expert_weights_norm", config.flag("norm_topk_prob", true) && sigmoid);
  if (leading > 0) config.expect("prefix_dense_sliding_window_pattern", 1);
  if (shared > 0) config.expect("shared_expert_combination_strategy", "average");
  config.disregard({"prefix_dense_sliding_window_pattern", "shared_expert_combination_strategy",
                    "sliding_window_pattern", "router_jitter_noise"});
}

Status write_cohere2moe(const Header& header, nlohmann::json& config) {
  write_windows(header, 4, config);
  write_leading_dense(header, config);
  config["prefix_dense_intermediate_size"] = header.integer("feed_forward_length");
  config["prefix_dense_sliding_window_pattern"] = 1;
  config["intermediate_size"] = header.integer("expert_feed_forward_length");
  config["num_shared_experts"] = header.integer("expert_shared_count");
  const bool sigmoid = header.integer("expert_gating_func", kSigmoidGating) == kSigmoidGating;
  config["expert_selection_fn"] = sigmoid ? "sigmoid" : "softmax";
  config["norm_topk_prob"] = header.flag("expert_weights_norm");
  config["shared_expert_combination_strategy"] = "average";
  return {};
}

// Phi-3.5-MoE.
constexpr NameRule kPhiMoeBiases[] = {
    {"model.layers.#.input_layernorm.bias", "blk.#.attn_norm.bias"},
    {"model.layers.#.post_attention_layernorm.bias", "blk.#.ffn_norm.bias"},
    {"model.norm.bias", "output_norm.bias"},
    {"lm_head.bias", "output.bias"},
};
constexpr Names kPhiMoeNames[] = {kTopNames, kAttentionNames, kFfnNorm, kPhiMoeBiases, kMixtralExperts};
constexpr KeyRule kPhiMoeKeys[] = {{"num_local_experts", "expert_count"}, {"num_experts_per_tok", "expert_used_count"}};

/// GGUF has one attention factor for both sets of RoPE factors.
void read_phimoe(Config& config, Header& header) {
  header.set_integer("rope.dimension_count", header.integer("attention.key_length"));
  shorten_to_window(config, header);
  config.expect("hidden_act", "silu");
  config.expect("router_jitter_noise", 0.01);
  config.expect("num_experts_per_tok", 2);
  config.disregard({"attention_bias", "lm_head_bias"});  // follow from the tensors
  config.disregard({"input_jitter_noise"});              // of training
  Config rope = rotation_of(config);
  if (!rope.has("short_mscale")) return;
  const double magnitude = rope.number("short_mscale", 1);
  rope.expect("long_mscale", magnitude);
  header.set_number("rope.scaling.attn_factor", magnitude);
  config.fail(rope.status());
}

Status write_phimoe(const Header& header, nlohmann::json& config) {
  config["sliding_window"] = nullptr;
  config["router_jitter_noise"] = 0.01;
  config["lm_head_bias"] = true;
  if (header.text("rope.scaling.type", "none") != "longrope") return {};
  nlohmann::json& rope = config["rope_parameters"];
  rope["short_mscale"] = rope["long_mscale"] = header.number("rope.scaling.attn_factor", 1);
  rope["original_max_position_embeddings"] = header.integer("rope.scaling.original_context_length");
  return {};
}

}  // namespace

const Family kOlmoe{.model_type = "olmoe",
                    .model_class = "OlmoeForCausalLM",
                    .architecture = "olmoe",
                    .names = kOlmoeNames,
                    .keys = {kOlmoeKeys},
                    .read = read_olmoe,
                    .write = write_olmoe};
const Family kAfmoe{.model_type = "afmoe",
                    .model_class = "AfmoeForCausalLM",
                    .architecture = "afmoe",
                    .names = kTrinityNames,
                    .keys = {kMixtureKeys, kTrinityKeys},
                    .pre = "afmoe",
                    .read = read_trinity,
                    .write = write_trinity};
const Family kDots1{.model_type = "dots1",
                    .model_class = "Dots1ForCausalLM",
                    .architecture = "dots1",
                    .names = kSharedNames,
                    .keys = {kDotsKeys, kGroupKeys},
                    .read = read_dots1,
                    .write = write_dots1};
const Family kDeepSeek{.model_type = "deepseek",
                       .model_class = "DeepseekForCausalLM",
                       .architecture = "deepseek",
                       .names = kSharedNames,
                       .keys = {kDotsKeys},
                       .neighbours = true,
                       .pre = "deepseek-llm",
                       .read = read_deepseek,
                       .write = write_deepseek};
const Family kBailingMoe2{.model_type = "bailing_moe",
                          .model_class = "BailingMoeV2ForCausalLM",
                          .architecture = "bailingmoe2",
                          .names = kBailingNames,
                          .keys = {kBailingKeys, kGroupKeys},
                          .pre = "bailingmoe2",
                          .read = read_bailing,
                          .write = write_bailing};
const Family kErnie45Moe{.model_type = "ernie4_5_moe",
                         .model_class = "Ernie4_5_MoeForCausalLM",
                         .architecture = "ernie4_5-moe",
                         .names = kErnieNames,
                         .keys = {kErnieKeys},
                         .read = read_ernie,
                         .write = write_ernie};
const Family kHunyuanMoe{.model_type = "hunyuan_v1_moe",
                         .model_class = "HunYuanMoEV1ForCausalLM",
                         .architecture = "hunyuan-moe",
                         .names = kHunyuanMoeNames,
                         .keys = {kHunyuanKeys},
                         .pre = "hunyuan",
                         .prepare = prepare_hunyuan,
                         .read = read_hunyuan};
const Family kHyV3{.model_type = "hy_v3",
                   .model_class = "HYV3ForCausalLM",
                   .architecture = "hy_v3",
                   .names = kHy3Names,
                   .keys = {kMixtureKeys, kHy3Keys},
                   .read = read_hy3,
                   .write = write_hy3};
const Family kExaoneMoe{.model_type = "exaone_moe",
                        .model_class = "ExaoneMoeForCausalLM",
                        .architecture = "exaone-moe",
                        .names = kExaoneNames,
                        .keys = {kMixtureKeys, kExaoneKeys, kGroupKeys},
                        .pre = "exaone-moe",
                        .read = read_exaone,
                        .write = write_exaone};
const Family kCohere2Moe{.model_type = "cohere2_moe",
                         .model_class = "Cohere2MoeForCausalLM",
                         .architecture = "cohere2moe",
                         .names = kCohereNames,
                         .keys = {kCohereKeys, kCohereExpertKeys},
                         .pre = "command-r",
                         .read = read_cohere2moe,
                         .write = write_cohere2moe};

const Family kPhiMoe{.model_type = "phimoe",
                     .model_class = "PhimoeForCausalLM",
                     .architecture = "phimoe",
                     .names = kPhiMoeNames,
                     .keys = {kPhiMoeKeys},
                     .read = read_phimoe,
                     .write = write_phimoe};

}  // namespace millrace::convert
