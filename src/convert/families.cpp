#include <algorithm>
#include <array>
#include <map>

#include "base/log.h"
#include "convert/family.h"
#include "modelfile/escape.h"
#include "modelfile/gguf_writer.h"

namespace millrace::convert {
namespace {

// If several families match a GGUF file, export uses the first.
constexpr std::array kFamilies{&kLlama,
                               &kLlama4,
                               &kMixtral,
                               &kMistral,
                               &kMinistral3,
                               &kQwen2,
                               &kQwen3,
                               &kQwen3Moe,
                               &kQwen3Next,
                               &kQwen35,
                               &kQwen35Moe,
                               &kQwen4Exp,
                               &kGemma2,
                               &kGemma3,
                               &kGemma3n,
                               &kGemma4,
                               &kGptOss,
                               &kGranite,
                               &kGraniteHybrid,
                               &kGraniteHybridDense,
                               &kPhi3,
                               &kPhiMoe,
                               &kGlm4Moe,
                               &kMiniMaxM2,
                               &kMiniMaxM3,
                               &kDeepSeekV2,
                               &kDeepSeekV3,
                               &kKimiK2,
                               &kGlm4MoeLite,
                               &kDeepSeekV4,
                               &kStep35,
                               &kLfm2,
                               &kLfm2Moe,
                               &kMamba,
                               &kFalconMamba,
                               &kJamba,
                               &kMamba2,
                               &kNemotronH,
                               &kQwen2Vl,
                               &kQwen2Moe,
                               &kQwen3Vl,
                               &kQwen3VlMoe,
                               &kSeedOss,
                               &kSmolLm3,
                               &kArcee,
                               &kErnie45,
                               &kGlm4v,
                               &kGlm4,
                               &kGemma,
                               &kHunyuanDense,
                               &kOlmo3,
                               &kOlmo2,
                               &kChatGlm,
                               &kCohere,
                               &kCohere2,
                               &kStableLm,
                               &kStarCoder2,
                               &kNemotron,
                               &kPhi2,
                               &kAfmoe,
                               &kLaguna,
                               &kExaone4,
                               &kGraniteMoeShared,
                               &kGraniteMoe,
                               &kMiniCpm,
                               &kOlmoe,
                               &kErnie45Moe,
                               &kDots1,
                               &kDeepSeek,
                               &kBailingMoe2,
                               &kHunyuanMoe,
                               &kHyV3,
                               &kExaoneMoe,
                               &kDeepSeekV32,
                               &kGlmMoeDsa,
                               &kMistral4,
                               &kMimoV2,
                               &kKimiLinear,
                               &kLing3,
                               &kCohere2Moe,
                               &kJais2,
                               &kGpt2,
                               &kGptBigCode,
                               &kGptNeox,
                               &kFalcon,
                               &kFalconH1,
                               &kBloom,
                               &kMpt,
                               &kBert,
                               &kXlmRoberta,
                               &kRoberta,
                               &kNomicBert,
                               &kModernBert,
                               &kEuroBert,
                               &kJinaV3};

/// Model types of the language model within multimodal ones, and aliases.
struct Alias {
  std::string_view model_type, is;
};
constexpr Alias kAliases[] = {{"gemma3n", "gemma3n_text"},
                              {"llama4", "llama4_text"},
                              {"gemma3", "gemma3_text"},
                              {"gemma4", "gemma4_text"},
                              {"gemma4_unified", "gemma4_text"},
                              {"gemma4_unified_text", "gemma4_text"},
                              {"qwen3_5", "qwen3_5_text"},
                              {"qwen3_5_moe", "qwen3_5_moe_text"},
                              {"qwen4_exp", "qwen4_exp_text"},
                              {"glm4v_moe_text", "glm4_moe"},
                              {"qwen2_5_vl_text", "qwen2_vl_text"},
                              {"glm4v", "glm4v_text"},
                              {"glm46v_text", "glm4v_text"},
                              {"qwen2_5_vl", "qwen2_vl_text"},
                              {"qwen2_vl", "qwen2_vl_text"},
                              {"qwen3_vl", "qwen3_vl_text"},
                              {"qwen3_vl_moe", "qwen3_vl_moe_text"},
                              {"minimax", "minimax_m2"},
                              {"minimax_m3_vl", "minimax_m3_vl_text"},
                              {"glm_moe_lite", "glm4_moe_lite"}};

constexpr KeyRule kCommonKeys[] = {
    {"num_hidden_layers", "block_count"},
    {"max_position_embeddings", "context_length"},
    {"hidden_size", "embedding_length"},
    {"intermediate_size", "feed_forward_length"},
    {"num_attention_heads", "attention.head_count"},
    {"num_key_value_heads", "attention.head_count_kv"},
    {"rms_norm_eps", "attention.layer_norm_rms_epsilon", KeyRule::Kind::number},
    {"vocab_size", "vocab_size"},
};

}  // namespace

void write_layer_types(const Header& header, std::string_view attends, std::string_view other, nlohmann::json& config) {
  nlohmann::json kinds = nlohmann::json::array();
  std::int64_t most = 0;
  for (const std::int64_t heads : header.of_layers("attention.head_count_kv")) {
    kinds.push_back(heads > 0 ? attends : other);
    most = std::max(most, heads);
  }
  config["layer_types"] = kinds;
  config["num_key_value_heads"] = most;
}

nlohmann::json periodic_layer_types(const Header& header, std::int64_t period, std::string_view other) {
  nlohmann::json kinds = nlohmann::json::array();
  for (std::int64_t i = 1; i <= header.layers(); ++i) kinds.push_back(i % period == 0 ? "full_attention" : other);
  return kinds;
}

void read_sections(Config& config, Header& header) {
  Config rope = config.within("rope_parameters");
  auto sections = rope.numbers("mrope_section");
  if (sections.empty()) sections = config.within("rope_scaling").numbers("mrope_section");
  config.fail(rope.status());
  if (sections.empty()) return;
  sections.resize(4, 0);
  header.set_integers("rope.dimension_sections", {sections.begin(), sections.end()});
}

void write_sections(const Header& header, bool interleaved, nlohmann::json& config) {
  auto sections = header.integers("rope.dimension_sections");
  if (sections.empty()) return;
  sections.resize(3);
  config["rope_parameters"]["mrope_section"] = sections;
  if (interleaved) config["rope_parameters"]["mrope_interleaved"] = true;
}

void read_windows(Config& config, Header& header) {
  const auto kinds = config.texts("layer_types");
  const std::int64_t window = config.optional("sliding_window", 0, 0, 1 << 28);
  const bool any = std::find(kinds.begin(), kinds.end(), "sliding_attention") != kinds.end();
  // Without layer_types, a period gives the layers with full attention; null means none.
  const std::int64_t given = config.optional("sliding_window_pattern", 0, 0, 1 << 16);
  if (window == 0 || (!kinds.empty() && !any)) return;
  header.set_integer("attention.sliding_window", window);
  const auto first = std::find(kinds.begin(), kinds.end(), "full_attention");
  const std::int64_t period = kinds.empty() ? given : first - kinds.begin() + 1;
  std::vector<bool> local;
  bool repeats = period > 1 && first != kinds.end();
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    local.push_back(kinds[i] == "sliding_attention");
    repeats &= local.back() == (static_cast<std::int64_t>(i + 1) % period != 0);
  }
  if (kinds.empty() || repeats)
    header.set_integer("attention.sliding_window_pattern", period);
  else
    header.set("attention.sliding_window_pattern", modelfile::array_value(local));
}

