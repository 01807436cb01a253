// A Llama as the paper has it, in double and without a thought for speed: what the engine's figures are held against.
// It keeps the sums of squares of what each matrix read.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "modelfile/file_io.h"
#include "modelfile/gguf.h"
#include "tensor/codec.h"
#include "text/tokenizer.h"

namespace millrace::measure::test {

using Rows = std::vector<std::vector<double>>;

class PlainLlama {
 public:
  explicit PlainLlama(const std::string& path) {
    auto model = modelfile::Model::open(path);
    EXPECT_TRUE(model.ok()) << model.status().message();
    for (const modelfile::TensorInfo& tensor : model->tensors()) weights_[tensor.name] = decode(*model, tensor);
    const auto number = [&](const std::string& key) { return *model->get_int("llama." + key); };
    layers_ = number("block_count");
    heads_ = number("attention.head_count");
    kv_heads_ = number("attention.head_count_kv");
    head_dim_ = static_cast<std::int64_t>(weights_.at("blk.0.attn_q.weight").size()) / heads_;
    eps_ = *model->get_float("llama.attention.layer_norm_rms_epsilon");
    theta_ = *model->get_float_or("llama.rope.freq_base", 10000);
  }

  /// Logits of every row.
  Rows logits(const std::vector<text::TokenId>& tokens) {
    Rows x;
    for (const text::TokenId token : tokens)
      x.push_back(weights_.at("token_embd.weight")[static_cast<std::size_t>(token)]);
    for (std::int64_t layer = 0; layer < layers_; ++layer) {
      const std::string name = "blk." + std::to_string(layer) + ".";
      const Rows h = norm(x, name + "attn_norm.weight");
      Rows q = product(h, name + "attn_q.weight"), k = product(h, name + "attn_k.weight");
      rotate(q, heads_);
      rotate(k, kv_heads_);
      add(x, product(attend(q, k, product(h, name + "attn_v.weight")), name + "attn_output.weight"));
      const Rows f = norm(x, name + "ffn_norm.weight");
      Rows gate = product(f, name + "ffn_gate.weight");
      const Rows up = product(f, name + "ffn_up.weight");
      for (std::size_t r = 0; r < gate.size(); ++r)
        for (std::size_t c = 0; c < gate[r].size(); ++c) gate[r][c] *= up[r][c] / (1 + std::exp(-gate[r][c]));
      add(x, product(gate, name + "ffn_down.weight"));
    }
    const bool tied = !weights_.contains("output.weight");
    return product(norm(x, "output_norm.weight"), tied ? "token_embd.weight" : "output.weight");
  }

  /// By tensor: of the rows it was multiplied by, the squares of each column summed up.
  std::map<std::string, std::vector<double>> squares;

 private:
  static Rows decode(const modelfile::Model& model, const modelfile::TensorInfo& tensor) {
    auto file = modelfile::File::open_read(model.paths()[static_cast<std::size_t>(tensor.file)]);
    std::vector<std::byte> bytes(tensor.bytes);
    EXPECT_TRUE(file.ok() && file->read_at(tensor.offset, bytes).ok());
    Rows rows;
    std::vector<float> row(static_cast<std::size_t>(tensor.cols()));
    for (std::int64_t r = 0; r < tensor.rows(); ++r) {
      decode_row(tensor.dtype, bytes.data() + r * row_bytes(tensor.dtype, tensor.cols()), tensor.cols(), row.data());
      rows.emplace_back(row.begin(), row.end());
    }
    return rows;
  }

  Rows norm(const Rows& x, const std::string& name) const {
    const std::vector<double>& weight = weights_.at(name)[0];
    Rows out = x;
    for (auto& row : out) {
      double squares_of_row = 0;
      for (const double value : row) squares_of_row += value * value;
      const double scale = 1 / std::sqrt(squares_of_row / static_cast<double>(row.size()) + eps_);
      for (std::size_t c = 0; c < row.size(); ++c) row[c] *= scale * weight[c];
    }
    return out;
  }

  Rows product(const Rows& x, const std::string& name) {
    const Rows& weight = weights_.at(name);
    std::vector<double>& seen = squares[name];
    seen.resize(x[0].size());
    Rows out;
    for (const auto& row : x) {
      for (std::size_t c = 0; c < row.size(); ++c) seen[c] += row[c] * row[c];
      std::vector<double>& y = out.emplace_back();
      for (const auto& weights : weight) {
        double sum = 0;
        for (std::size_t c = 0; c < row.size(); ++c) sum += row[c] * weights[c];
        y.push_back(sum);
      }
    }
    return out;
  }

  static void add(Rows& x, const Rows& y) {
    for (std::size_t r = 0; r < x.size(); ++r)
      for (std::size_t c = 0; c < x[r].size(); ++c) x[r][c] += y[r][c];
  }

  void rotate(Rows& x, std::int64_t heads) const {
    for (std::size_t position = 0; position < x.size(); ++position)
      for (std::int64_t h = 0; h < heads; ++h)
        for (std::int64_t i = 0; i < head_dim_ / 2; ++i) {
          const double angle = static_cast<double>(position) *
                               std::pow(theta_, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim_));
          double& first = x[position][static_cast<std::size_t>(h * head_dim_ + 2 * i)];
          double& second = x[position][static_cast<std::size_t>(h * head_dim_ + 2 * i + 1)];
          const double turned = first * std::cos(angle) - second * std::sin(angle);
          second = first * std::sin(angle) + second * std::cos(angle);
          first = turned;
        }
  }

  Rows attend(const Rows& q, const Rows& k, const Rows& v) const {
    Rows out(q.size(), std::vector<double>(q[0].size()));
    for (std::size_t r = 0; r < q.size(); ++r)
      for (std::int64_t h = 0; h < heads_; ++h) {
        const auto at = static_cast<std::size_t>(h * head_dim_);
        const auto kv_at = static_cast<std::size_t>(h / (heads_ / kv_heads_) * head_dim_);
        std::vector<double> weights;
        double total = 0;
        for (std::size_t key = 0; key <= r; ++key) {
          double score = 0;
          for (std::size_t c = 0; c < static_cast<std::size_t>(head_dim_); ++c)
            score += q[r][at + c] * k[key][kv_at + c];
          weights.push_back(std::exp(score / std::sqrt(static_cast<double>(head_dim_))));
          total += weights.back();
        }
        for (std::size_t key = 0; key <= r; ++key)
          for (std::size_t c = 0; c < static_cast<std::size_t>(head_dim_); ++c)
            out[r][at + c] += weights[key] / total * v[key][kv_at + c];
      }
    return out;
  }

  std::map<std::string, Rows> weights_;
  std::int64_t layers_ = 0, heads_ = 0, kv_heads_ = 0, head_dim_ = 0;
  double eps_ = 0, theta_ = 0;
};

}  // namespace millrace::measure::test
