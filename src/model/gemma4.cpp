// Gemma 4: layers that see a window and layers that see all, with heads of two sizes and rotations of two bases; scores
// that are not scaled, values that are normalised; each layer's result times a number of its own. 26B-A4B and 31B: in
// the layers that see all values made of the keys, experts beside the dense feed-forward. E2B and E4B: last layers that
// see the keys of earlier ones, and embeddings of its own for every layer. In the larger models a picture's rows see
// each other in the layers that see a window. Sources: the model cards of Gemma 4 and Gemma 3n.
#include <algorithm>
#include <cmath>

#include "model/architectures.h"
#include "model/hyperparameters.h"
#include "model/rope.h"
#include "model/unit_builder.h"

namespace millrace::model {
namespace {

/// What its layers differ in.
struct Layers {
  std::int64_t window = 0, local_head_dim = 0, shared = 0;  // the last `shared` have no keys and values of their own
  std::vector<std::int64_t> local, kv_heads, ff_dim;        // by layer
};

Expected<Layers> read_layers(Keys& keys, const Hyperparameters& hp) {
  Layers read;
  read.window = keys.required("attention.sliding_window", 1, 1 << 28);
  read.local_head_dim = keys.optional("attention.key_length_swa", hp.head_dim, 1, hp.head_dim);
  read.shared = keys.optional("attention.shared_kv_layers", 0, 0, hp.layers - 1);
  read.local = keys.of_layers("attention.sliding_window_pattern", hp.layers, 0, 0, 1);
  read.kv_heads = keys.of_layers("attention.head_count_kv", hp.layers, hp.heads, 1, hp.heads);
  read.ff_dim = keys.of_layers("feed_forward_length", hp.layers, 0, 1, 1 << 20);
  if (keys.optional("attention.value_length_swa", read.local_head_dim, 1, hp.head_dim) != read.local_head_dim)
    keys.fail(
        error(Code::unsupported, "local layers' keys and values of different heads (this version wants them equal)"));
  if (hp.value_dim != hp.head_dim)
    keys.fail(error(Code::unsupported, "keys of {} and values of {} channels (this version wants them equal here)",
                    hp.head_dim, hp.value_dim));
  for (const std::int64_t kv_heads : read.kv_heads)
    if (hp.heads % kv_heads != 0)
      keys.fail(error(Code::corrupt, "{} attention heads cannot share {} KV heads evenly", hp.heads, kv_heads));
  MR_RETURN_IF_ERROR(keys.status());
  return read;
}

/// The last layer before `first_shared` of the kind of layer `index`: whose keys and values it sees. -1: there is none.
std::int64_t keeper(const Layers& layers, std::int64_t index, std::int64_t first_shared) {
  for (std::int64_t at = first_shared - 1; at >= 0; --at)
    if (layers.local[static_cast<std::size_t>(at)] == layers.local[static_cast<std::size_t>(index)]) return at;
  return -1;
}

}  // namespace

Expected<DecoderSpec> gemma4_spec(const modelfile::Model& file, const Hyperparameters& hp) {
  Keys keys(file);
  MR_ASSIGN_OR_RETURN(const Layers layers, read_layers(keys, hp));
  const double local_theta = keys.optional_float("rope.freq_base_swa", 10000, 0, 1e12);
  const std::int64_t local_rotary =
      keys.optional("rope.dimension_count_swa", layers.local_head_dim, 2, layers.local_head_dim);
  DecoderSpec spec;
  spec.per_layer_dim = keys.optional("embedding_length_per_layer_input", 0, 0, 1 << 16);
  spec.logit_cap = static_cast<float>(keys.optional_float("final_logit_softcapping", 0, -1e-30, 1e6));
  MR_RETURN_IF_ERROR(keys.status());

  LayerSpec layer;
  layer.attention = plain_attention(hp);
  layer.attention.norm = HeadNorm::each;
  layer.attention.norms_values = true;
  layer.attention.scale = 1;
  layer.activation = kernels::Activation::gelu;
  layer.norms_results = true;
  layer.output_scale = true;
  if (hp.experts > 0) {
    MR_ASSIGN_OR_RETURN(layer.mixture, read_mixture(file, hp));
    layer.mixture.beside_dense = true;
    layer.mixture.output_scales = true;
  }
  const std::int64_t first_shared = hp.layers - layers.shared;
  for (std::int64_t index = 0; index < hp.layers; ++index) {
    const auto at = static_cast<std::size_t>(index);
    const bool local = layers.local[at] != 0;
    layer.attention.kv_heads = layers.kv_heads[at];
    layer.attention.head_dim = layer.attention.value_dim = local ? layers.local_head_dim : hp.head_dim;
    layer.attention.window = local ? layers.window : 0;
    layer.attention.whole_pictures = local;
    layer.attention.rope = local ? 0 : 1;
    layer.attention.reads = index < first_shared ? -1 : keeper(layers, index, first_shared);
    if (index >= first_shared &&
        (layer.attention.reads < 0 ||
         layers.kv_heads[at] != layers.kv_heads[static_cast<std::size_t>(layer.attention.reads)]))
      return error(Code::corrupt, "{}: layer {} has no earlier one of its kind and heads whose keys it could see",
                   arch_key(file, "attention.shared_kv_layers"), index);
    layer.attention.values_are_keys =
        index < first_shared && file.find(layer_tensor(static_cast<int>(index), "attn_v.weight")) == nullptr;
    layer.ff_dim = layers.ff_dim[at];
    spec.layers.push_back(layer);
  }
  spec.ropes.push_back(plain_rope(local_theta, local_rotary));
  MR_ASSIGN_OR_RETURN(spec.ropes.emplace_back(), read_rope(file, hp));
  for (RopeSpec& rope : spec.ropes) rope.neox = true;
  spec.embedding_scale = std::sqrt(static_cast<float>(hp.model_dim));
  return spec;
}

}  // namespace millrace::model
