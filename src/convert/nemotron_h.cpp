// Nemotron-H and Nemotron 3 Nano: each layer is one thing alone; the model type is one, the architectures are two.
#include <algorithm>

#include "base/log.h"
#include "convert/mamba2.h"
#include "convert/names.h"

namespace millrace::convert {
namespace {

constexpr NameRule kNemotronHOwn[] = {
    MR_MAMBA2_NAMES("backbone.layers.#.mixer."),
    {"backbone.layers.#.mixer.q_proj.weight", "blk.#.attn_q.weight"},
    {"backbone.layers.#.mixer.k_proj.weight", "blk.#.attn_k.weight"},
    {"backbone.layers.#.mixer.v_proj.weight", "blk.#.attn_v.weight"},
    {"backbone.layers.#.mixer.o_proj.weight", "blk.#.attn_output.weight"},
    {"backbone.layers.#.mixer.up_proj.weight", "blk.#.ffn_up.weight"},
    {"backbone.layers.#.mixer.down_proj.weight", "blk.#.ffn_down.weight"},
    {"backbone.layers.#.mixer.gate.weight", "blk.#.ffn_gate_inp.weight"},
    {"backbone.layers.#.mixer.gate.e_score_correction_bias", "blk.#.exp_probs_b.bias"},
    {"backbone.layers.#.mixer.experts.*.up_proj.weight", "blk.#.ffn_up_exps.weight", Form::experts},
    {"backbone.layers.#.mixer.experts.*.down_proj.weight", "blk.#.ffn_down_exps.weight", Form::experts},
    {"backbone.layers.#.mixer.experts.up_proj", "blk.#.ffn_up_exps.weight"},
    {"backbone.layers.#.mixer.experts.down_proj", "blk.#.ffn_down_exps.weight"},
    {"backbone.layers.#.mixer.shared_experts.up_proj.weight", "blk.#.ffn_up_shexp.weight"},
    {"backbone.layers.#.mixer.shared_experts.down_proj.weight", "blk.#.ffn_down_shexp.weight"},
    {"backbone.layers.#.mixer.fc1_latent_proj.weight", "blk.#.ffn_latent_down.weight"},
    {"backbone.layers.#.mixer.fc2_latent_proj.weight", "blk.#.ffn_latent_up.weight"},
};
constexpr Names kNemotronHNames[] = {kBackboneNames, kNemotronHOwn};
constexpr KeyRule kNemotronHKeys[] = {{"layer_norm_epsilon", "attention.layer_norm_rms_epsilon", KeyRule::Kind::number},
                                      {"conv_kernel", "ssm.conv_kernel"},
                                      {"ssm_state_size", "ssm.state_size"},
                                      {"n_groups", "ssm.group_count"},
                                      {"mamba_num_heads", "ssm.time_step_rank"},
                                      {"n_routed_experts", "expert_count"},
                                      {"num_experts_per_tok", "expert_used_count"},
                                      {"moe_intermediate_size", "expert_feed_forward_length"},
                                      {"moe_shared_expert_intermediate_size", "expert_shared_feed_forward_length"},
                                      {"n_shared_experts", "expert_shared_count"},
                                      {"norm_topk_prob", "expert_weights_norm", KeyRule::Kind::flag},
                                      {"routed_scaling_factor", "expert_weights_scale", KeyRule::Kind::number},
                                      {"n_group", "expert_group_count"},
                                      {"moe_latent_size", "moe_latent_size"}};

constexpr std::pair<std::string_view, char> kKinds[] = {
    {"linear_attention", 'M'}, {"full_attention", '*'}, {"mlp", '-'}, {"moe", 'E'}};

/// Layers by a pattern or by a list, which also says how many there are; without experts their keys mean nothing.
void prepare_nemotron_h(Config& config) {
  std::string pattern;
  for (const std::string& kind : layer_kinds(config, "layers_block_type")) {
    const auto known =
        std::find_if(std::begin(kKinds), std::end(kKinds), [&](const auto& k) { return k.first == kind; });
    pattern += known == std::end(kKinds) ? '?' : known->second;
  }
  if (pattern.empty()) pattern = config.text("hybrid_override_pattern", "");
  config.set("hybrid_override_pattern", pattern);
  config.set("num_hidden_layers", pattern.size());
  config.disregard({"head_dim", "expand", "mtp_layers_block_type"});  // the class computes with others
  if (pattern.find('E') != std::string::npos) return;
  for (const char* key :
       {"n_routed_experts", "num_experts_per_tok", "moe_intermediate_size", "moe_shared_expert_intermediate_size",
        "n_shared_experts", "norm_topk_prob", "routed_scaling_factor", "n_group", "topk_group", "moe_latent_size"})
    config.drop(key);
}

void read_nemotron_h(Config& config, Header& header) {
  const std::string pattern = config.text("hybrid_override_pattern", "");
  if (const double least = config.number("time_step_min", 0); least > 0)
    log::warn(
        "time_step_min in config.json is {}: transformers without its Mamba kernels raises smaller time steps to it; "
        "these kernels and this version do not",
        least);
  expect_endless_time_steps(config);
  const std::int64_t heads = header.integer("attention.head_count_kv");
  const bool mixture = header.has("expert_count");
  const std::int64_t width =
      mixture ? header.integer("expert_feed_forward_length") : header.integer("feed_forward_length");
  if (static_cast<std::int64_t>(pattern.size()) != header.layers() ||
      pattern.find_first_not_of("M*-E") != std::string::npos || pattern.find(mixture ? '-' : 'E') != std::string::npos)
    config.fail(error(Code::unsupported,
                      "hybrid_override_pattern in config.json is no row of M, * and {} for {} layers",
                      mixture ? 'E' : '-', header.layers()));
  std::vector<std::int64_t> kv_heads, widths;
  for (const char kind : pattern) {
    kv_heads.push_back(kind == '*' ? heads : 0);
    widths.push_back(kind == '-' || kind == 'E' ? width : 0);
  }
  header.set_integers("attention.head_count_kv", kv_heads);
  header.set_integers("feed_forward_length", widths);
  header.set("rope.scaling.finetuned", false);
  header.set_integer("ssm.inner_size",
                     config.required("mamba_num_heads", 1, 1 << 16) * config.required("mamba_head_dim", 1, 1 << 16));
  config.expect("use_bias", false);
  config.expect("mlp_bias", false);
  config.expect("mlp_hidden_act", "relu2");
  if (mixture) config.expect("topk_group", 1);
}

Status write_nemotron_h(const Header& header, nlohmann::json& config) {
  const auto kv_heads = header.of_layers("attention.head_count_kv"), widths = header.of_layers("feed_forward_length");
  const bool mixture = header.integer("expert_count") > 0;
  std::string pattern;
  for (std::size_t i = 0; i < kv_heads.size(); ++i)
    pattern += widths[i] > 0 ? (mixture ? 'E' : '-') : kv_heads[i] > 0 ? '*' : 'M';
  config["hybrid_override_pattern"] = pattern;
  config["num_key_value_heads"] = *std::max_element(kv_heads.begin(), kv_heads.end());
  if (!mixture) config["intermediate_size"] = *std::max_element(widths.begin(), widths.end());
  config["mamba_head_dim"] = header.integer("ssm.inner_size") / header.integer("ssm.time_step_rank");
  config["mlp_hidden_act"] = "relu2";
  config["use_conv_bias"] = true;
  config["time_step_min"] = 0.0;  // readers of GGUF raise no time step
  if (mixture) config["topk_group"] = 1;
  config.erase("rms_norm_eps");
  config.erase("rope_theta");
  return {};
}

}  // namespace

const Family kNemotronH{.model_type = "nemotron_h",
                        .model_class = "NemotronHForCausalLM",
                        .architecture = "nemotron_h",
                        .mixture = "nemotron_h_moe",
                        .names = kNemotronHNames,
                        .keys = {kNemotronHKeys},
                        .prepare = prepare_nemotron_h,
                        .read = read_nemotron_h,
                        .write = write_nemotron_h};

}  // namespace millrace::convert
