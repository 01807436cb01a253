// The language models of Gemma 4: layers with a window and layers with full attention differ in head dim and RoPE.
// 26B-A4B and 31B use keys as values in layers with full attention; 26B-A4B has experts beside the dense feed-forward.
// E2B and E4B have last layers that share the KV of earlier ones, and per-layer embeddings. Gemma 3n has both of these,
// and several residual streams.
#include <algorithm>
#include <cmath>
#include <limits>

#include "convert/names.h"
#include "modelfile/gguf_writer.h"

namespace millrace::convert {
namespace {

constexpr NameRule kTop[] = {
    {"model.embed_tokens_per_layer.weight", "per_layer_token_embd.weight", Form::padded},
    {"model.per_layer_model_projection.weight", "per_layer_model_proj.weight"},
    {"model.per_layer_projection_norm.weight", "per_layer_proj_norm.weight"},
};
constexpr NameRule kLayer[] = {
    {"model.layers.#.pre_feedforward_layernorm.weight", "blk.#.ffn_norm.weight"},
    {"model.layers.#.pre_feedforward_layernorm_2.weight", "blk.#.pre_ffw_norm_2.weight"},
    {"model.layers.#.post_feedforward_layernorm.weight", "blk.#.post_ffw_norm.weight"},
    {"model.layers.#.post_feedforward_layernorm_1.weight", "blk.#.post_ffw_norm_1.weight"},
    {"model.layers.#.post_feedforward_layernorm_2.weight", "blk.#.post_ffw_norm_2.weight"},
    {"model.layers.#.per_layer_input_gate.weight", "blk.#.inp_gate.weight"},
    {"model.layers.#.per_layer_projection.weight", "blk.#.proj.weight"},
    {"model.layers.#.post_per_layer_input_norm.weight", "blk.#.post_norm.weight"},
    {"model.layers.#.layer_scalar", "blk.#.layer_output_scale.weight"},
    {"model.layers.#.router.proj.weight", "blk.#.ffn_gate_inp.weight"},
    {"model.layers.#.router.scale", "blk.#.ffn_gate_inp.scale"},
    {"model.layers.#.router.per_expert_scale", "blk.#.ffn_down_exps.scale"},
    {"model.layers.#.experts.gate_up_proj", "blk.#.ffn_gate_up_exps.weight"},
    {"model.layers.#.experts.down_proj", "blk.#.ffn_down_exps.weight"},
};
constexpr Names kGemma4Names[] = {kTopNames, kTop, kAttentionNames, kPostAttentionNorm, kLayer, kDenseNames};
constexpr KeyRule kGemma4Keys[] = {{"sliding_window", "attention.sliding_window"},
                                   {"num_kv_shared_layers", "attention.shared_kv_layers"},
                                   {"hidden_size_per_layer_input", "embedding_length_per_layer_input"},
                                   {"final_logit_softcapping", "final_logit_softcapping", KeyRule::Kind::number},
                                   {"num_experts", "expert_count"},
                                   {"top_k_experts", "expert_used_count"},
                                   {"moe_intermediate_size", "expert_feed_forward_length"}};

constexpr NameRule kTopOf3n[] = {
    {"model.altup_projections.*.weight", "altup_proj.weight", Form::experts},
    {"model.altup_unembed_projections.*.weight", "altup_unembd_proj.weight", Form::experts},
};
constexpr NameRule kLayerOf3n[] = {
    {"model.layers.#.altup.router_norm.weight", "blk.#.altup_router_norm.weight"},
    {"model.layers.#.altup.modality_router.weight", "blk.#.altup_router.weight"},
    {"model.layers.#.altup.prediction_coefs.weight", "blk.#.altup_predict_coef.weight"},
    {"model.layers.#.altup.correction_coefs.weight", "blk.#.altup_correct_coef.weight"},
    {"model.layers.#.altup.correct_output_scale", "blk.#.altup_correct_scale.weight"},
    {"model.layers.#.laurel.linear_left.weight", "blk.#.laurel_l.weight"},
    {"model.layers.#.laurel.linear_right.weight", "blk.#.laurel_r.weight"},
    {"model.layers.#.laurel.post_laurel_norm.weight", "blk.#.laurel_post_norm.weight"},
};
constexpr Names kGemma3nNames[] = {kTopNames,          kTopOf3n, kTop,       kAttentionNames,
                                   kPostAttentionNorm, kLayer,   kLayerOf3n, kDenseNames};
constexpr KeyRule kGemma3nKeys[] = {{"sliding_window", "attention.sliding_window"},
                                    {"num_kv_shared_layers", "attention.shared_kv_layers"},
                                    {"hidden_size_per_layer_input", "embedding_length_per_layer_input"},
                                    {"altup_num_inputs", "altup.num_inputs"},
                                    {"altup_active_idx", "altup.active_idx"},
                                    {"final_logit_softcapping", "final_logit_softcapping", KeyRule::Kind::number}};

constexpr std::int64_t kGemma4UsualPeriod = 6, kUsualGlobalHead = 512, kGemma4Most = 1 << 16;
constexpr const char *kLocal = "sliding_attention", *kGlobal = "full_attention";

std::vector<std::string> kinds_of_layers(Config& config, std::int64_t usual_period) {
  std::vector<std::string> kinds = config.texts("layer_types");
  const auto layers = config.required("num_hidden_layers", 1, kGemma4Most);
  if (kinds.empty())
    for (std::int64_t i = 1; i <= layers; ++i) kinds.emplace_back(i % usual_period == 0 ? kGlobal : kLocal);
  if (std::ssize(kinds) != layers)
    config.fail(error(Code::corrupt, "layer_types in config.json has {} entries for {} layers", kinds.size(), layers));
  return kinds;
}

void set_local(const std::vector<std::string>& kinds, Header& header) {
  std::vector<bool> local;
  for (const std::string& kind : kinds) local.push_back(kind == kLocal);
  header.set("attention.sliding_window_pattern", modelfile::array_value(local));
}

std::vector<std::string> gemma4_kinds(Config& config) {
  std::vector<std::string> kinds = kinds_of_layers(config, kGemma4UsualPeriod);
  if (!kinds.empty()) kinds.back() = kGlobal;  // transformers forces full attention in the last layer
  return kinds;
}

/// Replaces the per-layer overrides that transformers 5 saves by the two keys of published files.
void read_overrides(Config& config, const std::vector<std::string>& kinds) {
  const nlohmann::json* const overrides = config.find("per_layer_config");
  if (overrides == nullptr || !overrides->is_object()) return;
  nlohmann::json head, heads;
  for (const auto& [layer, values] : overrides->items()) {
    if (!values.is_object()) continue;
    for (const auto& [key, value] : values.items()) {
      nlohmann::json& kept = key == "head_dim" ? head : heads;
      const bool known = key == "head_dim" || key == "num_key_value_heads";
      if (!known || (!kept.is_null() && kept != value))
        return config.fail(error(Code::unsupported,
                                 "per_layer_config in config.json: this version has one head_dim and one "
                                 "num_key_value_heads for all layers that see everything, and no other overrides"));
      kept = value;
    }
  }
  const auto globals = std::count(kinds.begin(), kinds.end(), kGlobal);
  if (static_cast<std::int64_t>(overrides->size()) != globals)
    return config.fail(error(Code::unsupported, "per_layer_config in config.json has {} layers, of which {} see all",
                             overrides->size(), globals));
  if (!head.is_null()) config.set("global_head_dim", head);
  if (!heads.is_null()) config.set("num_global_key_value_heads", heads);
}

void prepare_gemma4(Config& config) {
  // 12B's class has no per-layer embeddings, so its files have no key that excludes them.
  if (config.text("model_type", "") == "gemma4_unified_text") config.set("hidden_size_per_layer_input", 0);
  if (!config.flag("enable_moe_block", false))
    for (const char* key : {"num_experts", "top_k_experts", "moe_intermediate_size"}) config.drop(key);
  read_overrides(config, gemma4_kinds(config));
  config.set("global_head_dim", config.optional("global_head_dim", kUsualGlobalHead, 2, kGemma4Most));
}

void read_gemma4(Config& config, Header& header) {
  const std::vector<std::string> kinds = gemma4_kinds(config);
  const std::int64_t local_head = header.integer("attention.key_length");
  const std::int64_t head = config.required("global_head_dim", 2, kGemma4Most);
  for (const char* key : {"attention.key_length", "attention.value_length", "rope.dimension_count"})
    header.set_integer(key, head);
  for (const char* key : {"attention.key_length_swa", "attention.value_length_swa", "rope.dimension_count_swa"})
    header.set_integer(key, local_head);
  set_local(kinds, header);
  // Readers assume 30 if the key is absent.
  if (!header.has("final_logit_softcapping")) header.set_number("final_logit_softcapping", 0);

  const std::int64_t heads = header.integer("attention.head_count_kv");
  if (const std::int64_t global = config.optional("num_global_key_value_heads", heads, 1, kGemma4Most);
      config.flag("attention_k_eq_v", false) && global != heads) {
    std::vector<std::int64_t> all;
    for (const std::string& kind : kinds) all.push_back(kind == kLocal ? heads : global);
    header.set_integers("attention.head_count_kv", all);
  }
  if (config.flag("use_double_wide_mlp", false)) {
    const std::int64_t width = header.integer("feed_forward_length");
    const std::int64_t first_shared = std::ssize(kinds) - header.integer("attention.shared_kv_layers");
    std::vector<std::int64_t> all;
    for (std::int64_t i = 0; i < std::ssize(kinds); ++i) all.push_back(i < first_shared ? width : 2 * width);
    header.set_integers("feed_forward_length", all);
  }
  config.expect("hidden_activation", "gelu_pytorch_tanh");
  if (config.text("use_bidirectional_attention", "vision") != "vision")  // for pictures only
    config.expect("use_bidirectional_attention", nullptr);
  config.disregard({"vocab_size_per_layer_input"});  // the embedding's rows
}

Status write_gemma4(const Header& header, nlohmann::json& config) {
  const std::vector<std::int64_t> local = header.of_layers("attention.sliding_window_pattern");
  const std::vector<std::int64_t> heads = header.of_layers("attention.head_count_kv");
  const std::vector<std::int64_t> widths = header.of_layers("feed_forward_length");
  if (local.empty() || heads.size() != local.size() || widths.empty())
    return error(Code::corrupt, "the file lacks which of Gemma 4's layers have a window, or their widths");
  nlohmann::json kinds = nlohmann::json::array();
  for (std::size_t i = 0; i < local.size(); ++i) {
    kinds.push_back(local[i] != 0 ? kLocal : kGlobal);
    config[local[i] != 0 ? "num_key_value_heads" : "num_global_key_value_heads"] = heads[i];
  }
  config["layer_types"] = kinds;
  config["head_dim"] = header.integer("attention.key_length_swa");
  config["global_head_dim"] = header.integer("attention.key_length");
  config["intermediate_size"] = widths.front();
  config["use_double_wide_mlp"] = widths.back() != widths.front();
  config["enable_moe_block"] = header.integer("expert_count") > 0;
  config["attention_k_eq_v"] = config.value("attention_k_eq_v", false);
  config["vocab_size_per_layer_input"] = config["vocab_size"];
  config["hidden_activation"] = "gelu_pytorch_tanh";
  if (header.number("final_logit_softcapping") == 0) config["final_logit_softcapping"] = nullptr;
  for (const char* key : {"hidden_act", "rope_scaling", "rope_theta", "rope_local_base_freq"}) config.erase(key);
  return {};
}

constexpr std::int64_t kPeriodOf3n = 5, kSparseLayersOf3n = 10;
constexpr double kSparsityOf3n = 0.95;

double share_below(double deviations) { return 0.5 * std::erfc(-deviations / std::sqrt(2.0)); }

/// The quantile of the standard normal distribution for this share; -infinity for none.
double deviations_of(double share) {
  if (share <= 0) return -std::numeric_limits<double>::infinity();
  double least = -40, most = 40;
  for (int i = 0; i < 200; ++i) (share_below((least + most) / 2) < share ? least : most) = (least + most) / 2;
  return most;
}

/// The width of the feed-forward may be a list, which common_keys() does not handle.
void prepare_gemma3n(Config& config) {
  const nlohmann::json* const widths = config.find("intermediate_size");
  if (widths == nullptr || !widths->is_array()) return;
  const nlohmann::json all = *widths;
  const auto layers = static_cast<std::size_t>(config.required("num_hidden_layers", 1, kGemma4Most));
  if (all.size() != layers)
    return config.fail(
        error(Code::corrupt, "intermediate_size in config.json has {} entries for {} layers", all.size(), layers));
  config.set("widths of layers", all);
  config.set("intermediate_size", all.front());
}

void read_gemma3n(Config& config, Header& header) {
  const std::vector<std::string> kinds = kinds_of_layers(config, kPeriodOf3n);
  set_local(kinds, header);
  std::vector<double> sparsity = config.numbers("activation_sparsity_pattern");
  if (!config.has("activation_sparsity_pattern")) {
    sparsity.assign(kinds.size(), 0);
    if (std::ssize(kinds) > kSparseLayersOf3n) std::fill_n(sparsity.begin(), kSparseLayersOf3n, kSparsityOf3n);
  }
  if (sparsity.size() != kinds.size())
    config.fail(error(Code::corrupt, "activation_sparsity_pattern in config.json has {} entries for {} layers",
                      sparsity.size(), kinds.size()));
  std::vector<float> deviations;
  for (const double share : sparsity) {
    if (!(share >= 0 && share < 1))
      config.fail(error(Code::corrupt, "activation_sparsity_pattern in config.json has {}, which is no share", share));
    deviations.push_back(static_cast<float>(deviations_of(static_cast<float>(share))));
  }
  header.set("activation_sparsity_scale", modelfile::array_value(deviations));
  if (const std::vector<double> widths = config.numbers("widths of layers");
      std::any_of(widths.begin(), widths.end(), [&](double width) { return width != widths.front(); }))
    header.set_integers("feed_forward_length", {widths.begin(), widths.end()});
  config.expect("hidden_activation", "gelu_pytorch_tanh");
  config.expect("altup_correct_scale", true);
  // The table's rows; the matrices' rows; of training.
  config.disregard({"vocab_size_per_layer_input", "laurel_rank", "altup_coef_clip"});
}

Status write_gemma3n(const Header& header, nlohmann::json& config) {
  const std::vector<std::int64_t> local = header.of_layers("attention.sliding_window_pattern");
  const std::vector<double> deviations = header.numbers("activation_sparsity_scale");
  if (local.empty() || deviations.size() != local.size())
    return error(Code::corrupt, "the file lacks which of Gemma 3n's layers have a window, or their sparsity");
  nlohmann::json kinds = nlohmann::json::array(), sparsity = nlohmann::json::array();
  for (const std::int64_t is_local : local) kinds.push_back(is_local != 0 ? kLocal : kGlobal);
  constexpr double kDigits = 1e6;  // more digits than configs have
  for (const double each : deviations) sparsity.push_back(std::round(share_below(each) * kDigits) / kDigits);
  config["layer_types"] = kinds;
  config["activation_sparsity_pattern"] = sparsity;
  config["intermediate_size"] = header.of_layers("feed_forward_length");
  config["altup_correct_scale"] = true;
  config["vocab_size_per_layer_input"] = config["vocab_size"];
  config["hidden_activation"] = "gelu_pytorch_tanh";
  config.erase("hidden_act");
  return {};
}

}  // namespace

const Family kGemma3n{.model_type = "gemma3n_text",
                      .model_class = "Gemma3nForCausalLM",
                      .architecture = "gemma3n",
                      .names = kGemma3nNames,
                      .keys = {kGemma3nKeys},
                      .prepare = prepare_gemma3n,
                      .read = read_gemma3n,
                      .write = write_gemma3n};
const Family kGemma4{.model_type = "gemma4_text",
                     .model_class = "Gemma4ForCausalLM",
                     .architecture = "gemma4",
                     .names = kGemma4Names,
                     .keys = {kGemma4Keys},
                     .prepare = prepare_gemma4,
                     .read = read_gemma4,
                     .write = write_gemma4};

}  // namespace millrace::convert
