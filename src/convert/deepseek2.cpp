// DeepSeek V2, V3, V3.2 and R1, Kimi K2, Kimi Linear, GLM-4.7-Flash, GLM-5, Mistral Small 4: latent attention. GGUF
// splits kv_b_proj in two.
#include <algorithm>

#include "convert/names.h"
#include "convert/rope.h"
#include "modelfile/gguf_writer.h"

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
constexpr Names kDeepseek2Names[] = {kTopNames,    kAttentionNames,     kLatent,    kFfnNorm, kDenseNames,
                                     kExpertNames, kSharedExpertsNames, kDraftNames};
constexpr NameRule kIndexer[] = {
    {"model.layers.#.self_attn.indexer.wq_b.weight", "blk.#.indexer.attn_q_b.weight"},
    {"model.layers.#.self_attn.indexer.wk.weight", "blk.#.indexer.attn_k.weight"},
    {"model.layers.#.self_attn.indexer.k_norm.weight", "blk.#.indexer.k_norm.weight"},
    {"model.layers.#.self_attn.indexer.k_norm.bias", "blk.#.indexer.k_norm.bias"},
    {"model.layers.#.self_attn.indexer.weights_proj.weight", "blk.#.indexer.proj.weight"},
};
constexpr Names kIndexedNames[] = {kTopNames,    kAttentionNames,     kLatent,    kIndexer, kFfnNorm, kDenseNames,
                                   kExpertNames, kSharedExpertsNames, kDraftNames};
/// Experts whose gates and ups are joined in GGUF, too.
constexpr NameRule kJoinedExperts[] = {
    {"model.layers.#.mlp.gate.weight", "blk.#.ffn_gate_inp.weight"},
    {"model.layers.#.mlp.experts.gate_up_proj", "blk.#.ffn_gate_up_exps.weight"},
    {"model.layers.#.mlp.experts.down_proj", "blk.#.ffn_down_exps.weight"},
};
constexpr Names kMistralNames[] = {kTopNames,      kAttentionNames,    kLatent, kFfnNorm, kDenseNames,
                                   kJoinedExperts, kSharedExpertsNames};
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
constexpr Names kKimiLinearNames[] = {kTopNames,   kAttentionNames, kLatent,        kFfnNorm,
                                      kDenseNames, kKimiDelta,      kMixtralExperts};
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
constexpr KeyRule kIndexerKeys[] = {{"index_n_heads", "attention.indexer.head_count"},
                                    {"index_head_dim", "attention.indexer.key_length"},
                                    {"index_topk", "attention.indexer.top_k"}};
constexpr KeyRule kDeepseek2Keys[] = {{"n_routed_experts", "expert_count"},
                                      {"num_experts_per_tok", "expert_used_count"},
                                      {"moe_intermediate_size", "expert_feed_forward_length"},
                                      {"n_shared_experts", "expert_shared_count"},
                                      {"first_k_dense_replace", "leading_dense_block_count"},
                                      {"routed_scaling_factor", "expert_weights_scale", KeyRule::Kind::number},
                                      {"kv_lora_rank", "attention.kv_lora_rank"},
                                      {"q_lora_rank", "attention.q_lora_rank"},
                                      {"v_head_dim", "attention.value_length_mla"},
                                      {"num_nextn_predict_layers", "nextn_predict_layers"}};

constexpr std::int64_t kDeepseek2Most = 1 << 16;

/// GLM's class has a list of layer types, or one dense layer.
void prepare_glm(Config& config) { config.set("first_k_dense_replace", leading_dense(config, 1)); }

/// The same, where the config may have either form.
void prepare_indexed(Config& config) {
  if (config.has("mlp_layer_types")) prepare_glm(config);
  config.disregard({"layer_types", "head_dim"});  // the class derives both from other fields
}

