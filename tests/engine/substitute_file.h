// What `millrace quantize --substitute` writes, for as long as a test takes.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "kv/model_identity.h"
#include "modelfile/quantize.h"

namespace millrace::engine::test {

/// A model's substitutes, in a file that is removed at the end.
class SubstituteFile {
 public:
  explicit SubstituteFile(const std::string& model, modelfile::QuantizeType type = modelfile::QuantizeType::q4_0) {
    static int count = 0;
    path_ = std::filesystem::temp_directory_path() / fmt::format("millrace-{}-{}.substitute", getpid(), count++);
    modelfile::QuantizeOptions options;
    options.type = type;
    options.threads = 2;
    options.substitute_of = *kv::model_identity(*modelfile::Model::open(model));
    const Status status = modelfile::quantize(model, path_.string(), options);
    EXPECT_TRUE(status.ok()) << status.message();
  }
  ~SubstituteFile() { std::filesystem::remove(path_); }
  SubstituteFile(const SubstituteFile&) = delete;
  SubstituteFile& operator=(const SubstituteFile&) = delete;

  std::string path() const { return path_.string(); }
  std::string who() const { return "substitute:" + path_.string(); }

 private:
  std::filesystem::path path_;
};

}  // namespace millrace::engine::test
