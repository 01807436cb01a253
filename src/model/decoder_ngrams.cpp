// What n-grams of tokens add to the streams before a layer (NgramSpec): its weights and its steps.
#include "model/decoder_impl.h"

namespace millrace::model {

void Decoder::list_ngrams(UnitBuilder& units, int index, LayerWeights& weights) const {
  const NgramSpec& spec = spec_.ngrams;
  const std::int64_t dim = hp_.model_dim, all = spec_.streams * dim;
  const auto name = [&](std::string_view tensor) { return layer_tensor(index, tensor); };
  weights.ngrams.key = units.matrix(name("ple_key.weight"), spec.width(), all);
  weights.ngrams.value = units.matrix(name("ple_value.weight"), spec.width(), dim);
  weights.ngrams.key_norm = units.vector(name("ple_norm_key.weight"), all);
  weights.ngrams.query_norm = units.vector(name("ple_norm_query.weight"), all);
  weights.ngrams.input_norm = units.vector(name("ple_norm_conv.weight"), all);
  weights.ngrams.taps = units.taps(name("ple_conv1d.weight"), spec.taps, all);
}

/// stream += g v + silu(convolution(norm(g v))), with v = W_v e, e being the table's rows, and g of each stream as
/// Ops::gate_streams() has it of norm(W_k e) and norm(stream).
void Decoder::add_ngrams(std::int64_t index) {
  const NgramSpec& spec = spec_.ngrams;
  const NgramWeights& weights = layers_[static_cast<std::size_t>(index)].ngrams;
  const std::int64_t count = spec_.streams, dim = hp_.model_dim, all = count * dim;
  // Two of them are large, and a layer's parts need them only behind this block.
  const Act rows = ops_.buffer("rows of n-grams", spec.width()), key = ops_.buffer("gates of streams", all),
            value = ops_.buffer("value of n-grams", dim), query = ops_.buffer("normalised streams", all),
            gates = ops_.buffer("gates of n-grams", count), added = ops_.buffer("of n-grams", all);
  const exec::Product products[] = {{key, weights.key, {}}, {value, weights.value, {}}};
  ops_.begin_block();
  ops_.embed_ngrams(rows, ngrams_table_, ngrams_besides_, spec.ngrams);
  ops_.matmul(products, rows);
  ops_.rms_norm_heads(key, weights.key_norm, dim, eps());
  ops_.copy(query, streams_);
  ops_.rms_norm_heads(query, weights.query_norm, dim, eps());
  ops_.gate_streams(gates, key, query, dim);
  ops_.sum_streams(added, value, gates, dim);
  ops_.add(streams_, added);
  ops_.rms_norm_heads(added, weights.input_norm, dim, eps());
  exec::Convolution convolution{spec.taps, {}, true};
  convolution.dilation = spec.ngrams.order();
  ops_.convolve(added, added, weights.taps, ngrams_besides_ + 1, convolution);
  ops_.add(streams_, added);
}

}  // namespace millrace::model
