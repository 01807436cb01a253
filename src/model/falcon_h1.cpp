// Falcon-H1: in each layer attention and a Mamba-2 scan read one norm, and both are added to the residual stream. What
// the checkpoint multiplies products by is in the file's weights. Source: Falcon-H1 (arXiv:2507.22448).
#include <algorithm>

#include "model/architectures.h"
#include "model/hyperparameters.h"
#include "model/mamba2.h"
#include "model/rope.h"

namespace millrace::model {

Expected<DecoderSpec> falcon_h1_spec(const modelfile::Model& file, const Hyperparameters& hp) {
  LayerSpec layer;
  layer.attention = plain_attention(hp);
  layer.attention.may_have_biases = true;
  layer.scans = true;
  MR_ASSIGN_OR_RETURN(layer.mamba2, read_mamba2(file));
  layer.mamba2.norm = file.find(layer_tensor(0, "ssm_norm.weight")) != nullptr;
  MR_ASSIGN_OR_RETURN(layer.ff_dim, read_ff_dim(file, hp));
  MR_ASSIGN_OR_RETURN(const std::vector<std::int64_t> kv_heads, read_kv_heads(file, hp));
  if (std::any_of(kv_heads.begin(), kv_heads.end(), [&](std::int64_t heads) { return heads != hp.kv_heads; }))
    return error(Code::corrupt, "{} differs between layers, which all attend in Falcon-H1",
                 arch_key(file, "attention.head_count_kv"));
  DecoderSpec spec;
  spec.layers.assign(static_cast<std::size_t>(hp.layers), layer);
  MR_ASSIGN_OR_RETURN(spec.ropes.emplace_back(), read_rope(file, hp));
  spec.ropes.front().neox = true;
  return spec;
}

}  // namespace millrace::model
