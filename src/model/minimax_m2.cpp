// MiniMax-M2: grouped-query attention whose queries are normalised as one vector, and its keys too, with half of a
// head's channels rotated; a mixture whose router takes sigmoids and chooses with a bias. Source: MiniMax-M2's model
// card (2025); tensor names as in the GGUF specification.
#include "model/architectures.h"
#include "model/hyperparameters.h"
#include "model/rope.h"

namespace millrace::model {

Expected<DecoderSpec> minimax_m2_spec(const modelfile::Model& file, const Hyperparameters& hp) {
  LayerSpec layer;
  layer.attention = plain_attention(hp);
  layer.attention.norm = HeadNorm::together;
  MR_ASSIGN_OR_RETURN(layer.mixture, read_mixture(file, hp));
  layer.mixture.selection_bias = true;
  DecoderSpec spec;
  spec.layers.assign(static_cast<std::size_t>(hp.layers), layer);
  MR_ASSIGN_OR_RETURN(spec.ropes.emplace_back(), read_rope(file, hp));
  spec.ropes.back().neox = true;
  return spec;
}

}  // namespace millrace::model
