// Qwen3.8-Flash-Next: Qwen3.5's mixtures over several residual streams, with an indexer in the layers that attend and a
// table of hashed n-grams. What the hashes multiply by, and where each head's rows lie, checkpoints have as tensors or
// leave to their config, from which it follows; GGUF has it as keys. Source: transformers 5.17 (qwen4_exp).
#include <algorithm>
#include <numeric>

#include "convert/names.h"
#include "convert/qwen35.h"
#include "modelfile/gguf_writer.h"

namespace millrace::convert {
namespace {

using nlohmann::json;

#define MR_HASHES "model.layers.#.ple.ple_embedding."
constexpr NameRule kStreams[] = {
    {"model.layers.#.attn_hyper_connection.hc_norm.weight", "blk.#.hc_attn_norm.weight", Form::norm},
    {"model.layers.#.attn_hyper_connection.input_mix_weight_down.weight", "blk.#.hc_attn_down.weight"},
    {"model.layers.#.attn_hyper_connection.input_mix_weight_up.weight", "blk.#.hc_attn_up.weight"},
    {"model.layers.#.attn_hyper_connection.block_inject_weight.weight", "blk.#.hc_attn_inject.weight"},
    {"model.layers.#.mlp_hyper_connection.hc_norm.weight", "blk.#.hc_ffn_norm.weight", Form::norm},
    {"model.layers.#.mlp_hyper_connection.input_mix_weight_down.weight", "blk.#.hc_ffn_down.weight"},
    {"model.layers.#.mlp_hyper_connection.input_mix_weight_up.weight", "blk.#.hc_ffn_up.weight"},
    {"model.layers.#.mlp_hyper_connection.block_inject_weight.weight", "blk.#.hc_ffn_inject.weight"},
    {"model.hyper_connection_mixer.hc_norm.weight", "output_hc_norm.weight", Form::norm},
    {"model.hyper_connection_mixer.input_mix_weight_down.weight", "output_hc_down.weight"},
    {"model.hyper_connection_mixer.input_mix_weight_up.weight", "output_hc_up.weight"},
};
constexpr NameRule kIndexer[] = {
    {"model.layers.#.self_attn.indexer.index_qk_proj.weight", "blk.#.indexer.q_proj.weight", Form::index_queries},
    {"model.layers.#.self_attn.indexer.index_qk_proj.weight", "blk.#.indexer.k_proj.weight", Form::index_key},
    {"model.layers.#.self_attn.indexer.q_layernorm.weight", "blk.#.indexer.q_norm.weight", Form::norm},
    {"model.layers.#.self_attn.indexer.k_layernorm.weight", "blk.#.indexer.k_norm.weight", Form::norm},
};
constexpr NameRule kNgrams[] = {
    {"model.layers.#.ple.key_proj.weight", "blk.#.ple_key.weight"},
    {"model.layers.#.ple.value_proj.weight", "blk.#.ple_value.weight"},
    {"model.layers.#.ple.norm_key.weight", "blk.#.ple_norm_key.weight", Form::norm},
    {"model.layers.#.ple.norm_query.weight", "blk.#.ple_norm_query.weight", Form::norm},
    {"model.layers.#.ple.norm_conv.weight", "blk.#.ple_norm_conv.weight", Form::norm},
    {"model.layers.#.ple.conv1d.weight", "blk.#.ple_conv1d.weight", Form::taps},
    {MR_HASHES "ngram_embedding.shard_*.weight", "per_layer_token_embd.weight", Form::pieces},
    {MR_HASHES "ngram_embedding.weight", "per_layer_token_embd.weight"},
    {MR_HASHES "layer_multipliers", "ple.layer_multipliers", Form::key},
    {MR_HASHES "ngram_heads_vocab_sizes", "ple.head_vocab_sizes", Form::key},
    {MR_HASHES "ngram_heads_offsets", "ple.head_offsets", Form::key},
};
#undef MR_HASHES
constexpr Names kQwen4Names[] = {kTopNames,          kAttentionNames, kTiledNet, kExpertNames,
                                 kSharedExpertNames, kStreams,        kIndexer,  kNgrams};
constexpr std::string_view kGuesses[] = {"mtp."};

constexpr KeyRule kQwen4Keys[] = {{"hc_count", "hyper_connection.count"},
                                  {"hc_lowrank", "hyper_connection.low_rank"},
                                  {"indexer_n_heads", "attention.indexer.head_count"},
                                  {"indexer_head_dim", "attention.indexer.key_length"},
                                  {"indexer_budget", "attention.indexer.top_k"}};

constexpr const char* kAttends = "full_attention";
constexpr std::int64_t kUsualInterval = 4;

/// One name for what attends: transformers 5.17 and 5.24 write others than the published checkpoint.
void prepare_qwen4exp(Config& config) {
  json kinds = json::array();
  for (const std::string& kind : config.texts("layer_types"))
    kinds.push_back(kind == "qwen_sparse_attention" || kind == "indexed_attention" ? kAttends : kind);
  if (!kinds.empty()) config.set("layer_types", std::move(kinds));
}

std::uint64_t splitmix64(std::uint64_t x) {
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9;
  x = (x ^ x >> 27) * 0x94D049BB133111EB;
  return x ^ x >> 31;
}

/// What each token of an n-gram is multiplied by, in the first table of a model: odd numbers.
std::vector<std::int64_t> multipliers(std::uint64_t seed, std::int64_t vocab, std::int64_t order) {
  constexpr std::uint64_t kStep = 0x9E3779B97F4A7C15;
  const std::int64_t bound = std::max<std::int64_t>(1, INT64_MAX / std::max<std::int64_t>(vocab, 1) / 2);
  std::vector<std::int64_t> odd;
  for (std::int64_t i = 1; i <= order; ++i) {
    const std::uint64_t drawn = splitmix64(seed + kStep * static_cast<std::uint64_t>(i + 1));
    odd.push_back(2 * static_cast<std::int64_t>(drawn % static_cast<std::uint64_t>(bound)) + 1);
  }
  return odd;
}

bool is_prime(std::int64_t number) {
  for (std::int64_t divisor = 2; divisor * divisor <= number; ++divisor)
    if (number % divisor == 0) return false;
  return number > 1;
}

/// The first `count` primes from `least` on.
std::vector<std::int64_t> primes(std::int64_t least, std::int64_t count) {
  std::vector<std::int64_t> found;
  for (std::int64_t number = least; std::ssize(found) < count; ++number)
    if (is_prime(number)) found.push_back(number);
  return found;
}

void read_indexer(Config& config, Header& header) {
  const bool chooses = config.has("indexer_n_heads");
  if (!chooses) return;
  if (config.required("indexer_kv_heads", 1, 1024) != 1)
    config.fail(error(Code::unsupported, "indexer_kv_heads in config.json: this version has indexers with one key"));
  const std::int64_t ratio = config.required("indexer_compress_ratio", 1, 1 << 16),
                     interval = header.integer("full_attention_interval", kUsualInterval);
  std::vector<std::int64_t> ratios;
  for (std::int64_t i = 1; i <= header.layers(); ++i) ratios.push_back(i % interval == 0 ? ratio : 0);
  header.set_integers("attention.compress_ratios", ratios);
}

/// The id that ends n-grams: the first, where the config has several.
std::int64_t end_of_text(Config& config) {
  const json* const ids = config.find("eos_token_id");
  if (ids == nullptr || !ids->is_array() || ids->empty()) return config.required("eos_token_id", 0, INT32_MAX);
  Config first(json{{"eos_token_id", ids->front()}});
  const std::int64_t id = first.required("eos_token_id", 0, INT32_MAX);
  config.fail(first.status());
  return id;
}

void read_ngrams(Config& config, Header& header) {
  config.disregard({"ple_embed_dim", "ple_conv_kernel_size", "ngram_size", "heads_per_ngram", "ngram_vocab_size_base",
                    "seed", "make_ngram_vocab_size_divisible_by", "split_ngram_parts"});
  const std::vector<double> layers = config.numbers("ple_layer_ids");
  if (layers.empty()) return;
  if (layers.size() > 1 || !(layers.front() >= 1 && layers.front() <= static_cast<double>(header.layers())))
    return config.fail(error(Code::unsupported,
                             "ple_layer_ids in config.json: this version has n-grams before one of the layers alone"));
  const std::int64_t order = config.required("ngram_size", 2, 16), each = config.required("heads_per_ngram", 1, 64),
                     heads = (order - 1) * each,
                     dim = config.optional("ple_embed_dim", header.integer("embedding_length"), heads, 1 << 20);
  if (dim % heads != 0)
    config.fail(
        error(Code::corrupt, "ple_embed_dim in config.json is {}, which {} heads cannot share evenly", dim, heads));
  header.set_integers("ple.layers", {static_cast<std::int64_t>(layers.front()) - 1});
  header.set_integer("ple.ngram_size", order);
  header.set_integer("ple.heads_per_ngram", each);
  header.set_integer("ple.conv_kernel", config.required("ple_conv_kernel_size", 2, 64));
  header.set_integer("ple.eos_token_id", end_of_text(config));
  header.set_integer("embedding_length_per_layer_input", dim / heads);
  if (config.has("image_token_id"))
    header.set_integer("ple.image_token_id", config.required("image_token_id", 0, INT32_MAX));
  const auto seed = static_cast<std::uint64_t>(config.required("seed", 0, INT64_MAX));
  const std::vector<std::int64_t> sizes = primes(config.required("ngram_vocab_size_base", 2, 1 << 28), heads);
  std::vector<std::int64_t> offsets(sizes.size());
  std::exclusive_scan(sizes.begin(), sizes.end(), offsets.begin(), std::int64_t{0});
  header.set_integers("ple.layer_multipliers", multipliers(seed, header.integer("vocab_size"), order));
  header.set_integers("ple.head_vocab_sizes", sizes);
  header.set_integers("ple.head_offsets", offsets);
}

void read_qwen4exp(Config& config, Header& header) {
  read_qwen35(config, header);
  if (config.text("output_gate_type", config.text("hidden_act", "")) != "sigmoid")
    config.fail(
        error(Code::unsupported, "output_gate_type in config.json: this version has such models with a sigmoid alone"));
  read_indexer(config, header);
  read_ngrams(config, header);
}

Status write_ngrams(const Header& header, json& config) {
  const std::vector<std::int64_t> layers = header.integers("ple.layers"),
                                  sizes = header.integers("ple.head_vocab_sizes");
  config["ple_layer_ids"] = json::array();
  if (layers.empty() || sizes.empty()) return {};
  const std::int64_t order = header.integer("ple.ngram_size"), each = header.integer("ple.heads_per_ngram");
  if (sizes != primes(sizes.front(), std::ssize(sizes)))
    return error(Code::unsupported, "{} are not the primes from {} on, and a checkpoint cannot say others",
                 header.name("ple.head_vocab_sizes"), sizes.front());
  config["ple_layer_ids"] = {layers.front() + 1};
  config["ngram_size"] = order;
  config["heads_per_ngram"] = each;
  config["ple_embed_dim"] = header.integer("embedding_length_per_layer_input") * (order - 1) * each;
  config["ple_conv_kernel_size"] = header.integer("ple.conv_kernel");
  config["ngram_vocab_size_base"] = sizes.front();
  config["split_ngram_parts"] = 1;
  if (header.has("ple.image_token_id")) config["image_token_id"] = header.integer("ple.image_token_id");
  const std::int64_t end = header.integer("ple.eos_token_id");
  json& ends = config["eos_token_id"];
  ends = ends.is_null() || ends == end ? json(end) : json{end, ends};
  return {};
}

Status write_qwen4exp(const Header& header, json& config) {
  MR_RETURN_IF_ERROR(write_qwen35(header, config));
  config["output_gate_type"] = "sigmoid";
  const std::vector<std::int64_t> ratios = header.of_layers("attention.compress_ratios");
  const auto most = std::max_element(ratios.begin(), ratios.end());
  if (most != ratios.end() && *most > 0) {
    config["indexer_kv_heads"] = 1;
    config["indexer_compress_ratio"] = *most;
  }
  return write_ngrams(header, config);
}

std::int64_t layer_of_ngrams(const Header& header) {
  const std::vector<std::int64_t> layers = header.integers("ple.layers");
  return layers.empty() ? 0 : layers.front();
}

}  // namespace

const Family kQwen4Exp{.model_type = "qwen4_exp_text",
                       .model_class = "Qwen4ExpForCausalLM",
                       .architecture = "qwen4exp",
                       .names = kQwen4Names,
                       .keys = {kQwen35Keys, kMixtureKeys, kQwen35MoeKeys, kQwen4Keys},
                       .norm_shift = 1,
                       .unused = kGuesses,
                       .pre = "qwen35",
                       .prepare = prepare_qwen4exp,
                       .layer_of = layer_of_ngrams,
                       .read = read_qwen4exp,
                       .write = write_qwen4exp};

}  // namespace millrace::convert
