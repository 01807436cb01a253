// Laguna: a softplus gates what attention gives, a number for each head or for each channel. Layers that see all tokens
// rotate by YaRN, in some models half of a head's channels; those that see a window have a rotation of their own, and
// may have more heads. Behind dense layers come mixtures with one that all tokens share, whose router takes sigmoids
// and chooses with a bias. Sources: the model cards of Laguna XS.2, S.2.1 and M.1 (2026).
#include "model/architectures.h"
#include "model/hyperparameters.h"
#include "model/rope.h"
#include "model/unit_builder.h"

namespace millrace::model {
namespace {

/// Whether the layer has a gate for each head, and not for each channel: by its tensor's rows, as no key says it.
Expected<bool> has_gates_of_heads(const modelfile::Model& file, int index, const AttentionSpec& attention) {
  MR_ASSIGN_OR_RETURN(const modelfile::TensorInfo* gate, file.require(layer_tensor(index, "attn_gate.weight")));
  if (gate->rows() != attention.heads && gate->rows() != attention.q_dim())
    return error(Code::corrupt, "{} has {} rows: a gate for each of {} heads or of their {} channels is expected",
                 gate->name, gate->rows(), attention.heads, attention.q_dim());
  return gate->rows() == attention.heads;
}

}  // namespace

Expected<DecoderSpec> laguna_spec(const modelfile::Model& file, const Hyperparameters& hp) {
  // Every fourth layer sees all, from the first on, where the file names no others: published files don't.
  constexpr std::int64_t kPeriod = 4;
  MR_ASSIGN_OR_RETURN(const std::vector<std::int64_t> windows, read_windows(file, hp, kPeriod, SeesAll::first));
  Keys keys(file);
  const auto heads = keys.of_layers("attention.head_count", hp.layers, 0, 1, hp.heads);
  const std::int64_t leading = keys.optional("leading_dense_block_count", 0, 0, hp.layers);
  const double local_theta = keys.optional_float("rope.freq_base_swa", hp.rope_theta, 0, 1e12);
  const std::int64_t local_rotary = keys.optional("rope.dimension_count_swa", hp.head_dim, 2, hp.head_dim);
  if (local_rotary % 2 != 0)
    keys.fail(error(Code::corrupt, "{} is {}, and channels rotate in pairs", arch_key(file, "rope.dimension_count_swa"),
                    local_rotary));
  if (keys.has("rope.swa.freq_base"))
    keys.fail(error(Code::unsupported, "the file has Laguna by other keys ({}); use one with {}",
                    arch_key(file, "rope.swa.freq_base"), arch_key(file, "rope.freq_base_swa")));
  MR_RETURN_IF_ERROR(keys.status());
  MixtureSpec defaults;
  defaults.gating = exec::Gating::sigmoid;
  MR_ASSIGN_OR_RETURN(MixtureSpec mixture, read_mixture(file, hp, defaults));
  if (mixture.shared_ff_dim == 0) mixture.shared_ff_dim = mixture.ff_dim;
  mixture.selection_bias = true;

  DecoderSpec spec;
  for (std::size_t at = 0; at < windows.size(); ++at) {
    const auto index = static_cast<int>(at);
    LayerSpec& layer = spec.layers.emplace_back();
    layer.attention = plain_attention(hp);
    AttentionSpec& attention = layer.attention;
    attention.heads = heads[at];
    if (heads[at] % hp.kv_heads != 0)
      return error(Code::corrupt, "{}: {} attention heads cannot share {} KV heads evenly",
                   arch_key(file, "attention.head_count_kv"), heads[at], hp.kv_heads);
    attention.norm = HeadNorm::each;
    attention.window = windows[at];
    attention.rope = windows[at] > 0 ? 1 : 0;
    attention.softplus_gates = true;
    MR_ASSIGN_OR_RETURN(attention.gates_heads, has_gates_of_heads(file, index, attention));
    attention.own_gate = !attention.gates_heads;
    if (index >= leading) {
      layer.mixture = mixture;
    } else {
      MR_ASSIGN_OR_RETURN(layer.ff_dim, read_ff_dim(file, hp));
    }
  }
  MR_ASSIGN_OR_RETURN(spec.ropes.emplace_back(), read_rope(file, hp));
  spec.ropes.push_back(plain_rope(local_theta, local_rotary));
  for (RopeSpec& rope : spec.ropes) rope.neox = true;
  return spec;
}

}  // namespace millrace::model
