// A file of a head or an assistant, whose keys and tensors a test changes before it is loaded beside a model.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "model/model.h"
#include "modelfile/gguf_writer.h"

namespace millrace::test {

inline std::string data_file(const std::string& name) { return MILLRACE_TEST_DATA "/" + name + ".gguf"; }

class HeadFile {
 public:
  struct Tensor {
    DType dtype = DType::f32;
    std::vector<std::int64_t> shape;
    std::vector<std::int64_t> integers = {};  // of I64; other tensors are zeros, which no test reads
  };
  std::map<std::string, modelfile::Value, std::less<>> keys;
  std::map<std::string, Tensor> tensors;

  explicit HeadFile(const std::string& name) {
    const auto file = modelfile::Model::open(data_file("heads/" + name));
    EXPECT_TRUE(file.ok());
    keys = file->metadata();
    prefix_ = *file->get_string("general.architecture") + ".";
    for (const modelfile::TensorInfo& tensor : file->tensors()) {
      if (tensor.name == "rope_freqs.weight") continue;  // zeros are refused
      Tensor& own = tensors[tensor.name] = {tensor.dtype, tensor.shape};
      if (tensor.dtype == DType::i64)
        for (std::int64_t i = 0; i < tensor.cols(); ++i) own.integers.push_back(i);
    }
  }
  ~HeadFile() { std::filesystem::remove(path_); }
  HeadFile(const HeadFile&) = delete;
  HeadFile& operator=(const HeadFile&) = delete;

  void set(const std::string& key, modelfile::Value value) { keys[prefix_ + key] = std::move(value); }

  /// What loading it beside the model answers.
  Expected<std::unique_ptr<model::Model>> beside(const std::string& target, bool apart = false) const {
    modelfile::Writer writer(path_);
    for (const auto& [key, value] : keys) EXPECT_TRUE(writer.add(key, value).ok());
    for (const auto& [name, tensor] : tensors) EXPECT_TRUE(writer.declare(name, tensor.dtype, tensor.shape).ok());
    EXPECT_TRUE(writer.begin().ok());
    for (const auto& [name, tensor] : tensors) {
      std::vector<std::byte> bytes(bytes_of(tensor));
      const auto given = std::as_bytes(std::span(tensor.integers));
      std::copy(given.begin(), given.end(), bytes.begin());
      EXPECT_TRUE(writer.write_tensor_data(bytes).ok());
    }
    EXPECT_TRUE(writer.finish().ok());
    const auto file = modelfile::Model::open(data_file("reference/" + target)), head = modelfile::Model::open(path_);
    EXPECT_TRUE(file.ok() && head.ok()) << head.status().message();
    model::LoadOptions how;
    how.draft_block = true;
    how.draft_head = &*head;
    how.draft_apart = apart;
    return model::load(*file, how);
  }

 private:
  static std::size_t bytes_of(const Tensor& tensor) {
    std::int64_t rows = 1;
    for (std::size_t i = 1; i < tensor.shape.size(); ++i) rows *= tensor.shape[i];
    return static_cast<std::size_t>(rows * row_bytes(tensor.dtype, tensor.shape.front()));
  }
  std::string prefix_;
  const std::string path_ =
      (std::filesystem::temp_directory_path() / ("millrace-head-" + std::to_string(getpid()) + ".gguf")).string();
};

}  // namespace millrace::test
