#include "app/store/store.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "app/store/digest.h"

namespace millrace::store {
namespace {

namespace fs = std::filesystem;

const std::string kModel = MILLRACE_TEST_DATA "/demo-draft-f16.gguf";

class StoreTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = fs::temp_directory_path() / "storeXXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
    store_ = Store(root_);
  }
  void TearDown() override { fs::remove_all(root_); }

  void make(const std::string& name, const Recipe& recipe = {}) {
    const auto made = store_.create_from_file(name, recipe, kModel);
    ASSERT_TRUE(made.ok()) << made.status().message();
  }
  void damage(const std::string& name) { std::ofstream(root_ + "/manifests/-/" + name + "/latest.json") << "{"; }

  std::string root_;
  Store store_{""};
};

TEST_F(StoreTest, TakesANameForANameAlone) {
  make("base");
  EXPECT_TRUE(store_.create_from_name("other", {}, "base").ok());
  for (const std::string& path :
       {kModel, std::string("dir/private.gguf"), std::string("./base"), std::string("nowhere")})
    EXPECT_EQ(store_.create_from_name("x", {}, path).status().code(),
              parse_name(path).ok() ? Code::not_found : Code::invalid_argument)
        << path;
  EXPECT_FALSE(store_.find("x").ok());
}

TEST_F(StoreTest, GivesNoModelTheNameOfAFile) {
  make("base");
  EXPECT_EQ(store_.copy("base", "dir/private.gguf").code(), Code::invalid_argument);
  EXPECT_EQ(store_.create_from_name("private.gguf", {}, "base").status().code(), Code::invalid_argument);
  EXPECT_EQ(store_.list()->size(), 1u);
}

TEST_F(StoreTest, KeepsNothingThatCouldNotBeReadAgain) {
  make("base");
  Recipe recipe;
  recipe.messages = nlohmann::json::array({7});
  EXPECT_EQ(store_.create_from_name("x", recipe, "base").status().code(), Code::invalid_argument);
  recipe = {};
  recipe.parameters = 7;
  EXPECT_EQ(store_.create_from_name("x", recipe, "base").status().code(), Code::invalid_argument);
  recipe = {};
  recipe.chat_template = "{% if messages %}";
  EXPECT_FALSE(store_.create_from_name("x", recipe, "base").ok());
  recipe = {};
  recipe.system = std::string(20u << 20, 'x');
  EXPECT_EQ(store_.create_from_name("x", recipe, "base").status().code(), Code::invalid_argument);
  EXPECT_EQ(store_.find("x").status().code(), Code::not_found);
}

TEST_F(StoreTest, RemovesWhatCannotBeRead) {
  make("base");
  damage("base");
  EXPECT_EQ(store_.find("base").status().code(), Code::corrupt);
  EXPECT_TRUE(store_.remove("base").ok());
  EXPECT_EQ(store_.find("base").status().code(), Code::not_found);
}

TEST_F(StoreTest, RemovesTheBytesOfWhatCannotBeRead) {
  const std::string sha256 = sha256_of("bytes");
  fs::create_directories(root_ + "/blobs");
  std::ofstream(store_.blob_path(sha256)) << "bytes";
  Manifest manifest;
  manifest.name = *parse_name("held");
  manifest.files.push_back({"model.gguf", 5, sha256, ""});
  ASSERT_TRUE(store_.publish(manifest).ok());
  damage("held");
  ASSERT_TRUE(store_.remove("held").ok());
  EXPECT_FALSE(fs::exists(store_.blob_path(sha256)));
}

}  // namespace
}  // namespace millrace::store
