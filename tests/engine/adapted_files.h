// A random adapter of a model's matrices, and the model with the same change in its weights, for as long as a test
// takes.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "engine/checkpoint_path.h"
#include "modelfile/gguf.h"
#include "modelfile/gguf_writer.h"
#include "modelfile/mixtures.h"
#include "tensor/codec.h"

namespace millrace::engine::test {

/// Relative L2.
inline double distance(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_FALSE(a.empty());
  EXPECT_EQ(a.size(), b.size());
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    difference += std::pow(double{a[i]} - b[i], 2);
    norm += std::pow(double{b[i]}, 2);
  }
  return std::sqrt(difference / norm);
}

struct Adapting {
  std::uint32_t seed = 1;
  std::int64_t rank = 4;
  DType dtype = DType::f32;  // of both halves, where their rows are whole blocks of it; else F32
  float alpha = 8;
  float scale = 1;                                          // at which the merged model has it
  std::function<bool(const std::string& name)> wants = {};  // empty: all matrices
  std::map<std::string, modelfile::Value> keys = {};        // in place of the adapter's own
  std::string leave_out = {}, rename_to = {};  // a tensor of the adapter's; what the last one's name becomes
  bool merges = true;
};

/// Whether llama.cpp's adapters, and this engine's, change products with this tensor.
inline bool may_adapt(const modelfile::Model& file, const modelfile::TensorInfo& tensor) {
  const std::string& name = tensor.name;
  if (tensor.shape.size() < 2 || !name.ends_with(".weight")) return false;
  for (const char* other :
       {"position_embd", "token_types", "norm", "conv", "attn_k_b.", "attn_v_b.", "attn_kv_b.", "attn_output_a.",
        "_ape.", "tid2eid", "per_layer_token_embd", "nextn", "rope_freqs", "cls."})
    if (name.find(other) != name.npos) return false;
  // Blocks behind the layers guess, and no pass of the model uses them.
  const std::string architecture =
      file.get_string("general.architecture").ok() ? *file.get_string("general.architecture") : "";
  const auto layers = file.get_int(architecture + ".block_count");
  const auto guessing = file.get_int_or(architecture + ".nextn_predict_layers", 0);
  int layer = -1;
  if (layers.ok() && guessing.ok() && std::sscanf(name.c_str(), "blk.%d.", &layer) == 1 && layer >= *layers - *guessing)
    return false;
  return file.find(modelfile::scale_name(name)) == nullptr;
}

class AdaptedFiles {
 public:
  AdaptedFiles(const std::string& model, const Adapting& adapting) : adapting_(adapting), random_(adapting.seed) {
    static int count = 0;
    const auto path = [&](const char* what) {
      return std::filesystem::temp_directory_path() / fmt::format("millrace-{}-{}.{}.gguf", getpid(), count, what);
    };
    adapter_ = path("adapter");
    merged_ = path("merged");
    ++count;
    const Status status = write(model);
    EXPECT_TRUE(status.ok()) << status.message();
  }
  ~AdaptedFiles() {
    std::filesystem::remove(adapter_);
    std::filesystem::remove(merged_);
  }
  AdaptedFiles(const AdaptedFiles&) = delete;
  AdaptedFiles& operator=(const AdaptedFiles&) = delete;

  std::string adapter() const { return adapter_.string(); }
  std::string merged() const { return merged_.string(); }
  int matrices() const { return matrices_; }

 private:
  using Floats = std::vector<float>;
  /// A half of a matrix's change.
  struct Half {
    std::string name;
    std::vector<std::int64_t> shape;
    Floats floats;
    DType dtype = DType::f32;
    std::vector<std::byte> bytes;
  };

  Half half(const std::string& name, std::vector<std::int64_t> shape, float deviation) {
    Half made{name, std::move(shape), {}, adapting_.dtype, {}};
    const std::int64_t cols = made.shape[0];
    std::int64_t rows = 1;
    for (std::size_t i = 1; i < made.shape.size(); ++i) rows *= made.shape[i];
    if (cols % info(made.dtype).block_elements != 0) made.dtype = DType::f32;
    std::normal_distribution<float> draw(0, deviation);
    made.floats.resize(static_cast<std::size_t>(cols * rows));
    made.bytes.resize(static_cast<std::size_t>(rows * row_bytes(made.dtype, cols)));
    for (float& number : made.floats) number = draw(random_);
    for (std::int64_t r = 0; r < rows; ++r) {
      std::byte* const row = made.bytes.data() + r * row_bytes(made.dtype, cols);
      encode_row(made.dtype, made.floats.data() + r * cols, cols, row);
      decode_row(made.dtype, row, cols, made.floats.data() + r * cols);
    }
    return made;
  }

