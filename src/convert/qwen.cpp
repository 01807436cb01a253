// Qwen2 and 2.5, Qwen3, dense and with experts, and what is made of them (DeepSeek-R1-Distill-Qwen is a Qwen2).
#include "convert/names.h"
#include "modelfile/escape.h"

namespace millrace::convert {
namespace {

constexpr Names kNames[] = {kTopNames, kAttentionNames, kFfnNorm, kDenseNames};
constexpr Names kMoeNames[] = {kTopNames, kAttentionNames, kFfnNorm, kExpertNames};
constexpr KeyRule kMoeKeys[] = {{"num_local_experts", "expert_count"},
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
void read_moe(Config& config, Header& header) {
  read_dense(config, header);
  expect_mixtures_alone(config);
}

Status write_moe(const Header& header, nlohmann::json& config) {
  write_mixtures_alone(header, config);
  config.erase("num_local_experts");
  return {};
}

}  // namespace

const Family kQwen2{.model_type = "qwen2",
                    .model_class = "Qwen2ForCausalLM",
                    .architecture = "qwen2",
                    .names = kNames,
                    .read = read_dense};
const Family kQwen3{.model_type = "qwen3",
                    .model_class = "Qwen3ForCausalLM",
                    .architecture = "qwen3",
                    .names = kNames,
                    .read = read_dense};
const Family kQwen3Moe{.model_type = "qwen3_moe",
                       .model_class = "Qwen3MoeForCausalLM",
                       .architecture = "qwen3moe",
                       .names = kMoeNames,
                       .keys = {kMixtureKeys, kMoeKeys},
                       .read = read_moe,
                       .write = write_moe};

}  // namespace millrace::convert
