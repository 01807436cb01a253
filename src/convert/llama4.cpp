// The language model of Llama 4: joined, transposed experts, and dense layers of another width between mixtures.
#include <algorithm>

#include "convert/names.h"

namespace millrace::convert {
namespace {

constexpr NameRule kLlama4Own[] = {
    {"model.layers.#.feed_forward.gate_proj.weight", "blk.#.ffn_gate.weight"},
    {"model.layers.#.feed_forward.up_proj.weight", "blk.#.ffn_up.weight"},
    {"model.layers.#.feed_forward.down_proj.weight", "blk.#.ffn_down.weight"},
    {"model.layers.#.feed_forward.router.weight", "blk.#.ffn_gate_inp.weight"},
    {"model.layers.#.feed_forward.experts.gate_up_proj", "blk.#.ffn_gate_exps.weight", Form::first_half_turned},
    {"model.layers.#.feed_forward.experts.gate_up_proj", "blk.#.ffn_up_exps.weight", Form::second_half_turned},
    {"model.layers.#.feed_forward.experts.down_proj", "blk.#.ffn_down_exps.weight", Form::turned},
    {"model.layers.#.feed_forward.shared_expert.gate_proj.weight", "blk.#.ffn_gate_shexp.weight"},
    {"model.layers.#.feed_forward.shared_expert.up_proj.weight", "blk.#.ffn_up_shexp.weight"},
    {"model.layers.#.feed_forward.shared_expert.down_proj.weight", "blk.#.ffn_down_shexp.weight"},
};
constexpr Names kLlama4Names[] = {kTopNames, kAttentionNames, kFfnNorm, kLlama4Own};
constexpr KeyRule kLlama4Keys[] = {{"num_local_experts", "expert_count"},
                                   {"num_experts_per_tok", "expert_used_count"},
                                   {"intermediate_size", "expert_feed_forward_length"},
                                   {"intermediate_size_mlp", "feed_forward_length"},
                                   {"interleave_moe_layer_step", "interleave_moe_layer_step"},
                                   {"attention_chunk_size", "attention.sliding_window"},
                                   {"attn_scale", "attention.temperature_scale", KeyRule::Kind::number},
                                   {"floor_scale", "attention.temperature_length"}};

constexpr std::int64_t kPeriodOfLlama4 = 4, kExpertsOfMaverick = 128;

/// Properties that readers derive from the layer's index.
void expect_layers(Config& config, const Header& header) {
  const std::int64_t layers = header.layers(), step = header.integer("interleave_moe_layer_step", 1);
  nlohmann::json rotated = nlohmann::json::array(), kinds = nlohmann::json::array(), mixtures = nlohmann::json::array();
  for (std::int64_t i = 1; i <= layers; ++i) {
    const bool local = i % kPeriodOfLlama4 != 0;
    rotated.push_back(local ? 1 : 0);
    kinds.push_back(local ? "chunked_attention" : "full_attention");
    if (step > 0 && i % step == 0) mixtures.push_back(i - 1);
  }
  if (!config.numbers("no_rope_layers").empty()) config.expect("no_rope_layers", rotated);  // an empty list is none
  config.expect("layer_types", kinds);
  config.expect("moe_layers", mixtures);
  config.expect("no_rope_layer_interval", kPeriodOfLlama4);
}

void read_llama4(Config& config, Header& header) {
  if (!config.has("attention_chunk_size"))
    config.fail(error(Code::unsupported,
                      "attention_chunk_size in config.json is null: this version has models whose layers see chunks"));
  expect_layers(config, header);
  const nlohmann::json* const tuned = config.find("attn_temperature_tuning");  // a flag, or a number that is not 0
  if (tuned != nullptr && (*tuned == false || *tuned == 0)) header.set_number("attention.temperature_scale", 0);
  config.expect("use_qk_norm", header.integer("expert_count") != kExpertsOfMaverick);
  config.expect("hidden_act", "silu");
}

}  // namespace

const Family kLlama4{.model_type = "llama4_text",
                     .model_class = "Llama4ForCausalLM",
                     .architecture = "llama4",
                     .names = kLlama4Names,
                     .keys = {kLlama4Keys},
                     .pre = "llama4",
                     .read = read_llama4};

}  // namespace millrace::convert