void write_windows(const Header& header, std::int64_t usual_period, nlohmann::json& config) {
  const std::int64_t window = header.integer("attention.sliding_window");
  config["sliding_window"] = window > 0 ? nlohmann::json(window) : nlohmann::json();
  if (window == 0) {
    config["layer_types"] = periodic_layer_types(header, 1, "sliding_attention");
    return;
  }
  const std::int64_t period = header.integer("attention.sliding_window_pattern", usual_period);
  config["layer_types"] = periodic_layer_types(header, period, "sliding_attention");
  config["sliding_window_pattern"] = period;
  const auto local = header.integers("attention.sliding_window_pattern");
  for (std::size_t i = 0; i < local.size() && i < config["layer_types"].size(); ++i)
    config["layer_types"][i] = local[i] != 0 ? "sliding_attention" : "full_attention";
}

std::int64_t leading_dense(Config& config, std::int64_t usual) {
  const std::vector<std::string> kinds = config.texts("mlp_layer_types");
  if (kinds.empty()) return config.optional("first_k_dense_replace", usual, 0, 1 << 16);
  config.disregard({"first_k_dense_replace"});  // the list takes precedence
  std::size_t dense = 0;
  while (dense < kinds.size() && kinds[dense] == "dense") ++dense;
  for (std::size_t i = dense; i < kinds.size(); ++i)
    if (kinds[i] != "sparse")
      config.fail(error(Code::unsupported,
                        "mlp_layer_types in config.json: layer {} is '{}' behind a mixture; this version has dense "
                        "layers in front alone",
                        i, modelfile::escape(kinds[i], 40)));
  return static_cast<std::int64_t>(dense);
}

