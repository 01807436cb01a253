// Kimi Linear and Ling 3: of some layers, one attends to latents, and the others keep a state that each key channel
// forgets at a rate of its own.
#include "convert/deepseek2.h"
#include "convert/names.h"

namespace millrace::convert {
namespace {

constexpr const char *kAttends = "full_attention", *kKeeps = "linear_attention";

constexpr NameRule kKimiLatent[] = {MR_LATENT_NAMES("model.layers.#.self_attn.")};
/// Kimi Linear's layers with a state, and its feed-forwards, whose dense ones have either prefix.
constexpr NameRule kKimiDelta[] = {
    {"model.layers.#.self_attn.q_conv1d.weight", "blk.#.ssm_conv1d_q.weight"},
    {"model.layers.#.self_attn.k_conv1d.weight", "blk.#.ssm_conv1d_k.weight"},
    {"model.layers.#.self_attn.v_conv1d.weight", "blk.#.ssm_conv1d_v.weight"},
    {"model.layers.#.self_attn.f_a_proj.weight", "blk.#.ssm_f_a.weight"},
    {"model.layers.#.self_attn.f_b_proj.weight", "blk.#.ssm_f_b.weight"},
    {"model.layers.#.self_attn.g_a_proj.weight", "blk.#.ssm_g_a.weight"},
    {"model.layers.#.self_attn.g_b_proj.weight", "blk.#.ssm_g_b.weight"},
    {"model.layers.#.self_attn.b_proj.weight", "blk.#.ssm_beta.weight"},
    {"model.layers.#.self_attn.A_log", "blk.#.ssm_a", Form::decay_heads},
    {"model.layers.#.self_attn.dt_bias", "blk.#.ssm_dt.bias"},
    {"model.layers.#.self_attn.o_norm.weight", "blk.#.ssm_norm.weight"},
    {"model.layers.#.block_sparse_moe.gate_proj.weight", "blk.#.ffn_gate.weight"},
    {"model.layers.#.block_sparse_moe.up_proj.weight", "blk.#.ffn_up.weight"},
    {"model.layers.#.block_sparse_moe.down_proj.weight", "blk.#.ffn_down.weight"},
    {"model.layers.#.block_sparse_moe.gate.e_score_correction_bias", "blk.#.exp_probs_b.bias"},
    {"model.layers.#.block_sparse_moe.shared_experts.gate_proj.weight", "blk.#.ffn_gate_shexp.weight"},
    {"model.layers.#.block_sparse_moe.shared_experts.up_proj.weight", "blk.#.ffn_up_shexp.weight"},
    {"model.layers.#.block_sparse_moe.shared_experts.down_proj.weight", "blk.#.ffn_down_shexp.weight"},
};
constexpr Names kKimiLinearNames[] = {kTopNames,   kAttentionNames, kKimiLatent,    kFfnNorm,
                                      kDenseNames, kKimiDelta,      kMixtralExperts};
/// Ling 3's, as published: both kinds of layers have a g_proj, which is a gate of heads or of a state's results
/// (takes_ling3()).
constexpr NameRule kLing3Top[] = {
    {"model.word_embeddings.weight", "token_embd.weight"},
    {"model.norm.weight", "output_norm.weight"},
    {"lm_head.weight", "output.weight"},
};
constexpr NameRule kLing3Attention[] = {
    MR_LATENT_NAMES("model.layers.#.attention."),
    {"model.layers.#.input_layernorm.weight", "blk.#.attn_norm.weight"},
    {"model.layers.#.attention.q_proj.weight", "blk.#.attn_q.weight"},
    {"model.layers.#.attention.k_proj.weight", "blk.#.attn_k.weight"},
    {"model.layers.#.attention.v_proj.weight", "blk.#.attn_v.weight"},
    {"model.layers.#.attention.dense.weight", "blk.#.attn_output.weight"},
    {"model.layers.#.attention.o_proj.weight", "blk.#.attn_output.weight"},
    {"model.layers.#.attention.g_proj.weight", "blk.#.attn_gate.weight"},
    {"model.layers.#.attention.g_proj.weight", "blk.#.ssm_g_a.weight"},
    {"model.layers.#.attention.f_proj.weight", "blk.#.ssm_f_a.weight"},
    {"model.layers.#.attention.b_proj.weight", "blk.#.ssm_beta.weight"},
    {"model.layers.#.attention.q_conv1d.weight", "blk.#.ssm_conv1d_q.weight"},
    {"model.layers.#.attention.k_conv1d.weight", "blk.#.ssm_conv1d_k.weight"},
    {"model.layers.#.attention.v_conv1d.weight", "blk.#.ssm_conv1d_v.weight"},
    {"model.layers.#.attention.A_log", "blk.#.ssm_a", Form::growth_column},
    {"model.layers.#.attention.dt_bias", "blk.#.ssm_dt.bias"},
    {"model.layers.#.attention.o_norm.weight", "blk.#.ssm_norm.weight"},
    {"model.layers.#.mlp.gate.expert_bias", "blk.#.exp_probs_b.bias"},
};
constexpr Names kLing3Names[] = {kLing3Top, kLing3Attention, kFfnNorm, kDenseNames, kExpertNames, kSharedExpertsNames};
constexpr KeyRule kKimiLinearKeys[] = {{"num_experts", "expert_count"},
                                       {"num_experts_per_token", "expert_used_count"},
                                       {"moe_intermediate_size", "expert_feed_forward_length"},
                                       {"num_shared_experts", "expert_shared_count"},
                                       {"moe_renormalize", "expert_weights_norm", KeyRule::Kind::flag},
                                       {"routed_scaling_factor", "expert_weights_scale", KeyRule::Kind::number},
                                       {"num_expert_group", "expert_group_count"},
                                       {"topk_group", "expert_group_used_count"},
                                       {"first_k_dense_replace", "leading_dense_block_count"},
                                       {"kv_lora_rank", "attention.kv_lora_rank"},
                                       {"q_lora_rank", "attention.q_lora_rank"},
                                       {"v_head_dim", "attention.value_length_mla"},
                                       {"linear_head_dim", "kda.head_dim"},
                                       {"linear_conv_kernel_dim", "ssm.conv_kernel"}};

/// Whether each layer attends, by a list of kinds, or by the numbers of such layers, from 1 on.
nlohmann::json kimi_layer_types(Config& config) {
  const std::int64_t layers = config.required("num_hidden_layers", 1, kMostLatent);
  Config net = config.within("linear_attn_config");
  std::vector<std::string> kinds(static_cast<std::size_t>(layers), kKeeps);
  if (net.has("full_attn_layers")) {
    for (const double number : net.numbers("full_attn_layers"))
      if (number >= 1 && number <= static_cast<double>(layers)) kinds[static_cast<std::size_t>(number) - 1] = kAttends;
  } else {
    for (std::size_t i = 4; i < kinds.size(); i += 4) kinds[i] = kAttends;  // as the class has them
  }
  config.fail(net.status());
  return kinds;
}

void take_context(Config& config) {
  if (const nlohmann::json* const context = config.find("model_max_length"); context != nullptr)
    config.set("max_position_embeddings", nlohmann::json(*context));
}

/// Keys that the published config.json has in an object of their own, or by names of its own.
void prepare_kimi_linear(Config& config) {
  const Config net = config.within("linear_attn_config");
  constexpr std::pair<const char*, const char*> kWithin[] = {{"head_dim", "linear_head_dim"},
                                                             {"num_heads", "linear_num_heads"},
                                                             {"short_conv_kernel_size", "linear_conv_kernel_dim"}};
  for (const auto& [theirs, field] : kWithin)
    if (const nlohmann::json* const value = net.find(theirs); value != nullptr)
      config.set(field, nlohmann::json(*value));
  if (!config.has("layer_types")) config.set("layer_types", kimi_layer_types(config));
  config.set("first_k_dense_replace", leading_dense(config, 1));
  take_context(config);
}

/// Every layer_group_size-th layer attends, where there is no list. The class calls by head_dim the heads of states
/// that it was given, and saves by it the rotated channels.
void prepare_ling3(Config& config) {
  if (!config.has("layer_types")) {
    const std::int64_t layers = config.required("num_hidden_layers", 1, kMostLatent),
                       period = config.optional("layer_group_size", 6, 1, kMostLatent);
    nlohmann::json kinds = nlohmann::json::array();
    for (std::int64_t i = 1; i <= layers; ++i) kinds.push_back(i % period == 0 ? kAttends : kKeeps);
    config.set("layer_types", kinds);
  }
  config.disregard({"layer_group_size", "head_dim", "num_key_value_heads"});
  if (!config.has("linear_head_dim")) config.set("linear_head_dim", config.optional("head_dim", 128, 1, kMostLatent));
  config.set("linear_conv_kernel_dim", config.optional("short_conv_kernel_size", 4, 1, kMostLatent));
  config.set("first_k_dense_replace", leading_dense(config, 2));
  take_context(config);
}

/// Latents where a layer attends, states elsewhere, and routers with sigmoids.
void read_beside_states(Config& config, Header& header) {
  read_deepseek2(config, header);
  header.set_integer("expert_gating_func", kSigmoidGating);
  std::vector<std::int64_t> kv_heads;
  for (const std::string& kind : config.texts("layer_types")) kv_heads.push_back(kind == kAttends ? 1 : 0);
  if (static_cast<std::int64_t>(kv_heads.size()) != header.layers())
    config.fail(error(Code::corrupt, "layer_types in config.json has {} values for {} layers", kv_heads.size(),
                      header.layers()));
  header.set_integers("attention.head_count_kv", kv_heads);
}

void read_kimi_linear(Config& config, Header& header) {
  read_beside_states(config, header);
  const std::int64_t heads = config.required("linear_num_heads", 1, kMostLatent);
  if (heads != header.integer("attention.head_count"))
    config.fail(
        error(Code::unsupported,
              "linear_num_heads in config.json is {}, but {} heads attend: this version has such models with as "
              "many heads of both kinds alone",
              heads, header.integer("attention.head_count")));
  config.expect("moe_router_activation_func", "sigmoid");
  config.expect("mla_use_nope", true);
  config.expect("num_nextn_predict_layers", 0);
}

void read_ling3(Config& config, Header& header) {
  read_beside_states(config, header);
  header.set("kda.safe_gate", true);
  header.set_number("kda.gate_lower_bound", config.number("kda_lower_bound", -5));
  config.expect("kda_safe_gate", true);
}

/// Keys that both classes call by names of their own.
void rename_keys(const Header& header, nlohmann::json& config, bool normalized) {
  for (const char* other : {"scoring_func", "topk_method", "n_group", "norm_topk_prob"}) config.erase(other);
  config["model_max_length"] = header.integer("context_length");
  config.erase("max_position_embeddings");
  config["num_expert_group"] = header.integer("expert_group_count", 1);
  config["moe_renormalize"] = normalized;
  config["num_nextn_predict_layers"] = 0;
}

/// As the published config.json has it, from which transformers takes its own fields.
Status write_kimi_linear(const Header& header, nlohmann::json& config) {
  const bool normalized = header.flag("expert_weights_norm", true);
  MR_RETURN_IF_ERROR(write_deepseek2(header, config));
  rename_keys(header, config, normalized);
  nlohmann::json attends = nlohmann::json::array(), keeps = nlohmann::json::array();
  std::int64_t number = 0;
  for (const std::int64_t heads : header.of_layers("attention.head_count_kv"))
    (heads > 0 ? attends : keeps).push_back(++number);
  config["linear_attn_config"] = {{"full_attn_layers", attends},
                                  {"kda_layers", keeps},
                                  {"head_dim", header.integer("kda.head_dim")},
                                  {"num_heads", header.integer("attention.head_count")},
                                  {"short_conv_kernel_size", header.integer("ssm.conv_kernel")}};
  for (const char* field : {"linear_head_dim", "linear_conv_kernel_dim"}) config.erase(field);
  config["moe_router_activation_func"] = "sigmoid";
  config["mla_use_nope"] = true;
  return {};
}

Status write_ling3(const Header& header, nlohmann::json& config) {
  if (header.number("kda.gate_lower_bound") == 0)
    return error(Code::unsupported, "{} is missing or 0, and config.json needs the bound of the decays",
                 header.name("kda.gate_lower_bound"));
  write_layer_types(header, kAttends, kKeeps, config);
  MR_RETURN_IF_ERROR(write_deepseek2(header, config));
  rename_keys(header, config, header.flag("expert_weights_norm", true));
  config["head_dim"] = header.integer("kda.head_dim");
  config["short_conv_kernel_size"] = header.integer("ssm.conv_kernel");
  for (const char* field : {"linear_head_dim", "linear_conv_kernel_dim"}) config.erase(field);
  config["kda_safe_gate"] = true;
  config["kda_lower_bound"] = header.number("kda.gate_lower_bound");
  return {};
}

/// Whether g_proj is a gate of heads or of a state's results.
bool takes_ling3(const NameRule& rule, std::int64_t layer, const Header& header) {
  const std::vector<std::int64_t> kv_heads = header.of_layers("attention.head_count_kv");
  const bool attends = layer >= 0 && layer < std::ssize(kv_heads) && kv_heads[static_cast<std::size_t>(layer)] > 0;
  if (rule.ours == "blk.#.attn_gate.weight") return attends;
  return rule.ours != "blk.#.ssm_g_a.weight" || !attends;
}

}  // namespace

const Family kKimiLinear{.model_type = "kimi_linear",
                         .model_class = "KimiLinearForCausalLM",
                         .architecture = "kimi-linear",
                         .names = kKimiLinearNames,
                         .keys = {kKimiLinearKeys},
                         .pre = "kimi-k2",
                         .prepare = prepare_kimi_linear,
                         .read = read_kimi_linear,
                         .write = write_kimi_linear};
const Family kLing3{.model_type = "bailing_hybrid",
                    .model_class = "BailingHybridForCausalLM",
                    .architecture = "bailingmoe3",
                    .names = kLing3Names,
                    .keys = {kKimiLinearKeys},
                    .skips_extra = true,
                    .pre = "bailingmoe2",
                    .prepare = prepare_ling3,
                    .takes = takes_ling3,
                    .read = read_ling3,
                    .write = write_ling3};

}  // namespace millrace::convert
