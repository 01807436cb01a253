#include "model/gemma4_assistant.h"

#include <utility>

#include "model/hyperparameters.h"
#include "model/keys.h"
#include "model/rope.h"

namespace millrace::model {
namespace {

/// The model's last layer with keys of its own that sees a window, or that sees all. -1: there is none.
std::int64_t last_keeper(const DecoderSpec& target, bool local) {
  for (std::int64_t at = std::ssize(target.layers) - 1; at >= 0; --at) {
    const AttentionSpec& attention = target.layers[static_cast<std::size_t>(at)].attention;
    if (attention.reads < 0 && (attention.window > 0) == local) return at;
  }
  return -1;
}

/// Errors: invalid_argument, unsupported.
Status check_target(const modelfile::Model& file, const Gemma4Assistant& assistant, const Hyperparameters& target,
                    std::int64_t width) {
  if (target.architecture != "gemma4")
    return error(Code::unsupported, "the assistant guesses for models of gemma4, and this one is of {}",
                 target.architecture);
  if (width != target.model_dim)
    return error(Code::invalid_argument,
                 "the assistant is for a model of {} channels, and this one has {}; use one that was trained for it",
                 width, target.model_dim);
  MR_ASSIGN_OR_RETURN(const modelfile::TensorInfo* const embedding, file.require("token_embd.weight"));
  if (embedding->rows() != target.vocab || assistant.hp.vocab != target.vocab)
    return error(Code::invalid_argument,
                 "the assistant guesses among {} tokens, and the model has {}; use one that was trained for it",
                 embedding->rows(), target.vocab);
  return {};
}

}  // namespace

bool is_gemma4_assistant(const modelfile::Model& file) {
  const Expected<std::string> name = file.get_string("general.architecture");
  return name.ok() && *name == kGemma4Assistant;
}

Expected<Gemma4Assistant> read_gemma4_assistant(const modelfile::Model& file, const Hyperparameters& target,
                                                const DecoderSpec& target_spec) {
  Gemma4Assistant assistant;
  MR_ASSIGN_OR_RETURN(assistant.hp, read_hyperparameters(file));
  const Hyperparameters& hp = assistant.hp;
  Keys keys(file);
  const std::int64_t width = keys.required("embedding_length_out", 1, 1 << 20);
  const auto local = keys.of_layers("attention.sliding_window_pattern", hp.layers, 0, 0, 1);
  const auto ff_dims = keys.of_layers("feed_forward_length", hp.layers, 0, 1, 1 << 20);
  const std::int64_t local_head_dim = keys.optional("attention.key_length_swa", hp.head_dim, 1, hp.head_dim);
  const double local_theta = keys.optional_float("rope.freq_base_swa", 10000, 0, 1e12);
  const std::int64_t local_rotary = keys.optional("rope.dimension_count_swa", local_head_dim, 2, local_head_dim);
  MR_RETURN_IF_ERROR(keys.status());
  MR_RETURN_IF_ERROR(check_target(file, assistant, target, width));
  for (std::int64_t index = 0; index < hp.layers; ++index) {
    const auto at = static_cast<std::size_t>(index);
    const bool sees_window = local[at] != 0;
    const std::int64_t head_dim = sees_window ? local_head_dim : hp.head_dim,
                       keeper = last_keeper(target_spec, sees_window);
    if (keeper < 0)
      return error(Code::invalid_argument,
                   "layer {} of the assistant reads a layer of the model that sees {}, and there is none", index,
                   sees_window ? "a window" : "all tokens");
    const AttentionSpec& read = target_spec.layers[static_cast<std::size_t>(keeper)].attention;
    if (read.head_dim != head_dim || hp.heads % read.kv_heads != 0)
      return error(
          Code::invalid_argument,
          "layer {} of the assistant has {} heads of {} channels, and the model's layer {} keys of {} heads of "
          "{}; use one that was trained for it",
          index, hp.heads, head_dim, keeper, read.kv_heads, read.head_dim);
    LayerSpec& layer = assistant.spec.layers.emplace_back();
    layer.attention = plain_attention(hp);
    layer.attention.norm = HeadNorm::each;
    layer.attention.scale = 1;
    layer.attention.head_dim = layer.attention.value_dim = head_dim;
    layer.attention.kv_heads = read.kv_heads;
    // Of the token behind the row: the first key of the row's own window may be gone.
    layer.attention.window = read.window > 1 ? read.window - 1 : read.window;
    layer.attention.whole_pictures = false;
    layer.attention.rope = sees_window ? 0 : 1;
    layer.attention.reads = keeper;
    layer.activation = kernels::Activation::gelu;
    layer.norms_results = true;
    layer.output_scale = true;
    layer.ff_dim = ff_dims[at];
  }
  assistant.spec.ropes.push_back(plain_rope(local_theta, local_rotary));
  MR_ASSIGN_OR_RETURN(assistant.spec.ropes.emplace_back(), read_rope(file, hp));
  for (RopeSpec& rope : assistant.spec.ropes) {
    rope.neox = true;
    rope.offset = 1;  // rows stand at the last token whose keys there are, and are of the one behind it
  }
  assistant.spec.embedding_scale = target_spec.embedding_scale;
  return assistant;
}

}  // namespace millrace::model
