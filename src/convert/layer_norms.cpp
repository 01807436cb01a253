// Decoders with LayerNorm: Command R and R7B, StableLM, StarCoder 2, Nemotron, Phi-2, Jais 2.
#include "convert/names.h"

namespace millrace::convert {
namespace {

constexpr NameRule kBiases[] = {
    {"model.layers.#.input_layernorm.bias", "blk.#.attn_norm.bias"},
    {"model.layers.#.post_attention_layernorm.bias", "blk.#.ffn_norm.bias"},
    {"model.norm.bias", "output_norm.bias"},
};
constexpr Names kLayerNormsNames[] = {kTopNames, kAttentionNames, kFfnNorm, kBiases, kDenseNames};
constexpr NameRule kWithoutGate[] = {
    {"model.layers.#.mlp.c_fc.weight", "blk.#.ffn_up.weight"},
    {"model.layers.#.mlp.c_fc.bias", "blk.#.ffn_up.bias"},
    {"model.layers.#.mlp.c_proj.weight", "blk.#.ffn_down.weight"},
    {"model.layers.#.mlp.c_proj.bias", "blk.#.ffn_down.bias"},
};
constexpr NameRule kDenseBiases[] = {
    {"model.layers.#.mlp.up_proj.bias", "blk.#.ffn_up.bias"},
    {"model.layers.#.mlp.down_proj.bias", "blk.#.ffn_down.bias"},
};
constexpr Names kJais2Names[] = {kTopNames, kAttentionNames, kFfnNorm, kBiases, kDenseNames, kDenseBiases};
constexpr Names kStarCoderNames[] = {kTopNames, kAttentionNames, kFfnNorm, kBiases, kWithoutGate};

constexpr NameRule kPhi[] = {
    {"model.layers.#.self_attn.dense.weight", "blk.#.attn_output.weight"},
    {"model.layers.#.self_attn.dense.bias", "blk.#.attn_output.bias"},
    {"model.layers.#.mlp.fc1.weight", "blk.#.ffn_up.weight"},
    {"model.layers.#.mlp.fc1.bias", "blk.#.ffn_up.bias"},
    {"model.layers.#.mlp.fc2.weight", "blk.#.ffn_down.weight"},
    {"model.layers.#.mlp.fc2.bias", "blk.#.ffn_down.bias"},
    {"model.final_layernorm.weight", "output_norm.weight"},
    {"model.final_layernorm.bias", "output_norm.bias"},
    {"lm_head.bias", "output.bias"},
};
constexpr Names kPhiNames[] = {kPhi, kTopNames, kAttentionNames, kBiases};

constexpr KeyRule kStableLmKeys[] = {{"layer_norm_eps", "attention.layer_norm_epsilon", KeyRule::Kind::number},
                                     {"use_parallel_residual", "use_parallel_residual", KeyRule::Kind::flag}};
constexpr KeyRule kStarCoderKeys[] = {{"norm_epsilon", "attention.layer_norm_epsilon", KeyRule::Kind::number}};
constexpr KeyRule kPhiKeys[] = {{"layer_norm_eps", "attention.layer_norm_epsilon", KeyRule::Kind::number}};
constexpr KeyRule kNemotronKeys[] = {{"norm_eps", "attention.layer_norm_epsilon", KeyRule::Kind::number}};

void read_cohere(Config& config, Header&) {
  config.expect("use_qk_norm", false);
  config.expect("hidden_act", "silu");
}

void read_cohere2(Config& config, Header& header) {
  header.set_integer("rope.dimension_count", header.integer("attention.key_length"));
  read_windows(config, header);
  config.expect("hidden_act", "silu");
}

Status write_cohere(const Header&, nlohmann::json& config) {
  config["use_qk_norm"] = false;
  return {};
}

Status write_cohere2(const Header& header, nlohmann::json& config) {
  write_windows(header, 4, config);
  return {};
}

void read_stablelm(Config& config, Header&) {
  config.expect("qk_layernorm", false);
  config.expect("hidden_act", "silu");
  config.disregard({"use_qkv_bias", "hidden_dropout"});  // told by the tensors; of training
}

Status write_stablelm(const Header&, nlohmann::json& config) {
  config["qk_layernorm"] = false;
  config["use_qkv_bias"] = config["attention_bias"];
  return {};
}

/// Readers of GGUF know of no window here, and take GELU in its tanh form.
void read_starcoder2(Config& config, Header& header) {
  shorten_to_window(config, header);
  config.expect("hidden_act", "gelu_pytorch_tanh");
  config.disregard({"use_bias", "residual_dropout", "embedding_dropout"});
}

Status write_starcoder2(const Header&, nlohmann::json& config) {
  config["hidden_act"] = "gelu_pytorch_tanh";
  config["use_bias"] = config["attention_bias"];
  config["sliding_window"] = nullptr;
  return {};
}

void read_phi(Config& config, Header&) {
  config.expect("qk_layernorm", false);
  if (config.text("hidden_act", "gelu_new") != "gelu_pytorch_tanh") config.expect("hidden_act", "gelu_new");
  config.disregard({"resid_pdrop", "embd_pdrop"});  // of training
}

Status write_phi(const Header&, nlohmann::json& config) {
  config["hidden_act"] = "gelu_new";
  config["qk_layernorm"] = false;
  return {};
}

void read_nemotron(Config& config, Header&) { config.expect("hidden_act", "relu2"); }

void read_jais2(Config& config, Header& header) {
  header.set_integer("rope.dimension_count", header.integer("attention.key_length"));
  config.expect("hidden_act", "relu2");
  config.disregard({"attention_bias", "mlp_bias"});  // told by the tensors
}

Status write_jais2(const Header&, nlohmann::json& config) {
  config["hidden_act"] = "relu2";
  config["mlp_bias"] = true;
  return {};
}

Status write_nemotron(const Header&, nlohmann::json& config) {
  config["hidden_act"] = "relu2";
  return {};
}

}  // namespace

const Family kCohere{.model_type = "cohere",
                     .model_class = "CohereForCausalLM",
                     .architecture = "command-r",
                     .names = kLayerNormsNames,
                     .keys = {kCohereKeys},
                     .pre = "command-r",
                     .read = read_cohere,
                     .write = write_cohere};
const Family kCohere2{.model_type = "cohere2",
                      .model_class = "Cohere2ForCausalLM",
                      .architecture = "cohere2",
                      .names = kLayerNormsNames,
                      .keys = {kCohereKeys},
                      .pre = "command-r",
                      .read = read_cohere2,
                      .write = write_cohere2};
const Family kStableLm{.model_type = "stablelm",
                       .model_class = "StableLmForCausalLM",
                       .architecture = "stablelm",
                       .names = kLayerNormsNames,
                       .keys = {kStableLmKeys},
                       .pre = "stablelm2",
                       .read = read_stablelm,
                       .write = write_stablelm};
const Family kStarCoder2{.model_type = "starcoder2",
                         .model_class = "Starcoder2ForCausalLM",
                         .architecture = "starcoder2",
                         .names = kStarCoderNames,
                         .keys = {kStarCoderKeys},
                         .pre = "starcoder",
                         .read = read_starcoder2,
                         .write = write_starcoder2};
const Family kPhi2{.model_type = "phi",
                   .model_class = "PhiForCausalLM",
                   .architecture = "phi2",
                   .names = kPhiNames,
                   .keys = {kPhiKeys},
                   .pre = "phi-2",
                   .read = read_phi,
                   .write = write_phi};
const Family kNemotron{.model_type = "nemotron",
                       .model_class = "NemotronForCausalLM",
                       .architecture = "nemotron",
                       .names = kLayerNormsNames,
                       .keys = {kNemotronKeys},
                       .norm_shift = 1,
                       .read = read_nemotron,
                       .write = write_nemotron};
const Family kJais2{.model_type = "jais2",
                    .model_class = "Jais2ForCausalLM",
                    .architecture = "jais2",
                    .names = kJais2Names,
                    .keys = {kPhiKeys},
                    .read = read_jais2,
                    .write = write_jais2};

}  // namespace millrace::convert