/// The layers with an indexer, given by a list, a pattern or a period.
void prepare_glm_dsa(Config& config) {
  prepare_indexed(config);
  if (config.has("indexer_types")) return;
  nlohmann::json kinds = nlohmann::json::array();
  if (const std::string pattern = config.text("index_topk_pattern", ""); !pattern.empty()) {
    for (const char kind : pattern) kinds.push_back(kind == 'F' ? "full" : "shared");
  } else {
    const std::int64_t each = config.optional("index_topk_freq", 1, 1, kDeepseek2Most);
    const std::int64_t first = config.optional("index_skip_topk_offset", 2, 0, kDeepseek2Most);
    const std::int64_t layers = config.required("num_hidden_layers", 1, kDeepseek2Most);
    for (std::int64_t i = 0; i < layers; ++i)
      kinds.push_back(std::max<std::int64_t>(i - first + 1, 0) % each == 0 ? "full" : "shared");
  }
  config.set("indexer_types", kinds);
}

/// Whether each layer attends, by a list of kinds, or by the numbers of such layers, from 1 on.
nlohmann::json kimi_layer_types(Config& config) {
  const std::int64_t layers = config.required("num_hidden_layers", 1, kDeepseek2Most);
  Config net = config.within("linear_attn_config");
  std::vector<std::string> kinds(static_cast<std::size_t>(layers), "linear_attention");
  if (net.has("full_attn_layers")) {
    for (const double number : net.numbers("full_attn_layers"))
      if (number >= 1 && number <= static_cast<double>(layers))
        kinds[static_cast<std::size_t>(number) - 1] = "full_attention";
  } else {
    for (std::size_t i = 4; i < kinds.size(); i += 4) kinds[i] = "full_attention";  // as the class has them
  }
  config.fail(net.status());
  return kinds;
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
  prepare_glm(config);
  if (const nlohmann::json* const context = config.find("model_max_length"); context != nullptr)
    config.set("max_position_embeddings", nlohmann::json(*context));
}

/// Checks that partial_rotary_factor agrees with qk_rope_head_dim.
void prepare_mistral4(Config& config) {
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    const nlohmann::json* const whole = config.find(key);
    if (whole == nullptr && key == std::string_view("rope_scaling")) continue;
    nlohmann::json rope = whole != nullptr && whole->is_object() ? *whole : nlohmann::json::object();
    rope["partial_rotary_factor"] = 1.0;
    config.set(key, rope);
  }
  config.set("partial_rotary_factor", 1.0);
}

void read_deepseek2(Config& config, Header& header) {
  if (header.has("rope.dimension_count"))
    config.fail(error(Code::unsupported,
                      "partial_rotary_factor in config.json is not 1: this version rotates all channels that latent "
                      "attention keeps for positions"));
  const std::int64_t rank = config.required("kv_lora_rank", 1, kDeepseek2Most),
                     turned = config.required("qk_rope_head_dim", 2, kDeepseek2Most);
  header.set_integer("attention.head_count_kv", 1);  // all heads share the latent as their key
  header.set_integer("attention.key_length", rank + turned);
  header.set_integer("attention.value_length", rank);
  header.set_integer("attention.key_length_mla", config.required("qk_nope_head_dim", 1, kDeepseek2Most) + turned);
  header.set_integer("rope.dimension_count", turned);
  header.set_integer("attention.q_lora_rank", config.optional("q_lora_rank", 0, 0, kDeepseek2Most));
  config.expect("rope_interleave", true);
  config.expect("moe_layer_freq", 1);
  config.expect("hidden_act", "silu");
}

/// Routers with sigmoids, a bias for the selection, and groups.
void read_v3(Config& config, Header& header) {
  read_deepseek2(config, header);
  header.set_integer("expert_gating_func", kSigmoidGating);
  header.set("expert_weights_norm", config.flag("norm_topk_prob", true));
  header.set_integer("expert_group_count", config.optional("n_group", 1, 1, 1024));
  header.set_integer("expert_group_used_count", config.optional("topk_group", 1, 1, 1024));
  config.expect("scoring_func", "sigmoid");
}

void read_glm_dsa(Config& config, Header& header) {
  read_v3(config, header);
  std::vector<bool> own;
  for (const std::string& kind : config.texts("indexer_types")) own.push_back(kind == "full");
  if (static_cast<std::int64_t>(own.size()) != header.layers())
    config.fail(
        error(Code::corrupt, "indexer_types in config.json has {} values for {} layers", own.size(), header.layers()));
  header.set("attention.indexer.types", modelfile::array_value(own));
}

