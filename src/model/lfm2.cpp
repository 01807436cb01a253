// LFM2, dense and with experts: layers of grouped-query attention with normalised heads among more layers of short
// convolutions, which keep their last inputs. Layers without KV heads are the latter. Experts come behind some dense
// layers, by a router of sigmoids with a bias for the choice. Source: LFM2 technical report (arXiv:2511.23404).
#include "kernels/recurrent.h"
#include "model/architectures.h"
#include "model/hyperparameters.h"
#include "model/rope.h"

namespace millrace::model {
namespace {

/// Every layer with this dense feed-forward, and none of them a mixture yet.
Expected<DecoderSpec> dense_spec(const modelfile::Model& file, const Hyperparameters& hp, std::int64_t ff_dim) {
  Keys keys(file);
  LayerSpec layer;
  layer.attention = plain_attention(hp);
  layer.attention.norm = HeadNorm::each;
  layer.attention.window = keys.optional("attention.sliding_window", 0, 0, hp.context_length);
  layer.short_convolution = {hp.model_dim, keys.required("shortconv.l_cache", 2, kernels::kMostTaps)};
  layer.ff_dim = ff_dim;
  MR_ASSIGN_OR_RETURN(const std::vector<std::int64_t> kv_heads, read_kv_heads(file, hp));
  DecoderSpec spec;
  for (const std::int64_t heads : kv_heads) {
    layer.mixer = heads == 0 ? Mixer::short_convolution : Mixer::attention;
    layer.attention.kv_heads = heads;
    spec.layers.push_back(layer);
  }
  MR_RETURN_IF_ERROR(keys.status());
  MR_ASSIGN_OR_RETURN(spec.ropes.emplace_back(), read_rope(file, hp));
  spec.ropes.back().neox = true;
  spec.output_norm = "token_embd_norm.weight";
  return spec;
}

}  // namespace

Expected<DecoderSpec> lfm2_spec(const modelfile::Model& file, const Hyperparameters& hp) {
  MR_ASSIGN_OR_RETURN(const std::int64_t ff_dim, read_ff_dim(file, hp));
  return dense_spec(file, hp, ff_dim);
}

Expected<DecoderSpec> lfm2moe_spec(const modelfile::Model& file, const Hyperparameters& hp) {
  Keys keys(file);
  const std::int64_t leading = keys.optional("leading_dense_block_count", 0, 0, hp.layers);
  MR_RETURN_IF_ERROR(keys.status());
  std::int64_t ff_dim = 0;
  if (leading > 0) {
    MR_ASSIGN_OR_RETURN(ff_dim, read_ff_dim(file, hp));
  }
  MR_ASSIGN_OR_RETURN(DecoderSpec spec, dense_spec(file, hp, ff_dim));
  MixtureSpec mixture;
  mixture.gating = exec::Gating::sigmoid;
  MR_ASSIGN_OR_RETURN(mixture, read_mixture(file, hp, mixture));
  mixture.selection_bias = true;
  for (auto layer = spec.layers.begin() + leading; layer != spec.layers.end(); ++layer) {
    layer->ff_dim = 0;
    layer->mixture = mixture;
  }
  return spec;
}

}  // namespace millrace::model
