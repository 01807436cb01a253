// Granite 3: Llama's tensors and four factors. Granite 4 H: Mamba-2 in most of the places of attention, a shared
// feed-forward beside a mixture (or alone).
#include <algorithm>

#include "convert/mamba2.h"
#include "convert/names.h"

namespace millrace::convert {
namespace {

constexpr Names kNames[] = {kTopNames, kAttentionNames, kFfnNorm, kDenseNames};
constexpr KeyRule kKeys[] = {{"attention_multiplier", "attention.scale", KeyRule::Kind::number},
                             {"embedding_multiplier", "embedding_scale", KeyRule::Kind::number},
                             {"residual_multiplier", "residual_scale", KeyRule::Kind::number},
                             {"logits_scaling", "logit_scale", KeyRule::Kind::number}};

void read(Config& config, Header& header) {
  header.set_integer("rope.dimension_count", header.integer("attention.key_length"));
  config.expect("hidden_act", "silu");
}

constexpr NameRule kHybridExperts[] = {
    {"model.layers.#.block_sparse_moe.router.layer.weight", "blk.#.ffn_gate_inp.weight"},
    {"model.layers.#.block_sparse_moe.router.weight", "blk.#.ffn_gate_inp.weight"},
    {"model.layers.#.block_sparse_moe.input_linear.weight", "blk.#.ffn_gate_exps.weight", Form::first_half},
    {"model.layers.#.block_sparse_moe.input_linear.weight", "blk.#.ffn_up_exps.weight", Form::second_half},
    {"model.layers.#.block_sparse_moe.output_linear.weight", "blk.#.ffn_down_exps.weight"},
    {"model.layers.#.shared_mlp.input_linear.weight", "blk.#.ffn_gate_shexp.weight", Form::first_half},
    {"model.layers.#.shared_mlp.input_linear.weight", "blk.#.ffn_up_shexp.weight", Form::second_half},
    {"model.layers.#.shared_mlp.output_linear.weight", "blk.#.ffn_down_shexp.weight"},
};
constexpr NameRule kMixer[] = {MR_MAMBA2_NAMES("model.layers.#.mamba.")};
constexpr Names kHybridNames[] = {kTopNames, kAttentionNames, kMixer, kFfnNorm, kHybridExperts};
constexpr KeyRule kHybridKeys[] = {{"num_local_experts", "expert_count"},
                                   {"num_experts_per_tok", "expert_used_count"},
                                   {"shared_intermediate_size", "expert_shared_feed_forward_length"},
                                   {"mamba_d_conv", "ssm.conv_kernel"},
                                   {"mamba_d_state", "ssm.state_size"},
                                   {"mamba_n_groups", "ssm.group_count"},
                                   {"mamba_n_heads", "ssm.time_step_rank"}};

void read_hybrid(Config& config, Header& header) {
  const auto kinds = config.texts("layer_types");
  std::vector<std::int64_t> kv_heads;
  for (const std::string& kind : kinds)
    kv_heads.push_back(kind == "attention" ? header.integer("attention.head_count_kv") : 0);
  if (static_cast<std::int64_t>(kinds.size()) != header.layers())
    config.fail(
        error(Code::corrupt, "layer_types in config.json is there of {} of {} layers", kinds.size(), header.layers()));
  header.set_integers("attention.head_count_kv", kv_heads);
  header.set_integer("ssm.inner_size",
                     config.required("mamba_n_heads", 1, 1 << 16) * config.required("mamba_d_head", 1, 1 << 16));
  if (config.text("position_embedding_type", "nope") == "nope") header.set("rope.scaling.finetuned", false);
  if (config.optional("num_local_experts", 0, 0, 1 << 14) == 0)
    config.fail(error(Code::unsupported,
                      "num_local_experts in config.json is 0: this version has Granite 4 H with experts alone"));
}

Status write_hybrid(const Header& header, nlohmann::json& config) {
  write_layer_types(header, "attention", "mamba", config);
  config["mamba_d_head"] = header.integer("ssm.inner_size") / header.integer("ssm.time_step_rank");
  config["mamba_expand"] = header.integer("ssm.inner_size") / header.integer("embedding_length");
  config["position_embedding_type"] = header.flag("rope.scaling.finetuned", true) ? "rope" : "nope";
  config["mamba_conv_bias"] = true;
  config["mamba_proj_bias"] = false;
  return {};
}

}  // namespace

const Family kGranite{.model_type = "granite",
                      .model_class = "GraniteForCausalLM",
                      .architecture = "granite",
                      .names = kNames,
                      .keys = {kKeys},
                      .defaults = R"({"rms_norm_eps": 1e-6, "max_position_embeddings": 2048, "rope_theta": 10000.0,
                        "attention_multiplier": 1.0, "embedding_multiplier": 1.0, "residual_multiplier": 1.0,
                        "logits_scaling": 1.0})",
                      .neighbours = true,
                      .pre = "refact",
                      .read = read};
const Family kGraniteHybrid{.model_type = "granitemoehybrid",
                            .model_class = "GraniteMoeHybridForCausalLM",
                            .architecture = "granitehybrid",
                            .names = kHybridNames,
                            .keys = {kKeys, kHybridKeys},
                            .defaults = R"({"rms_norm_eps": 1e-6, "max_position_embeddings": 2048,
                              "attention_multiplier": 1.0, "embedding_multiplier": 1.0, "residual_multiplier": 1.0,
                              "logits_scaling": 1.0, "mamba_n_groups": 1, "mamba_d_state": 256, "mamba_d_conv": 4})",
                            .neighbours = true,
                            .read = read_hybrid,
                            .write = write_hybrid};

}  // namespace millrace::convert
