// What makes a decoder a reranker: a row of weights for each label, taken with a prompt's last state, and the prompt
// that puts a query beside a document. Source: the GGUF specification's pooling_type 4 with cls.output.weight and
// tokenizer.chat_template.rerank; Qwen3-Reranker's model card for files without these.
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

struct RankHead {
  std::int64_t labels = 0;
  std::vector<float> rows;  // [labels, model_dim]; the first label is the one that says "relevant"
  std::string prompt;       // with {query} and {document}, each once or more

  /// In [0, 1]: the first label's share of several (softmax), the sigmoid of one alone. state: [model_dim], of a
  /// prompt's last token, behind the last norm. NaN where the state is not finite.
  double score(std::span<const float> state) const;
};

/// The file's own head; else, where its name says that it is a reranker, the output's rows of the tokens yes and no.
/// Any other model has none. Errors: corrupt (the head does not fit the model), unsupported (it has layers of its own,
/// or no prompt), those of reading.
Expected<std::optional<RankHead>> read_rank_head(const modelfile::Model& file, const Hyperparameters& hp);

}  // namespace millrace::model
