#include "model/rank_head.h"

#include <algorithm>
#include <cmath>
#include <numeric>
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

constexpr std::int64_t kMostLabels = 1024;

/// [rows, cols] of a tensor. Errors: corrupt (another shape, numbers that are not finite).
Expected<std::vector<float>> read_matrix(const modelfile::Model& file, const modelfile::TensorInfo& tensor,
                                         std::int64_t rows, std::int64_t cols) {
  if (tensor.cols() != cols || tensor.rows() != rows)
    return error(Code::corrupt, "{} is {} x {} where {} x {} was to be there", tensor.name, tensor.cols(),
                 tensor.rows(), cols, rows);
  MR_ASSIGN_OR_RETURN(std::vector<float> values, read_rows(file, tensor, 0, rows));
  MR_RETURN_IF_ERROR(check_finite(values, tensor.name));
  return values;
}

/// Empty: the file has none.
Expected<std::vector<float>> read_vector(const modelfile::Model& file, const char* name, std::int64_t size) {
  const modelfile::TensorInfo* tensor = file.find(name);
  if (tensor == nullptr) return std::vector<float>();
  return read_matrix(file, *tensor, 1, size);
}

Expected<RankHead> read_own(const modelfile::Model& file, const Hyperparameters& hp,
                            const modelfile::TensorInfo& tensor) {
  for (const char* more : {"cls.weight", "cls.bias", "cls.norm.weight", "cls.output.bias"})
    if (file.find(more) != nullptr)
      return error(Code::unsupported, "its ranking head has {}; heads of {} alone are supported for decoders", more,
                   kHead);
  if (tensor.rows() < 1 || tensor.rows() > kMostLabels || tensor.cols() != hp.model_dim)
    return error(Code::corrupt, "{} is {} x {} but the model's states have {} numbers", kHead, tensor.cols(),
                 tensor.rows(), hp.model_dim);
  RankHead head;
  head.labels = tensor.rows();
  MR_ASSIGN_OR_RETURN(head.rows, read_matrix(file, tensor, head.labels, hp.model_dim));
  MR_ASSIGN_OR_RETURN(head.prompt, read_prompt(file));
  return head;
}

/// A cross-encoder's: rows behind a layer, or alone. Files of one label and no layer call the rows cls.weight.
Expected<RankHead> read_of_encoder(const modelfile::Model& file, const Hyperparameters& hp) {
  const bool modern = hp.architecture == "modern-bert";
  const modelfile::TensorInfo *dense = file.find("cls.weight"), *rows = file.find(kHead);
  const bool alone = rows == nullptr;
  if (alone) rows = dense;
  RankHead head;
  head.pairs = true;
  head.pooling = modern ? Pooling::rank_mean : Pooling::rank_first;
  head.labels = rows->rows();
  if (head.labels != 1)
    return error(Code::unsupported, "{} has {} labels; encoders that rank have one", rows->name, head.labels);
  MR_ASSIGN_OR_RETURN(head.rows, read_matrix(file, *rows, head.labels, hp.model_dim));
  MR_ASSIGN_OR_RETURN(head.bias, read_vector(file, alone ? "cls.bias" : "cls.output.bias", head.labels));
  if (alone || dense == nullptr) return head;
  constexpr std::int64_t kWidest = 4096;  // the head's weights are none of the budget's
  if (hp.model_dim > kWidest)
    return error(Code::unsupported, "cls.weight reads states of {} numbers; this version has {} at most", hp.model_dim,
                 kWidest);
  RankLayer& layer = head.layer.emplace();
  MR_ASSIGN_OR_RETURN(layer.weight, read_matrix(file, *dense, hp.model_dim, hp.model_dim));
  MR_ASSIGN_OR_RETURN(layer.bias, read_vector(file, "cls.bias", hp.model_dim));
  MR_ASSIGN_OR_RETURN(layer.norm, read_vector(file, "cls.norm.weight", hp.model_dim));
  if (modern) layer.activation = RankLayer::Activation::gelu;
  layer.eps = hp.rms_eps;
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

/// rows x + bias; bias: empty for none.
std::vector<double> product(std::span<const float> rows, std::span<const float> bias, std::span<const double> x) {
  std::vector<double> sums(rows.size() / x.size());
  for (std::size_t row = 0; row < sums.size(); ++row) {
    for (std::size_t i = 0; i < x.size(); ++i) sums[row] += static_cast<double>(rows[row * x.size() + i]) * x[i];
    if (!bias.empty()) sums[row] += static_cast<double>(bias[row]);
  }
  return sums;
}

std::vector<double> through(const RankLayer& layer, std::span<const double> state) {
  std::vector<double> x = product(layer.weight, layer.bias, state);
  const bool gelu = layer.activation == RankLayer::Activation::gelu;
  for (double& value : x) value = gelu ? 0.5 * value * (1 + std::erf(value / std::sqrt(2.0))) : std::tanh(value);
  if (layer.norm.empty()) return x;
  const auto count = static_cast<double>(x.size());
  const double mean = std::accumulate(x.begin(), x.end(), 0.0) / count;
  double squares = 0;
  for (double& value : x) {
    value -= mean;
    squares += value * value;
  }
  const double scale = 1 / std::sqrt(squares / count + layer.eps);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] *= scale * static_cast<double>(layer.norm[i]);
  return x;
}

}  // namespace

double RankHead::score(std::span<const float> state) const {
  std::vector<double> x(state.begin(), state.end());
  if (layer) x = through(*layer, x);
  const std::vector<double> sums = product(rows, bias, x);
  if (sums.size() == 1) return 1 / (1 + std::exp(-sums.front()));
  double others = 0;  // by the first label's, so that a label far above overflows to 0 and one far below to 1
  for (const double sum : sums) others += std::exp(sum - sums.front());
  return 1 / others;
}

Expected<std::optional<RankHead>> read_rank_head(const modelfile::Model& file, const Hyperparameters& hp) {
  if (!hp.causal) {
    if (file.find(kHead) == nullptr && file.find("cls.weight") == nullptr) return std::optional<RankHead>();
    MR_ASSIGN_OR_RETURN(RankHead head, read_of_encoder(file, hp));
    return std::optional<RankHead>(std::move(head));
  }
  if (const modelfile::TensorInfo* tensor = file.find(kHead); tensor != nullptr) {
    MR_ASSIGN_OR_RETURN(RankHead head, read_own(file, hp, *tensor));
    return std::optional<RankHead>(std::move(head));
  }
  if (!is_called_reranker(file)) return std::optional<RankHead>();
  MR_ASSIGN_OR_RETURN(RankHead head, read_answers(file, hp));
  return std::optional<RankHead>(std::move(head));
}

}  // namespace millrace::model