void read_kimi_linear(Config& config, Header& header) {
  read_deepseek2(config, header);
  header.set_integer("expert_gating_func", kSigmoidGating);
  const std::int64_t heads = config.required("linear_num_heads", 1, kDeepseek2Most);
  if (heads != header.integer("attention.head_count"))
    config.fail(
        error(Code::unsupported,
              "linear_num_heads in config.json is {}, but {} heads attend: this version has such models with as "
              "many heads of both kinds alone",
              heads, header.integer("attention.head_count")));
  std::vector<std::int64_t> kv_heads;
  for (const std::string& kind : config.texts("layer_types")) kv_heads.push_back(kind == "full_attention" ? 1 : 0);
  if (static_cast<std::int64_t>(kv_heads.size()) != header.layers())
    config.fail(error(Code::corrupt, "layer_types in config.json has {} values for {} layers", kv_heads.size(),
                      header.layers()));
  header.set_integers("attention.head_count_kv", kv_heads);
  config.expect("moe_router_activation_func", "sigmoid");
  config.expect("mla_use_nope", true);
  config.expect("num_nextn_predict_layers", 0);
}

/// Routers with a softmax, and queries scaled by position.
void read_mistral4(Config& config, Header& header) {
  read_deepseek2(config, header);
  header.set_integer("expert_gating_func", kSoftmaxGating);
  header.set("expert_weights_norm", config.flag("norm_topk_prob", true));
  header.set_integer("expert_group_count", config.optional("n_group", 1, 1, 1024));
  header.set_integer("expert_group_used_count", config.optional("topk_group", 1, 1, 1024));
  config.expect("n_group", 1);  // groups are scored otherwise than DeepSeek V2's
  Config rope = rotation_of(config);
  const double beta = rope.number("llama_4_scaling_beta", 0);
  if (beta != 0) {
    header.set_number("attention.temperature_scale", beta);
    header.set_integer("attention.temperature_length", rope.required("original_max_position_embeddings", 1, 1 << 28));
  }
  config.fail(rope.status());
}

void read_v2(Config& config, Header& header) {
  read_deepseek2(config, header);
  config.disregard({"head_dim", "n_group", "topk_group"});  // groups apply with another topk_method only
  header.set_integer("expert_gating_func", kSoftmaxGating);
  config.expect("norm_topk_prob", false);
  config.expect("scoring_func", "softmax");
  if (config.text("topk_method", "greedy") == "group_limited_greedy") {
    header.set_integer("expert_group_count", config.optional("n_group", 1, 1, 1024));
    header.set_integer("expert_group_used_count", config.optional("topk_group", 1, 1, 1024));
  }
}

Status write_deepseek2(const Header& header, nlohmann::json& config) {
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

Status write_glm_dsa(const Header& header, nlohmann::json& config) {
  MR_RETURN_IF_ERROR(write_deepseek2(header, config));
  nlohmann::json kinds = nlohmann::json::array();
  const auto own = header.of_layers("attention.indexer.types");
  if (own.empty()) return error(Code::unsupported, "the file does not say which of its layers have an indexer");
  for (const std::int64_t is : own) kinds.push_back(is != 0 ? "full" : "shared");
  config["indexer_types"] = kinds;
  return {};
}

Status write_mistral4(const Header& header, nlohmann::json& config) {
  MR_RETURN_IF_ERROR(write_deepseek2(header, config));
  nlohmann::json& rope = config["rope_parameters"];
  // transformers applies both factors even if the config lacks them.
  rope["llama_4_scaling_beta"] = header.number("attention.temperature_scale", 0);
  if (!rope.contains("original_max_position_embeddings"))
    rope["original_max_position_embeddings"] =
        header.integer("attention.temperature_length", header.integer("context_length"));
  // Of a head's width, though nothing but the rotated channels is turned.
  const double rotated = config["qk_rope_head_dim"].get<double>(), plain = config["qk_nope_head_dim"].get<double>();
  rope["partial_rotary_factor"] = rotated / (rotated + plain);
  config["rope_interleave"] = true;
  return {};
}

/// As the published config.json has it, from which transformers takes its own fields.
Status write_kimi_linear(const Header& header, nlohmann::json& config) {
  const bool normalized = header.flag("expert_weights_norm", true);
  MR_RETURN_IF_ERROR(write_deepseek2(header, config));
  for (const char* other : {"scoring_func", "topk_method", "n_group", "norm_topk_prob"}) config.erase(other);
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
  config["model_max_length"] = header.integer("context_length");
  config.erase("max_position_embeddings");
  config["num_expert_group"] = header.integer("expert_group_count", 1);
  config["moe_renormalize"] = normalized;
  config["moe_router_activation_func"] = "sigmoid";
  config["mla_use_nope"] = true;
  config["num_nextn_predict_layers"] = 0;
  return {};
}

bool is_v2(const Header& header) { return header.integer("expert_gating_func", kSoftmaxGating) == kSoftmaxGating; }

}  // namespace

