// DeepSeek V2, V3, V3.2 and R1, Kimi K2, GLM-4.7-Flash, GLM-5, Mistral Small 4: latent attention. GGUF splits kv_b_proj
// in two.
#include "convert/deepseek2.h"

#include <algorithm>

#include "convert/names.h"
#include "convert/rope.h"
#include "modelfile/gguf_writer.h"

namespace millrace::convert {
namespace {

constexpr NameRule kLatent[] = {MR_LATENT_NAMES("model.layers.#.self_attn.")};
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
    const std::int64_t each = config.optional("index_topk_freq", 1, 1, kMostLatent);
    const std::int64_t first = config.optional("index_skip_topk_offset", 2, 0, kMostLatent);
    const std::int64_t layers = config.required("num_hidden_layers", 1, kMostLatent);
    for (std::int64_t i = 0; i < layers; ++i)
      kinds.push_back(std::max<std::int64_t>(i - first + 1, 0) % each == 0 ? "full" : "shared");
  }
  config.set("indexer_types", kinds);
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

}  // namespace

void read_deepseek2(Config& config, Header& header) {
  if (header.has("rope.dimension_count"))
    config.fail(error(Code::unsupported,
                      "partial_rotary_factor in config.json is not 1: this version rotates all channels that latent "
                      "attention keeps for positions"));
  const std::int64_t rank = config.required("kv_lora_rank", 1, kMostLatent),
                     turned = config.required("qk_rope_head_dim", 2, kMostLatent);
  header.set_integer("attention.head_count_kv", 1);  // all heads share the latent as their key
  header.set_integer("attention.key_length", rank + turned);
  header.set_integer("attention.value_length", rank);
  header.set_integer("attention.key_length_mla", config.required("qk_nope_head_dim", 1, kMostLatent) + turned);
  header.set_integer("rope.dimension_count", turned);
  header.set_integer("attention.q_lora_rank", config.optional("q_lora_rank", 0, 0, kMostLatent));
  config.expect("rope_interleave", true);
  config.expect("moe_layer_freq", 1);
  config.expect("hidden_act", "silu");
}

namespace {

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

}  // namespace

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

namespace {

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
