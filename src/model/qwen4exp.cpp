// Qwen3.8-Flash-Next: Qwen3.5's mixtures, over several residual streams without norms before a layer's parts, with a
// sigmoid as the delta nets' gate. The layers that attend choose blocks of tokens by the mean of their index keys.
// Before one layer, a table of hashed n-grams, larger than some models, adds to the streams what it has of a token's
// last ones. A block behind the layers, where a file has one, guesses and is not read. Sources: the model card (2026),
// Engram (arXiv:2601.07372); keys and tensors as in llama.cpp's files of August 2026.
#include <algorithm>

#include "model/architectures.h"
#include "model/hyperparameters.h"

namespace millrace::model {
namespace {

/// By layer, how many tokens share an index key; 0: the layer sees all.
Expected<std::vector<std::int64_t>> read_pools(const modelfile::Model& file, const Hyperparameters& hp,
                                               const DecoderSpec& spec) {
  constexpr std::string_view kKey = "attention.compress_ratios";
  Keys keys(file);
  const std::vector<std::int64_t> ratios = keys.of_layers(kKey, hp.layers, 0, 0, 1 << 20);
  MR_RETURN_IF_ERROR(keys.status());
  for (std::size_t layer = 0; layer < ratios.size(); ++layer) {
    const std::int64_t ratio = ratios[layer];
    const bool known = ratio == 0 || (ratio > 1 && kv::kBlockTokens % ratio == 0);
    if (spec.layers[layer].mixer == Mixer::attention && !known)
      return error(Code::unsupported,
                   "{} is {} in layer {}: this version knows 0 and powers of two up to {} (published models have 4)",
                   arch_key(file, kKey), ratio, layer, kv::kBlockTokens);
  }
  return ratios;
}

/// In tokens; the spec counts blocks of them.
Status read_indexers(const modelfile::Model& file, const Hyperparameters& hp, DecoderSpec& spec) {
  MR_ASSIGN_OR_RETURN(const std::vector<std::int64_t> ratios, read_pools(file, hp, spec));
  Keys keys(file);
  for (std::size_t index = 0; index < spec.layers.size(); ++index) {
    LayerSpec& layer = spec.layers[index];
    layer.attention.whole_pictures = false;
    if (layer.mixer != Mixer::attention || ratios[index] == 0) continue;
    exec::Indexer& indexer = layer.attention.index.indexer;
    indexer.heads = keys.required("attention.indexer.head_count", 1, 1024);
    indexer.head_dim = keys.required("attention.indexer.key_length", hp.rotary, kernels::kMostIndexDim);
    const std::int64_t tokens = keys.required("attention.indexer.top_k", 1, 1 << 20);
    indexer.ratio = ratios[index];
    indexer.top_k = tokens / indexer.ratio;
    if (keys.status().ok() && tokens % indexer.ratio != 0)
      keys.fail(error(Code::unsupported,
                      "{} is {}, which is no multiple of the {} tokens that layer {} chooses at once",
                      arch_key(file, "attention.indexer.top_k"), tokens, indexer.ratio, index));
  }
  return keys.status();
}

/// At least so many whole numbers, each in [least, 2^63).
std::vector<std::uint64_t> read_numbers(Keys& keys, const modelfile::Model& file, std::string_view name,
                                        std::int64_t count, std::int64_t least) {
  const std::string key = arch_key(file, name);
  std::vector<std::uint64_t> numbers(static_cast<std::size_t>(count), 1);
  const Expected<std::vector<std::int64_t>> read = file.get_ints(key);
  if (!read.ok() || std::ssize(*read) < count) {
    keys.fail(read.ok() ? error(Code::corrupt, "{} has {} numbers of {}", key, read->size(), count) : read.status());
    return numbers;
  }
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    if ((*read)[i] < least) keys.fail(error(Code::corrupt, "{} has {}, which cannot be", key, (*read)[i]));
    numbers[i] = static_cast<std::uint64_t>(std::max((*read)[i], least));
  }
  return numbers;
}

/// No row is behind the table's last.
void check_rows(Keys& keys, const modelfile::Model& file, const NgramSpec& spec) {
  const exec::Ngrams& ngrams = spec.ngrams;
  const auto rows = static_cast<std::uint64_t>(spec.table_rows);
  for (std::size_t head = 0; head < ngrams.sizes.size(); ++head)
    if (ngrams.sizes[head] > rows || ngrams.offsets[head] > rows - ngrams.sizes[head])
      return keys.fail(error(Code::corrupt, "{}: rows {} to {} of a table of {} cannot be",
                             arch_key(file, "ple.head_offsets"), ngrams.offsets[head],
                             ngrams.offsets[head] + ngrams.sizes[head] - 1, rows));
}

Expected<NgramSpec> read_ngrams(const modelfile::Model& file, const Hyperparameters& hp) {
  NgramSpec read;
  Keys keys(file);
  if (!keys.has("ple.layers")) return read;
  MR_ASSIGN_OR_RETURN(const std::vector<std::int64_t> layers, file.get_ints(arch_key(file, "ple.layers")));
  if (layers.empty()) return read;
  if (layers.size() > 1 || layers[0] < 0 || layers[0] >= hp.layers)
    return error(Code::unsupported, "{} has {} layers, the first of them {}: this version has n-grams before one layer",
                 arch_key(file, "ple.layers"), layers.size(), layers[0]);
  read.layer = layers[0];
  const std::int64_t order = keys.required("ple.ngram_size", 2, exec::kMostNgram);
  const std::int64_t heads = keys.required("ple.heads_per_ngram", 1, exec::kMostNgramRows / (order - 1));
  read.taps = keys.required("ple.conv_kernel", 2, kernels::kMostTaps);
  read.dim = keys.required("embedding_length_per_layer_input", 1, 1 << 16);
  read.ngrams.end = static_cast<std::int32_t>(keys.required("ple.eos_token_id", 0, hp.vocab - 1));
  read.ngrams.picture = static_cast<std::int32_t>(keys.optional("ple.image_token_id", -1, -1, hp.vocab - 1));
  MR_RETURN_IF_ERROR(keys.status());
  read.ngrams.multipliers = read_numbers(keys, file, "ple.layer_multipliers", order, 0);
  read.ngrams.sizes = read_numbers(keys, file, "ple.head_vocab_sizes", heads * (order - 1), 1);
  read.ngrams.offsets = read_numbers(keys, file, "ple.head_offsets", heads * (order - 1), 0);
  const modelfile::TensorInfo* const table = file.find("per_layer_token_embd.weight");
  if (table == nullptr) keys.fail(error(Code::not_found, "the file has no per_layer_token_embd.weight"));
  MR_RETURN_IF_ERROR(keys.status());
  read.table_rows = table->rows();
  check_rows(keys, file, read);
  MR_RETURN_IF_ERROR(keys.status());
  return read;
}

}  // namespace

Expected<DecoderSpec> qwen4exp_spec(const modelfile::Model& file, const Hyperparameters& hp) {
  MR_ASSIGN_OR_RETURN(DecoderSpec spec, qwen35moe_spec(file, hp));
  Keys keys(file);
  spec.stream_kind = Streams::gated;
  spec.streams = keys.required("hyper_connection.count", 2, exec::kMostStreams);
  spec.stream_rank = keys.required("hyper_connection.low_rank", 1, 1 << 16);
  MR_RETURN_IF_ERROR(keys.status());
  for (LayerSpec& layer : spec.layers) {
    layer.norms_inputs = false;
    layer.delta_net.sigmoid_gate = true;
  }
  MR_RETURN_IF_ERROR(read_indexers(file, hp, spec));
  MR_ASSIGN_OR_RETURN(spec.ngrams, read_ngrams(file, hp));
  spec.output_norm = nullptr;  // the head reads the streams through a norm of theirs
  spec.guesses = false;        // published files have no such block
  return spec;
}

}  // namespace millrace::model
