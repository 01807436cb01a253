// LFM2, dense and mixtures: short convolutions in place of most attention layers.
#include <algorithm>

#include "convert/names.h"

namespace millrace::convert {
namespace {

constexpr NameRule kLfm2Own[] = {
    {"model.embedding_norm.weight", "token_embd_norm.weight"},
    {"model.layers.#.operator_norm.weight", "blk.#.attn_norm.weight"},
    {"model.layers.#.self_attn.out_proj.weight", "blk.#.attn_output.weight"},
    {"model.layers.#.self_attn.q_layernorm.weight", "blk.#.attn_q_norm.weight"},
    {"model.layers.#.self_attn.k_layernorm.weight", "blk.#.attn_k_norm.weight"},
    {"model.layers.#.conv.in_proj.weight", "blk.#.shortconv.in_proj.weight"},
    {"model.layers.#.conv.conv.weight", "blk.#.shortconv.conv.weight", Form::taps},
    {"model.layers.#.conv.out_proj.weight", "blk.#.shortconv.out_proj.weight"},
    {"model.layers.#.ffn_norm.weight", "blk.#.ffn_norm.weight"},
    {"model.layers.#.feed_forward.w1.weight", "blk.#.ffn_gate.weight"},
    {"model.layers.#.feed_forward.w3.weight", "blk.#.ffn_up.weight"},
    {"model.layers.#.feed_forward.w2.weight", "blk.#.ffn_down.weight"},
    {"model.layers.#.feed_forward.gate.weight", "blk.#.ffn_gate_inp.weight"},
    {"model.layers.#.feed_forward.expert_bias", "blk.#.exp_probs_b.bias"},
    {"model.layers.#.feed_forward.gate.e_score_correction_bias", "blk.#.exp_probs_b.bias"},
    {"model.layers.#.feed_forward.experts.*.w1.weight", "blk.#.ffn_gate_exps.weight", Form::experts},
    {"model.layers.#.feed_forward.experts.*.w3.weight", "blk.#.ffn_up_exps.weight", Form::experts},
    {"model.layers.#.feed_forward.experts.*.w2.weight", "blk.#.ffn_down_exps.weight", Form::experts},
    {"model.layers.#.feed_forward.experts.gate_up_proj", "blk.#.ffn_gate_exps.weight", Form::first_half},
    {"model.layers.#.feed_forward.experts.gate_up_proj", "blk.#.ffn_up_exps.weight", Form::second_half},
    {"model.layers.#.feed_forward.experts.down_proj", "blk.#.ffn_down_exps.weight"},
    {"model.layers.#.feed_forward.switch_mlp.gate_proj.weight", "blk.#.ffn_gate_exps.weight"},
    {"model.layers.#.feed_forward.switch_mlp.up_proj.weight", "blk.#.ffn_up_exps.weight"},
    {"model.layers.#.feed_forward.switch_mlp.down_proj.weight", "blk.#.ffn_down_exps.weight"},
};
constexpr Names kLfm2Names[] = {kLfm2Own, kTopNames, kAttentionNames};
constexpr KeyRule kLfm2Keys[] = {{"norm_eps", "attention.layer_norm_rms_epsilon", KeyRule::Kind::number},
                                 {"conv_L_cache", "shortconv.l_cache"}};
constexpr KeyRule kLfm2MoeKeys[] = {{"num_dense_layers", "leading_dense_block_count"}};

/// Tensor names of files from before transformers supported the model.
void prepare_lfm2(Config& config) {
  if (const nlohmann::json* width = config.find("block_ff_dim"); width != nullptr)
    config.set("intermediate_size", nlohmann::json(*width));
  if (const nlohmann::json* tied = config.find("tie_embedding"); tied != nullptr)
    config.set("tie_word_embeddings", nlohmann::json(*tied));
  config.disregard({"full_attn_idxs", "block_ffn_dim_multiplier", "block_multiple_of"});  // read where they count
}

/// The layers with attention, from layer_types or a list of indices.
std::vector<std::int64_t> kv_heads_of(Config& config, const Header& header) {
  const std::int64_t heads = header.integer("attention.head_count_kv");
  std::vector<std::int64_t> kv_heads(static_cast<std::size_t>(header.layers()), 0);
  const auto kinds = config.texts("layer_types");
  for (std::size_t i = 0; i < std::min(kinds.size(), kv_heads.size()); ++i)
    if (kinds[i] == "full_attention") kv_heads[i] = heads;
  if (kinds.empty() && !config.has("full_attn_idxs")) std::fill(kv_heads.begin(), kv_heads.end(), heads);
  if (kinds.empty())
    for (const double index : config.numbers("full_attn_idxs"))
      if (index >= 0 && index < static_cast<double>(kv_heads.size())) kv_heads[static_cast<std::size_t>(index)] = heads;
  return kv_heads;
}

/// Dense: the width that the config gives is cut to two thirds and rounded up, if it says so.
void read_lfm2(Config& config, Header& header) {
  header.set_integers("attention.head_count_kv", kv_heads_of(config, header));
  if (config.flag("block_auto_adjust_ff_dim", false)) {
    const std::int64_t given = config.required("intermediate_size", 1, 1 << 20);
    const std::int64_t multiple = config.optional("block_multiple_of", 256, 1, 1 << 16);
    const double factor = config.number("block_ffn_dim_multiplier", 1.0);
    const std::int64_t two_thirds = 2 * given / 3;  // cut, as the model's own code does
    const auto width = static_cast<std::int64_t>(factor * static_cast<double>(two_thirds));
    header.set_integer("feed_forward_length", (width + multiple - 1) / multiple * multiple);
  }
  config.expect("conv_bias", false);
}

void read_lfm2_moe(Config& config, Header& header) {
  header.set_integers("attention.head_count_kv", kv_heads_of(config, header));
  header.set_integer("expert_gating_func", kSigmoidGating);
  config.expect("conv_bias", false);
  config.expect("use_expert_bias", true);
  config.expect("norm_topk_prob", true);
  config.expect("routed_scaling_factor", 1.0);
}

Status write_lfm2(const Header& header, nlohmann::json& config) {
  write_layer_types(header, "full_attention", "conv", config);
  config["conv_bias"] = false;
  config["block_auto_adjust_ff_dim"] = false;
  config["block_ff_dim"] = header.integer("feed_forward_length");
  config.erase("rms_norm_eps");
  if (header.integer("expert_count") > 0) {
    config["use_expert_bias"] = true;
    config["norm_topk_prob"] = true;
    config["routed_scaling_factor"] = 1.0;
  }
  return {};
}

}  // namespace

const Family kLfm2{.model_type = "lfm2",
                   .model_class = "Lfm2ForCausalLM",
                   .architecture = "lfm2",
                   .names = kLfm2Names,
                   .keys = {kLfm2Keys},
                   .pre = "lfm2",
                   .prepare = prepare_lfm2,
                   .read = read_lfm2,
                   .write = write_lfm2};
const Family kLfm2Moe{.model_type = "lfm2_moe",
                      .model_class = "Lfm2MoeForCausalLM",
                      .architecture = "lfm2moe",
                      .names = kLfm2Names,
                      .keys = {kLfm2Keys, kMixtureKeys, kLfm2MoeKeys},
                      .pre = "lfm2",
                      .prepare = prepare_lfm2,
                      .read = read_lfm2_moe,
                      .write = write_lfm2};

}  // namespace millrace::convert
