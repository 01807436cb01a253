// Granite 3, dense and mixtures: Llama's tensors and four scaling factors, which MiniCPM has under other names. Granite
// 4 H: Mamba-2 in place of most attention layers, and a shared feed-forward beside the mixture (or alone).
#include <algorithm>
#include <cmath>

#include "convert/mamba2.h"
#include "convert/names.h"

namespace millrace::convert {
namespace {

constexpr Names kGraniteNames[] = {kTopNames, kAttentionNames, kFfnNorm, kDenseNames};
constexpr KeyRule kGraniteKeys[] = {{"attention_multiplier", "attention.scale", KeyRule::Kind::number},
                                    {"embedding_multiplier", "embedding_scale", KeyRule::Kind::number},
                                    {"residual_multiplier", "residual_scale", KeyRule::Kind::number},
                                    {"logits_scaling", "logit_scale", KeyRule::Kind::number}};

void read_granite(Config& /*config*/, Header& header) {
  header.set_integer("rope.dimension_count", header.integer("attention.key_length"));
}

constexpr NameRule kHybridExperts[] = {
    {"model.layers.#.block_sparse_moe.experts.gate_up_proj", "blk.#.ffn_gate_exps.weight", Form::first_half},
    {"model.layers.#.block_sparse_moe.experts.gate_up_proj", "blk.#.ffn_up_exps.weight", Form::second_half},
    {"model.layers.#.block_sparse_moe.experts.down_proj", "blk.#.ffn_down_exps.weight"},
    {"model.layers.#.block_sparse_moe.router.layer.weight", "blk.#.ffn_gate_inp.weight"},
    {"model.layers.#.block_sparse_moe.router.weight", "blk.#.ffn_gate_inp.weight"},
    {"model.layers.#.block_sparse_moe.input_linear.weight", "blk.#.ffn_gate_exps.weight", Form::first_half},
    {"model.layers.#.block_sparse_moe.input_linear.weight", "blk.#.ffn_up_exps.weight", Form::second_half},
    {"model.layers.#.block_sparse_moe.output_linear.weight", "blk.#.ffn_down_exps.weight"},
    {"model.layers.#.shared_mlp.input_linear.weight", "blk.#.ffn_gate_shexp.weight", Form::first_half},
    {"model.layers.#.shared_mlp.input_linear.weight", "blk.#.ffn_up_shexp.weight", Form::second_half},
    {"model.layers.#.shared_mlp.output_linear.weight", "blk.#.ffn_down_shexp.weight"},
};
constexpr NameRule kHybridDense[] = {
    {"model.layers.#.shared_mlp.input_linear.weight", "blk.#.ffn_gate.weight", Form::first_half},
    {"model.layers.#.shared_mlp.input_linear.weight", "blk.#.ffn_up.weight", Form::second_half},
    {"model.layers.#.shared_mlp.output_linear.weight", "blk.#.ffn_down.weight"},
};
constexpr Names kGraniteMoeNames[] = {kTopNames, kAttentionNames, kFfnNorm, kHybridExperts};
constexpr KeyRule kGraniteMoeKeys[] = {{"num_local_experts", "expert_count"},
                                       {"num_experts_per_tok", "expert_used_count"},
                                       {"shared_intermediate_size", "expert_shared_feed_forward_length"}};

/// In GGUF, the width of an expert is that of the feed-forward.
void read_granite_moe(Config& config, Header& header) {
  read_granite(config, header);
  config.expect("hidden_act", "silu");
}

bool has_shared_expert(const Header& header) { return header.integer("expert_shared_feed_forward_length") > 0; }

constexpr Names kMiniCpmNames[] = {kTopNames, kAttentionNames, kFfnNorm, kDenseNames};

void read_minicpm(Config& config, Header& header) {
  read_granite(config, header);
  const double layers = std::max(1.0, static_cast<double>(header.layers()));
  header.set_number("embedding_scale", config.number("scale_emb", 12));
  header.set_number("residual_scale", config.number("scale_depth", 1.4) / std::sqrt(layers));
  header.set_number("logit_scale", static_cast<double>(header.integer("embedding_length")) /
                                       std::max(1.0, config.number("dim_model_base", 256)));
  config.expect("hidden_act", "silu");
}

Status write_minicpm(const Header& header, nlohmann::json& config) {
  const double root = std::sqrt(static_cast<double>(header.layers()));
  const auto width = static_cast<double>(header.integer("embedding_length"));
  config["scale_emb"] = header.number("embedding_scale", 12);
  config["scale_depth"] = header.number("residual_scale", 1.4 / root) * root;
  config["dim_model_base"] = width / header.number("logit_scale", width / 256);
  return {};
}

constexpr NameRule kMixer[] = {MR_MAMBA2_NAMES("model.layers.#.mamba.")};
constexpr Names kHybridNames[] = {kTopNames, kAttentionNames, kMixer, kFfnNorm, kHybridExperts};
constexpr Names kHybridDenseNames[] = {kTopNames, kAttentionNames, kMixer, kFfnNorm, kHybridDense};
constexpr KeyRule kHybridKeys[] = {{"num_local_experts", "expert_count"},
                                   {"num_experts_per_tok", "expert_used_count"},
                                   {"shared_intermediate_size", "expert_shared_feed_forward_length"},
                                   {"mamba_d_conv", "ssm.conv_kernel"},
                                   {"mamba_d_state", "ssm.state_size"},
                                   {"mamba_n_groups", "ssm.group_count"},
                                   {"mamba_n_heads", "ssm.time_step_rank"}};

/// Without experts the shared feed-forward is the only one.
void prepare_hybrid(Config& config) {
  const bool dense = config.optional("num_local_experts", 0, 0, 1 << 14) == 0;
  if (dense) {
    config.set("intermediate_size", config.optional("shared_intermediate_size", 1, 1, 1 << 20));
    for (const char* key : {"num_local_experts", "num_experts_per_tok", "shared_intermediate_size"}) config.drop(key);
  }
  const std::int64_t heads = config.required("mamba_n_heads", 1, 1 << 16);
  const std::int64_t inner = config.optional("mamba_expand", 2, 1, 64) * config.required("hidden_size", 1, 1 << 20);
  if (const nlohmann::json* dim = config.find("mamba_d_head"); dim == nullptr || *dim == "auto")
    config.set("mamba_d_head", inner / heads);
  if (config.required("mamba_d_head", 1, 1 << 16) * heads != inner)
    config.fail(error(Code::corrupt,
                      "mamba_d_head and mamba_n_heads in config.json do not give the mixer's width of {}", inner));
}

void read_hybrid(Config& config, Header& header) {
  auto kinds = layer_kinds(config, "layer_types");
  if (kinds.empty()) kinds.assign(static_cast<std::size_t>(header.layers()), "linear_attention");
  std::vector<std::int64_t> kv_heads;
  for (const std::string& kind : kinds)
    kv_heads.push_back(kind == "full_attention" ? header.integer("attention.head_count_kv") : 0);
  if (static_cast<std::int64_t>(kinds.size()) != header.layers())
    config.fail(
        error(Code::corrupt, "layer_types in config.json has {} entries for {} layers", kinds.size(), header.layers()));
  header.set_integers("attention.head_count_kv", kv_heads);
  header.set_integer("ssm.inner_size",
                     config.required("mamba_n_heads", 1, 1 << 16) * config.required("mamba_d_head", 1, 1 << 16));
  if (config.text("position_embedding_type", "nope") != "rope") header.set("rope.scaling.finetuned", false);
  expect_endless_time_steps(config);
}

Status write_hybrid(const Header& header, nlohmann::json& config) {
  write_layer_types(header, "attention", "mamba", config);
  config["mamba_d_head"] = header.integer("ssm.inner_size") / header.integer("ssm.time_step_rank");
  config["mamba_expand"] = header.integer("ssm.inner_size") / header.integer("embedding_length");
  config["position_embedding_type"] = header.flag("rope.scaling.finetuned", true) ? "rope" : "nope";
  config["mamba_conv_bias"] = true;
  config["mamba_proj_bias"] = false;
  if (header.integer("expert_count") == 0) {
    config["num_local_experts"] = 0;
    config["shared_intermediate_size"] = header.integer("feed_forward_length");
  }
  return {};
}

bool granite_has_experts(const Header& header) { return header.integer("expert_count") > 0; }

}  // namespace

const Family kGranite{.model_type = "granite",
                      .model_class = "GraniteForCausalLM",
                      .architecture = "granite",
                      .names = kGraniteNames,
                      .keys = {kGraniteKeys},
                      .neighbours = true,
                      .pre = "refact",
                      .read = read_granite};
const Family kGraniteMoeShared{.model_type = "granitemoeshared",
                               .model_class = "GraniteMoeSharedForCausalLM",
                               .architecture = "granitemoe",
                               .names = kGraniteMoeNames,
                               .keys = {kGraniteKeys, kGraniteMoeKeys},
                               .neighbours = true,
                               .pre = "refact",
                               .read = read_granite_moe,
                               .matches = has_shared_expert};
const Family kGraniteMoe{.model_type = "granitemoe",
                         .model_class = "GraniteMoeForCausalLM",
                         .architecture = "granitemoe",
                         .names = kGraniteMoeNames,
                         .keys = {kGraniteKeys, kGraniteMoeKeys},
                         .neighbours = true,
                         .pre = "refact",
                         .read = read_granite_moe};
const Family kMiniCpm{.model_type = "minicpm",
                      .model_class = "MiniCPMForCausalLM",
                      .architecture = "minicpm",
                      .names = kMiniCpmNames,
                      .neighbours = true,
                      .read = read_minicpm,
                      .write = write_minicpm};
const Family kGraniteHybrid{.model_type = "granitemoehybrid",
                            .model_class = "GraniteMoeHybridForCausalLM",
                            .architecture = "granitehybrid",
                            .names = kHybridNames,
                            .keys = {kGraniteKeys, kHybridKeys},
                            .neighbours = true,
                            .prepare = prepare_hybrid,
                            .dense = &kGraniteHybridDense,
                            .read = read_hybrid,
                            .write = write_hybrid,
                            .matches = granite_has_experts};
const Family kGraniteHybridDense{.model_type = "granitemoehybrid",
                                 .model_class = "GraniteMoeHybridForCausalLM",
                                 .architecture = "granitehybrid",
                                 .names = kHybridDenseNames,
                                 .keys = {kGraniteKeys, kHybridKeys},
                                 .neighbours = true,
                                 .prepare = prepare_hybrid,
                                 .read = read_hybrid,
                                 .write = write_hybrid};

}  // namespace millrace::convert
