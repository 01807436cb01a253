// MiniMax-M3's text: dense layers, then mixtures whose KV heads choose blocks of tokens. Published checkpoints have the
// names of the whole model, which sees; those of transformers' text model join gates and ups.
#include "convert/names.h"
#include "convert/rope.h"

namespace millrace::convert {
namespace {

constexpr const char *kChooses = "minimax_m3_sparse", *kSeesAll = "full_attention";
constexpr std::int64_t kMostChannels = 1 << 20;

constexpr NameRule kJoinedGates[] = {
    {"model.layers.#.mlp.gate_up_proj.weight", "blk.#.ffn_gate.weight", Form::first_half},
    {"model.layers.#.mlp.gate_up_proj.weight", "blk.#.ffn_up.weight", Form::second_half},
    {"model.layers.#.mlp.gate.weight", "blk.#.ffn_gate_inp.weight"},
    {"model.layers.#.mlp.gate.e_score_correction_bias", "blk.#.exp_probs_b.bias"},
    {"model.layers.#.mlp.experts.gate_up_proj", "blk.#.ffn_gate_exps.weight", Form::first_half},
    {"model.layers.#.mlp.experts.gate_up_proj", "blk.#.ffn_up_exps.weight", Form::second_half},
    {"model.layers.#.mlp.experts.down_proj", "blk.#.ffn_down_exps.weight"},
    {"model.layers.#.mlp.shared_experts.gate_up_proj.weight", "blk.#.ffn_gate_shexp.weight", Form::first_half},
    {"model.layers.#.mlp.shared_experts.gate_up_proj.weight", "blk.#.ffn_up_shexp.weight", Form::second_half},
    {"model.layers.#.mlp.shared_experts.down_proj.weight", "blk.#.ffn_down_shexp.weight"},
};
constexpr NameRule kPublishedNames[] = {
    {"model.layers.#.block_sparse_moe.e_score_correction_bias", "blk.#.exp_probs_b.bias"},
    {"model.layers.#.block_sparse_moe.shared_experts.gate_proj.weight", "blk.#.ffn_gate_shexp.weight"},
    {"model.layers.#.block_sparse_moe.shared_experts.up_proj.weight", "blk.#.ffn_up_shexp.weight"},
    {"model.layers.#.block_sparse_moe.shared_experts.down_proj.weight", "blk.#.ffn_down_shexp.weight"},
};
constexpr NameRule kBlockIndexer[] = {
    {"model.layers.#.self_attn.indexer.q_proj.weight", "blk.#.indexer.q_proj.weight"},
    {"model.layers.#.self_attn.indexer.k_proj.weight", "blk.#.indexer.k_proj.weight"},
    {"model.layers.#.self_attn.indexer.q_norm.weight", "blk.#.indexer.q_norm.weight", Form::norm},
    {"model.layers.#.self_attn.indexer.k_norm.weight", "blk.#.indexer.k_norm.weight", Form::norm},
    {"model.layers.#.self_attn.index_q_proj.weight", "blk.#.indexer.q_proj.weight"},
    {"model.layers.#.self_attn.index_k_proj.weight", "blk.#.indexer.k_proj.weight"},
    {"model.layers.#.self_attn.index_q_norm.weight", "blk.#.indexer.q_norm.weight", Form::norm},
    {"model.layers.#.self_attn.index_k_norm.weight", "blk.#.indexer.k_norm.weight", Form::norm},
};
constexpr Names kMiniMaxM3Names[] = {kTopNames,       kAttentionNames, kFfnNorm,    kJoinedGates,
                                     kMixtralExperts, kPublishedNames, kDenseNames, kBlockIndexer};
constexpr std::string_view kUnread[] = {"model.mtp.", "mtp.", "language_model.mtp."};
constexpr KeyRule kMiniMaxM3Keys[] = {{"num_local_experts", "expert_count"},
                                      {"num_experts_per_tok", "expert_used_count"},
                                      {"intermediate_size", "expert_feed_forward_length"},
                                      {"dense_intermediate_size", "feed_forward_length"},
                                      {"routed_scaling_factor", "expert_weights_scale", KeyRule::Kind::number},
                                      {"rotary_dim", "rope.dimension_count"},
                                      {"index_n_heads", "attention.indexer.head_count"},
                                      {"index_head_dim", "attention.indexer.key_length"},
                                      {"index_block_size", "attention.indexer.block_size"},
                                      {"index_topk_blocks", "attention.indexer.top_k"},
                                      {"index_local_blocks", "attention.indexer.local_blocks"}};

/// A list of 0 and 1 as one of kinds.
nlohmann::json kinds_of(const std::vector<double>& flags, const char* zero, const char* one) {
  nlohmann::json kinds = nlohmann::json::array();
  for (const double flag : flags) kinds.push_back(flag != 0 ? one : zero);
  return kinds;
}

/// Published files have the indexer's keys in an object of their own, and lists of 0 and 1 for kinds of layers.
void prepare_minimax_m3(Config& config) {
  Config sparse = config.within("sparse_attention_config");
  constexpr std::pair<const char*, const char*> kWithin[] = {{"sparse_num_index_heads", "index_n_heads"},
                                                             {"sparse_index_dim", "index_head_dim"},
                                                             {"sparse_block_size", "index_block_size"},
                                                             {"sparse_topk_blocks", "index_topk_blocks"},
                                                             {"sparse_local_block", "index_local_blocks"}};
  for (const auto& [theirs, field] : kWithin)
    if (const nlohmann::json* const value = sparse.find(theirs); value != nullptr)
      config.set(field, nlohmann::json(*value));
  if (!config.has("layer_types") && sparse.has("sparse_attention_freq"))
    config.set("layer_types", kinds_of(sparse.numbers("sparse_attention_freq"), kSeesAll, kChooses));
  if (!config.has("mlp_layer_types") && config.has("moe_layer_freq"))
    config.set("mlp_layer_types", kinds_of(config.numbers("moe_layer_freq"), "dense", "sparse"));
  config.fail(sparse.status());
}

void read_minimax_m3(Config& config, Header& header) {
  const std::int64_t leading = leading_dense(config, 0), width = header.integer("expert_feed_forward_length"),
                     shared = config.optional("shared_intermediate_size", width, 0, kMostChannels);
  header.set_integer("expert_gating_func", kSigmoidGating);
  header.set("expert_weights_norm", true);
  header.set_integer("leading_dense_block_count", leading);
  if (width <= 0 || shared % width != 0)
    config.fail(error(Code::unsupported,
                      "shared_intermediate_size in config.json is {}, no multiple of the {} of an expert: readers of "
                      "this architecture have one or several alike",
                      shared, width));
  else
    header.set_integer("expert_shared_count", shared / width);
  const std::vector<std::string> kinds = config.texts("layer_types");
  for (std::int64_t i = 0; i < header.layers(); ++i)
    if (i >= std::ssize(kinds) || kinds[static_cast<std::size_t>(i)] != (i < leading ? kSeesAll : kChooses))
      config.fail(error(Code::unsupported,
                        "layer_types in config.json: layer {} is not '{}'; this version has such models whose dense "
                        "layers see all tokens and whose mixtures see chosen blocks",
                        i, i < leading ? kSeesAll : kChooses));
  if (const Config rope = rotation_of(config); rope.has("partial_rotary_factor")) {
    const double part = Config(rope).number("partial_rotary_factor", 1);
    header.set_integer("rope.dimension_count",
                       static_cast<std::int64_t>(part * static_cast<double>(header.integer("attention.key_length"))));
  }
  if (config.text("hidden_act", "silu") != "swigluoai") config.expect("hidden_act", "silu");
  config.expect("swiglu_alpha", 1.702);
  config.expect("swiglu_limit", 7.0);
  config.expect("scoring_func", "sigmoid");
}

Status write_minimax_m3(const Header& header, nlohmann::json& config) {
  const std::int64_t width = header.integer("expert_feed_forward_length"),
                     leading = header.integer("leading_dense_block_count");
  write_leading_dense(header, config);
  nlohmann::json kinds = nlohmann::json::array();
  for (std::int64_t i = 0; i < header.layers(); ++i) kinds.push_back(i < leading ? kSeesAll : kChooses);
  config["layer_types"] = kinds;
  config["intermediate_size"] = width;
  config["shared_intermediate_size"] = width * header.integer("expert_shared_count", 1);
  config["swiglu_alpha"] = 1.702;
  config["swiglu_limit"] = 7.0;
  return {};
}

}  // namespace

const Family kMiniMaxM3{.model_type = "minimax_m3_vl_text",
                        .model_class = "MiniMaxM3VLForCausalLM",
                        .architecture = "minimax-m3",
                        .names = kMiniMaxM3Names,
                        .keys = {kMiniMaxM3Keys},
                        .norm_shift = 1,
                        .unused = kUnread,
                        .pre = "minimax-m2",
                        .prepare = prepare_minimax_m3,
                        .read = read_minimax_m3,
                        .write = write_minimax_m3};

}  // namespace millrace::convert
