// Llama 2 to 3.3, Mistral 7B and Nemo, Ministral 3, Mixtral, and their derivatives.
#include "convert/names.h"
#include "convert/rope.h"

namespace millrace::convert {
namespace {

constexpr Names kLlamaNames[] = {kTopNames, kAttentionNames, kFfnNorm, kDenseNames};

constexpr Names kMixtralNames[] = {kTopNames, kAttentionNames, kFfnNorm, kMixtralExperts, kExpertNames};
constexpr KeyRule kMixtralKeys[] = {{"num_local_experts", "expert_count"},
                                    {"num_experts_per_tok", "expert_used_count"}};

/// GGUF's llama has no sliding window, so the context is limited to the window; beyond it, answers would differ.
void read_plain(Config& config, Header& header) {
  header.set_integer("rope.dimension_count", header.integer("attention.key_length"));
  shorten_to_window(config, header);
  config.expect("hidden_act", "silu");
}

void read_ministral3(Config& config, Header& header) {
  read_plain(config, header);
  Config rope = rotation_of(config);
  const double beta = rope.number("llama_4_scaling_beta", 0);
  if (beta != 0) header.set_number("attention.temperature_scale", beta);
  config.fail(rope.status());
}

Status write_ministral3(const Header& header, nlohmann::json& config) {
  nlohmann::json& rope = config["rope_parameters"];
  // transformers applies both factors even if the config lacks them.
  rope["llama_4_scaling_beta"] = header.number("attention.temperature_scale", 0);
  if (!rope.contains("original_max_position_embeddings"))
    rope["original_max_position_embeddings"] = header.integer("context_length");
  if (header.has("rope.scaling.yarn_log_multiplier"))
    rope["mscale"] = rope["mscale_all_dim"] = header.number("rope.scaling.yarn_log_multiplier");
  return {};
}

/// Writes sliding_window as null: Mistral's class assumes 4096 without it, and the file has none.
Status write_windowless(const Header&, nlohmann::json& config) {
  config["sliding_window"] = nullptr;
  return {};
}

bool llama_has_experts(const Header& header) { return header.integer("expert_count") > 0; }
bool has_none(const Header& header) { return !llama_has_experts(header); }

}  // namespace

const Family kLlama{.model_type = "llama",
                    .model_class = "LlamaForCausalLM",
                    .architecture = "llama",
                    .names = kLlamaNames,
                    .neighbours = true,
                    .pre = "llama-bpe",
                    .read = read_plain,
                    .matches = has_none};
const Family kMistral{.model_type = "mistral",
                      .model_class = "MistralForCausalLM",
                      .architecture = "llama",
                      .names = kLlamaNames,
                      .neighbours = true,
                      .pre = "tekken",
                      .read = read_plain,
                      .write = write_windowless,
                      .matches = has_none};
const Family kMinistral3{.model_type = "ministral3",
                         .model_class = "Ministral3ForCausalLM",
                         .architecture = "mistral3",
                         .names = kLlamaNames,
                         .neighbours = true,
                         .pre = "tekken",
                         .read = read_ministral3,
                         .write = write_ministral3};
const Family kMixtral{.model_type = "mixtral",
                      .model_class = "MixtralForCausalLM",
                      .architecture = "llama",
                      .names = kMixtralNames,
                      .keys = {kMixtralKeys},
                      .neighbours = true,
                      .read = read_plain,
                      .matches = llama_has_experts};

}  // namespace millrace::convert
