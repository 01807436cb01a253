// A model file's copy whose matrices are divided by numbers that stand beside them as NAME.scale, for as long as a test
// takes.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "modelfile/gguf.h"
#include "modelfile/gguf_writer.h"
#include "tensor/codec.h"

namespace millrace::engine::test {

struct Scaling {
  DType dtype = DType::f32;  // of matrices whose rows are whole blocks of it; others stay as they are
  bool multiplied = false;   // no scales beside them: what `dtype` made of each matrix, times its number, in F32
  bool powers = false;       // the numbers are powers of two, by which nothing is rounded
  std::string more = {};     // one more tensor, of one number
  float number = 2;          // that one
};

class ScaledFile {
 public:
  ScaledFile(const std::string& model, const Scaling& scaling) : scaling_(scaling) {
    static int count = 0;
    path_ = (std::filesystem::temp_directory_path() / fmt::format("millrace-{}-{}.scaled.gguf", getpid(), count++));
    const Status status = write(model);
    EXPECT_TRUE(status.ok()) << status.message();
  }
  ~ScaledFile() { std::filesystem::remove(path_); }
  ScaledFile(const ScaledFile&) = delete;
  ScaledFile& operator=(const ScaledFile&) = delete;

  std::string path() const { return path_.string(); }
  int scales() const { return scales_; }

 private:
  /// Matrices of products that may have scales in such files.
  static bool may_scale(const modelfile::Model& file, const modelfile::TensorInfo& tensor) {
    const std::string& name = tensor.name;
    if (tensor.shape.size() < 2 || !name.ends_with(".weight")) return false;
    for (const char* other : {"token_embd", "position_embd", "norm", "ffn_gate_inp", "conv", "attn_k_b.", "attn_v_b.",
                              "attn_kv_b.", "attn_kv_a_mqa", "ffn_gate_up_exps", "per_layer", "altup_proj",
                              "altup_unembd", "attn_output_a.", "hc_", "_ape.", "tid2eid"})
      if (name.find(other) != name.npos) return false;
    const std::string stem = name.substr(0, name.size() - 7);
    return file.find(stem + ".scale") == nullptr;
  }

  Status write(const std::string& model) {
    MR_ASSIGN_OR_RETURN(const modelfile::Model file, modelfile::Model::open(model));
    std::ifstream in(model, std::ios::binary);
    modelfile::Writer writer(path_.string());
    for (const auto& [key, value] : file.metadata()) MR_RETURN_IF_ERROR(writer.add(key, value));
    std::vector<std::vector<std::byte>> data;
    const auto declare = [&](const std::string& name, DType dtype, std::vector<std::int64_t> shape,
                             std::vector<std::byte> bytes) {
      data.push_back(std::move(bytes));
      return writer.declare(name, dtype, std::move(shape));
    };
    std::int64_t matrices = 0;
    bool more_is_there = false;
    for (const modelfile::TensorInfo& tensor : file.tensors()) {
      std::vector<std::byte> bytes(tensor.bytes);
      in.seekg(static_cast<std::streamoff>(tensor.offset));
      in.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
      const bool whole = tensor.cols() % info(scaling_.dtype).block_elements == 0;
      if (!may_scale(file, tensor) || !whole) {
        MR_RETURN_IF_ERROR(declare(tensor.name, tensor.dtype, tensor.shape, std::move(bytes)));
        continue;
      }
      const std::int64_t experts = tensor.shape.size() == 3 ? tensor.shape[2] : 1;
      std::vector<float> factors;
      for (std::int64_t e = 0; e < experts; ++e) factors.push_back(factor(7 * matrices + 13 * e));
      ++matrices;
      std::vector<std::byte> matrix = divided(tensor, bytes, factors, scaling_.dtype);
      MR_RETURN_IF_ERROR(
          declare(tensor.name, scaling_.multiplied ? DType::f32 : scaling_.dtype, tensor.shape, std::move(matrix)));
      if (scaling_.multiplied) continue;
      const std::string scale = tensor.name.substr(0, tensor.name.size() - 7) + ".scale";
      if (scale == scaling_.more) factors.assign(factors.size(), scaling_.number);
      const auto* from = reinterpret_cast<const std::byte*>(factors.data());
      MR_RETURN_IF_ERROR(declare(scale, DType::f32, {experts}, {from, from + 4 * experts}));
      more_is_there |= scale == scaling_.more;
      ++scales_;
    }
    const auto* from = reinterpret_cast<const std::byte*>(&scaling_.number);
    if (!scaling_.more.empty() && !more_is_there)
      MR_RETURN_IF_ERROR(declare(scaling_.more, DType::f32, {1}, {from, from + sizeof(float)}));
    MR_RETURN_IF_ERROR(writer.begin());
    for (const auto& bytes : data) MR_RETURN_IF_ERROR(writer.write_tensor_data(bytes));
    return writer.finish();
  }

  float factor(std::int64_t number) const {
    if (scaling_.powers) return std::ldexp(1.0F, -static_cast<int>(1 + number % 9));
    return 0.001F * static_cast<float>(1 + number % 23);
  }

  std::vector<std::byte> divided(const modelfile::TensorInfo& tensor, const std::vector<std::byte>& bytes,
                                 const std::vector<float>& factors, DType dtype) const {
    const std::int64_t cols = tensor.cols(), rows = tensor.rows();
    std::vector<float> row(static_cast<std::size_t>(cols));
    std::vector<std::byte> out(
        static_cast<std::size_t>(rows * row_bytes(scaling_.multiplied ? DType::f32 : dtype, cols)));
    std::vector<std::byte> encoded(static_cast<std::size_t>(row_bytes(dtype, cols)));
    for (std::int64_t n = 0; n < rows; ++n) {
      const float factor = factors[static_cast<std::size_t>(n / (rows / static_cast<std::int64_t>(factors.size())))];
      decode_row(tensor.dtype, bytes.data() + n * row_bytes(tensor.dtype, cols), cols, row.data());
      for (float& value : row) value /= factor;
      encode_row(dtype, row.data(), cols, encoded.data());
      if (scaling_.multiplied) {
        decode_row(dtype, encoded.data(), cols, row.data());
        for (float& value : row) value *= factor;
        std::memcpy(out.data() + n * cols * 4, row.data(), row.size() * 4);
      } else {
        std::memcpy(out.data() + static_cast<std::size_t>(n) * encoded.size(), encoded.data(), encoded.size());
      }
    }
    return out;
  }

  Scaling scaling_;
  std::filesystem::path path_;
  int scales_ = 0;
};

}  // namespace millrace::engine::test