void write_leading_dense(const Header& header, nlohmann::json& config, std::int64_t usual) {
  const std::int64_t dense = header.integer("leading_dense_block_count", usual);
  nlohmann::json kinds = nlohmann::json::array();
  for (std::int64_t i = 0; i < header.layers(); ++i) kinds.push_back(i < dense ? "dense" : "sparse");
  config["mlp_layer_types"] = kinds;
  config["first_k_dense_replace"] = dense;
}

void expect_mixtures_alone(Config& config) {
  config.expect("decoder_sparse_step", 1);
  config.expect("mlp_only_layers", nlohmann::json::array());
  config.disregard({"intermediate_size"});  // of dense layers; there are none
}

void write_mixtures_alone(const Header& header, nlohmann::json& config) {
  config["decoder_sparse_step"] = 1;
  config["mlp_only_layers"] = nlohmann::json::array();
  config["norm_topk_prob"] = header.flag("expert_weights_norm", true);
}

Keys common_keys() { return kCommonKeys; }

void set_keys(Keys rules, Config& config, Header& header) {
  for (const KeyRule& rule : rules) {
    if (!config.has(rule.theirs)) continue;
    switch (rule.kind) {
      case KeyRule::Kind::integer:
        header.set_integer(rule.ours, config.required(rule.theirs, 0, std::int64_t{1} << 31));
        break;
      case KeyRule::Kind::number:
        header.set_number(rule.ours, config.number(rule.theirs, 0));
        break;
      case KeyRule::Kind::flag:
        header.set(rule.ours, config.flag(rule.theirs, false));
        break;
    }
  }
}

void set_heads(Config& config, Header& header) {
  const std::int64_t heads = header.integer("attention.head_count");
  if (heads == 0) return;
  const std::int64_t usual = std::max<std::int64_t>(1, header.integer("embedding_length") / heads);
  const std::int64_t dim = config.optional("head_dim", usual, 1, 1 << 16);
  header.set_integer("attention.key_length", dim);
  header.set_integer("attention.value_length", dim);
  if (!header.has("attention.head_count_kv")) header.set_integer("attention.head_count_kv", heads);
}

const Family* family_of_checkpoint(std::string_view model_type) {
  for (const Alias& alias : kAliases)
    if (alias.model_type == model_type) model_type = alias.is;
  for (const Family* family : kFamilies)
    if (family->model_type == model_type) return family;
  return nullptr;
}

const Family* family_of_file(const Header& header) {
  for (const Family* family : kFamilies) {
    const bool named = header.architecture() == family->architecture ||
                       (!family->mixture.empty() && header.architecture() == family->mixture);
    if (named && (family->matches == nullptr || family->matches(header))) return family;
  }
  return nullptr;
}

std::string architecture_of(const Family& family, const Config& config) {
  const bool mixture = !family.mixture.empty() && config.has("n_routed_experts");
  return std::string(mixture ? family.mixture : family.architecture);
}

std::vector<std::string> layer_kinds(Config& config, std::string_view key) {
  static const std::map<std::string, std::string, std::less<>> kNow = {
      {"attention", "full_attention"}, {"mamba", "linear_attention"}, {"mamba2", "linear_attention"}};
  std::vector<std::string> kinds = config.texts(key);
  for (std::string& kind : kinds)
    if (const auto now = kNow.find(kind); now != kNow.end()) kind = now->second;
  return kinds;
}

void shorten_to_window(Config& config, Header& header) {
  if (!config.has("sliding_window")) return;
  const std::int64_t window = config.required("sliding_window", 1, 1 << 28);
  if (window >= header.integer("context_length")) return;
  log::warn(
      "layers see a window of {} tokens, which readers of this architecture do not know: the file's context is {} "
      "in place of {}",
      window, window, header.integer("context_length"));
  header.set_integer("context_length", window);
}

std::string known_families() {
  std::string list;
  for (const Family* family : kFamilies)
    if (family != &kGraniteHybridDense) list += (list.empty() ? "" : ", ") + std::string(family->model_type);
  return list;
}

}  // namespace millrace::convert
