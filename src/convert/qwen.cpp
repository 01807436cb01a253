// Qwen2 and 2.5, Qwen3, dense and with experts, the text of those that see, and what is made of them
// (DeepSeek-R1-Distill-Qwen is a Qwen2); Seed-OSS.
#include "convert/names.h"
#include "modelfile/escape.h"

namespace millrace::convert {
namespace {

constexpr Names kQwenNames[] = {kTopNames, kAttentionNames, kFfnNorm, kDenseNames};
constexpr Names kSeedNames[] = {kTopNames, kAttentionNames, kPostAttentionNorm, kDenseNames};
constexpr Names kSharedMoeNames[] = {kTopNames, kAttentionNames, kFfnNorm, kExpertNames, kSharedExpertNames};
constexpr Names kQwenMoeNames[] = {kTopNames, kAttentionNames, kFfnNorm, kExpertNames};
constexpr KeyRule kSharedMoeKeys[] = {{"shared_expert_intermediate_size", "expert_shared_feed_forward_length"}};
constexpr KeyRule kQwenMoeKeys[] = {{"num_local_experts", "expert_count"},
                                    {"norm_topk_prob", "expert_weights_norm", KeyRule::Kind::flag}};

void read_dense(Config& config, Header&) {
  config.expect("use_sliding_window", false);
  for (const std::string& kind : config.texts("layer_types"))
    if (kind != "full_attention")
      config.fail(error(Code::unsupported,
                        "layer_types in config.json has '{}': this version has Qwen's layers with full_attention alone",
                        modelfile::escape(kind, 40)));
  config.disregard({"sliding_window", "max_window_layers"});  // of layers with a window, which are none
}

/// Every layer is a mixture.
void read_qwen_moe(Config& config, Header& header) {
  read_dense(config, header);
  expect_mixtures_alone(config);
}

Status write_moe(const Header& header, nlohmann::json& config) {
  write_mixtures_alone(header, config);
  config.erase("num_local_experts");
  return {};
}

/// GGUF has no key for it: readers take weights as they are.
void read_qwen2_moe(Config& config, Header& header) {
  read_qwen_moe(config, header);
  config.expect("norm_topk_prob", false);
  config.expect("qkv_bias", true);
  config.expect("hidden_act", "silu");
  config.disregard({"norm_topk_prob", "qkv_bias"});
}

Status write_qwen2_moe(const Header& header, nlohmann::json& config) {
  write_mixtures_alone(header, config);
  config["norm_topk_prob"] = false;
  config["qkv_bias"] = true;
  config.erase("num_local_experts");
  return {};
}

void read_qwen2_vl(Config& config, Header& header) {
  read_dense(config, header);
  read_sections(config, header);
}

Status write_qwen2_vl(const Header& header, nlohmann::json& config) {
  write_sections(header, false, config);
  return {};
}

/// How many of the first layers take features of a picture, whose rows are wider then: none of a text's.
void read_qwen3_vl(Config& config, Header& header) {
  read_sections(config, header);
  const Config vision = config.within("vision_config");
  const auto* const taken = vision.find("deepstack_visual_indexes");
  header.set_integer("n_deepstack_layers", taken != nullptr && taken->is_array()
                                               ? static_cast<std::int64_t>(taken->size())
                                               : config.optional("n_deepstack_layers", 0, 0, 1 << 16));
  config.expect("hidden_act", "silu");
}

Status write_qwen3_vl(const Header& header, nlohmann::json& config) {
  write_sections(header, true, config);
  config["n_deepstack_layers"] = header.integer("n_deepstack_layers");
  return {};
}

void read_qwen3_vl_moe(Config& config, Header& header) {
  read_qwen3_vl(config, header);
  expect_mixtures_alone(config);
}

Status write_qwen3_vl_moe(const Header& header, nlohmann::json& config) {
  write_mixtures_alone(header, config);
  return write_qwen3_vl(header, config);
}

void read_seed(Config& config, Header& header) {
  header.set_integer("rope.dimension_count", header.integer("attention.key_length"));
  config.expect("hidden_act", "silu");
  config.expect("attention_out_bias", false);
  config.disregard({"residual_dropout"});
}

Status write_seed(const Header&, nlohmann::json& config) {
  config["attention_out_bias"] = false;
  return {};
}

}  // namespace

const Family kQwen2{.model_type = "qwen2",
                    .model_class = "Qwen2ForCausalLM",
                    .architecture = "qwen2",
                    .names = kQwenNames,
                    .read = read_dense};
const Family kQwen3{.model_type = "qwen3",
                    .model_class = "Qwen3ForCausalLM",
                    .architecture = "qwen3",
                    .names = kQwenNames,
                    .read = read_dense};
const Family kQwen3Moe{.model_type = "qwen3_moe",
                       .model_class = "Qwen3MoeForCausalLM",
                       .architecture = "qwen3moe",
                       .names = kQwenMoeNames,
                       .keys = {kMixtureKeys, kQwenMoeKeys},
                       .read = read_qwen_moe,
                       .write = write_moe};

const Family kQwen2Vl{.model_type = "qwen2_vl_text",
                      .model_class = "Qwen2VLForConditionalGeneration",
                      .architecture = "qwen2vl",
                      .names = kQwenNames,
                      .read = read_qwen2_vl,
                      .write = write_qwen2_vl};
const Family kQwen2Moe{.model_type = "qwen2_moe",
                       .model_class = "Qwen2MoeForCausalLM",
                       .architecture = "qwen2moe",
                       .names = kSharedMoeNames,
                       .keys = {kMixtureKeys, kSharedMoeKeys},
                       .read = read_qwen2_moe,
                       .write = write_qwen2_moe};
const Family kQwen3Vl{.model_type = "qwen3_vl_text",
                      .model_class = "Qwen3VLForConditionalGeneration",
                      .architecture = "qwen3vl",
                      .names = kQwenNames,
                      .read = read_qwen3_vl,
                      .write = write_qwen3_vl};
const Family kQwen3VlMoe{.model_type = "qwen3_vl_moe_text",
                         .model_class = "Qwen3VLMoeForConditionalGeneration",
                         .architecture = "qwen3vlmoe",
                         .names = kQwenMoeNames,
                         .keys = {kMixtureKeys, kQwenMoeKeys},
                         .read = read_qwen3_vl_moe,
                         .write = write_qwen3_vl_moe};
const Family kSeedOss{.model_type = "seed_oss",
                      .model_class = "SeedOssForCausalLM",
                      .architecture = "seed_oss",
                      .names = kSeedNames,
                      .pre = "seed-coder",
                      .read = read_seed,
                      .write = write_seed};

}  // namespace millrace::convert
