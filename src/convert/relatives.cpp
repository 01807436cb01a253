// Dense models whose checkpoints differ from Llama's or Qwen's by a few names: SmolLM3, AFM, ERNIE 4.5, GLM-4-0414,
// GLM-4 of 2024, Gemma, Hunyuan, OLMo 2 and 3, and EXAONE 4.
#include "convert/names.h"

namespace millrace::convert {
namespace {

constexpr Names kNames[] = {kTopNames, kAttentionNames, kFfnNorm, kDenseNames};

constexpr NameRule kResultNorms[] = {
    {"model.layers.#.post_attention_layernorm.weight", "blk.#.post_attention_norm.weight"},
    {"model.layers.#.post_feedforward_layernorm.weight", "blk.#.post_ffw_norm.weight"},
};
constexpr Names kResultNames[] = {kTopNames, kAttentionNames, kResultNorms, kDenseNames};

constexpr NameRule kFusedUp[] = {
    {"model.layers.#.mlp.gate_up_proj.weight", "blk.#.ffn_up.weight"},
    {"model.layers.#.mlp.down_proj.weight", "blk.#.ffn_down.weight"},
};
constexpr Names kChatGlmNames[] = {kTopNames, kAttentionNames, kFfnNorm, kFusedUp};

constexpr NameRule kGlmNorms[] = {
    {"model.layers.#.post_self_attn_layernorm.weight", "blk.#.post_attention_norm.weight"},
    {"model.layers.#.post_mlp_layernorm.weight", "blk.#.post_ffw_norm.weight"},
};
constexpr Names kGlmNames[] = {kTopNames, kAttentionNames, kFfnNorm, kGlmNorms, kFusedUp};

constexpr NameRule kHunyuan[] = {
    {"model.layers.#.self_attn.query_layernorm.weight", "blk.#.attn_q_norm.weight"},
    {"model.layers.#.self_attn.key_layernorm.weight", "blk.#.attn_k_norm.weight"},
};
constexpr Names kHunyuanNames[] = {kTopNames, kAttentionNames, kHunyuan, kFfnNorm, kDenseNames};

void read(Config& config, Header& header) {
  header.set_integer("rope.dimension_count", header.integer("attention.key_length"));
  config.expect("hidden_act", "silu");
  config.disregard({"use_bias"});  // told by the tensors
}

void read_glm4v(Config& config, Header& header) {
  config.expect("hidden_act", "silu");
  read_sections(config, header);
  if (!header.has("rope.dimension_sections"))
    config.fail(error(Code::unsupported, "config.json of GLM-4.1V has no mrope_section in its rope_parameters"));
}

Status write_glm4v(const Header& header, nlohmann::json& config) {
  write_sections(header, false, config);
  return {};
}

bool has_sections(const Header& header) { return header.has("rope.dimension_sections"); }

/// Readers know which layers are not rotated: every fourth.
void read_smollm3(Config& config, Header& header) {
  read(config, header);
  config.expect("use_sliding_window", false);
  config.disregard({"sliding_window", "layer_types"});
  config.expect("no_rope_layer_interval", 4);
  const auto rotated = config.numbers("no_rope_layers");
  for (std::size_t i = 0; i < rotated.size(); ++i)
    if ((rotated[i] != 0) != ((i + 1) % 4 != 0))
      config.fail(
          error(Code::unsupported,
                "no_rope_layers in config.json: layer {} is out of the order of such models, whose every fourth "
                "layer is not rotated",
                i));
}

Status write_smollm3(const Header& header, nlohmann::json& config) {
  nlohmann::json rotated = nlohmann::json::array();
  for (std::int64_t i = 1; i <= header.layers(); ++i) rotated.push_back(i % 4 == 0 ? 0 : 1);
  config["no_rope_layers"] = rotated;
  config["no_rope_layer_interval"] = 4;
  return {};
}

void read_arcee(Config& config, Header& header) {
  header.set_integer("rope.dimension_count", header.integer("attention.key_length"));
  config.expect("hidden_act", "relu2");
}

Status write_arcee(const Header&, nlohmann::json& config) {
  config["hidden_act"] = "relu2";
  return {};
}

void read_silu(Config& config, Header&) { config.expect("hidden_act", "silu"); }

/// Readers take GELU in its tanh form, as transformers does whatever the old name says.
void read_gemma(Config& config, Header&) {
  const std::string activation = config.text("hidden_activation", config.text("hidden_act", "gelu_pytorch_tanh"));
  if (activation != "gelu_pytorch_tanh" && activation != "gelu") config.expect("hidden_act", "gelu_pytorch_tanh");
  config.expect("use_bidirectional_attention", false);
}

Status write_gemma(const Header&, nlohmann::json& config) {
  config["hidden_act"] = "gelu_pytorch_tanh";
  return {};
}

void read_windowed(Config& config, Header& header) {
  read_windows(config, header);
  config.expect("hidden_act", "silu");
}

Status write_windowed(const Header& header, nlohmann::json& config) {
  write_windows(header, 4, config);
  return {};
}

bool has_windows(const Header& header) { return header.integer("attention.sliding_window") > 0; }

}  // namespace

const Family kSmolLm3{.model_type = "smollm3",
                      .model_class = "SmolLM3ForCausalLM",
                      .architecture = "smollm3",
                      .names = kNames,
                      .neighbours = true,
                      .pre = "smaug-bpe",
                      .read = read_smollm3,
                      .write = write_smollm3};
const Family kArcee{.model_type = "arcee",
                    .model_class = "ArceeForCausalLM",
                    .architecture = "arcee",
                    .names = kNames,
                    .neighbours = true,
                    .pre = "llama-bpe",
                    .read = read_arcee,
                    .write = write_arcee};
const Family kErnie45{.model_type = "ernie4_5",
                      .model_class = "Ernie4_5ForCausalLM",
                      .architecture = "ernie4_5",
                      .names = kNames,
                      .read = read};
const Family kGlm4{.model_type = "glm4",
                   .model_class = "Glm4ForCausalLM",
                   .architecture = "glm4",
                   .names = kGlmNames,
                   .pre = "glm4",
                   .read = read_silu};
const Family kGlm4v{.model_type = "glm4v_text",
                    .model_class = "Glm4vForConditionalGeneration",
                    .architecture = "glm4",
                    .names = kGlmNames,
                    .halves = true,
                    .pre = "glm4",
                    .read = read_glm4v,
                    .write = write_glm4v,
                    .matches = has_sections};
const Family kGemma{.model_type = "gemma",
                    .model_class = "GemmaForCausalLM",
                    .architecture = "gemma",
                    .names = kNames,
                    .norm_shift = 1,
                    .read = read_gemma,
                    .write = write_gemma};
const Family kHunyuanDense{.model_type = "hunyuan_v1_dense",
                           .model_class = "HunYuanDenseV1ForCausalLM",
                           .architecture = "hunyuan-dense",
                           .names = kHunyuanNames,
                           .pre = "hunyuan-dense",
                           .read = read_silu};
const Family kChatGlm{.model_type = "glm",
                      .model_class = "GlmForCausalLM",
                      .architecture = "chatglm",
                      .names = kChatGlmNames,
                      .pre = "chatglm-bpe",
                      .read = read_silu};
const Family kOlmo3{.model_type = "olmo3",
                    .model_class = "Olmo3ForCausalLM",
                    .architecture = "olmo2",
                    .names = kResultNames,
                    .read = read_windowed,
                    .write = write_windowed,
                    .matches = has_windows};
const Family kOlmo2{.model_type = "olmo2",
                    .model_class = "Olmo2ForCausalLM",
                    .architecture = "olmo2",
                    .names = kResultNames,
                    .read = read_silu};
const Family kExaone4{.model_type = "exaone4",
                      .model_class = "Exaone4ForCausalLM",
                      .architecture = "exaone4",
                      .names = kResultNames,
                      .pre = "exaone4",
                      .read = read_windowed,
                      .write = write_windowed};

}  // namespace millrace::convert
