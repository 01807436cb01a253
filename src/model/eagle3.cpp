#include "model/eagle3.h"

#include <algorithm>
#include <utility>

#include "model/hyperparameters.h"
#include "model/keys.h"
#include "model/rope.h"
#include "model/tensor_rows.h"

namespace millrace::model {
namespace {

constexpr std::size_t kTaps = 3;

/// The layers that it reads, of a model of this many. Errors: corrupt, invalid_argument.
Expected<std::vector<std::int64_t>> read_taps(const modelfile::Model& file, std::int64_t layers) {
  const std::string key = arch_key(file, "target_layers");
  std::vector<std::int64_t> taps{2, layers / 2, layers - 3};
  if (file.has(key)) {
    MR_ASSIGN_OR_RETURN(taps, file.get_ints(key));
    if (taps.size() != kTaps) return error(Code::corrupt, "{} has {} layers, not {}", key, taps.size(), kTaps);
  }
  for (std::size_t i = 0; i < taps.size(); ++i) {
    if (taps[i] < 0 || (i > 0 && taps[i] < taps[i - 1]))
      return error(file.has(key) ? Code::corrupt : Code::invalid_argument,
                   "the head reads layers {}, {} and {} of the model, which are not in their order", taps[0], taps[1],
                   taps[2]);
    if (taps[i] > layers)
      return error(Code::invalid_argument,
                   "the head reads layer {} of a model, and this one has {}; use a head that was trained for it",
                   taps[i], layers);
  }
  return taps;
}

/// Of each logit. Errors: corrupt, invalid_argument, io_error.
Expected<std::vector<std::int32_t>> read_tokens(const modelfile::Model& file, std::int64_t vocab) {
  std::vector<std::int32_t> tokens;
  const modelfile::TensorInfo* const table = file.find("d2t");
  if (table == nullptr) return tokens;
  MR_ASSIGN_OR_RETURN(const std::vector<std::int64_t> ids, read_integers(file, *table));
  for (const std::int64_t id : ids) {
    if (id < 0 || id >= vocab)
      return error(Code::invalid_argument,
                   "the head guesses token {}, and the model has {}; use a head that was trained for it", id, vocab);
    tokens.push_back(static_cast<std::int32_t>(id));
  }
  return tokens;
}

/// Whether what it lacks can be the model's. Errors: invalid_argument, corrupt.
Status check_shared(const modelfile::Model& file, const Eagle3& head, const Hyperparameters& target) {
  const modelfile::TensorInfo *const embedding = file.find("token_embd.weight"), *const output =
                                                                                     file.find("output.weight");
  if (embedding != nullptr && embedding->rows() != target.vocab)
    return error(Code::invalid_argument,
                 "the head has embeddings of {} tokens, and the model has {}; use a head that was trained for it",
                 embedding->rows(), target.vocab);
  if (output == nullptr && !head.tokens.empty())
    return error(Code::corrupt, "d2t is for output.weight, which is missing");
  if (output != nullptr && output->rows() != head.hp.vocab)
    return error(head.tokens.empty() ? Code::invalid_argument : Code::corrupt,
                 "output.weight has {} rows, and {} has {}", output->rows(),
                 head.tokens.empty() ? "the model's vocabulary" : "d2t", head.hp.vocab);
  if ((embedding == nullptr || output == nullptr) && head.hp.model_dim != target.model_dim)
    return error(Code::invalid_argument,
                 "the head has states of {} channels and no {} of its own, and the model has {} channels; use a head "
                 "that was trained for it",
                 head.hp.model_dim, embedding == nullptr ? "token_embd.weight" : "output.weight", target.model_dim);
  return {};
}

}  // namespace

bool is_eagle3(const modelfile::Model& file) {
  const Expected<std::string> name = file.get_string("general.architecture");
  return name.ok() && *name == kEagle3;
}

Expected<Eagle3> read_eagle3(const modelfile::Model& file, const Hyperparameters& target) {
  Eagle3 head;
  MR_ASSIGN_OR_RETURN(head.hp, read_hyperparameters(file));
  if (head.hp.layers != 1)
    return error(Code::unsupported, "a head of {} layers (this version has those of one)", head.hp.layers);
  MR_ASSIGN_OR_RETURN(const modelfile::TensorInfo* const fusion, file.require("fc.weight"));
  Keys keys(file);
  const std::int64_t width = keys.optional("target_hidden_size", fusion->cols() / std::int64_t{kTaps}, 1, 1 << 20);
  const bool adds_to_norm = keys.optional_bool("norm_before_residual", false);
  const bool norms_taps = keys.optional_bool("norm_before_fc", false);
  MR_RETURN_IF_ERROR(keys.status());
  if (width != target.model_dim)
    return error(Code::invalid_argument,
                 "the head is for a model of {} channels, and this one has {}; use a head that was trained for it",
                 width, target.model_dim);
  if (norms_taps != (file.find("enc.output_norm.weight") != nullptr))
    return error(Code::corrupt, "{} and enc.output_norm.weight disagree: the file has one of both",
                 arch_key(file, "norm_before_fc"));
  MR_ASSIGN_OR_RETURN(head.taps, read_taps(file, target.layers));
  MR_ASSIGN_OR_RETURN(head.tokens, read_tokens(file, target.vocab));
  head.hp.vocab = head.tokens.empty() ? target.vocab : std::ssize(head.tokens);
  MR_RETURN_IF_ERROR(check_shared(file, head, target));
  LayerSpec& layer = head.spec.layers.emplace_back();
  layer.attention = plain_attention(head.hp);
  layer.attention.may_have_biases = true;
  layer.token_norm = "attn_norm";
  layer.attn_norm = "attn_norm_2";
  layer.adds_to_norm = adds_to_norm;
  MR_ASSIGN_OR_RETURN(layer.ff_dim, read_ff_dim(file, head.hp));
  MR_ASSIGN_OR_RETURN(head.spec.ropes.emplace_back(), read_rope(file, head.hp));
  head.spec.bare_states = true;
  return head;
}

}  // namespace millrace::model
