// GLM-4.5, 4.6 and 4.7: grouped-query attention with biases and half of a head's channels rotated; after some dense
// layers a mixture whose router takes sigmoids, chooses with a bias, and has a shared expert beside it. GLM-4.5V and
// 4.6V turn by a picture's three places. The blocks behind the layers that predict further tokens are not read.
// Source: GLM-4.5 (arXiv:2508.06471).
#include "model/architectures.h"
#include "model/hyperparameters.h"
#include "model/rope.h"

namespace millrace::model {

Expected<DecoderSpec> glm4moe_spec(const modelfile::Model& file, const Hyperparameters& hp) {
  LayerSpec layer;
  layer.attention = plain_attention(hp);
  layer.attention.may_have_biases = true;
  if (file.find("blk.0.attn_q_norm.weight") != nullptr) layer.attention.norm = HeadNorm::each;
  layer.ffn_norm = "post_attention_norm";
  LayerSpec dense = layer;
  MR_ASSIGN_OR_RETURN(layer.mixture, read_mixture(file, hp));
  layer.mixture.selection_bias = true;
  Keys keys(file);
  const std::int64_t leading = keys.optional("leading_dense_block_count", 0, 0, hp.layers);
  MR_RETURN_IF_ERROR(keys.status());
  if (leading > 0) {
    MR_ASSIGN_OR_RETURN(dense.ff_dim, read_ff_dim(file, hp));
  }
  DecoderSpec spec;
  spec.layers.assign(static_cast<std::size_t>(leading), dense);
  spec.layers.insert(spec.layers.end(), static_cast<std::size_t>(hp.layers - leading), layer);
  MR_ASSIGN_OR_RETURN(spec.ropes.emplace_back(), read_rope(file, hp));
  RopeSpec& rope = spec.ropes.back();
  rope.neox = true;
  MR_ASSIGN_OR_RETURN(rope.axes, read_rope_axes(file, rope.rotary, RopeSections::apart));
  return spec;
}

}  // namespace millrace::model