  /// Adds the change to the matrix's floats.
  void merge(const modelfile::TensorInfo& tensor, const Half& a, const Half& b, bool table, Floats& floats) const {
    const std::int64_t cols = tensor.shape[0], rows = tensor.shape[1], rank = adapting_.rank;
    const std::int64_t experts = tensor.shape.size() > 2 ? tensor.shape[2] : 1;
    const double factor = adapting_.scale * (adapting_.alpha == 0 ? 1.0 : adapting_.alpha / rank);
    for (std::int64_t e = 0; e < experts; ++e)
      for (std::int64_t n = 0; n < rows; ++n)
        for (std::int64_t k = 0; k < cols; ++k) {
          double sum = 0;
          for (std::int64_t r = 0; r < rank; ++r)
            sum += table ? double{a.floats[static_cast<std::size_t>(n * rank + r)]} *
                               b.floats[static_cast<std::size_t>(k * rank + r)]
                         : double{a.floats[static_cast<std::size_t>((e * rank + r) * cols + k)]} *
                               b.floats[static_cast<std::size_t>((e * rows + n) * rank + r)];
          floats[static_cast<std::size_t>((e * rows + n) * cols + k)] += static_cast<float>(factor * sum);
        }
  }

  Status write(const std::string& model) {
    MR_ASSIGN_OR_RETURN(const modelfile::Model file, modelfile::Model::open(model));
    std::ifstream in(model, std::ios::binary);
    modelfile::Writer adapter(adapter_.string()), merged(merged_.string());
    std::map<std::string, modelfile::Value> keys = {
        {"general.type", modelfile::Value(std::string("adapter"))},
        {"general.architecture", file.metadata().at("general.architecture")},
        {"adapter.type", modelfile::Value(std::string("lora"))},
        {"adapter.lora.alpha", modelfile::Value(adapting_.alpha)}};
    for (const auto& [key, value] : adapting_.keys) keys[key] = value;
    for (const auto& [key, value] : keys) MR_RETURN_IF_ERROR(adapter.add(key, value));
    for (const auto& [key, value] : file.metadata()) MR_RETURN_IF_ERROR(merged.add(key, value));
    std::vector<Half> halves;
    std::vector<std::vector<std::byte>> data;
    for (const modelfile::TensorInfo& tensor : file.tensors()) {
      std::vector<std::byte> bytes(tensor.bytes);
      in.seekg(static_cast<std::streamoff>(tensor.offset));
      in.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
      if (!may_adapt(file, tensor) || (adapting_.wants && !adapting_.wants(tensor.name))) {
        MR_RETURN_IF_ERROR(merged.declare(tensor.name, tensor.dtype, tensor.shape));
        data.push_back(std::move(bytes));
        continue;
      }
      ++matrices_;
      // The embedding is looked up and, where it is the head, multiplied by too: only a head of its own can be told
      // from what a merged file does.
      const bool table = tensor.name == "token_embd.weight";
      const std::int64_t cols = tensor.shape[0], rows = tensor.shape[1], rank = adapting_.rank;
      std::vector<std::int64_t> a_shape{cols, rank}, b_shape{rank, rows};
      if (table) a_shape = {rank, rows}, b_shape = {rank, cols};
      if (tensor.shape.size() > 2) a_shape.push_back(tensor.shape[2]), b_shape.push_back(tensor.shape[2]);
      const Half a = half(tensor.name + ".lora_a", a_shape, table ? 0.05F : 1 / std::sqrt(static_cast<float>(cols)));
      const Half b = half(tensor.name + ".lora_b", b_shape, 0.03F);
      Floats floats(static_cast<std::size_t>(tensor.rows() * cols));
      for (std::int64_t r = 0; r < tensor.rows(); ++r)
        decode_row(tensor.dtype, bytes.data() + r * row_bytes(tensor.dtype, cols), cols, floats.data() + r * cols);
      if (adapting_.merges) merge(tensor, a, b, table, floats);
      MR_RETURN_IF_ERROR(merged.declare(tensor.name, DType::f32, tensor.shape));
      const auto* from = reinterpret_cast<const std::byte*>(floats.data());
      data.emplace_back(from, from + floats.size() * sizeof(float));
      halves.push_back(a);
      halves.push_back(b);
    }
    std::erase_if(halves, [&](const Half& one) { return one.name == adapting_.leave_out; });
    for (Half& one : halves) {
      if (!adapting_.rename_to.empty() && &one == &halves.back()) one.name = adapting_.rename_to;
      MR_RETURN_IF_ERROR(adapter.declare(one.name, one.dtype, one.shape));
    }
    MR_RETURN_IF_ERROR(adapter.begin());
    MR_RETURN_IF_ERROR(merged.begin());
    for (const Half& one : halves) MR_RETURN_IF_ERROR(adapter.write_tensor_data(one.bytes));
    for (const auto& bytes : data) MR_RETURN_IF_ERROR(merged.write_tensor_data(bytes));
    MR_RETURN_IF_ERROR(merged.finish());
    return adapter.finish();
  }

  Adapting adapting_;
  std::mt19937 random_;
  std::filesystem::path adapter_, merged_;
  int matrices_ = 0;
};

}  // namespace millrace::engine::test
