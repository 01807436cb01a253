// What makes a model a reranker: a head that scores a state. A decoder's is a row of weights for each label, taken with
// a prompt's last state, and the prompt that puts a query beside a document. An encoder's, a cross-encoder's, reads the
// state of the first token, or the mean of all, through a layer of its own, and both texts stand side by side in what
// it reads. Source: the GGUF specification's pooling_type 4 with cls.weight, cls.norm.weight, cls.output.weight and
// tokenizer.chat_template.rerank; Qwen3-Reranker's model card for files without these; BERT (arXiv:1810.04805).
// Thread-safety: immutable once made.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "model/model.h"
#include "modelfile/gguf.h"

namespace millrace::model {

/// state = activation(weight state + bias), with a norm behind it where there is one.
struct RankLayer {
  enum class Activation : std::uint8_t { tanh, gelu };
  std::vector<float> weight, bias, norm;  // [model_dim, model_dim], [model_dim] or empty, [model_dim] or empty
  Activation activation = Activation::tanh;
  double eps = 1e-5;
};

struct RankHead {
  std::int64_t labels = 0;
  std::vector<float> rows;  // [labels, model_dim]; the first label is the one that says "relevant"
  std::vector<float> bias;  // [labels], or empty: none
  std::optional<RankLayer> layer;
  Pooling pooling = Pooling::rank;  // which state it reads
  bool pairs = false;               // reads both texts as an encoder's pair; else by `prompt`
  std::string prompt;               // with {query} and {document}, each once or more

  /// In [0, 1]: the first label's share of several (softmax), the sigmoid of one alone. state: [model_dim], behind the
  /// last norm. NaN where the state is not finite.
  double score(std::span<const float> state) const;
};

/// The file's own head; else, where its name says that it is a reranker, the output's rows of the tokens yes and no.
/// Any other model has none. Errors: corrupt (the head does not fit the model), unsupported (a decoder's has layers of
/// its own or no prompt, an encoder's several labels), those of reading.
Expected<std::optional<RankHead>> read_rank_head(const modelfile::Model& file, const Hyperparameters& hp);

}  // namespace millrace::model
