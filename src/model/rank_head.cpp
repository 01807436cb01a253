#include "model/rank_head.h"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>

#include "base/words.h"
#include "model/tensor_rows.h"

namespace millrace::model {
namespace {

constexpr const char* kHead = "cls.output.weight";
constexpr const char* kPromptKey = "tokenizer.chat_template.rerank";

/// What Qwen3-Reranker was trained to be asked.
constexpr std::string_view kQwenPrompt =
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    "provided. Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n"
    "<|im_start|>user\n<Instruct>: Given a web search query, retrieve relevant passages that answer the "
    "query\n<Query>: {query}\n<Document>: "
    "{document}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";

Expected<std::string> read_prompt(const modelfile::Model& file) {
  if (!file.has(kPromptKey)) return std::string(kQwenPrompt);
  MR_ASSIGN_OR_RETURN(std::string prompt, file.get_string(kPromptKey));
  if (prompt.find("{query}") == std::string::npos || prompt.find("{document}") == std::string::npos)
    return error(Code::unsupported, "{} has no place for {{query}} and {{document}}", kPromptKey);
  return prompt;
}

/// Whether the file's name for itself says what it was trained for.
bool is_called_reranker(const modelfile::Model& file) {
  for (const char* key : {"general.name", "general.basename", "general.finetune"}) {
    const auto said = file.get_string(key);
    if (!said.ok()) continue;
    if (lower(*said).find("rerank") != std::string::npos) return true;
  }
  return false;
}

Status check_finite(const std::vector<float>& rows, const std::string& name) {
  if (std::all_of(rows.begin(), rows.end(), [](float value) { return std::isfinite(value); })) return {};
  return error(Code::corrupt, "{} holds numbers that are not finite; fetch the file again", name);
}

Expected<RankHead> read_own(const modelfile::Model& file, const Hyperparameters& hp,
                            const modelfile::TensorInfo& tensor) {
  for (const char* more : {"cls.weight", "cls.bias", "cls.norm.weight", "cls.output.bias"})
    if (file.find(more) != nullptr)
      return error(Code::unsupported, "its ranking head has {}; heads of {} alone are supported", more, kHead);
  constexpr std::int64_t kMostLabels = 1024;
  if (tensor.cols() != hp.model_dim || tensor.rows() < 1 || tensor.rows() > kMostLabels)
    return error(Code::corrupt, "{} is {} x {} but the model's states have {} numbers", kHead, tensor.cols(),
                 tensor.rows(), hp.model_dim);
  RankHead head;
  head.labels = tensor.rows();
  MR_ASSIGN_OR_RETURN(head.rows, read_rows(file, tensor, 0, head.labels));
  MR_RETURN_IF_ERROR(check_finite(head.rows, kHead));
  MR_ASSIGN_OR_RETURN(head.prompt, read_prompt(file));
  return head;
}

/// The head of a reranker that was left as the decoder it was trained as.
Expected<RankHead> read_answers(const modelfile::Model& file, const Hyperparameters& hp) {
  MR_ASSIGN_OR_RETURN(const std::vector<std::string> tokens, file.get_strings("tokenizer.ggml.tokens"));
  const modelfile::TensorInfo* output = file.find("output.weight");
  if (output == nullptr) {
    MR_ASSIGN_OR_RETURN(output, file.require("token_embd.weight"));
  }
  float scale = 1;  // what logits are multiplied by, where the head is an output of its own
  if (const modelfile::TensorInfo* const beside = file.find("output.scale");
      beside != nullptr && output->name == "output.weight") {
    MR_ASSIGN_OR_RETURN(const std::vector<float> one, read_rows(file, *beside, 0, 1));
    if (one.size() != 1) return error(Code::corrupt, "output.scale holds {} numbers, not one", one.size());
    MR_RETURN_IF_ERROR(check_finite(one, beside->name));
    scale = one.front();
  }
  RankHead head;
  for (const std::string_view answer : {"yes", "no"}) {
    const auto at = std::find(tokens.begin(), tokens.end(), answer) - tokens.begin();
    if (at >= output->rows() || at == std::ssize(tokens))
      return error(Code::unsupported, "its vocabulary has no token '{}'", answer);
    MR_ASSIGN_OR_RETURN(std::vector<float> row, read_rows(file, *output, at, 1));
    if (std::ssize(row) != hp.model_dim)
      return error(Code::corrupt, "{} has {} columns but the model's states have {}", output->name, row.size(),
                   hp.model_dim);
    MR_RETURN_IF_ERROR(check_finite(row, output->name));
    for (float& weight : row) weight *= scale;
    head.rows.insert(head.rows.end(), row.begin(), row.end());
    ++head.labels;
  }
  MR_ASSIGN_OR_RETURN(head.prompt, read_prompt(file));
  return head;
}

}  // namespace

double RankHead::score(std::span<const float> state) const {
  std::vector<double> sums(static_cast<std::size_t>(labels));
  for (std::size_t label = 0; label < sums.size(); ++label)
    for (std::size_t i = 0; i < state.size(); ++i)
      sums[label] += static_cast<double>(rows[label * state.size() + i]) * static_cast<double>(state[i]);
  if (sums.size() == 1) return 1 / (1 + std::exp(-sums.front()));
  double others = 0;  // by the first label's, so that a label far above overflows to 0 and one far below to 1
  for (const double sum : sums) others += std::exp(sum - sums.front());
  return 1 / others;
}

Expected<std::optional<RankHead>> read_rank_head(const modelfile::Model& file, const Hyperparameters& hp) {
  if (const modelfile::TensorInfo* tensor = file.find(kHead); tensor != nullptr) {
    MR_ASSIGN_OR_RETURN(RankHead head, read_own(file, hp, *tensor));
    return std::optional<RankHead>(std::move(head));
  }
  if (!is_called_reranker(file)) return std::optional<RankHead>();
  MR_ASSIGN_OR_RETURN(RankHead head, read_answers(file, hp));
  return std::optional<RankHead>(std::move(head));
}

}  // namespace millrace::model
