// gpt-oss: experts in MXFP4 as published (or in floats, as others republish them), biases everywhere, attention sinks.
#include "convert/names.h"

namespace millrace::convert {
namespace {

constexpr NameRule kGptOssOwn[] = {
    {"model.layers.#.self_attn.sinks", "blk.#.attn_sinks.weight"},
    {"model.layers.#.mlp.router.weight", "blk.#.ffn_gate_inp.weight"},
    {"model.layers.#.mlp.router.bias", "blk.#.ffn_gate_inp.bias"},
    // NAME_blocks and NAME_scales are read as NAME; gates and ups alternate.
    {"model.layers.#.mlp.experts.gate_up_proj_mxfp4", "blk.#.ffn_gate_exps.weight", Form::even},
    {"model.layers.#.mlp.experts.gate_up_proj_mxfp4", "blk.#.ffn_up_exps.weight", Form::odd},
    {"model.layers.#.mlp.experts.down_proj_mxfp4", "blk.#.ffn_down_exps.weight"},
    {"model.layers.#.mlp.experts.gate_up_proj", "blk.#.ffn_gate_exps.weight", Form::even_turned},
    {"model.layers.#.mlp.experts.gate_up_proj", "blk.#.ffn_up_exps.weight", Form::odd_turned},
    {"model.layers.#.mlp.experts.down_proj", "blk.#.ffn_down_exps.weight", Form::turned},
    {"model.layers.#.mlp.experts.gate_up_proj_bias", "blk.#.ffn_gate_exps.bias", Form::even},
    {"model.layers.#.mlp.experts.gate_up_proj_bias", "blk.#.ffn_up_exps.bias", Form::odd},
    {"model.layers.#.mlp.experts.down_proj_bias", "blk.#.ffn_down_exps.bias"},
    // MLX's
    {"model.layers.#.mlp.experts.gate_proj.weight", "blk.#.ffn_gate_exps.weight"},
    {"model.layers.#.mlp.experts.up_proj.weight", "blk.#.ffn_up_exps.weight"},
    {"model.layers.#.mlp.experts.down_proj.weight", "blk.#.ffn_down_exps.weight"},
    {"model.layers.#.mlp.experts.gate_proj.bias", "blk.#.ffn_gate_exps.bias"},
    {"model.layers.#.mlp.experts.up_proj.bias", "blk.#.ffn_up_exps.bias"},
    {"model.layers.#.mlp.experts.down_proj.bias", "blk.#.ffn_down_exps.bias"},
};
constexpr Names kGptOssNames[] = {kTopNames, kAttentionNames, kPostAttentionNorm, kGptOssOwn};
constexpr KeyRule kGptOssKeys[] = {{"num_local_experts", "expert_count"},
                                   {"num_experts_per_tok", "expert_used_count"},
                                   {"intermediate_size", "expert_feed_forward_length"},
                                   {"sliding_window", "attention.sliding_window"}};

nlohmann::json gpt_oss_kinds(std::int64_t layers) {
  nlohmann::json kinds = nlohmann::json::array();
  for (std::int64_t i = 0; i < layers; ++i) kinds.push_back(i % 2 == 0 ? "sliding_attention" : "full_attention");
  return kinds;
}

void read_gpt_oss(Config& config, Header& header) { config.expect("layer_types", gpt_oss_kinds(header.layers())); }

Status write_gpt_oss(const Header& header, nlohmann::json& config) {
  config["layer_types"] = gpt_oss_kinds(header.layers());
  config["swiglu_limit"] = 7.0;
  config["attention_bias"] = true;
  return {};
}

}  // namespace

const Family kGptOss{.model_type = "gpt_oss",
                     .model_class = "GptOssForCausalLM",
                     .architecture = "gpt-oss",
                     .names = kGptOssNames,
                     .keys = {kGptOssKeys},
                     .pre = "gpt-4o",
                     .read = read_gpt_oss,
                     .write = write_gpt_oss};

}  // namespace millrace::convert
