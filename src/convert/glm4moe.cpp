// GLM-4.5 to 4.7, and MiniMax-M2: routers of sigmoids that choose with a bias.
#include "convert/names.h"
#include "convert/rope.h"

namespace millrace::convert {
namespace {

constexpr Names kGlm4moeNames[] = {kTopNames,    kAttentionNames,     kPostAttentionNorm, kDenseNames,
                                   kExpertNames, kSharedExpertsNames, kDraftNames};
constexpr KeyRule kGlm4moeKeys[] = {{"n_routed_experts", "expert_count"},
                                    {"num_experts_per_tok", "expert_used_count"},
                                    {"moe_intermediate_size", "expert_feed_forward_length"},
                                    {"n_shared_experts", "expert_shared_count"},
                                    {"first_k_dense_replace", "leading_dense_block_count"},
                                    {"routed_scaling_factor", "expert_weights_scale", KeyRule::Kind::number},
                                    {"norm_topk_prob", "expert_weights_norm", KeyRule::Kind::flag},
                                    {"n_group", "expert_group_count"},
                                    {"topk_group", "expert_group_used_count"},
                                    {"num_nextn_predict_layers", "nextn_predict_layers"}};

void read_glm4moe(Config& config, Header& header) {
  header.set_integer("expert_gating_func", kSigmoidGating);
  config.expect("hidden_act", "silu");
  read_sections(config, header);
}

Status write_glm4moe(const Header& header, nlohmann::json& config) {
  write_sections(header, false, config);
  config["first_k_dense_replace"] = header.integer("leading_dense_block_count");
  config["attention_bias"] = true;
  config["num_nextn_predict_layers"] = header.integer("nextn_predict_layers");
  return {};
}

constexpr NameRule kMiniMaxExperts[] = {
    {"model.layers.#.block_sparse_moe.gate.weight", "blk.#.ffn_gate_inp.weight"},
    {"model.layers.#.block_sparse_moe.e_score_correction_bias", "blk.#.exp_probs_b.bias"},
    {"model.layers.#.block_sparse_moe.experts.*.w1.weight", "blk.#.ffn_gate_exps.weight", Form::experts},
    {"model.layers.#.block_sparse_moe.experts.*.w3.weight", "blk.#.ffn_up_exps.weight", Form::experts},
    {"model.layers.#.block_sparse_moe.experts.*.w2.weight", "blk.#.ffn_down_exps.weight", Form::experts},
    {"model.layers.#.block_sparse_moe.switch_mlp.gate_proj.weight", "blk.#.ffn_gate_exps.weight"},
    {"model.layers.#.block_sparse_moe.switch_mlp.up_proj.weight", "blk.#.ffn_up_exps.weight"},
    {"model.layers.#.block_sparse_moe.switch_mlp.down_proj.weight", "blk.#.ffn_down_exps.weight"},
    {"model.layers.#.mlp.e_score_correction_bias", "blk.#.exp_probs_b.bias"},
};
constexpr Names kMiniMaxNames[] = {kTopNames, kAttentionNames, kFfnNorm, kMiniMaxExperts, kExpertNames};
constexpr KeyRule kMiniMaxKeys[] = {{"num_local_experts", "expert_count"},
                                    {"num_experts_per_tok", "expert_used_count"},
                                    {"intermediate_size", "expert_feed_forward_length"}};

void read_minimax(Config& config, Header& header) {
  header.set_integer("expert_gating_func", kSigmoidGating);
  // A part in the rotation itself goes before the number of channels, as published files have it.
  if (!rotation_of(config).has("partial_rotary_factor") && config.has("rotary_dim"))
    header.set_integer("rope.dimension_count", config.required("rotary_dim", 2, 1 << 12));
  if (!header.has("rope.dimension_count"))
    header.set_integer("rope.dimension_count", header.integer("attention.key_length"));
  config.expect("hidden_act", "silu");
  config.expect("scoring_func", "sigmoid");
  config.expect("use_qk_norm", true);
}

Status write_minimax(const Header& header, nlohmann::json& config) {
  config["rotary_dim"] = header.integer("rope.dimension_count", header.integer("attention.key_length"));
  config["scoring_func"] = "sigmoid";
  config["use_qk_norm"] = true;
  config["qk_norm_type"] = "per_layer";
  config["use_routing_bias"] = true;
  return {};
}

}  // namespace

const Family kGlm4Moe{.model_type = "glm4_moe",
                      .model_class = "Glm4MoeForCausalLM",
                      .architecture = "glm4moe",
                      .names = kGlm4moeNames,
                      .keys = {kGlm4moeKeys},
                      .pre = "glm4",
                      .read = read_glm4moe,
                      .write = write_glm4moe};
const Family kMiniMaxM2{.model_type = "minimax_m2",
                        .model_class = "MiniMaxM2ForCausalLM",
                        .architecture = "minimax-m2",
                        .names = kMiniMaxNames,
                        .keys = {kMiniMaxKeys},
                        .pre = "minimax-m2",
                        .read = read_minimax,
                        .write = write_minimax};

}  // namespace millrace::convert