const Family kDeepSeekV2{.model_type = "deepseek_v2",
                         .model_class = "DeepseekV2ForCausalLM",
                         .architecture = "deepseek2",
                         .names = kDeepseek2Names,
                         .keys = {kDeepseek2Keys},
                         .pre = "deepseek-llm",
                         .read = read_v2,
                         .write = write_deepseek2,
                         .matches = is_v2};
const Family kDeepSeekV3{.model_type = "deepseek_v3",
                         .model_class = "DeepseekV3ForCausalLM",
                         .architecture = "deepseek2",
                         .names = kDeepseek2Names,
                         .keys = {kDeepseek2Keys},
                         .pre = "deepseek-v3",
                         .read = read_v3,
                         .write = write_deepseek2};
const Family kKimiK2{.model_type = "kimi_k2",
                     .model_class = "DeepseekV3ForCausalLM",
                     .architecture = "deepseek2",
                     .names = kDeepseek2Names,
                     .keys = {kDeepseek2Keys},
                     .config_class = "deepseek_v3",
                     .pre = "kimi-k2",
                     .read = read_v3,
                     .write = write_deepseek2};
const Family kGlm4MoeLite{.model_type = "glm4_moe_lite",
                          .model_class = "Glm4MoeLiteForCausalLM",
                          .architecture = "deepseek2",
                          .names = kDeepseek2Names,
                          .keys = {kDeepseek2Keys},
                          .pre = "glm4",
                          .prepare = prepare_glm,
                          .read = read_v3,
                          .write = write_deepseek2};

const Family kDeepSeekV32{.model_type = "deepseek_v32",
                          .model_class = "DeepseekV32ForCausalLM",
                          .architecture = "deepseek32",
                          .names = kIndexedNames,
                          .keys = {kDeepseek2Keys, kIndexerKeys},
                          .pre = "deepseek-v3",
                          .prepare = prepare_indexed,
                          .read = read_v3,
                          .write = write_deepseek2};
const Family kGlmMoeDsa{.model_type = "glm_moe_dsa",
                        .model_class = "GlmMoeDsaForCausalLM",
                        .architecture = "glm-dsa",
                        .names = kIndexedNames,
                        .keys = {kDeepseek2Keys, kIndexerKeys},
                        .pre = "glm4",
                        .prepare = prepare_glm_dsa,
                        .read = read_glm_dsa,
                        .write = write_glm_dsa};
const Family kKimiLinear{.model_type = "kimi_linear",
                         .model_class = "KimiLinearForCausalLM",
                         .architecture = "kimi-linear",
                         .names = kKimiLinearNames,
                         .keys = {kKimiLinearKeys},
                         .pre = "kimi-k2",
                         .prepare = prepare_kimi_linear,
                         .read = read_kimi_linear,
                         .write = write_kimi_linear};
const Family kMistral4{.model_type = "mistral4",
                       .model_class = "Mistral4ForCausalLM",
                       .architecture = "mistral4",
                       .names = kMistralNames,
                       .keys = {kDeepseek2Keys},
                       .pre = "tekken",
                       .prepare = prepare_mistral4,
                       .read = read_mistral4,
                       .write = write_mistral4};

}  // namespace millrace::convert
