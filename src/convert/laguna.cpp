// Laguna: heads, rotations and windows by lists of layers. Which layers see a window is written only where it is not
// the usual pattern, as other converters do; readers know by a gate's rows whether it is of heads or of channels, and
// the key that is written besides is for the way back.
#include <algorithm>

#include "convert/names.h"
#include "convert/rope.h"
#include "modelfile/gguf_writer.h"

namespace millrace::convert {
namespace {

using nlohmann::json;

constexpr const char *kSeesAll = "full_attention", *kSeesWindow = "sliding_attention";
constexpr const char *kOfHeads = "per-head", *kOfChannels = "per-element";
constexpr const char* kPart = "rotated_part";  // partial_rotary_factor, which read_rotations() would refuse
constexpr std::int64_t kPeriod = 4;            // of layers, the first of which sees all

constexpr NameRule kPublishedNames[] = {
    {"model.layers.#.self_attn.g_proj.weight", "blk.#.attn_gate.weight"},
    {"model.layers.#.mlp.experts.e_score_correction_bias", "blk.#.exp_probs_b.bias"},
    {"model.layers.#.mlp.shared_expert.gate_proj.weight", "blk.#.ffn_gate_shexp.weight"},
    {"model.layers.#.mlp.shared_expert.up_proj.weight", "blk.#.ffn_up_shexp.weight"},
    {"model.layers.#.mlp.shared_expert.down_proj.weight", "blk.#.ffn_down_shexp.weight"},
};
constexpr Names kLagunaNames[] = {kPublishedNames, kTopNames,    kAttentionNames,    kFfnNorm,
                                  kDenseNames,     kExpertNames, kSharedExpertsNames};
constexpr KeyRule kLagunaKeys[] = {{"shared_expert_intermediate_size", "expert_shared_feed_forward_length"},
                                   {"moe_routed_scaling_factor", "expert_weights_scale", KeyRule::Kind::number}};

bool usually_sees_window(std::size_t layer) { return layer % kPeriod != 0; }

/// Rotations by kind of layer, their parts under another name; one for all layers is that of both kinds.
void prepare_laguna(Config& config) {
  const json* const given = config.find("rope_parameters");
  json rotations = given != nullptr && given->is_object() ? *given : json::object();
  if (!rotations.contains(kSeesAll)) rotations = {{kSeesAll, rotations}};
  for (auto& [kind, rotation] : rotations.items()) {
    if (!rotation.is_object() || !rotation.contains("partial_rotary_factor")) continue;
    rotation[kPart] = rotation["partial_rotary_factor"];
    rotation.erase("partial_rotary_factor");
  }
  config.set("rope_parameters", std::move(rotations));
  config.drop("partial_rotary_factor");
}

/// Channels that rotate in layers of this kind.
std::int64_t rotated(const Config& config, const char* kind, std::int64_t head_dim) {
  Config rotation = config.within("rope_parameters").within(kind);
  return static_cast<std::int64_t>(static_cast<double>(head_dim) * rotation.number(kPart, 1));
}

void read_gates(Config& config, Header& header) {
  std::vector<std::string> kinds = config.texts("gating_types");
  const json* const gating = config.find("gating");
  if (kinds.empty() && gating != nullptr && gating->is_string()) kinds.push_back(gating->get<std::string>());
  if (kinds.empty()) config.expect("gating", true);
  config.disregard({"gating"});
  for (std::string& kind : kinds) {
    std::replace(kind.begin(), kind.end(), '_', '-');
    if (kind != kinds.front() || (kind != kOfHeads && kind != kOfChannels))
      return config.fail(error(Code::unsupported,
                               "the gates of attention in config.json (gating, gating_types): this version has layers "
                               "with gates that are all \"{}\" or all \"{}\"",
                               kOfHeads, kOfChannels));
  }
  if (!kinds.empty() && kinds.front() == kOfChannels) header.set("attention.gate_per_head", false);
}

void read_laguna(Config& config, Header& header) {
  const std::int64_t layers = header.layers(), head_dim = header.integer("attention.key_length");
  std::vector<std::string> kinds = config.texts("layer_types");
  if (kinds.empty()) kinds.assign(static_cast<std::size_t>(layers), kSeesAll);
  if (std::ssize(kinds) != layers)
    return config.fail(
        error(Code::corrupt, "layer_types in config.json has {} entries for {} layers", kinds.size(), layers));
  std::vector<bool> local;
  bool usual = true;
  for (const std::string& kind : kinds) {
    local.push_back(kind == kSeesWindow);
    usual = usual && local.back() == usually_sees_window(local.size() - 1);
    if (kind != kSeesWindow && kind != kSeesAll)
      config.fail(error(Code::unsupported, "layer_types in config.json: this version has {} and {} alone", kSeesAll,
                        kSeesWindow));
  }
  header.set_integer("rope.dimension_count", rotated(config, kSeesAll, head_dim));
  config.disregard({"sliding_window"});
  if (std::find(local.begin(), local.end(), true) != local.end()) {
    header.set_integer("attention.sliding_window", config.required("sliding_window", 1, 1 << 28));
    header.set_integer("rope.dimension_count_swa", rotated(config, kSeesWindow, head_dim));
    if (!usual) header.set("attention.sliding_window_pattern", modelfile::array_value(local));
  }
  std::vector<std::int64_t> heads;
  for (const double count : config.numbers("num_attention_heads_per_layer"))
    heads.push_back(static_cast<std::int64_t>(count));
  if (!heads.empty() && std::ssize(heads) != layers)
    config.fail(error(Code::corrupt, "num_attention_heads_per_layer in config.json has {} entries for {} layers",
                      heads.size(), layers));
  if (std::adjacent_find(heads.begin(), heads.end(), std::not_equal_to<>()) != heads.end())
    header.set_integers("attention.head_count", heads);
  else if (!heads.empty())
    header.set_integer("attention.head_count", heads.front());
  header.set_integer("leading_dense_block_count", leading_dense(config, 1));
  header.set_integer("expert_gating_func", kSigmoidGating);
  header.set("expert_weights_norm", true);
  read_gates(config, header);
  config.expect("hidden_act", "silu");
  config.expect("moe_apply_router_weight_on_input", false);
  config.expect("moe_router_logit_softcapping", 0);
  config.disregard({"attention_bias"});  // follows from the tensors
}

Status write_laguna(const Header& header, json& config) {
  const std::int64_t head_dim = header.integer("attention.key_length"),
                     window = header.integer("attention.sliding_window");
  const auto pattern = header.of_layers("attention.sliding_window_pattern"),
             heads = header.of_layers("attention.head_count");
  json kinds = json::array();
  for (std::size_t i = 0; i < static_cast<std::size_t>(header.layers()); ++i) {
    const bool local = window > 0 && (pattern.size() > i ? pattern[i] != 0 : usually_sees_window(i));
    kinds.push_back(local ? kSeesWindow : kSeesAll);
  }
  config["layer_types"] = kinds;
  config["num_attention_heads_per_layer"] = heads;
  config["num_attention_heads"] = heads.empty() ? 0 : heads.front();
  config["head_dim"] = head_dim;
  config["gating"] = header.flag("attention.gate_per_head", true) ? kOfHeads : kOfChannels;
  if (window > 0) config["sliding_window"] = window;
  write_leading_dense(header, config);
  json& rotations = config["rope_parameters"];
  if (!rotations.contains(kSeesAll)) rotations = {{kSeesAll, rotations}, {kSeesWindow, rotations}};
  const auto part = [&](const char* key) {
    return static_cast<double>(header.integer(key, head_dim)) / static_cast<double>(head_dim);
  };
  rotations[kSeesAll]["partial_rotary_factor"] = part("rope.dimension_count");
  rotations[kSeesWindow]["partial_rotary_factor"] = part("rope.dimension_count_swa");
  for (const char* const key : {"rope_theta", "rope_scaling", "rope_local_base_freq", "partial_rotary_factor"})
    config.erase(key);
  return {};
}

}  // namespace

const Family kLaguna{.model_type = "laguna",
                     .model_class = "LagunaForCausalLM",
                     .architecture = "laguna",
                     .names = kLagunaNames,
                     .keys = {kMixtureKeys, kLagunaKeys},
                     .pre = "laguna",
                     .prepare = prepare_laguna,
                     .read = read_laguna,
                     .write = write_laguna};

}  // namespace millrace::convert
