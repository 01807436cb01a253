// Random control vectors, and a model that has one in a bias, for as long as a test takes.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "model/control_vector.h"
#include "modelfile/gguf.h"
#include "modelfile/gguf_writer.h"

namespace millrace::engine::test {

/// A file in the folder for temporary files, removed with this object.
class FreshFile {
 public:
  explicit FreshFile(const char* what) {
    static int count = 0;
    path_ = (std::filesystem::temp_directory_path() / fmt::format("millrace-{}-{}.{}.gguf", getpid(), count++, what))
                .string();
  }
  ~FreshFile() { std::filesystem::remove(path_); }
  FreshFile(const FreshFile&) = delete;
  FreshFile& operator=(const FreshFile&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

inline Status write_vectors(const std::string& path, const std::map<std::string, std::vector<float>>& vectors) {
  modelfile::Writer writer(path);
  MR_RETURN_IF_ERROR(writer.add("general.architecture", modelfile::Value(std::string("controlvector"))));
  for (const auto& [name, numbers] : vectors)
    MR_RETURN_IF_ERROR(writer.declare(name, DType::f32, {std::ssize(numbers)}));
  MR_RETURN_IF_ERROR(writer.begin());
  for (const auto& [name, numbers] : vectors)
    MR_RETURN_IF_ERROR(writer.write_tensor_data(std::as_bytes(std::span(numbers))));
  return writer.finish();
}

inline std::int64_t number_of(const std::string& model, const char* key) {
  const auto file = modelfile::Model::open(model);
  EXPECT_TRUE(file.ok()) << file.status().message();
  if (!file.ok()) return 0;
  const auto number = file->get_int(*file->get_string("general.architecture") + "." + key);
  EXPECT_TRUE(number.ok());
  return number.ok() ? *number : 0;
}

/// Layers that every pass goes through.
inline std::int64_t layers_of(const std::string& model) {
  const auto file = modelfile::Model::open(model);
  const std::string architecture = *file->get_string("general.architecture");
  return number_of(model, "block_count") - *file->get_int_or(architecture + ".nextn_predict_layers", 0);
}

/// What tools/reference-models/steered.py gave llama.cpp: directions of every layer but the first.
inline Status write_witnessed(const std::string& model, const std::string& path) {
  std::map<std::string, std::vector<float>> directions;
  const std::int64_t dim = number_of(model, "embedding_length"), layers = layers_of(model);
  for (std::int64_t layer = 1; layer < layers; ++layer) {
    std::vector<float>& numbers = directions[fmt::format("direction.{}", layer)];
    for (std::int64_t i = 0; i < dim; ++i)
      numbers.push_back(static_cast<float>((37 * i + 101 * layer) % 17 - 8) / 8.0F);
  }
  return write_vectors(path, directions);
}

/// Random directions of every layer but the first.
class ControlFile {
 public:
  explicit ControlFile(const std::string& model, std::uint32_t seed = 1, float deviation = 0.3F) : file_("control") {
    std::mt19937 random(seed);
    std::normal_distribution<float> draw(0, deviation);
    const std::int64_t dim = number_of(model, "embedding_length"), layers = layers_of(model);
    for (std::int64_t layer = 1; layer < layers; ++layer) {
      std::vector<float>& numbers = directions_[fmt::format("direction.{}", layer)];
      for (std::int64_t i = 0; i < dim; ++i) numbers.push_back(draw(random));
    }
    const Status status = write_vectors(file_.path(), directions_);
    EXPECT_TRUE(status.ok()) << status.message();
  }
  const std::string& path() const { return file_.path(); }
  const std::vector<float>& direction(std::int64_t layer) const {
    return directions_.at(fmt::format("direction.{}", layer));
  }

 private:
  FreshFile file_;
  std::map<std::string, std::vector<float>> directions_;
};

/// The file to be laid over a model.
class Steering {
 public:
  Steering(const std::string& model, const model::ControlOptions& options) : file_("steering") {
    const auto base = modelfile::Model::open(model);
    EXPECT_TRUE(base.ok());
    const auto report = model::write_control(*base, options, file_.path());
    EXPECT_TRUE(report.ok()) << report.status().message();
  }
  const std::string& path() const { return file_.path(); }

 private:
  FreshFile file_;
};

/// A copy of the model with numbers added to one of its float32 vectors.
inline Status write_shifted(const std::string& model, const std::string& name, const std::vector<float>& by,
                            const std::string& out) {
  MR_ASSIGN_OR_RETURN(const modelfile::Model file, modelfile::Model::open(model));
  std::ifstream in(model, std::ios::binary);
  modelfile::Writer writer(out);
  for (const auto& [key, value] : file.metadata()) MR_RETURN_IF_ERROR(writer.add(key, value));
  for (const modelfile::TensorInfo& tensor : file.tensors())
    MR_RETURN_IF_ERROR(writer.declare(tensor.name, tensor.dtype, tensor.shape));
  MR_RETURN_IF_ERROR(writer.begin());
  bool found = false;
  for (const modelfile::TensorInfo& tensor : file.tensors()) {
    std::vector<std::byte> bytes(tensor.bytes);
    in.seekg(static_cast<std::streamoff>(tensor.offset));
    in.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    if (tensor.name == name && tensor.dtype == DType::f32 && bytes.size() == by.size() * sizeof(float)) {
      std::vector<float> numbers(by.size());
      std::memcpy(numbers.data(), bytes.data(), bytes.size());
      for (std::size_t i = 0; i < by.size(); ++i) numbers[i] += by[i];
      std::memcpy(bytes.data(), numbers.data(), bytes.size());
      found = true;
    }
    MR_RETURN_IF_ERROR(writer.write_tensor_data(bytes));
  }
  EXPECT_TRUE(found) << name;
  return writer.finish();
}

}  // namespace millrace::engine::test
