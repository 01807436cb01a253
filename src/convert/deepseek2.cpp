// DeepSeek V2, V3 and R1, Kimi K2, GLM-4.7-Flash: latent attention, whose kv_b_proj is in two in GGUF.
#include "convert/names.h"

namespace millrace::convert {
namespace {

constexpr NameRule kLatent[] = {
    {"model.layers.#.self_attn.q_a_proj.weight", "blk.#.attn_q_a.weight"},
    {"model.layers.#.self_attn.q_a_layernorm.weight", "blk.#.attn_q_a_norm.weight"},
    {"model.layers.#.self_attn.q_b_proj.weight", "blk.#.attn_q_b.weight"},
    {"model.layers.#.self_attn.kv_a_proj_with_mqa.weight", "blk.#.attn_kv_a_mqa.weight"},
    {"model.layers.#.self_attn.kv_a_layernorm.weight", "blk.#.attn_kv_a_norm.weight"},
    {"model.layers.#.self_attn.kv_b_proj.weight", "blk.#.attn_k_b.weight", Form::latent_keys},
    {"model.layers.#.self_attn.kv_b_proj.weight", "blk.#.attn_v_b.weight", Form::latent_values},
    {"model.layers.#.self_attn.embed_q.weight", "blk.#.attn_k_b.weight"},  // MLX's
    {"model.layers.#.self_attn.unembed_out.weight", "blk.#.attn_v_b.weight"},
};
constexpr Names kNames[] = {kTopNames,    kAttentionNames,     kLatent,    kFfnNorm, kDenseNames,
                            kExpertNames, kSharedExpertsNames, kDraftNames};
constexpr KeyRule kKeys[] = {{"n_routed_experts", "expert_count"},
                             {"num_experts_per_tok", "expert_used_count"},
                             {"moe_intermediate_size", "expert_feed_forward_length"},
                             {"n_shared_experts", "expert_shared_count"},
                             {"first_k_dense_replace", "leading_dense_block_count"},
                             {"routed_scaling_factor", "expert_weights_scale", KeyRule::Kind::number},
                             {"kv_lora_rank", "attention.kv_lora_rank"},
                             {"q_lora_rank", "attention.q_lora_rank"},
                             {"v_head_dim", "attention.value_length_mla"},
                             {"num_nextn_predict_layers", "nextn_predict_layers"}};

constexpr std::int64_t kMost = 1 << 16;

/// Dense layers come first; GLM's class has a list where the others have their number.
void prepare_glm(Config& config) {
  const auto kinds = config.texts("mlp_layer_types");
  std::size_t dense = 0;
  while (dense < kinds.size() && kinds[dense] == "dense") ++dense;
  for (std::size_t i = dense; i < kinds.size(); ++i)
    if (kinds[i] != "sparse")
      config.fail(error(Code::unsupported,
                        "mlp_layer_types in config.json: layer {} is dense behind a mixture; this version has dense "
                        "layers in front alone",
                        i));
  config.set("first_k_dense_replace", kinds.empty() ? 1 : dense);
}

void read(Config& config, Header& header) {
  if (header.has("rope.dimension_count"))
    config.fail(error(Code::unsupported,
                      "partial_rotary_factor in config.json is not 1: this version rotates all channels that latent "
                      "attention keeps for positions"));
  const std::int64_t rank = config.required("kv_lora_rank", 1, kMost),
                     turned = config.required("qk_rope_head_dim", 2, kMost);
  header.set_integer("attention.head_count_kv", 1);  // latents are the keys of all heads
  header.set_integer("attention.key_length", rank + turned);
  header.set_integer("attention.value_length", rank);
  header.set_integer("attention.key_length_mla", config.required("qk_nope_head_dim", 1, kMost) + turned);
  header.set_integer("rope.dimension_count", turned);
  header.set_integer("attention.q_lora_rank", config.optional("q_lora_rank", 0, 0, kMost));
  config.expect("rope_interleave", true);
  config.expect("moe_layer_freq", 1);
  config.expect("hidden_act", "silu");
}

/// Sigmoids, a bias for the choice, groups.
void read_v3(Config& config, Header& header) {
  read(config, header);
  header.set_integer("expert_gating_func", kSigmoidGating);
  header.set("expert_weights_norm", config.flag("norm_topk_prob", true));
  header.set_integer("expert_group_count", config.optional("n_group", 1, 1, 1024));
  header.set_integer("expert_group_used_count", config.optional("topk_group", 1, 1, 1024));
  config.expect("scoring_func", "sigmoid");
}

void read_v2(Config& config, Header& header) {
  read(config, header);
  config.disregard({"head_dim", "n_group", "topk_group"});  // groups count by their method alone
  header.set_integer("expert_gating_func", kSoftmaxGating);
  config.expect("norm_topk_prob", false);
  config.expect("scoring_func", "softmax");
  if (config.text("topk_method", "greedy") == "group_limited_greedy") {
    header.set_integer("expert_group_count", config.optional("n_group", 1, 1, 1024));
    header.set_integer("expert_group_used_count", config.optional("topk_group", 1, 1, 1024));
  }
}

Status write(const Header& header, nlohmann::json& config) {
  const std::int64_t turned = header.integer("rope.dimension_count");
  if (!header.has("attention.key_length_mla"))
    return error(Code::unsupported, "files of 2024 (with attn_kv_b in one) are not exported");
  config["num_key_value_heads"] = header.integer("attention.head_count");
  config["qk_rope_head_dim"] = turned;
  config["qk_nope_head_dim"] = header.integer("attention.key_length_mla") - turned;
  if (header.integer("attention.q_lora_rank") == 0) config["q_lora_rank"] = nullptr;
  config.erase("head_dim");
  config["moe_layer_freq"] = 1;
  config["first_k_dense_replace"] = header.integer("leading_dense_block_count");
  if (header.has("rope.scaling.yarn_log_multiplier")) {
    const double all = header.number("rope.scaling.yarn_log_multiplier") * 10;
    for (const char* rope : {"rope_scaling", "rope_parameters"})
      if (config.contains(rope)) config[rope]["mscale"] = config[rope]["mscale_all_dim"] = all;
  }
  const bool sigmoid = header.integer("expert_gating_func", kSoftmaxGating) == kSigmoidGating;
  config["norm_topk_prob"] = header.flag("expert_weights_norm");
  config["scoring_func"] = sigmoid ? "sigmoid" : "softmax";
  config["topk_method"] = sigmoid                                    ? "noaux_tc"
                          : header.integer("expert_group_count") > 1 ? "group_limited_greedy"
                                                                     : "greedy";
  config["n_group"] = header.integer("expert_group_count", 1);
  config["topk_group"] = header.integer("expert_group_used_count", 1);
  return {};
}

bool is_v2(const Header& header) { return header.integer("expert_gating_func", kSoftmaxGating) == kSoftmaxGating; }

}  // namespace

const Family kDeepSeekV2{.model_type = "deepseek_v2",
                         .model_class = "DeepseekV2ForCausalLM",
                         .architecture = "deepseek2",
                         .names = kNames,
                         .keys = {kKeys},
                         .pre = "deepseek-llm",
                         .read = read_v2,
                         .write = write,
                         .matches = is_v2};
const Family kDeepSeekV3{.model_type = "deepseek_v3",
                         .model_class = "DeepseekV3ForCausalLM",
                         .architecture = "deepseek2",
                         .names = kNames,
                         .keys = {kKeys},
                         .pre = "deepseek-v3",
                         .read = read_v3,
                         .write = write};
const Family kKimiK2{.model_type = "kimi_k2",
                     .model_class = "DeepseekV3ForCausalLM",
                     .architecture = "deepseek2",
                     .names = kNames,
                     .keys = {kKeys},
                     .config_class = "deepseek_v3",
                     .pre = "kimi-k2",
                     .read = read_v3,
                     .write = write};
const Family kGlm4MoeLite{.model_type = "glm4_moe_lite",
                          .model_class = "Glm4MoeLiteForCausalLM",
                          .architecture = "deepseek2",
                          .names = kNames,
                          .keys = {kKeys},
                          .pre = "glm4",
                          .prepare = prepare_glm,
                          .read = read_v3,
                          .write = write};

}  // namespace millrace::convert
