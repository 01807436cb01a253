// Qwen2 and 2.5, Qwen3, dense and with experts, and what is made of them (DeepSeek-R1-Distill-Qwen is a Qwen2).
#include "convert/names.h"

namespace millrace::convert {
namespace {

constexpr Names kNames[] = {kTopNames, kAttentionNames, kFfnNorm, kDenseNames};
constexpr Names kMoeNames[] = {kTopNames, kAttentionNames, kFfnNorm, kExpertNames};
constexpr KeyRule kMoeKeys[] = {{"num_local_experts", "expert_count"},
                                {"norm_topk_prob", "expert_weights_norm", KeyRule::Kind::flag}};

void read_dense(Config& config, Header&) {
  config.expect("hidden_act", "silu");
  config.expect("use_sliding_window", false);
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

constexpr std::string_view kQwen2Defaults =
    R"({"rms_norm_eps": 1e-6, "max_position_embeddings": 32768, "rope_theta": 10000.0, "num_key_value_heads": 32})";
constexpr std::string_view kQwen3Defaults =
    R"({"rms_norm_eps": 1e-6, "max_position_embeddings": 32768, "rope_theta": 10000.0, "num_key_value_heads": 32,
        "head_dim": 128})";
constexpr std::string_view kMoeDefaults =
    R"({"rms_norm_eps": 1e-6, "max_position_embeddings": 32768, "rope_theta": 10000.0, "num_key_value_heads": 4,
        "norm_topk_prob": false})";

}  // namespace

const Family kQwen2{.model_type = "qwen2",
                    .model_class = "Qwen2ForCausalLM",
                    .architecture = "qwen2",
                    .names = kNames,
                    .defaults = kQwen2Defaults,
                    .read = read_dense};
const Family kQwen3{.model_type = "qwen3",
                    .model_class = "Qwen3ForCausalLM",
                    .architecture = "qwen3",
                    .names = kNames,
                    .defaults = kQwen3Defaults,
                    .read = read_dense};
const Family kQwen3Moe{.model_type = "qwen3_moe",
                       .model_class = "Qwen3MoeForCausalLM",
                       .architecture = "qwen3moe",
                       .names = kMoeNames,
                       .keys = {kMixtureKeys, kMoeKeys},
                       .defaults = kMoeDefaults,
                       .read = read_moe,
                       .write = write_moe};

}  // namespace millrace::convert
