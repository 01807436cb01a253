// Falcon-H1. What its config multiplies products by, GGUF has in the weights, as llama.cpp's converter writes them; the
// way back gives those weights, and 1 as what they are multiplied by.
#include <algorithm>

#include "convert/mamba2.h"
#include "convert/names.h"

namespace millrace::convert {
namespace {

using nlohmann::json;

constexpr NameRule kOwnNames[] = {
    {"model.final_layernorm.weight", "output_norm.weight"},
    {"model.layers.#.pre_ff_layernorm.weight", "blk.#.ffn_norm"},
    {"model.layers.#.feed_forward.gate_proj.weight", "blk.#.ffn_gate.weight"},
    {"model.layers.#.feed_forward.up_proj.weight", "blk.#.ffn_up.weight"},
    {"model.layers.#.feed_forward.down_proj.weight", "blk.#.ffn_down.weight"},
    MR_MAMBA2_NAMES("model.layers.#.mamba."),
};
constexpr Names kFalconH1Names[] = {kOwnNames, kTopNames, kAttentionNames};
constexpr KeyRule kFalconH1Keys[] = {{"mamba_d_conv", "ssm.conv_kernel"},
                                     {"mamba_d_state", "ssm.state_size"},
                                     {"mamba_n_groups", "ssm.group_count"},
                                     {"mamba_n_heads", "ssm.time_step_rank"}};

/// `count` numbers, all 1 where the config has none.
std::vector<double> multipliers(Config& config, std::string_view key, std::size_t count) {
  std::vector<double> numbers = config.numbers(key);
  if (numbers.empty()) numbers.assign(count, 1);
  if (numbers.size() != count)
    config.fail(
        error(Code::corrupt, "{} in config.json has {} numbers, and {} are expected", key, numbers.size(), count));
  numbers.resize(count, 1);
  return numbers;
}

/// By the end of a tensor's name, as the checkpoint has it.
std::vector<Part> multiply(std::string_view theirs, Config& config, const Header& header) {
  const auto is = [&](std::string_view end) { return theirs.ends_with(end); };
  const auto by = [&](std::string_view key) { return config.number(key, 1); };
  const auto whole = [](double factor) { return std::vector<Part>{{0, factor}}; };
  if (is("self_attn.q_proj.weight") || is("self_attn.v_proj.weight")) return whole(by("attention_in_multiplier"));
  if (is("self_attn.k_proj.weight")) return whole(by("attention_in_multiplier") * by("key_multiplier"));
  if (is("self_attn.k_proj.bias")) return whole(by("key_multiplier"));
  if (is("self_attn.o_proj.weight") || is("self_attn.o_proj.bias")) return whole(by("attention_out_multiplier"));
  if (is("mamba.out_proj.weight")) return whole(by("ssm_out_multiplier"));
  if (is("embed_tokens.weight")) return whole(by("embedding_multiplier"));
  if (is("lm_head.weight")) return whole(by("lm_head_multiplier"));
  if (is("feed_forward.gate_proj.weight")) return whole(multipliers(config, "mlp_multipliers", 2)[0]);
  if (is("feed_forward.down_proj.weight")) return whole(multipliers(config, "mlp_multipliers", 2)[1]);
  if (!is("mamba.in_proj.weight")) return {};
  const std::vector<double> each = multipliers(config, "ssm_multipliers", 5);
  const std::int64_t inner = header.integer("ssm.inner_size"),
                     state = header.integer("ssm.group_count") * header.integer("ssm.state_size");
  const std::int64_t rows[] = {inner, inner, state, state, header.integer("ssm.time_step_rank")};
  std::vector<Part> parts;
  for (std::size_t i = 0; i < each.size(); ++i) parts.push_back({rows[i], each[i] * by("ssm_in_multiplier")});
  return parts;
}

void read_falcon_h1(Config& config, Header& header) {
  const std::int64_t heads = config.required("mamba_n_heads", 1, 1 << 12);
  const std::int64_t inner = config.optional(
      "mamba_d_ssm", config.optional("mamba_expand", 2, 1, 64) * header.integer("embedding_length"), 1, 1 << 20);
  config.disregard({"mamba_expand", "mamba_d_ssm", "num_logits_to_keep", "mamba_chunk_size", "layers_block_type"});
  header.set_integer("ssm.inner_size", inner);
  if (const json* dim = config.find("mamba_d_head");
      inner % heads != 0 || (dim != nullptr && *dim != "auto" && *dim != inner / heads))
    config.fail(error(Code::corrupt,
                      "mamba_d_head and mamba_n_heads in config.json do not give the mixer's width of {}", inner));
  if (config.flag("mamba_rms_norm", false))
    config.expect("mamba_norm_before_gate", false);
  else
    config.disregard({"mamba_norm_before_gate"});
  for (const char* bias : {"mamba_proj_bias", "projectors_bias", "mlp_bias"}) config.expect(bias, false);
  for (const char* key : {"attention_in_multiplier", "attention_out_multiplier", "key_multiplier", "ssm_in_multiplier",
                          "ssm_out_multiplier", "embedding_multiplier", "lm_head_multiplier"})
    config.number(key, 1);
  multipliers(config, "mlp_multipliers", 2);
  multipliers(config, "ssm_multipliers", 5);
  config.expect("hidden_act", "silu");
  expect_endless_time_steps(config);
}

Status write_falcon_h1(const Header& header, json& config) {
  const std::int64_t inner = header.integer("ssm.inner_size"), heads = header.integer("ssm.time_step_rank");
  config["mamba_d_ssm"] = inner;
  config["mamba_d_head"] = inner / std::max<std::int64_t>(1, heads);
  config["mamba_norm_before_gate"] = false;
  config["mamba_proj_bias"] = false;
  config["projectors_bias"] = false;
  return {};
}

}  // namespace

const Family kFalconH1{.model_type = "falcon_h1",
                       .model_class = "FalconH1ForCausalLM",
                       .architecture = "falcon-h1",
                       .names = kFalconH1Names,
                       .keys = {kFalconH1Keys},
                       .pre = "falcon-h1",
                       .multiply = multiply,
                       .read = read_falcon_h1,
                       .write = write_falcon_h1};

}  // namespace millrace::convert
