// DeepSeek-V4. Published checkpoints name their tensors as DeepSeek does, and transformers saves most of them by the
// same names. The blocks that guess a token ("mtp.") are left out.
#include <algorithm>
#include <cmath>

#include "convert/names.h"
#include "convert/rope.h"
#include "modelfile/gguf_writer.h"

namespace millrace::convert {
namespace {

using nlohmann::json;

constexpr NameRule kNames[] = {
    {"model.embed_tokens.weight", "token_embd.weight"},
    {"model.embed.weight", "token_embd.weight"},
    {"model.norm.weight", "output_norm.weight"},
    {"lm_head.weight", "output.weight"},
    {"model.head.weight", "output.weight"},
    {"model.hc_head.hc_fn", "output_hc_fn.weight"},
    {"model.hc_head.hc_base", "output_hc_base.weight"},
    {"model.hc_head.hc_scale", "output_hc_scale.weight"},
    {"model.hc_head_fn", "output_hc_fn.weight"},
    {"model.hc_head_base", "output_hc_base.weight"},
    {"model.hc_head_scale", "output_hc_scale.weight"},
    {"model.layers.#.hc_attn_fn", "blk.#.hc_attn_fn.weight"},
    {"model.layers.#.hc_attn_base", "blk.#.hc_attn_base.weight"},
    {"model.layers.#.hc_attn_scale", "blk.#.hc_attn_scale.weight"},
    {"model.layers.#.hc_ffn_fn", "blk.#.hc_ffn_fn.weight"},
    {"model.layers.#.hc_ffn_base", "blk.#.hc_ffn_base.weight"},
    {"model.layers.#.hc_ffn_scale", "blk.#.hc_ffn_scale.weight"},
    {"model.layers.#.attn_norm.weight", "blk.#.attn_norm.weight"},
    {"model.layers.#.attn.attn_sink", "blk.#.attn_sinks.weight"},
    {"model.layers.#.attn.wq_a.weight", "blk.#.attn_q_a.weight"},
    {"model.layers.#.attn.q_norm.weight", "blk.#.attn_q_a_norm.weight"},
    {"model.layers.#.attn.wq_b.weight", "blk.#.attn_q_b.weight"},
    {"model.layers.#.attn.wkv.weight", "blk.#.attn_kv.weight"},
    {"model.layers.#.attn.kv_norm.weight", "blk.#.attn_kv_a_norm.weight"},
    {"model.layers.#.attn.norm.weight", "blk.#.attn_kv_a_norm.weight"},  // transformers'
    {"model.layers.#.attn.wo_a.weight", "blk.#.attn_output_a.weight"},
    {"model.layers.#.attn.wo_b.weight", "blk.#.attn_output_b.weight"},
    {"model.layers.#.attn.compressor.wkv.weight", "blk.#.attn_compressor_kv.weight"},
    {"model.layers.#.attn.compressor.wgate.weight", "blk.#.attn_compressor_gate.weight"},
    {"model.layers.#.attn.compressor.ape", "blk.#.attn_compressor_ape.weight"},
    {"model.layers.#.attn.compressor.norm.weight", "blk.#.attn_compressor_norm.weight"},
    {"model.layers.#.attn.indexer.compressor.wkv.weight", "blk.#.indexer_compressor_kv.weight"},
    {"model.layers.#.attn.indexer.compressor.wgate.weight", "blk.#.indexer_compressor_gate.weight"},
    {"model.layers.#.attn.indexer.compressor.ape", "blk.#.indexer_compressor_ape.weight"},
    {"model.layers.#.attn.indexer.compressor.norm.weight", "blk.#.indexer_compressor_norm.weight"},
    {"model.layers.#.attn.indexer.wq_b.weight", "blk.#.indexer.attn_q_b.weight"},
    {"model.layers.#.attn.indexer.weights_proj.weight", "blk.#.indexer.proj.weight"},
    {"model.layers.#.ffn_norm.weight", "blk.#.ffn_norm.weight"},
    {"model.layers.#.ffn.gate.weight", "blk.#.ffn_gate_inp.weight"},
    {"model.layers.#.ffn.gate.bias", "blk.#.exp_probs_b.bias"},
    {"model.layers.#.ffn.gate.tid2eid", "blk.#.ffn_gate_tid2eid.weight", Form::integers},
    {"model.layers.#.ffn.experts.*.w1.weight", "blk.#.ffn_gate_exps.weight", Form::experts},
    {"model.layers.#.ffn.experts.*.w3.weight", "blk.#.ffn_up_exps.weight", Form::experts},
    {"model.layers.#.ffn.experts.*.w2.weight", "blk.#.ffn_down_exps.weight", Form::experts},
    {"model.layers.#.ffn.shared_experts.w1.weight", "blk.#.ffn_gate_shexp.weight"},
    {"model.layers.#.ffn.shared_experts.w3.weight", "blk.#.ffn_up_shexp.weight"},
    {"model.layers.#.ffn.shared_experts.w2.weight", "blk.#.ffn_down_shexp.weight"},
};
constexpr Names kAllNames[] = {kNames};
constexpr KeyRule kKeys[] = {{"n_routed_experts", "expert_count"},
                             {"num_experts_per_tok", "expert_used_count"},
                             {"moe_intermediate_size", "expert_feed_forward_length"},
                             {"n_shared_experts", "expert_shared_count"},
                             {"routed_scaling_factor", "expert_weights_scale", KeyRule::Kind::number},
                             {"q_lora_rank", "attention.q_lora_rank"},
                             {"sliding_window", "attention.sliding_window"},
                             {"o_groups", "attention.output_group_count"},
                             {"o_lora_rank", "attention.output_lora_rank"},
                             {"compress_rope_theta", "attention.compress_rope_freq_base", KeyRule::Kind::number},
                             {"index_n_heads", "attention.indexer.head_count"},
                             {"index_head_dim", "attention.indexer.key_length"},
                             {"index_topk", "attention.indexer.top_k"},
                             {"hc_mult", "hyper_connection.count"},
                             {"hc_sinkhorn_iters", "hyper_connection.sinkhorn_iterations"},
                             {"hc_eps", "hyper_connection.epsilon", KeyRule::Kind::number}};

constexpr std::string_view kSliding = "sliding_attention", kSparse = "compressed_sparse_attention",
                           kHeavy = "heavily_compressed_attention", kHash = "hash_moe";
constexpr std::int64_t kSparseRatio = 4, kHeavyRatio = 128, kSqrtSoftplusGating = 4, kMost = 1 << 16;

double growth(double factor) { return factor <= 1 ? 1 : 0.1 * std::log(factor) + 1; }

/// Two rotations, that of layers without rows and that of the others, as one with another base in a field of its own.
void prepare_rope(Config& config) {
  json scaling = json::object();
  double theta = config.number("rope_theta", 10000), part = 64.0 / 512;
  if (config.has("partial_rotary_factor")) part = config.number("partial_rotary_factor", part);
  if (config.has("qk_rope_head_dim"))
    part = static_cast<double>(config.required("qk_rope_head_dim", 2, kMost)) /
           static_cast<double>(config.required("head_dim", 2, kMost));
  Config whole = config.within("rope_parameters"), main = whole.within("main"), compressed = whole.within("compress");
  for (const char* key : {"rope_scaling", "rope_parameters"})
    if (const json* own = config.find(key); own != nullptr && own->is_object() && scaling.empty()) scaling = *own;
  if (compressed.has("rope_theta")) {
    scaling = *whole.find("compress");
    theta = main.number("rope_theta", theta);
    part = main.number("partial_rotary_factor", part);
    config.set("compress_rope_theta", compressed.number("rope_theta", 0));
    main.expect("rope_type", "default");
    config.fail(main.status());
  }
  if (scaling.contains("type") && !scaling.contains("rope_type")) scaling["rope_type"] = scaling["type"];
  Config yarn(scaling);
  yarn.expect("attention_factor", 1.0);
  const double factor = yarn.number("factor", 1);
  config.fail(yarn.status());
  for (const char* key : {"type", "partial_rotary_factor", "mscale", "mscale_all_dim"}) scaling.erase(key);
  scaling["rope_theta"] = theta;
  if (scaling.value("rope_type", "") == "yarn") scaling["attention_factor"] = growth(factor);  // readers leave it out
  for (const char* key : {"rope_scaling", "rope_theta", "partial_rotary_factor"}) config.drop(key);
  config.set("rope_parameters", scaling);
  config.set("qk_rope_head_dim", std::llround(part * static_cast<double>(config.required("head_dim", 2, kMost))));
}

/// Tokens to a row of each layer, and the layers whose experts follow from the token.
void prepare_deepseek4(Config& config) {
  const std::int64_t layers = config.required("num_hidden_layers", 1, kMost);
  const Config rates = config.within("compress_rates");
  json ratios = json::array();
  if (const json* own = config.find("compress_ratios"); own != nullptr && !config.has("layer_types")) {
    ratios = *own;
  } else {
    std::vector<std::string> kinds = config.texts("layer_types");
    for (std::int64_t i = std::ssize(kinds); i < layers; ++i)  // transformers' default
      kinds.emplace_back(i < 2 || i % 2 == 0 ? kHeavy : kSparse);
    for (const std::string& kind : kinds)
      ratios.push_back(kind == kSliding  ? 0
                       : kind == kSparse ? Config(rates).optional(kSparse, kSparseRatio, 1, kMost)
                                         : Config(rates).optional(kHeavy, kHeavyRatio, 1, kMost));
  }
  config.set("compress_ratios", ratios);
  const std::vector<std::string> mixtures = config.texts("mlp_layer_types");
  std::int64_t hash = config.optional("num_hash_layers", 3, 0, kMost);
  if (!mixtures.empty()) {
    hash = std::count(mixtures.begin(), mixtures.end(), kHash);
    if (std::any_of(mixtures.begin() + std::min(hash, std::ssize(mixtures)), mixtures.end(),
                    [](const std::string& kind) { return kind == kHash; }))
      config.fail(error(Code::unsupported,
                        "mlp_layer_types in config.json: this version has {} in the first layers alone", kHash));
  }
  config.set("num_hash_layers", std::min(hash, layers));
  prepare_rope(config);
}

void read_deepseek4(Config& config, Header& header) {
  const auto layers = static_cast<std::size_t>(header.layers());
  std::vector<std::int64_t> ratios;
  for (const double ratio : config.numbers("compress_ratios")) ratios.push_back(static_cast<std::int64_t>(ratio));
  if (ratios.size() < layers)
    config.fail(
        error(Code::corrupt, "compress_ratios in config.json has {} values for {} layers", ratios.size(), layers));
  for (const std::int64_t ratio : ratios)
    if (ratio != 0 && ratio != kSparseRatio && ratio < 2 * kSparseRatio)
      config.fail(error(Code::unsupported,
                        "compress_ratios or compress_rates in config.json: rows of {} tokens; this version has rows of "
                        "4 where an indexer chooses among them, and longer ones",
                        ratio));
  const std::vector<float> limits(layers, static_cast<float>(config.number("swiglu_limit", 10)));
  header.set_integers("attention.compress_ratios", ratios);
  header.set("swiglu_clamp_exp", modelfile::array_value(limits));
  header.set("swiglu_clamp_shexp", modelfile::array_value(limits));
  header.set_integer("rope.dimension_count", config.required("qk_rope_head_dim", 2, kMost));
  header.set_integer("hash_layer_count", config.required("num_hash_layers", 0, kMost));
  header.set_integer("expert_gating_func", kSqrtSoftplusGating);
  header.set("expert_weights_norm", true);
  header.set_integer("embedding_length_out",
                     header.integer("hyper_connection.count") * header.integer("embedding_length"));
  config.expect("scoring_func", "sqrtsoftplus");
  config.expect("hidden_act", "silu");
  config.expect("mlp_bias", false);
  config.expect("attention_bias", false);
  config.expect("num_key_value_heads", 1);
  config.disregard({"layer_types", "compress_rates", "mlp_layer_types"});  // prepare_deepseek4() has read them
}

Status write_deepseek4(const Header& header, json& config) {
  const std::vector<std::int64_t> ratios = header.of_layers("attention.compress_ratios");
  const std::int64_t hash = header.integer("hash_layer_count");
  json kinds = json::array(), mixtures = json::array();
  std::int64_t heavy = kHeavyRatio;
  for (const std::int64_t ratio : ratios) {
    kinds.push_back(ratio == 0 ? kSliding : ratio == kSparseRatio ? kSparse : kHeavy);
    if (ratio > kSparseRatio) heavy = ratio;
  }
  for (const std::int64_t ratio : ratios)
    if (ratio > kSparseRatio && ratio != heavy)
      return error(Code::unsupported, "layers have rows of {} and of {} tokens, for which checkpoints have no field",
                   heavy, ratio);
  for (std::int64_t i = 0; i < header.layers(); ++i) mixtures.push_back(i < hash ? kHash : "moe");
  const auto limits = header.numbers("swiglu_clamp_exp");
  if (limits.empty() || std::any_of(limits.begin(), limits.end(), [&](double one) { return one != limits.front(); }))
    return error(Code::unsupported, "layers have other limits, for which checkpoints have no field");
  const std::int64_t dim = header.integer("attention.key_length"), turned = header.integer("rope.dimension_count");
  const double part = static_cast<double>(turned) / static_cast<double>(dim);
  json compressed = config.contains("rope_scaling") ? config["rope_scaling"] : json::object();
  if (!compressed.contains("rope_type")) compressed["rope_type"] = "default";
  if (compressed["rope_type"] == "yarn") compressed["attention_factor"] = 1.0;
  compressed["rope_theta"] = header.number("attention.compress_rope_freq_base");
  compressed["partial_rotary_factor"] = part;
  const double theta = header.number("rope.freq_base", 10000);
  config.erase("rope_scaling");
  config["rope_parameters"] = {
      {"main", {{"rope_type", "default"}, {"rope_theta", theta}, {"partial_rotary_factor", part}}},
      {"compress", compressed}};
  config["partial_rotary_factor"] = part;
  config["head_dim"] = dim;
  config["layer_types"] = kinds;
  config["compress_rates"] = {{kSparse, kSparseRatio}, {kHeavy, heavy}};
  config["mlp_layer_types"] = mixtures;
  config["num_key_value_heads"] = 1;
  config["swiglu_limit"] = limits.front();
  config["scoring_func"] = "sqrtsoftplus";
  config["num_nextn_predict_layers"] = 0;
  return {};
}

constexpr std::string_view kUnused[] = {"model.mtp."};

}  // namespace

const Family kDeepSeekV4{.model_type = "deepseek_v4",
                         .model_class = "DeepseekV4ForCausalLM",
                         .architecture = "deepseek4",
                         .names = kAllNames,
                         .keys = {kKeys},
                         .prefix = "model.",
                         .unused = kUnused,
                         .pre = "deepseek-v3",
                         .prepare = prepare_deepseek4,
                         .read = read_deepseek4,
                         .write = write_deepseek4};

}  // namespace millrace::convert
