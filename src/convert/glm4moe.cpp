// GLM-4.5 to 4.7, MiniMax-M2 and MiMo-V2: routers of sigmoids that choose with a bias.

#include "convert/names.h"
#include "convert/rope.h"
#include "modelfile/gguf_writer.h"

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

constexpr NameRule kSinks[] = {
    {"model.layers.#.self_attn.sinks", "blk.#.attn_sinks.weight"},
    {"model.layers.#.self_attn.attention_sink_bias", "blk.#.attn_sinks.weight"},
};
constexpr Names kMimoNames[] = {kTopNames, kAttentionNames, kSinks, kFfnNorm, kDenseNames, kExpertNames};
constexpr std::string_view kMimoUnused[] = {"model.mtp."};  // no key of GGUF's says how these blocks guess
constexpr KeyRule kMimoKeys[] = {{"n_routed_experts", "expert_count"},
                                 {"num_experts_per_tok", "expert_used_count"},
                                 {"moe_intermediate_size", "expert_feed_forward_length"},
                                 {"routed_scaling_factor", "expert_weights_scale", KeyRule::Kind::number},
                                 {"norm_topk_prob", "expert_weights_norm", KeyRule::Kind::flag},
                                 {"n_group", "expert_group_count"},
                                 {"topk_group", "expert_group_used_count"},
                                 {"v_head_dim", "attention.value_length"}};

constexpr const char* kLocal = "sliding_attention";

/// The first layer sees all tokens, then every sixth; the first is dense.
void prepare_mimo(Config& config) {
  const std::int64_t layers = config.optional("num_hidden_layers", 48, 1, 1 << 12);
  // SGLang, for which these models were made, counts the tokens before the one that sees.
  if (config.has("sliding_window_size"))
    config.set("sliding_window", config.required("sliding_window_size", 1, 1 << 28) + 1);
  if (!config.has("layer_types")) {
    nlohmann::json kinds = nlohmann::json::array();
    for (std::int64_t i = 0; i < layers; ++i) kinds.push_back(i == 0 || (i + 1) % 6 == 0 ? "full_attention" : kLocal);
    config.set("layer_types", kinds);
  }
  if (!config.has("rope_parameters"))
    config.set("rope_parameters", {{"full_attention", {{"rope_theta", 5e6}, {"partial_rotary_factor", 0.334}}},
                                   {kLocal, {{"rope_theta", 1e4}, {"partial_rotary_factor", 0.334}}}});
}

/// Layers that see a window have twice the KV heads.
void read_mimo(Config& config, Header& header) {
  header.set_integer("expert_gating_func", kSigmoidGating);
  header.set_integer("attention.sliding_window", config.required("sliding_window", 1, 1 << 28));
  const std::int64_t kv_heads = header.integer("attention.head_count_kv");
  std::vector<bool> local;
  std::vector<std::int64_t> heads;
  for (const std::string& kind : config.texts("layer_types")) {
    local.push_back(kind == kLocal);
    heads.push_back(local.back() ? 2 * kv_heads : kv_heads);
  }
  if (std::ssize(local) != header.layers())
    config.fail(
        error(Code::corrupt, "layer_types in config.json has {} entries for {} layers", local.size(), header.layers()));
  header.set("attention.sliding_window_pattern", modelfile::array_value(local));
  header.set_integers("attention.head_count_kv", heads);
  header.set_integer("attention.value_length", config.required("v_head_dim", 1, 1 << 12));
  header.set_number("attention.value_scale", config.number("attention_value_scale", 1));
  header.set_integer("leading_dense_block_count", leading_dense(config, 1));
  const double part = rotation_of(config).number("partial_rotary_factor", 1);
  header.set_integer("rope.dimension_count",
                     static_cast<std::int64_t>(part * static_cast<double>(header.integer("attention.key_length"))));
  Config rope = config.within("rope_parameters").within(kLocal);
  rope.expect("rope_type", "default");
  rope.expect("partial_rotary_factor", part);
  config.fail(rope.status());
  config.expect("hidden_act", "silu");
}

Status write_mimo(const Header& header, nlohmann::json& config) {
  const auto local = header.of_layers("attention.sliding_window_pattern"),
             heads = header.of_layers("attention.head_count_kv");
  nlohmann::json kinds = nlohmann::json::array();
  std::int64_t kv_heads = 0;
  for (std::size_t i = 0; i < local.size() && i < heads.size(); ++i) {
    kinds.push_back(local[i] != 0 ? kLocal : "full_attention");
    const std::int64_t whole = local[i] != 0 ? heads[i] / 2 : heads[i];
    if (kv_heads != 0 && whole != kv_heads)
      return error(Code::unsupported, "layers with other numbers of KV heads than config.json can say");
    kv_heads = whole;
  }
  config["layer_types"] = kinds;
  write_leading_dense(header, config, 1);
  config["num_key_value_heads"] = kv_heads;
  config["sliding_window"] = header.integer("attention.sliding_window");
  config["attention_value_scale"] = header.number("attention.value_scale", 1);
  nlohmann::json& rope = config["rope_parameters"];
  if (rope.contains(kLocal) && rope["full_attention"].contains("partial_rotary_factor"))
    rope[kLocal]["partial_rotary_factor"] = rope["full_attention"]["partial_rotary_factor"];
  config.erase("rope_local_base_freq");
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
const Family kMimoV2{.model_type = "mimo_v2_flash",
                     .model_class = "MiMoV2FlashForCausalLM",
                     .architecture = "mimo2",
                     .names = kMimoNames,
                     .keys = {kMimoKeys},
                     .unused = kMimoUnused,
                     .pre = "qwen2",
                     .prepare = prepare_mimo,
                     .read = read_mimo,
                     .write = write_mimo};

}  // namespace millrace::convert
