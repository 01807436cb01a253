// What tells models apart, and what copies of one have in common.
#include "kv/model_identity.h"

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>

namespace millrace::kv {
namespace {

namespace fs = std::filesystem;

std::string identity_of(const fs::path& path, bool copy) {
  const auto file = modelfile::Model::open(path.string());
  EXPECT_TRUE(file.ok()) << file.status().message();
  const auto identity = copy ? copy_identity(*file) : model_identity(*file);
  EXPECT_TRUE(identity.ok()) << identity.status().message();
  return *identity;
}

TEST(ModelIdentity, TimesAreNoneOfACopys) {
  const fs::path original = MILLRACE_TEST_DATA "/reference/llama.gguf",
                 copy = fs::path(testing::TempDir()) / "model_identity_test.gguf";
  fs::copy_file(original, copy, fs::copy_options::overwrite_existing);
  fs::last_write_time(copy, fs::last_write_time(original) + std::chrono::hours(1));
  EXPECT_EQ(identity_of(copy, true), identity_of(original, true));
  EXPECT_NE(identity_of(copy, false), identity_of(original, false));
  {  // a weight in the middle of the last tensor
    const auto file = modelfile::Model::open(copy.string());
    const modelfile::TensorInfo& tensor = file->tensors().back();
    std::fstream stream(copy, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekp(static_cast<std::streamoff>(tensor.offset + tensor.bytes / 2));
    stream.put('x').put('y').put('z');
  }
  EXPECT_NE(identity_of(copy, true), identity_of(original, true));
  fs::remove(copy);
}

}  // namespace
}  // namespace millrace::kv
