// Step-3.5 and 3.7 Flash: layers that see a window have more heads and another rotation than those that see all tokens.
// Published files describe each layer by lists, which go on with the blocks that guess tokens; those blocks are not
// read. Transformers 5 has a rotation for each kind of layer, and joins gates and ups.
#include <set>

#include "convert/names.h"
#include "convert/rope.h"
#include "modelfile/gguf_writer.h"

namespace millrace::convert {
namespace {

using nlohmann::json;

constexpr const char *kSeesAll = "full_attention", *kSeesWindow = "sliding_attention";
constexpr double kPartOfAll = 0.5;  // that rotates in layers that see all tokens; elsewhere all channels do

constexpr NameRule kPublishedNames[] = {
    {"model.layers.#.self_attn.g_proj.weight", "blk.#.attn_gate.weight"},
    {"model.layers.#.moe.gate.weight", "blk.#.ffn_gate_inp.weight"},
    {"model.layers.#.moe.router_bias", "blk.#.exp_probs_b.bias"},
    {"model.layers.#.moe.gate_proj.weight", "blk.#.ffn_gate_exps.weight"},
    {"model.layers.#.moe.up_proj.weight", "blk.#.ffn_up_exps.weight"},
    {"model.layers.#.moe.down_proj.weight", "blk.#.ffn_down_exps.weight"},
    {"model.layers.#.share_expert.gate_proj.weight", "blk.#.ffn_gate_shexp.weight"},
    {"model.layers.#.share_expert.up_proj.weight", "blk.#.ffn_up_shexp.weight"},
    {"model.layers.#.share_expert.down_proj.weight", "blk.#.ffn_down_shexp.weight"},
};
constexpr Names kStep35Names[] = {kTopNames,   kAttentionNames, kPublishedNames,    kFfnNorm,
                                  kDenseNames, kExpertNames,    kSharedExpertsNames};
constexpr std::string_view kOfPictures[] = {"vision_model.", "vit_large_projector."};
constexpr KeyRule kStep35Keys[] = {{"n_routed_experts", "expert_count"},
                                   {"num_experts_per_tok", "expert_used_count"},
                                   {"moe_intermediate_size", "expert_feed_forward_length"},
                                   {"share_expert_dim", "expert_shared_feed_forward_length"},
                                   {"moe_router_scaling_factor", "expert_weights_scale", KeyRule::Kind::number},
                                   {"sliding_window", "attention.sliding_window"}};

/// Lists end with the layers; a limit that there is not is 0.
void trim_lists(Config& config, std::size_t layers) {
  for (const char* const key : {"layer_types", "mlp_layer_types", "swiglu_limits", "swiglu_limits_shared", "rope_theta",
                                "partial_rotary_factors"}) {
    const json* const list = config.find(key);
    if (list == nullptr || !list->is_array()) continue;
    json trimmed = json::array();
    for (std::size_t i = 0; i < std::min(layers, list->size()); ++i)
      trimmed.push_back((*list)[i].is_null() ? json(0) : (*list)[i]);
    config.set(key, std::move(trimmed));
  }
}

/// What a list of layers has for a kind of them: all the same.
json of_kind(Config& config, const char* key, const std::vector<std::string>& kinds, std::string_view kind) {
  const json* const list = config.find(key);
  if (list == nullptr || !list->is_array()) return list == nullptr ? json() : *list;
  json found;
  for (std::size_t i = 0; i < std::min(kinds.size(), list->size()); ++i) {
    if (kinds[i] != kind) continue;
    if (!found.is_null() && found != (*list)[i])
      config.fail(error(Code::unsupported, "{} in config.json differs among layers of one kind", key));
    found = (*list)[i];
  }
  return found;
}

/// One rotation for each kind of layers, by the lists where there are some, and no part where all channels rotate.
void settle_rotations(Config& config, const std::vector<std::string>& kinds) {
  json rotations = json::object();
  for (const char* const kind : {kSeesAll, kSeesWindow}) {
    Config own = config.within("rope_parameters").within(kind);
    json& rotation = rotations[kind] = json::object();
    for (const char* const key : {"rope_type", "factor", "low_freq_factor", "high_freq_factor", "rope_theta",
                                  "original_max_position_embeddings", "partial_rotary_factor"})
      if (const json* const value = own.find(key); value != nullptr) rotation[key] = *value;
    for (const auto& [theirs, key] :
         {std::pair{"rope_theta", "rope_theta"}, {"partial_rotary_factors", "partial_rotary_factor"}})
      if (json value = of_kind(config, theirs, kinds, kind); !value.is_null()) rotation[key] = std::move(value);
    if (const json* const scaling = config.find("rope_scaling");
        kind == kSeesAll && scaling != nullptr && scaling->is_object())
      rotation.update(*scaling);
    const double part = Config(rotation).number("partial_rotary_factor", 1), wanted = kind == kSeesAll ? kPartOfAll : 1;
    if (std::find(kinds.begin(), kinds.end(), kind) != kinds.end() && part != wanted)
      config.fail(error(Code::unsupported,
                        "the part of a head's channels that rotates in layers of {} is {} in config.json, and readers "
                        "of this architecture have {}",
                        kind, part, wanted));
    rotation.erase("partial_rotary_factor");
  }
  for (const char* const key : {"rope_theta", "partial_rotary_factors", "rope_scaling", "yarn_only_types"})
    config.drop(key);
  config.set("rope_parameters", std::move(rotations));
}

/// Heads of layers that see a window: of an object, or of transformers' overrides.
void settle_heads(Config& config) {
  Config other = config.within("attention_other_setting");
  other.expect("num_attention_groups", config.required("num_key_value_heads", 1, 1 << 16));
  other.expect("head_dim", config.required("head_dim", 1, 1 << 16));
  if (!config.has("num_sliding_attention_heads"))
    config.set("num_sliding_attention_heads",
               other.optional("num_attention_heads", config.required("num_attention_heads", 1, 1 << 16), 1, 1 << 16));
  config.fail(other.status());
  const json overridden = {{"num_attention_heads", config.required("num_sliding_attention_heads", 1, 1 << 16)}};
  if (const json* const all = config.find("per_layer_config"); all != nullptr && all->is_object())
    for (const auto& [layer, values] : all->items())
      if (values != overridden)
        config.fail(error(Code::unsupported,
                          "per_layer_config in config.json: this version has other heads in layers that see a window, "
                          "and no other overrides"));
}

void prepare_step35(Config& config) {
  const std::int64_t layers = config.optional("num_hidden_layers", 45, 1, 1 << 12);
  trim_lists(config, static_cast<std::size_t>(layers));
  if (!config.has("layer_types"))
    config.set("layer_types", std::vector<std::string>(static_cast<std::size_t>(layers), kSeesAll));
  if (!config.has("mlp_layer_types")) {
    std::set<std::int64_t> mixtures;
    const json* const given = config.find("moe_layers_enum");
    if (given == nullptr)
      for (std::int64_t i = 3; i < layers; ++i) mixtures.insert(i);
    if (given != nullptr && given->is_array())
      for (const double layer : config.numbers("moe_layers_enum")) mixtures.insert(static_cast<std::int64_t>(layer));
    if (given != nullptr && given->is_string()) {
      const std::string words = "[" + given->get<std::string>() + "]";
      for (const json& layer : json::parse(words, nullptr, false))
        if (layer.is_number_integer()) mixtures.insert(layer.get<std::int64_t>());
    }
    json kinds = json::array();
    for (std::int64_t i = 0; i < layers; ++i) kinds.push_back(mixtures.contains(i) ? "sparse" : "dense");
    config.set("mlp_layer_types", std::move(kinds));
  }
  settle_rotations(config, config.texts("layer_types"));
  settle_heads(config);
  config.disregard({"mtp_layer_types", "mtp_mlp_layer_types"});
}

void read_step35(Config& config, Header& header) {
  const std::int64_t heads = header.integer("attention.head_count"),
                     local_heads = config.required("num_sliding_attention_heads", 1, 1 << 16);
  std::vector<bool> local;
  std::vector<std::int64_t> all_heads;
  for (const std::string& kind : config.texts("layer_types")) {
    local.push_back(kind == kSeesWindow);
    all_heads.push_back(local.back() ? local_heads : heads);
    if (!local.back() && kind != kSeesAll)
      config.fail(error(Code::unsupported, "layer_types in config.json: this version has {} and {} alone", kSeesAll,
                        kSeesWindow));
  }
  if (std::ssize(local) != header.layers())
    config.fail(
        error(Code::corrupt, "layer_types in config.json has {} entries for {} layers", local.size(), header.layers()));
  header.set("attention.sliding_window_pattern", modelfile::array_value(local));
  header.set_integers("attention.head_count", all_heads);
  header.set_integer("leading_dense_block_count", leading_dense(config, 3));
  header.set_integer("expert_gating_func", kSigmoidGating);
  for (const auto& [theirs, ours] :
       {std::pair{"swiglu_limits", "swiglu_clamp_exp"}, {"swiglu_limits_shared", "swiglu_clamp_shexp"}})
    if (const std::vector<double> limits = config.numbers(theirs); !limits.empty())
      header.set(ours, modelfile::array_value(std::vector<float>(limits.begin(), limits.end())));
  config.expect("query_pre_attn_scalar", header.integer("attention.key_length"));
  config.expect("hidden_act", "silu");
  config.expect("moe_router_activation", "sigmoid");
  for (const char* const key : {"norm_expert_weight", "use_head_wise_attn_gate", "use_moe_router_bias", "use_qk_norm"})
    config.expect(key, true);
  config.expect("moe_every_n_layer", 1);
}

Status write_step35(const Header& header, json& config) {
  const auto local = header.of_layers("attention.sliding_window_pattern"),
             heads = header.of_layers("attention.head_count");
  json kinds = json::array(), bases = json::array(), parts = json::array();
  config["num_attention_heads"] = nullptr;
  config["head_dim"] = header.integer("attention.key_length");
  json& rotations = config["rope_parameters"];
  for (std::size_t i = 0; i < local.size() && i < heads.size(); ++i) {
    const bool whole = local[i] == 0;
    json& own = config[whole ? "num_attention_heads" : "num_sliding_attention_heads"];
    if (!own.is_null() && own != heads[i])
      return error(Code::unsupported, "layers with other numbers of heads than config.json can say");
    own = heads[i];
    kinds.push_back(whole ? kSeesAll : kSeesWindow);
    parts.push_back(whole ? kPartOfAll : 1);
    bases.push_back(rotations[whole ? kSeesAll : kSeesWindow]["rope_theta"]);
  }
  rotations[kSeesAll]["partial_rotary_factor"] = kPartOfAll;
  rotations[kSeesWindow]["partial_rotary_factor"] = 1.0;
  config["layer_types"] = kinds;
  config["rope_theta"] = bases;
  config["partial_rotary_factors"] = parts;
  config.erase("rope_local_base_freq");
  config["attention_other_setting"] = {{"attention_type", kSeesWindow},
                                       {"num_attention_heads", config["num_sliding_attention_heads"]},
                                       {"num_attention_groups", header.integer("attention.head_count_kv")},
                                       {"head_dim", header.integer("attention.key_length")}};
  for (const auto& [theirs, ours] :
       {std::pair{"swiglu_limits", "swiglu_clamp_exp"}, {"swiglu_limits_shared", "swiglu_clamp_shexp"}})
    if (header.has(ours)) config[theirs] = header.numbers(ours);
  write_leading_dense(header, config);
  std::string mixtures;
  for (std::int64_t i = header.integer("leading_dense_block_count"); i < header.layers(); ++i)
    mixtures += (mixtures.empty() ? "" : ",") + std::to_string(i);
  config["moe_layers_enum"] = mixtures;
  return {};
}

}  // namespace

const Family kStep35{.model_type = "step3p5",
                     .model_class = "Step3p5ForCausalLM",
                     .architecture = "step35",
                     .names = kStep35Names,
                     .keys = {kStep35Keys},
                     .norm_shift = 1,
                     .unused = kOfPictures,
                     .skips_extra = true,
                     .pre = "deepseek-v3",
                     .prepare = prepare_step35,
                     .read = read_step35,
                     .write = write_step35};

}  // namespace millrace::convert
