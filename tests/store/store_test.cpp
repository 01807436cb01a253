#include "app/store/store.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "app/store/adapters.h"
#include "app/store/digest.h"
#include "fresh_folder.h"
#include "modelfile/gguf_writer.h"

namespace millrace::store {
namespace {

namespace fs = std::filesystem;

const std::string kModel = fs::absolute(MILLRACE_TEST_DATA "/demo-draft-f16.gguf").string();  // with Windows' drive

class StoreTest : public testing::Test {
 protected:
  void SetUp() override {
    root_ = test::fresh_folder("store");
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

/// An adapter of the demo draft's first attn_q, of rank 1; `cols`: of its A.
void write_adapter(const std::string& path, std::int64_t cols) {
  const auto model = modelfile::Model::open(kModel);
  ASSERT_TRUE(model.ok());
  const modelfile::TensorInfo* const matrix = model->find("blk.0.attn_q.weight");
  ASSERT_NE(matrix, nullptr);
  if (cols == 0) cols = matrix->cols();
  modelfile::Writer writer(path);
  for (const auto& [key, value] : {std::pair{"general.type", "adapter"}, {"adapter.type", "lora"}})
    ASSERT_TRUE(writer.add(key, modelfile::Value(std::string(value))).ok());
  ASSERT_TRUE(writer.add("general.architecture", model->metadata().at("general.architecture")).ok());
  ASSERT_TRUE(writer.declare("blk.0.attn_q.weight.lora_a", DType::f32, {cols, 1}).ok());
  ASSERT_TRUE(writer.declare("blk.0.attn_q.weight.lora_b", DType::f32, {1, matrix->rows()}).ok());
  ASSERT_TRUE(writer.begin().ok());
  for (const std::int64_t count : {cols, matrix->rows()})
    ASSERT_TRUE(writer.write_tensor_data(std::vector<std::byte>(static_cast<std::size_t>(count) * 4)).ok());
  ASSERT_TRUE(writer.finish().ok());
}

TEST_F(StoreTest, KeepsAdaptersAsPartsOfAModel) {
  const std::string path = root_ + "/voice.gguf", other = root_ + "/other.gguf";
  write_adapter(path, 0);
  write_adapter(other, 32);
  Recipe recipe{.from = kModel, .adapters = {{.path = "voice.gguf"}}};
  const auto made = store_.create("voiced", recipe, root_);
  ASSERT_TRUE(made.ok()) << made.status().message();
  fs::remove(path);  // the store has a copy
  auto manifest = store_.find("voiced");
  ASSERT_TRUE(manifest.ok() && manifest->files.size() == 2u);
  const ModelFile kept = manifest->files[1];
  EXPECT_TRUE(kept.adapter);
  EXPECT_EQ(kept.name, "voice.gguf");
  EXPECT_TRUE(store_.resolve("voiced").ok());
  const auto outline = outline_of(to_json(*manifest));
  ASSERT_TRUE(outline.ok());
  EXPECT_TRUE(outline->files[1].adapter);
  const auto adapters = adapters_of(store_, manifest->name, manifest->files);
  ASSERT_EQ(adapters.size(), 1u);
  EXPECT_EQ(adapters[0].name, "voice");
  EXPECT_TRUE(adapters[0].of_model && fs::exists(adapters[0].path));

  // From that model: its adapter, and another one of the same name.
  recipe = {.from = "voiced", .adapters = {{.uploaded = {{"voice.gguf", 0, kept.sha256}}}}};
  ASSERT_TRUE(store_.create_from_name("twice", recipe, "voiced").ok());
  manifest = store_.find("twice");
  ASSERT_EQ(manifest->files.size(), 3u);
  EXPECT_EQ(manifest->files[2].name, "voice-2.gguf");
  ASSERT_TRUE(store_.remove("voiced").ok());
  EXPECT_TRUE(fs::exists(store_.blob_path(kept.sha256))) << "the other model has it still";
  ASSERT_TRUE(store_.remove("twice").ok());
  EXPECT_FALSE(fs::exists(store_.blob_path(kept.sha256)));

  // What is no adapter of the model, and what is none at all.
  for (const auto& [wrong, code] : {std::pair{std::string("other.gguf"), Code::invalid_argument},
                                    {std::string("none.gguf"), Code::not_found},
                                    {std::string("."), Code::invalid_argument},
                                    {kModel, Code::unsupported}}) {
    const Status refused = store_.create("x", {.from = kModel, .adapters = {{.path = wrong}}}, root_).status();
    EXPECT_EQ(refused.code(), code) << wrong << ": " << refused.message();
    EXPECT_NE(refused.message().find("ADAPTER"), std::string::npos) << refused.message();
  }
  const ModelFile absent{"a.gguf", 0, std::string(64, '0')};
  EXPECT_EQ(store_.create_from_file("x", {.adapters = {{.uploaded = {absent}}}}, kModel).status().code(),
            Code::not_found);
  EXPECT_TRUE(fs::is_empty(root_ + "/blobs") && fs::is_empty(root_ + "/partial"));
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
